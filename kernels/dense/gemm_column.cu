// Rungs 6 and 7. A column of DASP_TM results per thread (4, then 8).
//
// Launch: DASP_BM * DASP_BN / DASP_TM threads, one block per DASP_BM x DASP_BN results (product.cuh has the arrays
// and the numbering). A warp's lanes stand side by side along n.
// Memory: an element of B, once in a register, serves DASP_TM results: per result k (1 + 1/DASP_TM) loads from
// shared memory (four of A at a time), and k (1/DASP_BN + 1/DASP_BM) global ones.
#include "product.cuh"

constexpr int BM = DASP_BM, BN = DASP_BN, BK = DASP_BK, TM = DASP_TM;
constexpr int THREADS = BM * BN / TM;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    __shared__ __align__(16) Real tile_a[BM][BK];
    __shared__ __align__(16) Real tile_b[BK][BN];
    const Corner corner(n, BM, BN);
    const int first = threadIdx.x / BN * TM; // of this thread's rows, in the tile
    const int across = threadIdx.x % BN;
    Real sum[TM] = {};
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
            const Real element = tile_b[p][across];
#pragma unroll
            for (int i = 0; i < TM; ++i)
                sum[i] += tile_a[first + i][p] * element;
        }
        __syncthreads();
    }
    const int column = corner.column + across;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int row = corner.row + first + i;
        if (row < m && column < n)
            d[row * ldd + column] = updated(sum[i], alpha, beta, c + row * ldc + column);
    }
}
