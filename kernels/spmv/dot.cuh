// Dot products of y, computed together with y: each block leaves a partial sum of each.
//
// w (m): the vector by which y is multiplied. sums (DASP_DOT, blocks): the partial sums of y'w, then those of
// y'y. Their reader adds them up.
// Deterministic: every sum has a fixed order.
#pragma once

#include "warp.cuh"

struct Dots {
    double sum[DASP_DOT] = {};

    // Adds the products of an element of y and its element of w, or takes them back if `times` is -1.
    __device__ __forceinline__ void add(double y, double w, double times = 1)
    {
        sum[0] += times * y * w;
        if (DASP_DOT > 1) sum[DASP_DOT - 1] += times * y * y;
    }
};

// Every thread of the block calls this once, with the sums over its elements of y.
// block: the number of the block, of `blocks`; equal inputs give every number the same rows.
__device__ __forceinline__ void leave_dots(double* sums, unsigned block, unsigned blocks, const Dots& dots)
{
    __shared__ double parts[DASP_DOT][DASP_THREADS];
#pragma unroll
    for (int k = 0; k < DASP_DOT; ++k) parts[k][threadIdx.x] = dots.sum[k];
    __syncthreads();
    if (threadIdx.x >= 32) return;
#pragma unroll
    for (int k = 0; k < DASP_DOT; ++k) {
        double sum = 0;
#pragma unroll
        for (int place = 0; place < DASP_THREADS; place += 32) sum += parts[k][place + lane_id()];
        sum = warp_sum(sum);
        if (lane_id() == 0) sums[k * blocks + block] = sum;
    }
}
