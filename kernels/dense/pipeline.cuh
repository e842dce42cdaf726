// The multi-stage pipeline of the last float32 rungs: tiles arrive by asynchronous copies, DASP_STAGES of them in turn.
//
// A tile of A is stored as [BK][BM + WIDTH], one of B as [BK][BN + WIDTH], whatever the operand's memory order:
// DASP_ALONG_A (DASP_ALONG_B) says that neighbours along k are neighbours in memory. Such an operand is
// transposed on its way, one element per copy; a warp takes 8 elements of k in 4 rows, so that it reads whole
// sectors of global memory, and has no bank conflicts. The other order is copied 16 bytes at a time.
//
// With tiles always there in time, lanes in Z order (product.cuh) save reads of shared memory.
#pragma once
#define DASP_Z_ORDER 1
#include "dense/async_copy.cuh"
#include "dense/warp_tile.cuh"

constexpr int STAGES = DASP_STAGES;
constexpr int TILE_A = BK * STRIDE_A, TILE_B = BK * STRIDE_B; // elements
constexpr int SHARED_ELEMENTS = STAGES * (TILE_A + TILE_B);
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

// The corner of a block. Blocks are numbered in groups of DASP_GROUP rows of blocks, column by column: those
// that run together share more of A and B in the second-level cache.
struct GroupedCorner {
    int row, column;
    __device__ GroupedCorner(int m, int n)
    {
        const int down = ceil_div(m, BM), across = ceil_div(n, BN);
        const int group = int(blockIdx.x) / (DASP_GROUP * across), inside = int(blockIdx.x) % (DASP_GROUP * across);
        const int height = min(down - group * DASP_GROUP, DASP_GROUP);
        row = (group * DASP_GROUP + inside % height) * BM;
        column = inside / height * BN;
    }
};
