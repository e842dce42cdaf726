// Kernels before and after messages that another library moves: they tell the host how far the messages have
// come, and replace received data by NaN if the messages were given up.
//
// dasp_begin_messages: one thread. Tells the host that the messages of a turn begin.
// dasp_end_messages: one dimension, blocks of DASP_THREADS threads, any number of blocks. Sets every byte of
//     `received` (nbytes) to 0xff, a NaN in any type of number.cuh, if `given_up` (1, in the host's memory)
//     is not 0; tells the host that the messages have ended.
// turns (1): the last turn that ended. mailbox (2), in the host's memory: the last turn that began, and the
//     last that ended.
// Launches with the same `turns` follow each other.

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
