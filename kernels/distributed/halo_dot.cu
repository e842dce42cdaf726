// Adds the halo's product to the rows of y with entries in it, and leaves dot products of all of y.
//
// Launch: one dimension, blocks of DASP_THREADS threads, any number of blocks.
// Rows `rows` (count, none twice) of y += product (count).
// left (DASP_DOT, before): the partial sums of w'y, and of y'y, that the interior's product left: see
//     ../spmv/dot.cuh. sums (DASP_DOT, blocks of the launch): the partial sums of the new y.
// DASP_SCALAR: float or double. Equal inputs and equal launches give equal bits: each element of y is written by one
// thread, and every sum has a fixed order.

#include "spmv/dot.cuh"

using Scalar = DASP_SCALAR;

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
