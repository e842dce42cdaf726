// Types of numbers beside float and double, conversions between all types, products and sums.
//
//     Float16, Bfloat16   16 bits in memory; converted to float when loaded, rounded once when stored
//     Complex<Real>       the real part, then the imaginary one; aligned in memory to 2 sizeof(Real) bytes
//
// Another type needs its conversions, its multiply_add and, if it is wider than a word, its loads here.
#pragma once

#include "half.cuh"
#include "warp.cuh"

struct Float16 {
    Half bits;
};

struct Bfloat16 {
    Half bits;
};

template <class T> struct Complex {
    T real, imag;

    Complex() = default;
    __device__ __forceinline__ Complex(T real, T imag = 0) : real(real), imag(imag) {}
};

template <class T> struct Parts {
    using Real = T;
    static constexpr bool are_two = false;
};
template <class T> struct Parts<Complex<T>> {
    using Real = T;
    static constexpr bool are_two = true;
};

template <bool, class Yes, class No> struct Choose {
    using type = Yes;
};
template <class Yes, class No> struct Choose<false, Yes, No> {
    using type = No;
};

// The type to which a T is converted to be multiplied and added to a Sum: a real number stays real.
template <class Sum, class T>
using Multiplied = typename Choose<Parts<T>::are_two, Sum, typename Parts<Sum>::Real>::type;

// ---- conversions -----------------------------------------------------------------------------------

template <class T> __device__ __forceinline__ T widened(T value) { return value; }
__device__ __forceinline__ float widened(Float16 value) { return float16_to_float(value.bits); }
__device__ __forceinline__ float widened(Bfloat16 value) { return bfloat16_to_float(value.bits); }

template <class To> struct Conversion {
    template <class From> static __device__ __forceinline__ To of(From value) { return To(value); }
};

// A float becomes a double with every bit kept: compiled with -ftz=true, a cast would first flush subnormals to
// zero, which takes one more instruction.
#ifndef DASP_SIMT
template <> struct Conversion<double> {
    template <class From> static __device__ __forceinline__ double of(From value) { return double(value); }
    static __device__ __forceinline__ double of(float value)
    {
        double wide;
        asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(value));
        return wide;
    }
};
#endif

template <> struct Conversion<Float16> {
    static __device__ __forceinline__ Float16 of(float value) { return {float_to_float16(value)}; }
};

template <> struct Conversion<Bfloat16> {
    static __device__ __forceinline__ Bfloat16 of(float value) { return {float_to_bfloat16(value)}; }
};

template <class T> struct Conversion<Complex<T>> {
    template <class From> static __device__ __forceinline__ Complex<T> of(From value)
    {
        return {Conversion<T>::of(value), T(0)};
    }
    template <class From> static __device__ __forceinline__ Complex<T> of(Complex<From> value)
    {
        return {Conversion<T>::of(value.real), Conversion<T>::of(value.imag)};
    }
};

// A number in another type, rounded to nearest where that is narrower.
template <class To, class From> __device__ __forceinline__ To convert(From value)
{
    return Conversion<To>::of(widened(value));
}

// ---- products and sums -----------------------------------------------------------------------------

// a b + c; each part of the result is rounded once for each real product in it.
__device__ __forceinline__ double multiply_add(double a, double b, double c) { return fma(a, b, c); }
__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fma(a, b, c); }

template <class T> __device__ __forceinline__ Complex<T> multiply_add(T a, Complex<T> b, Complex<T> c)
{
    return {multiply_add(a, b.real, c.real), multiply_add(a, b.imag, c.imag)};
}
template <class T> __device__ __forceinline__ Complex<T> multiply_add(Complex<T> a, T b, Complex<T> c)
{
    return multiply_add(b, a, c);
}
template <class T> __device__ __forceinline__ Complex<T> multiply_add(Complex<T> a, Complex<T> b, Complex<T> c)
{
    return {multiply_add(a.real, b.real, multiply_add(-a.imag, b.imag, c.real)),
            multiply_add(a.real, b.imag, multiply_add(a.imag, b.real, c.imag))};
}

template <class T> __device__ __forceinline__ Complex<T> operator+(Complex<T> a, Complex<T> b)
{
    return {a.real + b.real, a.imag + b.imag};
}
template <class T> __device__ __forceinline__ Complex<T>& operator+=(Complex<T>& a, Complex<T> b) { return a = a + b; }
template <class T> __device__ __forceinline__ Complex<T> operator-(Complex<T> a, Complex<T> b)
{
    return {a.real - b.real, a.imag - b.imag};
}
template <class T> __device__ __forceinline__ Complex<T> operator-(Complex<T> a) { return {-a.real, -a.imag}; }
template <class T> __device__ __forceinline__ Complex<T>& operator-=(Complex<T>& a, Complex<T> b) { return a = a - b; }
template <class T> __device__ __forceinline__ Complex<T> operator*(T a, Complex<T> b)
{
    return {a * b.real, a * b.imag};
}
template <class T> __device__ __forceinline__ Complex<T> operator*(Complex<T> a, Complex<T> b)
{
    return {a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real};
}
template <class T> __device__ __forceinline__ bool operator==(Complex<T> a, Complex<T> b)
{
    return a.real == b.real && a.imag == b.imag;
}

