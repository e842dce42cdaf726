// What a GPU says to another one in whose memory it writes.
//
// The memory of all ranks is one range of addresses: `memory` is its lowest one, places are counted from there in bytes.
// A turn is a number that grows by one with each launch, the same on all ranks; 0 comes before the first. What is
// written for a turn lies in one of two slots by turns: whoever begins turn k + 2 has heard from each neighbour in turn
// k + 1, and that one was done with turn k before.
#pragma once

#include "../number.cuh"

// Tries between two looks at what the host says, in its own memory: some milliseconds.
constexpr unsigned TRIES = 4096;

// Whether to try again. limit: how many times a thread that waits may look there; 0: as often as it takes.
__device__ __forceinline__ bool waits_on(unsigned& tries, const int* limit)
{
#ifdef DASP_SIMT
    __nanosleep(0);
    return *limit == 0;
#else
    if (++tries % TRIES != 0) return true;
    const unsigned most = *(const volatile int*)limit;
    return most == 0 || tries / TRIES < most;
#endif
}

// Says a turn to another GPU: who hears it sees what this thread, and others of its block before a barrier, wrote before
// (PTX ISA, memory consistency model: release and acquire, scope sys).
__device__ __forceinline__ void say_turn(unsigned* flag, unsigned turn)
{
#ifdef DASP_SIMT
    __threadfence();
    store_message(flag, turn);
#else
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(turn) : "memory");
#endif
}

// Waits until another GPU has said this turn; it may have said the next one since.
__device__ __forceinline__ void hear_turn(unsigned* flag, unsigned turn, const int* limit)
{
    unsigned said, tries = 0;
    do {
#ifdef DASP_SIMT
        said = load_message(flag);
        __threadfence();
#else
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(said) : "l"(flag) : "memory");
#endif
    } while (int(said - turn) < 0 && waits_on(tries, limit));
}

// A number and its turn, each half of it in one word with the turn, so that whoever sees the turn in both has the
// number: nothing else has to be waited for.
__device__ __forceinline__ void say_number(unsigned long long* words, double number, unsigned turn)
{
    const unsigned long long bits = bits_of(number), mark = (unsigned long long)turn << 32;
    const unsigned long long low = mark | (bits & 0xffffffffu), high = mark | (bits >> 32);
#ifdef DASP_SIMT
    store_message(words, low);
    store_message(words + 1, high);
#else
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(words), "l"(low), "l"(high) : "memory");
#endif
}

// Waits for a number that another GPU says in this turn.
__device__ __forceinline__ double hear_number(unsigned long long* words, unsigned turn, const int* limit)
{
    unsigned long long low, high;
    unsigned tries = 0;
    do {
#ifdef DASP_SIMT
        low = load_message(words);
        high = load_message(words + 1);
#else
        asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(words) : "memory");
#endif
    } while ((low >> 32 != turn || high >> 32 != turn) && waits_on(tries, limit));
    return sum_of((high << 32) | (low & 0xffffffffu));
}
