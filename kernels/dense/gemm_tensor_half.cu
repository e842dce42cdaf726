// Rung 17, float16 and bfloat16 (DASP_BFLOAT16). Tensor cores with float32 sums: mma.m16n8k16 fed by ldmatrix.
//
// Launch: 32 threads for each DASP_WM x DASP_WN of the block's DASP_BM x DASP_BN results, blocks in groups
// (GroupedCorner), dynamic shared memory for DASP_STAGES tiles of each operand.
// Memory: as rung 16 at a quarter of the bytes; one ldmatrix fetches what sixteen two-byte loads would. Rows are padded by
// 16 bytes, so the eight rows of a square start in different banks. Fragments are read ahead as in rung 16. Results are
// rounded once, after the update.
#include "dense/async_tiles.cuh"
#include "dense/gemm.cuh"
#include "half.cuh"

constexpr int BM = DASP_BM, BN = DASP_BN, BK = DASP_BK, WM = DASP_WM, WN = DASP_WN, STAGES = DASP_STAGES;
constexpr int THREADS = BM / WM * (BN / WN) * 32;
constexpr int STEPS = BK / 16; // fragments of a tile
static_assert(STEPS % 2 == 0, "the first fragments of a tile are always in parts[0]");
static_assert(WM % 16 == 0 && WN % 16 == 0 && BK % 16 == 0, "fragments are loaded 16 x 16 at a time");

using TileA = TensorTile<Half, BM, BK, 8, DASP_ALONG_A, THREADS, DASP_ALIGNED>;
using TileB = TensorTile<Half, BN, BK, 8, DASP_ALONG_B, THREADS, DASP_ALIGNED>;

// Conversions of the type that DASP_BFLOAT16 chooses.
__device__ __forceinline__ float to_float(Half bits)
{
    return DASP_BFLOAT16 ? bfloat16_to_float(bits) : float16_to_float(bits);
}

__device__ __forceinline__ Half to_half(float value)
{
    return DASP_BFLOAT16 ? float_to_bfloat16(value) : float_to_float16(value);
}

// C += A B, A 16 x 16 (row) and B 16 x 8 (column) of float16 or bfloat16, C 16 x 8 of float32; sm_80 (PTX ISA,
// "Matrix Fragments for mma.m16n8k16"). Lane l: g = l/4, t = l%4.
// Half h of register v holds A[g + 8 (v%2)][2t + h + 8 (v/2)] and B[2t + h + 8v][g]; C[g + 8 (v/2)][2t + v%2].
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
#ifdef DASP_SIMT
    unsigned as[32][4], bs[32][2];
    simt::gather_lanes(a, as);
    simt::gather_lanes(b, bs);
    const int g = simt::lane() / 4, t = simt::lane() % 4;
    for (int v = 0; v < 4; ++v)
        for (int k = 0; k < 16; ++k) {
            const unsigned left = as[4 * g + k % 8 / 2][v / 2 + 2 * (k / 8)] >> 16 * (k % 2);
            const unsigned right = bs[4 * (2 * t + v % 2) + k % 8 / 2][k / 8] >> 16 * (k % 2);
            c[v] += to_float(Half(left)) * to_float(Half(right));
        }
#else
    if (DASP_BFLOAT16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// Reads four 8 x 8 squares of halves from shared memory: lane l gives the address of row l%8 of square l/8 (16 bytes,
// 16-byte aligned). Half h of register v holds square v's [g][2t + h], or [2t + h][g] if TURNED.
template <bool TURNED> __device__ __forceinline__ void load_squares(unsigned (&squares)[4], const Half* row)
{
#ifdef DASP_SIMT
    const Half* rows[32];
    simt::gather_lanes(row, rows);
    const int g = simt::lane() / 4, t = simt::lane() % 4;
    for (int v = 0; v < 4; ++v) {
        const Half low = TURNED ? rows[8 * v + 2 * t][g] : rows[8 * v + g][2 * t];
        const Half high = TURNED ? rows[8 * v + 2 * t + 1][g] : rows[8 * v + g][2 * t + 1];
        squares[v] = unsigned(high) << 16 | low;
    }
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(squares[0]), "=r"(squares[1]), "=r"(squares[2]), "=r"(squares[3])
                     : "r"(address)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(squares[0]), "=r"(squares[1]), "=r"(squares[2]), "=r"(squares[3])
                     : "r"(address)
                     : "memory");
#endif
}

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

