// Rows of 1 to 4 entries: a warp makes 32 results, from tile rows that hold one row or two pieces.
#pragma once

#include "tile.cuh"

// Sections in this order: pairs_13, pairs_22 and fours tile rows of four slots, then singles of one slot.
// rows: the caller's row of each result, -1 where there is none; 32 for each warp, see ShortPart in plan.py.
// columns, values: the slots; a pad has column -1, value 0.
struct ShortPart {
    const Index* rows;
    const Index* columns;
    const Value* values;
    long long pairs_13;
    long long pairs_22;
    long long fours;
    long long singles;
};

constexpr int HALF_WARP = 16;

// Stores four sums of eight rows: lane 4 r + j takes row r of sum j, result 8 j + r of the warp.
__device__ __forceinline__ void store_rows(const TileSum (&sum)[4], const Index* rows, const Result& result)
{
    const int mine = lane_id() % TILE_COLUMNS;
    Scalar total = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const Scalar row = sum[j].row();
        if (mine == j) total = row;
    }
    result.store(load_stream(rows + TILE_ROWS * mine + lane_id() / TILE_COLUMNS), total);
}

// Sixteen tile rows, each of two pieces: slots [0, split) and [split, 4). Each piece is multiplied with
// the other one's slots put to zero, values too, so that an Inf there cannot spoil it.
__device__ __forceinline__ void multiply_pairs(const Index* rows, const Index* columns, const Value* values,
                                               int split, const Scalar* x, const Result& result)
{
    const bool first = lane_id() % TILE_COLUMNS < split;
    TileSum sum[4];
    Scalar a[2], b[2];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
        a[tile] = load_stream(values + TILE * tile + lane_id());
        b[tile] = load_x(x, load_stream(columns + TILE * tile + lane_id()));
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
        sum[tile].add(first ? a[tile] : Scalar(0), first ? b[tile] : Scalar(0));
        sum[2 + tile].add(first ? Scalar(0) : a[tile], first ? Scalar(0) : b[tile]);
    }
    store_rows(sum, rows, result);
}

// Thirty-two tile rows of one row each.
__device__ __forceinline__ void multiply_fours(const Index* rows, const Index* columns, const Value* values,
                                               const Scalar* x, const Result& result)
{
    TileSum sum[4];
    Scalar a[4], b[4];
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
        a[tile] = load_stream(values + TILE * tile + lane_id());
        b[tile] = load_x(x, load_stream(columns + TILE * tile + lane_id()));
    }
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) sum[tile].add(a[tile], b[tile]);
    store_rows(sum, rows, result);
}

// A warp's work in the short part: its number among the part's warps says which section it is in.
__device__ __forceinline__ void multiply_short(const ShortPart& part, const Scalar* x, const Result& result,
                                               long long warp)
{
    const long long warps_13 = part.pairs_13 / HALF_WARP, warps_22 = part.pairs_22 / HALF_WARP;
    const long long warps_4 = part.fours / 32;
    const Index* rows = part.rows + 32 * warp;
    if (warp < warps_13 + warps_22) {
        const long long slot = TILE_COLUMNS * HALF_WARP * warp;
        multiply_pairs(rows, part.columns + slot, part.values + slot, warp < warps_13 ? 1 : 2, x, result);
        return;
    }
    const long long fours = warp - warps_13 - warps_22;
    const long long slot = TILE_COLUMNS * (part.pairs_13 + part.pairs_22);
    if (fours < warps_4) {
        const long long mine = slot + TILE_COLUMNS * 32 * fours;
        multiply_fours(rows, part.columns + mine, part.values + mine, x, result);
        return;
    }
    const long long single = 32 * (fours - warps_4) + lane_id();
    if (single >= part.singles) return;
    const long long mine = slot + TILE_COLUMNS * part.fours + single;
    result.store(load_stream(rows + lane_id()),
                 Scalar(load_stream(part.values + mine)) * load_x(x, load_stream(part.columns + mine)));
}
