// Rungs 8 and 9. A square of DASP_TM x DASP_TN results per thread (4 x 4, then 8 x 8).
//
// Launch: DASP_BM * DASP_BN / (DASP_TM * DASP_TN) threads, one block per DASP_BM x DASP_BN results (product.cuh has
// the arrays and the numbering). Neighbouring lanes stand side by side along n.
// Memory: DASP_TM + DASP_TN loads from shared memory serve DASP_TM * DASP_TN results: k (1/DASP_TM + 1/DASP_TN) per
// result, and k (1/DASP_BN + 1/DASP_BM) global ones.
#include "product.cuh"

constexpr int BM = DASP_BM, BN = DASP_BN, BK = DASP_BK, TM = DASP_TM, TN = DASP_TN;
constexpr int THREADS = BM * BN / (TM * TN);

extern "C" __global__ void __launch_bounds__(THREADS, 1)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    __shared__ __align__(16) Real tile_a[BM][BK];
    __shared__ __align__(16) Real tile_b[BK][BN];
    const Corner corner(n, BM, BN);
    const int down = threadIdx.x / (BN / TN) * TM; // of this thread's results, in the tile
    const int across = threadIdx.x % (BN / TN) * TN;
    Real sum[TM][TN] = {};
    for (int start = 0; start < k; start += BK) {
#pragma unroll
        for (int turn = 0; turn < BM * BK; turn += THREADS) {
            const int i = turn + threadIdx.x;
            if (BM * BK % THREADS != 0 && i >= BM * BK)
                continue;
            const int row = corner.row + i / BK, p = start + i % BK;
            tile_a[i / BK][i % BK] = row < m && p < k ? a[row * lda + p] : Real(0);
        }
#pragma unroll
        for (int turn = 0; turn < BK * BN; turn += THREADS) {
            const int i = turn + threadIdx.x;
            if (BK * BN % THREADS != 0 && i >= BK * BN)
                continue;
            const int p = start + i / BN, column = corner.column + i % BN;
            tile_b[i / BN][i % BN] = p < k && column < n ? b[p * ldb + column] : Real(0);
        }
        __syncthreads();
#pragma unroll
        for (int p = 0; p < BK; ++p) {
            Real part_a[TM], part_b[TN];
#pragma unroll
            for (int i = 0; i < TM; ++i)
                part_a[i] = tile_a[down + i][p];
#pragma unroll
            for (int j = 0; j < TN; ++j)
                part_b[j] = tile_b[p][across + j];
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j)
                    sum[i][j] += part_a[i] * part_b[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int row = corner.row + down + i;
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            const int column = corner.column + across + j;
            if (row < m && column < n)
                d[row * ldd + column] = updated(sum[i][j], alpha, beta, c + row * ldc + column);
        }
    }
}
