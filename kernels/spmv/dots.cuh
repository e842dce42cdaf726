// Dot products of y with other vectors, made while y is: each block leaves a sum for each.
//
// w (m): the vector that y is multiplied with; with DASP_DOTS 2 the square of y's norm comes second.
// sums (DASP_DOTS * blocks): the result, which whoever reads it adds up.
// Deterministic: every sum has a fixed order.
#pragma once

#include "../warp.cuh"

// Every thread of the block calls this once, with the element of y that it stored and that of w, 0 for none.
// block: the number of the block; equal inputs give every number the same rows.
__device__ __forceinline__ void leave_dots(double* sums, unsigned block, double y, double w)
{
    __shared__ double products[DASP_DOTS][DASP_THREADS];
    products[0][threadIdx.x] = y * w;
    if (DASP_DOTS > 1) products[DASP_DOTS - 1][threadIdx.x] = y * y;
    __syncthreads();
    const int k = threadIdx.x / 32;
    if (k >= DASP_DOTS) return;
    double sum = 0;
#pragma unroll
    for (int place = 0; place < DASP_THREADS; place += 32) sum += products[k][place + lane_id()];
    sum = warp_sum(sum);
    if (lane_id() == 0) sums[k * gridDim.x + block] = sum;
}
