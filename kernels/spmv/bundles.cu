// Y = alpha A X + beta Y where rows near each other have entries in the same columns: one block multiplies one bundle,
// ROWS rows, by a panel of COLUMNS columns, and then by the next panel that is its own.
//
// Each row of X that any row of the bundle wants is copied into shared memory once, however many of them want it, and
// no register waits for it. An octet is 8 rows, which a warp multiplies together: LANES lanes, a group, two of them, one
// entry after another. A chunk is 4 entries of each of these rows, a slot to a lane; slots without an entry stand for a
// row of zeros.
//
// Launch: one dimension, blocks of DASP_THREADS threads, as many as there are bundles, times `parts`, which follow each
//     other: panel t is that of part t % parts. The arrays of the bundles are read before the kernels that come
//     earlier in the stream have ended.
// starts (bundles + 1): first of each bundle's columns, and the number of all. columns: which rows of X it wants.
// chunks_of (OCTETS bundles + 1): first chunk of each octet, and the number of all.
// slots (32 to a chunk): slot 4 r + e is entry e of the octet's row r: which of the bundle's columns it has, counted from 1,
//     or 0. values (32 to a chunk): as the matrix's type or coded (DASP_CODING); table. Lanes read AHEAD chunks behind the
//     last.
// rows (ROWS bundles): the row of each, PAD where there is none.
// x, y, x_row, y_column, y_row, first, last: see slices_columns.cu; columns of X lie beside each other, and the
//     parameters that other products by several columns take besides are not used.
//
// Y is written once. Equal inputs give equal bits, and a column's are the same whatever the other columns: the entries of a
// row are added one by one.

#include "slices.cuh"

#define DASP_NEAR 1
#include "panels.cuh"

#include "../dense/async_copy.cuh"

#ifndef DASP_POOL
#error "define DASP_POOL: rows of X that a block has room for, with that of zeros"
#endif

constexpr int ROWS = 128, OCTET = 8, OCTETS = ROWS / OCTET, WARPS = DASP_THREADS / 32, AHEAD = 2;
constexpr int ROW_BYTES = COLUMNS * sizeof(X), PACK_BYTES = PACK * sizeof(X), APART = LANES * PACK;

static_assert(LANES == 8 && OCTETS % WARPS == 0, "a group has two rows of an octet, a warp as many octets as the others");

// This lane's slot of a chunk.
struct Slot {
    unsigned at;
    Code code;
};

// This lane's slots of the chunks of a warp, which follow each other.
struct Chunks {
    const unsigned short* slots;
    const Code* values;

    __device__ __forceinline__ Slot operator[](int chunk) const
    {
        return {load_plan(slots + 32 * chunk), load_code(values + 32 * chunk)};
    }
    __device__ __forceinline__ void advance()
    {
        slots += 32;
        values += 32;
    }
};

// What a slot is made to be multiplied: its value, and where its row of X begins.
struct Ready {
    Sum value;
    Bits bytes;
};

constexpr int AT_ONCE = sizeof(uint4) / sizeof(Ready);

// The sums of a group's two rows in this lane's columns.
struct Sums {
    Sum of[2][OWN] = {};

    __device__ __forceinline__ void add(const uint4* ready, const char* pool)
    {
#pragma unroll
        for (int first = 0; first < OCTET; first += AT_ONCE) {
            Ready slots[AT_ONCE];
            const uint4 read = ready[(OCTET * (lane_id() / LANES) + first) / AT_ONCE];
            memcpy(slots, &read, sizeof read);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
                for (int p = 0; p < PACKS; ++p) {
                    Pack<X, PACK> b;
                    b.load(reinterpret_cast<const X*>(pool + unsigned(slots[i].bytes)) + p * APART);
#pragma unroll
                    for (int w = 0; w < PACK; ++w) {
                        Sum& sum = of[(first + i) / 4][p * PACK + w];
                        sum = multiply_add(slots[i].value, convert<Sum>(b[w]), sum);
                    }
                }
        }
    }
};

// Begins to copy the rows of X that a bundle wants behind a row of zeros, each warp as many as the others.
__device__ __forceinline__ void gather(AsyncCopies& copies, char* pool, const Index* columns, int count,
                                       const XPanel& panel)
{
    constexpr int LOADS = (DASP_POOL / WARPS + 31) / 32;
    const int lane = lane_id(), each = (count + WARPS - 1) / WARPS, first = threadIdx.x / 32 * each;
    const int last = min(first + each, count), place = lane % LANES * PACK_BYTES;
    if (threadIdx.x < LANES) {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) Pack<X, PACK>{}.store(reinterpret_cast<X*>(pool + place) + p * APART);
    }
    Index column[LOADS];
