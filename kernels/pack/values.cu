// The values of a matrix: how few bits hold them.
//
// data (count): the values as bits. order (count) or null: where the i-th value in the order of the plan stands.
//
// words (2 SLOTS + 4), 0 before: facts (2), come (1), claims (SLOTS), firsts (SLOTS + 1). facts: bits of `Dead`, and the
//     number of distinct values if NOT_DICTIONARY is not among them. In a table with open addressing a claim says which
//     value has the slot (`Claims`), and a first where that comes first, bits flipped. come: how many blocks are done.
// table (MOST_CODES): the distinct values in the order of their first appearance, which is that of their codes, where
//     they are few enough for a dictionary; the others are not written.
// Launch: one dimension, any number of blocks of 1024 threads; each first counts its values in shared memory.
// Deterministic: of each value the least place counts, whichever thread comes first; which slot a value has does not.

#include "pack/values.cuh"

// What the values are not, as far as is known. Bytes are real numbers; singles, which are asked of wider types alone,
// may be complex.
enum Dead : unsigned { NOT_BYTES = 1, NOT_DICTIONARY = 2, NOT_SINGLES = 4, ALL = 7 };

// One block has a multiprocessor: what each has seen must be found and told once for all of its warps.
constexpr int THREADS = 1024, AT_ONCE = sizeof(Bits) == 16 ? 2 : 4, TILE = THREADS * AT_ONCE;

__device__ __forceinline__ unsigned dead_of(Bits bits)
{
    return (are_bytes(bits) ? 0u : unsigned(NOT_BYTES)) | (are_singles(bits) ? 0u : unsigned(NOT_SINGLES));
}

// The value that stands at place `nth` of those that this block looks at: tiles a grid apart.
__device__ __forceinline__ Count place_of(unsigned nth)
{
    return (Count(nth / TILE) * gridDim.x + blockIdx.x) * TILE + nth % TILE;
}

// Two words that lie together, each of them as `peek` reads it.
template <class Two> __device__ __forceinline__ Two peek_pair(Two* pair)
{
#ifdef DASP_SIMT
    return {peek(&pair->x), peek(&pair->y)};
#else
    Two found;
    if constexpr (sizeof(Two) == 16)
        asm volatile("ld.volatile.shared.v2.u64 {%0, %1}, [%2];" : "=l"(found.x), "=l"(found.y)
                     : "r"(unsigned(__cvta_generic_to_shared(pair))));
    else
        asm volatile("ld.volatile.shared.v2.u32 {%0, %1}, [%2];" : "=r"(found.x), "=r"(found.y)
                     : "r"(unsigned(__cvta_generic_to_shared(pair))));
    return found;
#endif
}

// What a claim on a slot of a table says of the value there; 0 says that the slot is free.
constexpr Count ABSENT = 0x7ff4da5f7ff4da5full;

#if DASP_VALUE_BYTES == 16
struct Claims {  // 1 + the place of a value with the same bits
    Values values;

    static __device__ __forceinline__ Count of(Bits, Count place) { return place + 1; }
    __device__ __forceinline__ bool says(Count claim, Bits bits) const { return same(values.at(claim - 1), bits); }
    __device__ __forceinline__ Bits value(Count, Count first) const { return values.at(first); }
};
#else
struct Claims {  // the value, bits flipped: ABSENT is 0 and has no slot, but a first behind all others
    Values values;

    static __device__ __forceinline__ Count of(Bits bits, Count) { return bits ^ ABSENT; }
    __device__ __forceinline__ bool says(Count claim, Bits bits) const { return claim == (bits ^ ABSENT); }
    __device__ __forceinline__ Bits value(Count claim, Count) const { return Bits(claim ^ ABSENT); }
};
#endif

// Distinct values: those of a block in shared memory, those of all in global memory. A first is of as many bits as the
// places of the values.
constexpr int IS_NEW = 2 * SLOTS;

