// Rungs 10 and 11. 16-byte loads, with A transposed on its way into shared memory; then tuned tiles.
//
// Launch: DASP_BM * DASP_BN / (DASP_TM * DASP_TN) threads, one block per DASP_BM x DASP_BN results (product.cuh has
// the arrays and the numbering). DASP_TM, DASP_TN, DASP_BK are multiples of 16 bytes.
// Memory: as many bytes as before, in a quarter of the instructions (float64: half). A's tile is stored by columns of
// A, so that a thread's DASP_TM elements lie in a row and are read 16 bytes at a time too.
#include "dense/vectors.cuh"

constexpr int BM = DASP_BM, BN = DASP_BN, BK = DASP_BK, TM = DASP_TM, TN = DASP_TN;
constexpr int THREADS = BM * BN / (TM * TN);

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    __shared__ __align__(16) Real tile_a[BK][BM];
    __shared__ __align__(16) Real tile_b[BK][BN];
    const Corner corner(n, BM, BN);
    const int down = threadIdx.x / (BN / TN) * TM; // of this thread's results, in the tile
    const int across = threadIdx.x % (BN / TN) * TN;
    Real sum[TM][TN] = {};
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
            Piece part_a[TM / WIDTH], part_b[TN / WIDTH];
#pragma unroll
            for (int i = 0; i < TM / WIDTH; ++i)
                part_a[i] = read_piece(&tile_a[p][down + i * WIDTH]);
#pragma unroll
            for (int j = 0; j < TN / WIDTH; ++j)
                part_b[j] = read_piece(&tile_b[p][across + j * WIDTH]);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j)
                    sum[i][j] += part_a[i / WIDTH].element[i % WIDTH] * part_b[j / WIDTH].element[j % WIDTH];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int row = corner.row + down + i;
#pragma unroll
        for (int j = 0; j < TN; j += WIDTH) {
            const int column = corner.column + across + j;
            Piece piece;
#pragma unroll
            for (int v = 0; v < WIDTH; ++v)
                piece.element[v] = sum[i][j + v];
            update_piece(piece, alpha, beta, c + row * ldc + column, d + row * ldd + column, row < m ? n - column : 0);
        }
    }
}
