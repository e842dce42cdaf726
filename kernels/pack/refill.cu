// Other values into the slots of a pattern.
//
// Arrays of a pattern: see packed.cuh. data: values as bits, in the order in which the entries came in; order (nnz) or
// null: which of these is the i-th entry. keys, ranks: see encode.cuh. stored (32 steps): codes by slots, 0 in a pad.
// misfit or null: nothing is written if it is `turn`; told (1) then becomes 1, and 2 else: see holds.cu.
// Launch: any number of blocks of 256 threads, whose warps take slices a grid apart.

#include "encode.cuh"
#include "packed.cuh"

constexpr int THREADS = 256, AT_ONCE = sizeof(Bits) == 16 ? 4 : 8;
constexpr int BLOCKS = DASP_CODING == CODING_DICTIONARY && sizeof(Bits) < 16 ? 6 : 1;  // of a multiprocessor: registers

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
dasp_refill(const Index* __restrict__ rows, long long positions, const Index* __restrict__ long_rows,
            const Index* __restrict__ segment_offsets, const Index* __restrict__ segment_rows, long long segments,
            long long slices, const uint4* __restrict__ headers, const unsigned char* __restrict__ deltas,
            const Count* __restrict__ starts, const Count* __restrict__ pieces, const Place* __restrict__ order,
            const Bits* __restrict__ keys, const unsigned short* __restrict__ ranks, Code* __restrict__ stored,
            const Bits* __restrict__ data, const Count* __restrict__ misfit, long long turn, Count* told)
{
    if (misfit) {
        const bool fits = *misfit != Count(turn);
        if (blockIdx.x == 0 && threadIdx.x == 0) *told = fits ? 2 : 1;
        if (!fits) return;
    }
    __shared__ Coder coder;
    coder.load(keys, ranks);
    const Values values{data, order};
    const long long warps = gridDim.x * (long long)(THREADS / WARP);
    for (long long s = (blockIdx.x * (long long)THREADS + threadIdx.x) / WARP; s < slices; s += warps) {
        const Packed slice(headers[s], deltas);
        Count entry = first_entry(slice, s, rows, positions, long_rows, segment_offsets, segment_rows, segments,
                                  starts, pieces);
        for (int first = 0; first < slice.steps; first += AT_ONCE) {
            Bits bits[AT_ONCE];
            unsigned entries[AT_ONCE];
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k) {
                entries[k] = __ballot_sync(ALL_LANES, slice.has(first + k));
                const unsigned own = entries[k] & slice.lanes();
                if (entries[k] >> lane_id() & 1) bits[k] = values.at((long long)entry + __popc(own & lanes_before()));
                entry += __popc(own);
            }
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k) {
                if (first + k >= slice.steps) break;
                stored[slice.slot(first + k)] = entries[k] >> lane_id() & 1 ? coder.code_of(bits[k]) : Code();
            }
        }
    }
}
