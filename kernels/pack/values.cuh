// Values as their bits, so that nothing is rounded, flushed or made quiet: their order, their hash, the narrower
// types that keep every bit of them, and their codes.
#pragma once

#include "header.cuh"
#include "pack/pack.cuh"

#ifndef DASP_VALUE_BYTES
#error "define DASP_VALUE_BYTES, 2, 4, 8 or 16, and DASP_PLACE: bytes of a value, and the type of places among them"
#endif
#ifndef DASP_COMPLEX
#error "define DASP_COMPLEX: 1 if values are complex numbers, 0 if real ones"
#endif
#ifndef DASP_CODING
#error "define DASP_CODING: how values are stored, the number of a Coding in pattern.py"
#endif
#ifndef DASP_BFLOAT16
#define DASP_BFLOAT16 0  // 1 if the real numbers of 2 bytes are bfloat16, and not float16
#endif

using Place = DASP_PLACE;

#if DASP_VALUE_BYTES == 2
using Bits = unsigned short;
#elif DASP_VALUE_BYTES == 4
using Bits = unsigned;
#elif DASP_VALUE_BYTES == 8
using Bits = unsigned long long;
#else
using Bits = ulonglong2;
#endif

template <class T> __device__ __forceinline__ bool same(T a, T b) { return a == b; }
__device__ __forceinline__ bool same(ulonglong2 a, ulonglong2 b) { return a.x == b.x && a.y == b.y; }

template <class T> __device__ __forceinline__ bool is_less(T a, T b) { return a < b; }
__device__ __forceinline__ bool is_less(ulonglong2 a, ulonglong2 b) { return a.x < b.x || (a.x == b.x && a.y < b.y); }

// Values in the order of the plan: `order` says where each stands, or is null where they stand in that order.
struct Values {
    const Bits* data;
    const Place* order;

    __device__ __forceinline__ Bits at(long long i) const { return data[order ? (long long)order[i] : i]; }
};

// Slots of a table of MOST_CODES values. They are many: a warp looks up 32, and waits for all that collide.
constexpr int MOST_CODES = 256, SLOTS = sizeof(Bits) == 16 ? 1024 : 2048;

__device__ __forceinline__ unsigned mixed(unsigned short bits) { return bits; }
__device__ __forceinline__ unsigned mixed(unsigned bits) { return bits; }
__device__ __forceinline__ unsigned mixed(unsigned long long bits)
{
    return unsigned(bits) + unsigned(bits >> 32) * 0x9e3779b1u;
}
__device__ __forceinline__ unsigned mixed(ulonglong2 bits) { return mixed(bits.x) * 0xc2b2ae35u + mixed(bits.y); }

__device__ __forceinline__ int slot_of(Bits bits)
{
    return int(mixed(bits) * 0x85ebca6bu >> (SLOTS == 1024 ? 22 : 21));
}

// A binary floating-point number: (-1)^negative 1.fraction 2^exponent, the fraction in 52 bits. tiny: a
// subnormal number; no narrower type has a number so small.
struct Number {
    bool negative, zero, tiny, special;
    int exponent;
    unsigned long long fraction;
};

template <int EXPONENT_BITS, int FRACTION_BITS> __device__ __forceinline__ Number number_of(unsigned long long bits)
{
    constexpr int ones = (1 << EXPONENT_BITS) - 1;
    const int field = int(bits >> FRACTION_BITS) & ones;
    const unsigned long long fraction = bits & ((1ull << FRACTION_BITS) - 1);
    return {bool(bits >> (EXPONENT_BITS + FRACTION_BITS) & 1), field == 0 && fraction == 0,
            field == 0 && fraction != 0, field == ones, field - ones / 2, fraction << (52 - FRACTION_BITS)};
}

__device__ __forceinline__ Number number_of(unsigned short bits)
{
    return DASP_BFLOAT16 ? number_of<8, 7>(bits) : number_of<5, 10>(bits);
}
__device__ __forceinline__ Number number_of(unsigned bits) { return number_of<8, 23>(bits); }
__device__ __forceinline__ Number number_of(unsigned long long bits) { return number_of<11, 52>(bits); }

// The bits of a number in a type, in which it is not subnormal.
template <int EXPONENT_BITS, int FRACTION_BITS> __device__ __forceinline__ unsigned long long bits_of(const Number& x)
{
    constexpr int ones = (1 << EXPONENT_BITS) - 1;
    const unsigned long long sign = (unsigned long long)x.negative << (EXPONENT_BITS + FRACTION_BITS);
    if (x.zero) return sign;
    const unsigned long long field = x.special ? ones : x.exponent + ones / 2;
    return sign | field << FRACTION_BITS | x.fraction >> (52 - FRACTION_BITS);
}

