// Arnoldi's method without the host: a step of it, and the least-squares problem that grows by a column a step.
//
// The vectors w_j of the basis are stored unscaled: v_j = w_j / norm(w_j). For q = A w_k, dasp_basis_leave
// computes all dot products, a part in each block; dasp_basis_take adds the parts and computes the
// coefficients and the residual; dasp_basis_subtract turns q into w_(k+1). If vectors lie on several GPUs,
// the parts are added over these between the first two.
// One projection by I - V T V', T the inverse of I + L, L the strict lower triangle of V'V, is modified Gram-Schmidt
// with one reduction (Swirydowicz, Langou, Ananthan, Yang, Thomas, doi:10.1002/nla.2343), which
// is as much orthogonality as GMRES needs (Paige, Rozloznik, Strakos, doi:10.1137/050630416).
//
// Launch: one dimension, blocks of DASP_THREADS threads, any number of blocks; of dasp_basis_take and
//     dasp_basis_solve one; of dasp_basis_subtract two or more: the last one rotates the new column while the
//     others subtract. A call reads the numbers of `small` that the calls before it wrote.
// basis (DASP_MOST, stride), n elements of each row: the vectors w; rows are multiples of 16 bytes apart.
// parts (2 DASP_MOST, blocks): for each dot product, the sum of each block.
// small: see the constants below. closing: 1 if w_k is the last vector for now: only its norm is computed.
// dasp_basis_solve: computes the coefficients of the vectors w in the correction after `count` steps.
// dasp_basis_add: out (n) += the combination of `count` vectors with these coefficients.
// DASP_COMPLEX 1: all numbers of vectors and of `small` are complex; norms, sines and the diagonal of R have
//     no imaginary part. x'y is the sum of conj(x_i) y_i.
// Equal inputs and equal launches give equal bits: every sum has a fixed order.

#if DASP_COMPLEX
#include "number.cuh"
#else
#include "warp.cuh"
#endif

using Scalar = DASP_SCALAR;

#if DASP_COMPLEX
using Number = Complex<double>;

// A Number in shared memory, where a type may not have constructors.
struct Held {
    double real, imag;

    __device__ __forceinline__ operator Number() const { return {real, imag}; }
    __device__ __forceinline__ Held& operator=(Number x)
    {
        real = x.real;
        imag = x.imag;
        return *this;
    }
};

__device__ __forceinline__ double real_part(Number x) { return x.real; }
__device__ __forceinline__ double square(Number x) { return x.real * x.real + x.imag * x.imag; }
__device__ __forceinline__ Number conjugate(Number x) { return {x.real, -x.imag}; }
__device__ __forceinline__ Number wide(Scalar x) { return convert<Number>(x); }
__device__ __forceinline__ Scalar narrow(Number x) { return convert<Scalar>(x); }
__device__ __forceinline__ Number operator/(Number x, double y) { return {x.real / y, x.imag / y}; }
__device__ __forceinline__ Number load_past_first_cache(const Number* address)
{
    return {__ldcg(&address->real), __ldcg(&address->imag)};
}
#else
using Number = double;
using Held = double;

__device__ __forceinline__ double real_part(double x) { return x; }
__device__ __forceinline__ double square(double x) { return x * x; }
__device__ __forceinline__ double conjugate(double x) { return x; }
__device__ __forceinline__ double wide(Scalar x) { return x; }
__device__ __forceinline__ Scalar narrow(double x) { return Scalar(x); }
__device__ __forceinline__ double load_past_first_cache(const double* address) { return __ldcg(address); }
#endif

constexpr int THREADS = DASP_THREADS;
constexpr int WARPS = THREADS / 32;
constexpr int WIDTH = 16 / sizeof(Scalar);
// Vectors that are read at once: as many as registers hold.
constexpr int DOTS_AT_ONCE = DASP_COMPLEX ? 4 : 6, AT_ONCE = DASP_COMPLEX ? 4 : 8;
constexpr int MOST = DASP_MOST;
constexpr double NOTHING_LEFT = 1e-14;  // of a vector's norm, or of the largest pivot

