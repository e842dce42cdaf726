// The second stage of a row that several warps share: the warp of its last segment adds all partial sums.
//
// A partial sum is its own message, so there is no fence and no counter: its slot holds ABSENT until a warp
// stores a sum there, and the warp that waits for the sum puts ABSENT back. A warp waits for segments of
// lower numbers only. The warps that have these must be running, or the launch never ends:
//
//   DASP_TICKETS 1: a block that has segments draws its number when it runs, so lower ones run too.
//   DASP_TICKETS 0: a block's number is that in the grid, and blocks must start in the order of their
//       numbers. GPUs do that as far as anybody has seen, but CUDA does not promise it: its programming guide
//       lets blocks run in any order, and of CUB, which relies on the same, one of its authors says "not
//       strictly safe within the CUDA programming model" (https://github.com/NVIDIA/cub/issues/245).
#pragma once

#include "spmv/tile.cuh"

#ifndef DASP_TICKETS
#error "define DASP_TICKETS: 1 to number blocks with segments as they start, 0 to trust the grid's numbers"
#endif

// The number of this block; every thread calls this once. The first warps of the grid have the segments.
// tickets (1): how many blocks have drawn; 0 before and after each launch, as the last block to draw resets
// it. A kernel that starts before this one has ended finds 0 too: it starts after every block here has
// allowed it (wait_for_earlier_kernels), which a block does after it has drawn.
__device__ __forceinline__ unsigned number_of_block(long long segments, unsigned* tickets)
{
#if DASP_TICKETS
    constexpr int WARPS = DASP_THREADS / 32;
    const unsigned drawing = unsigned((segments + WARPS - 1) / WARPS);
    if (blockIdx.x < drawing) {
        __shared__ unsigned ticket;
        if (threadIdx.x == 0) ticket = atomicInc(tickets, drawing - 1);
        __syncthreads();
        return ticket;
    }
#endif
    return blockIdx.x;
}

// Segments for whose messages a lane looks at once.
constexpr int LOOKS = 4;

// Every warp of the row calls this once, with the sum of its own segment in every lane.
// slots (last * MESSAGES): the sums of all segments but the last, by parts; all ABSENT before and after each
// launch. Deterministic: which warp is late is chance, but the order in which sums are added is not.
__device__ __forceinline__ void deliver(Sum sum, Bits* slots, long long segment, long long last, Index row,
                                        const Result& result)
{
    if (segment < last) {
#pragma unroll
        for (int p = 0; p < MESSAGES; ++p)
            if (lane_id() == 0) store_message(slots + MESSAGES * segment + p, bits_of(part(sum, p)));
        return;
    }

    Sum total = 0;
    for (long long i = lane_id(); i < last; i += 32 * LOOKS) {
        Bits found[LOOKS][MESSAGES];
        bool absent = true;
        while (absent) {
            absent = false;
#pragma unroll
            for (int k = 0; k < LOOKS; ++k)
#pragma unroll
                for (int p = 0; p < MESSAGES; ++p) {
                    const bool inside = i + 32 * k < last;
                    found[k][p] = inside ? load_message(slots + MESSAGES * (i + 32 * k) + p) : bits_of(Real(0));
                    absent = absent || found[k][p] == ABSENT;
                }
            if (absent) __nanosleep(20);
        }
#pragma unroll
        for (int k = 0; k < LOOKS; ++k) {
            Sum other;
#pragma unroll
            for (int p = 0; p < MESSAGES; ++p) {
                if (i + 32 * k < last) store_message(slots + MESSAGES * (i + 32 * k) + p, ABSENT);
                set_part(other, p, sum_of(found[k][p]));
            }
            total += other;
        }
    }
    __syncwarp();
    total = warp_sum(total) + sum;
    if (lane_id() == 0) result.store(row, total);
}
