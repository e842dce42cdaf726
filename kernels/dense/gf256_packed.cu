// Rungs 4 to 6, packed words: a thread takes 4, 8 or 16 adjacent bytes (DASP_BYTES), four to a register.
//
//   a      uint8 (m, k), rows adjacent        b    uint8 (k, 16-byte aligned rows), b_stride bytes from row
//   to row
//                                             out  uint8 (m, 16-byte aligned rows), out_stride bytes from
//                                             row to row
//   shared uint32 (tile_depth, 8, 4): [p][t][r] is all ones if bit t of a[first_row + r][top + p] is set,
//   else 0
//
// b has `vectors` groups of DASP_BYTES columns. Nothing is looked up: sum_p a_p b_p = sum_p sum_t (b_p x^t,
// if a_p has bit t), so a word is multiplied by x seven times, and each multiple is kept or not by a mask,
// for four rows of a. Launch: grid (any, ceil(m / 4)), block (any, 1), dynamic shared memory 128 tile_depth
// bytes.
//
// Against rung 3: four products per instruction, and loads from memory of 128, 256 or 512 bytes per warp
// instead of 32. Per word of b and four rows: 7 multiplications by x (14 integer, 7 IMAD) and 32 LOP3, so 46
// integer instructions: at most 40% of the copy limit. The masks are 8 loads of 16 bytes, shared by all
// words of a thread. So width pays: at 4 clocks a load one word needs 32 clocks of shared memory, each of
// four words needs 8.

#include "dense/gf256_field.cuh"

constexpr int WORDS = DASP_BYTES / 4;
constexpr int ROWS = 4;

// Writes the masks of `depth` columns of a, from column `top` on; rows that a does not have are zero.
__device__ void stage_masks(uint4* masks, const unsigned char* a, int m, int k, int first_row, int top,
                            int depth)
{
    for (int i = threadIdx.x; i < 8 * depth; i += blockDim.x) {
        const int p = i / 8, bit = i % 8;
        unsigned mask[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            const bool inside = first_row + r < m;
            mask[r] = inside && a[(long long)(first_row + r) * k + top + p] >> bit & 1 ? 0xffffffffu : 0;
        }
        masks[i] = make_uint4(mask[0], mask[1], mask[2], mask[3]);
    }
}

// Adds the words' products with the four coefficients whose masks these are to the sums. Changes the words.
__device__ __forceinline__ void add_products(unsigned (&sums)[ROWS][WORDS], unsigned (&words)[WORDS],
                                             const uint4* masks)
{
#pragma unroll
    for (int bit = 0; bit < 8; ++bit) {
        const uint4 mask = masks[bit];
#pragma unroll
        for (int w = 0; w < WORDS; ++w) {
            sums[0][w] ^= words[w] & mask.x;
            sums[1][w] ^= words[w] & mask.y;
            sums[2][w] ^= words[w] & mask.z;
            sums[3][w] ^= words[w] & mask.w;
            words[w] = times_x(words[w]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    dasp_gf256_packed(const unsigned char* a, const unsigned char* b, unsigned char* out, int m, int k,
                      long long vectors, long long b_stride, long long out_stride, int tile_depth)
{
    extern __shared__ uint4 masks[];
    const int first_row = ROWS * blockIdx.y;
    const long long step = (long long)blockDim.x * gridDim.x;
    int staged = -1;

    for (long long first = (long long)blockDim.x * blockIdx.x; first < vectors; first += step) {
        const long long column = DASP_BYTES * (first + threadIdx.x);
        const bool active = first + threadIdx.x < vectors;
        unsigned sums[ROWS][WORDS] = {};
        for (int top = 0; top < k; top += tile_depth) {
            const int depth = min(tile_depth, k - top);
            if (staged != top) {
                __syncthreads();
                stage_masks(masks, a, m, k, first_row, top, depth);
                __syncthreads();
                staged = top;
            }
            for (int p = 0; active && p < depth; ++p) {
                unsigned words[WORDS];
                load_words(words, b + (top + p) * b_stride + column);
                add_products(sums, words, masks + 8 * p);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (active && first_row + r < m)
                store_words(out + (first_row + r) * out_stride + column, sums[r]);
    }
}
