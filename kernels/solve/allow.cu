// Lets an iteration go on from either array of scalars: copies those of the first to the second.
//
// Launch: one block. scalars, other (slots): slot 0 says why the iteration stopped, slot 1 how many
// iterations were made, slot 2 how many are allowed. Slot 0 becomes 0 if it is `limit` (enough iterations
// were made), else it stays; slot 1 becomes 0, slot 2 `most`.

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
