// Values to codes that hold every bit of them.
//
// keys, ranks (1024): the values and codes of a dictionary by slots, see values.cu; not read in other codings.
#pragma once

#include "coding.cuh"

// What a block of threads must have at hand.
struct Coder {
#if DASP_CODING == CODING_DICTIONARY
    Bits keys[SLOTS];
    unsigned short ranks[SLOTS];
#endif

    // Every thread of the block, which has 256, calls it.
    __device__ __forceinline__ void load(const Bits* all_keys, const unsigned short* all_ranks)
    {
#if DASP_CODING == CODING_DICTIONARY
        constexpr int threads = 256, each = SLOTS / threads;
        Bits key[each];
        unsigned short rank[each];
#pragma unroll
        for (int k = 0; k < each; ++k) {
            key[k] = all_keys[threadIdx.x + k * threads];
            rank[k] = all_ranks[threadIdx.x + k * threads];
        }
#pragma unroll
        for (int k = 0; k < each; ++k) {
            keys[threadIdx.x + k * threads] = key[k];
            ranks[threadIdx.x + k * threads] = rank[k];
        }
        __syncthreads();
#endif
    }

    __device__ __forceinline__ Code code_of(Bits bits) const
    {
#if DASP_CODING == CODING_SINGLE && DASP_KIND == KIND_COMPLEX
        const Code real = SingleBits::convert(number_of(part_of(bits, 0)));
        return Code(SingleBits::convert(number_of(part_of(bits, 1)))) << 32 | real;
#elif DASP_CODING == CODING_SINGLE || DASP_CODING == CODING_REAL_SINGLE
        return SingleBits::convert(number_of(part_of(bits, 0)));
#elif DASP_CODING == CODING_BYTE
        return as_byte(number_of(part_of(bits, 0)));
#elif DASP_CODING == CODING_HALF
        return Code(HalfBits::convert(number_of(part_of(bits, 0))));
#elif DASP_CODING == CODING_REAL
        return part_of(bits, 0);
#elif DASP_CODING == CODING_DICTIONARY
        int slot = slot_of(bits);
        while (ranks[slot] == NO_RANK || !same(keys[slot], bits)) slot = (slot + 1) % SLOTS;
        return Code(ranks[slot]);
#elif DASP_CODING == CODING_EQUAL
        return Code();
#else
        return bits;
#endif
    }
};
