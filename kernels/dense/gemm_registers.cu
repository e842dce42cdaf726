// Rungs 6 to 11. A thread keeps several results in registers, so an element of shared memory serves several of them.
//
// Launch: THREADS threads, one block per DASP_BM x DASP_BN results. A thread has DASP_TM x DASP_TN of them; a tile of A
// or B has DASP_BK steps of k. gemm.cuh has the arrays, the numbering of blocks and DASP_RUNG.
#include "dense/gemm.cuh"

constexpr int BM = DASP_BM, BN = DASP_BN, BK = DASP_BK, TM = DASP_TM, TN = DASP_TN;
constexpr int THREADS = BM * BN / (TM * TN);

#if DASP_RUNG <= 7

// Rungs 6 and 7. As rung 5, but a thread has a column of DASP_TM results (4, then 8).
//
// A warp has 4 DASP_TM x 8 results; those of a thread are 4 rows apart, so that the lanes' rows of A's tile stay
// neighbours.
// Memory: an element of B in a register serves DASP_TM results: per result k (1 + 1/DASP_TM) elements of
// shared memory in pieces of 16 bytes, and k (1/DASP_BN + 1/DASP_BM) global loads. Registers are limited so
// that DASP_MIN_BLOCKS blocks fit a multiprocessor: while some wait for their tiles, others multiply.
constexpr int PAD = WIDTH;
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

#elif DASP_RUNG <= 9

// Rungs 8 and 9. A square of DASP_TM x DASP_TN results per thread (4 x 4, then 8 x 8).
//
// Neighbouring lanes stand side by side along n.
// Memory: DASP_TM + DASP_TN elements of shared memory serve DASP_TM * DASP_TN results: k (1/DASP_TM + 1/DASP_TN) per
// result, and k (1/DASP_BN + 1/DASP_BM) global loads. B's tile is stored by rows again: a thread's columns
// are now neighbours, and are read in pieces of 16 bytes; those of A are read four steps of k (float64: two)
// at a time, as before.
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

#else

// Rungs 10 and 11. 16-byte loads, with A transposed on its way into shared memory; then tuned tiles.
//
// DASP_TM, DASP_TN, DASP_BK are multiples of 16 bytes.
// Memory: as many bytes as before, in a quarter of the instructions (float64: half). A's tile is stored by columns of
// A, so that a thread's DASP_TM elements lie in a row and are read 16 bytes at a time too.
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

#endif
