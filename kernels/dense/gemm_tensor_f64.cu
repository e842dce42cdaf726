// Rung 16, float64. Tensor cores: m8n8k4 (DASP_MMA_K = 0), or m16n8k4, k8, k16 (sm_90).
//
// Launch: 32 threads for each DASP_WM x DASP_WN of the block's DASP_BM x DASP_BN results, blocks in groups
// (GroupedCorner), dynamic shared memory for DASP_STAGES tiles of each operand; `parts` blocks in y share k as in
// rung 15.
// Memory: as rung 14 in global and half of it in shared memory, since a fragment's element serves 8 or 16 results;
// one instruction does the work of 256 to 2,048 multiply-adds. The next fragments, those of the next tile
// too, are read before the present ones are multiplied, so that the tensor cores do not wait for shared
// memory. Strides of 4 (mod 16) doubles keep the eight-byte reads of a fragment, 4 along k and 4 along m or n
// in each half of a warp, in different banks.
#define DASP_REAL double
#include "dense/async_tiles.cuh"
#include "dense/gemm.cuh"
#include "mma.cuh"

constexpr int BM = DASP_BM, BN = DASP_BN, BK = DASP_BK, WM = DASP_WM, WN = DASP_WN, STAGES = DASP_STAGES;
constexpr int MMA_M = DASP_MMA_K ? 16 : 8, MMA_K = DASP_MMA_K ? DASP_MMA_K : 4;
constexpr int THREADS = BM / WM * (BN / WN) * 32;
constexpr int PAD = 4;
constexpr int STEPS = BK / MMA_K; // fragments of a tile
static_assert(BM % 16 == 0 && BN % 16 == 0 && BK % 16 == 0, "strides are 4 modulo 16");
static_assert(STEPS % 2 == 0, "the first fragments of a tile are always in parts[0]");
static_assert(WM % MMA_M == 0 && WN % 8 == 0, "a warp tile is made of whole instructions");

using TileA = TensorTile<double, BM, BK, PAD, DASP_ALONG_A, THREADS, DASP_ALIGNED>;
using TileB = TensorTile<double, BN, BK, PAD, DASP_ALONG_B, THREADS, DASP_ALIGNED>;

// C += A B, float64, A 16 x K (row), B K x 8 (column), C 16 x 8; K = 4, 8 or 16, sm_90 (PTX ISA, "Matrix Fragments for
// mma.m16n8k*"). Lane l: g = l/4, t = l%4.
// Register v holds A[g + 8 (v%2)][t + 4 (v/2)], B[t + 4v][g], C[g + 8 (v/2)][2t + v%2].
template <int K> __device__ __forceinline__ void mma_m16n8(double (&c)[4], const double (&a)[K / 2], const double (&b)[K / 4])
{
    static_assert(K == 4 || K == 8 || K == 16, "the shapes that the PTX ISA has");
#ifdef DASP_SIMT
    const int g = simt::lane() / 4, t = simt::lane() % 4;
    for (int step = 0; step < K / 4; ++step) {
        double low[32], high[32], right[32];
        simt::gather_lanes(a[2 * step], low);
        simt::gather_lanes(a[2 * step + 1], high);
        simt::gather_lanes(b[step], right);
        for (int v = 0; v < 4; ++v)
            for (int p = 0; p < 4; ++p)
                c[v] = fma((v < 2 ? low : high)[4 * g + p], right[4 * (2 * t + v % 2) + p], c[v]);
    }
#else
    if constexpr (K == 4)
        asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                     : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                     : "d"(a[0]), "d"(a[1]), "d"(b[0]));
    else if constexpr (K == 8)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                     : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, "
                     "{%12,%13,%14,%15}, {%0,%1,%2,%3};"
                     : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                     : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]),
                       "d"(b[1]), "d"(b[2]), "d"(b[3]));
#endif
}

struct Fragments {
    double a[WM / MMA_M][MMA_M / 8 * MMA_K / 4], b[WN / 8][MMA_K / 4];
    __device__ __forceinline__ void load(const double* tile_a, const double* tile_b, int row, int column, int p)
    {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < WM / MMA_M; ++i)
#pragma unroll
            for (int v = 0; v < MMA_M / 8 * MMA_K / 4; ++v)
                a[i][v] = tile_a[TileA::at(row + i * MMA_M + g + 8 * (v % (MMA_M / 8)), p + t + 4 * (v / (MMA_M / 8)))];
#pragma unroll
        for (int j = 0; j < WN / 8; ++j)
#pragma unroll
            for (int v = 0; v < MMA_K / 4; ++v)
                b[j][v] = tile_b[TileB::at(column + j * 8 + g, p + t + 4 * v)];
    }
};

