// Finds which codings hold the values of a matrix: all of them if DASP_CODING is CODING_PLAIN, else whether that one does.
//
// data (count): the values as bits.
//
// dasp_value_facts, for all codings: any number of blocks of 1024 threads; each first counts its values in shared memory.
//     words (SLOTS + 4), 0 before: facts (2), come (1), claims (SLOTS + 1). facts: bits of `Dead`, and the number of
//     distinct values if NOT_DICTIONARY is not among them. come: how many blocks are done. claims: a table with open
//     addressing, where a claim says which value has the slot (`Claims`).
//     table (MOST_CODES): the distinct values, if they are few enough for a dictionary, in the order of their
//     bits, which is that of their codes; the rest is not written.
// dasp_holds, for one coding without a dictionary: any number of blocks of 256 threads; a thread takes values a grid
//     apart. misfit (1), 0 before: becomes 1 if a value loses a bit.
// Deterministic: the order of threads changes the slots of values, but neither which values there are nor a misfit.

#include "pack/values.cuh"

#if DASP_CODING == CODING_PLAIN

// Codings that do not hold all values seen so far. Bytes are real; singles, for wider types, may be complex.
enum Dead : unsigned { NOT_BYTES = 1, NOT_DICTIONARY = 2, NOT_SINGLES = 4, ALL = 7 };

// One block fills a multiprocessor: each block reports the values that it has seen, once for all its warps.
constexpr int THREADS = 1024, AT_ONCE = sizeof(Bits) == 16 ? 2 : 4, TILE = THREADS * AT_ONCE;

__device__ __forceinline__ unsigned dead_of(Bits bits)
{
    return (are_bytes(bits) ? 0u : unsigned(NOT_BYTES)) | (are_singles(bits) ? 0u : unsigned(NOT_SINGLES));
}

// Two words that lie together in shared memory, each of them as `peek` reads it.
__device__ __forceinline__ ulonglong2 peek_pair(ulonglong2* pair)
{
#ifdef DASP_SIMT
    return {peek(&pair->x), peek(&pair->y)};
#else
    ulonglong2 found;
    asm volatile("ld.volatile.shared.v2.u64 {%0, %1}, [%2];" : "=l"(found.x), "=l"(found.y)
                 : "r"(unsigned(__cvta_generic_to_shared(pair))));
    return found;
#endif
}

// A claim on a slot of a table says which value is there; 0 says that the slot is free.
constexpr Count ABSENT = 0x7ff4da5f7ff4da5full;

#if DASP_VALUE_BYTES == 16
struct Claims {  // 1 + the place of a value with the same bits
    const Bits* data;

    static __device__ __forceinline__ Count of(Bits, long long place) { return place + 1; }
    __device__ __forceinline__ Bits value(Count claim) const { return data[claim - 1]; }
    __device__ __forceinline__ bool says(Count claim, Bits bits) const { return same(value(claim), bits); }
};
#else
struct Claims {  // the value XOR ABSENT; ABSENT itself, whose claim would be 0, has the last slot for itself
    const Bits* data;

    static __device__ __forceinline__ Count of(Bits bits, long long) { return bits ^ ABSENT; }
    __device__ __forceinline__ Bits value(Count claim) const { return Bits(claim ^ ABSENT); }
    __device__ __forceinline__ bool says(Count claim, Bits bits) const { return claim == (bits ^ ABSENT); }
};
#endif

// The claim that a taken slot stands for.
__device__ __forceinline__ Count claim_in(Count* claims, int slot) { return slot == SLOTS ? 0 : peek(claims + slot); }

// Distinct values: those of a block in shared memory, counted in 32 bits, those of all in global memory.
constexpr int IS_NEW = 2 * SLOTS;

template <class Number> struct Distinct {
    static constexpr bool HERE = sizeof(Number) == 4;  // in shared memory, where a look costs less than an atomic

    Claims known;
    Count* claims;
    Number* count;

    // Inserts a value by its claim, searching from a slot on. Returns its slot, plus IS_NEW if the value is
    // new; -1 if there are too many values.
    __device__ __forceinline__ int insert(int slot, Bits bits, Count claim) const
    {
        if (claim == 0) return atomicCAS(claims + SLOTS, 0ull, 1ull) ? SLOTS : counted(SLOTS);
#pragma unroll 1
        for (int looked = 0; looked < SLOTS; ++looked, slot = (slot + 1) % SLOTS) {
            Count there = HERE ? peek(claims + slot) : 0;
            if (there == 0) there = atomicCAS(claims + slot, 0ull, claim);
            if (there == 0) return counted(slot);
            if (known.says(there, bits)) return slot;
            if (!HERE && is_full()) break;
        }
        return -1;
    }

    __device__ __forceinline__ int counted(int slot) const
    {
        return atomicAdd(count, Number(1)) < Number(MOST_CODES) ? slot + IS_NEW : -1;
    }
    __device__ __forceinline__ bool is_full() const { return peek(count) > Number(MOST_CODES); }
};

