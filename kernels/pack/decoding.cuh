// The value that a code stands for, as its bits.
#pragma once

#include "coding.cuh"

__device__ __forceinline__ Bits value_of(const Code* codes, const Bits* table, long long i)
{
#if DASP_CODING == CODING_SINGLE && DASP_KIND == KIND_COMPLEX
    return of_parts(SingleBits::widen<Part>(unsigned(codes[i])), SingleBits::widen<Part>(unsigned(codes[i] >> 32)));
#elif DASP_CODING == CODING_SINGLE || DASP_CODING == CODING_REAL_SINGLE
    return of_parts(SingleBits::widen<Part>(codes[i]), 0);
#elif DASP_CODING == CODING_HALF
    return of_parts(HalfBits::widen<Part>(codes[i]), 0);
#elif DASP_CODING == CODING_BYTE
    return of_parts(of_byte<Part>(codes[i]), 0);
#elif DASP_CODING == CODING_REAL
    return of_parts(codes[i], 0);
#elif DASP_CODING == CODING_DICTIONARY
    return table[codes[i]];
#elif DASP_CODING == CODING_EQUAL
    return table[0];
#else
    return codes[i];
#endif
}
