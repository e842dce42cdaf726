// The lanes of a warp: their numbers, sums over them, loads that respect the cache; messages between blocks.
#pragma once

constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ __forceinline__ int lane_id() { return threadIdx.x % 32; }

// The value of the lane whose number differs from this lane's in the bits of `flip`.
template <class T> __device__ __forceinline__ T from_other_lane(T value, int flip)
{
    return __shfl_xor_sync(ALL_LANES, value, flip);
}

// The sum over lanes 4r .. 4r+3, in each of them. The order is fixed, so equal inputs give equal bits.
template <class T> __device__ __forceinline__ T quad_sum(T value)
{
    value += from_other_lane(value, 1);
    value += from_other_lane(value, 2);
    return value;
}

// The sum over all 32 lanes, in each of them, in a fixed order.
template <class T> __device__ __forceinline__ T warp_sum(T value)
{
    value = quad_sum(value);
    value += from_other_lane(value, 4);
    value += from_other_lane(value, 8);
    value += from_other_lane(value, 16);
    return value;
}

// A load of data that is read once: streamed past the cache (ld.global.cs), which is left to x.
template <class T> __device__ __forceinline__ T load_stream(const T* address) { return __ldcs(address); }

// load_stream, but a share of the lines, by their addresses, stays in the second-level cache until the next
// kernel (PTX ISA: createpolicy.fractional).
template <class T> __device__ __forceinline__ T load_kept(const T* address, float share)
{
#ifdef DASP_SIMT
    (void)share;
    return __ldcs(address);
#else
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.L2::evict_first.b64 %0, %1;" : "=l"(policy) : "f"(share));
#define DASP_LOAD_KEPT(type, ...) \
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint." type __VA_ARGS__)
    if constexpr (sizeof(T) == 16) {
        ulonglong2 bits;
        DASP_LOAD_KEPT("v2.b64", " {%0, %1}, [%2], %3;" : "=l"(bits.x), "=l"(bits.y) : "l"(address), "l"(policy));
        return *reinterpret_cast<T*>(&bits);
    } else if constexpr (sizeof(T) == 8) {
        unsigned long long bits;
        DASP_LOAD_KEPT("b64", " %0, [%1], %2;" : "=l"(bits) : "l"(address), "l"(policy));
        return *reinterpret_cast<T*>(&bits);
    } else if constexpr (sizeof(T) == 4) {
        unsigned bits;
        DASP_LOAD_KEPT("b32", " %0, [%1], %2;" : "=r"(bits) : "l"(address), "l"(policy));
        return *reinterpret_cast<T*>(&bits);
    } else {
        unsigned short bits;
        if constexpr (sizeof(T) == 2)
            DASP_LOAD_KEPT("b16", " %0, [%1], %2;" : "=h"(bits) : "l"(address), "l"(policy));
        else
            DASP_LOAD_KEPT("u8", " %0, [%1], %2;" : "=h"(bits) : "l"(address), "l"(policy));
        return *reinterpret_cast<T*>(&bits);  // the low byte comes first
    }
#undef DASP_LOAD_KEPT
#endif
}

// A load of data that others read again: through the read-only cache (ld.global.nc).
template <class T> __device__ __forceinline__ T load_cached(const T* address) { return __ldg(address); }

// A load of data that an earlier kernel of the stream may have written: through the cache, but not the
// read-only one, because this kernel may start before that one has ended.
template <class T> __device__ __forceinline__ T load_result(const T* address) { return __ldca(address); }

// load_result where a column is not negative, else 0. The address is computed in either case: if it were made
// from a kernel's parameters under the condition, each load would take a scoreboard for it, and a warp has
// six, so that loads would wait for each other.
template <class T, class Column> __device__ __forceinline__ T load_result_at(const T* address, Column column)
{
#ifdef DASP_SIMT
    T found{0};
    if (column >= 0) found = __ldca(address);
    return found;
#else
    const int sign = sizeof(Column) == 8 ? int(column >> 32) : int(column);
#define DASP_LOAD_IF(type, registers, ...) \
    asm volatile("{.reg .pred p; setp.ge.s32 p, %" registers ", 0; @p ld.global.ca." type ";}" : __VA_ARGS__, "r"(sign))
    if constexpr (sizeof(T) == 16) {
        ulonglong2 bits{0, 0};
        DASP_LOAD_IF("v2.b64 {%0, %1}, [%2]", "3", "+l"(bits.x), "+l"(bits.y) : "l"(address));
        return *reinterpret_cast<T*>(&bits);
    } else if constexpr (sizeof(T) == 8) {
        unsigned long long bits = 0;
        DASP_LOAD_IF("b64 %0, [%1]", "2", "+l"(bits) : "l"(address));
        return *reinterpret_cast<T*>(&bits);
    } else if constexpr (sizeof(T) == 4) {
        unsigned bits = 0;
        DASP_LOAD_IF("b32 %0, [%1]", "2", "+r"(bits) : "l"(address));
        return *reinterpret_cast<T*>(&bits);
    } else {
        unsigned short bits = 0;
        DASP_LOAD_IF("b16 %0, [%1]", "2", "+h"(bits) : "l"(address));
        return *reinterpret_cast<T*>(&bits);
    }
#undef DASP_LOAD_IF
#endif
}

// Waits until the kernels before this one in the stream have ended and their writes are visible. Before this
// call a kernel may not read or write anything that a kernel can write. After it the next kernel may start,
// which waits too (programmatic dependent launch, PTX ISA: griddepcontrol). Every thread calls this; calls
// after the first are free.
__device__ __forceinline__ void wait_for_earlier_kernels()
{
#if !defined(DASP_SIMT) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A store that threads of other blocks see whole, and a load that sees such a store. They order no other
// access (PTX ISA, memory consistency model: relaxed, scope gpu).
#ifdef DASP_SIMT
template <class T> __device__ __forceinline__ void store_message(T* slot, T bits) { atomicExch(slot, bits); }
template <class T> __device__ __forceinline__ T load_message(T* slot) { return atomicAdd(slot, T(0)); }
#else
__device__ __forceinline__ void store_message(unsigned* slot, unsigned bits)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(slot), "r"(bits) : "memory");
}
__device__ __forceinline__ void store_message(unsigned long long* slot, unsigned long long bits)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(slot), "l"(bits) : "memory");
}
__device__ __forceinline__ unsigned load_message(const unsigned* slot)
{
    unsigned bits;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(bits) : "l"(slot) : "memory");
    return bits;
}
__device__ __forceinline__ unsigned long long load_message(const unsigned long long* slot)
{
    unsigned long long bits;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(bits) : "l"(slot) : "memory");
    return bits;
}
#endif
