// Rung 5. As rung 4 with B's tile stored so that 16-byte reads meet no bank conflict.
//
// Launch: 1024 threads, one block per 32 x 32 results (product.cuh has the arrays and the numbering).
// Memory: B's tile is stored by columns, so a thread reads neighbours in p from both tiles, 16 bytes at a time:
// an eighth of the read instructions. Rows of B's tile are 16 bytes longer than 32 elements; without that pad the
// eight lanes that are served together would all read the same four banks.
#include "product.cuh"

constexpr int PAD = 16 / sizeof(Real);

extern "C" __global__ void __launch_bounds__(1024)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    __shared__ __align__(16) Real tile_a[32][32];
    __shared__ __align__(16) Real tile_b[32][32 + PAD];
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
        tile_b[lane][warp] = start < left_b ? *b : Real(0);
        a += 32;
        b += 32 * ldb;
        __syncthreads();
#pragma unroll
        for (int p = 0; p < 32; ++p)
            sum += tile_a[warp][p] * tile_b[lane][p];
        __syncthreads();
    }
    if (row < m && column < n)
        d[row * ldd + column] = updated(sum, alpha, beta, c + row * ldc + column);
}
