// For kernels that pack a matrix: types, long rows, words that several threads change, extremes over a warp, counts.
//
// DASP_START, DASP_COLUMN: types of the CSR's indptr and indices. DASP_INDEX: of rows and columns in the plan.
#pragma once

#include "csr/scan.cuh"

#ifndef DASP_START
#error "define DASP_START, DASP_COLUMN and DASP_INDEX: the integer types of indptr, of indices and of the plan"
#endif

using Start = DASP_START;
using Column = DASP_COLUMN;
using Index = DASP_INDEX;

__device__ __forceinline__ long long length_of(const Start* indptr, long long row)
{
    return (long long)indptr[row + 1] - (long long)indptr[row];
}

// Rows too long for one slice, and the segments that they are cut into.
//
// A row of more than 32 `steps` entries is long. Its segments have `steps` steps, or more where there would be
// more than `most_segments` of them, up to `segment_steps`.
struct Cut {
    int steps, segment_steps, most_segments;

    __device__ __forceinline__ long long most() const { return (long long)WARP * steps; }

    // Entries of every segment of a long row but its last.
    __device__ __forceinline__ long long room(long long length) const
    {
        const long long even = ceil_div(length, (long long)WARP * most_segments);
        return WARP * min(max(even, (long long)steps), (long long)segment_steps);
    }
};

// Rows that one block lists, and the counts of the long ones among them.
constexpr int LONG_TILE = 2048;
enum Long { LONG_TILE_ROWS, LONG_TILE_SEGMENTS, LONG_TILE_STEPS, LONG_TILE_COUNTS };

// Reads a word in shared or global memory that other threads change by atomics at the same time.
template <class T> __device__ __forceinline__ T peek(T* word)
{
#ifdef DASP_SIMT
    return atomicAdd(word, T(0));
#else
    return *static_cast<volatile T*>(word);
#endif
}

// The largest and the smallest over the lanes of a warp, in each of them.
template <class T> __device__ __forceinline__ T warp_max(T value)
{
#pragma unroll
    for (int step = WARP / 2; step; step /= 2) value = max(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
}
__device__ __forceinline__ unsigned warp_max(unsigned value) { return __reduce_max_sync(ALL_LANES, value); }

template <class T> __device__ __forceinline__ T warp_min(T value)
{
#pragma unroll
    for (int step = WARP / 2; step; step /= 2) value = min(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
}
__device__ __forceinline__ unsigned warp_min(unsigned value) { return __reduce_min_sync(ALL_LANES, value); }

// `COUNT` shared numbers, to which the warps of a block add.
template <int COUNT> struct Tally {
    Count* shared;

    __device__ __forceinline__ void clear() const
    {
        if (threadIdx.x < COUNT) shared[threadIdx.x] = 0;
        __syncthreads();
    }

    // Every lane of a warp calls it.
    __device__ __forceinline__ void add(int number, Count value) const
    {
#pragma unroll
        for (int step = WARP / 2; step; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
        if (lane_id() == 0 && value) atomicAdd(shared + number, value);
    }
};
