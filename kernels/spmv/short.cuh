// Rows of 1 to 4 entries: a unit of 32 results comes from tile rows that hold one row of the matrix or two.
#pragma once

#include "spmv/tile.cuh"

// Sections in this order: pairs_13, pairs_22 and fours tile rows of four slots, then singles of one slot.
// rows: the caller's row of each result, -1 where there is none; 32 to a unit, see dasp/formats/dasp/pattern.py.
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

// Units that a warp takes, with the loads of all in flight before the first product: with one unit a warp
// mostly waits.
constexpr int UNITS = 2;

// Tiles of a unit: two of pairs, whose tile rows hold two rows each, or four of fours.
constexpr int PAIR_TILES = 2;
constexpr int FOUR_TILES = 4;

__host__ __device__ constexpr long long warps_for(long long units) { return (units + UNITS - 1) / UNITS; }

// A lane's slots in the tiles of a unit, and the row whose sum it stores; pads if there is no such unit.
template <int TILES> struct Unit {
    Index row;
    Factor a[TILES];
    Operand b[TILES];

    __device__ __forceinline__ Unit(const ShortPart& part, const X* x, long long unit, long long slot,
                                    bool exists)
    {
        Index column[TILES];
        row = exists ? load_stream(part.rows + 32 * unit + TILE_ROWS * (lane_id() % TILE_COLUMNS) +
                                   lane_id() / TILE_COLUMNS)
                     : PAD;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            const long long mine = slot + TILE * tile + lane_id();
            column[tile] = exists ? load_stream(part.columns + mine) : PAD;
            a[tile] = exists ? convert<Factor>(load_stream(part.values + mine)) : Factor(0);
        }
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) b[tile] = load_x(x, column[tile]);
    }

    // Stores four sums of eight rows: lane 4 r + j takes row r of sum j, result 8 j + r of the unit.
    __device__ __forceinline__ void store(const TileSum (&sum)[4], const Result& result) const
    {
        Sum total = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const Sum of_tile = sum[j].row();
            if (lane_id() % TILE_COLUMNS == j) total = of_tile;
        }
        result.store(row, total);
    }
};

// Tile rows that hold two rows: one in slots [0, split), the other in slots [split, 4). Each row is
// multiplied with x and values of the other one's slots set to zero, so that an Inf there cannot spoil it.
__device__ __forceinline__ void multiply_pairs(const Unit<PAIR_TILES>& unit, int split, const Result& result)
{
    const bool first = lane_id() % TILE_COLUMNS < split;
    TileSum sum[2 * PAIR_TILES];
#pragma unroll
    for (int tile = 0; tile < PAIR_TILES; ++tile) {
        const Factor a = unit.a[tile], no_a = 0;
        const Operand b = unit.b[tile], no_b = 0;
        sum[tile].add(first ? a : no_a, first ? b : no_b);
        sum[PAIR_TILES + tile].add(first ? no_a : a, first ? no_b : b);
    }
    unit.store(sum, result);
}

__device__ __forceinline__ void multiply_fours(const Unit<FOUR_TILES>& unit, const Result& result)
{
    TileSum sum[FOUR_TILES];
#pragma unroll
    for (int tile = 0; tile < FOUR_TILES; ++tile) sum[tile].add(unit.a[tile], unit.b[tile]);
    unit.store(sum, result);
}

// Rows of one entry, 32 to a unit: a thread each, and no tile.
__device__ __forceinline__ void multiply_singles(const ShortPart& part, const X* x, const Result& result,
                                                 long long first_row, long long first_slot, long long unit)
{
    Index row[UNITS], column[UNITS];
    Factor a[UNITS];
    Operand b[UNITS];
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const long long single = 32 * (unit + u) + lane_id();
        const bool exists = single < part.singles;
        row[u] = exists ? load_stream(part.rows + first_row + single) : PAD;
        column[u] = exists ? load_stream(part.columns + first_slot + single) : PAD;
        a[u] = exists ? convert<Factor>(load_stream(part.values + first_slot + single)) : Factor(0);
    }
#pragma unroll
    for (int u = 0; u < UNITS; ++u) b[u] = load_x(x, column[u]);
#pragma unroll
    for (int u = 0; u < UNITS; ++u) result.store(row[u], multiply_add(a[u], b[u], Sum(0)));
}

// Multiplies the units of one warp: its number among the warps of the short part says in which section.
__device__ __forceinline__ void multiply_short(const ShortPart& part, const X* x, const Result& result,
                                               long long warp)
{
    const long long units_13 = part.pairs_13 / (PAIR_TILES * TILE_ROWS);
    const long long pairs = units_13 + part.pairs_22 / (PAIR_TILES * TILE_ROWS);
    if (warp < warps_for(pairs)) {
        const long long first = UNITS * warp, slots = PAIR_TILES * TILE;
        const Unit<PAIR_TILES> unit[UNITS] = {{part, x, first, slots * first, true},
                                              {part, x, first + 1, slots * (first + 1), first + 1 < pairs}};
#pragma unroll
        for (int u = 0; u < UNITS; ++u) multiply_pairs(unit[u], first + u < units_13 ? 1 : 2, result);
        return;
    }
    warp -= warps_for(pairs);

    const long long fours = part.fours / (FOUR_TILES * TILE_ROWS);
    const long long fours_slot = PAIR_TILES * TILE * pairs;
    if (warp < warps_for(fours)) {
        const long long first = UNITS * warp, slots = FOUR_TILES * TILE;
        const Unit<FOUR_TILES> unit[UNITS] = {
            {part, x, pairs + first, fours_slot + slots * first, true},
            {part, x, pairs + first + 1, fours_slot + slots * (first + 1), first + 1 < fours}};
#pragma unroll
        for (int u = 0; u < UNITS; ++u) multiply_fours(unit[u], result);
        return;
    }
    warp -= warps_for(fours);

    multiply_singles(part, x, result, 32 * (pairs + fours), fours_slot + FOUR_TILES * TILE * fours, UNITS * warp);
}
