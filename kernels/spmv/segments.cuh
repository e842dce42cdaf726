// The second stage of long rows that a product by several columns has cut into segments: a launch of its own.
//
// partials (segments, columns): the sum of each segment in each column, row by row.
// SegmentOffset: the type in which the source counts segments, declared before this is included.
#pragma once

#include "spmv/tile.cuh"

// One warp adds the partials of one long row and one column, in the order of partial.cuh.
extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_segments_columns(const Index* __restrict__ long_rows, const SegmentOffset* __restrict__ segment_offsets,
                      long long count, Y* y, const Sum* partials, long long y_column, int y_row, int columns,
                      Sum alpha, Sum beta)
{
    const long long warp = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32;
    const long long r = warp / columns;
    const int column = int(warp % columns);
    if (r >= count) return;
    const Index row = load_cached(long_rows + r);
    const long long first = load_cached(segment_offsets + r), last = load_cached(segment_offsets + r + 1) - 1;
    wait_for_earlier_kernels();
    Sum total = Sum(0);
    for (long long s = first + lane_id(); s < last; s += 32) total += load_result(partials + s * columns + column);
    total = warp_sum(total) + load_result(partials + last * columns + column);
    if (lane_id() == 0) {
        const Result result{y + (long long)row * y_row + column * y_column, alpha, beta};
        result.store(0, total);
    }
}
