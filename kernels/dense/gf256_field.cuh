// The field GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11D), a byte at a time and four bytes at a time.
//
// All gf256_*.cu compute out = a b with a (m x k, rows adjacent), b (k x n) and out (m x n), bytes, sums
// being exclusive ors; b and out have adjacent columns, and b_stride and out_stride bytes from one row to
// the next. Every result is written once, by one thread, from integers alone: equal inputs give equal bits.
//
// The limit for the rungs, on an H200 with 132 multiprocessors at 1.755 GHz: for a of 4 x 10, 14
// bytes move per 10 bytes of b, which at 4.27 TB/s of copy bandwidth is 3.05 TB/s of b. A multiprocessor
// issues 4 warp instructions a clock and its integer unit takes 2 (LOP3, SHF, PRMT; IMAD goes to another
// unit, 2 a clock), so at that limit there is time for 19 integer instructions per 4 bytes of b, all four
// results included, and for 39 of any kind.
#pragma once

// The product of two bytes by shift and add: 8 steps. For tables that are built once.
__device__ __forceinline__ unsigned field_product(unsigned x, unsigned y)
{
    unsigned product = 0;
    for (int bit = 0; bit < 8; ++bit) {
        product ^= (y >> bit & 1) ? x : 0;
        x = (x << 1 ^ ((x & 0x80) ? 0x11d : 0)) & 0xff;
    }
    return product;
}

// Four bytes chosen from the eight of (low, high) by the four lowest nibbles of `selector`, each below 8
// (PTX ISA, "prmt"; bits above the four nibbles are ignored).
__device__ __forceinline__ unsigned permute(unsigned low, unsigned high, unsigned selector)
{
#ifdef DASP_SIMT
    return __byte_perm(low, high, selector);
#else
    unsigned result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
    return result;
#endif
}

// 0xff in each byte whose highest bit is set, and 0 in the others (PTX ISA, "prmt": bit 3 of a selector's
// nibble replicates the sign of the byte).
__device__ __forceinline__ unsigned sign_bytes(unsigned word)
{
#ifdef DASP_SIMT
    return (word >> 7 & 0x01010101u) * 0xffu;
#else
    unsigned result;
    asm("prmt.b32 %0, %1, 0, 0xba98;" : "=r"(result) : "r"(word));
    return result;
#endif
}

// Each of four bytes times x, in three instructions: PRMT, IMAD or LEA, LOP3. With s = 0xff where the
// highest bit is set, 2 word - s turns each byte left by one place without a carry into its neighbour (2 v -
// 255 = 2 (v - 128) + 1), and the highest bit, now the lowest, is the 1 of 0x1d, so 0x1c is left to add.
__device__ __forceinline__ unsigned times_x(unsigned word)
{
    const unsigned carried = sign_bytes(word);
    return (2 * word - carried) ^ (carried & 0x1c1c1c1cu);
}

// `WORDS` words of 4 bytes from an address aligned to all of them, in one access.
__device__ __forceinline__ void load_words(unsigned (&words)[1], const unsigned char* address)
{
    words[0] = __ldg(reinterpret_cast<const unsigned*>(address));
}
__device__ __forceinline__ void load_words(unsigned (&words)[2], const unsigned char* address)
{
    const uint2 pair = __ldg(reinterpret_cast<const uint2*>(address));
    words[0] = pair.x, words[1] = pair.y;
}
__device__ __forceinline__ void load_words(unsigned (&words)[4], const unsigned char* address)
{
    const uint4 four = __ldg(reinterpret_cast<const uint4*>(address));
    words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
}

// Stores words to an address aligned to all of them, in one access.
__device__ __forceinline__ void store_words(unsigned char* address, const unsigned (&words)[1])
{
    *reinterpret_cast<unsigned*>(address) = words[0];
}
__device__ __forceinline__ void store_words(unsigned char* address, const unsigned (&words)[2])
{
    *reinterpret_cast<uint2*>(address) = make_uint2(words[0], words[1]);
}
__device__ __forceinline__ void store_words(unsigned char* address, const unsigned (&words)[4])
{
    *reinterpret_cast<uint4*>(address) = make_uint4(words[0], words[1], words[2], words[3]);
}