// The distinct values of a block.
struct Seen {
    Distinct<unsigned> distinct;
    ulonglong2* copies;  // of values that are wider than their claims, by slots; ABSENT before

#if DASP_VALUE_BYTES == 16
    // Where a value is looked for first.
    static __device__ __forceinline__ int start_of(Bits bits) { return slot_of(bits); }

    // Whether a value is found in its first slot. It may be there and be missed; with a word ABSENT it always
    // is.
    __device__ __forceinline__ bool has(Bits bits) const
    {
        const ulonglong2 copy = peek_pair(copies + start_of(bits));
        return same(copy, bits) && copy.x != ABSENT && copy.y != ABSENT;
    }
#else
    // The same for pairs of slots, which are loaded at once: a lane that searches further delays its warp.
    static __device__ __forceinline__ int start_of(Bits bits) { return slot_of(bits) & ~1; }

    __device__ __forceinline__ bool has(Bits bits) const
    {
        const ulonglong2 claims = peek_pair(reinterpret_cast<ulonglong2*>(distinct.claims + start_of(bits)));
        const Count claim = Claims::of(bits, 0);
        return claim && (claims.x == claim || claims.y == claim);
    }
#endif

    // Inserts the value at a place. Returns false if there are too many values.
    __device__ __forceinline__ bool put(Bits bits, long long place) const
    {
        const int slot = distinct.is_full() ? -1 : distinct.insert(start_of(bits), bits, Claims::of(bits, place));
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

// Loads this lane's values, a block apart, from place i on; past the end, the last value of all.
__device__ __forceinline__ void load(Bits (&bits)[AT_ONCE], const Bits* data, long long i, long long count)
{
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) bits[k] = data[min(i + k * THREADS, count - 1)];
}

// Adds values to those that the block has seen. Returns false if there are too many.
__device__ __forceinline__ bool look_at(const Bits (&bits)[AT_ONCE], const Seen& seen, long long i, long long count)
{
    unsigned missed = 0;
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) missed |= unsigned(i + k * THREADS < count && !seen.has(bits[k])) << k;
    // A loop has few instructions: a small launch has to fetch them first.
    for (; missed; missed &= missed - 1) {
        const int k = __ffs(int(missed)) - 1;
        Bits value = bits[0];
#pragma unroll
        for (int other = 1; other < AT_ONCE; ++other)
            if (k == other) value = bits[other];
        if (!seen.put(value, i + k * THREADS)) return false;
    }
    return true;
}

// The codings that do not hold these values, which are too many for a dictionary.
__device__ __forceinline__ unsigned dead_of(const Bits (&bits)[AT_ONCE], long long i, long long count)
{
    unsigned dead = NOT_DICTIONARY;
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k)
        if (i + k * THREADS < count) dead |= dead_of(bits[k]);
    return dead;
}

// Writes the distinct values in the order of their bits. Every thread of a block calls this.
__device__ void make_table(const Claims& known, Count* claims, Bits* table)
{
    constexpr int each = SLOTS / THREADS, sharing = THREADS / MOST_CODES;  // threads that rank a value
    __shared__ Bits values[MOST_CODES];
    __shared__ int found;
    if (threadIdx.x == 0) {
        found = 0;
#if DASP_VALUE_BYTES == 8
        if (peek(claims + SLOTS)) values[found++] = ABSENT;
#endif
    }
    Count claim[each];
#pragma unroll
    for (int k = 0; k < each; ++k) claim[k] = peek(claims + threadIdx.x + k * THREADS);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < each; ++k) {
        const int own = claim[k] ? atomicAdd(&found, 1) : MOST_CODES;
        if (own < MOST_CODES) values[own] = known.value(claim[k]);
    }
    __syncthreads();
    const int nth = threadIdx.x / sharing, count = min(found, MOST_CODES);
    const Bits own = values[nth < count ? nth : 0];
    int rank = 0;
