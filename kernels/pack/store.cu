// Stores slices whose rows are in place: first values in their slots, and the bases and widths of deltas; then columns
// as deltas from their bases.
//
// Arrays of slices: see cut.cu and segments.cu. indices (nnz): columns, rising inside a row.
// data (nnz): values as bits. order (nnz) or null: the place in data of entry i. table: see Coder.
// stored (32 steps): codes by slots, 0 in a pad; not read or written if all values are equal.
// bases (steps): the least column of every step.
// deltas: of each slice in its width, 0, 8, 16 or 32 bits, every bit set in a pad.
// sizes (thread blocks + 2), 0 before: the 32-byte blocks of deltas before the slices of each thread block,
//     then those of all slices; the last one counts the thread blocks that are done.
//
// dasp_store_slices: headers get the width of the deltas. Its last block adds up the sizes.
// dasp_fill_deltas: headers get the first block of each slice's deltas.
// Launch of both: a warp for each slice, whose lane l takes the l-th slot of each step; blocks of 256 threads.
// Deterministic: each code, base, delta and header is written once, from its entries alone; sizes are sums of integers.

#include "pack/values.cuh"

// The rows and segments of which slices are made: see cut.cu and segments.cu.
struct Rows {
    const Start* indptr;
    const Index* rows;  // null where position p is row p
    long long positions;
    const long long *segment_starts, *segment_lengths;
    long long segments;
};

struct Slice {
    int steps, full, shift, width;
    unsigned first_step;
    long long start, length;  // of the run of this lane; no entries past the last row
    int lane;                 // of this lane in its run

    __device__ __forceinline__ Slice(const uint4& header, const Rows& from, long long s)
        : steps(steps_of(header)), full(full_of(header)), shift(shift_of(header)), width(width_of(header)),
          first_step(header.x), start(0), length(0), lane(lane_id() & ((1 << shift) - 1))
    {
        const long long position = (long long)header.y + (lane_id() >> shift);
        if (s < from.segments) {
            start = from.segment_starts[s];
            length = from.segment_lengths[s];
        } else if (position < from.positions) {
            const long long row = from.rows ? (long long)from.rows[position] : position;
            start = from.indptr[row];
            length = length_of(from.indptr, row);
        }
    }

    // Whether this lane's slot of a step holds an entry, and which.
    __device__ __forceinline__ bool has(int step) const { return place(step) < length; }
    __device__ __forceinline__ long long entry(int step) const { return start + place(step); }

    __device__ __forceinline__ long long place(int step) const { return ((long long)step << shift) + lane; }
};

// Threads of a block, and its slices.
constexpr int SLICE_THREADS = 256, BLOCK_SLICES = SLICE_THREADS / WARP;

// Blocks of 32 bytes of deltas of a slice, by its shape.
__device__ __forceinline__ unsigned blocks_of(unsigned shape) { return steps_of(shape) * (1u << width_of(shape) >> 1); }

// ---- values, bases and widths -----------------------------------------------------------------------

constexpr int AT_ONCE = 4, BLOCKS = sizeof(Bits) == 16 ? 2 : 4;  // of a multiprocessor: registers
constexpr unsigned PAD_8 = 0xff, PAD_16 = 0xffff;
constexpr bool STORES = DASP_CODING != CODING_EQUAL;

// The columns of a slice's steps so far.
struct Columns {
    unsigned span = 0;  // the widest range of columns in a step
    bool lanes;  // whether every delta so far is the number of its lane

    // Takes AT_ONCE steps from `step` on, all loads first. Lane l gets the base of step l of 32.
    __device__ __forceinline__ void take(const Slice& slice, const Column* indices, int step, Index& base)
    {
        unsigned column[AT_ONCE];
        bool has[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            has[k] = step + k < slice.steps && slice.has(step + k);
            column[k] = has[k] ? unsigned(indices[slice.entry(step + k)]) : 0;
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            if (step + k >= slice.steps) break;
            const unsigned least = warp_min(has[k] ? column[k] : ~0u), most = warp_max(column[k]);
            span = max(span, most - least);
            lanes = lanes && column[k] - least == unsigned(lane_id());
            if ((step + k) % WARP == lane_id()) base = Index(least);
        }
    }
};

// The codes of AT_ONCE steps of a slice.
struct Codes {
    Code code[AT_ONCE];

    __device__ __forceinline__ Codes(const Slice& slice, const Values& values, const Coder& coder, int step)
    {
        Bits bits[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k)
            if (has(slice, step + k)) bits[k] = values.at(slice.entry(step + k));
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) code[k] = has(slice, step + k) ? coder.code_of(bits[k]) : Code();
    }

    static __device__ __forceinline__ bool has(const Slice& slice, int step)
    {
        return step < slice.steps && slice.has(step);
    }

    __device__ __forceinline__ void store(const Slice& slice, int step, Code* stored) const
    {
        stored += WARP * ((long long)slice.first_step + step) + lane_id();
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k)
            if (step + k < slice.steps) stored[WARP * k] = code[k];
    }
};

