// Packs the elements of x that neighbours lack; adds the halo's product to the rows of y with entries there.
//
// A thread takes one element at a time: row i of `count`, column c of `columns`.
//
// Launch: one dimension, blocks of DASP_THREADS threads, any number of blocks.
// dasp_pack: packed (count, columns) = rows `places` (count) of x.
// dasp_add: rows `rows` (count, none twice) of y += the transpose of product (columns, count).
// Element (i, j) of x, or of y, lies i row + j column elements after the first.
// DASP_SCALAR: any type of number.cuh.
// Equal inputs give equal bits: each element of y is written by one thread.

#include "number.cuh"

using Scalar = DASP_SCALAR;

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_pack(const long long* places, long long count, long long columns, Scalar* packed, const Scalar* x, long long row,
          long long column)
{
    wait_for_earlier_kernels();
    const long long step = (long long)DASP_THREADS * gridDim.x;
    for (long long at = (long long)DASP_THREADS * blockIdx.x + threadIdx.x; at < count * columns; at += step) {
        const long long i = at / columns, c = at - i * columns;
        packed[at] = x[places[i] * row + c * column];
    }
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_add(const long long* rows, long long count, long long columns, const Scalar* product, Scalar* y, long long row,
         long long column)
{
    wait_for_earlier_kernels();
    const long long step = (long long)DASP_THREADS * gridDim.x;
    for (long long at = (long long)DASP_THREADS * blockIdx.x + threadIdx.x; at < count * columns; at += step) {
        const long long i = at / columns, c = at - i * columns;
        Scalar& sum = y[rows[i] * row + c * column];
        sum = convert<Scalar>(widened(sum) + widened(product[c * count + i]));
    }
}
