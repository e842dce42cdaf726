// The second stage of a row that several warps share: the warp that comes last adds all partials.
#pragma once

#include "tile.cuh"

// Every warp of the row calls this once, with the sum of its own segment in every lane.
// partials (count): a segment's sum, written and read within this launch.
// ticket: warps that have delivered; 0 before and after each launch.
// Deterministic: which warp adds the partials is chance, but the order in which they are added is not.
__device__ __forceinline__ void deliver(Scalar sum, Scalar* partials, long long segment, long long count,
                                        unsigned* ticket, Index row, const Result& result)
{
    if (count == 1) {
        if (lane_id() == 0) result.store(row, sum);
        return;
    }

    unsigned arrived = 0;
    if (lane_id() == 0) {
        partials[segment] = sum;
        arrived = arrive(ticket) + 1;
    }
    if (__shfl_sync(ALL_LANES, arrived, 0) != count) return;
    __syncwarp();  // orders what lane 0 saw before what the other lanes now read

    Scalar total = 0;
    for (long long i = lane_id(); i < count; i += 32) total += __ldcg(partials + i);
    total = warp_sum(total);
    if (lane_id() == 0) {
        result.store(row, total);
        *ticket = 0;
    }
}
