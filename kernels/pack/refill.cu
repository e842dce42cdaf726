// Other values into the slots of a pattern.
//
// Arrays of a pattern: see packed.cuh. data: values as bits, in the order in which the entries came in; order (nnz) or
// null: which of these is the i-th entry. table: see encode.cuh. stored (32 steps): codes by slots, 0 in a pad.
// Launch: a warp for each slice; blocks of 256 threads.
// dasp_refill: misfit or null: nothing is written if it is `turn`; told (1) then becomes 1, and 2 else: see holds.cu.
//     With it the launch may overlap the kernel in front, which sets misfit and table and did not overlap any itself.
// dasp_refill_together: blocks run at the same time, and nothing is written if the coding does not hold all values;
//     votes, told (1): see votes.cuh.

#include "encode.cuh"
#include "packed.cuh"
#include "votes.cuh"

// Of a multiprocessor, whose registers they share: where values are looked up, more of them with fewer loads each.
constexpr int BLOCKS = DASP_CODING == CODING_DICTIONARY && sizeof(Index) + sizeof(Place) == 8 ? 5 : 4;
constexpr int THREADS = CODER_THREADS, AT_ONCE = sizeof(Bits) == 16 ? 4 : BLOCKS == 5 ? 6 : 8;

// The values of AT_ONCE steps of a slice.
struct Step {
    Bits bits[AT_ONCE];
    unsigned held;  // steps in which this lane's slot holds one, a bit each

    // Takes those from step `first` on; the next one of this lane's row is `entry`.
    __device__ __forceinline__ void load(const Packed& slice, const Values& values, int first, Count& entry)
    {
        held = slice.held<AT_ONCE>(first);
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const Count mine = slice.next_entry(held >> k & 1, entry);
            if (held >> k & 1) bits[k] = values.at((long long)mine);
        }
    }

    // Whether the coding holds them.
    __device__ __forceinline__ bool fits(const Coder& coder) const
    {
        bool fits = true;
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) fits = fits && (!(held >> k & 1) || coder.holds(bits[k], Bits()));
        return fits;
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

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
dasp_refill(const Index* __restrict__ rows, long long positions, const Index* __restrict__ long_rows,
            const Index* __restrict__ segment_offsets, const Index* __restrict__ segment_rows, long long segments,
            long long slices, const uint4* __restrict__ headers, const unsigned char* __restrict__ deltas,
            const Count* __restrict__ starts, const Count* __restrict__ pieces, const Place* __restrict__ order,
            const Bits* table, int distinct, Code* __restrict__ stored,
            const Bits* __restrict__ data, const Count* misfit, long long turn, Count* told)
{
    __shared__ Coder coder;
    const long long s = warp_of_grid<THREADS>();
    const Packed slice(s < slices ? headers[s] : make_uint4(0, 0, 0, 0), deltas);
    Count entry = 0;
    if (slice.steps)
        entry = first_entry(slice, s, rows, positions, long_rows, segment_offsets, segment_rows, segments, starts,
                            pieces);
    const Values values{data, order};
    Step step;
    step.load(slice, values, 0, entry);  // while the kernel in front ends
    wait_for_earlier_kernels();
    const bool fits = !misfit || *misfit != Count(turn);
    if (misfit && blockIdx.x == 0 && threadIdx.x == 0) *told = fits ? 2 : 1;
    if (!fits) return;
    coder.make(table, distinct);
    for (int first = 0; first < slice.steps;) {
        step.store(slice, coder, first, stored);
        first += AT_ONCE;
        if (first < slice.steps) step.load(slice, values, first, entry);
    }
}

#if DASP_CODING != CODING_PLAIN
extern "C" __global__ void __launch_bounds__(THREADS, 4)
dasp_refill_together(const Index* __restrict__ rows, long long positions, const Index* __restrict__ long_rows,
                     const Index* __restrict__ segment_offsets, const Index* __restrict__ segment_rows,
                     long long segments, long long slices, const uint4* __restrict__ headers,
                     const unsigned char* __restrict__ deltas, const Count* __restrict__ starts,
                     const Count* __restrict__ pieces, const Place* __restrict__ order, const Bits* __restrict__ table,
                     int distinct, Code* __restrict__ stored, const Bits* __restrict__ data, Count* votes,
                     Count* told)
{
    __shared__ Coder coder;
    const long long s = warp_of_grid<THREADS>();
    const Packed slice(s < slices ? headers[s] : make_uint4(0, 0, 0, 0), deltas);
    Count begin = 0;
    if (slice.steps)
        begin = first_entry(slice, s, rows, positions, long_rows, segment_offsets, segment_rows, segments, starts,
                            pieces);
    const Values values{data, order};
    Step step;
    Count entry = begin;
    step.load(slice, values, 0, entry);
    coder.make(table, distinct);
    bool fits = step.fits(coder);
    for (int first = AT_ONCE; first < slice.steps; first += AT_ONCE) {
        step.load(slice, values, first, entry);
        fits = fits && step.fits(coder);
    }
    const Votes all{votes};
    fits = all.agree(fits);
    if (fits && slice.steps > AT_ONCE) {
        entry = begin;
        step.load(slice, values, 0, entry);
    }
    for (int first = 0; fits && first < slice.steps;) {
        step.store(slice, coder, first, stored);
        first += AT_ONCE;
        if (first < slice.steps) step.load(slice, values, first, entry);
    }
    all.tell(fits, told);
}
#endif
