// Orders that are tried side by side, and what is counted of each.
#pragma once

#include "cut.cuh"

// Numbers of a candidate, and what a sample of its slices reads, as in SliceStatistics of choose.py.
enum Number { SLICES, STEPS, FULL, SAMPLED_STEPS, BY_SLICE, BY_FEW, BY_MANY, NUMBERS };

// The order of the candidate of this block: the first `unmoved` ones, none or one, have the caller's; then come `rows`.
__device__ __forceinline__ Order candidate_order(const Start* indptr, const Index* rows, long long stride, int unmoved,
                                                 long long positions)
{
    const int nth = int(blockIdx.y) - unmoved;
    return {indptr, nth < 0 ? nullptr : rows + nth * stride, positions};
}
