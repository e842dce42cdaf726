// Whether a coding holds values.
//
// data (count): values as bits. misfit: becomes `turn` if one of them loses a bit in the coding, and stays as it is
//     else; no other launch at the time has this `misfit`.
// dasp_holds: one dimension, any number of blocks of 256 threads.
// dasp_keep_first: one thread, where all values must be equal. table (1): gets the first unless misfit is `turn`; told
//     (1) then becomes 1, and 2 else.

#include "coding.cuh"

constexpr int THREADS = 256, AT_ONCE = sizeof(Bits) == 16 ? 4 : 8;

__device__ __forceinline__ bool holds(Bits bits, Bits first)
{
#if DASP_CODING == CODING_EQUAL
    return same(bits, first);
#elif DASP_CODING == CODING_BYTE
    return are_bytes(bits);
#elif DASP_CODING == CODING_HALF
    return are_halves(bits);
#elif DASP_CODING == CODING_SINGLE
    return are_singles(bits);
#elif DASP_CODING == CODING_REAL
    return is_real(bits);
#elif DASP_CODING == CODING_REAL_SINGLE
    return is_real(bits) && are_singles(bits);
#else
#error "DASP_CODING is one that asks each value for itself"
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_holds(long long count, const Bits* __restrict__ data, Count* misfit, long long turn)
{
    const long long tile = THREADS * AT_ONCE;
    const Bits value = data[0];
    bool fits = true;
    for (long long first = blockIdx.x * tile + threadIdx.x; first < count; first += gridDim.x * tile) {
        Bits bits[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) bits[k] = data[min(first + k * THREADS, count - 1)];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) fits = fits && holds(bits[k], value);
    }
    wait_for_earlier_kernels();  // none is waited for here, but the next one may start
    if (__any_sync(ALL_LANES, !fits) && lane_id() == 0) atomicMax(misfit, Count(turn));
}

extern "C" __global__ void dasp_keep_first(Bits* table, const Bits* __restrict__ data,
                                           const Count* misfit, long long turn, Count* told)
{
    const bool fits = *misfit != Count(turn);
    if (fits) table[0] = data[0];
    *told = fits ? 2 : 1;
}
