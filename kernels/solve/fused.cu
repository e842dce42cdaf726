// One pass over vectors of n numbers: scalars, then updates element by element, then their dot products.
//
// dasp/solvers/cuda/passes.py writes the text of a pass into the constants below. Every thread computes the
// scalars for itself, from the sums of the pass before and an array of scalars, so no launch and no atomic
// stands between a dot product and the coefficient made of it. A pass leaves its own dot products as a sum
// for each block.
//
// Launch: one dimension, blocks of DASP_THREADS threads, any number of blocks.
// DASP_VECTORS: the vectors as parameters v0, v1, ...; rows are multiples of 16 bytes apart. Each element is read
//     and written by one thread.
// in, out (slots): arrays of scalars. Slot 0 says why the iteration stopped, 0 while it goes on. DASP_STORES writes
//     slots of `out` that this pass reads in neither array.
// sums_in (DASP_SUMS_IN * blocks_in), sums_out (DASP_DOTS * blocks): for each dot product, a sum for each block.
// sums_more (DASP_SUMS_MORE * blocks_more): the same from the product before this pass (spmv/dot.cuh); they
//     follow the others in `sum`.
// DASP_COMPLEX 1: vectors are of complex numbers, and coefficients real or complex; all sums are real.
// history: the norm of the residual after each iteration.
// DASP_LEAVE: nothing, or a return on a condition of the scalars.
// DASP_GUARD 1: a pass after the stop does nothing, but the first pass of an iteration (DASP_CARRIED > 0)
//     copies DASP_CARRIED slots from `in` to `out`. DASP_GUARD 2: a pass does nothing if slot 0 is 2, which
//     says that enough iterations were made.
// Equal inputs and equal launches give equal bits: every sum has a fixed order.

#if DASP_COMPLEX
#include "number.cuh"
#else
#include "warp.cuh"
#endif

using Scalar = DASP_SCALAR;

#if DASP_COMPLEX
using Real = Parts<Scalar>::Real;

// The parts of conj(x) y.
__device__ __forceinline__ double real_part(Scalar x, Scalar y)
{
    return double(x.real) * double(y.real) + double(x.imag) * double(y.imag);
}
__device__ __forceinline__ double imaginary_part(Scalar x, Scalar y)
{
    return double(x.real) * double(y.imag) - double(x.imag) * double(y.real);
}
#else
using Real = Scalar;
#endif

constexpr int THREADS = DASP_THREADS;
constexpr int WARPS = THREADS / 32;
constexpr int WIDTH = 16 / sizeof(Scalar);

#define SUMS (DASP_SUMS_IN + DASP_SUMS_MORE)

struct __align__(16) Piece {
    Scalar element[WIDTH];
};

__device__ __forceinline__ Piece read_piece(const Scalar* address) { return *reinterpret_cast<const Piece*>(address); }

__device__ __forceinline__ void write_piece(Scalar* address, const Piece& piece)
{
    *reinterpret_cast<Piece*>(address) = piece;
}

// The same for a vector that nothing else of an iteration touches: it leaves the cache to those that are read again.
__device__ __forceinline__ Piece read_piece_once(const Scalar* address)
{
    const uint4 bits = __ldcs(reinterpret_cast<const uint4*>(address));
    return *reinterpret_cast<const Piece*>(&bits);
}

__device__ __forceinline__ void write_piece_once(Scalar* address, const Piece& piece)
{
    __stcs(reinterpret_cast<uint4*>(address), *reinterpret_cast<const uint4*>(&piece));
}

// Leaves the sums over each warp of a block, which every thread may then add (sum_of_warps).
template <int COUNT> __device__ __forceinline__ void leave_warp_sums(double (*parts)[WARPS], double* value)
{
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
        const double sum = warp_sum(value[k]);
        if (lane_id() == 0) parts[k][threadIdx.x / 32] = sum;
    }
    __syncthreads();
}

// This thread's share of the sum over blocks.
__device__ __forceinline__ double sum_by_threads(const double* sums, int blocks)
{
    double sum = 0;
#pragma unroll 4
    for (int block = threadIdx.x; block < blocks; block += THREADS) sum += load_result(sums + block);
    return sum;
}

__device__ __forceinline__ double sum_of_warps(const double* parts)
{
    double sum = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) sum += parts[warp];
    return sum;
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_fused(DASP_VECTORS long long n, const double* in, double* out, const double* sums_in, int blocks_in,
           const double* sums_more, int blocks_more, double* sums_out, double* history)
{
    wait_for_earlier_kernels();
    const long long step = (long long)(WIDTH * THREADS) * gridDim.x;
    long long at = WIDTH * ((long long)THREADS * blockIdx.x + threadIdx.x);
    // All loads before the first update are issued at once: one wait for the memory, not four.
#if DASP_GUARD
    const double stopped = in[0];
#endif
    DASP_INPUTS
    DASP_PIECES
    if (at + WIDTH <= n) { DASP_LOAD }
#if SUMS
    __shared__ double parts_in[SUMS][WARPS];
    double value[SUMS], sum[SUMS];
#pragma unroll
    for (int k = 0; k < DASP_SUMS_IN; ++k) value[k] = sum_by_threads(sums_in + k * blocks_in, blocks_in);
#pragma unroll
    for (int k = 0; k < DASP_SUMS_MORE; ++k)
        value[DASP_SUMS_IN + k] = sum_by_threads(sums_more + k * blocks_more, blocks_more);
#endif
#if DASP_GUARD == 2
    if (stopped == 2) return;
#elif DASP_GUARD == 1
    if (stopped != 0) {
        if (blockIdx.x == 0)
#pragma unroll 1
            for (int slot = threadIdx.x; slot < DASP_CARRIED; slot += THREADS) out[slot] = in[slot];
        return;
    }
#endif
#if SUMS
    leave_warp_sums<SUMS>(parts_in, value);
#pragma unroll
    for (int k = 0; k < SUMS; ++k) sum[k] = sum_of_warps(parts_in[k]);
#endif
    DASP_SCALARS
    if (blockIdx.x == 0 && threadIdx.x == 0) { DASP_STORES }
    DASP_LEAVE
#if DASP_DOTS
    __shared__ double parts[DASP_DOTS][WARPS];
    double dot[DASP_DOTS] = {};
#endif
    while (at + WIDTH <= n) {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            DASP_BIND
            DASP_ELEMENT
        }
        DASP_WRITE
        at += step;
        if (at + WIDTH <= n) { DASP_LOAD }
    }
    for (; at < n; at += at + 1 < n ? 1 : step) {  // fewer than WIDTH are left, for one thread
        DASP_BIND_LAST
        DASP_ELEMENT
        DASP_WRITE_LAST
    }
#if DASP_DOTS
    leave_warp_sums<DASP_DOTS>(parts, dot);
    if (threadIdx.x < DASP_DOTS) sums_out[threadIdx.x * gridDim.x + blockIdx.x] = sum_of_warps(parts[threadIdx.x]);
#endif
}
