// Rung 7, byte permutation: a table of a few entries is a register, and PRMT looks up four of them at once.
//
//   a      uint8 (m, k), rows adjacent        b    uint8 (k, 16-byte aligned rows), b_stride bytes from row
//   to row
//                                             out  uint8 (m, 16-byte aligned rows), out_stride bytes from
//                                             row to row
//   shared uint32 (tile_depth, 5, 4): the tables of four coefficients, below
//
// b has `vectors` groups of 16 columns. A byte is cut into bits 0-2, bits 4-6, and bits 3 and 7; the product
// with a coefficient is the exclusive or of what the three parts select in tables of 8, 8 and 4 bytes: two
// registers, two and one. PRMT takes four selectors from the nibbles of half a register, so the parts of two
// words are interleaved into one register of eight selectors; results come out interleaved too and are put
// in order once, before they are stored. A thread takes two groups of 16 columns that lie 16 blockDim.x
// bytes apart, so that a warp's loads are whole lines. Launch: grid (any, ceil(m / 4)), block (any, 1),
// dynamic shared memory 80 tile_depth bytes.
//
// Against rung 6, per word of b: 6.5 instructions make the selectors, and per row 3 PRMT and 1.5 LOP3 (of
// three inputs) multiply and add: 24.5 for four rows instead of 46, at most 79% of the copy limit. The
// tables are 5 loads of 16 bytes per eight words.

#include "dense/gf256_field.cuh"

constexpr int GROUPS = 2;
constexpr int WORDS = 4 * GROUPS;
constexpr int ROWS = 4;
constexpr int TABLES = 5;

// The products of c with four factors, as the bytes of a word.
__device__ __forceinline__ unsigned four_products(unsigned c, unsigned f0, unsigned f1, unsigned f2,
                                                  unsigned f3)
{
    return field_product(c, f0) | field_product(c, f1) << 8 | field_product(c, f2) << 16 |
           field_product(c, f3) << 24;
}

// One of the words of a coefficient's tables: 0 .. 3 and 4 .. 7 (bits 0-2), 16 times those (bits 4-6), and
// 0, 8, 128, 136 (bits 3 and 7).
__device__ unsigned table_word(unsigned c, int table)
{
    if (table == 4)
        return four_products(c, 0, 8, 128, 136);
    const unsigned unit = table < 2 ? 1 : 16, start = table % 2 * 4;
    return four_products(c, unit * start, unit * (start + 1), unit * (start + 2), unit * (start + 3));
}

