// Values to codes that hold every bit of them.
//
// table (distinct): the values of a dictionary; codes (1024): which of them is in a slot, see values.cu; not read in
// other codings.
#pragma once

#include "coding.cuh"

constexpr int CODER_THREADS = 256;

// What a thread loads of a dictionary.
struct CoderPart {
#if DASP_CODING == CODING_DICTIONARY
    Bits value;
    unsigned codes;

    __device__ __forceinline__ CoderPart(const Bits* table, const unsigned char* all_codes, int distinct)
        : value(), codes(0)
    {
        static_assert(CODER_THREADS == MOST_CODES && sizeof(codes) * CODER_THREADS == SLOTS, "each loads its share");
        if (int(threadIdx.x) < distinct) value = table[threadIdx.x];
        if (distinct) codes = reinterpret_cast<const unsigned*>(all_codes)[threadIdx.x];
    }
#else
    __device__ __forceinline__ CoderPart(const Bits*, const unsigned char*, int) {}
#endif
};

// What a block of threads must have at hand.
struct Coder {
#if DASP_CODING == CODING_DICTIONARY
    Bits table[MOST_CODES];
    unsigned codes[CODER_THREADS];  // four slots each
#endif

    // Every thread of the block, which has 256, calls it.
    __device__ __forceinline__ void keep(const CoderPart& part)
    {
#if DASP_CODING == CODING_DICTIONARY
        table[threadIdx.x] = part.value;
        codes[threadIdx.x] = part.codes;
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
        // Its slot comes before any free one.
        const unsigned char* const all = reinterpret_cast<const unsigned char*>(codes);
        int slot = slot_of(bits);
        while (!same(table[all[slot]], bits)) slot = (slot + 1) % SLOTS;
        return Code(all[slot]);
#elif DASP_CODING == CODING_EQUAL
        return Code();
#else
        return bits;
#endif
    }
};
