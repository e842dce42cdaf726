// The values of a matrix: how few bits hold them.
//
// data (count): the values as bits. order (count) or null: where the i-th value in the order of the plan stands.
//
// dasp_value_facts: one dimension, any number of blocks of 1024 threads. facts (2), claims, firsts (SLOTS): 0 before.
//     facts: bits of `Dead`, and distinct values if NOT_DICTIONARY is not among them. In a table with open addressing
//     a claim is 1 + the place of some value that has the slot, and a first the first such place, bits flipped.
//     While values are few, most are found in the block's own table: they have been looked at, and cost a lookup.
//     come or null: 0 before and after; the last block then makes the dictionary and leaves what was counted at 0.
//     misfit: becomes `turn`, and no dictionary is made, if there are more values than `room`.
// dasp_dictionary: one block of 1024 threads. codes (SLOTS): the code of a slot, 0 where there is none; table: the values
//     in the order of their first appearance, which is that of their codes.

#include "values.cuh"

// What the values are not, as far as is known: narrower types are asked of wider ones alone, and whether complex
// numbers are real, of these. Bytes and halves are real numbers, singles may be complex.
enum Dead : unsigned { NOT_BYTES = 1, NOT_DICTIONARY = 2, NOT_HALVES = 4, NOT_SINGLES = 8, NOT_REAL = 16, ALL = 31 };

// One block has a multiprocessor: what each has seen must be found and told once for all of its warps.
constexpr int THREADS = 1024, AT_ONCE = sizeof(Bits) == 16 ? 2 : 4;

__device__ __forceinline__ unsigned dead_of(Bits bits)
{
#if DASP_KIND
    return (are_bytes(bits) ? 0u : unsigned(NOT_BYTES)) | (are_halves(bits) ? 0u : unsigned(NOT_HALVES)) |
           (are_singles(bits) ? 0u : unsigned(NOT_SINGLES)) |
           (DASP_KIND == KIND_COMPLEX && is_real(bits) ? 0u : unsigned(NOT_REAL));
#else
    return ALL & ~NOT_DICTIONARY;
#endif
}

// Distinct values: in shared memory those of a block, in global memory those of all.
struct Distinct {
    Count *claims, *firsts, *count;

    // Puts in the value that stands at place i. Returns its slot, and that plus SLOTS if it is the first to be put
    // there; -1 if there are too many.
    __device__ int insert(const Values& values, Bits bits, Count i) const
    {
        for (int slot = slot_of(bits);; slot = (slot + 1) % SLOTS) {
            Count claim = peek(claims + slot);
            if (claim == 0) {
                if (peek(count) > MOST_CODES) return -1;
                claim = atomicCAS(claims + slot, 0ull, i + 1);
                if (claim == 0 && atomicAdd(count, 1ull) >= MOST_CODES) return -1;
            }
            if (claim == 0 || same(values.at(claim - 1), bits)) {
                if (peek(firsts + slot) < ~i) atomicMax(firsts + slot, ~i);
                return slot + (claim == 0 ? SLOTS : 0);
            }
        }
    }
};

template <class T> __device__ __forceinline__ unsigned lanes_with(T bits) { return __match_any_sync(ALL_LANES, bits); }
__device__ __forceinline__ unsigned lanes_with(unsigned short bits) { return lanes_with(unsigned(bits)); }
__device__ __forceinline__ unsigned lanes_with(ulonglong2 bits) { return lanes_with(bits.x) & lanes_with(bits.y); }

// A value as words that are written and read whole, so that one that is there needs no flag beside it. A value with
// the word ABSENT is never found there.
constexpr int WORDS = sizeof(Bits) == 16 ? 2 : 1;
constexpr Count ABSENT = 0x7ff4da5f7ff4da5full;

template <class T> __device__ __forceinline__ Count word_of(T bits, int) { return bits; }
__device__ __forceinline__ Count word_of(ulonglong2 bits, int k) { return k ? bits.y : bits.x; }

// The distinct values of a block, with a copy of each beside its slot. Those of one word need no claims: their copies are.
struct Seen {
    Distinct distinct;
    Count *keys, *absent;  // absent: the first place of the value ABSENT, bits flipped

