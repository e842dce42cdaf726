// Kernels that prove the emulator itself: some use a feature, some make the mistake that they are named after.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "mma.cuh"
#include "solve/grid.cuh"

#define KERNEL extern "C" __global__ void

// ---- features --------------------------------------------------------------------------------------

KERNEL geometry(int* out)
{
    const int threads = blockDim.x * blockDim.y * blockDim.z;
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int* row = out + 7 * (block * threads + thread);
    row[0] = blockIdx.x, row[1] = blockIdx.y, row[2] = blockIdx.z;
    row[3] = threadIdx.x, row[4] = threadIdx.y, row[5] = threadIdx.z;
    row[6] = warpSize;
}

template <class T> __device__ void shuffle_all(const T* in, T* out, int argument, int width)
{
    const int lane = lane_id();
    const T value = in[lane];
    out[lane] = __shfl_sync(ALL_LANES, value, argument, width);
    out[32 + lane] = __shfl_up_sync(ALL_LANES, value, argument, width);
    out[64 + lane] = __shfl_down_sync(ALL_LANES, value, argument, width);
    out[96 + lane] = __shfl_xor_sync(ALL_LANES, value, argument, width);
}
KERNEL shuffles(const double* in, double* out, int argument, int width) { shuffle_all(in, out, argument, width); }
KERNEL shuffles_int(const int* in, int* out, int argument, int width) { shuffle_all(in, out, argument, width); }

KERNEL votes(const int* in, unsigned* out)
{
    const int lane = lane_id();
    const unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u; // two groups at once
    out[lane] = __ballot_sync(half, in[lane]);
    out[32 + lane] = __any_sync(half, in[lane]);
    out[64 + lane] = __all_sync(half, in[lane]);
    out[96 + lane] = __match_any_sync(ALL_LANES, in[lane]);
    out[128 + lane] = __reduce_add_sync(half, in[lane]);
}

// One lane of each warp is far behind the others: exchanges must not mix.
KERNEL uneven_loop(const int* in, int* out)
{
    int sum = 0;
    for (int i = 0; i < 32; ++i) {
        const int value = __shfl_sync(ALL_LANES, in[lane_id()] + i, i);
        sum += value;
        if (lane_id() == i)
            for (int j = 0; j < 32; ++j)
                sum += in[j];
    }
    out[lane_id()] = sum;
}

KERNEL block_sum(const double* x, double* y, int n)
{
    __shared__ double partial[32];
    double sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        sum += load_stream(x + i);
    sum = warp_sum(sum);
    if (lane_id() == 0)
        partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned w = 1; w < blockDim.x / 32; ++w)
            sum += partial[w];
        y[blockIdx.x] = sum;
    }
}

KERNEL reverse_in_dynamic_memory(const float* x, float* y)
{
    extern __shared__ __align__(16) unsigned char bytes[];
    float* values = reinterpret_cast<float*>(bytes);
    values[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}

KERNEL counting_barriers(const int* x, int* y)
{
    int* row = y + 3 * threadIdx.x;
    row[0] = __syncthreads_count(x[threadIdx.x]);
    row[1] = __syncthreads_and(x[threadIdx.x]);
    row[2] = __syncthreads_or(x[threadIdx.x]);
}

template <class T> __device__ void all_atomics(T* cells, T value)
{
    atomicAdd(cells, value);
    atomicMax(cells + 1, value);
    atomicMin(cells + 2, value);
    atomicOr(cells + 3, T(1) << threadIdx.x % 31);
    atomicXor(cells + 4, value);
    atomicAnd(cells + 5, ~(T(1) << threadIdx.x % 31));
    for (T old = 0, seen; (seen = atomicCAS(cells + 6, old, old + value)) != old;)
        old = seen;
}
KERNEL atomics(int* a, unsigned* b, unsigned long long* c)
{
    all_atomics(a, int(threadIdx.x) - 20);
    all_atomics(b, threadIdx.x);
    all_atomics(c, 5000000000ull + threadIdx.x);
}

// Sums in a fixed order: the last block or warp adds all partial sums.
__device__ void finish(const double* partial, double* y, int parts)
{
    double sum = 0;
    for (int i = 0; i < parts; ++i)
        sum += partial[i];
    *y = sum;
}
KERNEL last_block_sums(const double* x, double* partial, unsigned* ticket, double* y)
{
    __shared__ bool last;
    const double sum = warp_sum(x[blockIdx.x * 32 + threadIdx.x]);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
#ifndef NO_FENCE
        __threadfence();
#endif
        last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        finish(partial, y, gridDim.x);
        *ticket = 0;
    }
}
KERNEL last_warp_sums(const double* x, double* partial, unsigned* ticket, double* y)
{
    const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32;
    const double sum = warp_sum(x[warp * 32 + lane_id()]);
    unsigned before = 0;
    if (lane_id() == 0) {
        partial[warp] = sum;
#ifndef NO_FENCE
        __threadfence();
#endif
        before = atomicAdd(ticket, 1u);
    }
    before = __shfl_sync(ALL_LANES, before, 0);
    if (before == warps - 1u && lane_id() == 0)
        finish(partial, y, warps);
}
// Every thread writes; one fence by one thread after the barrier covers them all.
KERNEL last_block_sums_all_write(const double* x, double* partial, unsigned* ticket, double* y)
{
    __shared__ bool last;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    partial[i] = 2 * x[i];
#ifndef NO_BARRIER
    __syncthreads();
#endif
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0)
        finish(partial, y, gridDim.x * blockDim.x);
}
// Every thread fences its own write, before the barrier.
KERNEL last_block_sums_all_fence(const double* x, double* partial, unsigned* ticket, double* y)
{
    __shared__ bool last;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    partial[i] = 2 * x[i];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    __syncthreads();
    if (last && threadIdx.x == 0)
        finish(partial, y, gridDim.x * blockDim.x);
}

