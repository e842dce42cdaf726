// y = alpha A x + beta y for a matrix in the format of the paper, in one launch; the first warps take the longest work.
//
// Launch: one dimension, blocks of DASP_THREADS threads, and at least as many warps as
//     segments + ceil(blocks / blocks_per_warp) + ceil((pairs_13 + pairs_22) / 32)
//     + ceil(fours / 64) + ceil(singles / 64) + ceil(empties / 32).
// A warp takes one segment of a long row, or blocks_per_warp row blocks of medium rows, or 64 short rows
// of one section, or 32 empty rows. The arrays and their pads are described at LongPart, MediumPart
// and ShortPart. x (n) is read through the cache and everything else is streamed past it. y (m) is written once for
// every row, in the caller's order. Equal inputs give equal bits: every sum has a fixed order, and there are no atomic
// sums.

#include "spmv/partial.cuh"

// ---- long rows --------------------------------------------------------------------------------------
//
// One warp sums one segment of a row; the warp of the last segment adds the row's partials.

// rows (r), offsets (r + 1), segment_offsets (r + 1), segment_rows (segments): see dasp/formats/dasp/pattern.py.
// columns, values: whole groups of 64 slots for each row, pads (column -1, value 0) after its entries.
// segment: the slots of each segment but the last of a row. partials (MESSAGES * segments): see partial.cuh.
struct LongPart {
    const Index* rows;
    const Offset* offsets;
    const Offset* segment_offsets;
    const Index* segment_rows;
    const Index* columns;
    const Value* values;
    Bits* partials;
    int segment;
};

// The sum of slots begin to end - 1, in every lane. Four tiles are in flight before the first product.
__device__ __forceinline__ Sum sum_slots(const LongPart& part, const X* x, Offset begin, Offset end)
{
    constexpr int STEPS = 4;
    TileSum sum;
    for (Offset slot = begin + lane_id(); slot < end; slot += STEPS * TILE) {
        Index column[STEPS];
        Factor a[STEPS];
        Operand b[STEPS];
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const bool inside = slot + step * TILE < end;
            column[step] = inside ? load_stream(part.columns + slot + step * TILE) : PAD;
            a[step] = inside ? convert<Factor>(load_stream(part.values + slot + step * TILE)) : Factor(0);
        }
#pragma unroll
        for (int step = 0; step < STEPS; ++step) b[step] = load_x(x, column[step]);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) sum.add(a[step], b[step]);
    }
    return sum.all();
}

__device__ __forceinline__ void multiply_segment(const LongPart& part, const X* x, const Result& result,
                                                 long long s)
{
    const Index r = part.segment_rows[s];
    const Offset first = part.segment_offsets[r], last = part.segment_offsets[r + 1] - 1;
    const Offset begin = part.offsets[r] + (Offset(s) - first) * part.segment;
    const Sum sum = sum_slots(part, x, begin, min(Offset(begin + part.segment), part.offsets[r + 1]));
    deliver(sum, part.partials + MESSAGES * (long long)first, s - first, last - first, part.rows[r], result);
}

// ---- medium rows ------------------------------------------------------------------------------------
//
// A warp multiplies the tiles of one, two or four row blocks, then their entries in no tile.

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

// ---- short rows, of 1 to 4 entries ------------------------------------------------------------------
//
// A unit of 32 results comes from tile rows that hold one row of the matrix or two.

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

// ---- the whole product ------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_spmv(const Index* __restrict__ long_rows, const Offset* __restrict__ long_offsets,
          const Offset* __restrict__ segment_offsets, const Index* __restrict__ segment_rows,
          const Index* __restrict__ long_columns, const Value* __restrict__ long_values,
          Bits* partials, unsigned* tickets, int segment, long long segments,
          const Index* __restrict__ medium_rows, const Offset* __restrict__ tile_offsets,
          const Index* __restrict__ tile_columns, const Value* __restrict__ tile_values,
          const Offset* __restrict__ tail_offsets, const Index* __restrict__ tail_columns,
          const Value* __restrict__ tail_values, long long blocks, int blocks_per_warp,
          const Index* __restrict__ short_rows, const Index* __restrict__ short_columns,
          const Value* __restrict__ short_values, long long pairs_13, long long pairs_22,
          long long fours, long long singles,
          const Index* __restrict__ empty_rows, long long empties,
          const X* __restrict__ x, Y* y, Sum alpha, Sum beta)
{
    wait_for_earlier_kernels();
    const Result result{y, alpha, beta};
    long long warp = (number_of_block(segments, tickets) * (long long)blockDim.x + threadIdx.x) / 32;

    if (warp < segments) {
        const LongPart part{long_rows,    long_offsets, segment_offsets, segment_rows, long_columns,
                            long_values,  partials,     segment};
        return multiply_segment(part, x, result, warp);
    }
    warp -= segments;

    // blocks / blocks_per_warp, rounded up, for 1, 2 and 4: a division would be a function call.
    const long long medium_warps = (blocks + blocks_per_warp - 1) >> blocks_per_warp / 2;
    if (warp < medium_warps) {
        const MediumPart part{medium_rows,  tile_offsets, tile_columns, tile_values,
                              tail_offsets, tail_columns, tail_values,  blocks};
        if (blocks_per_warp == 4) return multiply_row_blocks<4, 1>(part, x, result, 4 * warp);
        if (blocks_per_warp == 2) return multiply_row_blocks<2, 2>(part, x, result, 2 * warp);
        return multiply_row_blocks<1, 4>(part, x, result, warp);
    }
    warp -= medium_warps;

    const long long short_warps =
        warps_for((pairs_13 + pairs_22) / 16) + warps_for(fours / 32) + warps_for((singles + 31) / 32);
    if (warp < short_warps) {
        const ShortPart part{short_rows, short_columns, short_values, pairs_13, pairs_22, fours, singles};
        return multiply_short(part, x, result, warp);
    }
    warp -= short_warps;

    const long long empty = 32 * warp + lane_id();
    if (empty < empties) result.store(load_stream(empty_rows + empty), Sum(0));
}