// The places of arrays in `small`. Each has MOST numbers, but for the last two, which have MOST rows of MOST.
enum Small {
    RESIDUAL = 0,          // norm of the residual after k steps, with a sign
    BROKEN = MOST,         // 1 where step k left nothing
    INVERSE = 2 * MOST,    // 1 / norm(w_k)
    RIGHT = 3 * MOST,      // the rotated right-hand side
    COSINE = 4 * MOST,     // rotations
    SINE = 5 * MOST,
    PENDING = 6 * MOST,    // the diagonal of column k before its own rotation
    SQUARE = 7 * MOST,     // of the coefficients of column k
    FACTOR = 8 * MOST,     // the coefficient of each w_j in the vector that is computed
    COLUMN = 9 * MOST,     // the coefficients of v_j in the latest column
    INVERTED = 10 * MOST,  // T, by rows
    TRIANGLE = 10 * MOST + MOST * MOST,  // R, by columns
};

struct __align__(16) Piece {
    Scalar element[WIDTH];
};

__device__ __forceinline__ Piece read_piece(const Scalar* address) { return *reinterpret_cast<const Piece*>(address); }

// Leaves the dot products of w_first, w_(first + 1), ... with q and with w_k, over this block's elements.
__device__ __forceinline__ void leave_dots(const Scalar* basis, long long stride, long long n, int first, int k,
                                           bool closing, Number* parts)
{
    __shared__ Held of_warps[2 * DOTS_AT_ONCE][WARPS];
    const Scalar *own = basis + k * stride, *q = own + stride;
    Number dot[2 * DOTS_AT_ONCE] = {};
    const long long step = (long long)(WIDTH * THREADS) * gridDim.x;
    long long at = WIDTH * ((long long)THREADS * blockIdx.x + threadIdx.x);
    for (; at + WIDTH <= n; at += step) {
        Piece v[DOTS_AT_ONCE];
        const Piece mine = read_piece(own + at), product = closing ? mine : read_piece(q + at);
#pragma unroll
        for (int m = 0; m < DOTS_AT_ONCE; ++m)
            if (first + m <= k) v[m] = read_piece(basis + (first + m) * stride + at);
#pragma unroll
        for (int m = 0; m < DOTS_AT_ONCE; ++m)
            if (first + m <= k)
#pragma unroll
                for (int i = 0; i < WIDTH; ++i) {
                    const Number conjugated = conjugate(wide(v[m].element[i]));
                    dot[2 * m] += conjugated * wide(product.element[i]);
                    dot[2 * m + 1] += conjugated * wide(mine.element[i]);
                }
    }
    for (; at < n; at += at + 1 < n ? 1 : step) {  // fewer than WIDTH are left, for one thread
#pragma unroll
        for (int m = 0; m < DOTS_AT_ONCE; ++m)
            if (first + m <= k) {
                const Number conjugated = conjugate(wide(basis[(first + m) * stride + at]));
                dot[2 * m] += conjugated * wide(closing ? own[at] : q[at]);
                dot[2 * m + 1] += conjugated * wide(own[at]);
            }
    }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < 2 * DOTS_AT_ONCE; ++m) {
        const Number sum = warp_sum(dot[m]);
        if (lane_id() == 0) of_warps[m][threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 2 * DOTS_AT_ONCE && first + int(threadIdx.x) / 2 <= k) {
        Number sum = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) sum += Number(of_warps[threadIdx.x][warp]);
        parts[(2 * first + threadIdx.x) * (long long)gridDim.x + blockIdx.x] = sum;
    }
}

// Leaves all dot products that step k needs; if it is `closing`, those of w_k alone.
__device__ __forceinline__ void leave_all_dots(const Scalar* basis, long long stride, long long n, int k, bool closing,
                                               Number* parts)
{
    for (int first = closing ? k : 0; first <= k; first += DOTS_AT_ONCE)
        leave_dots(basis, stride, n, first, k, closing, parts);
}

// Completes column k - 1 by the norm of w_k. One thread calls this; a second call changes nothing.
__device__ __forceinline__ void end_column(Number* small, int k, double norm)
{
    if (k == 0) {
        small[RESIDUAL] = norm;
        return;
    }
    const Number pending = small[PENDING + k - 1];
    const double length = sqrt(square(pending) + norm * norm);
    const Number cosine = length > 0 ? pending / length : Number(1);
    const double sine = length > 0 ? norm / length : 0, before = real_part(small[RESIDUAL + k - 1]);
    small[TRIANGLE + (k - 1) * MOST + k - 1] = length;
    small[COSINE + k - 1] = cosine;
    small[SINE + k - 1] = sine;
    small[RIGHT + k - 1] = before * conjugate(cosine);
    small[RESIDUAL + k] = length > 0 ? -sine * before : before;
    small[BROKEN + k - 1] = !(norm > NOTHING_LEFT * sqrt(real_part(small[SQUARE + k - 1]) + norm * norm));
}