__device__ void stage_tables(uint4* tables, const unsigned char* a, int m, int k, int first_row, int top,
                             int depth)
{
    for (int i = threadIdx.x; i < TABLES * depth; i += blockDim.x) {
        const int p = i / TABLES, table = i % TABLES;
        unsigned word[ROWS];
        for (int r = 0; r < ROWS; ++r)
            word[r] = first_row + r < m ? table_word(a[(long long)(first_row + r) * k + top + p], table) : 0;
        tables[i] = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

// What four bytes of two words select: nibble by nibble the bits 0-2, the bits 4-6, and the bits 3 and 7.
struct Selectors {
    unsigned low, high, top;
};

// The selectors of two words: nibble 2 j is for byte j of the first word, nibble 2 j + 1 for byte j of the
// second.
__device__ __forceinline__ Selectors select(unsigned first, unsigned second)
{
    const unsigned lows = (first & 0x0f0f0f0fu) | (second << 4 & 0xf0f0f0f0u);
    const unsigned highs = (first >> 4 & 0x0f0f0f0fu) | (second & 0xf0f0f0f0u);
    return {lows & 0x77777777u, highs & 0x77777777u, (lows >> 3 & 0x11111111u) | (highs >> 2 & 0x22222222u)};
}

// Adds to `sums` the products of the bytes behind the lower four selectors with the four coefficients.
__device__ __forceinline__ void add_products(unsigned (&sums)[ROWS][WORDS], int word,
                                             const uint4 (&table)[TABLES], const Selectors& s)
{
    sums[0][word] ^= permute(table[0].x, table[1].x, s.low) ^ permute(table[2].x, table[3].x, s.high) ^
                     permute(table[4].x, 0, s.top);
    sums[1][word] ^= permute(table[0].y, table[1].y, s.low) ^ permute(table[2].y, table[3].y, s.high) ^
                     permute(table[4].y, 0, s.top);
    sums[2][word] ^= permute(table[0].z, table[1].z, s.low) ^ permute(table[2].z, table[3].z, s.high) ^
                     permute(table[4].z, 0, s.top);
    sums[3][word] ^= permute(table[0].w, table[1].w, s.low) ^ permute(table[2].w, table[3].w, s.high) ^
                     permute(table[4].w, 0, s.top);
}

// Loads the thread's groups of one row; a group beyond the end is zero.
__device__ __forceinline__ void load_groups(unsigned (&words)[GROUPS][4], const unsigned char* row,
                                            const long long (&column)[GROUPS], long long end)
{
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        words[g][0] = words[g][1] = words[g][2] = words[g][3] = 0;
        if (column[g] < end)
            load_words(words[g], row + column[g]);
    }
}

// Puts the interleaved sums of a group in order and stores them.
__device__ __forceinline__ void store_group(unsigned char* address, const unsigned* sums)
{
    const unsigned words[4] = {permute(sums[0], sums[1], 0x6420), permute(sums[0], sums[1], 0x7531),
                               permute(sums[2], sums[3], 0x6420), permute(sums[2], sums[3], 0x7531)};
    store_words(address, words);
}

extern "C" __global__ void __launch_bounds__(256)
    dasp_gf256_byte_permute(const unsigned char* a, const unsigned char* b, unsigned char* out, int m, int k,
                            long long vectors, long long b_stride, long long out_stride, int tile_depth)
{
    extern __shared__ uint4 tables[];
    const int first_row = ROWS * blockIdx.y;
    const long long end = 16 * vectors, step = 16ll * GROUPS * blockDim.x * gridDim.x;
    int staged = -1;

    for (long long first = 16ll * GROUPS * blockDim.x * blockIdx.x; first < end; first += step) {
        const long long column[GROUPS] = {first + 16 * threadIdx.x, first + 16 * (threadIdx.x + blockDim.x)};
        unsigned sums[ROWS][WORDS] = {};
        for (int top = 0; top < k; top += tile_depth) {
            const int depth = min(tile_depth, k - top);
            if (staged != top) {
                __syncthreads();
                stage_tables(tables, a, m, k, first_row, top, depth);
                __syncthreads();
                staged = top;
            }
            unsigned next[GROUPS][4];
            load_groups(next, b + top * b_stride, column, end);
            for (int p = 0; p < depth; ++p) {
                unsigned words[GROUPS][4];
#pragma unroll
                for (int w = 0; w < WORDS; ++w)
                    words[w / 4][w % 4] = next[w / 4][w % 4];
                // The next row travels while this one is multiplied.
                if (p + 1 < depth)
                    load_groups(next, b + (top + p + 1) * b_stride, column, end);
                uint4 table[TABLES];
#pragma unroll
                for (int t = 0; t < TABLES; ++t)
                    table[t] = tables[TABLES * p + t];
#pragma unroll
                for (int w = 0; w < WORDS; w += 2) {
                    const Selectors s = select(words[w / 4][w % 4], words[w / 4][w % 4 + 1]);
                    add_products(sums, w, table, s);
                    add_products(sums, w + 1, table, {s.low >> 16, s.high >> 16, s.top >> 16});
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int g = 0; g < GROUPS; ++g)
                if (first_row + r < m && column[g] < end)
                    store_group(out + (first_row + r) * out_stride + column[g], sums[r] + 4 * g);
    }
}
