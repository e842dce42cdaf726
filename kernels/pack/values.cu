// The values of a matrix: how few bits hold them.
//
// data (count): the values as bits. order (count) or null: where the i-th value in the order of the plan stands.
//
// dasp_value_facts: one dimension, any number of blocks of 1024 threads. facts (2), claims (SLOTS), firsts (SLOTS + 1):
//     0 before. facts: bits of `Dead`, and distinct values if NOT_DICTIONARY is not among them. In a table with open
//     addressing a claim says which value has the slot (`Claims`), and a first where that comes first, bits flipped.
//     come or null: 0 before and after; the last block then makes the dictionary and leaves what was counted at 0.
//     misfit: becomes `turn`, and no dictionary is made, if there are more values than `room`.
// dasp_dictionary: one block of 1024 threads. codes (SLOTS): the code of a slot, 0 where there is none; table: the values
//     in the order of their first appearance, which is that of their codes.

#include "values.cuh"

// What the values are not, as far as is known: narrower types are asked of wider ones alone, and whether complex
// numbers are real, of these. Bytes and halves are real numbers, singles may be complex.
enum Dead : unsigned { NOT_BYTES = 1, NOT_DICTIONARY = 2, NOT_HALVES = 4, NOT_SINGLES = 8, NOT_REAL = 16, ALL = 31 };

// One block has a multiprocessor: what each has seen must be found and told once for all of its warps.
constexpr int THREADS = 1024, AT_ONCE = sizeof(Bits) == 16 ? 2 : 4, TILE = THREADS * AT_ONCE;

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

// The value that stands at place `nth` of those that this block looks at: tiles a grid apart.
__device__ __forceinline__ Count place_of(unsigned nth)
{
    return (Count(nth / TILE) * gridDim.x + blockIdx.x) * TILE + nth % TILE;
}

template <class T> __device__ __forceinline__ unsigned lanes_with(T bits) { return __match_any_sync(ALL_LANES, bits); }
__device__ __forceinline__ unsigned lanes_with(unsigned short bits) { return lanes_with(unsigned(bits)); }
__device__ __forceinline__ unsigned lanes_with(ulonglong2 bits) { return lanes_with(bits.x) & lanes_with(bits.y); }

// What a claim on a slot of a table says of the value there; 0 says that the slot is free.
constexpr Count ABSENT = 0x7ff4da5f7ff4da5full;

#if DASP_VALUE_BYTES == 16
// It is 1 + the place of a value with the same bits. Beside it a block has a copy of the value, as words of which bits
// are flipped: they are written and read whole, so that a value that is there needs no flag. One with the word ABSENT
// is never found there.
constexpr int WORDS = 2;
__device__ __forceinline__ Count word_of(Bits bits, int k) { return (k ? bits.y : bits.x) ^ ABSENT; }
struct Claims {
    Values values;

    static __device__ __forceinline__ Count of(Bits, Count place) { return place + 1; }
    __device__ __forceinline__ bool says(Count claim, Bits bits) const { return same(values.at(claim - 1), bits); }
    __device__ __forceinline__ Bits value(Count, Count first) const { return values.at(first); }
};
#else
// It is the value, bits flipped. That of ABSENT is 0, and has no slot: its first is behind all others.
constexpr int WORDS = 1;
__device__ __forceinline__ Count word_of(Bits bits, int) { return bits ^ ABSENT; }
struct Claims {
    Values values;

    static __device__ __forceinline__ Count of(Bits bits, Count) { return word_of(bits, 0); }
    __device__ __forceinline__ bool says(Count claim, Bits bits) const { return claim == word_of(bits, 0); }
    __device__ __forceinline__ Bits value(Count claim, Count) const { return Bits(claim ^ ABSENT); }
};
#endif

// Distinct values: those of a block in shared memory, those of all in global memory. A first is of as many bits as the
// places of the values.
constexpr int IS_NEW = 2 * SLOTS;

template <class First> struct Distinct {
    Claims known;
    Count* claims;
    First *firsts, *count;

    // Puts in a value that stands at a place; `first` is that of the table, bits flipped. Returns its slot, and IS_NEW
    // more if it had none; -1 if there are too many values.
    __device__ __forceinline__ int insert(Bits bits, Count place, First first) const
    {
        const Count claim = Claims::of(bits, place);
        if (claim == 0) return atomicMax(firsts + SLOTS, first) ? SLOTS : counted(SLOTS);
        int slot = slot_of(bits);
        for (int looked = 0; looked < SLOTS; ++looked, slot = (slot + 1) % SLOTS) {
            const Count there = atomicCAS(claims + slot, 0ull, claim);
            if (there == 0 || known.says(there, bits)) {
                atomicMax(firsts + slot, first);
                return there == 0 ? counted(slot) : slot;
            }
            if (is_full()) break;
        }
        return -1;
    }

    __device__ __forceinline__ int counted(int slot) const
    {
        return atomicAdd(count, First(1)) < First(MOST_CODES) ? slot + IS_NEW : -1;
    }
    __device__ __forceinline__ bool is_full() const { return peek(count) > First(MOST_CODES); }
};

