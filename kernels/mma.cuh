// One function per mma instruction, each under its fragment map.
//
// A fragment map says which lane holds which element of a tile, and in which register. On the GPU the
// function is the instruction; in the emulator (DASP_SIMT) it is the same map written out over the 32
// lanes, so a kernel that relies on a wrong map fails there too.
#pragma once

// C += A B, float64, A 8 x 4 (row), B 4 x 8 (column), C 8 x 8.
// Lane l holds A[l/4][l%4], B[l%4][l/4] and C[l/4][2(l%4)+v] in register v, so C[r][r] is register r%2
// of lane 4r + r/2. A tensor-core instruction from sm_80 on (PTX ISA, "mma.m8n8k4 with .f64").
__device__ __forceinline__ void mma_m8n8k4(double (&c)[2], double a, double b)
{
#ifdef DASP_SIMT
    double as[32], bs[32];
    simt::gather_lanes(a, as);
    simt::gather_lanes(b, bs);
    const int row = simt::lane() / 4;
    for (int v = 0; v < 2; ++v) {
        const int column = 2 * (simt::lane() % 4) + v;
        for (int k = 0; k < 4; ++k)
            c[v] = fma(as[4 * row + k], bs[4 * column + k], c[v]);
    }
#else
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(c[0]), "+d"(c[1])
                 : "d"(a), "d"(b));
#endif
}

// C += A B, float64, A 16 x 4, B 4 x 8, C 16 x 8: `a` and `upper` are rows 0 to 7 of A and C, `below` and
// `lower` rows 8 to 15, each under the map above. From sm_90 on one tensor-core instruction, which takes no
// longer there than one m8n8k4 (PTX ISA, "mma.m16n8k4 with .f64"); before, two m8n8k4.
__device__ __forceinline__ void mma_m16n8k4(double (&upper)[2], double (&lower)[2], double a, double below, double b)
{
#if defined(DASP_SIMT) || __CUDA_ARCH__ < 900
    mma_m8n8k4(upper, a, b);
    mma_m8n8k4(lower, below, b);
#else
    asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+d"(upper[0]), "+d"(upper[1]), "+d"(lower[0]), "+d"(lower[1])
                 : "d"(a), "d"(below), "d"(b));
#endif
}
