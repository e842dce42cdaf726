// Y = alpha A X + beta Y for a matrix in slices and an X of several columns: one warp multiplies one slice by a
// column block of COLUMNS columns, and then by its next column block.
//
// Lane l loads slot l of a step, as in slices.cu, where the arrays of a plan are described. Then LANES lanes,
// a group, share the slots that they loaded: slot by slot, each lane reads PACK neighbouring columns of the
// slot's row of X at a time, so that a group reads LANES * PACK neighbouring columns at once. A lane has a
// sum for each of the group's slots and each of its own COLUMNS / LANES columns. In every group, lane q's
// column i PACK + w is column (i LANES + q) PACK + w of the column block. With LANES 1 no lane needs the slots
// of another, and neighbouring lanes read neighbouring rows.
//
// Launch: one dimension, blocks of DASP_THREADS threads; `parts` consecutive blocks multiply the same slices,
//     column block t in part t % parts. The arrays of the plan are read before the kernels that come earlier
//     in the stream have ended.
// x: element (i, j) of X (n, columns) lies i x_row bytes and j x_column elements after x. y: element (i, j)
//     of Y (m, columns) lies i y_row + j y_column elements after y. x_column is 1 if LANES or PACK is not 1.
//     Each run of PACK columns of X is aligned to its size, and so is each run of Y_PACK columns of Y.
// zeros: a row of zeros as long as a column block, aligned to 16 bytes, that lanes read for a pad.
// first, last: the columns of this launch, first <= j < last; with WHOLE a multiple of COLUMNS of them.
// partials (segments, columns): the partial sum of each segment, row by row, and each column;
//     dasp_segments_columns adds them.
//
// Y is written once. Equal inputs give equal bits, and the bits of a column do not depend on COLUMNS, LANES,
// PACK, the strides or the other columns: a slot is summed step by step, then neighbouring slots of a row
// pairwise.

#include "spmv/slices.cuh"

// Columns of X lie beside each other if lanes share slots, or if a lane loads several columns at once.
#define DASP_NEAR (DASP_LANES * DASP_PACK > 1)
// A lane without a column reads the columns of its group's first lane, if lanes have one load of a row:
// whether to load then depends on the row alone.
#define DASP_FILLED (DASP_WHOLE || DASP_COLUMNS == DASP_LANES * DASP_PACK)
#include "spmv/column_blocks.cuh"

#ifndef DASP_STEPS
#error "define DASP_STEPS: steps that are loaded before the first is multiplied"
#endif
#ifndef DASP_LOADS
#error "define DASP_LOADS: loads of X that a lane has in flight, a power of two"
#endif

#ifndef DASP_SHARE
#error "define DASP_SHARE: warps of a block that share a slice, a power of two, at most DASP_LANES; 1: one slice each"
#endif

constexpr int STEPS = DASP_STEPS;
constexpr int SHARE = DASP_SHARE;
constexpr int SLOTS = LANES / SHARE;  // of a group, in one warp
constexpr int SLOTS_OF_WARP = 32 / SHARE;
constexpr int EACH = STEPS / SHARE;  // slots of a chunk that a lane loads

static_assert(SLOTS * SHARE == LANES && EACH * SHARE == STEPS, "warps share steps and slots evenly");
static_assert(SHARE == 1 || DASP_THREADS == 32 * SHARE, "a shared slice has a block of its own");

// The number of this warp among those that share a slice.
__device__ __forceinline__ int share() { return SHARE == 1 ? 0 : threadIdx.x / 32; }

// AT_ONCE: steps of a slot whose rows of X, all columns of each, are loaded at once. TOGETHER: slots that are
// loaded at once; several if steps are few and a lane has one load of a row. With more loads of a row,
// several slots would take too many registers.
constexpr int AT_ONCE = power_of_two(DASP_LOADS / PACKS, STEPS);
constexpr int TOGETHER = PACKS > 1 || STEPS % AT_ONCE ? 1 : power_of_two(DASP_LOADS / STEPS, SLOTS);

// The slots that a lane loads of a chunk of STEPS steps; those of steps that do not exist are pads.
struct Slots {
    Index column[EACH];
    Factor a[EACH];

    // The step, counted in the chunk, of slot i of this lane.
    static __device__ __forceinline__ int step_of(int i)
    {
        return SHARE == 1 ? i : i * SHARE + lane_id() / SLOTS_OF_WARP;
    }

