// Y = alpha A X + beta Y where rows near each other have entries in the same columns: one block multiplies one bundle,
// ROWS rows, by a panel of COLUMNS columns, and then by the next panel that is its own.
//
// Each row of X that any row of the bundle wants is copied into shared memory once, however many of them want it, and
// no register waits for it. A group is GROUP rows that follow each other in the bundle, a slot a column in which any of
// them has an entry: LANES lanes read its row of X from shared memory once, for all of them. A warp multiplies the
// GROUPS groups of a set together, UNIT slots of each after another: a unit. Rows without an entry in a slot's column
// leave it out, whatever X has there.
//
// Launch: one dimension, blocks of DASP_THREADS threads, as many as there are bundles, times `parts`, which follow each
//     other: panel t is that of part t % parts. Dynamic shared memory: a Stage for each warp, and `room` rows of X,
//     as many as the bundle that has most of them wants, rounded up to what all warps copy at once. The arrays of the
//     bundles are read before the kernels that come earlier in the stream have ended.
// starts (bundles + 1): first of each bundle's columns, and the number of all. columns: which rows of X it wants.
// units_of (SETS bundles + 1): first unit of each set, and the number of all. values_of (SETS bundles + 1): its first value.
// slots (16 to a unit): slot 4 s + g is slot s of group g of the set; see bundles.cuh; 0 where there is none. Lanes read two
//     chunks of 32 behind the last. values (nnz): those of a group follow each other, slot by slot, as the matrix's type
//     or coded (DASP_CODING); table.
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
#include "bundles.cuh"

#ifndef DASP_POOL
#error "define DASP_POOL: rows of X that a block has room for"
#endif

constexpr int WARPS = DASP_THREADS / 32, OF_WARP = SETS / WARPS, CHUNK = 32 / GROUPS / UNIT;
constexpr int ROW_BYTES = COLUMNS * sizeof(X), PACK_BYTES = PACK * sizeof(X), APART = LANES * PACK;
constexpr int AT_ONCE = 32 / LANES, LOADS = (DASP_POOL + 32 * WARPS - 1) / (32 * WARPS);

static_assert(LANES == 8 && SETS % WARPS == 0, "eight lanes have a group, a warp as many sets as the others");
static_assert(ROW_BYTES % 16 == 0, "which rows of a group a slot is of stands in the last bits of a row's place");

// The slots of two units, made to be multiplied: values, 0 where there are none, and where the row of X begins, with which
// rows of the group have an entry there.
struct alignas(16) Stage {
    Sum value[32][GROUP];
    unsigned at[32];

    __device__ __forceinline__ void put(unsigned slot, const Code (&code)[GROUP], const Value* table)
    {
        const int lane = lane_id();
        Sum made[GROUP];
#pragma unroll
        for (int r = 0; r < GROUP; ++r) made[r] = convert<Sum>(weight_of(code[r], table));
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
            uint4 word;
            memcpy(&word, reinterpret_cast<const char*>(made) + sizeof word * i, sizeof word);
            reinterpret_cast<uint4*>(value[lane])[i] = word;
        }
        at[lane & 16 | lane % GROUPS * UNIT | lane / GROUPS % UNIT] = column_of_slot(slot) * ROW_BYTES | slot & HERE;
    }
    __device__ __forceinline__ void get(int slot, Sum (&read)[GROUP]) const
    {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
            const uint4 word = reinterpret_cast<const uint4*>(value[slot])[i];
            memcpy(reinterpret_cast<char*>(read) + sizeof word * i, &word, sizeof word);
        }
    }

private:
    static constexpr int WORDS = GROUP * sizeof(Sum) / sizeof(uint4);
};

// The sums of a group's rows in this lane's columns.
struct Sums {
    Sum of[GROUP][OWN] = {};

    __device__ __forceinline__ void add_unit(const Stage& stage, int unit, const char* pool)
    {
        const int group = lane_id() / LANES;
        unsigned at[UNIT];
        const uint4 read = reinterpret_cast<const uint4*>(stage.at)[GROUPS * unit + group];
        memcpy(at, &read, sizeof read);
#pragma unroll
        for (int s = 0; s < UNIT; ++s) {
            Sum value[GROUP];
            stage.get(GROUPS * (UNIT * unit + s) + group, value);
#pragma unroll
            for (int p = 0; p < PACKS; ++p) {
                Pack<X, PACK> b;
                b.load(reinterpret_cast<const X*>(pool + (at[s] & ~HERE)) + p * APART);
#pragma unroll
                for (int r = 0; r < GROUP; ++r) {
                    if (!(at[s] >> r & 1)) continue;
#pragma unroll
                    for (int w = 0; w < PACK; ++w) {
                        Sum& sum = of[r][p * PACK + w];
                        sum = multiply_add(value[r], convert<Sum>(b[w]), sum);
                    }
                }
            }
        }
    }
};

// The rows of X that a bundle wants, of which each warp copies as many as the others.
struct Wanted {
    Index column[LOADS];
    int count, share;

