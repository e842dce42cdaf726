// Rung 2, square tiles: 16 x 16 entries of a and of b wait in shared memory, as logs; a product is a sum of
// logs.
//
//   a      uint8 (m, k), rows adjacent        b    uint8 (k, n), b_stride bytes from row to row
//   logs   uint8 (256,), logs[0] unused       out  uint8 (m, n), out_stride bytes from row to row
//   powers uint8 (510,)
//
// A block of 16 x 16 threads makes 16 x 16 results at a time and goes on to the next 16 columns. Zero has
// the log 511 and powers from 510 on are 0, so no product tests whether a factor is zero. Launch: grid (any,
// ceil(m / 16)), block (16, 16).
//
// Against rung 1: a byte of b is loaded, and its log looked up, by one thread for all rows of the tile; a
// product is two loads of logs and one of a power, all from shared memory, instead of some 50 instructions.
// With few rows in a, most threads only help to load.

constexpr int TILE = 16;
constexpr int LOG_OF_ZERO = 511;

extern "C" __global__ void __launch_bounds__(TILE* TILE)
    dasp_gf256_square_tiles(const unsigned char* a, const unsigned char* b, unsigned char* out,
                            const unsigned char* logs, const unsigned char* powers, int m, int k, long long n,
                            long long b_stride, long long out_stride)
{
    __shared__ unsigned char power[2 * LOG_OF_ZERO + 1];
    __shared__ unsigned short log[256];
    __shared__ unsigned short a_log[TILE][TILE], b_log[TILE][TILE];
    const int x = threadIdx.x, y = threadIdx.y;
    for (int i = TILE * y + x; i <= 2 * LOG_OF_ZERO; i += TILE * TILE)
        power[i] = i < 510 ? powers[i] : 0;
    log[TILE * y + x] = TILE * y + x == 0 ? LOG_OF_ZERO : logs[TILE * y + x];
    const int row = TILE * blockIdx.y + y;
    int staged = -1;

    for (long long first = (long long)TILE * blockIdx.x; first < n; first += (long long)TILE * gridDim.x) {
        const long long column = first + x;
        unsigned sum = 0;
        for (int top = 0; top < k; top += TILE) {
            const int depth = min(TILE, k - top);
            __syncthreads();
            if (staged != top && row < m && x < depth)
                a_log[y][x] = log[a[(long long)row * k + top + x]];
            staged = top;
            if (y < depth && column < n)
                b_log[y][x] = log[b[(top + y) * b_stride + column]];
            __syncthreads();
            if (row < m && column < n)
                for (int p = 0; p < depth; ++p)
                    sum ^= power[a_log[y][p] + b_log[p][x]];
        }
        if (row < m && column < n)
            out[row * out_stride + column] = sum;
    }
}
