// Y = alpha A X + beta Y for a matrix in slices and an X of several columns: one warp multiplies one slice by a
// panel of COLUMNS columns, and then by the next panel that is its own.
//
// Lane l loads slot l of a step, as in slices.cu, where the arrays of a plan are described. Then LANES lanes,
// a group, share the slots that they loaded: slot by slot, each of them reads PACK neighbouring columns of the
// slot's row of X at a time, so that a group reads a run of LANES * PACK columns at once, and adds them to sums
// of its own: of each of the group's slots and each of the lane's COLUMNS / LANES columns. Column
// (i LANES + q) PACK + w of a panel is number i PACK + w in lane q of every group. With LANES 1 no lane
// needs what another has loaded, and neighbouring lanes read neighbouring rows.
//
// Launch: one dimension, blocks of DASP_THREADS threads; `parts` blocks that follow each other multiply the same
//     slices, panel t in part t % parts. The arrays of the plan are read before the kernels that come earlier
//     in the stream have ended.
// x: element (i, j) of X (n, columns) lies at i x_row + j x_column; y of Y (m, columns) likewise. With PACK above
//     1, x_column is 1 and each run of PACK columns is aligned to its size; with Y_PACK the same of y.
// first, last: the columns of this launch, first <= j < last; with WHOLE a multiple of COLUMNS of them.
// partials (segments, columns): of each segment, row by row, and each column; dasp_segments_columns adds them.
//
// Y is written once. Equal inputs give equal bits, and a column's are the same whatever COLUMNS, LANES, PACK, the
// strides and the other columns: a slot is summed step by step, then neighbouring slots of a row pairwise.

#include "slices.cuh"

#ifndef DASP_COLUMNS
#error "define DASP_COLUMNS: columns of a panel, 1 to 32, a power of two"
#endif
#ifndef DASP_LANES
#error "define DASP_LANES: lanes that share a slot, a power of two, at most DASP_COLUMNS"
#endif
#ifndef DASP_PACK
#error "define DASP_PACK: columns of X in one load, at most DASP_COLUMNS / DASP_LANES and 16 bytes"
#endif
#ifndef DASP_Y_PACK
#error "define DASP_Y_PACK: columns of Y in one store, 1 or DASP_PACK"
#endif
#ifndef DASP_WHOLE
#error "define DASP_WHOLE: 1 if every panel has all its columns"
#endif
#ifndef DASP_STEPS
#error "define DASP_STEPS: steps that are loaded before the first is multiplied"
#endif
#ifndef DASP_REGISTERS
#error "define DASP_REGISTERS: registers of a thread, at most"
#endif
#ifndef DASP_LOADS
#error "define DASP_LOADS: loads of X that a lane has in flight, a power of two"
#endif

constexpr int COLUMNS = DASP_COLUMNS;
constexpr int LANES = DASP_LANES;
constexpr int PACK = DASP_PACK;
constexpr int Y_PACK = DASP_Y_PACK;
constexpr int STEPS = DASP_STEPS;
constexpr int OWN = COLUMNS / LANES;
constexpr int PACKS = OWN / PACK;

// The largest power of two that is at most `most` and at most `count`, and at least 1.
__host__ __device__ constexpr int power_of_two(int count, int most)
{
    int power = 1;
    while (2 * power <= count && 2 * power <= most) power *= 2;
    return power;
}

// Whose loads are in flight at once: where lanes share slots, all steps of some slots, and else some steps of
// one slot, all columns of each.
constexpr int STEPS_AT_ONCE = LANES > 1 ? STEPS : STEPS % power_of_two(DASP_LOADS / PACKS, STEPS) ? 1
                                                : power_of_two(DASP_LOADS / PACKS, STEPS);
constexpr int SLOTS_AT_ONCE = power_of_two(DASP_LOADS / STEPS_AT_ONCE / PACKS, LANES);

static_assert(OWN * LANES == COLUMNS && PACKS * PACK == OWN && 32 % LANES == 0, "powers of two");
static_assert(Y_PACK == 1 || Y_PACK == PACK, "a store writes what a load of X read, or one column");

// So many bytes as one load or store.
template <int BYTES> struct Word;
template <> struct Word<2> { using Type = unsigned short; };
template <> struct Word<4> { using Type = unsigned; };
template <> struct Word<8> { using Type = uint2; };
template <> struct Word<16> { using Type = uint4; };

