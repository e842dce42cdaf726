// The end of the body of a graph's loop: says whether it is run again. The bank's slot 0 is 0 while it is.
//
// Launch: one thread, in the body of the while node that `loop` belongs to (CUDA Programming Guide, conditional graph
// nodes).

#include "../warp.cuh"

extern "C" __device__ void cudaGraphSetConditional(unsigned long long loop, unsigned int again);

extern "C" __global__ void dasp_turn(unsigned long long loop, const double* bank)
{
    wait_for_earlier_kernels();
    cudaGraphSetConditional(loop, bank[0] == 0);
}
