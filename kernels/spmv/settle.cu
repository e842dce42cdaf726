// Ends when the kernels before it in the stream have ended and their writes are in memory. A product after it
// may start early and reads its plan at once: it finds the plan that those kernels wrote.
//
// Launch: one thread.

#include "warp.cuh"

extern "C" __global__ void dasp_settle() { wait_for_earlier_kernels(); }