template <class First> struct Distinct {
    static constexpr bool HERE = sizeof(First) == 4;  // in shared memory, where a look costs less than an atomic

    Claims known;
    Count* claims;
    First *firsts, *count;

    // Puts in a value that stands at a place, looking from a slot on; `first` is that of the table, bits flipped.
    // Returns its slot, and IS_NEW more if it had none; -1 if there are too many values.
    __device__ __forceinline__ int insert(int slot, Bits bits, Count place, First first) const
    {
        const Count claim = Claims::of(bits, place);
        if (claim == 0) return atomicMax(firsts + SLOTS, first) ? SLOTS : counted(SLOTS);
#pragma unroll 1
        for (int looked = 0; looked < SLOTS; ++looked, slot = (slot + 1) % SLOTS) {
            Count there = HERE ? peek(claims + slot) : 0;
            if (there == 0) there = atomicCAS(claims + slot, 0ull, claim);
            if (there == 0 || known.says(there, bits)) {
                if (!HERE || peek(firsts + slot) < first) atomicMax(firsts + slot, first);
                return there == 0 ? counted(slot) : slot;
            }
            if (!HERE && is_full()) break;
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
    ulonglong2* copies;  // of values that are more than their claims, by slots; ABSENT before

#if DASP_VALUE_BYTES == 16
    // Where a value is looked for first.
    static __device__ __forceinline__ int start_of(Bits bits) { return slot_of(bits); }

    // Whether a value is found in its first slot, and first stands no later than the `nth`. It may be there and not be
    // found; a value with the word ABSENT never is.
    __device__ __forceinline__ bool has(Bits bits, unsigned nth) const
    {
        const ulonglong2 copy = peek_pair(copies + start_of(bits));
        return same(copy, bits) && copy.x != ABSENT && copy.y != ABSENT && peek(distinct.firsts + start_of(bits)) >= ~nth;
    }
#else
    // The same of pairs of slots, which are loaded at once: a lane that looks further holds its warp.
    static __device__ __forceinline__ int start_of(Bits bits) { return slot_of(bits) & ~1; }

    __device__ __forceinline__ bool has(Bits bits, unsigned nth) const
    {
        const ulonglong2 claims = peek_pair(reinterpret_cast<ulonglong2*>(distinct.claims + start_of(bits)));
        const uint2 firsts = peek_pair(reinterpret_cast<uint2*>(distinct.firsts + start_of(bits)));
        // A free slot has no first, whatever its claim.
        return (distinct.known.says(claims.x, bits) && firsts.x >= ~nth) ||
               (distinct.known.says(claims.y, bits) && firsts.y >= ~nth);
    }
#endif

    // Puts in a value. False if it is one too many.
    __device__ __forceinline__ bool put(Bits bits, unsigned nth) const
    {
        const int slot = distinct.is_full() ? -1 : distinct.insert(start_of(bits), bits, place_of(nth), ~nth);
        if (slot >= IS_NEW) copy(bits, slot - IS_NEW);
        return slot >= 0;
    }

private:
    __device__ __forceinline__ void copy(ulonglong2 bits, int slot) const
    {
        atomicExch(&copies[slot].x, bits.x);
        atomicExch(&copies[slot].y, bits.y);
    }
    template <class T> __device__ __forceinline__ void copy(T, int) const {}
};

// Has a block see up to AT_ONCE values of this lane, a block apart, from place i on, which is the `nth` of the block's.
// False if they are too many.
__device__ __forceinline__ bool look_at(const Bits (&bits)[AT_ONCE], const Seen& seen, long long i, long long count,
                                        unsigned nth)
{
    unsigned missed = 0;
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k)
        missed |= unsigned(i + k * THREADS < count && !seen.has(bits[k], nth + k * THREADS)) << k;
    // Few instructions, which a small launch has to fetch first.
    for (; missed; missed &= missed - 1) {
        const int k = __ffs(int(missed)) - 1;
        Bits value = bits[0];
#pragma unroll
        for (int other = 1; other < AT_ONCE; ++other)
            if (k == other) value = bits[other];
        if (!seen.put(value, nth + k * THREADS)) return false;
    }
    return true;
}

// What they are not, where they are too many for a dictionary.
__device__ __forceinline__ unsigned dead_of(const Bits (&bits)[AT_ONCE], long long i, long long count)
{
    unsigned dead = NOT_DICTIONARY;
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k)
        if (i + k * THREADS < count) dead |= dead_of(bits[k]);
    return dead;
}

