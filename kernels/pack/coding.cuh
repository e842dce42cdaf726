// Codes of values: the type that moves them as bits, and the code of a value that the coding holds.
// DASP_CODING: the number of a Coding in pattern.py.
#pragma once

#include "header.cuh"
#include "pack/values.cuh"

#ifndef DASP_CODING
#error "define DASP_CODING: how values are stored, the number of a Coding in pattern.py"
#endif

#if DASP_CODING == CODING_SINGLE && DASP_VALUE_BYTES == 16
using Code = unsigned long long;
#elif DASP_CODING == CODING_SINGLE
using Code = unsigned;
#elif DASP_CODING == CODING_BYTE || DASP_CODING == CODING_DICTIONARY || DASP_CODING == CODING_EQUAL
using Code = unsigned char;
#else
using Code = Bits;
#endif

constexpr int CODER_THREADS = 256;

#if DASP_CODING == CODING_DICTIONARY
// A hash table of the values of a dictionary and their numbers.
struct Finder {
    Bits table[MOST_CODES];
    unsigned numbers[SLOTS];  // 1 + the number of the value that has a slot; 0 where it is free

    // Every thread of the block, which has 256, calls it.
    __device__ __forceinline__ void make(const Bits* values, int distinct)
    {
        const bool has = int(threadIdx.x) < distinct;
        Bits own = Bits();
        if (has) own = values[threadIdx.x];
#pragma unroll
        for (int k = 0; k < SLOTS / CODER_THREADS; ++k) numbers[threadIdx.x + k * CODER_THREADS] = 0;
        table[threadIdx.x] = own;
        __syncthreads();
        if (has) {
            int slot = slot_of(own);
            unsigned there;
            while ((there = atomicCAS(numbers + slot, 0u, threadIdx.x + 1)) && !same(table[there - 1], own))
                slot = (slot + 1) % SLOTS;
            if (there) atomicMin(numbers + slot, threadIdx.x + 1);  // the table may have a value twice
        }
        __syncthreads();
    }

    // The number of a value; -1 if it has none.
    __device__ __forceinline__ int find(Bits bits) const
    {
        int slot = slot_of(bits);
        for (;; slot = (slot + 1) % SLOTS) {
            const int number = int(numbers[slot]) - 1;
            if (number < 0 || same(table[number], bits)) return number;
        }
    }
};
#endif

// Finds the codes of values, for one block of threads.
struct Coder {
#if DASP_CODING == CODING_DICTIONARY
    Finder finder;
#endif

    // Every thread of the block, which has CODER_THREADS, calls it. table (distinct): the values of a dictionary, which
    // may have some of them twice; not read in other codings.
    __device__ __forceinline__ void make(const Bits* table, int distinct)
    {
#if DASP_CODING == CODING_DICTIONARY
        finder.make(table, distinct);
#endif
    }

    // Whether a code keeps every bit of a value. With CODING_EQUAL the value must be `first`.
    __device__ __forceinline__ bool holds(Bits bits, Bits first) const
    {
#if DASP_CODING == CODING_EQUAL
        return same(bits, first);
#elif DASP_CODING == CODING_DICTIONARY
        return finder.find(bits) >= 0;
#elif DASP_CODING == CODING_BYTE
        return are_bytes(bits);
#elif DASP_CODING == CODING_SINGLE
        return are_singles(bits);
#else
        return true;
#endif
    }

    // The code of a value that the coding holds.
    __device__ __forceinline__ Code code_of(Bits bits) const
    {
#if DASP_CODING == CODING_SINGLE
        return Single::convert(bits);
#elif DASP_CODING == CODING_BYTE
        return as_byte(number_of(bits));
#elif DASP_CODING == CODING_DICTIONARY
        return Code(finder.find(bits));
#elif DASP_CODING == CODING_EQUAL
        return Code();
#else
        return bits;
#endif
    }
};
