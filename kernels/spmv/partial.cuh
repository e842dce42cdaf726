// The second stage of a row that several warps share: the warp of its last segment adds all partials.
//
// A partial is its own message, so there is no fence and no counter: its slot holds ABSENT until a warp stores
// a sum there, and the warp that waits for the sum puts ABSENT back. It waits for warps of lower numbers only,
// and a GPU starts the blocks of a grid in the order of their numbers, so whatever it waits for is running.
#pragma once

#include "tile.cuh"

__device__ __forceinline__ unsigned long long bits_of(double value) { return __double_as_longlong(value); }
__device__ __forceinline__ unsigned bits_of(float value) { return __float_as_uint(value); }
__device__ __forceinline__ double value_of(unsigned long long bits) { return __longlong_as_double(bits); }
__device__ __forceinline__ float value_of(unsigned bits) { return __uint_as_float(bits); }

using Bits = decltype(bits_of(Scalar()));

// A signalling NaN, which no arithmetic gives. The host fills new slots with it.
constexpr Bits ABSENT = sizeof(Bits) == 8 ? Bits(0x7ff4da5f00000000ull) : Bits(0x7fa0da5f);

// Messages that are looked for at once.
constexpr int LOOKS = 4;

// Every warp of the row calls this once, with the sum of its own segment in every lane.
// slots (last): one for each segment but the last; all ABSENT before and after each launch.
// Deterministic: which warp is late is chance, but the order in which sums are added is not.
__device__ __forceinline__ void deliver(Scalar sum, Bits* slots, long long segment, long long last, Index row,
                                        const Result& result)
{
    if (segment < last) {
        if (lane_id() == 0) store_message(slots + segment, bits_of(sum));
        return;
    }

    Scalar total = 0;
    for (long long i = lane_id(); i < last; i += 32 * LOOKS) {
        Bits found[LOOKS];
        bool absent = true;
        while (absent) {
            absent = false;
#pragma unroll
            for (int k = 0; k < LOOKS; ++k) {
                found[k] = i + 32 * k < last ? load_message(slots + i + 32 * k) : bits_of(Scalar(0));
                absent = absent || found[k] == ABSENT;
            }
            if (absent) __nanosleep(20);
        }
#pragma unroll
        for (int k = 0; k < LOOKS; ++k) {
            if (i + 32 * k < last) store_message(slots + i + 32 * k, ABSENT);
            total += value_of(found[k]);
        }
    }
    __syncwarp();
    total = warp_sum(total) + sum;
    if (lane_id() == 0) result.store(row, total);
}
