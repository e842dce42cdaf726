// Rung 13. Double buffering: the next tiles are loaded while the present ones are multiplied.
//
// Launch: as rung 12 (product.cuh has the arrays and the numbering; warp_tile.cuh the lanes).
// Memory: as many accesses as before, but the arithmetic hides their latency: global pieces wait in registers
// and are stored in the second pair of shared tiles after the product, so one barrier per step is enough.
#include "dense/warp_tile.cuh"

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
