// The last word of a slice's header, from its lowest bit: steps (12), full steps (12), log2 of the lanes to a row (3),
// width of its deltas (2). dasp/formats/sell/pattern.py writes it on the CPU.
#pragma once

constexpr int WIDTH_SHIFT = 27;

__device__ __forceinline__ int steps_of(const uint4& header) { return header.w & 0xfff; }
__device__ __forceinline__ int full_of(const uint4& header) { return header.w >> 12 & 0xfff; }
__device__ __forceinline__ int shift_of(const uint4& header) { return header.w >> 24 & 7; }
__device__ __forceinline__ int width_of(const uint4& header) { return header.w >> WIDTH_SHIFT & 3; }
