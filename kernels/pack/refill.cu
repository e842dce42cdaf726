// Writes other values into the slots of a pattern.
//
// Arrays of a pattern: see packed.cuh. data (nnz): values as bits, in the caller's order of entries.
// order (nnz) or null: the place in data of the i-th entry. table: see Coder.
// stored (32 steps): codes by slots, 0 in a pad.
// Launch: a warp for each slice, whose lane l takes the l-th slot of each step; blocks of 256 threads.
// Deterministic: each code is written once, from its value alone.

#include "pack/packed.cuh"
#include "pack/values.cuh"

// Blocks that share a multiprocessor's registers; with a dictionary, more blocks have fewer loads each.
constexpr int BLOCKS = DASP_CODING == CODING_DICTIONARY && sizeof(Index) + sizeof(Place) == 8 ? 5 : 4;
constexpr int AT_ONCE = sizeof(Bits) == 16 ? 4 : BLOCKS == 5 ? 6 : 8;

// The values of AT_ONCE steps of a slice.
struct Step {
    Bits bits[AT_ONCE];
    unsigned held;  // a bit for each step, set if this lane's slot holds a value

    // Loads the values from step `first` on; `entry` is the next entry of this lane's row.
    __device__ __forceinline__ void load(const Packed& slice, const Values& values, int first, Count& entry)
    {
        held = slice.held<AT_ONCE>(first);
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const Count mine = slice.next_entry(held >> k & 1, entry);
            if (held >> k & 1) bits[k] = values.at((long long)mine);
        }
    }

    __device__ __forceinline__ void store(const Packed& slice, const Coder& coder, int first, Code* stored) const
    {
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            if (first + k >= slice.steps) break;
            stored[slice.slot(first + k)] = held >> k & 1 ? coder.code_of(bits[k]) : Code();
        }
    }
};

extern "C" __global__ void __launch_bounds__(CODER_THREADS, BLOCKS)
dasp_refill(const Index* __restrict__ rows, long long positions, const Index* __restrict__ long_rows,
            const Index* __restrict__ segment_offsets, const Index* __restrict__ segment_rows, long long segments,
            long long slices, const uint4* __restrict__ headers, const unsigned char* __restrict__ deltas,
            const Count* __restrict__ starts, const Count* __restrict__ pieces, const Place* __restrict__ order,
            const Bits* __restrict__ table, int distinct, Code* __restrict__ stored, const Bits* __restrict__ data)
{
    __shared__ Coder coder;
    const long long s = warp_of_grid<CODER_THREADS>();
    const Packed slice(s < slices ? headers[s] : make_uint4(0, 0, 0, 0), deltas);
    Count entry = 0;
    if (slice.steps)
        entry = first_entry(slice, s, rows, positions, long_rows, segment_offsets, segment_rows, segments, starts,
                            pieces);
    const Values values{data, order};
    Step step;
    step.load(slice, values, 0, entry);
    coder.make(table, distinct);
    for (int first = 0; first < slice.steps;) {
        step.store(slice, coder, first, stored);
        first += AT_ONCE;
        if (first < slice.steps) step.load(slice, values, first, entry);
    }
}
