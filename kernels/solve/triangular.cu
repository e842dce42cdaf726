// One level of a triangular solve: x[row] = inverse[row] (b[row] - sum of data[e] x[indices[e]]) for each of its rows.
//
// Rows of a level need x of earlier levels alone, which earlier launches computed (level scheduling: Anderson
// and Saad 1989, doi:10.1142/S0129053389000056). Launch: one dimension, a thread a row, blocks of
// DASP_THREADS threads.
// rows (count), indptr (n + 1), indices and data (entries): the strict triangle, by rows. inverse, b, x (n): x is written
// for the rows of the level. DASP_COMPLEX: whether Scalar is complex. Equal inputs give equal bits.

#if DASP_COMPLEX
#include "number.cuh"
#else
#include "warp.cuh"
#endif

using Scalar = DASP_SCALAR;

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_triangular(const int* rows, int count, const int* indptr, const int* indices, const Scalar* data,
                const Scalar* inverse, const Scalar* b, Scalar* x)
{
    wait_for_earlier_kernels();
    const int place = DASP_THREADS * blockIdx.x + threadIdx.x;
    if (place >= count) return;
    const int row = rows[place];
    Scalar sum = load_result(b + row);
    for (int entry = indptr[row]; entry < indptr[row + 1]; ++entry)
        sum -= data[entry] * load_result(x + indices[entry]);
    x[row] = sum * inverse[row];
}
