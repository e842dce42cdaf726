// y = alpha A x + beta y for a whole plan in one launch; the first warps take the longest work.
//
// Launch: one dimension, blocks of DASP_THREADS threads, and at least as many warps as
//     segments + ceil(blocks / blocks_per_warp) + ceil((pairs_13 + pairs_22) / 32)
//     + ceil(fours / 64) + ceil(singles / 64) + ceil(empties / 32).
// A warp takes one segment of a long row, or blocks_per_warp row blocks of medium rows, or 64 short rows
// of one section, or 32 empty rows. The arrays and their pads are described where each part is multiplied: long.cuh,
// medium.cuh, short.cuh. x (n) is read through the cache and everything else is streamed past it.
// y (m) is written once for every row, in the caller's order. Equal inputs give equal bits: every sum has
// a fixed order, and there are no atomic sums.

#include "spmv/long.cuh"
#include "spmv/medium.cuh"
#include "spmv/short.cuh"

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_spmv(const Index* __restrict__ long_rows, const Offset* __restrict__ long_offsets,
          const Offset* __restrict__ segment_offsets, const Index* __restrict__ segment_rows,
          const Index* __restrict__ long_columns, const Value* __restrict__ long_values,
          Bits* partials, unsigned* tickets, int segment, long long segments,
          const Index* __restrict__ medium_rows, const Offset* __restrict__ tile_offsets,
          const Index* __restrict__ tile_columns, const Value* __restrict__ tile_values,
          const Offset* __restrict__ tail_offsets, const Index* __restrict__ tail_columns,
          const Value* __restrict__ tail_values, long long blocks, int blocks_per_warp,
          const Index* __restrict__ short_rows, const Index* __restrict__ short_columns,
          const Value* __restrict__ short_values, long long pairs_13, long long pairs_22,
          long long fours, long long singles,
          const Index* __restrict__ empty_rows, long long empties,
          const X* __restrict__ x, Y* y, Sum alpha, Sum beta)
{
    wait_for_earlier_kernels();
    const Result result{y, alpha, beta};
    long long warp = (number_of_block(segments, tickets) * (long long)blockDim.x + threadIdx.x) / 32;

    if (warp < segments) {
        const LongPart part{long_rows,    long_offsets, segment_offsets, segment_rows, long_columns,
                            long_values,  partials,     segment};
        return multiply_segment(part, x, result, warp);
    }
    warp -= segments;

    // blocks / blocks_per_warp, rounded up, for 1, 2 and 4: a division would be a function call.
    const long long medium_warps = (blocks + blocks_per_warp - 1) >> blocks_per_warp / 2;
    if (warp < medium_warps) {
        const MediumPart part{medium_rows,  tile_offsets, tile_columns, tile_values,
                              tail_offsets, tail_columns, tail_values,  blocks};
        if (blocks_per_warp == 4) return multiply_row_blocks<4, 1>(part, x, result, 4 * warp);
        if (blocks_per_warp == 2) return multiply_row_blocks<2, 2>(part, x, result, 2 * warp);
        return multiply_row_blocks<1, 4>(part, x, result, warp);
    }
    warp -= medium_warps;

    const long long short_warps =
        warps_for((pairs_13 + pairs_22) / 16) + warps_for(fours / 32) + warps_for((singles + 31) / 32);
    if (warp < short_warps) {
        const ShortPart part{short_rows, short_columns, short_values, pairs_13, pairs_22, fours, singles};
        return multiply_short(part, x, result, warp);
    }
    warp -= short_warps;

    const long long empty = 32 * warp + lane_id();
    if (empty < empties) result.store(load_stream(empty_rows + empty), Sum(0));
}