template <class T, int N> struct Pack {
    T items[N];

    using Whole = typename Word<N * sizeof(T)>::Type;

    // What an earlier kernel may have written, as load_result reads it.
    __device__ __forceinline__ void load(const T* address)
    {
        const Whole whole = load_result(reinterpret_cast<const Whole*>(address));
        memcpy(items, &whole, sizeof whole);
    }

    __device__ __forceinline__ void store(T* address) const
    {
        Whole whole;
        memcpy(&whole, items, sizeof whole);
        *reinterpret_cast<Whole*>(address) = whole;
    }
};

// A lane's slots of STEPS steps; those of steps that do not exist are pads.
struct Slots {
    Index column[STEPS];
    Weight a[STEPS];

    template <class Delta>
    __device__ __forceinline__ void load(const Slices& slices, long long step, int steps, const Delta* deltas)
    {
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            column[k] = k < steps ? load_column(slices.bases + step + k, deltas + 32 * k) : PAD;
            a[k] = k < steps ? load_value(slices, 32 * (step + k) + lane_id()) : Weight(0);
        }
        if (CODED) {
#pragma unroll
            for (int k = 0; k < STEPS; ++k)
                if (column[k] < 0) a[k] = Weight(0);
        }
    }

    // Those of a slice from its step `first` on.
    __device__ __forceinline__ void load(const Slices& slices, const uint4& header, int first)
    {
        const int left = int(header.w & 0xfff) - first, width = header.w >> 27 & 3;
        const long long step = (long long)header.x + first;
        const auto* deltas = slices.deltas + 32ll * header.z + 32 * first * (1 << width >> 1);
        switch (width) {
        case 0: load(slices, step, left, reinterpret_cast<const LaneDelta*>(deltas)); break;
        case 1: load(slices, step, left, deltas); break;
        case 2: load(slices, step, left, reinterpret_cast<const unsigned short*>(deltas)); break;
        default: load(slices, step, left, reinterpret_cast<const unsigned*>(deltas));
        }
    }
};

// The slots of all lanes where others read them: shared memory, if lanes share slots.
struct Stage {
    Index column[STEPS][32];
    Weight a[STEPS][32];
};

// What this lane multiplies of a chunk of STEPS steps: slot `slot_of(j)` of each step.
struct Chunk {
#if DASP_LANES == 1
    Slots slots;

    __device__ __forceinline__ explicit Chunk(Stage*) {}
    __device__ __forceinline__ Index column(int, int k) const { return slots.column[k]; }
    __device__ __forceinline__ Weight a(int, int k) const { return slots.a[k]; }
#else
    Stage* const stage;

    __device__ __forceinline__ explicit Chunk(Stage* stage) : stage(stage) {}
    __device__ __forceinline__ Index column(int slot, int k) const { return stage->column[k][slot]; }
    __device__ __forceinline__ Weight a(int slot, int k) const { return stage->a[k][slot]; }
#endif

    __device__ __forceinline__ void load(const Slices& slices, const uint4& header, int first)
    {
#if DASP_LANES == 1
        slots.load(slices, header, first);
        __syncwarp();  // else the compiler issues the loads of values after the columns have arrived
#else
        Slots slots;
        slots.load(slices, header, first);
        __syncwarp();  // else another lane still reads what it is overwritten by
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            stage->column[k][lane_id()] = slots.column[k];
            stage->a[k][lane_id()] = slots.a[k];
        }
        __syncwarp();
#endif
        wait_for_earlier_kernels();
    }
};

// A panel of X: where this lane reads it, and how many columns it has from the lane's first one on.
struct XPanel {
    const X* x;
    long long column;
    int row;
    int columns;

    __device__ __forceinline__ Pack<X, PACK> load(Index i, int pack) const
    {
        Pack<X, PACK> read;
        if (i >= 0 && (DASP_WHOLE || pack * LANES * PACK < columns)) {
            read.load(x + (long long)i * row + pack * LANES * PACK * column);
        } else {
#pragma unroll
            for (int w = 0; w < PACK; ++w) read.items[w] = X();
        }
        return read;
    }
};