    __device__ __forceinline__ Wanted(const Index* columns, int count)
        : count(count), share((count + AT_ONCE * WARPS - 1) / (AT_ONCE * WARPS) * AT_ONCE)
    {
        const int first = threadIdx.x / 32 * share + lane_id();
#pragma unroll
        for (int t = 0; t < LOADS; ++t) column[t] = first + 32 * t < count ? load_cached(columns + first + 32 * t) : 0;
    }
    // Begins to copy them.
    __device__ __forceinline__ void copy(AsyncCopies& copies, char* pool, const XPanel& panel) const
    {
        const int lane = lane_id(), first = threadIdx.x / 32 * share + lane / LANES;
        char* const target = pool + first * ROW_BYTES + lane % LANES * PACK_BYTES;
#pragma unroll
        for (int i = 0; i < 32 * LOADS; i += AT_ONCE) {
            if (i >= share) break;
            const X* const from = panel.at(__shfl_sync(ALL_LANES, column[i / 32], i % 32 + lane / LANES));
#pragma unroll
            for (int p = 0; p < PACKS; ++p) {
                const bool there = DASP_WHOLE || p * APART < panel.columns;
                copies.copy<PACK_BYTES>(target + i * ROW_BYTES + p * APART * sizeof(X),
                                        there ? from + p * APART : panel.zeros,
                                        there && first + i < count ? PACK_BYTES : 0);
            }
        }
        copies.commit();
    }
};

// The values of a slot, as they are stored.
__device__ __forceinline__ void load_codes(Code (&code)[GROUP], unsigned slot, const Code* values)
{
    const Code* next = values + start_of(slot);
#pragma unroll
    for (int r = 0; r < GROUP; ++r)
        if (slot >> r & 1) code[r] = load_code(next++);
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS, 65536 / DASP_REGISTERS / DASP_THREADS)
dasp_bundles(const unsigned long long* __restrict__ starts, const Index* __restrict__ columns_of,
             const unsigned long long* __restrict__ units_of, const unsigned long long* __restrict__ values_of,
             const unsigned* __restrict__ slots, const Code* __restrict__ values, const Value* __restrict__ table,
             const Index* __restrict__ rows, const X* __restrict__ zeros, long long count, int parts, const X* x, Y* y,
             Sum* partials, long long x_column, long long y_column, int x_row, int y_row, int first, int last,
             int columns, Sum alpha, Sum beta)
{
    extern __shared__ __align__(16) char shared[];
    Stage& stage = reinterpret_cast<Stage*>(shared)[threadIdx.x / 32];
    char* const pool = shared + WARPS * sizeof(Stage);
    const long long bundle = blockIdx.x / parts, set = SETS * bundle + threadIdx.x / 32 * OF_WARP;
    const int lane = lane_id(), in_x = lane % LANES * PACK;
    const char* const mine = pool + lane % LANES * PACK_BYTES;
    const unsigned long long begin = load_cached(starts + bundle);
    const Wanted wanted(columns_of + begin, int(load_cached(starts + bundle + 1) - begin));
    wait_for_earlier_kernels();
#pragma unroll 1
    for (int start = first + int(blockIdx.x % parts) * COLUMNS; start < last; start += parts * COLUMNS) {
        const int left = last - start - in_x;
        AsyncCopies copies;
        wanted.copy(copies, pool, XPanel{x + start + in_x, zeros, x_column, x_row, left});
        unsigned long long unit = load_cached(units_of + set);
#pragma unroll 1
        for (int t = 0; t < OF_WARP; ++t) {
            const unsigned long long end = load_cached(units_of + set + t + 1);
            const unsigned* next = slots + GROUPS * UNIT * unit + lane;
            const Code* const own = values + load_cached(values_of + set + t);
            unsigned slot = load_plan(next), ahead = load_plan(next + 32);
            Code code[GROUP] = {};
            load_codes(code, slot, own);
            if (t == 0) {
                copies.wait<0>();
                __syncthreads();
            }
            Sums sums;
#pragma unroll 1
            for (int more = int(end - unit); more > 0; more -= CHUNK) {
                stage.put(slot, code, table);
                slot = ahead;
                next += 32;
                ahead = load_plan(next + 32);
                load_codes(code, slot, own);
                __syncwarp();
#pragma unroll
                for (int u = 0; u < CHUNK; ++u)
                    if (u == 0 || more > u) sums.add_unit(stage, u, mine);
                __syncwarp();  // else another lane still reads what it is overwritten by
            }
            unit = end;
            const Index* const places = rows + SET * (set + t) + lane / LANES * GROUP;
#pragma unroll
            for (int r = 0; r < GROUP; ++r) {
                const Index row = load_cached(places + r);
                if (row >= 0)
                    YPanel{y + (start + in_x) * y_column, y_column, y_row, left, alpha, beta}.store(row, sums.of[r]);
            }
        }
        __syncthreads();  // else rows are still read that the next panel's take the place of
    }
}