#pragma unroll 4
    for (int other = threadIdx.x % sharing; other < count; other += sharing) rank += is_less(values[other], own);
#pragma unroll
    for (int step = sharing / 2; step; step /= 2) rank += __shfl_xor_sync(ALL_LANES, rank, step);
    if (nth < count && threadIdx.x % sharing == 0) table[rank] = own;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
dasp_value_facts(long long count, Count* words, Bits* table, const Bits* __restrict__ data)
{
    Count *const facts = words, *const come = words + 2, *const claims = words + 3;
    __shared__ __align__(16) Count block_claims[SLOTS + 2];
    __shared__ unsigned block_count, many;
    __shared__ ulonglong2 copies[sizeof(Bits) == 16 ? SLOTS : 1];
    __shared__ int listed[MOST_CODES + 1], found;
    for (int slot = threadIdx.x; slot <= SLOTS; slot += THREADS) {
        block_claims[slot] = 0;
        if (sizeof(Bits) == 16 && slot < SLOTS) copies[slot] = {ABSENT, ABSENT};
    }
    if (threadIdx.x == 0) found = block_count = many = 0;

    const Claims known{data};
    const Seen seen{{known, block_claims, &block_count}, copies};
    const long long stride = gridDim.x * (long long)TILE;
    unsigned dead = 0;
    long long i = blockIdx.x * (long long)TILE + threadIdx.x;
    Bits next[AT_ONCE];
    load(next, data, i, count);
    __syncthreads();
    unsigned heard = 0;  // the `dead` of other blocks
    for (; i - threadIdx.x < count && dead != ALL; i += stride) {
        Bits bits[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) bits[k] = next[k];
        const unsigned before = __shfl_sync(ALL_LANES, heard, 0);
        heard = unsigned(peek(facts));  // for the next turn
        load(next, data, i + stride, count);
        if ((dead & NOT_DICTIONARY) || __any_sync(ALL_LANES, !look_at(bits, seen, i, count)))
            dead |= dead_of(bits, i, count);
        dead = __reduce_or_sync(ALL_LANES, dead);
        if (dead & ~before && lane_id() == 0) atomicOr(facts, Count(dead));
        dead |= before;
    }
    if (lane_id() == 0 && (dead & NOT_DICTIONARY)) atomicOr(&many, 1u);
    __syncthreads();
#pragma unroll 1
    for (int slot = threadIdx.x; slot <= SLOTS; slot += THREADS) {
        if (block_claims[slot] == 0) continue;
        if (!many) listed[atomicAdd(&found, 1)] = slot;
        else dead |= dead_of(known.value(claim_in(block_claims, slot)));
    }
    __syncthreads();
    if (int(threadIdx.x) < found) {
        const Count claim = claim_in(block_claims, listed[threadIdx.x]);
        const Bits bits = known.value(claim);
        const Distinct<Count> all{known, claims, facts + 1};
        const int where = all.insert(slot_of(bits), bits, claim);
        if (where < 0) dead |= NOT_DICTIONARY;
        if (where < 0 || where >= IS_NEW) dead |= dead_of(bits);  // once for each value, if they are few
    }
    dead = __reduce_or_sync(ALL_LANES, dead);
    if (lane_id() == 0 && dead) atomicOr(facts, Count(dead));
    if (is_last_block(come, gridDim.x) && !(peek(facts) & NOT_DICTIONARY)) make_table(known, claims, table);
}

#else

extern "C" __global__ void __launch_bounds__(CODER_THREADS)
dasp_holds(long long count, const Bits* __restrict__ data, Count* misfit)
{
    constexpr int at_once = sizeof(Bits) == 16 ? 4 : 8;
    const Coder coder{};
    const long long tile = CODER_THREADS * at_once;
    const Bits value = data[0];
    bool fits = true;
    for (long long first = blockIdx.x * tile + threadIdx.x; first < count; first += gridDim.x * tile) {
        Bits bits[at_once];
#pragma unroll
        for (int k = 0; k < at_once; ++k) bits[k] = data[min(first + k * CODER_THREADS, count - 1)];
#pragma unroll
        for (int k = 0; k < at_once; ++k) fits = fits && coder.holds(bits[k], value);
    }
    if (__any_sync(ALL_LANES, !fits) && lane_id() == 0) atomicOr(misfit, Count(1));
}

#endif
