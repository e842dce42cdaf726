// The column and the value of a slot of a slice, as stored and as multiplied. slices.cu describes the arrays.
#pragma once

#include "header.cuh"
#include "spmv/tile.cuh"

#ifndef DASP_CODING
#error "define DASP_CODING: how values are stored, the number of a Coding in pattern.py"
#endif

#if DASP_CODING == CODING_SINGLE
using Code = Choose<Parts<Value>::are_two, Complex<float>, float>::type;
#elif DASP_CODING == CODING_BYTE
using Code = signed char;
#elif DASP_CODING == CODING_DICTIONARY || DASP_CODING == CODING_EQUAL
using Code = unsigned char;
#else
using Code = Value;
#endif

// Stands for the type of deltas that are not stored.
struct LaneDelta {};

struct Slices {
    const Index* bases;
    const unsigned char* deltas;
    const Code* values;
    const Value* table;
};

// True if the code of a pad stands for some value, so that pads must be left out; else a pad's value is 0.
constexpr bool CODED = DASP_CODING == CODING_DICTIONARY || DASP_CODING == CODING_EQUAL;

// DASP_KEEP: the share of deltas and values that stays in the second-level cache from one product to the
// next. It is not used with DASP_DOT: the hints take registers.
template <class T> __device__ __forceinline__ T load_plan(const T* address)
{
#if defined(DASP_KEEP) && !DASP_DOT
    return load_kept(address, DASP_KEEP);
#else
    return load_stream(address);
#endif
}

// The code of a slot; 0 if codes are not stored.
__device__ __forceinline__ Code load_code(const Code* code)
{
#if DASP_CODING == CODING_EQUAL
    return 0;
#else
    return load_plan(code);
#endif
}

// The value that a code stands for, ready to be multiplied.
__device__ __forceinline__ Factor factor_of(Code code, const Value* table)
{
#if DASP_CODING == CODING_EQUAL
    return convert<Factor>(load_cached(table));
#elif DASP_CODING == CODING_DICTIONARY
    return convert<Factor>(load_cached(table + code));
#else
    return convert<Factor>(code);
#endif
}

__device__ __forceinline__ Factor load_value(const Slices& slices, long long slot)
{
    return factor_of(load_code(slices.values + slot), slices.table);
}

// The column base + delta, PAD if all bits of the delta are set.
template <class Delta> __device__ __forceinline__ Index column_of(Index base, Delta delta)
{
    const Index column = base + Index(delta);
    return delta == Delta(-1) ? PAD : column;
}

// The column of a slot in the step that has this base and these deltas, PAD for a pad.
template <class Delta>
__device__ __forceinline__ Index load_column(const Index* base, const Delta* deltas, int slot = lane_id())
{
    return column_of(load_cached(base), load_plan(deltas + slot));
}

// Deltas of width 0 are not stored: they are the slots' numbers.
template <> __device__ __forceinline__ Index load_column(const Index* base, const LaneDelta*, int slot)
{
    return load_cached(base) + slot;
}