// The fragments of a warp for 16 steps of k.
struct Fragments {
    unsigned a[WM / 16][4], b[WN / 16][2][2];
    __device__ __forceinline__ void load(const Half* tile_a, const Half* tile_b, int row, int column, int p)
    {
#pragma unroll
        for (int i = 0; i < WM / 16; ++i)
            load_a(a[i], tile_a, row + i * 16, p);
#pragma unroll
        for (int j = 0; j < WN / 16; ++j)
            load_b(b[j], tile_b, column + j * 16, p);
    }
};

// Updates the first `inside` (any number) of two neighbours in D, at once if DASP_ALIGNED.
__device__ __forceinline__ void store_pair(const float* sums, float alpha, float beta, const Half* c, Half* d, int inside)
{
    Half rounded[2];
#pragma unroll
    for (int v = 0; v < 2; ++v) {
        const float old = beta == 0.0f || v >= inside ? 0.0f : beta * to_float(c[v]);
        rounded[v] = to_half(alpha * sums[v] + old);
    }
    if (DASP_ALIGNED && inside >= 2) {
        *reinterpret_cast<unsigned*>(d) = unsigned(rounded[1]) << 16 | rounded[0];
        return;
    }
#pragma unroll
    for (int v = 0; v < 2; ++v)
        if (v < inside)
            d[v] = rounded[v];
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_gemm(int m, int n, int k, float alpha, const Half* a, long long lda, const Half* b, long long ldb, float beta,
          const Half* c, long long ldc, Half* d, long long ldd)
{
    extern __shared__ __align__(16) Half shared[];
    Half* tiles_a = shared;
    Half* tiles_b = shared + STAGES * TileA::ELEMENTS;
    const GroupedCorner<BM, BN, DASP_GROUP> corner(m, n);
    TileA from_a(a, lda, corner.row, m, 0);
    TileB from_b(b, ldb, corner.column, n, 0);
    AsyncCopies copies;
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        from_a.load(copies, tiles_a + stage * TileA::ELEMENTS, stage * BK, k);
        from_b.load(copies, tiles_b + stage * TileB::ELEMENTS, stage * BK, k);
        copies.commit();
    }
    copies.wait<STAGES - 2>();
    __syncthreads();
    const int warp = threadIdx.x / 32;
    const int row = warp / (BN / WN) * WM, column = warp % (BN / WN) * WN;
    float sum[WM / 16][WN / 8][4] = {};
    Fragments parts[2];
    parts[0].load(tiles_a, tiles_b, row, column, 0);
    int reading = 0, filling = STAGES - 1;
    for (int start = 0; start < k; start += BK) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (step + 1 < STEPS) {
                parts[(step + 1) % 2].load(tiles_a + reading * TileA::ELEMENTS, tiles_b + reading * TileB::ELEMENTS, row,
                                           column, (step + 1) * 16);
            } else {
                copies.wait<STAGES - 2>();
                __syncthreads(); // the next tile has arrived, and nobody reads this one any more
                reading = reading + 1 == STAGES ? 0 : reading + 1;
                parts[0].load(tiles_a + reading * TileA::ELEMENTS, tiles_b + reading * TileB::ELEMENTS, row, column, 0);
            }
            if (step == 0) {
                from_a.load(copies, tiles_a + filling * TileA::ELEMENTS, start + (STAGES - 1) * BK, k);
                from_b.load(copies, tiles_b + filling * TileB::ELEMENTS, start + (STAGES - 1) * BK, k);
                copies.commit();
                filling = filling + 1 == STAGES ? 0 : filling + 1;
            }
#pragma unroll
            for (int i = 0; i < WM / 16; ++i)
#pragma unroll
                for (int j = 0; j < WN / 8; ++j)
                    mma_m16n8k16(sum[i][j], parts[step % 2].a[i], parts[step % 2].b[j / 2][j % 2]);
        }
    }
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < WM / 16; ++i)
#pragma unroll
        for (int j = 0; j < WN / 8; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int y = corner.row + row + i * 16 + g + 8 * half, x = corner.column + column + j * 8 + 2 * t;
                if (y < m)
                    store_pair(sum[i][j] + 2 * half, alpha, beta, c + y * ldc + x, d + y * ldd + x, n - x);
            }
}