    // Whether the value is there, and first stands no later than at place i.
    __device__ __forceinline__ bool has(Bits bits, Count i) const
    {
        for (int slot = slot_of(bits);; slot = (slot + 1) % SLOTS) {
            bool equal = true;
#pragma unroll
            for (int k = 0; k < WORDS; ++k) {
                const Count word = peek(keys + WORDS * slot + k);
                if (word == ABSENT) return false;
                equal = equal && word == word_of(bits, k);
            }
            if (equal) return peek(distinct.firsts + slot) >= ~i;
        }
    }

    // Counts a value that was not there. False if it is one too many.
    __device__ __forceinline__ bool has_room() const { return atomicAdd(distinct.count, 1ull) < MOST_CODES; }

    // Puts in a value of one word. False for too many.
    __device__ __forceinline__ bool put(Bits bits, Count i) const
    {
        const Count word = word_of(bits, 0);
        if (word == ABSENT) return atomicMax(absent, ~i) != 0 || has_room();
        for (int slot = slot_of(bits);; slot = (slot + 1) % SLOTS) {
            Count there = peek(keys + slot);
            if (there == ABSENT) {
                if (peek(distinct.count) > MOST_CODES) return false;
                there = atomicCAS(keys + slot, ABSENT, word);
                if (there == ABSENT && !has_room()) return false;
            }
            if (there != ABSENT && there != word) continue;
            if (peek(distinct.firsts + slot) < ~i) atomicMax(distinct.firsts + slot, ~i);
            return true;
        }
    }

    // Puts in those of a warp's values that are `new_here`. False for too many.
    __device__ __forceinline__ bool insert(const Values& values, Bits bits, bool new_here, Count i) const
    {
        if constexpr (WORDS == 1) return !new_here || put(bits, i);
        const unsigned others = lanes_with(bits) & __ballot_sync(ALL_LANES, new_here);
        if (!new_here || (others & lanes_before())) return true;  // the first lane that has it
        const int slot = distinct.insert(values, bits, i);
        for (int k = 0; k < (slot >= SLOTS ? WORDS : 0); ++k)
            atomicExch(keys + WORDS * (slot - SLOTS) + k, word_of(bits, k));
        return slot >= 0;
    }

    // The first place of the value in a slot, bits flipped; 0 if there is none.
    __device__ __forceinline__ Count first_in(int slot) const
    {
        return (WORDS == 1 ? keys[slot] != ABSENT : distinct.claims[slot] != 0) ? distinct.firsts[slot] : 0;
    }
};

// The facts of up to AT_ONCE values of this lane, from place i on, a block apart; a warp calls it.
__device__ __forceinline__ unsigned look_at(const Bits (&bits)[AT_ONCE], const Values& values, const Seen& seen,
                                            unsigned dead, long long i, long long count)
{
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) {
        const bool valid = i + k * THREADS < count;
        if (__any_sync(ALL_LANES, dead & NOT_DICTIONARY)) {
            if (valid) dead |= NOT_DICTIONARY | dead_of(bits[k]);
            continue;
        }
        const bool new_here = valid && !seen.has(bits[k], i + k * THREADS);
        if (!__any_sync(ALL_LANES, new_here)) continue;
        if (new_here) dead |= dead_of(bits[k]);
        if (!seen.insert(values, bits[k], new_here, i + k * THREADS)) dead |= NOT_DICTIONARY;
    }
    return __reduce_or_sync(ALL_LANES, dead);
}

// Codes of the values that were found.
struct Dictionary {
    unsigned char* codes;
    Bits* table;