// Each warp waits for the warp `distance` before it and passes on one more than it found.
KERNEL relay(unsigned* slots, int distance)
{
    const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32;
    if (lane_id() != 0) return;
    const int other = warp - distance;
    unsigned found = 1;
    if (other >= 0 && other < warps) {
        while ((found = atomicAdd(slots + other, 0u)) == 0) __nanosleep(20);
        ++found;
    }
    atomicExch(slots + warp, found);
}

// As `relay` from the block before, by tickets that blocks draw as they start; the last ticket resets them.
KERNEL relay_in_turn(unsigned* slots, unsigned* tickets)
{
    __shared__ unsigned ticket;
    if (threadIdx.x == 0) ticket = atomicInc(tickets, gridDim.x - 1);
    __syncthreads();
    if (threadIdx.x != 0) return;
    unsigned found = 1;
    if (ticket > 0) {
        while ((found = atomicAdd(slots + ticket - 1, 0u)) == 0) __nanosleep(20);
        ++found;
    }
    atomicExch(slots + ticket, found);
}

// Every thread passes a number to a thread of the next block in each round. A sum over the grid separates the
// round's stores from its loads, unless left out, and another one its loads from the next round's stores.
template <int THREADS> __device__ void wait_for_all(Grid<THREADS, 1>& grid)
{
    grid.sum({1.0}, [](const double (&)[1]) {});
}
KERNEL ring(int* slots, int* out, unsigned long long* messages, int rounds, int left_out)
{
    __shared__ int own[64];
    extern __shared__ int sum[];
    Grid<64, 1> grid(messages);
    const int next = (blockIdx.x + 1) % gridDim.x * 64 + threadIdx.x, here = blockIdx.x * 64 + threadIdx.x;
    own[threadIdx.x] = here;
    sum[threadIdx.x] = 0;
    for (int round = 0; round < rounds; ++round) {
        slots[next] = own[threadIdx.x];
        if (!left_out) wait_for_all(grid);
        own[threadIdx.x] = slots[here];
        sum[threadIdx.x] += own[threadIdx.x];
        wait_for_all(grid);
    }
    out[here] = sum[threadIdx.x];
}
// One thread writes what all have read; a sum over the grid stands between, or (`early`) only before both.
KERNEL all_read_one_writes(int* slot, int* out, unsigned long long* messages, int early)
{
    Grid<64, 1> grid(messages);
    wait_for_all(grid);
    if (early) wait_for_all(grid);
    out[blockIdx.x * 64 + threadIdx.x] = *slot;
    if (!early) wait_for_all(grid);
    if (blockIdx.x == 1 && threadIdx.x == 5) *slot = 1;
}
KERNEL sums_of_grid(const double* x, double* out, unsigned long long* messages)
{
    __shared__ double found[2];
    Grid<64, 2> grid(messages);
    for (int round = 0; round < 5; ++round) {
        const double mine = x[blockIdx.x * 64 + threadIdx.x];
        grid.sum({mine, round * mine}, [&](const double (&total)[2]) {
            found[0] = total[0];
            found[1] = total[1];
        });
        double* here = out + 2 * (round * gridDim.x * 64 + blockIdx.x * 64 + threadIdx.x);
        here[0] = found[0];
        here[1] = found[1];
    }
}
KERNEL one_block_stays_away(unsigned long long* messages)
{
    Grid<64, 1> grid(messages);
    if (blockIdx.x != 1) wait_for_all(grid);
}