    // The number, counted in a step, of each slot of this lane.
    static __device__ __forceinline__ int number()
    {
        return SHARE == 1 ? lane_id() : share() * SLOTS_OF_WARP + lane_id() % SLOTS_OF_WARP;
    }

    template <class Delta>
    __device__ __forceinline__ void load(const Slices& slices, long long step, int steps, const Delta* deltas)
    {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int k = step_of(i);
            column[i] = k < steps ? load_column(slices.bases + step + k, deltas + 32 * k, number()) : PAD;
            a[i] = k < steps ? load_value(slices, 32 * (step + k) + number()) : Factor(0);
        }
        if (CODED) {
#pragma unroll
            for (int i = 0; i < EACH; ++i)
                if (column[i] < 0) a[i] = Factor(0);
        }
    }

    // Loads the slots of a slice from its step `first` on.
    __device__ __forceinline__ void load(const Slices& slices, const uint4& header, int first)
    {
        const int left = steps_of(header) - first, width = width_of(header);
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

// STEPS numbers of each of a warp's slots, where other lanes read them in few words. A gap follows the slots
// of each group, so that groups read from different banks.
template <class T> struct Shelf {
    static constexpr int BYTES = STEPS * sizeof(T);
    static constexpr int WIDTH = BYTES > 8 ? 16 : BYTES > 4 ? 8 : 4;
    static constexpr int PARTS = (BYTES + WIDTH - 1) / WIDTH;
    using Part = typename Word<WIDTH, typename Parts<T>::Real>::Type;
    Part parts[PARTS][SLOTS_OF_WARP + 32 / LANES];

    __device__ __forceinline__ void put(const T (&numbers)[EACH])
    {
        const int slot = lane_id() % SLOTS_OF_WARP, place = slot + slot / SLOTS;
#if DASP_SHARE == 1
        Part held[PARTS];
        memcpy(held, numbers, BYTES);
#pragma unroll
        for (int i = 0; i < PARTS; ++i) parts[i][place] = held[i];
#else
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int k = Slots::step_of(i), of_part = WIDTH / sizeof(T);
            reinterpret_cast<T*>(&parts[k / of_part][place])[k % of_part] = numbers[i];
        }
#endif
    }

    __device__ __forceinline__ void get(int slot, T (&numbers)[STEPS]) const
    {
        Part held[PARTS];
#pragma unroll
        for (int i = 0; i < PARTS; ++i) held[i] = parts[i][slot + slot / SLOTS];
        memcpy(numbers, held, BYTES);
    }
};

// The slots of all lanes of a warp, in shared memory, where other lanes read them if lanes share slots.
struct Stage {
    Shelf<Index> column;
    Shelf<Factor> a;
};

// The slots of a chunk of STEPS steps that this lane multiplies.
struct Chunk {
#if DASP_LANES == 1
    Slots slots;

    __device__ __forceinline__ explicit Chunk(Stage*) {}
    __device__ __forceinline__ void columns(int, Index (&column)[STEPS]) const
    {
        memcpy(column, slots.column, sizeof column);
    }
    __device__ __forceinline__ void values(int, Factor (&a)[STEPS]) const { memcpy(a, slots.a, sizeof a); }
#else
    Stage* const stage;

    __device__ __forceinline__ explicit Chunk(Stage* stage) : stage(stage) {}
    __device__ __forceinline__ void columns(int slot, Index (&i)[STEPS]) const { stage->column.get(slot, i); }
    __device__ __forceinline__ void values(int slot, Factor (&a)[STEPS]) const { stage->a.get(slot, a); }
#endif

    __device__ __forceinline__ void load(const Slices& slices, const uint4& header, int first)
    {
#if DASP_LANES == 1
        slots.load(slices, header, first);
        __syncwarp();  // else the compiler issues the loads of values after the columns have arrived
#else
        Slots slots;
        slots.load(slices, header, first);
        __syncwarp();  // else another lane still reads the slots that are overwritten
        stage->column.put(slots.column);
        stage->a.put(slots.a);
        __syncwarp();
#endif
        wait_for_earlier_kernels();
    }
};

// The sums of a group's slots in this lane's columns.
struct Sums {
    Sum of[SLOTS][OWN];

    __device__ __forceinline__ Sums()
    {
#pragma unroll
        for (int j = 0; j < SLOTS; ++j)
#pragma unroll
            for (int v = 0; v < OWN; ++v) of[j][v] = Sum(0);
    }

