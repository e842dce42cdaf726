// Storage types half and bfloat16 with conversions that round to nearest, ties to even, and the arithmetic
// that kernels use: each operation rounds once, as the GPU's does.
#pragma once
#include "simt.h"

namespace simt {

inline float half_to_float(unsigned short h)
{
    const unsigned sign = unsigned(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
    if (exponent == 31)
        return bits<float>(sign | 0x7f800000u | fraction << 13);
    if (exponent)
        return bits<float>(sign | (exponent + 112) << 23 | fraction << 13);
    const float tiny = float(fraction) * (1.0f / 16777216.0f);
    return sign ? -tiny : tiny;
}

// From double, so that a fused multiply-add of halves, exact in double but for the sum, rounds as one.
inline unsigned short double_to_half(double d)
{
    const unsigned long long u = bits<unsigned long long>(d);
    const unsigned short sign = (unsigned short)(u >> 48 & 0x8000);
    const double a = __builtin_fabs(d);
    if (d != d)
        return sign | 0x7fff;
    if (a >= 65520.0)
        return sign | 0x7c00;
    if (a < 6.103515625e-05) // subnormal: the unit is 2^-24
        return sign | (unsigned short)__builtin_rint(a * 16777216.0);
    const int exponent = int(u >> 52 & 0x7ff) - 1023;
    const double unit = bits<double>((unsigned long long)(1023 + 10 - exponent) << 52);
    const unsigned rounded = unsigned(__builtin_rint(a * unit)); // 1024 .. 2048
    return sign | (unsigned short)((unsigned(exponent + 14) << 10) + rounded);
}

inline float bfloat16_to_float(unsigned short b) { return bits<float>(unsigned(b) << 16); }

inline unsigned short float_to_bfloat16(float f)
{
    const unsigned u = bits<unsigned>(f);
    if (f != f)
        return 0x7fff;
    return (unsigned short)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

// Round a double to float "to odd", so that rounding again to fewer bits gives the right nearest value.
inline float to_odd(double d)
{
    const float f = float(d);
    if (double(f) == d || d != d || __builtin_isinf(f))
        return f;
    const unsigned u = bits<unsigned>(f);
    if (u & 1)
        return f;
    const bool away = __builtin_fabs(d) > __builtin_fabs(double(f));
    return bits<float>(away ? u + 1 : u - 1);
}

} // namespace simt

#define SIMT_HALF(H, TO_FLOAT, FROM_DOUBLE)                                                                 \
    struct __attribute__((aligned(2))) H {                                                                  \
        unsigned short bits;                                                                                \
        H() = default;                                                                                      \
        H(float value) : bits(FROM_DOUBLE(double(value))) {}                                                \
        H(double value) : bits(FROM_DOUBLE(value)) {}                                                       \
        H(int value) : bits(FROM_DOUBLE(double(value))) {}                                                  \
        operator float() const { return TO_FLOAT(bits); }                                                   \
    };                                                                                                      \
    struct __attribute__((aligned(4))) H##2 {                                                               \
        H x, y;                                                                                             \
    };                                                                                                      \
    inline H operator+(H a, H b) { return H(double(float(a)) + double(float(b))); }                         \
    inline H operator-(H a, H b) { return H(double(float(a)) - double(float(b))); }                         \
    inline H operator*(H a, H b) { return H(double(float(a)) * double(float(b))); }                         \
    inline H& operator+=(H& a, H b) { return a = a + b; }                                                   \
    inline H& operator*=(H& a, H b) { return a = a * b; }                                                   \
    inline H __hadd(H a, H b) { return a + b; }                                                             \
    inline H __hsub(H a, H b) { return a - b; }                                                             \
    inline H __hmul(H a, H b) { return a * b; }                                                             \
    inline H __hfma(H a, H b, H c) { return H(double(float(a)) * double(float(b)) + double(float(c))); }    \
    inline H##2 __hadd2(H##2 a, H##2 b) { return {a.x + b.x, a.y + b.y}; }                                  \
    inline H##2 __hmul2(H##2 a, H##2 b) { return {a.x * b.x, a.y * b.y}; }                                  \
    inline H##2 __hfma2(H##2 a, H##2 b, H##2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }  \
    namespace simt {                                                                                        \
    template <> struct is_word<H> { static constexpr bool value = true; };                                  \
    template <> struct is_word<H##2> { static constexpr bool value = true; };                               \
    }

#define SIMT_BFLOAT16(d) simt::float_to_bfloat16(simt::to_odd(d))
SIMT_HALF(__half, simt::half_to_float, simt::double_to_half)
SIMT_HALF(__nv_bfloat16, simt::bfloat16_to_float, SIMT_BFLOAT16)
#undef SIMT_HALF

using half = __half;
using half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline float __half2float(__half h) { return h; }
inline __half __float2half(float f) { return __half(f); }
inline __half __float2half_rn(float f) { return __half(f); }
inline __half __double2half(double d) { return __half(d); }
inline __half2 __floats2half2_rn(float a, float b) { return {__half(a), __half(b)}; }
inline __half2 __float2half2_rn(float a) { return {__half(a), __half(a)}; }
inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
inline __half2 __half2half2(__half a) { return {a, a}; }
inline __half2 make_half2(__half a, __half b) { return {a, b}; }
inline float2 __half22float2(__half2 v) { return {v.x, v.y}; }
inline float __low2float(__half2 v) { return v.x; }
inline float __high2float(__half2 v) { return v.y; }
inline __half __low2half(__half2 v) { return v.x; }
inline __half __high2half(__half2 v) { return v.y; }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline __half __ushort_as_half(unsigned short u) { return simt::bits<__half>(u); }

inline float __bfloat162float(__nv_bfloat16 h) { return h; }
inline __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
inline __nv_bfloat16 __double2bfloat16(double d) { return __nv_bfloat16(d); }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__nv_bfloat16(a), __nv_bfloat16(b)}; }
inline __nv_bfloat162 __float2bfloat162_rn(float a) { return {__nv_bfloat16(a), __nv_bfloat16(a)}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {v.x, v.y}; }
inline float __low2float(__nv_bfloat162 v) { return v.x; }
inline float __high2float(__nv_bfloat162 v) { return v.y; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u) { return simt::bits<__nv_bfloat16>(u); }
