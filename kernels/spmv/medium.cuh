// Medium rows: a warp multiplies the tiles of one, two or four row blocks, then their entries in no tile.
#pragma once

#include "spmv/tile.cuh"

// rows (8 * blocks): the caller's rows, -1 where the last block has fewer than eight.
// tile_offsets (blocks + 1); columns, values (32 * tiles): the regular part; a pad has column -1, value 0.
// tail_offsets (8 * blocks + 1); tail_columns, tail_values: the irregular part, CSR, no pads.
struct MediumPart {
    const Index* rows;
    const Offset* tile_offsets;
    const Index* columns;
    const Value* values;
    const Offset* tail_offsets;
    const Index* tail_columns;
    const Value* tail_values;
    long long blocks;
};

// Adds tiles [tile, end) of BLOCKS row blocks side by side, STEPS tiles of each at a time, so that
// BLOCKS * STEPS tiles are in flight however short the rows are.
template <int BLOCKS, int STEPS>
__device__ __forceinline__ void add_tiles(const MediumPart& part, const X* x, Offset (&tile)[BLOCKS],
                                          const Offset (&end)[BLOCKS], TileSum (&sum)[BLOCKS])
{
    Offset longest = 0;
#pragma unroll
    for (int j = 0; j < BLOCKS; ++j) longest = max(longest, end[j] - tile[j]);
    for (; longest > 0; longest -= STEPS) {
        Index column[BLOCKS][STEPS];
        Factor a[BLOCKS][STEPS];
        Operand b[BLOCKS][STEPS];
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j)
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const bool inside = tile[j] + step < end[j];
                const Offset slot = TILE * (tile[j] + step) + lane_id();
                column[j][step] = inside ? load_stream(part.columns + slot) : PAD;
                a[j][step] = inside ? convert<Factor>(load_stream(part.values + slot)) : Factor(0);
            }
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j)
#pragma unroll
            for (int step = 0; step < STEPS; ++step) b[j][step] = load_x(x, column[j][step]);
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j) {
#pragma unroll
            for (int step = 0; step < STEPS; ++step) sum[j].add(a[j][step], b[j][step]);
            tile[j] += STEPS;
        }
    }
}

// The sum of a row's irregular entries, `length` from `begin` on, in each of the row's LANES lanes.
template <int LANES>
__device__ __forceinline__ Sum sum_tail(const MediumPart& part, const X* x, Offset begin, int length)
{
    const Value* values = part.tail_values + begin;
    const Index* columns = part.tail_columns + begin;
    Sum sum = 0;
    for (int i = lane_id() % LANES; i < length; i += LANES)
        sum = multiply_add(convert<Factor>(load_stream(values + i)),
                           convert<Operand>(load_cached(x + load_stream(columns + i))), sum);
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) sum += from_other_lane(sum, step);
    return sum;
}

// Row r of the warp's block j belongs to LANES lanes, 4 r + j * LANES and those that follow. All offsets and
// row numbers are loaded first, so that a row block costs one latency and not one for each part.
template <int BLOCKS, int STEPS>
__device__ __forceinline__ void multiply_row_blocks(const MediumPart& part, const X* x,
                                                    const Result& result, long long first)
{
    constexpr int LANES = TILE_COLUMNS / BLOCKS;
    const int mine = lane_id() % TILE_COLUMNS / LANES;
    const bool inside = first + mine < part.blocks;
    const long long position = TILE_ROWS * (first + mine) + lane_id() / TILE_COLUMNS;
    const Offset tail = inside ? part.tail_offsets[position] : 0;
    const int tail_length = inside ? int(part.tail_offsets[position + 1] - tail) : 0;
    const Index row = inside ? part.rows[position] : PAD;
    Offset tile[BLOCKS], end[BLOCKS];
#pragma unroll
    for (int j = 0; j < BLOCKS; ++j) {
        tile[j] = first + j < part.blocks ? part.tile_offsets[first + j] : 0;
        end[j] = first + j < part.blocks ? part.tile_offsets[first + j + 1] : 0;
    }

    TileSum sum[BLOCKS];
    add_tiles<BLOCKS, STEPS>(part, x, tile, end, sum);
    Sum total = 0;
#pragma unroll
    for (int j = 0; j < BLOCKS; ++j) {
        const Sum of_block = sum[j].row();
        if (mine == j) total = of_block;
    }
    if (__any_sync(ALL_LANES, tail_length > 0)) total += sum_tail<LANES>(part, x, tail, tail_length);
    if (lane_id() % LANES == 0) result.store(row, total);
}
