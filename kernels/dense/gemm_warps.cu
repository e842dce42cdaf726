// Rungs 12 to 15. A warp's results form a rectangle of their own inside the block's.
//
// Launch: 32 threads for each DASP_WM x DASP_WN of the block's DASP_BM x DASP_BN results, one block each. A lane has
// DASP_TM x DASP_TN results; a tile of A or B has DASP_BK steps of k and is stored by rows of k. gemm.cuh has the
// arrays, the numbering of blocks and DASP_RUNG.
//
// The lanes form LM rows and LN columns. A lane's results are squares of WIDTH x WIDTH (16 bytes wide), LM * WIDTH rows
// and LN * WIDTH columns apart, so that neighbouring lanes read neighbouring pieces, without bank conflicts. Lanes are
// numbered row by row; in rungs 14 and 15, whose tiles are always there in time, in Z order (gemm.cuh), which saves
// reads of shared memory.
#include "dense/async_tiles.cuh"
#include "dense/gemm.cuh"

constexpr int BM = DASP_BM, BN = DASP_BN, BK = DASP_BK;
constexpr int WM = DASP_WM, WN = DASP_WN, TM = DASP_TM, TN = DASP_TN;
constexpr int LM = WM / TM, LN = WN / TN;
constexpr bool Z_ORDER = DASP_RUNG >= 14;
constexpr int WARPS_ACROSS = BN / WN;
constexpr int THREADS = BM / WM * WARPS_ACROSS * 32;
constexpr int STRIDE_A = BM + WIDTH; // elements from row to row of a tile; the pad avoids bank conflicts
constexpr int STRIDE_B = BN + WIDTH;
static_assert(BM % WM == 0 && BN % WN == 0, "a block is made of whole warp tiles");
static_assert(TM % WIDTH == 0 && TN % WIDTH == 0, "a lane's results are made of 16-byte pieces");

// The row, and the column, of this lane's first result in the block's tile.
__device__ __forceinline__ int lane_row()
{
    const int lane = threadIdx.x % 32;
    return threadIdx.x / 32 / WARPS_ACROSS * WM + (Z_ORDER ? LanePlace<LM, LN>::row(lane) : lane / LN) * WIDTH;
}
__device__ __forceinline__ int lane_column()
{
    const int lane = threadIdx.x % 32;
    return threadIdx.x / 32 % WARPS_ACROSS * WN + (Z_ORDER ? LanePlace<LM, LN>::column(lane) : lane % LN) * WIDTH;
}

// The elements of one row of k that a lane multiplies.
struct Parts {
    Piece a[TM / WIDTH], b[TN / WIDTH];
    __device__ __forceinline__ void load(const Real* row_a, const Real* row_b)
    {
#pragma unroll
        for (int i = 0; i < TM / WIDTH; ++i)
            a[i] = read_piece(row_a + i * LM * WIDTH);
#pragma unroll
        for (int j = 0; j < TN / WIDTH; ++j)
            b[j] = read_piece(row_b + j * LN * WIDTH);
    }
};

struct Sums {
    Real sum[TM][TN] = {};
    __device__ __forceinline__ void add(const Parts& parts)
    {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j)
                sum[i][j] += parts.a[i / WIDTH].element[i % WIDTH] * parts.b[j / WIDTH].element[j % WIDTH];
    }
    // Updates D from this lane's first result at (row, column) on.
    __device__ __forceinline__ void store(int m, int n, int row, int column, Real alpha, Real beta, const Real* c,
                                          long long ldc, Real* d, long long ldd) const
    {
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const int y = row + i / WIDTH * LM * WIDTH + i % WIDTH;
#pragma unroll
            for (int j = 0; j < TN; j += WIDTH) {
                const int x = column + j * LN;
                Piece piece;
#pragma unroll
                for (int v = 0; v < WIDTH; ++v)
                    piece.element[v] = sum[i][j + v];
                update_piece(piece, alpha, beta, c + y * ldc + x, d + y * ldd + x, y < m ? n - x : 0);
            }
        }
    }
};

#if DASP_RUNG == 12

