// Finds whether a coding without a dictionary keeps every bit of some values.
//
// data (count): values as bits. misfit (1), 0 before: becomes 1 if a value loses a bit in the coding.
// Launch: one dimension, any number of blocks of 256 threads; a thread takes values a grid apart.
// Deterministic: misfit is the same whichever thread sets it.

#include "pack/coding.cuh"

constexpr int THREADS = 256, AT_ONCE = sizeof(Bits) == 16 ? 4 : 8;

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_holds(long long count, const Bits* __restrict__ data, Count* misfit)
{
    const Coder coder{};
    const long long tile = THREADS * AT_ONCE;
    const Bits value = data[0];
    bool fits = true;
    for (long long first = blockIdx.x * tile + threadIdx.x; first < count; first += gridDim.x * tile) {
        Bits bits[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) bits[k] = data[min(first + k * THREADS, count - 1)];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) fits = fits && coder.holds(bits[k], value);
    }
    if (__any_sync(ALL_LANES, !fits) && lane_id() == 0) atomicOr(misfit, Count(1));
}
