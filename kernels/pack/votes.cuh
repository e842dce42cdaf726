// What blocks that run at the same time agree on: the launch must be cooperative, or have one block.
#pragma once

#include "pack.cuh"

// votes (2): how many have come, those that say no in the upper half; and how many have gone. 0 before and after.
struct Votes {
    static constexpr Count NO = Count(1) << 32;
    Count* votes;

    // Whether all blocks say yes; every thread calls it.
    __device__ __forceinline__ bool agree(bool yes) const
    {
        __shared__ int agreed;
        const bool refused = __syncthreads_or(!yes);
        if (threadIdx.x == 0) {
            const Count vote = refused ? 1 + NO : 1;
            Count found = atomicAdd(votes, vote) + vote;
            while (unsigned(found) != gridDim.x) {
                found = load_message(votes);
#ifdef DASP_SIMT
                __nanosleep(0);  // other threads of the emulator run meanwhile
#endif
            }
            agreed = found < NO;
        }
        __syncthreads();
        return agreed;
    }

    // Tells the host 2 if they agreed and 1 else, once all that they have written is seen and nobody looks at the votes
    // any more; every thread calls it.
    __device__ __forceinline__ void tell(bool agreed, Count* told) const
    {
        __syncthreads();
        if (threadIdx.x != 0) return;
        __threadfence();
        if (atomicAdd(votes + 1, Count(1)) != gridDim.x - 1) return;
        store_message(votes, Count(0));
        store_message(votes + 1, Count(0));
        __threadfence_system();
        *told = agreed ? 2 : 1;
    }
};