// A factor times a sum. A factor whose imaginary part is 0 multiplies as a real number, so that 1 times an
// infinite sum is that sum and not NaN.
template <class T> __device__ __forceinline__ T scaled(T factor, T sum) { return factor * sum; }
template <class T> __device__ __forceinline__ Complex<T> scaled(Complex<T> factor, Complex<T> sum)
{
    const Complex<T> real(factor.real * sum.real, factor.real * sum.imag);
    if (factor.imag == T(0)) return real;
    return {real.real - factor.imag * sum.imag, real.imag + factor.imag * sum.real};
}

// ---- a number as its parts -------------------------------------------------------------------------

template <class T> __device__ __forceinline__ T part(T value, int) { return value; }
template <class T> __device__ __forceinline__ T part(Complex<T> value, int number)
{
    return number ? value.imag : value.real;
}
template <class T> __device__ __forceinline__ void set_part(T& value, int, T given) { value = given; }
template <class T> __device__ __forceinline__ void set_part(Complex<T>& value, int number, T given)
{
    (number ? value.imag : value.real) = given;
}

// The bits of a real number, to be sent as a message, and the number with given bits.
__device__ __forceinline__ unsigned long long bits_of(double sum) { return __double_as_longlong(sum); }
__device__ __forceinline__ unsigned bits_of(float sum) { return __float_as_uint(sum); }
__device__ __forceinline__ double sum_of(unsigned long long bits) { return __longlong_as_double(bits); }
__device__ __forceinline__ float sum_of(unsigned bits) { return __uint_as_float(bits); }

// ---- loads, stores and exchanges (warp.cuh) --------------------------------------------------------

// The two parts of a complex number as one word.
template <class T> struct Pair;
template <> struct Pair<float> {
    using type = float2;
};
template <> struct Pair<double> {
    using type = double2;
};
template <class T> __device__ __forceinline__ const typename Pair<T>::type* as_pair(const Complex<T>* address)
{
    return reinterpret_cast<const typename Pair<T>::type*>(address);
}

__device__ __forceinline__ Float16 load_stream(const Float16* address) { return {load_stream(&address->bits)}; }
__device__ __forceinline__ Float16 load_cached(const Float16* address) { return {load_cached(&address->bits)}; }
__device__ __forceinline__ Float16 load_result(const Float16* address) { return {load_result(&address->bits)}; }
__device__ __forceinline__ Bfloat16 load_stream(const Bfloat16* address) { return {load_stream(&address->bits)}; }
__device__ __forceinline__ Bfloat16 load_cached(const Bfloat16* address) { return {load_cached(&address->bits)}; }
__device__ __forceinline__ Bfloat16 load_result(const Bfloat16* address) { return {load_result(&address->bits)}; }

template <class T> __device__ __forceinline__ Complex<T> load_stream(const Complex<T>* address)
{
    const auto pair = load_stream(as_pair(address));
    return {pair.x, pair.y};
}
template <class T> __device__ __forceinline__ Complex<T> load_cached(const Complex<T>* address)
{
    const auto pair = load_cached(as_pair(address));
    return {pair.x, pair.y};
}
template <class T> __device__ __forceinline__ Complex<T> load_result(const Complex<T>* address)
{
    const auto pair = load_result(as_pair(address));
    return {pair.x, pair.y};
}

// Plain loads and stores, of a whole number at once.
template <class T> __device__ __forceinline__ T load_plain(const T* address) { return *address; }
template <class T> __device__ __forceinline__ Complex<T> load_plain(const Complex<T>* address)
{
    const auto pair = *as_pair(address);
    return {pair.x, pair.y};
}
template <class T> __device__ __forceinline__ void store_plain(T* address, T value) { *address = value; }
template <class T> __device__ __forceinline__ void store_plain(Complex<T>* address, Complex<T> value)
{
    *reinterpret_cast<typename Pair<T>::type*>(address) = {value.real, value.imag};
}

template <class T> __device__ __forceinline__ Complex<T> from_other_lane(Complex<T> value, int flip)
{
    return {from_other_lane(value.real, flip), from_other_lane(value.imag, flip)};
}
