// float16 and bfloat16 as their 16 bits, so that no header but ours is needed.
#pragma once

#ifdef DASP_SIMT
#include <cuda_fp16.h>
#endif

using Half = unsigned short;

__device__ __forceinline__ float float16_to_float(Half bits)
{
#ifdef DASP_SIMT
    return simt::half_to_float(bits);
#else
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#endif
}

__device__ __forceinline__ float bfloat16_to_float(Half bits)
{
#ifdef DASP_SIMT
    return simt::bfloat16_to_float(bits);
#else
    return __uint_as_float(unsigned(bits) << 16);
#endif
}

// Both round to nearest, ties to even.
__device__ __forceinline__ Half float_to_float16(float value)
{
#ifdef DASP_SIMT
    return simt::double_to_half(double(value));
#else
    Half bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#endif
}

__device__ __forceinline__ Half float_to_bfloat16(float value)
{
#ifdef DASP_SIMT
    return simt::float_to_bfloat16(value);
#else
    Half bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#endif
}
