// Restores values, with every bit, from their codes.
//
// Launch: one dimension, any number of blocks of 256 threads; a thread takes values a grid apart.
// Deterministic: each value is written once, from its code alone.
// codes (count): as DASP_CODING says, not read if all values are equal. table: the values that codes stand for.
// data (count): the values as bits.

#include "pack/coding.cuh"

constexpr int THREADS = 256;

// The value that a code stands for, as its bits.
__device__ __forceinline__ Bits value_of(const Code* codes, const Bits* table, long long i)
{
#if DASP_CODING == CODING_SINGLE
    return Single::widen(codes[i]);
#elif DASP_CODING == CODING_BYTE
    return of_byte<Bits>((signed char)codes[i]);
#elif DASP_CODING == CODING_DICTIONARY
    return table[codes[i]];
#elif DASP_CODING == CODING_EQUAL
    return table[0];
#else
    return codes[i];
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_decode(const Code* __restrict__ codes, const Bits* __restrict__ table, long long count, Bits* __restrict__ data)
{
    const long long threads = gridDim.x * (long long)THREADS;
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < count; i += threads)
        data[i] = value_of(codes, table, i);
}
