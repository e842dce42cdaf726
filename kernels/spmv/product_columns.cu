// Y = alpha A X + beta Y for a plan in the published format and an X of several columns: four lanes, a quad, multiply
// a row by a panel of COLUMNS columns, and then by the next panel that is theirs.
//
// The four slots of a row in a tile lie beside each other, so each lane of a quad loads all of them at once, and reads
// of their rows of X the COLUMNS / 4 columns that are its own: a quad reads runs of 4 * PACK columns. So lanes
// exchange nothing but the sums of long rows. A tensor core would multiply each row by the x of all eight rows, of
// which one is wanted, once for each column; here each number that is read is multiplied once.
//
// Launch: one dimension, blocks of DASP_THREADS threads, `parts` blocks that follow each other for the same rows:
//     panel t is multiplied by part t % parts. A part needs at least as many warps as
//     segments + blocks + ceil(pairs_13 / 8 STEPS) + ceil(pairs_22 / 8 STEPS) + ceil(fours / 8 STEPS)
//     + ceil(singles / 32 STEPS) + ceil(empties / 32),
//     and a warp takes one segment of a long row, one row block of medium rows, STEPS tiles of one section of short
//     rows, 32 STEPS rows of one entry, or 32 empty rows.
// The arrays of the plan and their pads are described in long.cuh, medium.cuh and short.cuh; x, y, zeros, first, last
// and the strides in slices_columns.cu, but x_column and y_column are 1 only with PACK and Y_PACK above 1.
// partials (segments, columns): of each segment, row by row, and each column; dasp_segments_columns adds them.
//
// Y is written once for every row. Equal inputs give equal bits, and a column's are the same whatever COLUMNS, PACK,
// STEPS, the strides and the other columns: those of dasp_spmv, whose sums have the same order. With DASP_MMA
// that is the order of mma_m8n8k4, slot by slot; without, each of a row's four slots in a tile has a sum of its own.

#include "medium.cuh"
#include "short.cuh"

#define DASP_NEAR (DASP_PACK > 1)
#define DASP_FILLED DASP_WHOLE
#include "panels.cuh"

using SegmentOffset = Offset;
#include "segments.cuh"

#ifndef DASP_STEPS
#error "define DASP_STEPS: tiles that are loaded before the first is multiplied"
#endif
#ifndef DASP_LOADS
#error "define DASP_LOADS: loads of X that a lane has in flight, a power of two"
#endif
#ifndef DASP_TAIL_LANES
#error "define DASP_TAIL_LANES: sums of a row's irregular part: 4 / blocks_per_warp, as in medium.cuh"
#endif

constexpr int STEPS = DASP_STEPS;
constexpr int AT_ONCE = power_of_two(DASP_LOADS / (TILE_COLUMNS * PACKS), STEPS);  // tiles whose X is loaded at once
constexpr int TILE_PARTS = DASP_MMA ? 1 : TILE_COLUMNS;

static_assert(LANES == TILE_COLUMNS, "four lanes share the four slots of a row");

// Which row of a tile, and of eight rows, is this quad's.
__device__ __forceinline__ int quad_id() { return lane_id() / TILE_COLUMNS; }

// A number of lane j of this quad.
template <class T> __device__ __forceinline__ T from_quad(T number, int j)
{
    unsigned words[(sizeof(T) + 3) / 4] = {};
    memcpy(words, &number, sizeof(T));
#pragma unroll
    for (int i = 0; i < int(sizeof words / 4); ++i) words[i] = __shfl_sync(ALL_LANES, words[i], j, TILE_COLUMNS);
    memcpy(&number, words, sizeof(T));
    return number;
}

// This lane's slots of some tiles.
template <int TILES> struct Slots {
    Index column[TILES];
    Value a[TILES];

    // From `slot` on, `apart` from one tile to the next; pads from `end` on.
    __device__ __forceinline__ void load(const Index* columns, const Value* values, long long slot, long long end,
                                         int apart)
    {
#pragma unroll
        for (int k = 0; k < TILES; ++k) {
            const bool inside = slot + k * apart < end;
            column[k] = inside ? load_stream(columns + slot + k * apart) : PAD;
            a[k] = inside ? load_stream(values + slot + k * apart) : convert<Value>(Factor(0));
        }
    }
};

// What this lane multiplies of AT_ONCE tiles: the four slots of its row in each, and its columns of X at them, all
// loaded before the first is multiplied.
struct Terms {
    Value a[AT_ONCE][TILE_COLUMNS];
    Pack<X, PACK> b[AT_ONCE][TILE_COLUMNS][PACKS];

