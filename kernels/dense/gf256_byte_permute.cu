// Rung 7, byte permutation: a table of a few entries is a register, and PRMT looks up four of them at once.
//
//   a      uint8 (m, k), rows adjacent        b    uint8 (k, 16-byte aligned rows), b_stride bytes from row
//   to row
//                                             out  uint8 (m, 16-byte aligned rows), out_stride bytes from
//                                             row to row
//   shared uint32 (tile_depth + 1, 5, 4): [p][r] the four words of the tables of 8 bytes for a[first_row +
//   r][top + p];
//          [p][4] the tables of 4 bytes for the four rows
//
// b has `vectors` groups of 16 columns. A byte is cut into bits 0-2, bits 4-6, and bits 3 and 7; the product
// with a coefficient is the exclusive or of what the three parts select in tables of 8, 8 and 4 bytes: two
// registers, two and one. PRMT takes four selectors from the nibbles of half a register, so the parts of two
// words are interleaved into one register of eight selectors; results come out interleaved too and are put
// in order once, before they are stored. Launch: grid (any, ceil(m / 4)), block (any, 1), dynamic shared
// memory 80 bytes a row of b, tile_depth rounded up to even.
//
// Against rung 6, per word of b: 6.5 instructions make the selectors, and per row 3 PRMT and 1.5 LOP3
// multiply and add (of three inputs, which is why two rows of b go together: seven terms in three): 24.5 for
// four rows instead of 46, so at most 79% of the copy limit.

#include "dense/gf256_field.cuh"

constexpr int WORDS = 4;
constexpr int ROWS = 4;

// The products of c with four factors, as the bytes of a word.
__device__ __forceinline__ unsigned four_products(unsigned c, unsigned f0, unsigned f1, unsigned f2,
                                                  unsigned f3)
{
    return field_product(c, f0) | field_product(c, f1) << 8 | field_product(c, f2) << 16 |
           field_product(c, f3) << 24;
}

// The tables of a coefficient for bits 0-2 and 4-6: products with 0 .. 3, 4 .. 7, and with 16 times those.
__device__ uint4 eight_entry_tables(unsigned c)
{
    return make_uint4(four_products(c, 0, 1, 2, 3), four_products(c, 4, 5, 6, 7),
                      four_products(c, 0, 16, 32, 48), four_products(c, 64, 80, 96, 112));
}

// The table of a coefficient for bits 3 and 7: products with 0, 8, 128 and 136.
__device__ unsigned four_entry_table(unsigned c) { return four_products(c, 0, 8, 128, 136); }

// Writes the tables of `depth` columns of a from column `top` on, and of a zero column if `depth` is odd.
__device__ void stage_tables(uint4* tables, const unsigned char* a, int m, int k, int first_row, int top,
                             int depth)
{
    for (int i = threadIdx.x; i < (depth + depth % 2) * (ROWS + 1); i += blockDim.x) {
        const int p = i / (ROWS + 1), part = i % (ROWS + 1);
        unsigned c[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            const bool inside = first_row + r < m && p < depth;
            c[r] = inside ? a[(long long)(first_row + r) * k + top + p] : 0;
        }
        const unsigned one = part == 0 ? c[0] : part == 1 ? c[1] : part == 2 ? c[2] : c[3];
        tables[i] = part < ROWS ? eight_entry_tables(one)
                                : make_uint4(four_entry_table(c[0]), four_entry_table(c[1]),
                                             four_entry_table(c[2]), four_entry_table(c[3]));
    }
}

// The selectors of four bytes of two words, a nibble each: bits 0-2, bits 4-6, and bits 3 and 7.
struct Selectors {
    unsigned low, high, top;
};

// The selectors of four words, pair by pair: nibble 2 j is for byte j of the first word of a pair, nibble 2
// j + 1 for byte j of the second; PRMT looks at the lower four nibbles, so the upper four are shifted down
// for the second result.
__device__ __forceinline__ void select(Selectors (&s)[WORDS], const unsigned (&words)[WORDS])
{
#pragma unroll
    for (int w = 0; w < WORDS; w += 2) {
        const unsigned first = words[w], second = words[w + 1];
        const unsigned lows = (first & 0x0f0f0f0fu) | (second << 4 & 0xf0f0f0f0u);
        const unsigned highs = (first >> 4 & 0x0f0f0f0fu) | (second & 0xf0f0f0f0u);
        s[w].low = lows & 0x77777777u;
        s[w].high = highs & 0x77777777u;
        s[w].top = (lows >> 3 & 0x11111111u) | (highs >> 2 & 0x22222222u);
        s[w + 1] = {s[w].low >> 16, s[w].high >> 16, s[w].top >> 16};
    }
}

