// The larger mma instructions, each under its fragment map (see mma.cuh; PTX ISA, "Matrix Fragments for mma.m16n8k*"),
// and ldmatrix. Lane l: g = l/4, t = l%4.
#pragma once
#include "half.cuh"

// C += A B, float64, A 16 x K (row), B K x 8 (column), C 16 x 8; K = 4, 8 or 16, sm_90.
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

// C += A B, A 16 x 16 (row) and B 16 x 8 (column) of float16 or bfloat16, C 16 x 8 of float32; sm_80.
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
