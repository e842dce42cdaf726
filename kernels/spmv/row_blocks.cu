// Y = alpha A X + beta Y on tensor cores, where rows near each other have entries in the same columns: one warp
// multiplies one row block, 8 rows, by a column block of COLUMNS columns, and then by its next column block.
//
// The columns of a row block are those in which any of its rows has an entry. A tile is 8 x 4 slots: the 8
// rows by four of these columns. So a row of X is read once for all rows of the block. Slots of a tile
// without an entry hold the code 0, and columns that fill the last tile repeat the one before them. A NaN or
// an infinite number of X times such a slot gives NaN, so sums that are not finite are computed again, entry
// by entry.
//
// Lane l holds slot (l / 4, l % 4) of a tile. A tile multiplies four rows of X. Lane l reads PACK
// neighbouring columns of row l / 8 of these at a time, pack l % 8 in each run of 8 PACK columns, so that 8
// lanes whose loads are served together read one line. Then lanes exchange their packs: lane l gets that of
// row l % 4 and place l / 4 in the run. The product is transposed, X' A' (mma_m16n8k4), because the tile of
// the first factor may have 16 rows, and A's has 8: lane l has the sums of rows 2 (l % 4) and 2 (l % 4) + 1
// of the row block, in the columns in place l / 4 of each run.
//
// Launch: one dimension, blocks of DASP_THREADS threads; `parts` consecutive blocks multiply the same row
//     blocks, column block t in part t % parts. The arrays of the row blocks are read before the kernels that
//     come earlier in the stream have ended.
// starts (row blocks + 1): first tile of each row block, and the number of all tiles. columns (4 tiles):
//     those of each tile. masks (tiles): bit 4 r + c is set if row r has an entry in column c. values
//     (32 tiles): in the matrix's type or as codes (DASP_CODING); table: the values that codes stand for.
//     Lanes read columns, masks and values up to TILES tiles past the last one. rows (8 row blocks): the row
//     of the matrix at each place, PAD past the last.
// x, y, x_row, y_column, y_row, first, last: see slices_columns.cu; columns of X lie beside each other.
//     `zeros`, `partials` and `columns`, which other products by several columns take, are not read.
//
// Products and sums are float64 whatever the types. Y is written once. Equal inputs give equal bits, and the
// bits of a column do not depend on the other columns.

#include "spmv/slices.cuh"

#define DASP_NEAR 1
#define DASP_FILLED DASP_WHOLE
#include "spmv/column_blocks.cuh"

#ifndef DASP_STEPS
#error "define DASP_STEPS: tiles whose rows of X are loaded before the first is multiplied"
#endif

constexpr int TILES = DASP_STEPS;

static_assert(LANES == 8, "a load of a warp reads 8 PACK columns of each of four rows");

struct RowBlocks {
    const Index* columns;
    const unsigned* masks;
    Slices slices;
};

// Where a lane finds its slots of the next TILES tiles.
struct Place {
    const Index* columns;
    const Code* codes;
    const unsigned* masks;

    __device__ __forceinline__ Place(const RowBlocks& rows, long long tile)
        : columns(rows.columns + 4 * tile + lane_id() / 8), codes(rows.slices.values + 32 * tile + lane_id()),
          masks(rows.masks + tile)
    {
    }
    __device__ __forceinline__ void advance()
    {
        columns += 4 * TILES;
        codes += 32 * TILES;
        masks += TILES;
    }
};

// This lane's slots of TILES tiles, some of which may belong to another row block. A code is decoded when it
// is multiplied, so that nothing waits for its load before.
struct Slots {
    Index column[TILES];
    Code code[TILES];
    unsigned mask[CODED ? TILES : 1];

    __device__ __forceinline__ void load(const Place& place)
    {
#pragma unroll
        for (int q = 0; q < TILES; ++q) {
            column[q] = load_cached(place.columns + 4 * q);
            code[q] = load_code(place.codes + 32 * q);
            if (CODED) mask[q] = load_cached(place.masks + q);
        }
    }
    __device__ __forceinline__ double value(int q, const Value* table) const
    {
        const double a = convert<double>(factor_of(code[q], table));
        return CODED && !(mask[q] >> lane_id() & 1) ? 0.0 : a;
    }
};

// The pack that lane `source` has read; in lane l, that is lane 8 (l % 4) + l / 4.
__device__ __forceinline__ Pack<X, PACK> exchanged(const Pack<X, PACK>& read, int source)
{
    constexpr int WORDS = PACK * sizeof(X) / 4;
    unsigned words[WORDS];
    Pack<X, PACK> received;
    memcpy(words, &read, sizeof words);
#pragma unroll
    for (int w = 0; w < WORDS; ++w) words[w] = __shfl_sync(ALL_LANES, words[w], source);
    memcpy(&received, words, sizeof words);
    return received;
}

struct Sums {
    double of[OWN][2] = {};  // of this lane's columns and rows 2 (l % 4) + v

