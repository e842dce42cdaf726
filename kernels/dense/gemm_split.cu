// Rung 15. Split-K: several blocks share the dot products of one tile of C, for products too small to fill the GPU.
//
// Launch: dasp_gemm as rung 14 with `parts` blocks in y, each summing `depth` steps of k (a multiple of DASP_BK) into
// sums[part][m][n], rows padded to 16 bytes; then gemm_reduce.cu adds them. With parts == 1 this kernel updates D itself.
// Memory: 2 parts + 1 more accesses per result, which stay in the second-level cache, for `parts` times as many
// blocks at work. Parts are added in their order, never by atomics, so equal inputs give equal bits.
#include "dense/pipeline.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd, int depth, Real* sums_of_parts)
{
    extern __shared__ __align__(16) Real shared[];
    const GroupedCorner corner(m, n);
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
