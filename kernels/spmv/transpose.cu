// Copies a matrix of any strides to one stored row by row (DASP_TO_ROWS 1), or such a matrix back (0).
//
// Launch: one dimension, blocks of 256 threads. A block copies a tile of ROWS rows and COLUMNS columns through shared
//     memory, so that both sides are read and written by runs of neighbouring addresses; `pieces` consecutive
//     blocks have the tiles of the same rows. A thread has all its loads in flight before its first store.
// rows_of: element (i, j) at i wide + j; after a copy to rows, zeros follow the last column. columns_of:
//     element (i, j) at i row + j column. Numbers are copied as DASP_BYTES bytes: every bit is kept.

#include "warp.cuh"

#ifndef DASP_TO_ROWS
#error "define DASP_TO_ROWS: 1 to copy to rows, 0 to copy rows to columns"
#endif
#ifndef DASP_COLUMNS
#error "define DASP_COLUMNS: columns of a tile, a power of two, at most 32"
#endif
#ifndef DASP_BYTES
#error "define DASP_BYTES: of a number, 2, 4, 8 or 16"
#endif

// A word of BYTES bytes.
template <int BYTES> struct Words;
template <> struct Words<2> { using Type = unsigned short; };
template <> struct Words<4> { using Type = unsigned; };
template <> struct Words<8> { using Type = uint2; };
template <> struct Words<16> { using Type = uint4; };
using Word = Words<DASP_BYTES>::Type;

constexpr int THREADS = 256;
constexpr int COLUMNS = DASP_COLUMNS;
constexpr int EACH = 32 / DASP_BYTES;           // numbers of a thread
constexpr int ROWS = THREADS * EACH / COLUMNS;  // of a tile
constexpr int PITCH = COLUMNS + 1;              // from row to row of it: odd, so that a column's lie in all banks

// The place in a tile of a thread's number e: neighbouring threads have neighbours in a column, or in a row.
struct Place {
    int row;
    int column;
};
__device__ __forceinline__ Place in_columns(int e)
{
    const int number = e * THREADS + int(threadIdx.x);
    return {number % ROWS, number / ROWS};
}
__device__ __forceinline__ Place in_rows(int e)
{
    const int number = e * THREADS + int(threadIdx.x);
    return {number / COLUMNS, number % COLUMNS};
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_transpose(Word* columns_of, Word* rows_of, long long count, long long row, long long column, int columns, int wide,
               int pieces)
{
    __shared__ Word tile[ROWS * PITCH];
    wait_for_earlier_kernels();
    const long long top = blockIdx.x / pieces * (long long)ROWS;
    const int first = int(blockIdx.x % pieces) * COLUMNS;

    Word words[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const Place at = DASP_TO_ROWS ? in_columns(e) : in_rows(e);
        const long long i = top + at.row;
        const int j = first + at.column;
        words[e] = Word{};
        if (i < count && j < columns)
            words[e] = load_result(DASP_TO_ROWS ? columns_of + i * row + j * column : rows_of + i * wide + j);
    }
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const Place at = DASP_TO_ROWS ? in_columns(e) : in_rows(e);
        tile[at.row * PITCH + at.column] = words[e];
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const Place at = DASP_TO_ROWS ? in_rows(e) : in_columns(e);
        const long long i = top + at.row;
        const int j = first + at.column;
        if (i < count && j < (DASP_TO_ROWS ? wide : columns))
            *(DASP_TO_ROWS ? rows_of + i * wide + j : columns_of + i * row + j * column) =
                tile[at.row * PITCH + at.column];
    }
}
