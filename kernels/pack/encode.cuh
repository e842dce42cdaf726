// Values to codes that hold every bit of them.
//
// table (distinct): the values of a dictionary; codes (SLOTS): which of them is in a slot, see values.cu; not read in
// other codings.
#pragma once

#include "coding.cuh"

constexpr int CODER_THREADS = 256, CODER_WORDS = SLOTS / 4;  // four slots to a word

// What a thread loads of a dictionary.
struct CoderPart {
#if DASP_CODING == CODING_DICTIONARY
    static constexpr int EACH = CODER_WORDS / CODER_THREADS;
    Bits value;
    unsigned codes[EACH];

    __device__ __forceinline__ CoderPart(const Bits* table, const unsigned char* all_codes, int distinct)
        : value(), codes()
    {
        static_assert(CODER_THREADS == MOST_CODES, "each thread loads a value");
        if (int(threadIdx.x) < distinct) value = table[threadIdx.x];
#pragma unroll
        for (int k = 0; k < EACH && distinct; ++k)
            codes[k] = reinterpret_cast<const unsigned*>(all_codes)[threadIdx.x + k * CODER_THREADS];
    }
#else
    __device__ __forceinline__ CoderPart(const Bits*, const unsigned char*, int) {}
#endif
};

// What a block of threads must have at hand.
struct Coder {
#if DASP_CODING == CODING_DICTIONARY
    Bits table[MOST_CODES];
    unsigned codes[CODER_WORDS];
#endif

    // Every thread of the block, which has 256, calls it.
    __device__ __forceinline__ void keep(const CoderPart& part)
    {
#if DASP_CODING == CODING_DICTIONARY
        table[threadIdx.x] = part.value;
#pragma unroll
        for (int k = 0; k < CoderPart::EACH; ++k) codes[threadIdx.x + k * CODER_THREADS] = part.codes[k];
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
