// Rung 1, naive: one thread per result, and a product is a sum of logs.
//
//   a      uint8 (m, k), rows adjacent        b    uint8 (k, n), b_stride bytes from row to row
//   logs   uint8 (256,), logs[0] unused       out  uint8 (m, n), out_stride bytes from row to row
//   powers uint8 (255,) or more
//
// A thread walks down a column of b. Launch: grid (ceil(n / blockDim.x), m), block (any, 1).
//
// Per product: an entry of a and its log, a byte of b and its log, and a power, five loads, three of which
// depend on each other; every byte of b is loaded by m threads. A warp asks for 32 bytes at a time, a
// quarter of a memory line.

extern "C" __global__ void dasp_gf256_naive(const unsigned char* a, const unsigned char* b,
                                            unsigned char* out, const unsigned char* logs,
                                            const unsigned char* powers, int k, long long n,
                                            long long b_stride, long long out_stride)
{
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y;
    if (column >= n)
        return;
    unsigned sum = 0;
    for (int p = 0; p < k; ++p) {
        const unsigned x = a[(long long)row * k + p];
        const unsigned y = b[p * b_stride + column];
        if (x != 0 && y != 0)
            sum ^= powers[(logs[x] + logs[y]) % 255];
    }
    out[row * out_stride + column] = sum;
}