#pragma unroll
    for (int t = 0; t < LOADS; ++t)
        column[t] = first + 32 * t + lane < last ? load_cached(columns + first + 32 * t + lane) : 0;
#pragma unroll
    for (int t = 0; t < LOADS; ++t)
#pragma unroll
        for (int i = 0; i < 32; i += 32 / LANES) {
            const Index from = __shfl_sync(ALL_LANES, column[t], i + lane / LANES);
            const int to = first + 32 * t + i + lane / LANES;
            if (to >= last) continue;
            char* const target = pool + (to + 1) * ROW_BYTES + place;
#pragma unroll
            for (int p = 0; p < PACKS; ++p) {
                const bool inside = DASP_WHOLE || p * APART < panel.columns;
                copies.copy<PACK_BYTES>(target + p * APART * sizeof(X), inside ? panel.at(from) + p * APART : panel.zeros,
                                        inside ? PACK_BYTES : 0);
            }
        }
    copies.commit();
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS, 65536 / DASP_REGISTERS / DASP_THREADS)
dasp_bundles(const unsigned long long* __restrict__ starts, const Index* __restrict__ columns_of,
             const unsigned long long* __restrict__ chunks_of, const unsigned short* __restrict__ slots,
             const Code* __restrict__ values, const Value* __restrict__ table, const Index* __restrict__ rows,
             const X* __restrict__ zeros, long long count, int parts, const X* x, Y* y, Sum* partials,
             long long x_column, long long y_column, int x_row, int y_row, int first, int last, int columns, Sum alpha,
             Sum beta)
{
    constexpr int OF_WARP = OCTETS / WARPS;
    __shared__ uint4 pool[DASP_POOL * ROW_BYTES / sizeof(uint4)];
    __shared__ uint4 stages[WARPS][32 / AT_ONCE];
    const long long bundle = blockIdx.x / parts, octet = OCTETS * bundle + threadIdx.x / 32 * OF_WARP;
    const int lane = lane_id(), in_x = lane % LANES * PACK;
    const unsigned long long begin = load_cached(starts + bundle);
    const int wanted = int(load_cached(starts + bundle + 1) - begin);
    const unsigned long long chunks = load_cached(chunks_of + octet + min(lane, OF_WARP));
    uint4* const stage = stages[threadIdx.x / 32];
    const char* const mine = reinterpret_cast<const char*>(pool) + lane % LANES * PACK_BYTES;
    wait_for_earlier_kernels();
#pragma unroll 1
    for (int start = first + int(blockIdx.x % parts) * COLUMNS; start < last; start += parts * COLUMNS) {
        const int left = last - start - in_x;
        AsyncCopies copies;
        gather(copies, reinterpret_cast<char*>(pool), columns_of + begin, wanted,
               XPanel{x + start + in_x, zeros, x_column, x_row, left});
        unsigned long long done = __shfl_sync(ALL_LANES, chunks, 0);
        Chunks here{slots + 32 * done + lane, values + 32 * done + lane};
        Slot ahead[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) ahead[i] = here[i];
        copies.wait<0>();
        __syncthreads();
#pragma unroll 1
        for (int t = 0; t < OF_WARP; ++t) {
            const unsigned long long end = __shfl_sync(ALL_LANES, chunks, t + 1);
            const Index* const places = rows + OCTET * (octet + t) + 2 * (lane / LANES);
            const Index row[2] = {load_cached(places), load_cached(places + 1)};
            Sums sums;
#pragma unroll 1
            for (int more = int(end - done); more > 0; --more) {
                const Sum value = convert<Sum>(weight_of(ahead[0].code, table));
                const Ready ready{CODED && !ahead[0].at ? Sum(0) : value, Bits(ahead[0].at) * ROW_BYTES};
                reinterpret_cast<Ready*>(stage)[lane] = ready;
#pragma unroll
                for (int i = 1; i < AHEAD; ++i) ahead[i - 1] = ahead[i];
                ahead[AHEAD - 1] = here[AHEAD];
                here.advance();
                __syncwarp();
                sums.add(stage, mine);
                __syncwarp();  // else another lane still reads what it is overwritten by
            }
            done = end;
#pragma unroll
            for (int r = 0; r < 2; ++r)
                if (row[r] >= 0)
                    YPanel{y + (start + in_x) * y_column, y_column, y_row, left, alpha, beta}.store(row[r], sums.of[r]);
        }
        __syncthreads();  // else rows are still read that the next panel's take the place of
    }
}
