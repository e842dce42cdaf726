// The exclusive scan of numbers, in two launches.
//
// numbers (count): not negative. starts (count + 1): for each number the sum of all before it, then the sum
// of all. A tile is up to 1024 neighbouring numbers. sums (tiles + 1): the sum of the tiles before each, then
// of all. come (1), 0 before: counts the blocks that are done.
//
// Launch: dasp_sum_tiles, whose last block adds up the sums, then dasp_scan_tiles; a block of 256 threads for
//     each tile. A thread has four neighbouring numbers.
// Deterministic: sums of integers.

#include "csr/scan.cuh"

#ifndef DASP_START
#error "define DASP_START: the integer type of numbers and of sums"
#endif

using Start = DASP_START;

constexpr int THREADS = 256, EACH = 4, TILE = THREADS * EACH;

// The neighbouring numbers of a thread; 0 past the last one.
struct Own {
    long long first;
    Count numbers[EACH], sum;

    __device__ __forceinline__ Own(const Start* all, long long count)
        : first(blockIdx.x * (long long)TILE + threadIdx.x * EACH), sum(0)
    {
#pragma unroll
        for (int k = 0; k < EACH; ++k) {
            numbers[k] = first + k < count ? Count(all[first + k]) : 0;
            sum += numbers[k];
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_sum_tiles(const Start* __restrict__ numbers, long long count, Count* come, Count* sums)
{
    __shared__ Count of_warps[THREADS / WARP + 1];
    const Own own(numbers, count);
    Count total;
    block_sum_before(own.sum, of_warps, total);
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
    if (is_last_block(come, gridDim.x)) block_scan(sums, gridDim.x, of_warps);
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_scan_tiles(const Start* __restrict__ numbers, long long count, const Count* __restrict__ sums,
                Start* __restrict__ starts)
{
    __shared__ Count of_warps[THREADS / WARP + 1];
    const Own own(numbers, count);
    Count total, place = sums[blockIdx.x] + block_sum_before(own.sum, of_warps, total);
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        if (own.first + k < count) starts[own.first + k] = Start(place);
        place += own.numbers[k];
        if (own.first + k == count - 1) starts[count] = Start(place);
    }
}
