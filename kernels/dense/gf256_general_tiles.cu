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

#include "dense/gf256_field.cuh"

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
