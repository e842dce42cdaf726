// Dot products of y, made while y is: each block leaves a sum for each.
//
// w (m): the vector that y is multiplied with. sums (DASP_DOT * blocks): the result, which whoever reads it adds up: of
// y'w, then of y'y.
// Deterministic: every sum has a fixed order.
#pragma once

#include "warp.cuh"

struct Dots {
    double sum[DASP_DOT] = {};

    // Counts an element of y and that of w; -1 takes one back.
    __device__ __forceinline__ void add(double y, double w, double times = 1)
    {
        sum[0] += times * y * w;
        if (DASP_DOT > 1) sum[DASP_DOT - 1] += times * y * y;
    }
};

// Every thread of the block calls this once, with what its elements of y sum up to.
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
