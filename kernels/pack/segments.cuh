// Rows too long for one slice, and the segments that they are cut into.
#pragma once

#include "pack/pack.cuh"

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

__device__ __forceinline__ long long length_of(const Start* indptr, long long row)
{
    return (long long)indptr[row + 1] - (long long)indptr[row];
}
