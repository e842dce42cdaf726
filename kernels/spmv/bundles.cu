// Y = alpha A X + beta Y where rows near each other have entries in the same columns: one block multiplies one bundle,
// ROWS rows, by a panel of COLUMNS columns.
//
// Each row of X that any row of the bundle wants is copied into shared memory once, however many of them want it, and
// no register waits for it. A group is GROUP rows that follow each other in the bundle, a slot a column in which any of
// them has an entry: LANES lanes read its row of X from shared memory once, for all of them. A warp multiplies the
// GROUPS groups of a set together, UNIT slots of each after another: a unit. Rows without an entry in a slot's column
// leave it out, whatever X has there. In the last units of a set slot r is row r's alone.
//
// Launch: one dimension, blocks of DASP_THREADS threads, as many as there are bundles, times `parts`, the
//     panels, which follow each other. Dynamic shared memory: a Stage for each warp, and DASP_POOL
//     rows of X. The arrays of the bundles are read before the kernels that come earlier in the stream have ended.
// columns_of (DASP_POOL bundles): which rows of X each bundle wants, PAD behind them.
// more_of (SETS bundles + 1): how many chunks the sets before each have behind their first. values_of (SETS bundles + 1):
//     its first value. extents (SETS bundles): its units, and how many of them have slots of several rows.
// slots (32 to a chunk, two units): the first chunk of every set, then the others; slot 4 s + g of a unit is slot s of
//     group g of the set; see bundles.cuh; 0 where there is none. Lanes read two chunks behind the last. values (nnz):
//     those of a group follow each other, slot by slot, as the matrix's type or coded (DASP_CODING); table.
// rows (ROWS bundles): the row of each, PAD where there is none.
// x, y, x_row, y_column, y_row, first, last: see slices_columns.cu; columns of X lie beside each other, and the
//     parameters that other products by several columns take besides are not used.
//
// Y is written once. Equal inputs give equal bits, and a column's are the same whatever the other columns: the entries of a
// row are added one by one.

#include "slices.cuh"

#define DASP_NEAR 1
#define DASP_FILLED DASP_WHOLE
#include "panels.cuh"

#include "../dense/async_copy.cuh"
#include "bundles.cuh"

#ifndef DASP_POOL
#error "define DASP_POOL: rows of X that a block has room for, as many as all warps copy at once or a multiple"
#endif

constexpr int WARPS = DASP_THREADS / 32, OF_WARP = SETS / WARPS;
constexpr int ROW_BYTES = COLUMNS * sizeof(X), PACK_BYTES = PACK * sizeof(X), APART = LANES * PACK;
constexpr int AT_ONCE = 32 / LANES, COPIES = DASP_POOL / (AT_ONCE * WARPS), LOADS = (COPIES + LANES - 1) / LANES;

static_assert(CHUNK_SLOTS == 32, "a slot to a lane");
static_assert(LANES == 8 && SETS % WARPS == 0, "eight lanes have a group, a warp as many sets as the others");
static_assert(DASP_POOL % (AT_ONCE * WARPS) == 0, "each warp copies as many rows as the others");
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

    // Adds what a row of X is in one row of the group, if it is.
    __device__ __forceinline__ void add(int r, int p, unsigned at, Sum value, const Pack<X, PACK>& b)
    {
        if (!(at >> r & 1)) return;
#pragma unroll
        for (int w = 0; w < PACK; ++w) {
            Sum& sum = of[r][p * PACK + w];
            sum = multiply_add(value, convert<Sum>(b[w]), sum);
        }
    }

    // Adds a unit, of which slot s is row s's alone if it is not `SHARED`.
    template <bool SHARED> __device__ __forceinline__ void add_unit(const Stage& stage, int unit, const char* pool)
    {
        const int group = lane_id() / LANES;
        unsigned at[UNIT];
        const uint4 read = reinterpret_cast<const uint4*>(stage.at)[GROUPS * unit + group];
        memcpy(at, &read, sizeof read);
#pragma unroll
        for (int s = 0; s < UNIT; ++s) {
            const int slot = GROUPS * (UNIT * unit + s) + group;
            Sum value[GROUP];
            if (SHARED)
                stage.get(slot, value);
            else
                value[s] = stage.value[slot][s];
#pragma unroll
            for (int p = 0; p < PACKS; ++p) {
                Pack<X, PACK> b;
                b.load(reinterpret_cast<const X*>(pool + (at[s] & ~HERE)) + p * APART);
                if (SHARED)
#pragma unroll
                    for (int r = 0; r < GROUP; ++r) add(r, p, at[s], value[r], b);
                else
                    add(s, p, at[s], value[s], b);
            }
        }
    }
};

// The rows of X that a bundle wants: which of them this lane's warp copies, AT_ONCE by turns with the other warps.
struct Wanted {
    Index column[LOADS];

