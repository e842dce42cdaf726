// A stable counting sort of the 8192 elements of a tile by six bits of a key: finds the place of each.
//
// A block has 32 warps of 256 elements each. Lane l of warp w has as its q-th element the one in slot
// 256 w + 32 q + l. Chunks of 128 slots are counted apart; `per_window` chunks are a window, sorted alone.
#pragma once

#include "csr/scan.cuh"

constexpr int SORT_THREADS = 1024, TILE = 8192, CHUNK = 128, CHUNKS = TILE / CHUNK;
constexpr int MINE = TILE / SORT_THREADS;  // elements of a thread
constexpr int DIGIT_BITS = 6, DIGITS = 1 << DIGIT_BITS, RANK_BITS = 16;

__device__ __forceinline__ int slot_of(int q) { return (int)(threadIdx.x / WARP) * WARP * MINE + WARP * q + lane_id(); }

struct DigitSort {
    unsigned short* counters;  // CHUNKS * DIGITS, by window, digit and chunk
    unsigned* sums;            // warps + 1
    int per_window;            // chunks of a window
    int chunks;                // of all windows; the last window may have fewer

    __device__ __forceinline__ bool has(int slot) const { return slot / CHUNK < chunks; }

    // The window of a slot. There are dozens of these divisions, of numbers up to 64: a product and a shift.
    __device__ __forceinline__ int window_of(int slot) const
    {
        static_assert(CHUNKS <= 64, "2^16 is enough for numbers up to 64");
        const int inverse = ((1 << 16) + per_window - 1) / per_window;
        return slot / CHUNK * inverse >> 16;
    }

    __device__ __forceinline__ int counter_of(int slot, unsigned digit) const
    {
        const int window = window_of(slot);
        return (window * DIGITS + (int)digit) * per_window + slot / CHUNK - window * per_window;
    }

    // Counts the elements of each chunk by digit, 0 to 63. Below each digit, puts the element's rank among
    // those of its chunk with the same digit.
    __device__ __forceinline__ void count(unsigned (&digit)[MINE]) const
    {
        for (int i = threadIdx.x; i < CHUNKS * DIGITS; i += SORT_THREADS) counters[i] = 0;
        __syncthreads();
#pragma unroll
        for (int q = 0; q < MINE; ++q) {
            if (!has(slot_of(q))) continue;  // the same for a whole warp
            const unsigned peers = __match_any_sync(ALL_LANES, digit[q]);
            const int counter = counter_of(slot_of(q), digit[q]);
            const unsigned before = counters[counter];
            digit[q] = digit[q] << RANK_BITS | (before + __popc(peers & lanes_before()));
            __syncwarp();
            if ((peers & lanes_before()) == 0) counters[counter] = (unsigned short)(before + __popc(peers));
            __syncwarp();
        }
        __syncthreads();
    }

    // Replaces the counts by the places at which elements of each window, digit and chunk begin.
    __device__ __forceinline__ void scan() const
    {
        constexpr int each = CHUNKS * DIGITS / SORT_THREADS;
        unsigned sum = 0, total;
#pragma unroll
        for (int k = 0; k < each; ++k) sum += counters[each * threadIdx.x + k];
        unsigned place = block_sum_before(sum, sums, total);
#pragma unroll
        for (int k = 0; k < each; ++k) {
            const unsigned here = counters[each * threadIdx.x + k];
            counters[each * threadIdx.x + k] = (unsigned short)place;
            place += here;
        }
        __syncthreads();
    }

    // The place of an element, from its digit and rank.
    __device__ __forceinline__ unsigned place_of(int slot, unsigned ranked) const
    {
        return counters[counter_of(slot, ranked >> RANK_BITS)] + (ranked & ((1u << RANK_BITS) - 1));
    }
};

// Six bits of a key that is not negative.
template <class Key> __device__ __forceinline__ unsigned digit_of(Key key, int shift)
{
    return unsigned(key >> shift) & (DIGITS - 1);
}
