// The last word of a slice's header, its shape, from the lowest bit: steps (12), full steps (12), log2 of the
// lanes to a row (3), width of its deltas (2; 0 to 3 for 0, 8, 16 or 32 bits). On the CPU
// dasp/formats/sell/pattern.py writes it.
#pragma once

constexpr int WIDTH_SHIFT = 27;

__device__ __forceinline__ unsigned shape_of(unsigned steps, unsigned full, unsigned shift)
{
    return steps | full << 12 | shift << 24;
}

__device__ __forceinline__ int steps_of(unsigned shape) { return shape & 0xfff; }
__device__ __forceinline__ int full_of(unsigned shape) { return shape >> 12 & 0xfff; }
__device__ __forceinline__ int shift_of(unsigned shape) { return shape >> 24 & 7; }
__device__ __forceinline__ int width_of(unsigned shape) { return shape >> WIDTH_SHIFT & 3; }

__device__ __forceinline__ int steps_of(const uint4& header) { return steps_of(header.w); }
__device__ __forceinline__ int full_of(const uint4& header) { return full_of(header.w); }
__device__ __forceinline__ int shift_of(const uint4& header) { return shift_of(header.w); }
__device__ __forceinline__ int width_of(const uint4& header) { return width_of(header.w); }

// The numbers of a Coding in pattern.py: how the values of slices are stored, as DASP_CODING says.
#define CODING_PLAIN 0
#define CODING_SINGLE 1
#define CODING_BYTE 2
#define CODING_DICTIONARY 3
#define CODING_EQUAL 4