    __device__ __forceinline__ Wanted(const Index* columns)
    {
        const int lane = lane_id();
        columns += lane / AT_ONCE * AT_ONCE * WARPS + threadIdx.x / 32 * AT_ONCE + lane % AT_ONCE;
#pragma unroll
        for (int t = 0; t < LOADS; ++t) {
            const bool inside = (t + 1) * LANES <= COPIES || t * LANES + lane / AT_ONCE < COPIES;
            column[t] = inside ? load_cached(columns + t * 32 * WARPS) : PAD;
        }
    }
    // Begins to copy them.
    __device__ __forceinline__ void copy(AsyncCopies& copies, char* pool, const XPanel& panel) const
    {
        const int lane = lane_id();
        char* const target = pool + (threadIdx.x / 32 * AT_ONCE + lane / LANES) * ROW_BYTES + lane % LANES * PACK_BYTES;
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const Index from = __shfl_sync(ALL_LANES, column[i / LANES], i % LANES * AT_ONCE + lane / LANES);
            if (!__any_sync(ALL_LANES, from >= 0)) break;
            const X* const start = panel.at(max(from, Index(0)));
#pragma unroll
            for (int p = 0; p < PACKS; ++p) {
                const bool there = DASP_WHOLE || p * APART < panel.columns;
                copies.copy<PACK_BYTES>(target + i * AT_ONCE * WARPS * ROW_BYTES + p * APART * sizeof(X),
                                        there ? start + p * APART : panel.zeros, there && from >= 0 ? PACK_BYTES : 0);
            }
        }
        copies.commit();
    }
};

// The values of a slot, as they are stored.
__device__ __forceinline__ void load_codes(Code (&code)[GROUP], unsigned slot, const Code* values)
{
    const Code* const first = values + start_of(slot);
    unsigned before = 0;
#pragma unroll
    for (int r = 0; r < GROUP; ++r) {
        if (slot >> r & 1) code[r] = load_code(first + before);
        before += slot >> r & 1;
    }
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS, 65536 / DASP_REGISTERS / DASP_THREADS)
dasp_bundles(const Index* __restrict__ columns_of, const unsigned long long* __restrict__ more_of,
             const unsigned long long* __restrict__ values_of, const unsigned* __restrict__ extents,
             const unsigned* __restrict__ slots, const Code* __restrict__ values, const Value* __restrict__ table,
             const Index* __restrict__ rows, const X* zeros, long long count, int parts, const X* x, Y* y,
             Sum* partials, long long x_column, long long y_column, int x_row, int y_row, int first, int last,
             int columns, Sum alpha, Sum beta)
{
    extern __shared__ __align__(16) char shared[];
    Stage& stage = reinterpret_cast<Stage*>(shared)[threadIdx.x / 32];
    char* const pool = shared + WARPS * sizeof(Stage);
    long long bundle = blockIdx.x;
    int start = first;
    if (parts > 1) {
        bundle = blockIdx.x / parts;
        start += int(blockIdx.x % parts) * COLUMNS;
    }
    const int lane = lane_id(), in_x = lane % LANES * PACK, left = last - start - in_x;
    const Wanted wanted(columns_of + DASP_POOL * bundle);
    AsyncCopies copies;
#pragma unroll 1
    for (int t = 0; t < OF_WARP; ++t) {
        const long long at = SETS * bundle + threadIdx.x / 32 * OF_WARP + t;
        unsigned slot = load_plan(slots + CHUNK_SLOTS * at + lane);  // at a place that nothing tells but the set's number
        const unsigned* next = slots + CHUNK_SLOTS * (SETS * count + load_cached(more_of + at)) + lane;
        const Code* const own = values + load_cached(values_of + at);
        const uint2 extent = load_cached(reinterpret_cast<const uint2*>(extents) + at);
        const int units = int(extent.x), of_several = int(extent.y);
        const Index row = lane < SET ? load_cached(rows + SET * at + lane) : PAD;
        if (t == 0) {
            wait_for_earlier_kernels();
            wanted.copy(copies, pool, XPanel{x + start + in_x, zeros, x_column, x_row, left});
        }
        Code code[GROUP] = {};
        load_codes(code, slot, own);
        unsigned ahead = load_plan(next);
        __syncwarp();  // else the compiler moves these loads behind the wait
        if (t == 0) {
            copies.wait<0>();
            __syncthreads();
        }
        const char* const mine = pool + lane % LANES * PACK_BYTES;
        Sums sums;
#pragma unroll 1
        for (int unit = 0; unit < units; unit += CHUNK) {
            stage.put(slot, code, table);
            slot = ahead;
            next += CHUNK_SLOTS;
            ahead = load_plan(next);
            load_codes(code, slot, own);
            __syncwarp();
#pragma unroll
            for (int u = 0; u < CHUNK; ++u)
                if (unit + u < of_several)
                    sums.add_unit<true>(stage, u, mine);
                else if (unit + u < units)
                    sums.add_unit<false>(stage, u, mine);
            __syncwarp();  // else another lane still reads what it is overwritten by
        }
#pragma unroll
        for (int r = 0; r < GROUP; ++r) {
            const Index to = __shfl_sync(ALL_LANES, row, lane / LANES * GROUP + r);
            if (to >= 0)
                YPanel{y + (start + in_x) * y_column, y_column, y_row, left, alpha, beta}.store(to, sums.of[r]);
        }
    }
}
