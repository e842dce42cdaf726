// Copies a matrix that lies column by column to one that lies row by row, or back: DASP_TO_ROWS says which.
//
// Launch: one dimension, blocks of 256 threads; block b copies rows 32 b to 32 b + 31, 32 columns at a time,
//     through shared memory, so that reads and writes both go along runs of memory.
// rows_of: element (i, j) at i columns + j. columns_of: at i row + j column. Numbers are copied as DASP_BYTES bytes.

#include "../warp.cuh"

#ifndef DASP_TO_ROWS
#error "define DASP_TO_ROWS: 1 to copy columns to rows, 0 to copy rows to columns"
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

constexpr int SIDE = 32;

extern "C" __global__ void __launch_bounds__(256)
dasp_transpose(Word* columns_of, Word* rows_of, long long count, long long row, long long column, int columns)
{
    __shared__ Word tile[SIDE][SIDE + 1];
    wait_for_earlier_kernels();
    const long long first = blockIdx.x * (long long)SIDE, i = first + threadIdx.x % SIDE;
    for (int start = 0; start < columns; start += SIDE) {
        const int width = min(SIDE, columns - start);
        for (int pass = 0; pass < 2; ++pass) {
            if (pass == 1 - DASP_TO_ROWS) {  // along columns: neighbouring threads have neighbouring rows
                for (int j = threadIdx.x / SIDE; j < width; j += 256 / SIDE) {
                    Word& held = tile[j][threadIdx.x % SIDE];
                    Word* const at = columns_of + i * row + (start + j) * column;
                    if (i < count && DASP_TO_ROWS) held = load_result(at);
                    if (i < count && !DASP_TO_ROWS) *at = held;
                }
            } else {  // along rows, as many as fit into the run of a width
                for (int place = threadIdx.x; place < SIDE * width; place += 256) {
                    const int r = place / width, j = place % width;
                    Word& held = tile[j][r];
                    Word* const at = rows_of + (first + r) * columns + start + j;
                    if (first + r < count && DASP_TO_ROWS) *at = held;
                    if (first + r < count && !DASP_TO_ROWS) held = load_result(at);
                }
            }
            __syncthreads();
        }
    }
}