KERNEL arrival_order(unsigned* ticket, unsigned* order)
{
    order[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(ticket, 1u);
}

KERNEL vectors(const double2* a, const int4* b, const uchar4* c, double* out)
{
    const double2 p = __ldg(a + threadIdx.x);
    const int4 q = __ldcs(b + threadIdx.x);
    const uchar4 r = c[threadIdx.x];
    __stcs(out + threadIdx.x, p.x + 10 * p.y + q.x + q.y + q.z + q.w + r.x + r.w);
}

KERNEL halves(const float* x, __half* h, __nv_bfloat16* b, float* from_h, float* from_b, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    h[i] = __float2half(x[i]);
    b[i] = __float2bfloat16(x[i]);
    from_h[i] = __half2float(h[i]);
    from_b[i] = __bfloat162float(b[i]);
}

KERNEL bit_tricks(const unsigned* in, unsigned* out)
{
    const unsigned x = in[threadIdx.x];
    unsigned* row = out + 8 * threadIdx.x;
    row[0] = __popc(x), row[1] = __ffs(x), row[2] = __clz(x), row[3] = __brev(x);
    row[4] = __byte_perm(x, ~x, 0x1735);
    row[5] = __float_as_uint(__uint_as_float(x & 0x3fffffffu));
    row[6] = __umulhi(x, 0x9e3779b9u);
    row[7] = min(x, 7u) + max(3, int(x & 7)) + min(2ll, (long long)x);
}

__constant__ double table[4];
KERNEL reads_constant(double* out) { out[threadIdx.x] = table[threadIdx.x]; }

KERNEL one_tile(const double* a, const double* b, const double* c, double* d)
{
    const int lane = lane_id();
    double sums[2] = {c[2 * lane], c[2 * lane + 1]};
    mma_m8n8k4(sums, a[lane], b[lane % 4 * 8 + lane / 4]);
    d[2 * lane] = sums[0];
    d[2 * lane + 1] = sums[1];
}

KERNEL tall_tile(const double* a, const double* b, const double* c, double* d)
{
    const int lane = lane_id();
    double upper[2] = {c[2 * lane], c[2 * lane + 1]}, lower[2] = {c[2 * lane + 64], c[2 * lane + 65]};
    mma_m16n8k4(upper, lower, a[lane], a[lane + 32], b[lane % 4 * 8 + lane / 4]);
    for (int v = 0; v < 2; ++v) {
        d[2 * lane + v] = upper[v];
        d[2 * lane + 64 + v] = lower[v];
    }
}

KERNEL saxpy(const float* x, float* y, float a, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] += a * x[i];
}

KERNEL __launch_bounds__(2 * 32) bounded(int* y) { y[threadIdx.x] = 1; }

KERNEL flag_bytes(unsigned char* y) { y[threadIdx.x] = (unsigned char)threadIdx.x; }

// ---- mistakes ----------------------------------------------------------------------------------------

