// Ends when the kernels before it in the stream have ended and what they wrote is in memory, so that a product behind it,
// which may start early and reads its plan at once, finds what they wrote there.
//
// Launch: one thread.

#include "warp.cuh"

extern "C" __global__ void dasp_settle() { wait_for_earlier_kernels(); }
