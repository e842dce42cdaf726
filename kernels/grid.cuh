// Blocks that run at the same time, and what they tell each other: a barrier of the grid, and sums over it.
//
// The launch must be cooperative, so that all its blocks run at once: a block that waits for one that has not
// started would wait for ever.
#pragma once

#include "number.cuh"

// A signalling NaN, which no arithmetic gives: stands for a sum that has not come yet.
constexpr unsigned long long NO_SUM = 0x7ff4da5f00000000ull;

// Sets of messages that are used by turns: one in use, one that late blocks may still read, one that is cleared.
constexpr int MESSAGE_SETS = 3;

// Messages that a lane looks for at once.
constexpr int GRID_LOOKS = 5;

// A wait that comes to nothing: other threads of the emulator run meanwhile.
__device__ __forceinline__ void look_again()
{
#ifdef DASP_SIMT
    __nanosleep(0);
#endif
}

// What a block keeps of the grid's state; every thread has one, and all of a block are equal.
// arrivals (1): how often a block has arrived at a barrier, over all launches.
// messages (MESSAGE_SETS * SUMS * blocks): all NO_SUM before the first launch.
// turn: the set of the next sums; what the last launch left.
template <int THREADS, int SUMS> struct Grid {
    static constexpr int WARPS = THREADS / 32;

    unsigned long long* arrivals;
    unsigned long long* messages;
    int turn;
    unsigned long long passed;  // arrivals when all have passed the last barrier; thread 0 alone knows it

    __device__ __forceinline__ Grid(unsigned long long* arrivals, unsigned long long* messages, int turn)
        : arrivals(arrivals), messages(messages), turn(turn), passed(0)
    {
        if (threadIdx.x == 0) passed = load_message(arrivals) / gridDim.x * gridDim.x;
    }

    // Waits until all blocks are here. What any thread wrote before is seen by all threads after.
    __device__ __forceinline__ void wait()
    {
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(arrivals, 1ull);
            passed += gridDim.x;
            while (load_message(arrivals) < passed) look_again();
            __threadfence();
        }
        __syncthreads();
    }

    // The sums over all threads of the grid, in each of them. Orders nothing else between blocks; `wait` must be
    // called between two of these. Deterministic: added up in a fixed order.
    __device__ __forceinline__ void sum(double (&value)[SUMS])
    {
        __shared__ double parts[SUMS][WARPS], totals[SUMS];
#pragma unroll
        for (int k = 0; k < SUMS; ++k) {
            const double of_warp = warp_sum(value[k]);
            if (lane_id() == 0) parts[k][threadIdx.x / 32] = of_warp;
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            const int next = turn + 1 < MESSAGE_SETS ? turn + 1 : 0, blocks = gridDim.x;
            unsigned long long* mine = messages + (long long)turn * SUMS * blocks;
#pragma unroll
            for (int k = 0; k < SUMS; ++k) {
                const double of_block = warp_sum(lane_id() < WARPS ? parts[k][lane_id()] : 0.0);
                if (lane_id() == 0) store_message(mine + k * blocks + blockIdx.x, bits_of(of_block));
            }
            // Whoever reads the next set has read it two sums ago, and this comes before the barrier in between.
            if (lane_id() < SUMS)
                store_message(messages + ((long long)next * SUMS + lane_id()) * blocks + blockIdx.x, NO_SUM);
            double total[SUMS] = {};
            for (int first = lane_id(); first < blocks; first += 32 * GRID_LOOKS) {
                unsigned long long found[GRID_LOOKS][SUMS];
                for (bool absent = true; absent;) {
                    absent = false;
#pragma unroll
                    for (int i = 0; i < GRID_LOOKS; ++i)
#pragma unroll
                        for (int k = 0; k < SUMS; ++k) {
                            const int block = first + 32 * i;
                            found[i][k] = block < blocks ? load_message(mine + k * blocks + block) : 0;
                            absent = absent || found[i][k] == NO_SUM;
                        }
                    if (absent) look_again();
                }
#pragma unroll
                for (int i = 0; i < GRID_LOOKS; ++i)
#pragma unroll
                    for (int k = 0; k < SUMS; ++k) total[k] += sum_of(found[i][k]);
            }
            __syncwarp();
#pragma unroll
            for (int k = 0; k < SUMS; ++k) {
                const double of_grid = warp_sum(total[k]);
                if (lane_id() == 0) totals[k] = of_grid;
            }
        }
        turn = turn + 1 < MESSAGE_SETS ? turn + 1 : 0;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < SUMS; ++k) value[k] = totals[k];
    }
};
