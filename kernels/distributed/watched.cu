// What stands around messages that another library brings: the host learns how far they have come, and what came of
// messages that were given up is NaN.
//
// dasp_begin_messages: one thread. Tells that the messages of a turn begin.
// dasp_end_messages: one dimension, blocks of DASP_THREADS threads, any number of blocks. Sets every byte of `received`
//     (nbytes) to 0xff, a NaN in any type of number.cuh, if `given_up` (1, in the host's memory) is not 0; tells that they
//     have ended.
// turns (1): ended before. mailbox (2), in the host's memory: the last turn that began, and the last that ended.
// Launches for the same `turns` follow each other.

#include "number.cuh"

extern "C" __global__ void dasp_begin_messages(const unsigned* turns, volatile unsigned* mailbox)
{
    wait_for_earlier_kernels();
    mailbox[0] = turns[0] + 1;
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_end_messages(unsigned char* received, long long nbytes, const volatile unsigned* given_up, unsigned* turns,
                  volatile unsigned* mailbox)
{
    wait_for_earlier_kernels();
    if (given_up[0] != 0) {
        const long long first = (long long)DASP_THREADS * blockIdx.x + threadIdx.x, step = (long long)DASP_THREADS * gridDim.x;
        for (long long at = first; at < nbytes; at += step) received[at] = 0xff;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) mailbox[1] = ++turns[0];
}
