// Rung 14. Asynchronous copies, several stages deep, and blocks in an order that suits the second-level cache.
//
// Launch: as rung 12, blocks in groups (pipeline.cuh), with SHARED_ELEMENTS elements of dynamic shared memory.
// Memory: global elements go straight to shared memory, without the registers and the stores of rung 13, and
// up to DASP_STAGES - 1 tiles ahead. Lanes in Z order save turns of shared memory. A and B may have either
// memory order.
#include "dense/pipeline.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    extern __shared__ __align__(16) Real shared[];
    const GroupedCorner corner(m, n);
    Sums sums;
    add_products(sums, LoaderA(a, lda, corner.row, m), LoaderB(b, ldb, corner.column, n), shared, k);
    sums.store(m, n, corner.row + lane_row(), corner.column + lane_column(), alpha, beta, c, ldc, d, ldd);
}