// The distinct values of a block.
struct Seen {
    Distinct<unsigned> distinct;
    Count* words;  // of each value WORDS

    // Whether the value is there. It may not be found although it is.
    __device__ __forceinline__ bool has(Bits bits) const
    {
        int slot = slot_of(bits);
        for (int looked = 0; looked < SLOTS; ++looked, slot = (slot + 1) % SLOTS) {
            bool equal = true;
#pragma unroll
            for (int k = 0; k < WORDS; ++k) {
                const Count word = peek(words + WORDS * slot + k);
                if (word == 0) return false;
                equal = equal && word == word_of(bits, k);
            }
            if (equal) return true;
        }
        return false;
    }

    // Puts in those of a warp's values that were `missed`; they stand at places of the block's tiles. False for too many.
    __device__ __forceinline__ bool insert(Bits bits, bool missed, unsigned nth) const
    {
        const unsigned others = lanes_with(bits) & __ballot_sync(ALL_LANES, missed);
        if (!missed || (others & lanes_before())) return true;  // the first lane that has it
        const int slot = distinct.is_full() ? -1 : distinct.insert(bits, place_of(nth), ~nth);
        if (WORDS > 1 && slot >= IS_NEW)
            for (int k = 0; k < WORDS; ++k) atomicExch(words + WORDS * (slot - IS_NEW) + k, word_of(bits, k));
        return slot >= 0;
    }
};

// Which of AT_ONCE values of this lane, a block apart, have not been seen, a bit each; from place i on.
__device__ __forceinline__ unsigned missed_of(const Bits (&bits)[AT_ONCE], const Seen& seen, long long i, long long count)
{
    unsigned missed = 0;
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) missed |= unsigned(i + k * THREADS < count && !seen.has(bits[k])) << k;
    return missed;
}

// Puts them in, and returns what they are not; a warp calls it. The first of them stands at place `nth` of the block's.
__device__ __forceinline__ unsigned put(const Bits (&bits)[AT_ONCE], const Seen& seen, unsigned missed, unsigned nth)
{
    unsigned dead = 0;
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) {
        const bool missed_here = missed >> k & 1;
        if (!__any_sync(ALL_LANES, missed_here)) continue;
        if (missed_here) dead |= dead_of(bits[k]);
        if (!seen.insert(bits[k], missed_here, nth + k * THREADS)) dead |= NOT_DICTIONARY;
    }
    return dead;
}

// The facts of them where they are too many for a dictionary.
__device__ __forceinline__ unsigned dead_of(const Bits (&bits)[AT_ONCE], long long i, long long count)
{
    unsigned dead = NOT_DICTIONARY;
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k)
        if (i + k * THREADS < count) dead |= dead_of(bits[k]);
    return dead;
}

// Codes of the values that were found.
struct Dictionary {
    unsigned char* codes;
    Bits* table;

    // Every thread of a block calls it; `again` has it leave the slots as if nothing had been found.
    __device__ void make(const Claims& known, Count* claims, Count* firsts, bool again) const
    {
        constexpr int each = SLOTS / THREADS, sharing = THREADS / MOST_CODES;  // threads that rank a value
        __shared__ Count places[MOST_CODES];
        __shared__ Bits values[MOST_CODES];
        __shared__ int slots[MOST_CODES], found;
        if (threadIdx.x == 0) {
            found = 0;
            if (WORDS == 1 && peek(firsts + SLOTS)) give_slot(claims, firsts, places, values, slots, found);
        }
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
                values[own] = known.value(claim[k], ~first[k]);
            } else {
                codes[slot] = 0;
            }
        }
        if (again && threadIdx.x == 0) firsts[SLOTS] = 0;
        __syncthreads();
        const int nth = threadIdx.x / sharing, count = min(found, MOST_CODES);
        const Count place = nth < count ? places[nth] : 0;
        int rank = 0;
        for (int other = threadIdx.x % sharing; other < count; other += sharing) rank += places[other] < place;
#pragma unroll
        for (int step = sharing / 2; step; step /= 2) rank += __shfl_xor_sync(ALL_LANES, rank, step);
        if (nth >= count || threadIdx.x % sharing) return;
        codes[slots[nth]] = (unsigned char)rank;
        table[rank] = values[nth];
    }