template <class T> __device__ __forceinline__ T as_bits(const Number& x)
{
    if (sizeof(T) == 2) return T(DASP_BFLOAT16 ? bits_of<8, 7>(x) : bits_of<5, 10>(x));
    return T(sizeof(T) == 8 ? bits_of<11, 52>(x) : bits_of<8, 23>(x));
}

// Whether it is an integer from -128 to 127, and no negative zero.
__device__ __forceinline__ bool is_byte(const Number& x)
{
    if (x.zero) return !x.negative;
    if (x.tiny || x.special || x.exponent < 0 || x.exponent > 7) return false;
    if (x.exponent == 7) return x.negative && x.fraction == 0;
    return (x.fraction & ((1ull << (52 - x.exponent)) - 1)) == 0;
}

__device__ __forceinline__ signed char as_byte(const Number& x)
{
    if (x.zero) return 0;
    const int size = int((1ull << 52 | x.fraction) >> (52 - x.exponent));
    return (signed char)(x.negative ? -size : size);
}

template <class T> __device__ __forceinline__ T of_byte(signed char code)
{
    const unsigned size = code < 0 ? -int(code) : code;
    const int exponent = 31 - __clz(size);
    return as_bits<T>({code < 0, size == 0, false, false, exponent,
                       size ? ((unsigned long long)size << (52 - exponent)) & ((1ull << 52) - 1) : 0});
}

// A float32 that holds every bit of a float64, given as bits. A NaN keeps its bits if those that are cut off are 0
// and if it is quiet, as conversions make NaNs quiet.
struct Single {
    static constexpr int bias = 127, least = 1 - bias, bits = 23, cut = 52 - bits;

    static __device__ __forceinline__ bool keeps(unsigned long long value)
    {
        const Number x = number_of(value);
        if (x.zero) return true;
        if (x.tiny) return false;
        if (x.special) return (x.fraction & ((1ull << cut) - 1)) == 0 && (x.fraction == 0 || x.fraction >> 51);
        if (x.exponent > bias || x.exponent < least - bits) return false;
        const int lost = cut + max(least - x.exponent, 0);  // bits below the last one of the float32
        return (x.fraction & ((1ull << lost) - 1)) == 0;
    }
    static __device__ __forceinline__ bool keeps(ulonglong2 value) { return keeps(value.x) && keeps(value.y); }

    static __device__ __forceinline__ unsigned convert(unsigned long long value)
    {
        const Number x = number_of(value);
        const unsigned sign = unsigned(x.negative) << 31, fraction = unsigned(x.fraction >> cut);
        if (x.zero) return sign;
        if (x.special) return sign | unsigned(2 * bias + 1) << bits | fraction;
        if (x.exponent >= least) return sign | unsigned(x.exponent + bias) << bits | fraction;
        return sign | unsigned((1ull << 52 | x.fraction) >> (cut + least - x.exponent));
    }
    static __device__ __forceinline__ unsigned long long convert(ulonglong2 value)
    {
        return (unsigned long long)convert(value.y) << 32 | convert(value.x);
    }

    // The way back; no float32 is subnormal as a float64.
    static __device__ __forceinline__ unsigned long long widen(unsigned value)
    {
        Number x = number_of(value);
        if (x.tiny) {
            const int places = __clzll((long long)x.fraction) - 11;  // by which its first bit is below the unit's
            x.fraction = (x.fraction << places) & ((1ull << 52) - 1);
            x.exponent = least - places;
        }
        return as_bits<unsigned long long>(x);
    }
    static __device__ __forceinline__ ulonglong2 widen(unsigned long long value)
    {
        return {widen(unsigned(value)), widen(unsigned(value >> 32))};
    }
};

// Whether a byte, and singles, keep every bit of a value.
#if DASP_COMPLEX
__device__ __forceinline__ bool are_bytes(Bits) { return false; }
#else
__device__ __forceinline__ bool are_bytes(Bits bits) { return is_byte(number_of(bits)); }
#endif
#if DASP_VALUE_BYTES == (DASP_COMPLEX ? 16 : 8)
__device__ __forceinline__ bool are_singles(Bits bits) { return Single::keeps(bits); }
#else
__device__ __forceinline__ bool are_singles(Bits) { return false; }
#endif

// ---- codes ------------------------------------------------------------------------------------------

// The type that moves codes as their bits.
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
