// Sums of all that comes before, in place.
//
// Launch: a block of 1024 threads for each array, along y. numbers (arrays, stride): the first `count` of an array
// become the sums of those before them, and the next one the sum of all. stride > count.

#include "pack.cuh"

constexpr int THREADS = 1024, AT_ONCE = 4;

extern "C" __global__ void __launch_bounds__(THREADS) dasp_scan(Count* numbers, long long count, long long stride)
{
    __shared__ Count sums[THREADS / WARP + 1];
    numbers += blockIdx.y * stride;
    Count before = 0;
    for (long long begin = 0; begin < count; begin += THREADS * AT_ONCE) {
        const long long first = begin + AT_ONCE * (long long)threadIdx.x;
        Count mine[AT_ONCE], sum = 0, total;
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            mine[k] = first + k < count ? numbers[first + k] : 0;
            sum += mine[k];
        }
        Count place = before + block_sum_before(sum, sums, total);
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            if (first + k < count) numbers[first + k] = place;
            place += mine[k];
        }
        before += total;
        __syncthreads();
    }
    if (threadIdx.x == 0) numbers[count] = before;
}