private:
    // The value ABSENT takes the slot that it would have had as the last one of all.
    static __device__ void give_slot(Count* claims, Count* firsts, Count* places, Bits* values, int* slots, int& found)
    {
#if DASP_VALUE_BYTES == 8
        int slot = slot_of(Bits(ABSENT));
        while (peek(claims + slot)) slot = (slot + 1) % SLOTS;
        slots[0] = slot;
        places[0] = ~peek(firsts + SLOTS);
        values[0] = ABSENT;
        found = 1;
#endif
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
dasp_value_facts(const Place* __restrict__ order, long long count, Count* facts, Count* claims, Count* firsts,
                 Count* come, unsigned char* codes, Bits* table, long long room,
                 const Bits* __restrict__ data, Count* misfit, long long turn)
{
    __shared__ Count block_claims[SLOTS + 1], block_words[WORDS == 1 ? 1 : WORDS * SLOTS];
    __shared__ unsigned block_firsts[SLOTS + 1], block_count, told[3];
    __shared__ int listed[SLOTS + 1], found;
    for (int slot = threadIdx.x; slot <= SLOTS; slot += THREADS) {
        block_claims[slot] = 0;
        block_firsts[slot] = 0;
        for (int k = 0; k < WORDS && WORDS > 1 && slot < SLOTS; ++k) block_words[WORDS * slot + k] = 0;
    }
    if (threadIdx.x == 0) found = block_count = told[0] = told[1] = told[2] = 0;

    const Claims known{{data, order}};
    const Seen seen{{known, block_claims, block_firsts, &block_count}, WORDS == 1 ? block_claims : block_words};
    const long long stride = gridDim.x * (long long)TILE;
    // Of the block, of this lane's values, and of other blocks: what is known to all threads alike, and what not yet.
    unsigned dead = 0, own = 0, others = 0;
    Bits next[AT_ONCE];
    known.values.load(next, blockIdx.x * (long long)TILE + threadIdx.x, THREADS, count);
    __syncthreads();
    int nth = 0;
    for (long long begin = blockIdx.x * (long long)TILE; begin < count && dead != ALL; begin += stride, ++nth) {
        const long long i = begin + threadIdx.x;
        Bits bits[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) bits[k] = next[k];
        own |= others;
        if (threadIdx.x == 0) others = unsigned(peek(facts));
        known.values.load(next, i + stride, THREADS, count);
        unsigned missed = 0;
        if (dead & NOT_DICTIONARY) own |= dead_of(bits, i, count);
        else missed = missed_of(bits, seen, i, count);
        own = __reduce_or_sync(ALL_LANES, own);
        if (lane_id() == 0 && (own & ~dead)) atomicOr(told + nth % 2, own);
        // A value that comes first in this tile is missed wherever it stands there: none is put in before all looked.
        const bool any = __syncthreads_or(missed != 0);
        const unsigned now = dead | peek(told + nth % 2);
        if (threadIdx.x == 0 && now != dead) atomicOr(facts, Count(now));
        dead = now;
        if (any) own |= put(bits, seen, missed, unsigned(nth) * TILE + threadIdx.x);
    }
    wait_for_earlier_kernels();  // none is waited for here, but the next one may start
    own = __reduce_or_sync(ALL_LANES, own);
    if (lane_id() == 0 && own) atomicOr(told + 2, own);
    __syncthreads();
    dead |= told[2];
    if (threadIdx.x == 0 && dead) atomicOr(facts, Count(dead));
    for (int slot = threadIdx.x; slot <= SLOTS && !(dead & NOT_DICTIONARY); slot += THREADS)
        if (block_firsts[slot]) listed[atomicAdd(&found, 1)] = slot;
    __syncthreads();
    if (int(threadIdx.x) < found) {
        const int slot = listed[threadIdx.x];
        const Count place = place_of(~block_firsts[slot]);
        const Distinct<Count> all{known, claims, firsts, facts + 1};
        if (all.insert(known.value(block_claims[slot], place), place, ~place) < 0) atomicOr(facts, Count(NOT_DICTIONARY));
    }
    if (!come || !is_last_block(come, gridDim.x)) return;
    const bool fits = !(peek(facts) & NOT_DICTIONARY) && peek(facts + 1) <= Count(room);
    __syncthreads();
    if (threadIdx.x == 0) {
        facts[0] = facts[1] = *come = 0;
        if (!fits) *misfit = Count(turn);
    }
    if (fits) {
        Dictionary{codes, table}.make(known, claims, firsts, true);
        return;
    }
    for (int slot = threadIdx.x; slot < SLOTS; slot += THREADS) claims[slot] = firsts[slot] = 0;
    if (threadIdx.x == 0) firsts[SLOTS] = 0;
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_dictionary(const Bits* __restrict__ data, const Place* __restrict__ order, Count* claims, Count* firsts,
                unsigned char* codes, Bits* table)
{
    Dictionary{codes, table}.make(Claims{{data, order}}, claims, firsts, false);
}
