// Values as codes that hold every bit of them.
//
// Launch: one dimension, any number of blocks of 256 threads.
// data (count), order (count) or null: as in values.cu. keys, ranks (1024): of a dictionary, else not read.
// slots (count) or null: where the code of the i-th value in the order of the plan goes, else to place i.
// codes: as DASP_CODING says; in its PLAIN coding a code is the value.

#include "coding.cuh"

#ifndef DASP_SLOT
#error "define DASP_SLOT: the type of slots"
#endif

using Slot = DASP_SLOT;

// Fewer large values are in flight: they take registers.
constexpr int THREADS = 256, AT_ONCE = sizeof(Bits) == 16 ? 2 : 4;

__device__ __forceinline__ Code code_of(Bits bits, const Bits* keys, const unsigned short* ranks)
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
#else
    return bits;
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_encode(const Bits* __restrict__ data, const Place* __restrict__ order, const Bits* __restrict__ keys,
            const unsigned short* __restrict__ ranks, long long count, const Slot* __restrict__ slots,
            Code* __restrict__ codes)
{
#if DASP_CODING == CODING_DICTIONARY
    __shared__ Bits block_keys[SLOTS];
    __shared__ unsigned short block_ranks[SLOTS];
    for (int slot = threadIdx.x; slot < SLOTS; slot += THREADS) {
        block_ranks[slot] = ranks[slot];
        if (ranks[slot] != NO_RANK) block_keys[slot] = keys[slot];
    }
    __syncthreads();
    keys = block_keys;
    ranks = block_ranks;
#endif
    const long long each = THREADS * AT_ONCE;
    for (long long first = blockIdx.x * each + threadIdx.x; first < count; first += gridDim.x * each) {
        Bits bits[AT_ONCE];
        long long to[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const long long i = min(first + k * THREADS, count - 1);
            bits[k] = Values{data, order}.at(i);
            to[k] = slots ? (long long)slots[i] : i;
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k)
            if (first + k * THREADS < count) codes[to[k]] = code_of(bits[k], keys, ranks);
    }
}
