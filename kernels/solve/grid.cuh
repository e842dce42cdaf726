// Sums over all threads of a grid whose blocks run at the same time. Each sum is also a barrier.
//
// The launch must be cooperative, so that all its blocks run at once: a block that waits for one that has not
// started would wait for ever.
#pragma once

#include "number.cuh"

// A message is the bits of a sum XOR these, the bits of a signalling NaN that no arithmetic gives. So no
// message is 0, and a 0 says that none has come.
constexpr unsigned long long NO_SUM = 0x7ff4da5f00000000ull;

// Releases the writes of this thread, and those of its block before a barrier, to every thread that acquires
// a message which this thread stores later (PTX ISA, memory consistency model: fence.acq_rel, scope gpu).
__device__ __forceinline__ void release_to_grid()
{
#ifdef DASP_SIMT
    __threadfence();
#else
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}

// Store two neighbouring messages at once; load them and acquire all writes released before their store.
__device__ __forceinline__ void store_messages(unsigned long long* slot, unsigned long long first,
                                               unsigned long long second)
{
#ifdef DASP_SIMT
    if (size_t(slot) % 16) simt::fail_here("misaligned", "two messages that lie together are stored at once");
    store_message(slot, first);
    store_message(slot + 1, second);
#else
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(slot), "l"(first), "l"(second) : "memory");
#endif
}
__device__ __forceinline__ void acquire_messages(unsigned long long* slot, unsigned long long& first,
                                                 unsigned long long& second)
{
#ifdef DASP_SIMT
    first = load_message(slot);
    second = load_message(slot + 1);
    __threadfence();
#else
    asm volatile("ld.acquire.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(slot) : "memory");
#endif
}

// Sums over the grid. Every thread has an object of its own; those of a block are equal.
// messages (2, blocks, blocks, WORDS), aligned to 16 bytes: two sets; in each, the messages to a block from
//     every block. All 0 before and after a launch. No other block polls the messages that a block waits for.
template <int THREADS, int SUMS> class Grid {
public:
    static constexpr int WORDS = SUMS <= 2 ? 2 : 4;  // that one block sends to another for a sum

    __device__ __forceinline__ explicit Grid(unsigned long long* messages) : messages(messages), turn(0) {}

    // Calls `then` with the sums over all threads of the grid, in one thread of each block; the block's other
    // threads go on when it returns. All threads then see everything that any thread wrote before the call.
    // Deterministic: the numbers are added in a fixed order.
    template <class Then> __device__ __forceinline__ void sum(const double (&value)[SUMS], const Then& then)
    {
        __shared__ double parts[SUMS][WARPS], received[SUMS][WARPS];
        const int warp = threadIdx.x / 32, group = lane_id() / LANES, member = lane_id() % LANES, blocks = gridDim.x;
        const double of_warp = sum_of_group(value);
        if (member == 0 && group < SUMS) parts[group][warp] = of_warp;
        __syncthreads();

        unsigned long long* const set = messages + (long long)turn * blocks * blocks * WORDS;
        if (32 * warp < blocks) {
            double of_block = 0;
            if (group < SUMS)
                for (int other = member; other < WARPS; other += LANES) of_block += parts[group][other];
            of_block = sum_over(of_block, LANES / 2);
            double sent[WORDS] = {}, found[SUMS] = {};
#pragma unroll
            for (int k = 0; k < SUMS; ++k) sent[k] = __shfl_sync(ALL_LANES, of_block, k * LANES);
            release_to_grid();
            for (int other = threadIdx.x; other < blocks; other += THREADS)
                send(set + (other * blocks + blockIdx.x) * WORDS, sent);
            for (int other = threadIdx.x; other < blocks; other += THREADS)
                receive(set + (blockIdx.x * blocks + other) * WORDS, found);
            __syncwarp();
            const double sum = sum_of_group(found);
            if (member == 0 && group < SUMS) received[group][warp] = sum;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            double total[SUMS] = {};
            for (int other = 0; other < WARPS && 32 * other < blocks; ++other)
#pragma unroll
                for (int k = 0; k < SUMS; ++k) total[k] += received[k][other];
            then(total);
        }
        turn = 1 - turn;
        __syncthreads();
    }

private:
    static_assert(SUMS >= 1 && SUMS <= 4, "each sum has a group of a warp's lanes");
    static constexpr int WARPS = THREADS / 32;
    static constexpr int GROUPS = SUMS == 1 ? 1 : SUMS == 2 ? 2 : 4;
    static constexpr int LANES = 32 / GROUPS;  // of a group, which adds up one of the sums

    static __device__ __forceinline__ void send(unsigned long long* slot, const double (&sent)[WORDS])
    {
#pragma unroll
        for (int k = 0; k < WORDS; k += 2)
            store_messages(slot + k, bits_of(sent[k]) ^ NO_SUM, bits_of(sent[k + 1]) ^ NO_SUM);
    }

    // Waits for the message of one block, adds it, and clears its slot. The slot is used again two sums
    // later: by then its sender has received this block's next message, which was sent after the slot was
    // cleared.
    static __device__ __forceinline__ void receive(unsigned long long* slot, double (&sum)[SUMS])
    {
        unsigned long long bits[WORDS];
#pragma unroll
        for (int k = 0; k < WORDS; k += 2)
            for (;;) {
                acquire_messages(slot + k, bits[k], bits[k + 1]);
                if (bits[k] != 0 && bits[k + 1] != 0) break;
#ifdef DASP_SIMT
                __nanosleep(0);  // other threads of the emulator run meanwhile
#endif
            }
#pragma unroll
        for (int k = 0; k < WORDS; k += 2) store_messages(slot + k, 0, 0);
#pragma unroll
        for (int k = 0; k < SUMS; ++k) sum[k] += sum_of(bits[k] ^ NO_SUM);
    }

    // The sum of a value over the lanes whose numbers differ at most in bit `flip` and lower bits.
    static __device__ __forceinline__ double sum_over(double value, int flip)
    {
#pragma unroll
        for (int lanes = 16; lanes > 0; lanes /= 2)
            if (lanes <= flip) value += from_other_lane(value, lanes);
        return value;
    }

    // The sum over the warp of value[k] in each lane of group k. In each turn a lane gives half of its values
    // to the other half of the lanes, until it has one value left.
    static __device__ __forceinline__ double sum_of_group(const double (&value)[SUMS])
    {
        double held[GROUPS];
#pragma unroll
        for (int k = 0; k < GROUPS; ++k) held[k] = k < SUMS ? value[k] : 0;
#pragma unroll
        for (int count = GROUPS / 2, flip = 16; count > 0; count /= 2, flip /= 2) {
            const bool upper = lane_id() & flip;
#pragma unroll
            for (int k = 0; k < count; ++k)
                held[k] = (upper ? held[k + count] : held[k]) + from_other_lane(upper ? held[k] : held[k + count], flip);
        }
        return sum_over(held[0], LANES / 2);
    }

    unsigned long long* messages;
    int turn;
};
