// Rungs 6 and 7. As rung 5, but a thread has a column of DASP_TM results (4, then 8).
//
// Launch: DASP_BM * DASP_BN / DASP_TM threads, one block per DASP_BM x DASP_BN results (product.cuh has the arrays
// and the numbering). A warp has 4 DASP_TM x 8 results; those of a thread are 4 rows apart, so that the
// lanes' rows of A's tile stay neighbours.
// Memory: an element of B in a register serves DASP_TM results: per result k (1 + 1/DASP_TM) elements of
// shared memory in pieces of 16 bytes, and k (1/DASP_BN + 1/DASP_BM) global loads. Registers are limited so
// that DASP_MIN_BLOCKS blocks fit a multiprocessor: while some wait for their tiles, others multiply.
#include "dense/product.cuh"

constexpr int BM = DASP_BM, BN = DASP_BN, BK = DASP_BK, TM = DASP_TM;
constexpr int THREADS = BM * BN / TM;
constexpr int WIDTH = 16 / sizeof(Real), PAD = WIDTH;
constexpr int STEP_A = THREADS / BK, STEP_B = THREADS / BN; // rows of a tile that the block brings at a time
static_assert(THREADS % BK == 0 && THREADS % (4 * BN) == 0 && BK % STEP_B == 0, "the block brings whole rows");

extern "C" __global__ void __launch_bounds__(THREADS, DASP_MIN_BLOCKS)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    __shared__ __align__(16) Real tile_a[BM][BK + PAD];
    __shared__ __align__(16) Real tile_b[BN][BK + PAD];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Corner corner(n, BM, BN);
    const int down = warp / (BN / 8) * 4 * TM + LanePlace<4, 8>::row(lane); // of this thread's results, in the tile
    const int across = warp % (BN / 8) * 8 + LanePlace<4, 8>::column(lane);
    const int row_a = threadIdx.x / BK, p_a = threadIdx.x % BK; // of this thread's first element
    const int p_b = warp / (BN / 8) * 4 + lane / 8, column_b = warp % (BN / 8) * 8 + lane % 8;
    a += (corner.row + row_a) * lda + p_a;
    b += p_b * ldb + corner.column + column_b;
    const int rows = m - corner.row - row_a; // as long as the row is below, it exists
    const bool inside = corner.column + column_b < n;
    Real sum[TM] = {};
    for (int start = 0; start < k; start += BK) {
#pragma unroll
        for (int i = 0; i < BM; i += STEP_A)
            if (BM % STEP_A == 0 || row_a + i < BM)
                tile_a[row_a + i][p_a] = i < rows && start + p_a < k ? a[i * lda] : Real(0);
#pragma unroll
        for (int p = 0; p < BK; p += STEP_B)
            tile_b[column_b][p_b + p] = inside && start + p_b + p < k ? b[p * ldb] : Real(0);
        a += BK;
        b += BK * ldb;
        __syncthreads();
#pragma unroll(2 * WIDTH) // two pieces of a row: more of them would not fit the registers
        for (int p = 0; p < BK; ++p) {
            const Real element = tile_b[across][p];
#pragma unroll
            for (int i = 0; i < TM; ++i)
                sum[i] += tile_a[down + 4 * i][p] * element;
        }
        __syncthreads();
    }
    const int column = corner.column + across;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int row = corner.row + down + 4 * i;
        if (row < m && column < n)
            d[row * ldd + column] = updated(sum[i], alpha, beta, c + row * ldc + column);
    }
}