// Applies the rotations of all columns before k, the latest, to it. Every thread of one block calls this.
__device__ __forceinline__ void turn_column(Number* small, int k)
{
    __shared__ Held column[MOST], cosine[MOST];
    __shared__ double sine[MOST];
    for (int j = threadIdx.x; j <= k; j += THREADS) {
        column[j] = small[COLUMN + j];
        cosine[j] = small[COSINE + j];
        sine[j] = real_part(small[SINE + j]);
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    double size = 0;
    Number upper = column[0];
    for (int j = 0; j < k; ++j) {
        const Number lower = column[j + 1];
        size += square(column[j]);
        small[TRIANGLE + k * MOST + j] = conjugate(cosine[j]) * upper + sine[j] * lower;
        upper = Number(cosine[j]) * lower - sine[j] * upper;
    }
    small[PENDING + k] = upper;
    small[SQUARE + k] = size + square(column[k]);
}

constexpr int ROWS_AT_ONCE = 4;  // rows of parts that a warp adds up at once

// Adds the parts of all blocks to dot products with q and with w_k; if `closing`, those of w_k alone.
__device__ __forceinline__ void add_parts(const Number* parts, int k, int blocks, bool closing, Held* with_q, Held* with_own)
{
    const int rows = 2 * (k + 1);
    int row = (closing ? 2 * k : 0) + ROWS_AT_ONCE * (threadIdx.x / 32);
    for (; row < rows; row += ROWS_AT_ONCE * WARPS) {
        Number sum[ROWS_AT_ONCE] = {};
        for (int block = lane_id(); block < blocks; block += 32)
#pragma unroll
            for (int r = 0; r < ROWS_AT_ONCE; ++r)
                if (row + r < rows) sum[r] += load_past_first_cache(parts + (row + r) * (long long)blocks + block);
#pragma unroll
        for (int r = 0; r < ROWS_AT_ONCE; ++r) {
            sum[r] = warp_sum(sum[r]);
            if (lane_id() > 0 || row + r >= rows) continue;
            if (r % 2)
                with_own[(row + r) / 2] = sum[r];
            else
                with_q[(row + r) / 2] = sum[r];
        }
    }
}

constexpr bool T_IS_NEAR = MOST * MOST * sizeof(Number) <= 32768;  // T fits shared memory

// Computes the numbers of step k that the next kernel needs. Every thread of one block calls this.
__device__ __forceinline__ void take_dots(Number* small, int k, int blocks, bool closing, const Number* parts)
{
    __shared__ Held with_q[MOST], with_own[MOST], near[T_IS_NEAR ? MOST * MOST : 1];
    const Held* T = T_IS_NEAR ? near : reinterpret_cast<const Held*>(small + INVERTED);
    if (T_IS_NEAR)
        for (int e = threadIdx.x; e < k * MOST; e += THREADS) near[e] = small[INVERTED + e];
    add_parts(parts, k, blocks, closing, with_q, with_own);
    __syncthreads();
    const double norm = sqrt(real_part(with_own[k])), inverse = norm > 0 ? 1 / norm : 0;
    if (threadIdx.x == THREADS - 32) {
        small[INVERSE + k] = inverse;
        end_column(small, k, norm);
    }
    if (closing) return;
    for (int j = threadIdx.x; j <= k; j += THREADS) {
        const double scale = j < k ? inverse * real_part(small[INVERSE + j]) : inverse * inverse;
        with_q[j] = scale * Number(with_q[j]);
        if (j < k) with_own[j] = scale * conjugate(with_own[j]);
    }
    __syncthreads();
    // The new row of T is -(the new row of L) times the rows before it, and 1.
    for (int i = threadIdx.x; i <= k; i += THREADS) {
        Number sum = 0;
#pragma unroll 8
        for (int l = i; l < k; ++l) sum += Number(with_own[l]) * Number(T[l * MOST + i]);
        small[INVERTED + k * MOST + i] = i < k ? -sum : Number(1);
        if (T_IS_NEAR) near[k * MOST + i] = i < k ? -sum : Number(1);
    }
    __syncthreads();
    for (int j = threadIdx.x; j <= k; j += THREADS) {
        Number sum = 0;
#pragma unroll 8
        for (int i = 0; i <= j; ++i) sum += Number(T[j * MOST + i]) * Number(with_q[i]);
        small[COLUMN + j] = sum;
        small[FACTOR + j] = (j < k ? real_part(small[INVERSE + j]) : inverse) * sum;
    }
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_basis_leave(const Scalar* basis, long long stride, long long n, int k, int closing, Number* parts)
{
    wait_for_earlier_kernels();
    leave_all_dots(basis, stride, n, k, closing, parts);
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_basis_take(const Number* parts, int blocks, int k, int closing, Number* small)
{
    wait_for_earlier_kernels();
    take_dots(small, k, blocks, closing, parts);
}

// target = scale target + sign times the combination of `count` vectors, by the first `blocks` blocks.
__device__ __forceinline__ void combine(const Scalar* basis, long long stride, long long n, int count,
                                        const Number* small, Scalar* target, double scale, double sign,
                                        unsigned blocks)
{
    __shared__ Held factor[MOST];
    for (int j = threadIdx.x; j < count; j += THREADS) factor[j] = sign * load_result(small + FACTOR + j);
    __syncthreads();
    const long long step = (long long)(WIDTH * THREADS) * blocks;
    long long at = WIDTH * ((long long)THREADS * blockIdx.x + threadIdx.x);
    for (; at + WIDTH <= n; at += step) {
        const Piece before = read_piece(target + at);
        Number sum[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) sum[i] = scale * wide(before.element[i]);
        for (int first = 0; first < count; first += AT_ONCE) {
            Piece v[AT_ONCE];
#pragma unroll
            for (int m = 0; m < AT_ONCE; ++m)
                if (first + m < count) v[m] = read_piece(basis + (first + m) * stride + at);
#pragma unroll
            for (int m = 0; m < AT_ONCE; ++m)
                if (first + m < count)
#pragma unroll
                    for (int i = 0; i < WIDTH; ++i) sum[i] += Number(factor[first + m]) * wide(v[m].element[i]);
        }
        Piece after;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) after.element[i] = narrow(sum[i]);
        *reinterpret_cast<Piece*>(target + at) = after;
    }
    for (; at < n; at += at + 1 < n ? 1 : step) {
        Number sum = scale * wide(target[at]);
        for (int j = 0; j < count; ++j) sum += Number(factor[j]) * wide(basis[j * stride + at]);
        target[at] = narrow(sum);
    }
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_basis_subtract(Scalar* basis, long long stride, long long n, int k, Number* small)
{
    wait_for_earlier_kernels();
    if (blockIdx.x + 1 == gridDim.x) return turn_column(small, k);
    const double inverse = real_part(load_result(small + INVERSE + k));
    combine(basis, stride, n, k + 1, small, basis + (k + 1) * stride, inverse, -1, gridDim.x - 1);
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS) dasp_basis_solve(Number* small, long long count)
{
    __shared__ Held right[MOST];
    wait_for_earlier_kernels();
    if (threadIdx.x >= 32) return;
    const int last = int(count) - 1;
    double largest = 0;
    for (int j = lane_id(); j <= last; j += 32) {
        right[j] = small[RIGHT + j];
        largest = fmax(largest, fabs(real_part(small[TRIANGLE + j * MOST + j])));
    }
    for (int lanes = 1; lanes < 32; lanes *= 2) largest = fmax(largest, __shfl_xor_sync(ALL_LANES, largest, lanes));
    __syncwarp();
    for (int j = last; j >= 0; --j) {
        const double pivot = real_part(small[TRIANGLE + j * MOST + j]);
        const Number y = fabs(pivot) <= NOTHING_LEFT * largest ? Number(0) : Number(right[j]) / pivot;  // NaN stays NaN
        for (int i = lane_id(); i < j; i += 32) right[i] = Number(right[i]) - small[TRIANGLE + j * MOST + i] * y;
        if (lane_id() == 0) small[FACTOR + j] = real_part(small[INVERSE + j]) * y;
        __syncwarp();
    }
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_basis_add(const Scalar* basis, long long stride, long long n, const Number* small, Scalar* out, long long count)
{
    wait_for_earlier_kernels();
    combine(basis, stride, n, int(count), small, out, 1, 1, gridDim.x);
}