    // Of tiles first, first + 1, ... of the slots.
    template <int TILES>
    __device__ __forceinline__ Terms(const Slots<TILES>& slots, int first, const XPanel& panel)
    {
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k)
#pragma unroll
            for (int j = 0; j < TILE_COLUMNS; ++j) panel.load<false>(from_quad(slots.column[first + k], j), b[k][j]);
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k)
#pragma unroll
            for (int j = 0; j < TILE_COLUMNS; ++j) a[k][j] = from_quad(slots.a[first + k], j);
    }
};

// The sums of a row in this lane's columns: of slot j of a tile in part j % PARTS.
template <int PARTS> struct RowSums {
    Sum of[PARTS][OWN];

    __device__ __forceinline__ RowSums()
    {
#pragma unroll
        for (int j = 0; j < PARTS; ++j)
#pragma unroll
            for (int v = 0; v < OWN; ++v) of[j][v] = Sum(0);
    }

    // Adds slots [first, last) of tile k.
    __device__ __forceinline__ void add(const Terms& terms, int k, int first, int last)
    {
#pragma unroll
        for (int j = first; j < last; ++j)
#pragma unroll
            for (int v = 0; v < OWN; ++v) {
                Sum& sum = of[j % PARTS][v];
                const Operand b = convert<Operand>(terms.b[k][j][v / PACK][v % PACK]);
                sum = multiply_add(convert<Factor>(terms.a[k][j]), b, sum);
            }
    }

    // Adds slots of this lane's row from `slot` on, its own in each tile, `apart` from one tile to the next, of TILES
    // at a time. The whole warp comes here, and goes on until no row has any left.
    template <int TILES>
    __device__ __forceinline__ void add_all(const Index* columns, const Value* values, long long slot, long long end,
                                            int apart, const XPanel& x)
    {
#pragma unroll 1
        for (; __any_sync(ALL_LANES, slot < end); slot += TILES * apart) {
            Slots<TILES> slots;
            slots.load(columns, values, slot, end, apart);
#pragma unroll
            for (int k = 0; k < TILES; k += AT_ONCE) {
                if (k > 0 && !__any_sync(ALL_LANES, slot + k * apart < end)) return;
                const Terms terms(slots, k, x);
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) add(terms, i, 0, TILE_COLUMNS);
            }
        }
    }

    // Neighbouring parts are added pairwise, as quad_sum does.
    __device__ __forceinline__ void totals(Sum (&total)[OWN]) const
    {
#pragma unroll
        for (int v = 0; v < OWN; ++v) {
            total[v] = of[0][v];
            if constexpr (PARTS > 1) total[v] = total[v] + of[1][v];
            if constexpr (PARTS > 2) total[v] = total[v] + (of[2][v] + of[3][v]);
        }
    }
};

// The sums of a row's tiles; `slot` is this lane's in the first of them.
__device__ __forceinline__ void sum_tiles(const Index* columns, const Value* values, long long slot, long long end,
                                          const XPanel& x, Sum (&total)[OWN])
{
    RowSums<TILE_PARTS> sums;
    sums.template add_all<STEPS>(columns, values, slot, end, TILE, x);
    sums.totals(total);
}

// ---- long rows -------------------------------------------------------------------------------------

// A segment's slots, from `begin` to `end`.
__device__ __forceinline__ void multiply_segment(const Index* columns, const Value* values, long long begin,
                                                 long long end, const XPanel& x, Sum* partial)
{
    Sum total[OWN];
    sum_tiles(columns, values, begin + lane_id(), end, x, total);
#pragma unroll
    for (int v = 0; v < OWN; ++v) {
#pragma unroll
        for (int distance = TILE_COLUMNS; distance < 32; distance *= 2)
            total[v] += from_other_lane(total[v], distance);
        const int beyond = v / PACK * LANES * PACK + v % PACK;
        if (quad_id() == 0 && (DASP_WHOLE || beyond < x.columns)) partial[beyond] = total[v];
    }
}

// ---- medium rows -----------------------------------------------------------------------------------

