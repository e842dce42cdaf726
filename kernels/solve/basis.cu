// An Arnoldi step: a vector w is made orthogonal to the first `count` vectors of a basis, and normed.
//
// dasp_basis_dots, dasp_basis_subtract, both `again`, dasp_basis_norm: classical Gram-Schmidt, twice where less than half
// of the square of w's norm was left by the first time (Giraud, Langou, Rozloznik, van den Eshof,
// doi:10.1007/s00211-005-0615-4); else what is done again returns at once.
//
// Launch: one dimension, blocks of DASP_THREADS threads, any number of blocks, the same for all.
// basis (rows of `stride`, n of each): the vectors one after the other. w (n): not among the first `count`.
// sums (DASP_MOST + 3, blocks): sums of each block; the last rows are for the square of the norm of w: before, after the
//     first time, and after the second.
// column (DASP_MOST + 1): the coefficients, added up over both turns, and the norm behind them.
// dasp_basis_add: out += the combination of `count` vectors whose coefficients are in `column`.
// Equal inputs and equal launches give equal bits: every sum has a fixed order.

#include "../warp.cuh"

using Scalar = DASP_SCALAR;

constexpr int THREADS = DASP_THREADS;
constexpr int WARPS = THREADS / 32;
constexpr int AT_ONCE = 4;  // vectors that one reading of w is multiplied with

__device__ __forceinline__ double block_sum(double value, double* parts)
{
    value = warp_sum(value);
    __syncthreads();
    if (lane_id() == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    double sum = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) sum += parts[warp];
    return sum;
}

// The sum over all blocks of a row of sums, by one warp, in each of its lanes.
__device__ __forceinline__ double sum_of_blocks(const double* sums, int blocks)
{
    double sum = 0;
    for (int block = lane_id(); block < blocks; block += 32) sum += load_result(sums + block);
    return warp_sum(sum);
}

constexpr int BEFORE = DASP_MOST, ONCE = DASP_MOST + 1, TWICE = DASP_MOST + 2;  // rows of sums

// Whether the first time left enough of w. Every thread of the block asks.
__device__ __forceinline__ bool once_is_enough(const double* sums)
{
    const int blocks = gridDim.x;
    const double before = sum_of_blocks(sums + BEFORE * blocks, blocks), after = sum_of_blocks(sums + ONCE * blocks, blocks);
    return after > 0.5 * before;
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_basis_dots(const Scalar* basis, long long stride, long long n, int count, const Scalar* w, double* sums, int again)
{
    __shared__ double parts[WARPS];
    wait_for_earlier_kernels();
    if (again && once_is_enough(sums)) return;
    const long long first = (long long)THREADS * blockIdx.x + threadIdx.x, step = (long long)THREADS * gridDim.x;
    double square = 0;
    for (int k = 0; k < count; k += AT_ONCE) {
        double dot[AT_ONCE] = {};
        for (long long i = first; i < n; i += step) {
            const double mine = w[i];
            if (k == 0) square += mine * mine;
#pragma unroll
            for (int m = 0; m < AT_ONCE; ++m)
                if (k + m < count) dot[m] += mine * double(basis[(k + m) * stride + i]);
        }
#pragma unroll
        for (int m = 0; m < AT_ONCE; ++m) {
            const double sum = block_sum(dot[m], parts);
            if (k + m < count && threadIdx.x == 0) sums[(k + m) * gridDim.x + blockIdx.x] = sum;
        }
    }
    if (again) return;
    const double before = block_sum(square, parts);
    if (threadIdx.x == 0) sums[BEFORE * gridDim.x + blockIdx.x] = before;
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_basis_subtract(const Scalar* basis, long long stride, long long n, int count, Scalar* w, double* sums,
                    double* column, int again)
{
    __shared__ double parts[WARPS];
    __shared__ double factor[DASP_MOST];
    wait_for_earlier_kernels();
    if (again && once_is_enough(sums)) return;
    for (int k = threadIdx.x / 32; k < count; k += WARPS) {
        const double sum = sum_of_blocks(sums + k * gridDim.x, gridDim.x);
        if (lane_id() == 0) factor[k] = sum;
    }
    __syncthreads();
    if (blockIdx.x == 0)
        for (int k = threadIdx.x; k < count; k += THREADS) column[k] = again ? column[k] + factor[k] : factor[k];
    double square = 0;
    for (long long i = (long long)THREADS * blockIdx.x + threadIdx.x; i < n; i += (long long)THREADS * gridDim.x) {
        double rest = w[i];
        for (int k = 0; k < count; ++k) rest -= factor[k] * double(basis[k * stride + i]);
        w[i] = Scalar(rest);
        square += double(w[i]) * double(w[i]);
    }
    const double sum = block_sum(square, parts);
    if (threadIdx.x == 0) sums[(again ? TWICE : ONCE) * gridDim.x + blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_basis_norm(long long n, int count, Scalar* w, const double* sums, double* column)
{
    __shared__ double norm;
    wait_for_earlier_kernels();
    if (threadIdx.x < 32) {
        const double square = sum_of_blocks(sums + (once_is_enough(sums) ? ONCE : TWICE) * gridDim.x, gridDim.x);
        if (threadIdx.x == 0) norm = sqrt(square);
    }
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) column[count] = norm;
    const double inverse = norm > 0 ? 1 / norm : 0;
    for (long long i = (long long)THREADS * blockIdx.x + threadIdx.x; i < n; i += (long long)THREADS * gridDim.x)
        w[i] = Scalar(double(w[i]) * inverse);
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_basis_add(const Scalar* basis, long long stride, long long n, int count, Scalar* out, const double* column)
{
    wait_for_earlier_kernels();
    for (long long i = (long long)THREADS * blockIdx.x + threadIdx.x; i < n; i += (long long)THREADS * gridDim.x) {
        double sum = out[i];
        for (int k = 0; k < count; ++k) sum += load_result(column + k) * double(basis[k * stride + i]);
        out[i] = Scalar(sum);
    }
}
