// Messages of a GPU to another one, in whose memory it writes.
//
// The memory of all ranks is one range of addresses: `memory` is its lowest one, and places are bytes from
// there. A turn is a number that grows by one with each launch, the same on all ranks; 0 comes before the
// first. Messages of turn k lie in slot k % 2: a rank that begins turn k + 2 has heard from each neighbour in
// turn k + 1, and the neighbour was done with turn k before.
//
// A thread that waits longer than it may gives up for good: its GPU sends nothing any more, since others
// might then find data of a later turn here, and all that it should have received is NaN.
#pragma once

#include "number.cuh"

// A NaN of any type: all its bits are 1.
template <class T> __device__ __forceinline__ T not_a_number()
{
    T value;
#pragma unroll
    for (int k = 0; k < int(sizeof(T)); ++k) reinterpret_cast<unsigned char*>(&value)[k] = 0xff;
    return value;
}

// Tries between two reads of `limit`, which is in the host's memory: some milliseconds.
constexpr unsigned TRIES = 4096;

// Milliseconds to wait for a process that has ended: all that it sent has come by then.
constexpr int ENDED = 1000;

// How long a thread has waited.
struct Patience {
    unsigned tries = 0;
    unsigned long long began = 0;
};

// Returns true to try again. limit (2 + ranks), in the host's memory: the milliseconds to wait; 1 if a thread, or the
// host, has given up; and for each rank 1 if its process has ended.
__device__ __forceinline__ bool waits_on(Patience& patience, int* limit, int rank)
{
#ifdef DASP_SIMT
    __nanosleep(0);
    return limit[1] == 0;
#else
    if (++patience.tries % TRIES != 0) return true;
    volatile int* const words = limit;
    if (words[1] != 0) return false;
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    if (patience.began == 0) patience.began = now;
    const int most = words[2 + rank] != 0 ? min(words[0], ENDED) : words[0];
    if (now - patience.began < 1000000ull * most) return true;
    words[1] = 1;
    return false;
#endif
}

// Sends a turn to another GPU: a thread that hears it sees all earlier writes of this thread, and those of
// its block before a barrier (PTX ISA, memory consistency model: release and acquire, scope sys).
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

// Waits until the GPU of a rank has sent this turn; it may have sent the next one since. Returns false if it
// gives up.
__device__ __forceinline__ bool hear_turn(unsigned* flag, unsigned turn, int* limit, int rank)
{
    Patience patience;
    while (true) {
        unsigned said;
#ifdef DASP_SIMT
        said = load_message(flag);
        __threadfence();
#else
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(said) : "l"(flag) : "memory");
#endif
        if (int(said - turn) >= 0) return true;
        if (!waits_on(patience, limit, rank)) return false;
    }
}

// Sends a number: each half in one word with the turn. A reader that sees the turn in both words has the
// number, and waits for nothing else.
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

// Waits for a number that the GPU of a rank sends in this turn. Returns false if it gives up.
__device__ __forceinline__ bool hear_number(unsigned long long* words, unsigned turn, int* limit, int rank, double& number)
{
    Patience patience;
    while (true) {
        unsigned long long low, high;
#ifdef DASP_SIMT
        low = load_message(words);
        high = load_message(words + 1);
#else
        asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(words) : "memory");
#endif
        if (low >> 32 == turn && high >> 32 == turn) {
            number = sum_of((high << 32) | (low & 0xffffffffu));
            return true;
        }
        if (!waits_on(patience, limit, rank)) return false;
    }
}
