// The halo exchange of ranks on GPUs: elements of x are packed, messages move them, products are added to y.
//
// With DASP_DOT dasp_add_dot is compiled, else with DASP_SCALAR dasp_pack and dasp_add, and with neither the kernels
// around messages of NCCL.

#ifdef DASP_DOT
#include "spmv/dot.cuh"
#else
#include "number.cuh"
#endif

#ifdef DASP_SCALAR
using Scalar = DASP_SCALAR;
#endif

#if !defined(DASP_SCALAR)

// Kernels before and after messages that another library moves: they tell the host how far the messages have
// come, and replace received data by NaN if the messages were given up.
//
// dasp_begin_messages: one thread. Tells the host that the messages of a turn begin.
// dasp_end_messages: one dimension, blocks of DASP_THREADS threads, any number of blocks. Sets every byte of
//     `received` (nbytes) to 0xff, a NaN in any type of number.cuh, if `given_up` (1, in the host's memory)
//     is not 0; tells the host that the messages have ended.
// turns (1): the last turn that ended. mailbox (2), in the host's memory: the last turn that began, and the
//     last that ended.
// Launches with the same `turns` follow each other.

extern "C" __global__ void dasp_begin_messages(const unsigned* turns, volatile unsigned* mailbox)
{
    wait_for_earlier_kernels();
    mailbox[0] = turns[0] + 1;
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_end_messages(unsigned char* received, long long nbytes, const volatile unsigned* given_up, unsigned* turns,
                  volatile unsigned* mailbox)
{
    wait_for_earlier_kernels();
    if (given_up[0] != 0) {
        const long long first = (long long)DASP_THREADS * blockIdx.x + threadIdx.x, step = (long long)DASP_THREADS * gridDim.x;
        for (long long at = first; at < nbytes; at += step) received[at] = 0xff;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) mailbox[1] = ++turns[0];
}

#elif !defined(DASP_DOT)

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

#else

// Adds the halo's product to the rows of y with entries in it, and leaves dot products of all of y.
//
// Launch: one dimension, blocks of DASP_THREADS threads, any number of blocks.
// Rows `rows` (count, none twice) of y += product (count).
// left (DASP_DOT, before): the partial sums of w'y, and of y'y, that the interior's product left: see
//     spmv/dot.cuh. sums (DASP_DOT, blocks of the launch): the partial sums of the new y.
// DASP_SCALAR: float or double. Equal inputs and equal launches give equal bits: each element of y is written by one
// thread, and every sum has a fixed order.

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_add_dot(const long long* rows, long long count, const Scalar* product, Scalar* y, const Scalar* w,
             const double* left, int before, double* sums)
{
    wait_for_earlier_kernels();
    const long long first = (long long)DASP_THREADS * blockIdx.x + threadIdx.x, step = (long long)DASP_THREADS * gridDim.x;
    Dots dots;
    for (long long at = first; at < count; at += step) {
        const long long row = rows[at];
        const Scalar was = y[row], is = was + product[at];
        y[row] = is;
        dots.add(double(is), double(w[row]));
        dots.add(double(was), double(w[row]), -1);
    }
    for (long long at = first; at < before; at += step)
#pragma unroll
        for (int k = 0; k < DASP_DOT; ++k) dots.sum[k] += left[k * (long long)before + at];
    leave_dots(sums, blockIdx.x, gridDim.x, dots);
}

#endif