    __device__ __forceinline__ void add(int j, int p, Factor a, const Pack<X, PACK>& b)
    {
#pragma unroll
        for (int w = 0; w < PACK; ++w) {
            Sum& sum = of[j][p * PACK + w];
            sum = multiply_add(a, convert<Operand>(b[w]), sum);
        }
    }

    // Adds a chunk slot by slot, AT_ONCE loads before their products. FULL: it has no pads.
    template <bool FULL> __device__ __forceinline__ void add(const Chunk& chunk, const XBlock& block)
    {
        const int group = lane_id() / LANES * SLOTS;
        Pack<X, PACK> b[TOGETHER][STEPS][PACKS];
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot += TOGETHER)
#pragma unroll
            for (int first = 0; first < STEPS; first += AT_ONCE) {
#pragma unroll
                for (int j = 0; j < TOGETHER; ++j) {
                    Index column[STEPS];
                    chunk.columns(group + slot + j, column);
#pragma unroll
                    for (int k = first; k < first + AT_ONCE && k < STEPS; ++k) block.load<FULL>(column[k], b[j][k]);
                }
                if (LANES > 1) __syncwarp();  // else the compiler moves products before loads, which then wait
#pragma unroll
                for (int j = 0; j < TOGETHER; ++j) {
                    Factor a[STEPS];
                    chunk.values(group + slot + j, a);
#pragma unroll
                    for (int k = first; k < first + AT_ONCE && k < STEPS; ++k)
#pragma unroll
                        for (int p = 0; p < PACKS; ++p) add(slot + j, p, a[k], b[j][k][p]);
                }
                if (LANES > 1) __syncwarp();  // else it moves the next loads before products: registers
            }
    }

    // Adds neighbouring slots until each row of 2^shift slots has one sum: of[r] is that of the group's row
    // r; the sum of a row of several groups is in the first of them. `room`: memory in which the warps that
    // share a slice exchange sums.
    __device__ __forceinline__ void add_neighbours(int shift, Sum (*room)[LANES][OWN])
    {
        int level = 0;
#pragma unroll
        for (int held = SLOTS / 2; held > 0; held /= 2, ++level)
            if (level < shift)
#pragma unroll
                for (int r = 0; r < held; ++r)
#pragma unroll
                    for (int v = 0; v < OWN; ++v) of[r][v] = of[2 * r][v] + of[2 * r + 1][v];
        const int lanes = SHARE << shift;
        for (int distance = LANES; distance < lanes && distance < 32; distance *= 2)
#pragma unroll
            for (int v = 0; v < OWN; ++v) of[0][v] += from_other_lane(of[0][v], distance);
        if (32 < lanes && SHARE > 1) add_shares(lanes / 32, room);
    }

    // Adds the sums of each `warps` neighbouring warps; the first of them then has the result.
    __device__ __forceinline__ void add_shares(int warps, Sum (*room)[LANES][OWN])
    {
        if (lane_id() < LANES)
#pragma unroll
            for (int v = 0; v < OWN; ++v) room[share()][lane_id()][v] = of[0][v];
        __syncthreads();
        if (share() % warps == 0) {
#pragma unroll
            for (int v = 0; v < OWN; ++v) {
                Sum sums[SHARE];
#pragma unroll
                for (int w = 0; w < SHARE; ++w)
                    if (w < warps) sums[w] = room[share() + w][lane_id() % LANES][v];
#pragma unroll
                for (int distance = 1; distance < SHARE; distance *= 2)
#pragma unroll
                    for (int w = 0; w + distance < SHARE; w += 2 * distance)
                        if (w + distance < warps) sums[w] += sums[w + distance];
                of[0][v] = sums[0];
            }
        }
        __syncthreads();  // else the sums of the next column block overwrite those that are still read
    }
};

// Adds a slice to the sums. `loaded`: the first step of the chunk that was loaded last, -1 if there was none.
__device__ __forceinline__ void add_slice(Sums& sums, Chunk& chunk, int& loaded, const Slices& slices,
                                          const uint4& header, const XBlock& block)
{
    const int steps = steps_of(header), full = full_of(header);
#pragma unroll 1
    for (int first = 0; first < steps; first += STEPS) {
        asm volatile("" : "+r"(loaded));  // else the compiler makes two loops of one
        if (loaded != first) chunk.load(slices, header, first);
        loaded = first;
        if (first + STEPS <= full)
            sums.add<true>(chunk, block);
        else
            sums.add<false>(chunk, block);
    }
}