__device__ __forceinline__ void multiply_row_block(const MediumPart& part, long long block, const XPanel& x,
                                                   const YPanel& y)
{
    const long long position = TILE_ROWS * block + quad_id();
    const Index row = part.rows[position];
    const long long tail = part.tail_offsets[position], tail_end = part.tail_offsets[position + 1];
    const long long slot = TILE * (long long)part.tile_offsets[block] + lane_id();
    Sum total[OWN];
    sum_tiles(part.columns, part.values, slot, TILE * (long long)part.tile_offsets[block + 1], x, total);
    if (__any_sync(ALL_LANES, tail < tail_end)) {
        RowSums<DASP_TAIL_LANES> sums;
        sums.template add_all<AT_ONCE>(part.tail_columns, part.tail_values, tail + lane_id() % TILE_COLUMNS, tail_end,
                                       TILE_COLUMNS, x);
        Sum of_tail[OWN];
        sums.totals(of_tail);
#pragma unroll
        for (int v = 0; v < OWN; ++v) total[v] += of_tail[v];
    }
    if (row >= 0) y.store(row, total);
}

// ---- short rows ------------------------------------------------------------------------------------

__device__ __forceinline__ long long warps_of(long long items, long long each) { return (items + each - 1) / each; }

__device__ __forceinline__ void store_slots(const Terms& terms, int k, int first, int last, Index row, const YPanel& y)
{
    if (row < 0) return;
    RowSums<TILE_PARTS> sums;
    sums.add(terms, k, first, last);
    Sum total[OWN];
    sums.totals(total);
    y.store(row, total);
}

// Goes through a warp's AT_ONCE tiles of a section of `count` slots: calls `store` with terms, the tile in them, and
// its number in the section.
template <class Store>
__device__ __forceinline__ void each_tile(const Index* columns, const Value* values, long long count, long long warp,
                                          const XPanel& x, const Store& store)
{
    const long long first = AT_ONCE * warp;
    Slots<AT_ONCE> slots;
    slots.load(columns, values, TILE * first + lane_id(), count, TILE);
    const Terms terms(slots, 0, x);
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k)
        if (TILE * (first + k) < count) store(terms, k, first + k);
}

// Tile rows that hold two rows: of SPLIT slots, and the rest. A unit of two tiles has its 16 first rows before the
// others.
template <int SPLIT>
__device__ __forceinline__ void multiply_pairs(const Index* rows, const Index* columns, const Value* values,
                                               long long pairs, long long warp, const XPanel& x, const YPanel& y)
{
    each_tile(columns, values, TILE_COLUMNS * pairs, warp, x, [&](const Terms& terms, int k, long long tile) {
        const Index* const mine = rows + 32 * (tile / 2) + TILE_ROWS * (tile % 2) + quad_id();
        store_slots(terms, k, 0, SPLIT, load_stream(mine), y);
        store_slots(terms, k, SPLIT, TILE_COLUMNS, load_stream(mine + 16), y);
    });
}

__device__ __forceinline__ void multiply_fours(const Index* rows, const Index* columns, const Value* values,
                                               long long fours, long long warp, const XPanel& x, const YPanel& y)
{
    each_tile(columns, values, TILE_COLUMNS * fours, warp, x, [&](const Terms& terms, int k, long long tile) {
        store_slots(terms, k, 0, TILE_COLUMNS, load_stream(rows + TILE_ROWS * tile + quad_id()), y);
    });
}

// Rows of one entry: 32 of them are taken for a tile.
__device__ __forceinline__ void multiply_singles(const Index* rows, const Index* columns, const Value* values,
                                                 long long singles, long long warp, const XPanel& x, const YPanel& y)
{
    each_tile(columns, values, singles, warp, x, [&](const Terms& terms, int k, long long tile) {
#pragma unroll
        for (int j = 0; j < TILE_COLUMNS; ++j) {
            const long long single = TILE * tile + TILE_COLUMNS * quad_id() + j;
            store_slots(terms, k, j, j + 1, single < singles ? load_stream(rows + single) : PAD, y);
        }
    });
}

// The panels of columns that are this warp's: calls `work` with what it reads and writes of each, and the number of
// the panel's first column in this lane. Each kind of rows goes through them by itself: what is known before the
// loop takes registers in all of it.
struct Panels {
    const X* x;
    const X* zeros;
    Y* y;
    long long x_column;
    long long y_column;
    int x_row;
    int y_row;
    int first;
    int last;
    int apart;
    Sum alpha;
    Sum beta;

    template <class Work> __device__ __forceinline__ void each(const Work& work) const
    {
#pragma unroll 1
        for (int start = first; start < last; start += apart) {
            const int column = start + lane_id() % LANES * PACK, left = last - column;
            work(XPanel{x + column * x_column, zeros, x_column, x_row, left},
                 YPanel{y + column * y_column, y_column, y_row, left, alpha, beta}, column);
        }
    }
};

