// Scans over the lanes of a warp and the threads of a block, and searches in rising numbers.
#pragma once

#include "warp.cuh"

using Count = unsigned long long;

constexpr int WARP = 32;

__device__ __forceinline__ int warp_id() { return threadIdx.x / WARP; }
__device__ __forceinline__ unsigned lanes_before() { return (1u << lane_id()) - 1; }

// The sum over the lanes before this one.
template <class T> __device__ __forceinline__ T warp_sum_before(T value)
{
    T sum = value;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        const T other = __shfl_up_sync(ALL_LANES, sum, step);
        if (lane_id() >= step) sum += other;
    }
    return sum - value;
}

// The sum over the threads of the block before this one; `total` becomes the sum over all. Every thread calls
// this. sums (warps + 1): shared memory, which may be used again after a barrier.
template <class T> __device__ __forceinline__ T block_sum_before(T value, T* sums, T& total)
{
    const int warps = blockDim.x / WARP;
    const T before = warp_sum_before(value);
    if (lane_id() == WARP - 1) sums[warp_id()] = before + value;
    __syncthreads();
    if (warp_id() == 0) {
        const T mine = lane_id() < warps ? sums[lane_id()] : T(0);
        const T earlier = warp_sum_before(mine);
        __syncwarp();
        if (lane_id() < warps) sums[lane_id()] = earlier;
        if (lane_id() == warps - 1) sums[warps] = earlier + mine;
    }
    __syncthreads();
    total = sums[warps];
    return sums[warp_id()] + before;
}

// Replaces each of `count` numbers by the sum of those before it, and sets numbers[count] to the sum of all.
// Every thread of a block of up to 1024 calls this; sums: as above.
__device__ __forceinline__ void block_scan(Count* numbers, long long count, Count* sums)
{
    constexpr int at_once = 4;
    Count before = 0;
    for (long long begin = 0; begin < count; begin += blockDim.x * at_once) {
        const long long first = begin + at_once * (long long)threadIdx.x;
        Count mine[at_once], sum = 0, total;
#pragma unroll
        for (int k = 0; k < at_once; ++k) {
            mine[k] = first + k < count ? numbers[first + k] : 0;
            sum += mine[k];
        }
        Count place = before + block_sum_before(sum, sums, total);
#pragma unroll
        for (int k = 0; k < at_once; ++k) {
            if (first + k < count) numbers[first + k] = place;
            place += mine[k];
        }
        before += total;
        __syncthreads();
    }
    if (threadIdx.x == 0) numbers[count] = before;
}

// True if this block is the last of `blocks` to call this; it then sees all writes of the others before their
// calls. Every thread of the block calls this. come: 0 before the launch. Data of other blocks may not be
// read as constant.
__device__ __forceinline__ bool is_last_block(Count* come, Count blocks)
{
    __shared__ int last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(come, 1ull) == blocks - 1;
    __syncthreads();
    if (last) __threadfence();
    return last;
}

// The first of `count` rising numbers that is not below `value`.
template <class T> __device__ __forceinline__ long long lower_bound(const T* numbers, long long count, long long value)
{
    long long first = 0;
    while (count > 0) {
        const long long half = count / 2;
        if ((long long)numbers[first + half] < value) {
            first += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return first;
}

__device__ __forceinline__ long long ceil_div(long long a, long long b) { return (a + b - 1) / b; }