// Sets the codes and the bases of a slice and returns the width of its deltas; a warp calls it.
__device__ __forceinline__ int store(const Slice& slice, const Values& values, const Coder& coder, Code* stored,
                                     const Column* indices, Index* bases)
{
    Columns columns{0, slice.shift == 0 && slice.full == slice.steps};
    for (int first = 0; first < slice.steps; first += WARP) {
        Index base = 0;
        for (int step = first; step < min(first + WARP, slice.steps); step += AT_ONCE) {
            if (STORES) {
                const Codes codes(slice, values, coder, step);
                columns.take(slice, indices, step, base);
                codes.store(slice, step, stored);
            } else {
                columns.take(slice, indices, step, base);
            }
        }
        if (first + lane_id() < slice.steps) bases[slice.first_step + (long long)first + lane_id()] = base;
    }
    if (__all_sync(ALL_LANES, columns.lanes)) return 0;
    return columns.span < PAD_8 ? 1 : columns.span < PAD_16 ? 2 : 3;
}

extern "C" __global__ void __launch_bounds__(SLICE_THREADS, BLOCKS)
dasp_store_slices(const Start* __restrict__ indptr, const Column* __restrict__ indices, const Bits* __restrict__ data,
                  const Place* __restrict__ order, const Bits* __restrict__ table, int distinct,
                  const Index* __restrict__ rows, long long positions,
                  const long long* __restrict__ segment_starts, const long long* __restrict__ segment_lengths,
                  long long segments, long long slices, uint4* headers, Index* bases, Code* stored, Count* sizes)
{
    __shared__ unsigned blocks[BLOCK_SLICES];
    __shared__ Count sums[SLICE_THREADS / WARP + 1];
    __shared__ Coder coder;
    coder.make(table, distinct);
    if (threadIdx.x < BLOCK_SLICES) blocks[threadIdx.x] = 0;
    __syncthreads();
    const long long s = (blockIdx.x * (long long)SLICE_THREADS + threadIdx.x) / WARP;
    if (s < slices) {
        const uint4 header = headers[s];
        const Slice slice(header, Rows{indptr, rows, positions, segment_starts, segment_lengths, segments}, s);
        const int width = store(slice, Values{data, order}, coder, stored, indices, bases);
        const unsigned shape = header.w | unsigned(width) << WIDTH_SHIFT;
        __syncwarp();  // every lane has read the header
        if (lane_id() == 0) {
            headers[s].w = shape;
            blocks[warp_id()] = blocks_of(shape);
        }
    }
    __syncthreads();
    if (warp_id() == 0) {
        const unsigned all = __reduce_add_sync(ALL_LANES, lane_id() < BLOCK_SLICES ? blocks[lane_id()] : 0u);
        if (lane_id() == 0) sizes[blockIdx.x] = all;
    }
    if (is_last_block(sizes + gridDim.x + 1, gridDim.x)) block_scan(sizes, gridDim.x, sums);
}

// ---- deltas -----------------------------------------------------------------------------------------

// The first block of deltas of slice s; every lane of a warp calls this.
__device__ __forceinline__ unsigned first_block(const uint4* headers, const Count* sizes, long long s)
{
    const long long other = blockIdx.x * (long long)BLOCK_SLICES + lane_id();
    const unsigned before = other < s ? blocks_of(headers[other].w) : 0u;
    return unsigned(sizes[blockIdx.x]) + __reduce_add_sync(ALL_LANES, before);
}

template <class Delta>
__device__ __forceinline__ void fill_deltas(const Slice& slice, const Column* indices, const Index* bases,
                                            Delta* deltas)
{
    constexpr int at_once = 8;  // columns of a row in a sector of memory
    for (int first = 0; first < slice.steps; first += at_once) {
        Delta delta[at_once];
#pragma unroll
        for (int k = 0; k < at_once; ++k) {
            const int step = first + k;
            delta[k] = Delta(-1);
            if (step < slice.steps && slice.has(step))
                delta[k] = Delta(Index(indices[slice.entry(step)]) - bases[slice.first_step + (long long)step]);
        }
#pragma unroll
        for (int k = 0; k < at_once; ++k)
            if (first + k < slice.steps) deltas[WARP * (first + k) + lane_id()] = delta[k];
    }
}

extern "C" __global__ void __launch_bounds__(SLICE_THREADS)
dasp_fill_deltas(const Start* __restrict__ indptr, const Column* __restrict__ indices,
                 const Index* __restrict__ rows, long long positions, const long long* __restrict__ segment_starts,
                 const long long* __restrict__ segment_lengths, long long segments, long long slices, uint4* headers,
                 const Index* __restrict__ bases, const Count* __restrict__ sizes, unsigned char* deltas)
{
    const long long s = (blockIdx.x * (long long)SLICE_THREADS + threadIdx.x) / WARP;
    if (s >= slices) return;
    const unsigned block = first_block(headers, sizes, s);
    const Slice slice(headers[s], Rows{indptr, rows, positions, segment_starts, segment_lengths, segments}, s);
    __syncwarp();  // every lane has read the header
    if (lane_id() == 0) headers[s].z = block;
    unsigned char* first = deltas + 32ll * block;
    switch (slice.width) {
    case 1: fill_deltas(slice, indices, bases, first); break;
    case 2: fill_deltas(slice, indices, bases, reinterpret_cast<unsigned short*>(first)); break;
    case 3: fill_deltas(slice, indices, bases, reinterpret_cast<unsigned*>(first));
    }
}
