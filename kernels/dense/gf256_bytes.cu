// Rungs 1 to 3. A thread has one byte of the result at a time.
#include "dense/gf256_field.cuh"

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

// Rung 3, general tiles: rows, depth and width chosen at run time, with a table of products per coefficient.
//
//   a      uint8 (m, k), rows adjacent        b    uint8 (k, n), b_stride bytes from row to row
//                                             out  uint8 (m, n), out_stride bytes from row to row
//   shared uint8 (tile_rows, tile_depth, 256), sized at launch: the products of a tile of a with every byte
//
// A block takes tile_rows rows of a, tile_depth of its columns at a time, and blockDim.x columns of b at a
// time; a thread keeps the results of its column in registers. The tables are built again only when the tile
// of a changes: never, when tile_depth >= k. Launch: grid (any, ceil(m / tile_rows)), block (width, 1),
// tile_rows <= 8.
//
// Against rung 2: a byte of b is loaded once for all rows of the tile, no thread idles because a has few
// rows, and per product one load from shared memory remains of three.

constexpr int MOST_ROWS = 8;

extern "C" __global__ void dasp_gf256_general_tiles(const unsigned char* a, const unsigned char* b,
                                                    unsigned char* out, int m, int k, long long n,
                                                    long long b_stride, long long out_stride, int tile_rows,
                                                    int tile_depth)
{
    extern __shared__ unsigned char products[];
    const int first_row = tile_rows * blockIdx.y;
    const int rows = min(tile_rows, m - first_row);
    const long long step = (long long)blockDim.x * gridDim.x;
    int staged = -1;

    for (long long first = (long long)blockDim.x * blockIdx.x; first < n; first += step) {
        const long long column = first + threadIdx.x;
        unsigned sums[MOST_ROWS] = {};
        for (int top = 0; top < k; top += tile_depth) {
            const int depth = min(tile_depth, k - top);
            if (staged != top) {
                __syncthreads();
                for (int i = threadIdx.x; i < rows * depth * 256; i += blockDim.x) {
                    const int r = i / 256 / depth, p = i / 256 % depth;
                    products[i] = field_product(a[(long long)(first_row + r) * k + top + p], i % 256);
                }
                __syncthreads();
                staged = top;
            }
            if (column >= n)
                continue;
            for (int p = 0; p < depth; ++p) {
                const unsigned char* product = products + p * 256 + __ldg(b + (top + p) * b_stride + column);
#pragma unroll
                for (int r = 0; r < MOST_ROWS; ++r)
                    if (r < rows)
                        sums[r] ^= product[r * depth * 256];
            }
        }
        if (column < n)
#pragma unroll
            for (int r = 0; r < MOST_ROWS; ++r)
                if (r < rows)
                    out[(first_row + r) * out_stride + column] = sums[r];
    }
}
