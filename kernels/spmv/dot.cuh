// The dot product of y with another vector, made while y is: each block leaves a sum.
//
// w (m): the vector that y is multiplied with. sums (blocks): the result, which whoever reads it adds up.
// Deterministic: every sum has a fixed order.
#pragma once

#include "../warp.cuh"

// Every thread of the block calls this once, with its element of y times that of w, 0 for none.
// block: the number of the block; equal inputs give every number the same rows.
__device__ __forceinline__ void leave_dot(double* sums, unsigned block, double product)
{
    __shared__ double products[DASP_THREADS];
    products[threadIdx.x] = product;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    double sum = 0;
#pragma unroll
    for (int place = 0; place < DASP_THREADS; place += 32) sum += products[place + lane_id()];
    sum = warp_sum(sum);
    if (lane_id() == 0) sums[block] = sum;
}
