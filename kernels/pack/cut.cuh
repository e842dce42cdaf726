// Where slices begin. A slice that begins at some position has as few lanes to a row as let its longest row end
// within `steps` steps, and the next one begins where it ends, 1 to 32 positions on. So a chain of slices enters
// each tile of positions at one of its first 32, and what a tile does to a chain is a function of these: of each,
// where the chain enters the next tile, and the slices and steps in between. Functions compose, hence tiles are
// cut in any order; what remains is to follow one chain of tiles.
#pragma once

#include "segments.cuh"

constexpr int CUT_THREADS = 256, CUT_WARPS = CUT_THREADS / WARP, CUT_TILE = 2048, CUT_CHUNK = CUT_TILE / CUT_WARPS;
constexpr int CUT_MINE = CUT_TILE / CUT_THREADS;
constexpr int MOST_SHIFT = 5;

// What a chain of slices does in a tile, in 63 bits: positions by which it ends behind it (5), slices (12), their
// steps (23), and those of them without pads (23).
struct Passage {
    int exit;
    unsigned slices, steps, full;

    __device__ __forceinline__ Count packed() const
    {
        return Count(exit) | Count(slices) << 5 | Count(steps) << 17 | Count(full) << 40;
    }
    static __device__ __forceinline__ Passage of(Count word)
    {
        return {int(word & 31), unsigned(word >> 5 & 0xfff), unsigned(word >> 17 & 0x7fffff),
                unsigned(word >> 40 & 0x7fffff)};
    }
};

// Rows in the order in which they are stored; without `rows` the order is the caller's.
struct Order {
    const Start* indptr;
    const Index* rows;
    long long count;

    __device__ __forceinline__ long long row(long long position) const
    {
        return rows ? (long long)rows[position] : position;
    }
    __device__ __forceinline__ unsigned length(long long position) const
    {
        return position < count ? unsigned(length_of(indptr, row(position))) : 0u;
    }
};

// The slices that would begin at each position of a tile.
struct CutTile {
    unsigned longest[CUT_TILE + WARP], shortest[CUT_TILE + WARP];  // of the rows from a position on
    unsigned short steps[CUT_TILE], full[CUT_TILE];
    unsigned char shifts[CUT_TILE];

    // Every thread of the block calls it. Level by level, the longest and shortest of 2^k rows from each position.
    __device__ __forceinline__ void load(const Order& order, long long first, int most_steps)
    {
        unsigned most[CUT_MINE + 1], least[CUT_MINE + 1];
#pragma unroll
        for (int q = 0; q <= CUT_MINE; ++q)
            most[q] = least[q] = position(q) < CUT_TILE + WARP ? order.length(first + position(q)) : 0u;
#pragma unroll
        for (int k = 0; k <= MOST_SHIFT; ++k) {
            const int shift = MOST_SHIFT - k;
#pragma unroll
            for (int q = 0; q < CUT_MINE; ++q)
                if (most[q] <= unsigned(most_steps) << shift)
                    set(position(q), shift, most[q], first + position(q) + (1 << k) <= order.count ? least[q] : 0u);
            if (k < MOST_SHIFT) widen(1 << k, most, least);
        }
        __syncthreads();
    }

    static __device__ __forceinline__ int position(int q) { return q * CUT_THREADS + threadIdx.x; }

    __device__ __forceinline__ void set(int i, int shift, unsigned most, unsigned least)
    {
        shifts[i] = (unsigned char)shift;
        steps[i] = (unsigned short)((most + (1u << shift) - 1) >> shift);
        full[i] = (unsigned short)(least >> shift);
    }

    // From rows in a span to rows in two spans; behind the tile, positions whose rows are not all there are left.
    __device__ __forceinline__ void widen(int span, unsigned (&most)[CUT_MINE + 1], unsigned (&least)[CUT_MINE + 1])
    {
#pragma unroll
        for (int q = 0; q <= CUT_MINE; ++q) {
            if (position(q) >= CUT_TILE + WARP) continue;
            longest[position(q)] = most[q];
            shortest[position(q)] = least[q];
        }
        __syncthreads();
#pragma unroll
        for (int q = 0; q <= CUT_MINE; ++q) {
            if (position(q) + span >= CUT_TILE + WARP) continue;
            most[q] = max(most[q], longest[position(q) + span]);
            least[q] = min(least[q], shortest[position(q) + span]);
        }
        __syncthreads();
    }

    __device__ __forceinline__ int next(int i) const { return i + (WARP >> shifts[i]); }

    // The passage of this lane's entry through this warp's chunk, of which `size` positions of the tile are there.
    __device__ __forceinline__ Passage through_chunk(int size) const
    {
        const int end = (warp_id() + 1) * CUT_CHUNK, stop = min(end, size);
        Passage passage{0, 0, 0, 0};
        int i = warp_id() * CUT_CHUNK + lane_id();
        while (i < stop) {
            ++passage.slices;
            passage.steps += steps[i];
            passage.full += full[i];
            i = next(i);
        }
        passage.exit = max(i - end, 0);
        return passage;
    }
};
