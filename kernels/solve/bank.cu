// Lets an iteration go on, from either bank: the scalars of the first one are handed to the second.
//
// Launch: one block. Slots 0 to 2 of a bank (slots) are why the iteration stopped, the iterations made, and those
// allowed. A stop because enough iterations were made (`limit`) is taken back, any other stays.

#include "../warp.cuh"

extern "C" __global__ void dasp_allow(double* bank, double* other, int slots, double limit, double most)
{
    wait_for_earlier_kernels();
    for (int slot = 3 + threadIdx.x; slot < slots; slot += blockDim.x) other[slot] = bank[slot];
    if (threadIdx.x > 0) return;
    if (bank[0] == limit) bank[0] = 0;
    other[0] = bank[0];
    bank[1] = other[1] = 0;
    bank[2] = other[2] = most;
}
