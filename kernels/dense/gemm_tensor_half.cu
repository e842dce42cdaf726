// Rung 17, float16 and bfloat16 (DASP_BFLOAT16). Tensor cores with float32 sums: mma.m16n8k16 fed by ldmatrix.
//
// Launch: 32 threads for each DASP_WM x DASP_WN of the block's DASP_BM x DASP_BN results, blocks in groups
// (tensor_tiles.cuh), SHARED_ELEMENTS halves of dynamic shared memory.
// Memory: as rung 16 at a quarter of the bytes; one ldmatrix fetches what sixteen two-byte loads would. Rows are padded by
// 16 bytes, so the eight rows of a square start in different banks. Results are rounded once, after the update.
#include "mma_tiles.cuh"
#include "tensor_tiles.cuh"

#ifndef DASP_ALIGNED
#define DASP_ALIGNED 0
#endif

constexpr int BM = DASP_BM, BN = DASP_BN, BK = DASP_BK, WM = DASP_WM, WN = DASP_WN, STAGES = DASP_STAGES;
constexpr int THREADS = BM / WM * (BN / WN) * 32;
static_assert(WM % 16 == 0 && WN % 16 == 0 && BK % 16 == 0, "fragments are loaded 16 x 16 at a time");

using TileA = TensorTile<Half, BM, BK, 8, DASP_ALONG_A, THREADS, DASP_ALIGNED>;
using TileB = TensorTile<Half, BN, BK, 8, DASP_ALONG_B, THREADS, DASP_ALIGNED>;

// The 16 x 16 fragment of A at (row, p): squares (0, 0), (8, 0), (0, 8), (8, 8) of (row, k).
__device__ __forceinline__ void load_a(unsigned (&a)[4], const Half* tile, int row, int p)
{
    const int square = threadIdx.x % 32 / 8, line = threadIdx.x % 8;
    const int down = row + square % 2 * 8, deep = p + square / 2 * 8;
    load_squares<!DASP_ALONG_A>(a, tile + (DASP_ALONG_A ? TileA::at(down + line, deep) : TileA::at(down, deep + line)));
}

// Two 16 x 8 fragments of B at (p, column): squares (0, 0), (8, 0), (0, 8), (8, 8) of (k, column).
__device__ __forceinline__ void load_b(unsigned (&b)[2][2], const Half* tile, int column, int p)
{
    const int square = threadIdx.x % 32 / 8, line = threadIdx.x % 8;
    const int across = column + square / 2 * 8, deep = p + square % 2 * 8;
    unsigned both[4];
    load_squares<!DASP_ALONG_B>(both,
                                tile + (DASP_ALONG_B ? TileB::at(across + line, deep) : TileB::at(across, deep + line)));
    b[0][0] = both[0];
    b[0][1] = both[1];
    b[1][0] = both[2];
    b[1][1] = both[3];
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_gemm(int m, int n, int k, float alpha, const Half* a, long long lda, const Half* b, long long ldb, float beta,
          const Half* c, long long ldc, Half* d, long long ldd)
{
    extern __shared__ __align__(16) Half shared[];
    Half* tiles_a = shared;
    Half* tiles_b = shared + STAGES * TileA::ELEMENTS;
    const TensorCorner<BM, BN, DASP_GROUP> corner(m, n);
    const TileA from_a(a, lda, corner.row, m);
    const TileB from_b(b, ldb, corner.column, n);
    AsyncCopies copies;
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        from_a.load(copies, tiles_a + stage * TileA::ELEMENTS, stage * BK, k);
        from_b.load(copies, tiles_b + stage * TileB::ELEMENTS, stage * BK, k);
        copies.commit();
    }
    const int warp = threadIdx.x / 32;
    const int row = warp / (BN / WN) * WM, column = warp % (BN / WN) * WN;
    float sum[WM / 16][WN / 8][4] = {};
    int reading = 0, filling = STAGES - 1;
    for (int start = 0; start < k; start += BK) {
        copies.wait<STAGES - 2>();
        __syncthreads(); // the tile has arrived, and nobody reads the one that is filled next
        from_a.load(copies, tiles_a + filling * TileA::ELEMENTS, start + (STAGES - 1) * BK, k);
        from_b.load(copies, tiles_b + filling * TileB::ELEMENTS, start + (STAGES - 1) * BK, k);
        copies.commit();
#pragma unroll
        for (int p = 0; p < BK; p += 16) {
            unsigned part_a[WM / 16][4], part_b[WN / 16][2][2];
#pragma unroll
            for (int i = 0; i < WM / 16; ++i)
                load_a(part_a[i], tiles_a + reading * TileA::ELEMENTS, row + i * 16, p);
#pragma unroll
            for (int j = 0; j < WN / 16; ++j)
                load_b(part_b[j], tiles_b + reading * TileB::ELEMENTS, column + j * 16, p);
#pragma unroll
            for (int i = 0; i < WM / 16; ++i)
#pragma unroll
                for (int j = 0; j < WN / 8; ++j)
                    mma_m16n8k16(sum[i][j], part_a[i], part_b[j / 2][j % 2]);
        }
        reading = reading + 1 == STAGES ? 0 : reading + 1;
        filling = filling + 1 == STAGES ? 0 : filling + 1;
    }
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < WM / 16; ++i)
#pragma unroll
        for (int j = 0; j < WN / 8; ++j)
#pragma unroll
            for (int v = 0; v < 4; ++v) {
                const int y = corner.row + row + i * 16 + g + 8 * (v / 2), x = corner.column + column + j * 8 + 2 * t + v % 2;
                if (y >= m || x >= n)
                    continue;
                const float old = beta == 0.0f ? 0.0f : beta * to_float(c[y * ldc + x]);
                d[y * ldd + x] = to_half(alpha * sum[i][j][v] + old);
            }
}
