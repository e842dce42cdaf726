// Rungs 8 and 9. A square of DASP_TM x DASP_TN results per thread (4 x 4, then 8 x 8).
//
// Launch: DASP_BM * DASP_BN / (DASP_TM * DASP_TN) threads, one block per DASP_BM x DASP_BN results (product.cuh has
// the arrays and the numbering). Neighbouring lanes stand side by side along n.
// Memory: DASP_TM + DASP_TN elements of shared memory serve DASP_TM * DASP_TN results: k (1/DASP_TM + 1/DASP_TN) per
// result, and k (1/DASP_BN + 1/DASP_BM) global loads. B's tile is stored by rows again: a thread's columns
// are now neighbours, and are read in pieces of 16 bytes; those of A are read four steps of k (float64: two)
// at a time, as before.
#include "dense/product.cuh"

constexpr int BM = DASP_BM, BN = DASP_BN, BK = DASP_BK, TM = DASP_TM, TN = DASP_TN;
constexpr int WIDTH = 16 / sizeof(Real);
constexpr int THREADS = BM * BN / (TM * TN);
constexpr int STEP_A = THREADS / BK; // rows of a tile that the block brings at a time
constexpr int WIDE_B = THREADS < BN ? THREADS : BN, STEP_B = THREADS / WIDE_B;
static_assert(THREADS % BK == 0 && BM % STEP_A == 0 && BN % WIDE_B == 0 && THREADS % WIDE_B == 0 && BK % STEP_B == 0,
              "every thread brings the same number of elements");

extern "C" __global__ void __launch_bounds__(THREADS, DASP_MIN_BLOCKS)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    __shared__ __align__(16) Real tile_a[BM][BK];
    __shared__ __align__(16) Real tile_b[BK][BN];
    const Corner corner(n, BM, BN);
    const int down = threadIdx.x / (BN / TN) * TM; // of this thread's results, in the tile
    const int across = threadIdx.x % (BN / TN) * TN;
    const int row_a = threadIdx.x / BK, p_a = threadIdx.x % BK; // of this thread's first element
    const int p_b = threadIdx.x / WIDE_B, column_b = threadIdx.x % WIDE_B;
    a += (corner.row + row_a) * lda + p_a;
    b += p_b * ldb + corner.column + column_b;
    const int rows = m - corner.row - row_a; // as long as the row is below, it exists
    const int columns = n - corner.column - column_b;
    Real sum[TM][TN] = {};
    for (int start = 0; start < k; start += BK) {
#pragma unroll
        for (int i = 0; i < BM; i += STEP_A)
            tile_a[row_a + i][p_a] = i < rows && start < k - p_a ? a[i * lda] : Real(0);
#pragma unroll
        for (int p = 0; p < BK; p += STEP_B)
#pragma unroll
            for (int j = 0; j < BN; j += WIDE_B)
                tile_b[p_b + p][column_b + j] = start + p < k - p_b && j < columns ? b[p * ldb + j] : Real(0);
        a += BK;
        b += BK * ldb;
        __syncthreads();
#pragma unroll(2 * WIDTH) // two pieces of a row: more of them would not fit the registers
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