    // Every thread of a block calls it; `again` has it leave the slots as if nothing had been found.
    __device__ void make(const Values& values, Count* claims, Count* firsts, bool again) const
    {
        constexpr int each = SLOTS / THREADS, sharing = THREADS / MOST_CODES;  // threads that rank a value
        __shared__ Count places[MOST_CODES];
        __shared__ int slots[MOST_CODES], found;
        if (threadIdx.x == 0) found = 0;
        Count claim[each], first[each];
#pragma unroll
        for (int k = 0; k < each; ++k) {
            claim[k] = peek(claims + threadIdx.x + k * THREADS);
            first[k] = peek(firsts + threadIdx.x + k * THREADS);
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < each; ++k) {
            const int slot = threadIdx.x + k * THREADS, own = claim[k] ? atomicAdd(&found, 1) : MOST_CODES;
            if (again) claims[slot] = firsts[slot] = 0;
            if (own < MOST_CODES) {
                slots[own] = slot;
                places[own] = ~first[k];
            } else {
                codes[slot] = 0;
            }
        }
        __syncthreads();
        const int nth = threadIdx.x / sharing, count = min(found, MOST_CODES);
        const Count place = nth < count ? places[nth] : 0;
        int rank = 0;
        for (int other = threadIdx.x % sharing; other < count; other += sharing) rank += places[other] < place;
#pragma unroll
        for (int step = sharing / 2; step; step /= 2) rank += __shfl_xor_sync(ALL_LANES, rank, step);
        if (nth >= count || threadIdx.x % sharing) return;
        codes[slots[nth]] = (unsigned char)rank;
        table[rank] = values.at(place);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
dasp_value_facts(const Place* __restrict__ order, long long count, Count* facts, Count* claims, Count* firsts,
                 Count* come, unsigned char* codes, Bits* table, long long room,
                 const Bits* __restrict__ data, Count* misfit, long long turn)
{
    constexpr int claims_here = WORDS == 1 ? 1 : SLOTS;
    __shared__ Count block_claims[claims_here], block_firsts[SLOTS], block_keys[WORDS * SLOTS], block_count, absent;
    for (int slot = threadIdx.x; slot < SLOTS; slot += THREADS) {
        block_firsts[slot] = 0;
        if (WORDS > 1) block_claims[slot] = 0;
        for (int k = 0; k < WORDS; ++k) block_keys[WORDS * slot + k] = ABSENT;
    }
    if (threadIdx.x == 0) block_count = absent = 0;

    const Values values{data, order};
    const Seen seen{{block_claims, block_firsts, &block_count}, block_keys, &absent};
    const Distinct all{claims, firsts, facts + 1};
    const long long chunk = THREADS * AT_ONCE;
    unsigned dead = 0;
    Bits next[AT_ONCE];
    values.load(next, blockIdx.x * chunk + threadIdx.x, THREADS, count);
    __syncthreads();
    for (long long begin = blockIdx.x * chunk; begin < count && dead != ALL; begin += gridDim.x * chunk) {
        const long long i = begin + threadIdx.x;
        Bits bits[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) bits[k] = next[k];
        const unsigned known = unsigned(peek(facts));  // to other blocks; while the values come
        values.load(next, i + gridDim.x * chunk, THREADS, count);
        const unsigned now = look_at(bits, values, seen, dead, i, count);
        if (now & ~known && lane_id() == 0) atomicOr(facts, Count(now));
        dead = now | __shfl_sync(ALL_LANES, known, 0);
    }
    __syncthreads();
    for (int slot = threadIdx.x; slot <= SLOTS; slot += THREADS) {
        const Count first = slot < SLOTS ? seen.first_in(slot) : absent;
        if (first == 0 || (peek(facts) & NOT_DICTIONARY)) continue;
        if (all.insert(values, values.at(~first), ~first) < 0) atomicOr(facts, Count(NOT_DICTIONARY));
    }
    if (!come || !is_last_block(come, gridDim.x)) return;
    const bool fits = !(peek(facts) & NOT_DICTIONARY) && peek(facts + 1) <= Count(room);
    __syncthreads();
    if (threadIdx.x == 0) {
        facts[0] = facts[1] = *come = 0;
        if (!fits) *misfit = Count(turn);
    }
    if (fits) {
        Dictionary{codes, table}.make(values, claims, firsts, true);
        return;
    }
    for (int slot = threadIdx.x; slot < SLOTS; slot += THREADS) claims[slot] = firsts[slot] = 0;
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_dictionary(const Bits* __restrict__ data, const Place* __restrict__ order, Count* claims, Count* firsts,
                unsigned char* codes, Bits* table)
{
    Dictionary{codes, table}.make(Values{data, order}, claims, firsts, false);
}
