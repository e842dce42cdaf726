// Writes numbers into slots, all bits of them.
//
// Launch: one dimension, any number of blocks of 256 threads; a thread takes numbers a grid apart.
// Deterministic: no slot comes twice.
// data (count): numbers as their bits. slots (count) or null: the slot in `to` of the i-th number, else i.

#include "pack/values.cuh"

#ifndef DASP_SLOT
#error "define DASP_SLOT: the type of slots"
#endif

using Slot = DASP_SLOT;

// Fewer large numbers are in flight: they take registers.
constexpr int THREADS = 256, AT_ONCE = sizeof(Bits) == 16 ? 2 : 4;

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_scatter(const Bits* __restrict__ data, long long count, const Slot* __restrict__ slots, Bits* __restrict__ to)
{
    const long long each = THREADS * AT_ONCE;
    for (long long first = blockIdx.x * each + threadIdx.x; first < count; first += gridDim.x * each) {
        Bits bits[AT_ONCE];
        long long place[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const long long i = min(first + k * THREADS, count - 1);
            bits[k] = data[i];
            place[k] = slots ? (long long)slots[i] : i;
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k)
            if (first + k * THREADS < count) to[place[k]] = bits[k];
    }
}
