// Where slices begin. A slice has the fewest lanes to a row with which its longest row ends within `steps`
// steps, and the next slice begins where it ends, 1 to 32 positions on. So a chain of slices enters each tile
// of positions at one of its first 32. A tile is a function of this entry, which gives the entry to the next
// tile, and the slices and steps in between. Functions compose, so tiles are cut in any order, and then one
// chain is followed through all tiles.
#pragma once

#include "header.cuh"
#include "pack/pack.cuh"

constexpr int CUT_THREADS = 512, CUT_WARPS = CUT_THREADS / WARP, CUT_TILE = 2048, CUT_CHUNK = CUT_TILE / CUT_WARPS;
constexpr int CUT_MINE = CUT_CHUNK / WARP;
constexpr int MOST_SHIFT = 5;

// The way of a chain of slices through a tile, in 63 bits: the positions from the tile's end to the chain's
// (5), slices (12), their steps (23), and those of them without pads (23).
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
    // The entries of a row; 0 if it is too long for slices of `most_steps` steps, as one of a sample may be.
    __device__ __forceinline__ unsigned length(long long row, int most_steps) const
    {
        const long long length = length_of(indptr, row);
        return length > (long long)WARP * most_steps ? 0u : unsigned(length);
    }
};

// The lengths of the longest and the shortest of some rows.
struct Rows32 {
    unsigned most, least;

    // Those of this lane's rows and of as many rows that begin `span` positions on: lane + span has these,
    // or, past the last lane, lane + span - 32 has them in `after`, which is 32 positions on.
    __device__ __forceinline__ Rows32 with(const Rows32& after, int span) const
    {
        const bool mine = lane_id() >= span;
        const int from = (lane_id() + span) % WARP;
        return {max(most, __shfl_sync(ALL_LANES, mine ? most : after.most, from)),
                min(least, __shfl_sync(ALL_LANES, mine ? least : after.least, from))};
    }
};

// The slices that would begin at each position of a tile.
struct CutTile {
    unsigned shapes[CUT_TILE];  // as in a header; before that, the length of the row at each position

    // Every thread of the block calls this. Each warp goes through its chunk backwards, 32 positions at a
    // time, and finds level by level the longest and shortest of the 2^k rows from each position. All loads
    // come first: the length of a row waits for its number. placed (positions) or null: gets the rows of the
    // tile. even: one lane takes a whole row, so slices have 32 rows, and the chain has one at every 32nd
    // position; shapes elsewhere mean nothing.
    __device__ __forceinline__ void load(const Order& order, long long first, int most_steps, int even,
                                         Index* placed = nullptr)
    {
        const int chunk = warp_id() * CUT_CHUNK + lane_id();
        const long long left = order.count - first - chunk;
        long long row[CUT_MINE + 1];
        unsigned length[CUT_MINE + 1];
#pragma unroll
        for (int q = 0; q <= CUT_MINE; ++q) {
            const bool is_asked = q * WARP < left && !(even && q == CUT_MINE);
            row[q] = is_asked ? order.row(first + chunk + q * WARP) : -1;
        }
#pragma unroll
        for (int q = 0; q <= CUT_MINE; ++q) length[q] = row[q] < 0 ? 0u : order.length(row[q], most_steps);
#pragma unroll
        for (int q = 0; q < CUT_MINE; ++q) {
            if (placed && row[q] >= 0) placed[first + chunk + q * WARP] = Index(row[q]);
            shapes[chunk + q * WARP] = length[q];
        }
        if (even) {
#pragma unroll
            for (int q = 0; q < CUT_MINE; ++q) {
                const unsigned steps = warp_max(length[q]), least = warp_min(length[q]);
                const bool whole = (q + 1) * WARP - lane_id() <= left;
                shapes[chunk + q * WARP] = shape_of(steps, whole ? least : 0u, 0);
            }
            __syncthreads();
            return;
        }
        Rows32 after[MOST_SHIFT];  // of 2^k rows, 32 positions on
#pragma unroll 1
        for (int q = CUT_MINE; q >= 0; --q) {
            const int i = chunk + q * WARP;
            const unsigned here = q == CUT_MINE ? length[CUT_MINE] : shapes[i];
            Rows32 rows{here, here}, slice = rows;
            int level = 0;
#pragma unroll
            for (int k = 0; k < MOST_SHIFT; ++k) {
                if (q == CUT_MINE) after[k] = rows;  // only the first few of the last rows are used
                const Rows32 wider = rows.with(after[k], 1 << k);
                after[k] = rows;
                rows = wider;
                if (rows.most > unsigned(most_steps) << (MOST_SHIFT - k - 1)) continue;
                slice = rows;
                level = k + 1;
            }
            const bool whole = q * WARP + (1 << level) <= left;
            const int shift = MOST_SHIFT - level;
            const unsigned steps = (slice.most + (1u << shift) - 1) >> shift;
            if (q < CUT_MINE) shapes[i] = shape_of(steps, whole ? slice.least >> shift : 0u, unsigned(shift));
        }
        __syncthreads();
    }

    __device__ __forceinline__ int shift(int i) const { return shift_of(shapes[i]); }
    __device__ __forceinline__ int steps(int i) const { return steps_of(shapes[i]); }
    __device__ __forceinline__ int next(int i) const { return i + (WARP >> shift(i)); }

    // The passage of the chain that enters this warp's chunk at this lane's number. size: of the tile.
    __device__ __forceinline__ Passage through_chunk(int size) const
    {
        const int end = (warp_id() + 1) * CUT_CHUNK, stop = min(end, size);
        Passage passage{0, 0, 0, 0};
        int i = warp_id() * CUT_CHUNK + lane_id();
        while (i < stop) {
            const unsigned shape = shapes[i];
            ++passage.slices;
            passage.steps += steps_of(shape);
            passage.full += full_of(shape);
            i += WARP >> shift_of(shape);
        }
        passage.exit = max(i - end, 0);
        return passage;
    }
};

// Numbers of a candidate's slices, and of a sample of them, as in SliceStatistics of choose.py. COME: how
// many of the candidate's tiles are done.
enum Number { SLICES, STEPS, FULL, SAMPLED_STEPS, BY_SLICE, BY_FEW, BY_MANY, COME, NUMBERS };

// The order of this block's candidate: the caller's for the first `unmoved`, none or one, else from `rows`.
__device__ __forceinline__ Order candidate_order(const Start* indptr, const Index* rows, long long stride, int unmoved,
                                                 long long positions)
{
    const int nth = int(blockIdx.y) - unmoved;
    return {indptr, nth < 0 ? nullptr : rows + nth * stride, positions};
}
