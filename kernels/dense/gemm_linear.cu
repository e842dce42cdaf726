// Rung 4. As rung 3 with a one-dimensional thread index, and two pointers that walk along k.
//
// Launch: 1024 threads, one block per 32 x 32 results (product.cuh has the arrays and the numbering).
// Memory: as before. Both loads have a pointer and a step width, and no address is computed from four indices
// at each step: fewer registers and integer instructions per result.
#include "dense/product.cuh"

extern "C" __global__ void __launch_bounds__(1024)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    __shared__ __align__(16) Real tile_a[32][32];
    __shared__ __align__(16) Real tile_b[32][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Corner corner(n, 32, 32);
    const int row = corner.row + warp;
    const int column = corner.column + lane;
    a += row * lda + lane;
    b += warp * ldb + column;
    const int left_a = row < m ? k - lane : 0; // as long as start is below, the element exists
    const int left_b = column < n ? k - warp : 0;
    Real sum = 0;
    for (int start = 0; start < k; start += 32) {
        tile_a[warp][lane] = start < left_a ? *a : Real(0);
        tile_b[warp][lane] = start < left_b ? *b : Real(0);
        a += 32;
        b += 32 * ldb;
        __syncthreads();
#pragma unroll
        for (int p = 0; p < 32; ++p)
            sum += tile_a[warp][p] * tile_b[p][lane];
        __syncthreads();
    }
    if (row < m && column < n)
        d[row * ldd + column] = updated(sum, alpha, beta, c + row * ldc + column);
}
