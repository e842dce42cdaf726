// Copies a matrix of any strides to one that lies row by row, or back to one that lies column by column: DASP_TO_ROWS
// says which.
//
// Launch: one dimension, blocks of 256 threads. A thread has PACK numbers that follow each other in a row; PARTS threads
//     one piece of a row, 64 bytes as a rule, and those after them the same piece of the next row: both sides are read
//     and written by whole sectors. Blocks that follow each other have the `pieces` of the same rows.
// rows_of: element (i, j) at i wide + j, aligned to 16 bytes, or to a row if that is shorter. It has zeros behind the last
//     column after a copy to rows. columns_of: at i row + j column. Numbers are copied as DASP_BYTES bytes.

#include "../warp.cuh"

#ifndef DASP_TO_ROWS
#error "define DASP_TO_ROWS: 1 to copy to rows, 0 to copy rows to columns"
#endif
#ifndef DASP_COLUMNS
#error "define DASP_COLUMNS: numbers of a piece, a power of two"
#endif

#ifndef DASP_BYTES
#error "define DASP_BYTES: of a number, 2, 4, 8 or 16"
#endif

// So many bytes.
template <int BYTES> struct Words;
template <> struct Words<2> { using Type = unsigned short; };
template <> struct Words<4> { using Type = unsigned; };
template <> struct Words<8> { using Type = uint2; };
template <> struct Words<16> { using Type = uint4; };
using Word = Words<DASP_BYTES>::Type;

constexpr int THREADS = 256;
constexpr int COLUMNS = DASP_COLUMNS;
constexpr int PACK = 16 / DASP_BYTES < COLUMNS ? 16 / DASP_BYTES : COLUMNS;
constexpr int PARTS = COLUMNS / PACK;
constexpr int ROWS = THREADS / PARTS;  // of a block

using Whole = Words<PACK * DASP_BYTES>::Type;

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_transpose(Word* columns_of, Word* rows_of, long long count, long long row, long long column, int columns, int wide,
               int pieces)
{
    wait_for_earlier_kernels();
    const long long i = blockIdx.x / pieces * (long long)ROWS + threadIdx.x / PARTS;
    const int first = int(blockIdx.x % pieces) * COLUMNS + int(threadIdx.x % PARTS) * PACK;
    if (i >= count || first >= wide) return;
    Word* const there = columns_of + i * row + first * column;
    Whole* const here = reinterpret_cast<Whole*>(rows_of + i * wide + first);
    Whole whole = {};
    if (!DASP_TO_ROWS) whole = load_result(here);
    Word words[PACK];
    memcpy(words, &whole, sizeof whole);
#pragma unroll
    for (int w = 0; w < PACK; ++w) {
        if (first + w >= columns) continue;
        if (DASP_TO_ROWS)
            words[w] = load_result(there + w * column);
        else
            there[w * column] = words[w];
    }
    if (!DASP_TO_ROWS) return;
    memcpy(&whole, words, sizeof whole);
    *here = whole;
}