    // Adds a tile: X' is the first factor, 16 of its rows at a time, or 8 if a lane has one column.
    __device__ __forceinline__ void add(double a, const Pack<X, PACK> (&read)[PACKS], int source)
    {
        double b[OWN];
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            const Pack<X, PACK> here = exchanged(read[p], source);
#pragma unroll
            for (int i = 0; i < PACK; ++i) b[p * PACK + i] = convert<double>(here[i]);
        }
        if constexpr (OWN == 1)
            mma_m8n8k4(of[0], b[0], a);
        else
#pragma unroll
            for (int v = 0; v < OWN; v += 2) mma_m16n8k4(of[v], of[v + 1], b[v], b[v + 1], a);
    }

    // Adds tiles `tile` to last - 1. Slots of the next TILES tiles are loaded before the products of these.
    __device__ __forceinline__ void add(const RowBlocks& rows, long long tile, long long last, const XBlock& block)
    {
        Place place(rows, tile);
        Slots slots;
        slots.load(place);
        int left = int(last - tile), source = 8 * (lane_id() % 4) + lane_id() / 4;
        const Value* const table = rows.slices.table;
        wait_for_earlier_kernels();
#ifndef DASP_SIMT
        asm volatile("" : "+r"(source));  // else the compiler computes it again for each tile
#endif
#pragma unroll 1
        for (; left > TILES; left -= TILES) {
            Pack<X, PACK> b[TILES][PACKS];
#pragma unroll
            for (int q = 0; q < TILES; ++q) block.load<true>(slots.column[q], b[q]);
            place.advance();
            Slots next;
            next.load(place);
            __syncwarp();  // else the compiler moves products before loads, which then wait
#pragma unroll
            for (int q = 0; q < TILES; ++q) add(slots.value(q, table), b[q], source);
            slots = next;
        }
        Pack<X, PACK> b[TILES][PACKS] = {};  // a second array, and set: else the loop has more instructions
#pragma unroll
        for (int q = 0; q < TILES; ++q)
            if (q < left) block.load<true>(slots.column[q], b[q]);
#pragma unroll
        for (int q = 0; q < TILES; ++q)
            if (q < left) add(slots.value(q, table), b[q], source);
    }

    __device__ __forceinline__ bool are_finite() const
    {
        double zero = 0;
#pragma unroll
        for (int v = 0; v < OWN; ++v) zero += 0 * of[v][0] + 0 * of[v][1];
        return zero == 0;
    }

    // Adds the entries of tiles `tile` to last - 1 one by one, without the slots that hold none.
    __device__ __forceinline__ void add_entries(const RowBlocks& rows, long long tile, long long last,
                                                const XBlock& block)
    {
#pragma unroll 1
        for (long long slot = 4 * tile; slot < 4 * last; ++slot) {
            const unsigned mask = load_cached(rows.masks + slot / 4);
            const X* const b = block.at(load_cached(rows.columns + slot));
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int here = 4 * (2 * (lane_id() % 4) + r) + int(slot % 4);
                if (!(mask >> here & 1)) continue;
                const double a = convert<double>(load_value(rows.slices, 32 * (slot / 4) + here));
#pragma unroll
                for (int v = 0; v < OWN; ++v) {
                    const int column = v / PACK * LANES * PACK + v % PACK;
                    if (DASP_WHOLE || column < block.columns)
                        of[v][r] = fma(a, convert<double>(load_plain(b + column)), of[v][r]);
                }
            }
        }
    }

    // Replaces the sums that are not finite by others.
    __device__ __forceinline__ void replace(const Sums& others)
    {
#pragma unroll
        for (int v = 0; v < OWN; ++v)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                if (!(0 * of[v][r] == 0)) of[v][r] = others.of[v][r];
    }
};

extern "C" __global__ void __launch_bounds__(DASP_THREADS, 65536 / DASP_REGISTERS / DASP_THREADS)
dasp_row_blocks(const unsigned long long* __restrict__ starts, const Index* __restrict__ columns_of,
            const unsigned* __restrict__ masks, const Code* __restrict__ values, const Value* __restrict__ table,
            const Index* __restrict__ rows, const X* zeros, long long count, int parts, const X* x, Y* y, Sum* partials,
            long long x_column, long long y_column, int x_row, int y_row, int first, int last, int columns, Sum alpha,
            Sum beta)
{
    const long long row_block = (blockIdx.x / parts * (long long)blockDim.x + threadIdx.x) / 32;
    if (row_block >= count) return;
    const long long begin = load_cached(starts + row_block), end = load_cached(starts + row_block + 1);
    const RowBlocks blocks{columns_of, masks, {nullptr, nullptr, values, table}};
    const Index* const mine = rows + 8 * row_block + 2 * (lane_id() % 4);
    const Index row[2] = {load_cached(mine), load_cached(mine + 1)};
    const int in_x = lane_id() % 8 * PACK, in_y = lane_id() / 4 * PACK;
#pragma unroll 1
    for (int start = first + int(blockIdx.x % parts) * COLUMNS; start < last; start += parts * COLUMNS) {
        const int left = last - start;
        Sums sums;
        sums.add(blocks, begin, end, XBlock{x + start + in_x, zeros, x_column, x_row, left - in_x});
        wait_for_earlier_kernels();  // free: `add` has waited
        if (__any_sync(ALL_LANES, !sums.are_finite())) {
            Sums others;
            others.add_entries(blocks, begin, end, XBlock{x + start + in_y, zeros, x_column, x_row, left - in_y});
            sums.replace(others);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int column = start + in_y;
            Sum sum[OWN];
#pragma unroll
            for (int v = 0; v < OWN; ++v) sum[v] = convert<Sum>(sums.of[v][r]);
            if (row[r] >= 0) YBlock{y + column * y_column, y_column, y_row, left - in_y, alpha, beta}.store(row[r], sum);
        }
    }
}
