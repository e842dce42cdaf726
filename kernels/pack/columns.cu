// The columns of slices: the least one of every step, and the others as deltas from it, in as few bits as hold them.
//
// Arrays of slices: see cut.cu, segments.cu and slices.cuh. indices (nnz): columns, rising inside a row.
// bases (steps): least columns. deltas: of each slice in its width, 0, 8, 16 or 32 bits, every bit set in a pad.
// sizes (tiles and one more): blocks of deltas before each tile of 64 slices, and of all.
// Launch: a warp for each slice; blocks of 256 threads.
//
// dasp_measure_columns: headers get the width. sizes: 0 before, and in order as soon as `come`, 0 before, is full.
// dasp_fill_deltas: headers get their first block.

#include "slices.cuh"

constexpr int THREADS = 256, AT_ONCE = 4, TILE_SLICES = 64;
constexpr unsigned PAD_8 = 0xff, PAD_16 = 0xffff;
constexpr int WIDTH_SHIFT = 27;

// What is known of a slice after some steps.
struct Columns {
    unsigned span = 0;
    bool lanes;  // whether every delta so far is the number of its lane

    // Takes AT_ONCE steps from `step` on, all loads first; this lane keeps the base of the step of its number.
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

// Sets the bases of a slice and returns the width of its deltas; a warp calls it.
__device__ __forceinline__ int measure(const Slice& slice, const Column* indices, Index* bases)
{
    Columns columns{0, slice.shift == 0 && slice.full == slice.steps};
    for (int first = 0; first < slice.steps; first += WARP) {
        Index base = 0;
        for (int step = first; step < min(first + WARP, slice.steps); step += AT_ONCE)
            columns.take(slice, indices, step, base);
        if (first + lane_id() < slice.steps) bases[slice.first_step + (long long)first + lane_id()] = base;
    }
    if (__all_sync(ALL_LANES, columns.lanes)) return 0;
    return columns.span < PAD_8 ? 1 : columns.span < PAD_16 ? 2 : 3;
}

// Blocks of deltas of a slice, from the last number of its header.
__device__ __forceinline__ unsigned blocks_of(unsigned shape)
{
    return (shape & 0xfff) * (1u << (shape >> WIDTH_SHIFT & 3) >> 1);
}

// The first block of deltas of slice s; a warp calls it.
__device__ __forceinline__ unsigned first_block(const uint4* headers, const Count* sizes, long long s)
{
    const long long tile = s / TILE_SLICES;
    unsigned before = 0;
    for (long long other = tile * TILE_SLICES + lane_id(); other < s; other += WARP)
        before += blocks_of(headers[other].w);
    return unsigned(sizes[tile]) + __reduce_add_sync(ALL_LANES, before);
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_measure_columns(const Start* __restrict__ indptr, const Column* __restrict__ indices,
                     const Index* __restrict__ rows, long long positions,
                     const long long* __restrict__ segment_starts, const long long* __restrict__ segment_lengths,
                     long long segments, long long slices, uint4* headers, Index* bases, Count* come, Count* sizes)
{
    __shared__ Count sums[THREADS / WARP + 1];
    const long long s = (blockIdx.x * (long long)THREADS + threadIdx.x) / WARP;
    if (s < slices) {
        const uint4 header = headers[s];
        const Slice slice(header, Rows{indptr, rows, positions, segment_starts, segment_lengths, segments}, s);
        const unsigned shape = header.w | unsigned(measure(slice, indices, bases)) << WIDTH_SHIFT;
        __syncwarp();  // every lane has read the header
        if (lane_id() == 0) {
            headers[s].w = shape;
            if (blocks_of(shape)) atomicAdd(sizes + s / TILE_SLICES, Count(blocks_of(shape)));
        }
    }
    if (is_last_block(come, gridDim.x)) block_scan(sizes, ceil_div(slices, TILE_SLICES), sums);
}

template <class Delta>
__device__ __forceinline__ void fill_deltas(const Slice& slice, const Column* indices, const Index* bases,
                                            Delta* deltas)
{
    for (int first = 0; first < slice.steps; first += AT_ONCE) {
        Delta delta[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const int step = first + k;
            delta[k] = Delta(-1);
            if (step < slice.steps && slice.has(step))
                delta[k] = Delta(Index(indices[slice.entry(step)]) - bases[slice.first_step + (long long)step]);
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k)
            if (first + k < slice.steps) deltas[WARP * (first + k) + lane_id()] = delta[k];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_fill_deltas(const Start* __restrict__ indptr, const Column* __restrict__ indices,
                 const Index* __restrict__ rows, long long positions, const long long* __restrict__ segment_starts,
                 const long long* __restrict__ segment_lengths, long long segments, long long slices, uint4* headers,
                 const Index* __restrict__ bases, const Count* __restrict__ sizes, unsigned char* deltas)
{
    const long long s = (blockIdx.x * (long long)THREADS + threadIdx.x) / WARP;
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