// Rung 12. Warp tiles.
//
// Memory: a warp reads DASP_WM + DASP_WN elements per row of k, and no parts of other rows and columns, and
// its lanes' 16-byte reads have no bank conflicts.
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

#elif DASP_RUNG == 13

// Rung 13. Double buffering: the next tiles are loaded while the present ones are multiplied.
//
// Memory: as many accesses as before, but the arithmetic hides their latency: global pieces wait in registers
// and are stored in the second pair of shared tiles after the product, so one barrier per step is enough.
constexpr int PIECES_A = ceil_div(BM * BK, THREADS * WIDTH);
constexpr int PIECES_B = ceil_div(BK * BN, THREADS * WIDTH);

// This thread's pieces of the next pair of tiles.
struct Travelling {
    Piece a[PIECES_A], b[PIECES_B];
    __device__ __forceinline__ void load(int m, int n, int k, Corner corner, int start, const Real* from_a,
                                         long long lda, const Real* from_b, long long ldb)
    {
#pragma unroll
        for (int v = 0; v < PIECES_A; ++v) {
            const int i = (v * THREADS + threadIdx.x) * WIDTH;
            const int row = corner.row + i / BK, p = start + i % BK;
            a[v] = read_piece(from_a + row * lda + p, row < m && i < BM * BK ? k - p : 0);
        }
#pragma unroll
        for (int v = 0; v < PIECES_B; ++v) {
            const int i = (v * THREADS + threadIdx.x) * WIDTH;
            const int p = start + i / BN, column = corner.column + i % BN;
            b[v] = read_piece(from_b + p * ldb + column, p < k && i < BK * BN ? n - column : 0);
        }
    }
    __device__ __forceinline__ void store(Real (&tile_a)[BK][STRIDE_A], Real (&tile_b)[BK][STRIDE_B]) const
    {
#pragma unroll
        for (int v = 0; v < PIECES_A; ++v) {
            const int i = (v * THREADS + threadIdx.x) * WIDTH;
            if (i < BM * BK)
#pragma unroll
                for (int j = 0; j < WIDTH; ++j)
                    tile_a[i % BK + j][i / BK] = a[v].element[j];
        }
#pragma unroll
        for (int v = 0; v < PIECES_B; ++v) {
            const int i = (v * THREADS + threadIdx.x) * WIDTH;
            if (i < BK * BN)
                *reinterpret_cast<Piece*>(&tile_b[i / BN][i % BN]) = b[v];
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    __shared__ __align__(16) Real tile_a[2][BK][STRIDE_A];
    __shared__ __align__(16) Real tile_b[2][BK][STRIDE_B];
    const Corner corner(n, BM, BN);
    Sums sums;
    Parts parts[2];
    Travelling next;
    next.load(m, n, k, corner, 0, a, lda, b, ldb);
    next.store(tile_a[0], tile_b[0]);
    __syncthreads();
    for (int start = 0, now = 0; start < k; start += BK, now ^= 1) {
        const bool more = start + BK < k;
        if (more)
            next.load(m, n, k, corner, start + BK, a, lda, b, ldb);
        parts[0].load(&tile_a[now][0][lane_row()], &tile_b[now][0][lane_column()]);
#pragma unroll
        for (int p = 0; p < BK; ++p) {
            if (p + 1 < BK)
                parts[(p + 1) % 2].load(&tile_a[now][p + 1][lane_row()], &tile_b[now][p + 1][lane_column()]);
            sums.add(parts[p % 2]);
        }
        if (more)
            next.store(tile_a[now ^ 1], tile_b[now ^ 1]);
        __syncthreads();
    }
    sums.store(m, n, corner.row + lane_row(), corner.column + lane_column(), alpha, beta, c, ldc, d, ldd);
}

#else

// The multi-stage pipeline of rungs 14 and 15: tiles arrive by asynchronous copies, DASP_STAGES of them in turn.
//
// A tile of A is stored as [BK][BM + WIDTH], one of B as [BK][BN + WIDTH], whatever the operand's memory order:
// DASP_ALONG_A (DASP_ALONG_B) says that neighbours along k are neighbours in memory. Such an operand is
// transposed on its way, one element per copy; a warp takes 8 elements of k in 4 rows, so that it reads whole
// sectors of global memory, and has no bank conflicts. The other order is copied 16 bytes at a time.

constexpr int STAGES = DASP_STAGES;
constexpr int TILE_A = BK * STRIDE_A, TILE_B = BK * STRIDE_B; // elements
static_assert(STAGES >= 2, "one stage is read while another is filled");

// This thread's share of one operand's tiles.
template <int OUTER, int STRIDE, bool ALONG> struct Loader {
    static constexpr int PIECES = OUTER / WIDTH;
    static constexpr int STEP = ALONG ? THREADS / 8 : THREADS / PIECES; // outer indices, or rows of k, per turn
    static_assert(ALONG ? THREADS % 8 == 0 && OUTER % STEP == 0 && BK % 8 == 0 : THREADS % PIECES == 0,
                  "every thread does the same number of copies");
    const Real* source; // of this thread's first copy, at k = 0
    long long ld;
    int left; // outer indices inside the matrix, from this thread's first
    int target;
    int p; // this thread's first k in a tile

    __device__ __forceinline__ Loader(const Real* matrix, long long ld, int first, int limit) : ld(ld)
    {
        const int outer = ALONG ? threadIdx.x / 8 : threadIdx.x % PIECES * WIDTH;
        p = ALONG ? threadIdx.x % 8 : threadIdx.x / PIECES;
        left = limit - first - outer;
        source = ALONG ? matrix + (first + outer) * ld + p : matrix + p * ld + first + outer;
        target = p * STRIDE + outer;
    }

    // Starts the copies of the tile whose first row is `start`; rows from `end` on are zeros.
    __device__ __forceinline__ void load(AsyncCopies& copies, Real* tile, int start, int end) const
    {
        if constexpr (ALONG)
            load_turned(copies, tile + target, start, end);
        else
            load_pieces(copies, tile + target, start, end);
    }

private:
    __device__ __forceinline__ void load_turned(AsyncCopies& copies, Real* to, int start, int end) const
    {
#pragma unroll
        for (int depth = 0; depth < BK; depth += 8) {
            const bool exists = start + depth + p < end;
#pragma unroll
            for (int outer = 0; outer < OUTER; outer += STEP)
                copies.copy<sizeof(Real)>(to + depth * STRIDE + outer, source + outer * ld + start + depth,
                                          exists && outer < left ? int(sizeof(Real)) : 0);
        }
    }

    __device__ __forceinline__ void load_pieces(AsyncCopies& copies, Real* to, int start, int end) const
    {
#pragma unroll
        for (int depth = 0; depth < BK; depth += STEP) {
            if (BK % STEP != 0 && p + depth >= BK)
                continue;
            const Real* from = source + (start + depth) * ld;
            const int inside = start + depth + p < end ? left : 0;
            if constexpr (DASP_ALIGNED) {
                copies.copy<16>(to + depth * STRIDE, from, inside > 0 ? 16 : 0);
            } else {
#pragma unroll
                for (int v = 0; v < WIDTH; ++v)
                    copies.copy<sizeof(Real)>(to + depth * STRIDE + v, from + v, v < inside ? int(sizeof(Real)) : 0);
            }
        }
    }
};
using LoaderA = Loader<BM, STRIDE_A, DASP_ALONG_A>;
using LoaderB = Loader<BN, STRIDE_B, DASP_ALONG_B>;

// Adds the products of the first `end` steps of k. One barrier per tile: a stage is refilled after the barrier that
// follows its last read. Parts of the next row are read while the present ones are multiplied.
__device__ __forceinline__ void add_products(Sums& sums, const LoaderA& a, const LoaderB& b, Real* shared, int end)
{
    Real* tiles_a = shared;
    Real* tiles_b = shared + STAGES * TILE_A;
    AsyncCopies copies;
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        a.load(copies, tiles_a + stage * TILE_A, stage * BK, end);
        b.load(copies, tiles_b + stage * TILE_B, stage * BK, end);
        copies.commit();
    }
    copies.wait<STAGES - 2>();
    __syncthreads();
    const int row = lane_row(), column = lane_column();
    Parts parts[2];
    parts[0].load(tiles_a + row, tiles_b + column);
    int reading = 0, filling = STAGES - 1;
    for (int start = 0; start < end; start += BK) {
        const Real* tile_a = tiles_a + reading * TILE_A + row;
        const Real* tile_b = tiles_b + reading * TILE_B + column;
        reading = reading + 1 == STAGES ? 0 : reading + 1;
#pragma unroll
        for (int p = 0; p < BK; ++p) {
            if (p + 1 < BK) {
                parts[(p + 1) % 2].load(tile_a + (p + 1) * STRIDE_A, tile_b + (p + 1) * STRIDE_B);
            } else {
                copies.wait<STAGES - 2>();
                __syncthreads();
                parts[0].load(tiles_a + reading * TILE_A + row, tiles_b + reading * TILE_B + column);
            }
            if (p == 0) {
                const int ahead = start + (STAGES - 1) * BK; // past the end, the tile is all zeros
                a.load(copies, tiles_a + filling * TILE_A, ahead, end);
                b.load(copies, tiles_b + filling * TILE_B, ahead, end);
                copies.commit();
                filling = filling + 1 == STAGES ? 0 : filling + 1;
            }
            sums.add(parts[p % 2]);
        }
    }
    static_assert(BK % 2 == 0, "the first parts of a tile are always in parts[0]");
}

#if DASP_RUNG == 14

// Rung 14. Asynchronous copies, several stages deep, and blocks in an order that suits the second-level cache.
//
// Launch: blocks in groups (GroupedCorner), with dynamic shared memory for DASP_STAGES tiles of each operand.
// Memory: global elements go straight to shared memory, without the registers and the stores of rung 13, and
// up to DASP_STAGES - 1 tiles ahead. Lanes in Z order save turns of shared memory. A and B may have either
// memory order.
extern "C" __global__ void __launch_bounds__(THREADS)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    extern __shared__ __align__(16) Real shared[];
    const GroupedCorner<BM, BN, DASP_GROUP> corner(m, n);
    Sums sums;
    add_products(sums, LoaderA(a, lda, corner.row, m), LoaderB(b, ldb, corner.column, n), shared, k);
    sums.store(m, n, corner.row + lane_row(), corner.column + lane_column(), alpha, beta, c, ldc, d, ldd);
}