// The sums of a group's slots in this lane's columns.
struct Sums {
    Sum of[LANES][OWN];

    __device__ __forceinline__ Sums()
    {
#pragma unroll
        for (int j = 0; j < LANES; ++j)
#pragma unroll
            for (int v = 0; v < OWN; ++v) of[j][v] = Sum(0);
    }

    // Adds the products of some steps of a chunk in some slots of the group, all loads before the first product.
    __device__ __forceinline__ void add(const Chunk& chunk, int j, int first, const XPanel& panel)
    {
        const int slot = (lane_id() & ~(LANES - 1)) + j;
        Pack<X, PACK> b[SLOTS_AT_ONCE][STEPS_AT_ONCE][PACKS];
#pragma unroll
        for (int e = 0; e < SLOTS_AT_ONCE; ++e)
#pragma unroll
            for (int k = 0; k < STEPS_AT_ONCE; ++k) {
                const Index i = chunk.column(slot + e, first + k);
#pragma unroll
                for (int p = 0; p < PACKS; ++p) b[e][k][p] = panel.load(i, p);
            }
#pragma unroll
        for (int e = 0; e < SLOTS_AT_ONCE; ++e)
#pragma unroll
            for (int k = 0; k < STEPS_AT_ONCE; ++k) {
                const Weight a = chunk.a(slot + e, first + k);
#pragma unroll
                for (int v = 0; v < OWN; ++v) {
                    Sum& sum = of[j + e][v];
                    sum = multiply_add(a, convert<Operand>(b[e][k][v / PACK].items[v % PACK]), sum);
                }
            }
    }

    __device__ __forceinline__ void add(const Chunk& chunk, const XPanel& panel)
    {
#pragma unroll
        for (int j = 0; j < LANES; j += SLOTS_AT_ONCE)
#pragma unroll
            for (int first = 0; first < STEPS; first += STEPS_AT_ONCE) {
                if (LANES > 1) __syncwarp();  // else the compiler begins the next loads too, and lacks registers
                add(chunk, j, first, panel);
            }
    }

    // Adds neighbouring slots until each row of 2^shift slots has one sum: of[r] is that of the group's row
    // r, and of a row of several groups each of them has the sum.
    __device__ __forceinline__ void add_neighbours(int shift)
    {
        int level = 0;
#pragma unroll
        for (int held = LANES / 2; held > 0; held /= 2, ++level)
            if (level < shift)
#pragma unroll
                for (int r = 0; r < held; ++r)
#pragma unroll
                    for (int v = 0; v < OWN; ++v) of[r][v] = of[2 * r][v] + of[2 * r + 1][v];
        for (int distance = LANES; distance < 1 << shift; distance *= 2)
#pragma unroll
            for (int v = 0; v < OWN; ++v) of[0][v] += from_other_lane(of[0][v], distance);
    }
};

// Adds a slice to the sums. `loaded`: the step from which on the chunk was loaded last, -1 if it never was.
__device__ __forceinline__ void add_slice(Sums& sums, Chunk& chunk, int& loaded, const Slices& slices,
                                          const uint4& header, const XPanel& panel)
{
    const int steps = header.w & 0xfff;
#pragma unroll 1
    for (int first = 0; first < steps; first += STEPS) {
        asm volatile("" : "+r"(loaded));  // else the compiler makes two loops of one
        if (loaded != first) chunk.load(slices, header, first);
        loaded = first;
        sums.add(chunk, panel);
    }
}

// A panel of Y: where this lane writes it, and how many columns it has from the lane's first one on.
struct YPanel {
    Y* y;
    long long column;
    int row;
    int columns;
    Sum alpha;
    Sum beta;

    __device__ __forceinline__ void store(Index i, const Sum (&sum)[OWN]) const
    {
        Y* const start = y + (long long)i * row;
#pragma unroll
        for (int v = 0; v < OWN; v += Y_PACK) {
            const int first = v / PACK * LANES * PACK + v % PACK;
            if (!DASP_WHOLE && first >= columns) continue;
            Pack<Y, Y_PACK> written;
            if (!(beta == Sum(0))) written.load(start + first * column);
#pragma unroll
            for (int w = 0; w < Y_PACK; ++w) {
                const Sum product = scaled(alpha, sum[v + w]);
                written.items[w] = convert<Y>(
                    beta == Sum(0) ? product : product + scaled(beta, convert<Sum>(written.items[w])));
            }
            written.store(start + first * column);
        }
    }
};

