// Lets an iteration go on, from either array of scalars: those of the first are copied to the second.
//
// Launch: one block. Slots 0 to 2 of `scalars` (slots) are why the iteration stopped, the iterations made, and those
// allowed. A stop because enough iterations were made (`limit`) is taken back, any other stays.

#include "warp.cuh"

extern "C" __global__ void dasp_allow(double* scalars, double* other, int slots, double limit, double most)
{
    wait_for_earlier_kernels();
    for (int slot = 3 + threadIdx.x; slot < slots; slot += blockDim.x) other[slot] = scalars[slot];
    if (threadIdx.x > 0) return;
    if (scalars[0] == limit) scalars[0] = 0;
    other[0] = scalars[0];
    scalars[1] = other[1] = 0;
    scalars[2] = other[2] = most;
}
