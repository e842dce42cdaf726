// The values of a matrix: how few bits hold them.
//
// data (count): the values as bits. order (count) or null: where the i-th value in the order of the plan stands.
//
// dasp_value_facts: one dimension, any number of blocks of 256 threads. facts (2), claims, firsts (1024): 0 before.
//     facts: bits of `Dead`, and distinct values if NOT_DICTIONARY is not among them. In a table with open addressing
//     a claim is 1 + the place of some value that has the slot, and a first the first such place, bits flipped.
// dasp_dictionary: one block of 1024 threads. keys, ranks (1024): the value and the code of a slot, NO_RANK where
//     there is none; table: the values in the order of their first appearance, which is that of their codes.

#include "values.cuh"

#ifndef DASP_NARROWS
#error "define DASP_NARROWS: 1 if values are real numbers of which narrower types may hold all bits, else 0"
#endif

// What the values are not, as far as is known.
enum Dead : unsigned { NOT_EQUAL = 1, NOT_BYTES = 2, NOT_DICTIONARY = 4, NOT_HALVES = 8, NOT_SINGLES = 16, ALL = 31 };

constexpr int THREADS = 256, AT_ONCE = 4;

__device__ __forceinline__ unsigned dead_of(Bits bits, Bits first)
{
    unsigned dead = same(bits, first) ? 0u : unsigned(NOT_EQUAL);
#if DASP_NARROWS
    const Number x = number_of(bits);
    if (!is_byte(x)) dead |= NOT_BYTES;
    if (!HalfBits::keeps(x)) dead |= NOT_HALVES;
    if (sizeof(Bits) < 8 || !SingleBits::keeps(x)) dead |= NOT_SINGLES;
#else
    dead |= NOT_BYTES | NOT_HALVES | NOT_SINGLES;
#endif
    return dead;
}

// Distinct values: in shared memory those of a block, in global memory those of all.
struct Distinct {
    Count *claims, *firsts, *count;

    // Puts in the value that stands at place i; false if there are too many.
    __device__ bool insert(const Values& values, Bits bits, Count i) const
    {
        for (int slot = slot_of(bits);; slot = (slot + 1) % SLOTS) {
            Count claim = peek(claims + slot);
            if (claim == 0) {
                if (peek(count) > MOST_CODES) return false;
                claim = atomicCAS(claims + slot, 0ull, i + 1);
                if (claim == 0 && atomicAdd(count, 1ull) >= MOST_CODES) return false;
            }
            if (claim == 0 || same(values.at(claim - 1), bits)) {
                if (peek(firsts + slot) < ~i) atomicMax(firsts + slot, ~i);
                return true;
            }
        }
    }
};

template <class T> __device__ __forceinline__ unsigned lanes_with(T bits) { return __match_any_sync(ALL_LANES, bits); }
__device__ __forceinline__ unsigned lanes_with(unsigned short bits) { return lanes_with(unsigned(bits)); }
__device__ __forceinline__ unsigned lanes_with(ulonglong2 bits) { return lanes_with(bits.x) & lanes_with(bits.y); }

// Puts in the values of a warp, each distinct one by the first lane that has it. False for too many.
__device__ __forceinline__ bool insert_warp(const Distinct& found, const Values& values, Bits bits, bool valid, Count i)
{
    const unsigned others = lanes_with(bits) & __ballot_sync(ALL_LANES, valid);
    return !valid || (others & lanes_before()) || found.insert(values, bits, i);
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
dasp_value_facts(const Bits* __restrict__ data, const Place* __restrict__ order, long long count, Count* facts,
                 Count* claims, Count* firsts)
{
    __shared__ Count block_claims[SLOTS], block_firsts[SLOTS], block_count;
    __shared__ unsigned block_dead;
    for (int slot = threadIdx.x; slot < SLOTS; slot += THREADS) block_claims[slot] = block_firsts[slot] = 0;
    if (threadIdx.x == 0) block_count = 0;

    const Values values{data, order};
    const Distinct mine{block_claims, block_firsts, &block_count}, all{claims, firsts, facts + 1};
    const Bits first = values.at(0);
    const long long chunk = THREADS * AT_ONCE;
    unsigned dead = 0;
    for (long long begin = blockIdx.x * chunk; begin < count; begin += gridDim.x * chunk) {
        if (threadIdx.x == 0) block_dead = unsigned(peek(facts));
        __syncthreads();
        dead |= block_dead;
        if (dead == ALL) break;
        Bits bits[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) bits[k] = values.at(min(begin + k * THREADS + threadIdx.x, count - 1));
        unsigned now = dead;
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const long long i = begin + k * THREADS + threadIdx.x;
            if (i < count) now |= dead_of(bits[k], first);
            if (!__any_sync(ALL_LANES, now & NOT_DICTIONARY) && !insert_warp(mine, values, bits[k], i < count, i))
                now |= NOT_DICTIONARY;
        }
        now = __reduce_or_sync(ALL_LANES, now);
        if (now != dead && lane_id() == 0) atomicOr(facts, Count(now));
        dead = now;
        __syncthreads();
    }
    __syncthreads();
    for (int slot = threadIdx.x; slot < SLOTS; slot += THREADS) {
        if (block_claims[slot] == 0 || (peek(facts) & NOT_DICTIONARY)) continue;
        const Count i = ~block_firsts[slot];
        if (!all.insert(values, values.at(i), i)) atomicOr(facts, Count(NOT_DICTIONARY));
    }
}

extern "C" __global__ void __launch_bounds__(SLOTS)
dasp_dictionary(const Bits* __restrict__ data, const Place* __restrict__ order, const Count* __restrict__ claims,
                const Count* __restrict__ firsts, Bits* keys, unsigned short* ranks, Bits* table)
{
    __shared__ Count places[SLOTS];
    const int slot = threadIdx.x;
    const Count place = claims[slot] ? ~firsts[slot] : ~0ull;
    places[slot] = place;
    __syncthreads();
    int rank = 0;
    for (int other = 0; other < SLOTS; ++other) rank += places[other] < place;
    ranks[slot] = place == ~0ull ? NO_RANK : (unsigned short)rank;
    if (place == ~0ull) return;
    const Bits bits = Values{data, order}.at(place);
    keys[slot] = table[rank] = bits;
}
