// The end of a split-K product: adds the parts' sums and updates D.
//
// Launch: 256 threads a block, a thread for each 16-byte piece of a row of D. sums_of_parts is [parts][m][n],
// rows padded to 16 bytes; the pads were not written. Parts are added in order: equal inputs give equal bits.
// Memory: `parts` reads, which stay in the second-level cache, and one write per result.
#include "dense/gemm.cuh"

extern "C" __global__ void __launch_bounds__(256)
dasp_gemm_reduce(int m, int n, int parts, Real alpha, const Real* sums_of_parts, Real beta, const Real* c,
                 long long ldc, Real* d, long long ldd)
{
    const int across = ceil_div(n, WIDTH);
    const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i >= (long long)m * across)
        return;
    const long long row = i / across;
    const int column = int(i % across) * WIDTH;
    const long long stride = (long long)m * across * WIDTH;
    const Real* place = sums_of_parts + i * WIDTH;
    Piece total = {};
    for (int part = 0; part < parts; ++part) {
        // The last piece of a row may be longer than the row; its rest was not written.
        const Piece piece = n - column >= WIDTH ? read_piece(place + part * stride)
                                                : read_piece(place + part * stride, n - column);
#pragma unroll
        for (int v = 0; v < WIDTH; ++v)
            total.element[v] += piece.element[v];
    }
    update_piece(total, alpha, beta, c + row * ldc + column, d + row * ldd + column, n - column);
}