// The instruction that fits the fragments.
__device__ __forceinline__ void multiply(double (&c)[2], const double (&a)[1], const double (&b)[1])
{
    mma_m8n8k4(c, a[0], b[0]);
}
template <int A, int B>
__device__ __forceinline__ void multiply(double (&c)[4], const double (&a)[A], const double (&b)[B])
{
    mma_m16n8<2 * A>(c, a, b);
}

struct Sums {
    double sum[WM / MMA_M][WN / 8][MMA_M / 4] = {};
    __device__ __forceinline__ void add(const Fragments& part)
    {
#pragma unroll
        for (int i = 0; i < WM / MMA_M; ++i)
#pragma unroll
            for (int j = 0; j < WN / 8; ++j)
                multiply(sum[i][j], part.a[i], part.b[j]);
    }
    __device__ __forceinline__ void store(int m, int n, int row, int column, double alpha, double beta, const double* c,
                                          long long ldc, double* d, long long ldd) const
    {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < WM / MMA_M; ++i)
#pragma unroll
            for (int j = 0; j < WN / 8; ++j)
#pragma unroll
                for (int half = 0; half < MMA_M / 8; ++half) {
                    const int y = row + i * MMA_M + 8 * half + g, x = column + j * 8 + 2 * t;
                    Piece piece;
                    piece.element[0] = sum[i][j][2 * half];
                    piece.element[1] = sum[i][j][2 * half + 1];
                    update_piece(piece, alpha, beta, c + y * ldc + x, d + y * ldd + x, y < m ? n - x : 0);
                }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_gemm(int m, int n, int k, double alpha, const double* a, long long lda, const double* b, long long ldb,
          double beta, const double* c, long long ldc, double* d, long long ldd, int depth, double* sums_of_parts)
{
    extern __shared__ __align__(16) double shared[];
    double* tiles_a = shared;
    double* tiles_b = shared + STAGES * TileA::ELEMENTS;
    const GroupedCorner<BM, BN, DASP_GROUP> corner(m, n);
    const int begin = blockIdx.y * depth, end = min(k, begin + depth);
    TileA from_a(a, lda, corner.row, m, begin);
    TileB from_b(b, ldb, corner.column, n, begin);
    AsyncCopies copies;
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        from_a.load(copies, tiles_a + stage * TileA::ELEMENTS, begin + stage * BK, end);
        from_b.load(copies, tiles_b + stage * TileB::ELEMENTS, begin + stage * BK, end);
        copies.commit();
    }
    copies.wait<STAGES - 2>();
    __syncthreads();
    const int warp = threadIdx.x / 32;
    const int row = warp / (BN / WN) * WM, column = warp % (BN / WN) * WN;
    Sums sums;
    Fragments parts[2];
    parts[0].load(tiles_a, tiles_b, row, column, 0);
    int reading = 0, filling = STAGES - 1;
    for (int start = begin; start < end; start += BK) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const double* tile_a = tiles_a + reading * TileA::ELEMENTS;
            const double* tile_b = tiles_b + reading * TileB::ELEMENTS;
            if (step + 1 < STEPS) {
                parts[(step + 1) % 2].load(tile_a, tile_b, row, column, (step + 1) * MMA_K);
            } else {
                copies.wait<STAGES - 2>();
                __syncthreads(); // the next tile has arrived, and nobody reads this one any more
                reading = reading + 1 == STAGES ? 0 : reading + 1;
                parts[0].load(tiles_a + reading * TileA::ELEMENTS, tiles_b + reading * TileB::ELEMENTS, row, column, 0);
            }
            if (step == 0) {
                from_a.load(copies, tiles_a + filling * TileA::ELEMENTS, start + (STAGES - 1) * BK, end);
                from_b.load(copies, tiles_b + filling * TileB::ELEMENTS, start + (STAGES - 1) * BK, end);
                copies.commit();
                filling = filling + 1 == STAGES ? 0 : filling + 1;
            }
            sums.add(parts[step % 2]);
        }
    }
    if (gridDim.y > 1) {
        alpha = 1;
        beta = 0;
        ldd = ceil_div(n, WIDTH) * WIDTH; // rows of sums start at 16 bytes
        d = sums_of_parts + blockIdx.y * (m * ldd);
    }
    sums.store(m, n, corner.row + row, corner.column + column, alpha, beta, c, ldc, d, ldd);
}