#else

// Rung 15. Split-K: several blocks share the dot products of one tile of C, for products too small to fill the GPU.
//
// Launch: dasp_gemm as rung 14 with `parts` blocks in y, each summing `depth` steps of k (a multiple of DASP_BK) into
// sums[part][m][n], rows padded to 16 bytes; then gemm_reduce.cu adds them. With parts == 1 this kernel updates D itself.
// Memory: 2 parts + 1 more accesses per result, which stay in the second-level cache, for `parts` times as many
// blocks at work. Parts are added in their order, never by atomics, so equal inputs give equal bits.
extern "C" __global__ void __launch_bounds__(THREADS)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd, int depth, Real* sums_of_parts)
{
    extern __shared__ __align__(16) Real shared[];
    const GroupedCorner<BM, BN, DASP_GROUP> corner(m, n);
    const int begin = blockIdx.y * depth;
    a += DASP_ALONG_A ? begin : begin * lda;
    b += DASP_ALONG_B ? begin : begin * ldb;
    Sums sums;
    add_products(sums, LoaderA(a, lda, corner.row, m), LoaderB(b, ldb, corner.column, n), shared, min(k - begin, depth));
    if (gridDim.y > 1) {
        alpha = Real(1);
        beta = Real(0);
        ldd = ceil_div(n, WIDTH) * WIDTH; // rows of sums start at 16 bytes
        d = sums_of_parts + blockIdx.y * (m * ldd);
    }
    sums.store(m, n, corner.row + lane_row(), corner.column + lane_column(), alpha, beta, c, ldc, d, ldd);
}

#endif

#endif
