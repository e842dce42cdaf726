// Rung 5. As rung 4 with warps of 4 x 8 results, and tiles that 16-byte reads take without bank conflicts.
//
// Launch: 1024 threads, one block per 32 x 32 results (product.cuh has the arrays and the numbering).
// Memory: B's tile is stored by columns, so a thread reads neighbours in k from both tiles, 16 bytes at a time: 2k/4
// reads (float64: 2k/2) per result. A row of a tile is 16 bytes longer than 32 elements; without that pad the rows that
// are read together would lie in the same four banks. The lanes form a rectangle (product.cuh), so a read asks for 4 or 8
// pieces and takes two turns of shared memory: per warp, one turn for each step of k (float64: two), where rung 4 took
// one and a half (three). A warp stores 8 elements of each of 4 rows of B's tile at a time, in all 32 banks.
#include "dense/product.cuh"

constexpr int PAD = 16 / sizeof(Real);

extern "C" __global__ void __launch_bounds__(1024)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    __shared__ __align__(16) Real tile_a[32][32 + PAD];
    __shared__ __align__(16) Real tile_b[32][32 + PAD];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Corner corner(n, 32, 32);
    const int down = warp / 4 * 4 + LanePlace<4, 8>::row(lane); // of this thread's result, in the tile
    const int across = warp % 4 * 8 + LanePlace<4, 8>::column(lane);
    const int p_b = warp / 4 * 4 + lane / 8, column_b = warp % 4 * 8 + lane % 8; // of the element of B that it brings
    a += (corner.row + warp) * lda + lane;
    b += p_b * ldb + corner.column + column_b;
    const int left_a = corner.row + warp < m ? k - lane : 0; // as long as start is below, the element exists
    const int left_b = corner.column + column_b < n ? k - p_b : 0;
    Real sum = 0;
    for (int start = 0; start < k; start += 32) {
        tile_a[warp][lane] = start < left_a ? *a : Real(0);
        tile_b[column_b][p_b] = start < left_b ? *b : Real(0);
        a += 32;
        b += 32 * ldb;
        __syncthreads();
#pragma unroll
        for (int p = 0; p < 32; ++p)
            sum += tile_a[down][p] * tile_b[across][p];
        __syncthreads();
    }
    const int row = corner.row + down, column = corner.column + across;
    if (row < m && column < n)
        d[row * ldd + column] = updated(sum, alpha, beta, c + row * ldc + column);
}
