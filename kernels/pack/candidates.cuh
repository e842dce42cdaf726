// Orders that are tried side by side, and what is counted of each.
#pragma once

#include "cut.cuh"

// Numbers of a candidate, and what a sample of its slices reads, as in SliceStatistics of choose.py.
enum Number { SLICES, STEPS, FULL, SAMPLED_STEPS, BY_SLICE, BY_FEW, BY_MANY, NUMBERS };

// The order of the candidate of this block.
__device__ __forceinline__ Order candidate_order(const Start* indptr, const Index* rows, long long stride,
                                                 const long long* windows, int window_count, long long positions,
                                                 int identity)
{
    const bool moves = (int)blockIdx.y >= window_count || windows[blockIdx.y] != 0 || !identity;
    const long long nth = stored_before(blockIdx.y, windows, window_count, !identity);
    return {indptr, moves && rows ? rows + nth * stride : nullptr, positions};
}
