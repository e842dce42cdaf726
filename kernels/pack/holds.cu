// Whether a coding holds values.
//
// data (count): values as bits. table (distinct): see encode.cuh.
// dasp_holds: one dimension, any number of blocks of 256 threads. misfit: becomes `turn` if one of them loses a bit in
//     the coding, and stays as it is else; no other launch at the time has this `misfit`.
// dasp_keep_first: where all values must be equal; blocks of 256 threads that run at the same time. table (1) gets the
//     first of them if they are; votes, told (1): see votes.cuh.

#include "encode.cuh"
#include "votes.cuh"

constexpr int THREADS = 256, AT_ONCE = sizeof(Bits) == 16 ? 4 : 8;

// Whether the coding holds the values that a thread looks at.
__device__ __forceinline__ bool all_fit(const Coder& coder, const Bits* __restrict__ data, long long count)
{
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
    return fits;
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_holds(long long count, const Bits* __restrict__ table, int distinct, const Bits* __restrict__ data, Count* misfit,
           long long turn)
{
    __shared__ Coder coder;
    coder.make(table, distinct);
    const bool fits = all_fit(coder, data, count);
    wait_for_earlier_kernels();  // none is waited for here, but the next one may start
    if (__any_sync(ALL_LANES, !fits) && lane_id() == 0) atomicMax(misfit, Count(turn));
}

#if DASP_CODING == CODING_EQUAL
extern "C" __global__ void __launch_bounds__(THREADS, 4)
dasp_keep_first(long long count, Bits* table, const Bits* __restrict__ data, Count* votes, Count* told)
{
    const Votes all{votes};
    const bool fit = all.agree(all_fit(Coder(), data, count));
    if (fit && blockIdx.x == 0 && threadIdx.x == 0) table[0] = data[0];
    all.tell(fit, told);
}
#endif
