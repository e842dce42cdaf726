// Rung 2. One thread per result, neighbouring threads in neighbouring columns.
//
// Launch: 32 x 32 threads, one block per 32 x 32 results (product.cuh has the arrays and the numbering).
// Memory: still 2k loads per result, but the 32 lanes of a warp read one element of A and 32 neighbours of B:
// two lines per step of k where there were 33, and one line per store.
#include "dense/product.cuh"

extern "C" __global__ void __launch_bounds__(1024)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    const Corner corner(n, 32, 32);
    const int row = corner.row + threadIdx.y;
    const int column = corner.column + threadIdx.x;
    if (row >= m || column >= n)
        return;
    Real sum = 0;
    for (int p = 0; p < k; ++p)
        sum += a[row * lda + p] * b[p * ldb + column];
    d[row * ldd + column] = updated(sum, alpha, beta, c + row * ldc + column);
}
