// Rung 8, a schedule of exclusive ors: the coefficients are constants of the program (DASP_COEFFICIENTS).
//
//   b    uint8 (DASP_DEPTH, 16-byte aligned rows), b_stride bytes from row to row
//   out  uint8 (DASP_ROWS, 16-byte aligned rows), out_stride bytes from row to row
//
// b has `vectors` groups of 16 columns. DASP_COEFFICIENTS lists a row by row. A thread loads 16 bytes of
// each row of b and makes each row of out by Horner's scheme over the bits of the coefficients: from bit 7
// down, multiply the sum by x, then add those b_p whose a_p has the bit. Rows of b are taken DASP_STEP at a
// time, which bounds the registers. Launch: grid ceil(vectors / blockDim.x), block (any, 1).
//
// Against rung 7: no table, no mask, no selector, and no instruction for a bit that is 0. Per word of b and
// four rows: of 32 bits half are set, 16 terms, two to a LOP3: 8. Multiplications by x are now of results, 7
// per row and word of a result: with ten rows of b 2.8 per word of b, 5.6 integer instructions and 2.8 IMAD.
// Together 13.6 integer instructions instead of 24.5, fewer than the 19 for which the copy limit leaves
// time: bound by memory. All loads of a step are in flight at once.

#include "dense/gf256_field.cuh"

constexpr int WORDS = 4;

// Whether bit `bit` of a[row][p] is set: known to the compiler wherever the loops around are unrolled.
__device__ constexpr bool has_bit(int row, int p, int bit)
{
    constexpr unsigned char coefficients[DASP_ROWS * DASP_DEPTH] = {DASP_COEFFICIENTS};
    return coefficients[row * DASP_DEPTH + p] >> bit & 1;
}

// The highest bit that row `row` of a has in columns top .. top + depth - 1, or -1.
__device__ constexpr int highest_bit(int row, int top, int depth)
{
    for (int bit = 7; bit >= 0; --bit)
        for (int p = top; p < top + depth; ++p)
            if (has_bit(row, p, bit))
                return bit;
    return -1;
}

// The sum over rows TOP .. TOP + DEPTH - 1 of b, which are in `words`, of their products with row ROW of a.
template <int ROW, int TOP, int DEPTH>
__device__ __forceinline__ void horner(unsigned (&sum)[WORDS], const unsigned (&words)[DEPTH][WORDS])
{
    constexpr int highest = highest_bit(ROW, TOP, DEPTH);
#pragma unroll
    for (int w = 0; w < WORDS; ++w)
        sum[w] = 0;
#pragma unroll
    for (int bit = highest; bit >= 0; --bit)
#pragma unroll
        for (int w = 0; w < WORDS; ++w) {
            if (bit < highest)
                sum[w] = times_x(sum[w]);
#pragma unroll
            for (int p = 0; p < DEPTH; ++p)
                if (has_bit(ROW, TOP + p, bit))
                    sum[w] ^= words[p][w];
        }
}

// Adds the products of the rows of b in `words` to rows ROW, ROW + 1, ... of the result, and stores these
// after the last rows of b.
template <int ROW, int TOP, int DEPTH>
__device__ __forceinline__ void add_rows(unsigned (&sums)[DASP_ROWS][WORDS],
                                         const unsigned (&words)[DEPTH][WORDS], unsigned char* out,
                                         long long out_stride)
{
    if constexpr (ROW < DASP_ROWS) {
        unsigned sum[WORDS];
        horner<ROW, TOP, DEPTH>(sum, words);
#pragma unroll
        for (int w = 0; w < WORDS; ++w)
            sums[ROW][w] = TOP == 0 ? sum[w] : sums[ROW][w] ^ sum[w];
        if (TOP + DEPTH == DASP_DEPTH)
            store_words(out + ROW * out_stride, sums[ROW]);
        add_rows<ROW + 1, TOP, DEPTH>(sums, words, out, out_stride);
    }
}

// Adds the products of rows TOP, TOP + 1, ... of b, DASP_STEP at a time.
template <int TOP>
__device__ __forceinline__ void add_steps(unsigned (&sums)[DASP_ROWS][WORDS], const unsigned char* b,
                                          long long b_stride, unsigned char* out, long long out_stride)
{
    if constexpr (TOP < DASP_DEPTH) {
        constexpr int DEPTH = DASP_DEPTH - TOP < DASP_STEP ? DASP_DEPTH - TOP : DASP_STEP;
        unsigned words[DEPTH][WORDS];
#pragma unroll
        for (int p = 0; p < DEPTH; ++p)
            load_words(words[p], b + (TOP + p) * b_stride);
        add_rows<0, TOP, DEPTH>(sums, words, out, out_stride);
        add_steps<TOP + DEPTH>(sums, b, b_stride, out, out_stride);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    dasp_gf256_schedule(const unsigned char* b, unsigned char* out, long long vectors, long long b_stride,
                        long long out_stride)
{
    const long long vector = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (vector >= vectors)
        return;
    unsigned sums[DASP_ROWS][WORDS];
    add_steps<0>(sums, b + 16 * vector, b_stride, out + 16 * vector, out_stride);
}
