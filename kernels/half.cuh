// float16 and bfloat16 as their 16 bits, so that no header but ours is needed. DASP_BFLOAT16 chooses.
#pragma once

#ifdef DASP_SIMT
#include <cuda_fp16.h>
#endif

using Half = unsigned short;

#ifndef DASP_BFLOAT16
#define DASP_BFLOAT16 0
#endif

__device__ __forceinline__ float to_float(Half bits)
{
#ifdef DASP_SIMT
    return DASP_BFLOAT16 ? simt::bfloat16_to_float(bits) : simt::half_to_float(bits);
#else
    float value;
    if (DASP_BFLOAT16)
        value = __uint_as_float(unsigned(bits) << 16);
    else
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#endif
}

// Rounds to nearest, ties to even.
__device__ __forceinline__ Half to_half(float value)
{
#ifdef DASP_SIMT
    return DASP_BFLOAT16 ? simt::float_to_bfloat16(value) : simt::double_to_half(double(value));
#else
    Half bits;
    if (DASP_BFLOAT16)
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    else
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#endif
}