// Writes the values that were found, in the order of their first places. Every thread of a block calls it.
__device__ void make_table(const Claims& known, Count* claims, Count* firsts, Bits* table)
{
    constexpr int each = SLOTS / THREADS, sharing = THREADS / MOST_CODES;  // threads that rank a value
    __shared__ Count places[MOST_CODES];
    __shared__ Bits values[MOST_CODES];
    __shared__ int found;
    if (threadIdx.x == 0) {
        const Count absent = peek(firsts + SLOTS);
        found = absent != 0;
#if DASP_VALUE_BYTES == 8
        if (absent) {
            places[0] = ~absent;
            values[0] = ABSENT;
        }
#endif
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
        const int own = claim[k] ? atomicAdd(&found, 1) : MOST_CODES;
        if (own >= MOST_CODES) continue;
        places[own] = ~first[k];
        values[own] = known.value(claim[k], ~first[k]);
    }
    __syncthreads();
    const int nth = threadIdx.x / sharing, count = min(found, MOST_CODES);
    const Count place = nth < count ? places[nth] : 0;
    int rank = 0;
#pragma unroll 4
    for (int other = threadIdx.x % sharing; other < count; other += sharing) rank += places[other] < place;
#pragma unroll
    for (int step = sharing / 2; step; step /= 2) rank += __shfl_xor_sync(ALL_LANES, rank, step);
    if (nth < count && threadIdx.x % sharing == 0) table[rank] = values[nth];
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
dasp_value_facts(const Place* __restrict__ order, long long count, Count* words, Bits* table,
                 const Bits* __restrict__ data)
{
    Count *const facts = words, *const come = words + 2, *const claims = words + 3, *const firsts = claims + SLOTS;
    __shared__ __align__(16) Count block_claims[SLOTS + 2];
    __shared__ __align__(8) unsigned block_firsts[SLOTS + 2];
    __shared__ unsigned block_count, many;
    __shared__ ulonglong2 copies[sizeof(Bits) == 16 ? SLOTS : 1];
    __shared__ int listed[MOST_CODES + 1], found;
    for (int slot = threadIdx.x; slot <= SLOTS; slot += THREADS) {
        block_claims[slot] = 0;
        block_firsts[slot] = 0;
        if (sizeof(Bits) == 16 && slot < SLOTS) copies[slot] = {ABSENT, ABSENT};
    }
    if (threadIdx.x == 0) found = block_count = many = 0;

    const Claims known{{data, order}};
    const Seen seen{{known, block_claims, block_firsts, &block_count}, copies};
    const long long stride = gridDim.x * (long long)TILE;
    unsigned dead = 0, nth = threadIdx.x;
    long long i = blockIdx.x * (long long)TILE + threadIdx.x;
    Bits next[AT_ONCE];
    known.values.load(next, i, THREADS, count);
    __syncthreads();
    unsigned heard = 0;  // of other blocks
    for (; i - threadIdx.x < count && dead != ALL; i += stride, nth += TILE) {
        Bits bits[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) bits[k] = next[k];
        const unsigned before = __shfl_sync(ALL_LANES, heard, 0);
        heard = unsigned(peek(facts));  // for the next turn
        known.values.load(next, i + stride, THREADS, count);
        if ((dead & NOT_DICTIONARY) || __any_sync(ALL_LANES, !look_at(bits, seen, i, count, nth)))
            dead |= dead_of(bits, i, count);
        dead = __reduce_or_sync(ALL_LANES, dead);
        if (dead & ~before && lane_id() == 0) atomicOr(facts, Count(dead));
        dead |= before;
    }
    if (lane_id() == 0 && (dead & NOT_DICTIONARY)) atomicOr(&many, 1u);
    __syncthreads();
#pragma unroll 1
    for (int slot = threadIdx.x; slot <= SLOTS; slot += THREADS) {
        if (block_firsts[slot] == 0) continue;
        if (!many) listed[atomicAdd(&found, 1)] = slot;
        else dead |= dead_of(known.value(block_claims[slot], place_of(~block_firsts[slot])));
    }
    __syncthreads();
    if (int(threadIdx.x) < found) {
        const int slot = listed[threadIdx.x];
        const Count place = place_of(~block_firsts[slot]);
        const Bits bits = known.value(block_claims[slot], place);
        const Distinct<Count> all{known, claims, firsts, facts + 1};
        const int where = all.insert(slot_of(bits), bits, place, ~place);
        if (where < 0) dead |= NOT_DICTIONARY;
        if (where < 0 || where >= IS_NEW) dead |= dead_of(bits);  // where values are few, of each once
    }
    dead = __reduce_or_sync(ALL_LANES, dead);
    if (lane_id() == 0 && dead) atomicOr(facts, Count(dead));
    if (is_last_block(come, gridDim.x) && !(peek(facts) & NOT_DICTIONARY)) make_table(known, claims, firsts, table);
}