KERNEL reads_beyond(const double* x, double* y, int offset) { y[threadIdx.x] = x[(int)threadIdx.x + offset]; }
KERNEL writes_beyond(int* y, int offset) { y[(int)threadIdx.x + offset] = 1; }
KERNEL copies_beyond(double* y, const double* x, int n)
{
    if (threadIdx.x == 0)
        memcpy(y, x, n * sizeof(double));
}
KERNEL indexes_beyond(int* y, int i)
{
    int local[4] = {1, 2, 3, 4};
    y[threadIdx.x] = local[i];
}
KERNEL beyond_dynamic_memory(int* y)
{
    extern __shared__ int words[];
    words[threadIdx.x] = 1;
    y[threadIdx.x] = words[threadIdx.x];
}
KERNEL reads_unwritten_shared(int* y)
{
    __shared__ int row[32];
    if (threadIdx.x != 7)
        row[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = row[threadIdx.x];
}
// Written by the first block, not by the second: shared memory does not outlive a block.
KERNEL reads_shared_of_another_block(int* y)
{
    __shared__ int row[32];
    if (blockIdx.x == 0)
        row[threadIdx.x] = 1;
    y[blockIdx.x * 32 + threadIdx.x] = row[threadIdx.x];
}
KERNEL adds_to(double* y) { y[threadIdx.x] += 1; }
KERNEL half_written(unsigned char* bytes, unsigned* out)
{
    bytes[0] = bytes[1] = bytes[3] = 1;
    out[0] = *reinterpret_cast<unsigned*>(bytes);
}

KERNEL reads_neighbour(const int* x, int* y)
{
    __shared__ int row[64];
    row[threadIdx.x] = x[threadIdx.x];
    if (x[0] == 1)
        __syncthreads();
    if (x[0] == 2)
        __syncwarp();
    if (x[0] == 3)
        __shfl_sync(ALL_LANES, 0, 0);
    y[threadIdx.x] = row[threadIdx.x ^ 1];
}
KERNEL overwrites_what_is_read(int* y)
{
    __shared__ int row[64];
    row[threadIdx.x] = threadIdx.x;
    __syncthreads();
    const int value = row[0];
    row[threadIdx.x] = value;
    y[threadIdx.x] = value;
}
KERNEL two_warps_write(int* y)
{
    if (lane_id() == 0)
        y[0] = threadIdx.x;
}
KERNEL blocks_write_the_same(int* y) { y[threadIdx.x] = threadIdx.x; }
KERNEL blocks_read_and_write(int* y)
{
    if (blockIdx.x == 1)
        y[0] = 1;
    else
        y[1 + threadIdx.x] = y[0];
}
KERNEL atomic_and_plain(unsigned* y)
{
    if (threadIdx.x < 32)
        atomicAdd(y, 1u);
    else
        y[1 + threadIdx.x] = y[0];
}

KERNEL barrier_for_some(int* y)
{
    if (threadIdx.x < 48)
        __syncthreads();
    y[threadIdx.x] = 1;
}
KERNEL two_barriers(int* y)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    y[threadIdx.x] = 1;
}
KERNEL barrier_against_shuffle(int* y)
{
    if (threadIdx.x == 3)
        __syncthreads();
    y[threadIdx.x] = __shfl_sync(ALL_LANES, 1, 0);
}
KERNEL shuffle_for_some(int* y)
{
    if (threadIdx.x < 16)
        y[threadIdx.x] = __shfl_xor_sync(ALL_LANES, int(threadIdx.x), 1);
}
KERNEL shuffle_from_outside(int* y)
{
    if (threadIdx.x < 16)
        y[threadIdx.x] = __shfl_sync(0x0000ffffu, int(threadIdx.x), 20);
}
KERNEL shuffle_without_me(int* y) { y[threadIdx.x] = __shfl_sync(0x7fffffffu, int(threadIdx.x), 0); }
KERNEL shuffle_with_other_mask(int* y)
{
    y[threadIdx.x] = __shfl_sync(threadIdx.x < 16 ? 0x0000ffffu : 0xfffffff0u, int(threadIdx.x), 5);
}
KERNEL shuffle_meets_vote(int* y)
{
    y[threadIdx.x] = threadIdx.x < 16 ? __shfl_sync(ALL_LANES, 1, 0) : int(__ballot_sync(ALL_LANES, 1));
}

KERNEL misaligned_vector(const double* x, double* y)
{
    const double2 pair = *reinterpret_cast<const double2*>(x + 1 + 2 * threadIdx.x);
    y[threadIdx.x] = pair.x + pair.y;
}
KERNEL misaligned_atomic(unsigned char* bytes) { atomicAdd(reinterpret_cast<unsigned*>(bytes + 1), 1u); }
KERNEL shifts_too_far(const int* x, int* y) { y[threadIdx.x] = 1 << x[threadIdx.x]; }
KERNEL overflows(const int* x, int* y) { y[threadIdx.x] = x[threadIdx.x] * 65536; }
KERNEL traps(int* y)
{
    if (y[0] == 5)
        __trap();
}
