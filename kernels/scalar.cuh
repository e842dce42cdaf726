// The types in the arithmetic of y = alpha A x + beta y, and how a number goes from one to another.
//
//     Value   in which A is stored (where it is not coded: spmv/slices.cu)
//     X       of x
//     Sum     of every product and sum, of alpha and of beta
//     Y       of y
//
// Values and x are made Sum where they are loaded, and a sum is made Y where it is stored, so nothing between
// knows more than one type. Another type needs its conversions and its multiply_add here, and no more.
#pragma once

#ifndef DASP_VALUE
#error "define DASP_VALUE: the type in which values are stored, float or double"
#endif
#ifndef DASP_X
#error "define DASP_X: the type of x, float or double"
#endif
#ifndef DASP_SUM
#error "define DASP_SUM: the type of products and sums, float or double"
#endif
#ifndef DASP_Y
#error "define DASP_Y: the type of y, float or double"
#endif

using Value = DASP_VALUE;
using X = DASP_X;
using Sum = DASP_SUM;
using Y = DASP_Y;

// A number in another type. A float becomes a double with every bit kept: compiled with -ftz=true, a cast
// would first flush subnormals to zero, which takes one more instruction.
template <class To, class From> __device__ __forceinline__ To convert(From value) { return To(value); }
#ifndef DASP_SIMT
template <> __device__ __forceinline__ double convert<double, float>(float value)
{
    double wide;
    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(value));
    return wide;
}
#endif

// a b + c, rounded once.
__device__ __forceinline__ double multiply_add(double a, double b, double c) { return fma(a, b, c); }
__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fma(a, b, c); }

// A sum as a message of as many bits, and back.
__device__ __forceinline__ unsigned long long bits_of(double sum) { return __double_as_longlong(sum); }
__device__ __forceinline__ unsigned bits_of(float sum) { return __float_as_uint(sum); }
__device__ __forceinline__ double sum_of(unsigned long long bits) { return __longlong_as_double(bits); }
__device__ __forceinline__ float sum_of(unsigned bits) { return __uint_as_float(bits); }

using Bits = decltype(bits_of(Sum()));

// A signalling NaN, which no arithmetic gives: stands for a sum that is not there.
constexpr Bits ABSENT = sizeof(Bits) == 8 ? Bits(0x7ff4da5f00000000ull) : Bits(0x7fa0da5f);
