// A diagonal of a matrix in the format of the paper, in one launch.
//
// Launch: one dimension, blocks of DASP_THREADS threads, of which the first take a long row each, the next a row block
//     of medium rows for each warp, and the last a short or an empty row for each thread.
// Arrays of the plan: see long.cuh, medium.cuh and short.cuh. further: how far behind its row the column of an entry of
//     the diagonal is. y (length): the sum of those entries of each row from `first_row` on.
// Entries of a row at one place are added up in their order.

#include "in_order.cuh"
#include "tile.cuh"

constexpr int PIECE = 16;  // tile rows of a unit of pairs

// Entries of a diagonal among slots.
struct Diagonal {
    long long further, first_row, length;
    Sum* y;

    // Whether a slot is in the diagonal's column of a row.
    __device__ __forceinline__ bool has(const Index* columns, long long slot, Index row) const
    {
        const Index column = load_stream(columns + slot);  // -1 in a pad
        return column >= 0 && column == (long long)row + further;
    }

    // Adds the values of a warp's slots that are, to the sums of rows of so many lanes; none from `end` on.
    __device__ __forceinline__ void add(Sum& sum, const Index* columns, const Value* values, long long slot, long long end,
                                        Index row, int lanes) const
    {
        const bool hit = slot < end && has(columns, slot, row);
        Sum value = 0;
        if (hit) value = convert<Sum>(load_plain(values + slot));
        add_in_order(sum, hit, value, lanes);
    }

    __device__ __forceinline__ void store(Index row, Sum sum) const
    {
        if (row >= 0 && row >= first_row && row < first_row + length) store_plain(y + (row - first_row), sum);
    }
};

// The sum of a short row, the i-th in the order of results.
struct ShortRows {
    const Index *rows, *columns;
    const Value* values;
    long long pairs_13, pairs_22, fours;

    __device__ __forceinline__ void find(const Diagonal& diagonal, long long i) const
    {
        const long long pairs = pairs_13 + pairs_22, tiles = pairs + fours;
        long long slot = 4 * tiles + i - 2 * pairs - fours;
        int slots = 1;
        if (i < 2 * pairs) {
            const bool second = i % (2 * PIECE) >= PIECE, of_13 = i < 2 * pairs_13;
            slot = 4 * (i / (2 * PIECE) * PIECE + i % PIECE) + (second ? of_13 ? 1 : 2 : 0);
            slots = of_13 ? second ? 3 : 1 : 2;
        } else if (i < 2 * pairs + fours) {
            slot = 4 * (i - pairs);
            slots = 4;
        }
        Sum sum = 0;
        for (int k = 0; k < slots; ++k)
            if (diagonal.has(columns, slot + k, rows[i])) sum += convert<Sum>(load_plain(values + slot + k));
        diagonal.store(rows[i], sum);
    }
};

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_diagonal_of_tiles(const Index* __restrict__ long_rows, const Offset* __restrict__ long_offsets,
                        const Index* __restrict__ long_columns, const Value* __restrict__ long_values,
                        long long cut, const Index* __restrict__ medium_rows, const Offset* __restrict__ tile_offsets,
                        const Index* __restrict__ tile_columns, const Value* __restrict__ tile_values,
                        const Offset* __restrict__ tail_offsets, const Index* __restrict__ tail_columns,
                        const Value* __restrict__ tail_values, long long blocks, const Index* __restrict__ short_rows,
                        const Index* __restrict__ short_columns, const Value* __restrict__ short_values,
                        long long pairs_13, long long pairs_22, long long fours, long long singles,
                        const Index* __restrict__ empty_rows, long long empties, long long further, long long first_row,
                        long long length, Sum* y)
{
    constexpr int WARPS = DASP_THREADS / TILE;
    const Diagonal diagonal{further, first_row, length, y};
    long long block = blockIdx.x;
    const int thread = threadIdx.x;
    Sum sum = 0;
    if (block < cut) {
        const Index row = long_rows[block];
        const long long begin = long_offsets[block], end = long_offsets[block + 1];
        bool found = false;
        for (long long slot = begin + thread; slot < end; slot += DASP_THREADS)
            found = diagonal.has(long_columns, slot, row) || found;
        const bool any = __syncthreads_or(found);  // the first warp goes through the row again if there is one
        if (thread >= TILE) return;
        for (long long first = begin; any && first < end; first += TILE)
            diagonal.add(sum, long_columns, long_values, first + lane_id(), end, row, TILE);
        if (thread == 0) diagonal.store(row, sum);
        return;
    }
    block -= cut;

    const long long medium = (blocks + WARPS - 1) / WARPS;
    if (block < medium) {
        const long long b = WARPS * block + thread / TILE;
        if (b >= blocks) return;
        const long long position = TILE_ROWS * b + lane_id() / TILE_COLUMNS;
        const Index row = medium_rows[position];
        for (long long tile = tile_offsets[b]; tile < tile_offsets[b + 1]; ++tile)
            diagonal.add(sum, tile_columns, tile_values, TILE * tile + lane_id(), TILE * (tile + 1), row, TILE_COLUMNS);
        const long long end = tail_offsets[position + 1];
        long long slot = tail_offsets[position] + lane_id() % TILE_COLUMNS;
        for (; __any_sync(ALL_LANES, slot < end); slot += TILE_COLUMNS)
            diagonal.add(sum, tail_columns, tail_values, slot, end, row, TILE_COLUMNS);
        if (lane_id() % TILE_COLUMNS == 0) diagonal.store(row, sum);
        return;
    }
    block -= medium;

    const long long i = DASP_THREADS * block + thread, results = 2 * (pairs_13 + pairs_22) + fours + singles;
    const ShortRows rows{short_rows, short_columns, short_values, pairs_13, pairs_22, fours};
    if (i < results) rows.find(diagonal, i);
    else if (i - results < empties) diagonal.store(empty_rows[i - results], sum);
}
