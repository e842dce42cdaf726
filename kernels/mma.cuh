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

// C += A B, float64, A 16 x 8 (row), B 8 x 8 (column), C 16 x 8: four of mma_m8n8k4 in one, twice as fast.
// Lane l holds A[l/4 + 8h][l%4 + 4k] in register h + 2k, B[l%4 + 4k][l/4] in register k, and C[l/4 + 8h][2(l%4)+v] in
// register 2h + v. An instruction from sm_90 on (PTX ISA, "mma.m16n8k8 with .f64"); four before.
__device__ __forceinline__ void mma_m16n8k8(double (&c)[4], const double (&a)[4], const double (&b)[2])
{
#if defined(DASP_SIMT) || __CUDA_ARCH__ < 900
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        double half[2] = {c[2 * h], c[2 * h + 1]};
        mma_m8n8k4(half, a[h], b[0]);
        mma_m8n8k4(half, a[h + 2], b[1]);
        c[2 * h] = half[0];
        c[2 * h + 1] = half[1];
    }
#else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                 : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#endif
}

// The same for A 16 x 4 and B 4 x 8: registers h of A and 0 of B.
__device__ __forceinline__ void mma_m16n8k4(double (&c)[4], const double (&a)[2], double b)
{
#if defined(DASP_SIMT) || __CUDA_ARCH__ < 900
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        double half[2] = {c[2 * h], c[2 * h + 1]};
        mma_m8n8k4(half, a[h], b);
        c[2 * h] = half[0];
        c[2 * h + 1] = half[1];
    }
#else
    asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                 : "d"(a[0]), "d"(a[1]), "d"(b));
#endif
}
