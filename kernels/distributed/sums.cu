// Adds up what the blocks of a pass left for each dot product, so that ranks exchange one number for each.
//
// Launch: one block of DASP_THREADS threads.
// sums (count * blocks): for each of `count` dot products, at most DASP_THREADS, a sum for each block; the first `count`
//     numbers become the totals. Equal inputs give equal bits: every sum has a fixed order.

#include "../warp.cuh"

constexpr int WARPS = DASP_THREADS / 32;

extern "C" __global__ void __launch_bounds__(DASP_THREADS) dasp_sums(double* sums, int count, int blocks)
{
    __shared__ double parts[WARPS];
    wait_for_earlier_kernels();
    double mine = 0;
    for (int k = 0; k < count; ++k) {
        double value = 0;
        for (int block = threadIdx.x; block < blocks; block += DASP_THREADS) value += load_result(sums + k * blocks + block);
        value = warp_sum(value);
        __syncthreads();
        if (lane_id() == 0) parts[threadIdx.x / 32] = value;
        __syncthreads();
        double total = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) total += parts[warp];
        if (threadIdx.x == k) mine = total;
    }
    if (threadIdx.x < count) sums[threadIdx.x] = mine;  // all were read before the last barrier
}