// Adds to `sums` the products of two rows of b, as selectors, with two columns of four coefficients.
__device__ __forceinline__ void add_products(unsigned (&sums)[ROWS][WORDS], const uint4* table,
                                             const Selectors (&s)[2][WORDS])
{
    const uint4 last[2] = {table[ROWS], table[2 * ROWS + 1]};
    const unsigned top[2][ROWS] = {{last[0].x, last[0].y, last[0].z, last[0].w},
                                   {last[1].x, last[1].y, last[1].z, last[1].w}};
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const uint4 t = table[r], u = table[ROWS + 1 + r];
#pragma unroll
        for (int w = 0; w < WORDS; ++w)
            sums[r][w] ^= permute(t.x, t.y, s[0][w].low) ^ permute(t.z, t.w, s[0][w].high) ^
                          permute(top[0][r], 0, s[0][w].top) ^ permute(u.x, u.y, s[1][w].low) ^
                          permute(u.z, u.w, s[1][w].high) ^ permute(top[1][r], 0, s[1][w].top);
    }
}

// Loads the thread's words of row p of b; a row beyond the last is zero.
__device__ __forceinline__ void load_row(unsigned (&words)[WORDS], const unsigned char* b, long long b_stride,
                                         int p, int depth)
{
    words[0] = words[1] = words[2] = words[3] = 0;
    if (p < depth)
        load_words(words, b + p * b_stride);
}

// Adds the products of `depth` rows of b, from `b` on, two at a time; the next two are loaded while two are
// multiplied.
__device__ __forceinline__ void add_rows(unsigned (&sums)[ROWS][WORDS], const uint4* tables,
                                         const unsigned char* b, long long b_stride, int depth)
{
    unsigned next[2][WORDS];
    load_row(next[0], b, b_stride, 0, depth);
    load_row(next[1], b, b_stride, 1, depth);
    for (int p = 0; p < depth; p += 2) {
        Selectors s[2][WORDS];
        select(s[0], next[0]);
        select(s[1], next[1]);
        load_row(next[0], b, b_stride, p + 2, depth);
        load_row(next[1], b, b_stride, p + 3, depth);
        add_products(sums, tables + (ROWS + 1) * p, s);
    }
}

// Puts the interleaved sums of a row in order and stores them.
__device__ __forceinline__ void store_row(unsigned char* address, const unsigned (&sums)[WORDS])
{
    const unsigned words[WORDS] = {permute(sums[0], sums[1], 0x6420), permute(sums[0], sums[1], 0x7531),
                                   permute(sums[2], sums[3], 0x6420), permute(sums[2], sums[3], 0x7531)};
    store_words(address, words);
}

extern "C" __global__ void __launch_bounds__(256)
    dasp_gf256_byte_permute(const unsigned char* a, const unsigned char* b, unsigned char* out, int m, int k,
                            long long vectors, long long b_stride, long long out_stride, int tile_depth)
{
    extern __shared__ uint4 tables[];
    const int first_row = ROWS * blockIdx.y;
    const long long step = (long long)blockDim.x * gridDim.x;
    int staged = -1;

    for (long long first = (long long)blockDim.x * blockIdx.x; first < vectors; first += step) {
        const long long column = 16 * (first + threadIdx.x);
        const bool active = first + threadIdx.x < vectors;
        unsigned sums[ROWS][WORDS] = {};
        for (int top = 0; top < k; top += tile_depth) {
            const int depth = min(tile_depth, k - top);
            if (staged != top) {
                __syncthreads();
                stage_tables(tables, a, m, k, first_row, top, depth);
                __syncthreads();
                staged = top;
            }
            if (active)
                add_rows(sums, tables, b + top * b_stride + column, b_stride, depth);
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (active && first_row + r < m)
                store_row(out + (first_row + r) * out_stride + column, sums[r]);
    }
}
