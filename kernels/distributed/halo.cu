// Packs the elements of x that neighbours lack, and adds the halo's product to the rows of y that have one.
//
// One thread takes an element at a time: row i of `count`, column c of `columns`; the rows of `packed` follow each other.
//
// Launch: one dimension, blocks of DASP_THREADS threads, any number of blocks.
// dasp_pack: packed (count * columns) = x at rows `places` (count); x has elements `row` and `column` apart.
// dasp_add: y at `rows` (count, none twice) += product (columns, count); elements of y are `row` and `column` apart.
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
