// Makes row blocks, as row_blocks.cu reads them, from CSR: 8 lanes merge the columns of 8 rows, so that a
// warp makes 4 row blocks.
//
// Each round takes the least column among the next entries of the 8 rows, and the next entry of every row
// that has this column. So the entries of a row keep their order, whether their columns rise or not, and
// duplicates get slots of their own.
//
// Launch: dasp_sample_offsets (any number of blocks), dasp_count_tiles, dasp_fill_tiles, one after the other;
//     one dimension, blocks of 512 threads, and at least 8 threads for each row block.
// indptr (rows + 1), indices (nnz). codes (nnz), or null if codes are not stored.
// places (8 row blocks): the row of each lane of a row block, -1 past the last; dasp_count_tiles writes them.
// starts (row blocks + 1): first tile of each row block, and the number of all; dasp_count_tiles writes them.
// totals (2): 0 before; becomes the number of blocks that have counted, and the number of all tiles.
// columns (4 tiles), masks (tiles), values (32 tiles), 0 before: see row_blocks.cu.
// offsets (count, most): see dasp_sample_offsets.
// Deterministic: every number has one writer, and the last block adds up the counts in their order.

#include "csr/scan.cuh"

#ifndef DASP_INDEX
#error "define DASP_INDEX: the type of rows and columns, int or long long"
#endif

#ifndef DASP_CODE_BYTES
#error "define DASP_CODE_BYTES: bytes of a code, 1, 2, 4, 8 or 16; codes are moved as their bits"
#endif

using Index = DASP_INDEX;

#if DASP_CODE_BYTES == 1
using Code = unsigned char;
#elif DASP_CODE_BYTES == 2
using Code = unsigned short;
#elif DASP_CODE_BYTES == 4
using Code = unsigned;
#elif DASP_CODE_BYTES == 8
using Code = unsigned long long;
#else
using Code = ulonglong2;
#endif

constexpr int THREADS = 512, ROWS = 8;
constexpr long long NONE = 0x7fffffffffffffffll;  // greater than every column

// A row, from its next entry on; a row below 0 has no entries.
struct Row {
    const Index* indices;
    long long next, end;
    long long column, after;  // columns of the next entry, and of the one after it; NONE past the last

    __device__ Row(const long long* indptr, const Index* indices, long long row)
        : indices(indices), next(row >= 0 ? indptr[row] : 0), end(row >= 0 ? indptr[row + 1] : 0),
          column(at(next)), after(at(next + 1))
    {
    }
    __device__ __forceinline__ long long at(long long entry) const { return entry < end ? indices[entry] : NONE; }
    __device__ __forceinline__ void advance()
    {
        column = after;
        after = at(++next + 1);
    }
};

// The row at a position, -1 past the last. In a grid, boxes of 2 x 2 x 2 rows, or fewer at its end, follow
// each other along lines. A line has `line` rows, a plane has `plane`; 0 for a matrix that is no grid, whose
// rows keep their order.
__device__ __forceinline__ long long row_at(long long position, long long line, long long plane, long long rows)
{
    if (position >= rows) return -1;
    if (line == 0) return position;
    const long long z = position / (2 * plane), in_planes = position % (2 * plane);
    const long long planes = min(2ll, rows / plane - 2 * z), y = in_planes / (2 * line * planes);
    const long long in_lines = in_planes % (2 * line * planes), lines = min(2ll, plane / line - 2 * y);
    const long long x = in_lines / (lines * planes), in_box = in_lines % (lines * planes);
    return (2 * z + in_box / lines) * plane + (2 * y + in_box % lines) * line + x;
}

// The least of a number over the 8 lanes of a row block, in each of them.
__device__ __forceinline__ long long least_of_rows(long long number)
{
#pragma unroll
    for (int flip = 1; flip < ROWS; flip *= 2) number = min(number, from_other_lane(number, flip));
    return number;
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_count_tiles(const long long* __restrict__ indptr, const Index* __restrict__ indices, long long rows,
                 long long row_blocks, long long line, long long plane, Index* places, Count* starts, Count* totals)
{
    const long long thread = blockIdx.x * (long long)THREADS + threadIdx.x, row_block = thread / ROWS;
    __shared__ Count sums[THREADS / WARP + 1];
    const long long mine = row_at(thread, line, plane, rows);
    if (row_block < row_blocks) places[thread] = Index(mine);
    Row row(indptr, indices, mine);
    Count columns = 0;
    for (;;) {
        const long long column = least_of_rows(row.column);
        if (!__any_sync(ALL_LANES, column != NONE)) break;
        columns += column != NONE;
        if (column != NONE && row.column == column) row.advance();
    }
    if (thread % ROWS == 0 && row_block < row_blocks) starts[row_block] = (columns + 3) / 4;
    if (!is_last_block(totals, gridDim.x)) return;
    block_scan(starts, row_blocks, sums);
    if (threadIdx.x == 0) totals[1] = starts[row_blocks];
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_fill_tiles(const long long* __restrict__ indptr, const Index* __restrict__ indices,
                const Code* __restrict__ codes, const Index* __restrict__ places, long long row_blocks,
                const Count* __restrict__ starts, Index* columns, unsigned* masks, Code* values)
{
    const long long thread = blockIdx.x * (long long)THREADS + threadIdx.x, row_block = thread / ROWS;
    const int r = int(thread % ROWS);
    Row row(indptr, indices, row_block < row_blocks ? (long long)places[thread] : -1);
    long long tile = row_block < row_blocks ? (long long)starts[row_block] : 0, column = NONE;
    const long long end = row_block < row_blocks ? (long long)starts[row_block + 1] : 0;
    while (__any_sync(ALL_LANES, tile < end)) {
        unsigned mask = 0;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const long long least = least_of_rows(row.column);
            if (least != NONE) {
                column = least;
                if (row.column == least) {
                    mask |= 1u << (4 * r + c);
                    if (codes) values[32 * tile + 4 * r + c] = codes[row.next];
                    row.advance();
                }
            }
            if (r == c && tile < end) columns[4 * tile + c] = Index(column);
        }
#pragma unroll
        for (int flip = 1; flip < ROWS; flip *= 2) mask |= from_other_lane(mask, flip);
        if (r == 0 && tile < end) masks[tile] = mask;
        ++tile;
    }
}

// offsets (count, most): for the first `most` entries of each of `count` rows, the column minus the row; 0 if
// it is not positive, or if there is no entry. Multiples of the golden ratio choose rows that are evenly
// spread, also over the lines and planes of a grid of any size.
extern "C" __global__ void __launch_bounds__(THREADS)
dasp_sample_offsets(const long long* __restrict__ indptr, const Index* __restrict__ indices, long long rows,
                    long long count, long long most, Count* offsets)
{
    const long long first = blockIdx.x * (long long)THREADS + threadIdx.x;
    for (long long i = first; i < count * most; i += gridDim.x * (long long)THREADS) {
        const long long row = __umul64hi((i / most + 1) * 0x9e3779b97f4a7c15ull, rows), entry = indptr[row] + i % most;
        const long long offset = entry < indptr[row + 1] ? (long long)indices[entry] - row : 0;
        offsets[i] = offset > 0 ? offset : 0;
    }
}