// Writes the rows of a slice; `row` is the caller's row of the slice's row l in lane l, PAD if there is none.
__device__ __forceinline__ void store_rows(const Sums& sums, int shift, Index row, const YPanel& panel)
{
    const int group = lane_id() & ~(LANES - 1), held = LANES >> shift > 0 ? LANES >> shift : 1;
    const bool first = (group & ((1 << shift) - 1)) == 0;
#pragma unroll
    for (int r = 0; r < LANES; ++r)
        if (r < held) {
            const Index i = __shfl_sync(ALL_LANES, row, (group >> shift) + r);
            if (first && i >= 0) panel.store(i, sums.of[r]);
        }
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS, 65536 / DASP_REGISTERS / DASP_THREADS)
dasp_slices_columns(const uint4* __restrict__ headers, const Index* __restrict__ bases,
                    const unsigned char* __restrict__ deltas, const Code* __restrict__ values,
                    const Value* __restrict__ table, const Index* __restrict__ rows, long long count,
                    long long segments, long long positions, int identity, int parts, const X* x, Y* y,
                    Sum* partials, long long x_column, long long y_column, int x_row, int y_row, int first,
                    int last, int columns, Sum alpha, Sum beta)
{
    const long long s = (blockIdx.x / parts * (long long)blockDim.x + threadIdx.x) / 32;
    if (s >= count) return;
    const uint4 header = load_cached(headers + s);
    const int shift = header.w >> 24 & 7;
    Index row = PAD;
    if (s >= segments && lane_id() < 32 >> shift) {
        const long long position = (long long)header.y + lane_id();
        if (position < positions) row = identity ? Index(position) : load_stream(rows + position);
    }
    const Slices slices{bases, deltas, values, table};

#if DASP_LANES == 1
    Chunk chunk(nullptr);
#else
    __shared__ uint4 stages[DASP_THREADS / 32][sizeof(Stage) / sizeof(uint4)];  // numbers may have constructors
    Chunk chunk(reinterpret_cast<Stage*>(stages[threadIdx.x / 32]));
#endif
    int loaded = -1;
    const int parts_apart = parts * COLUMNS;
#pragma unroll 1
    for (int start = first + int(blockIdx.x % parts) * COLUMNS; start < last; start += parts_apart) {
        const int column = start + lane_id() % LANES * PACK, left = last - column;
        Sums sums;
        add_slice(sums, chunk, loaded, slices, header, XPanel{x + column * x_column, x_column, x_row, left});
        wait_for_earlier_kernels();  // a slice of empty rows has not waited yet
        sums.add_neighbours(shift);
        if (s >= segments) {
            store_rows(sums, shift, row, YPanel{y + column * y_column, y_column, y_row, left, alpha, beta});
        } else if (lane_id() < LANES) {
            Sum* const to = partials + (long long)header.y * columns + column;
#pragma unroll
            for (int v = 0; v < OWN; ++v) {
                const int beyond = v / PACK * LANES * PACK + v % PACK;
                if (DASP_WHOLE || beyond < left) to[beyond] = sums.of[0][v];
            }
        }
    }
}

// One warp adds the partials of one long row and one column, in the order of partial.cuh.
extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_segments_columns(const Index* __restrict__ long_rows, const Index* __restrict__ segment_offsets,
                      long long count, Y* y, const Sum* partials, long long y_column, int y_row, int columns,
                      Sum alpha, Sum beta)
{
    const long long warp = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32;
    const long long r = warp / columns;
    const int column = int(warp % columns);
    if (r >= count) return;
    const Index row = load_cached(long_rows + r);
    const Index first = load_cached(segment_offsets + r), last = load_cached(segment_offsets + r + 1) - 1;
    wait_for_earlier_kernels();
    Sum total = Sum(0);
    for (long long s = first + lane_id(); s < last; s += 32) total += load_result(partials + s * columns + column);
    total = warp_sum(total) + load_result(partials + (long long)last * columns + column);
    if (lane_id() == 0) {
        const Result result{y + (long long)row * y_row + column * y_column, alpha, beta};
        result.store(0, total);
    }
}
