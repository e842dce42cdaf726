// Rung 1. One thread per result, neighbouring threads in neighbouring rows.
//
// Launch: 32 x 32 threads, one block per 32 x 32 results (product.cuh has the arrays and the numbering).
// Memory: 2k loads per result. The 32 lanes of a warp read 32 rows of A, so each load of A touches 32 lines,
// and so does each store of D.
#include "dense/product.cuh"

extern "C" __global__ void __launch_bounds__(1024)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    const Corner corner(n, 32, 32);
    const int row = corner.row + threadIdx.x;
    const int column = corner.column + threadIdx.y;
    if (row >= m || column >= n)
        return;
    Real sum = 0;
    for (int p = 0; p < k; ++p)
        sum += a[row * lda + p] * b[p * ldb + column];
    d[row * ldd + column] = updated(sum, alpha, beta, c + row * ldc + column);
}
