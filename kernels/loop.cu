// Ends the body of a graph's loop: the body runs again while a number is 0.
//
// Launch: one thread, in the body of the while node that `loop` belongs to (CUDA Programming Guide, conditional graph
// nodes).

#include "warp.cuh"

extern "C" __device__ void cudaGraphSetConditional(unsigned long long loop, unsigned int again);

extern "C" __global__ void dasp_loop(unsigned long long loop, const double* number)
{
    wait_for_earlier_kernels();
    cudaGraphSetConditional(loop, number[0] == 0);
}