// Writes the rows of a slice. row, in lane l: the caller's row that is the slice's row l, PAD if there is
// none.
__device__ __forceinline__ void store_rows(const Sums& sums, int shift, Index row, const YBlock& block)
{
    const int group = share() * SLOTS_OF_WARP + lane_id() / LANES * SLOTS;
    const int held = SLOTS >> shift > 0 ? SLOTS >> shift : 1;
    const bool first = (group & ((1 << shift) - 1)) == 0;
#pragma unroll
    for (int r = 0; r < SLOTS; ++r)
        if (r < held) {
            const Index i = __shfl_sync(ALL_LANES, row, (group >> shift) + r);
            if (first && i >= 0) block.store(i, sums.of[r]);
        }
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS, 65536 / DASP_REGISTERS / DASP_THREADS)
dasp_slices_columns(const uint4* __restrict__ headers, const Index* __restrict__ bases,
                    const unsigned char* __restrict__ deltas, const Code* __restrict__ values,
                    const Value* __restrict__ table, const Index* __restrict__ rows, const X* zeros,
                    long long count, long long segments, long long positions, int identity, int parts, const X* x,
                    Y* y, Sum* partials, long long x_column, long long y_column, int x_row, int y_row, int first,
                    int last, int columns, Sum alpha, Sum beta)
{
    const long long s = (blockIdx.x / parts * (long long)blockDim.x + threadIdx.x) / (32 * SHARE);
    if (s >= count) return;
    const uint4 header = load_cached(headers + s);
    const int shift = shift_of(header);
    Index row = PAD;
    if (s >= segments && lane_id() < 32 >> shift) {
        const long long position = (long long)header.y + lane_id();
        if (position < positions) row = identity ? Index(position) : load_stream(rows + position);
    }
    const Slices slices{bases, deltas, values, table};

#if DASP_LANES == 1
    Chunk chunk(nullptr);
#else
    __shared__ uint4 stages[DASP_THREADS / 32][(sizeof(Stage) + 15) / 16];  // numbers may have constructors
    Chunk chunk(reinterpret_cast<Stage*>(stages[threadIdx.x / 32]));
#endif
#if DASP_SHARE == 1
    Sum (*const room)[LANES][OWN] = nullptr;
#else
    __shared__ uint4 exchanged[(SHARE * COLUMNS * sizeof(Sum) + 15) / 16];
    Sum (*const room)[LANES][OWN] = reinterpret_cast<Sum (*)[LANES][OWN]>(exchanged);
#endif
    int loaded = -1;
    const int parts_apart = parts * COLUMNS;
#pragma unroll 1
    for (int start = first + int(blockIdx.x % parts) * COLUMNS; start < last; start += parts_apart) {
        const int column = start + lane_id() % LANES * PACK, left = last - column;
        const int shown = DASP_WHOLE || !DASP_FILLED || left > 0 ? column : start;
        Sums sums;
        add_slice(sums, chunk, loaded, slices, header, XBlock{x + shown * x_column, zeros, x_column, x_row, left});
        wait_for_earlier_kernels();  // a slice of empty rows has not waited yet
        sums.add_neighbours(shift, room);
        if (s >= segments) {
            store_rows(sums, shift, row, YBlock{y + column * y_column, y_column, y_row, left, alpha, beta});
        } else if (threadIdx.x % (32 * SHARE) < LANES) {
            Sum* const to = partials + (long long)header.y * columns + column;
#pragma unroll
            for (int v = 0; v < OWN; ++v) {
                const int beyond = v / PACK * LANES * PACK + v % PACK;
                if (DASP_WHOLE || beyond < left) to[beyond] = sums.of[0][v];
            }
        }
    }
}

// Launch: one dimension, blocks of DASP_THREADS threads. One warp adds the partial sums of one long row and
// one column, in the order of partial.cuh. count: long rows.
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
    const long long first = load_cached(segment_offsets + r), last = load_cached(segment_offsets + r + 1) - 1;
    wait_for_earlier_kernels();
    Sum total = Sum(0);
    for (long long s = first + lane_id(); s < last; s += 32) total += load_result(partials + s * columns + column);
    total = warp_sum(total) + load_result(partials + last * columns + column);
    if (lane_id() == 0) {
        const Result result{y + (long long)row * y_row + column * y_column, alpha, beta};
        result.store(0, total);
    }
}
