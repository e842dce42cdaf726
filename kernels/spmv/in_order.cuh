// Sums over the lanes of a row in the order of its entries, as a loop over them adds them up.
#pragma once

#include "scalar.cuh"

template <class T> __device__ __forceinline__ T from_lane(T value, int lane) { return __shfl_sync(ALL_LANES, value, lane); }
template <class T> __device__ __forceinline__ Complex<T> from_lane(Complex<T> value, int lane)
{
    return {from_lane(value.real, lane), from_lane(value.imag, lane)};
}

// Adds the values that lanes with a hit have, one after the other, to the sum of their row, in each of its `lanes`. A
// warp calls it.
__device__ __forceinline__ void add_in_order(Sum& sum, bool hit, Sum value, int lanes)
{
    const int first = lane_id() & ~(lanes - 1);
    for (unsigned hits = __ballot_sync(ALL_LANES, hit); hits; hits &= hits - 1) {
        const int lane = __ffs(int(hits)) - 1;
        const Sum other = from_lane(value, lane);
        if ((lane & ~(lanes - 1)) == first) sum += other;
    }
}
