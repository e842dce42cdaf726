// Medium rows: a warp multiplies the tiles of one, two or four row blocks, then what the tiles leave.
#pragma once

#include "tile.cuh"

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
__device__ __forceinline__ void add_tiles(const MediumPart& part, const Scalar* x, Offset (&tile)[BLOCKS],
                                          const Offset (&end)[BLOCKS], TileSum (&sum)[BLOCKS])
{
    Offset longest = 0;
#pragma unroll
    for (int j = 0; j < BLOCKS; ++j) longest = max(longest, end[j] - tile[j]);
    for (; longest > 0; longest -= STEPS) {
        Index column[BLOCKS][STEPS];
        Scalar a[BLOCKS][STEPS], b[BLOCKS][STEPS];
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j)
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const bool inside = tile[j] + step < end[j];
                const Offset slot = TILE * (tile[j] + step) + lane_id();
                column[j][step] = inside ? load_stream(part.columns + slot) : PAD;
                a[j][step] = inside ? Scalar(load_stream(part.values + slot)) : Scalar(0);
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

// The sum of the irregular entries of row lane/4 of a block, in each of the row's four lanes.
__device__ __forceinline__ Scalar sum_tails(const MediumPart& part, const Scalar* x, long long block)
{
    const Offset* offsets = part.tail_offsets + TILE_ROWS * block;
    if (offsets[0] == offsets[TILE_ROWS]) return 0;
    const int row = lane_id() / TILE_COLUMNS;
    const Offset end = offsets[row + 1];
    Scalar sum = 0;
    for (Offset slot = offsets[row] + lane_id() % TILE_COLUMNS; slot < end; slot += TILE_COLUMNS)
        sum = fma(Scalar(load_stream(part.tail_values + slot)),
                  load_cached(x + load_stream(part.tail_columns + slot)), sum);
    return quad_sum(sum);
}

// Lane 4 r + j stores row r of the warp's block j.
template <int BLOCKS, int STEPS>
__device__ __forceinline__ void multiply_row_blocks(const MediumPart& part, const Scalar* x,
                                                    const Result& result, long long first)
{
    Offset tile[BLOCKS], end[BLOCKS];
#pragma unroll
    for (int j = 0; j < BLOCKS; ++j) {
        const bool inside = first + j < part.blocks;
        tile[j] = inside ? part.tile_offsets[first + j] : 0;
        end[j] = inside ? part.tile_offsets[first + j + 1] : 0;
    }
    TileSum sum[BLOCKS];
    add_tiles<BLOCKS, STEPS>(part, x, tile, end, sum);

    const int mine = lane_id() % TILE_COLUMNS;
    Scalar total = 0;
#pragma unroll
    for (int j = 0; j < BLOCKS; ++j) {
        if (first + j >= part.blocks) break;
        const Scalar row = sum[j].row() + sum_tails(part, x, first + j);
        if (mine == j) total = row;
    }
    if (mine < BLOCKS && first + mine < part.blocks)
        result.store(part.rows[TILE_ROWS * (first + mine) + lane_id() / TILE_COLUMNS], total);
}
