// Rung 12. Warp tiles: the results of a warp form a rectangle of their own inside the block's.
//
// Launch: 32 threads for each DASP_WM x DASP_WN of the block's DASP_BM x DASP_BN results, one block each (product.cuh
// has the arrays and the numbering; warp_tile.cuh says which lane has which results).
// Memory: a warp reads DASP_WM + DASP_WN elements per row of k, and no parts of other rows and columns, and
// its lanes' 16-byte reads have no bank conflicts.
#include "dense/warp_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    __shared__ __align__(16) Real tile_a[BK][STRIDE_A];
    __shared__ __align__(16) Real tile_b[BK][STRIDE_B];
    const Corner corner(n, BM, BN);
    Sums sums;
    Parts parts;
    for (int start = 0; start < k; start += BK) {
#pragma unroll
        for (int turn = 0; turn < BM * BK; turn += THREADS * WIDTH) {
            const int i = turn + threadIdx.x * WIDTH;
            if (BM * BK % (THREADS * WIDTH) != 0 && i >= BM * BK)
                continue;
            const int row = corner.row + i / BK, p = start + i % BK;
            const Piece piece = read_piece(a + row * lda + p, row < m ? k - p : 0);
#pragma unroll
            for (int j = 0; j < WIDTH; ++j)
                tile_a[i % BK + j][i / BK] = piece.element[j];
        }
#pragma unroll
        for (int turn = 0; turn < BK * BN; turn += THREADS * WIDTH) {
            const int i = turn + threadIdx.x * WIDTH;
            if (BK * BN % (THREADS * WIDTH) != 0 && i >= BK * BN)
                continue;
            const int p = start + i / BN, column = corner.column + i % BN;
            *reinterpret_cast<Piece*>(&tile_b[i / BN][i % BN]) =
                read_piece(b + p * ldb + column, p < k ? n - column : 0);
        }
        __syncthreads();
#pragma unroll
        for (int p = 0; p < BK; ++p) {
            parts.load(&tile_a[p][lane_row()], &tile_b[p][lane_column()]);
            sums.add(parts);
        }
        __syncthreads();
    }
    sums.store(m, n, corner.row + lane_row(), corner.column + lane_column(), alpha, beta, c, ldc, d, ldd);
}
