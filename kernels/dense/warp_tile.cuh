// One warp's share of a block: DASP_WM x DASP_WN results, each lane DASP_TM x DASP_TN of them.
//
// The lanes form LM rows and LN columns. A lane's results are squares of WIDTH x WIDTH (16 bytes wide), LM * WIDTH rows
// and LN * WIDTH columns apart, so that neighbouring lanes read neighbouring pieces, without bank conflicts.
// Lanes are numbered row by row, or with DASP_Z_ORDER as product.cuh says. Tiles of A and B are stored by
// rows of k.
#pragma once
#include "dense/vectors.cuh"

#ifndef DASP_Z_ORDER
#define DASP_Z_ORDER 0
#endif

constexpr int BM = DASP_BM, BN = DASP_BN, BK = DASP_BK;
constexpr int WM = DASP_WM, WN = DASP_WN, TM = DASP_TM, TN = DASP_TN;
constexpr int LM = WM / TM, LN = WN / TN;
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
    return threadIdx.x / 32 / WARPS_ACROSS * WM + (DASP_Z_ORDER ? LanePlace<LM, LN>::row(lane) : lane / LN) * WIDTH;
}
__device__ __forceinline__ int lane_column()
{
    const int lane = threadIdx.x % 32;
    return threadIdx.x / 32 % WARPS_ACROSS * WN + (DASP_Z_ORDER ? LanePlace<LM, LN>::column(lane) : lane % LN) * WIDTH;
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
