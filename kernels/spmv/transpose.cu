// Copies a matrix that lies column by column to one that lies row by row, or back: DASP_TO_ROWS says which.
//
// Launch: one dimension, blocks of 256 threads; block b copies rows ROWS b to ROWS b + ROWS - 1, DASP_COLUMNS
//     columns at a time, through shared memory, 16 KB at most, so that reads and writes both go along runs of memory.
//     All reads of a thread are in flight at once.
// rows_of: element (i, j) at i columns + j. columns_of: at i row + j column. Numbers are copied as DASP_BYTES bytes.

#include "../warp.cuh"

#ifndef DASP_TO_ROWS
#error "define DASP_TO_ROWS: 1 to copy columns to rows, 0 to copy rows to columns"
#endif
#ifndef DASP_COLUMNS
#error "define DASP_COLUMNS: columns that a block copies at a time, a power of two up to 32"
#endif

#if DASP_BYTES == 2
using Word = unsigned short;
#elif DASP_BYTES == 4
using Word = unsigned;
#elif DASP_BYTES == 8
using Word = uint2;
#elif DASP_BYTES == 16
using Word = uint4;
#else
#error "define DASP_BYTES: of a number, 2, 4, 8 or 16"
#endif

constexpr int THREADS = 256;
constexpr int COLUMNS = DASP_COLUMNS;
constexpr int EACH = DASP_BYTES < 4 ? 16 : 64 / DASP_BYTES;  // numbers of a thread
constexpr int ROWS = THREADS * EACH / COLUMNS;
constexpr int GAP = 128 / DASP_BYTES > COLUMNS ? 128 / DASP_BYTES / COLUMNS : 1;  // else a row's numbers share banks

// A place of a tile, counted along its columns or along its rows.
struct Place {
    int row, column;
};

template <bool ALONG_COLUMNS> __device__ __forceinline__ Place place_of(int number)
{
    if (ALONG_COLUMNS) return {number % ROWS, number / ROWS};
    return {number / COLUMNS, number % COLUMNS};
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_transpose(Word* columns_of, Word* rows_of, long long count, long long row, long long column, int columns)
{
    __shared__ Word tile[COLUMNS][ROWS + GAP];
    wait_for_earlier_kernels();
    const long long first = blockIdx.x * (long long)ROWS;
    const int height = int(min((long long)ROWS, count - first));
    for (int start = 0; start < columns; start += COLUMNS) {
        const int width = min(COLUMNS, columns - start);
        const auto address = [&](const Place& at, bool in_rows) {
            return in_rows ? rows_of + (first + at.row) * columns + start + at.column
                           : columns_of + (first + at.row) * row + (start + at.column) * column;
        };
        Word held[EACH];
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const Place at = place_of<DASP_TO_ROWS>(threadIdx.x + e * THREADS);
            if (at.row < height && at.column < width) held[e] = load_result(address(at, !DASP_TO_ROWS));
        }
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const Place at = place_of<DASP_TO_ROWS>(threadIdx.x + e * THREADS);
            if (at.row < height && at.column < width) tile[at.column][at.row] = held[e];
        }
        __syncthreads();
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const Place at = place_of<!DASP_TO_ROWS>(threadIdx.x + e * THREADS);
            if (at.row < height && at.column < width) *address(at, DASP_TO_ROWS) = tile[at.column][at.row];
        }
        __syncthreads();
    }
}
