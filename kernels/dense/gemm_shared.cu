// Rung 3. 32 x 32 tiles of A and B in shared memory.
//
// Launch: 32 x 32 threads, one block per 32 x 32 results (product.cuh has the arrays and the numbering).
// Memory: each element that is fetched serves 32 threads, so 2k/32 global loads per result; 2k loads from
// shared memory, of which the compiler joins four of A (they are neighbours) in one.
// Past the edges a tile holds zeros, so the inner loop has no conditions.
#include "dense/product.cuh"

extern "C" __global__ void __launch_bounds__(1024)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    __shared__ __align__(16) Real tile_a[32][32];
    __shared__ __align__(16) Real tile_b[32][32];
    const Corner corner(n, 32, 32);
    const int row = corner.row + threadIdx.y;
    const int column = corner.column + threadIdx.x;
    Real sum = 0;
    for (int start = 0; start < k; start += 32) {
        const int p_a = start + threadIdx.x;
        const int p_b = start + threadIdx.y;
        tile_a[threadIdx.y][threadIdx.x] = row < m && p_a < k ? a[row * lda + p_a] : Real(0);
        tile_b[threadIdx.y][threadIdx.x] = p_b < k && column < n ? b[p_b * ldb + column] : Real(0);
        __syncthreads();
#pragma unroll
        for (int p = 0; p < 32; ++p)
            sum += tile_a[threadIdx.y][p] * tile_b[p][threadIdx.x];
        __syncthreads();
    }
    if (row < m && column < n)
        d[row * ldd + column] = updated(sum, alpha, beta, c + row * ldc + column);
}
