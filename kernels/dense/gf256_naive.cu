// Rung 1, naive: one thread per result, and a product is eight shifts and adds.
//
//   a    uint8 (m, k), rows adjacent        b    uint8 (k, n), b_stride bytes from row to row
//                                           out  uint8 (m, n), out_stride bytes from row to row
//
// A thread walks down a column of b. Launch: grid (ceil(n / blockDim.x), m), block (any, 1).
//
// Some 50 instructions per product, where the copy limit leaves time for one: 39 per four bytes of b, which
// take part in 16 products. Every byte of b is loaded by m threads, and a warp asks for 32 bytes at a time,
// a quarter of a memory line.

#include "dense/gf256_field.cuh"

extern "C" __global__ void dasp_gf256_naive(const unsigned char* a, const unsigned char* b,
                                            unsigned char* out, int k, long long n, long long b_stride,
                                            long long out_stride)
{
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y;
    if (column >= n)
        return;
    unsigned sum = 0;
    for (int p = 0; p < k; ++p)
        sum ^= field_product(a[(long long)row * k + p], b[p * b_stride + column]);
    out[row * out_stride + column] = sum;
}
