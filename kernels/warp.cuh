// What a warp does with its 32 lanes: who am I, sums over lanes, and loads that respect the cache.
#pragma once

constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ __forceinline__ int lane_id() { return threadIdx.x % 32; }

// The sum over lanes 4r .. 4r+3, in each of them. The order is fixed, so equal inputs give equal bits.
template <class T> __device__ __forceinline__ T quad_sum(T value)
{
    value += __shfl_xor_sync(ALL_LANES, value, 1);
    value += __shfl_xor_sync(ALL_LANES, value, 2);
    return value;
}

// The sum over all 32 lanes, in each of them, in a fixed order.
template <class T> __device__ __forceinline__ T warp_sum(T value)
{
    value = quad_sum(value);
    value += __shfl_xor_sync(ALL_LANES, value, 4);
    value += __shfl_xor_sync(ALL_LANES, value, 8);
    value += __shfl_xor_sync(ALL_LANES, value, 16);
    return value;
}

// A load of data that is read once: streamed past the cache (ld.global.cs), which is left to x.
template <class T> __device__ __forceinline__ T load_stream(const T* address) { return __ldcs(address); }

// A load of data that others read again: through the read-only cache (ld.global.nc).
template <class T> __device__ __forceinline__ T load_cached(const T* address) { return __ldg(address); }

// Counts this thread in, and returns how many had come before it. What the thread wrote before is seen by
// those that come after it, and it sees what those before it wrote (atom.acq_rel, PTX ISA 8.x, memory
// consistency model): half the wait of an atomic between two fences.
__device__ __forceinline__ unsigned arrive(unsigned* ticket)
{
#ifdef DASP_SIMT
    __threadfence();
    const unsigned before = atomicAdd(ticket, 1u);
    __threadfence();
#else
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(ticket) : "memory");
#endif
    return before;
}