extern "C" __global__ void __launch_bounds__(DASP_THREADS, 65536 / DASP_REGISTERS / DASP_THREADS)
dasp_spmv_columns(const Offset* __restrict__ long_offsets, const Offset* __restrict__ segment_offsets,
                  const Index* __restrict__ segment_rows, const Index* __restrict__ long_columns,
                  const Value* __restrict__ long_values, int segment, long long segments,
                  const Index* __restrict__ medium_rows, const Offset* __restrict__ tile_offsets,
                  const Index* __restrict__ tile_columns, const Value* __restrict__ tile_values,
                  const Offset* __restrict__ tail_offsets, const Index* __restrict__ tail_columns,
                  const Value* __restrict__ tail_values, long long blocks, const Index* __restrict__ short_rows,
                  const Index* __restrict__ short_columns, const Value* __restrict__ short_values, long long pairs_13,
                  long long pairs_22, long long fours, long long singles, const Index* __restrict__ empty_rows,
                  long long empties, const X* zeros, int parts, const X* x, Y* y, Sum* partials,
                  long long x_column, long long y_column, int x_row, int y_row, int first, int last, int columns,
                  Sum alpha, Sum beta)
{
    wait_for_earlier_kernels();
    const Panels panels{x,     zeros, y,    x_column,         y_column, x_row, y_row, first + int(blockIdx.x % parts) * COLUMNS,
                        last,  parts * COLUMNS, alpha, beta};
    long long warp = (blockIdx.x / parts * (long long)blockDim.x + threadIdx.x) / 32;

    if (warp < segments) {
        const Index r = segment_rows[warp];
        const long long begin = long_offsets[r] + (warp - segment_offsets[r]) * segment;
        const long long end = min(begin + segment, (long long)long_offsets[r + 1]);
        return panels.each([&](const XPanel& xs, const YPanel&, int column) {
            multiply_segment(long_columns, long_values, begin, end, xs, partials + warp * columns + column);
        });
    }
    warp -= segments;

    if (warp < blocks) {
        const MediumPart part{medium_rows,  tile_offsets, tile_columns, tile_values,
                              tail_offsets, tail_columns, tail_values,  blocks};
        return panels.each(
            [&](const XPanel& xs, const YPanel& ys, int) { multiply_row_block(part, warp, xs, ys); });
    }
    warp -= blocks;

    const long long of_13 = warps_of(pairs_13, AT_ONCE * TILE_ROWS);
    if (warp < of_13)
        return panels.each([&](const XPanel& xs, const YPanel& ys, int) {
            multiply_pairs<1>(short_rows, short_columns, short_values, pairs_13, warp, xs, ys);
        });
    warp -= of_13;
    short_rows += 2 * pairs_13;
    short_columns += TILE_COLUMNS * pairs_13;
    short_values += TILE_COLUMNS * pairs_13;

    const long long of_22 = warps_of(pairs_22, AT_ONCE * TILE_ROWS);
    if (warp < of_22)
        return panels.each([&](const XPanel& xs, const YPanel& ys, int) {
            multiply_pairs<2>(short_rows, short_columns, short_values, pairs_22, warp, xs, ys);
        });
    warp -= of_22;
    short_rows += 2 * pairs_22;
    short_columns += TILE_COLUMNS * pairs_22;
    short_values += TILE_COLUMNS * pairs_22;

    const long long of_4 = warps_of(fours, AT_ONCE * TILE_ROWS);
    if (warp < of_4)
        return panels.each([&](const XPanel& xs, const YPanel& ys, int) {
            multiply_fours(short_rows, short_columns, short_values, fours, warp, xs, ys);
        });
    warp -= of_4;
    short_rows += fours;
    short_columns += TILE_COLUMNS * fours;
    short_values += TILE_COLUMNS * fours;

    const long long of_1 = warps_of(singles, AT_ONCE * TILE);
    if (warp < of_1)
        return panels.each([&](const XPanel& xs, const YPanel& ys, int) {
            multiply_singles(short_rows, short_columns, short_values, singles, warp, xs, ys);
        });
    warp -= of_1;

    panels.each([&](const XPanel&, const YPanel& ys, int) {
        const Sum nothing[OWN] = {};
        for (int i = 0; i < TILE_COLUMNS; ++i) {
            const long long empty = 32 * warp + TILE_ROWS * i + quad_id();
            if (empty < empties) ys.store(load_stream(empty_rows + empty), nothing);
        }
    });
}
