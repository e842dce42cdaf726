// The columns of slices: the least one of every step, and the others as deltas from it, in as few bits as hold them.
//
// Arrays of slices: see cut.cu, segments.cu and slices.cuh. indices (nnz): columns, rising inside a row.
// bases (steps): least columns. sizes (tiles and one more): blocks of deltas of 1024 slices; 0 before.
// deltas: of each slice in its width, 0, 8, 16 or 32 bits, every bit set in a pad.
//
// dasp_measure_columns: a warp for each slice; blocks of 256 threads. headers: gets the width, and in its third
//     number the blocks of deltas of the slice. sizes: added to.
// dasp_place_deltas: a block of 1024 threads for each tile of slices, after a scan of sizes. headers: the third
//     number becomes the first block.
// dasp_fill_deltas: as dasp_measure_columns.

#include "slices.cuh"

constexpr int THREADS = 256, AT_ONCE = 4, TILE_SLICES = 1024;
constexpr unsigned PAD_8 = 0xff, PAD_16 = 0xffff;

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

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_measure_columns(const Start* __restrict__ indptr, const Column* __restrict__ indices,
                     const Index* __restrict__ rows, long long positions,
                     const long long* __restrict__ segment_starts, const long long* __restrict__ segment_lengths,
                     long long segments, long long slices, uint4* headers, Index* bases, Count* sizes)
{
    const long long s = (blockIdx.x * (long long)THREADS + threadIdx.x) / WARP;
    if (s >= slices) return;
    const uint4 header = headers[s];
    const Slice slice(header, Rows{indptr, rows, positions, segment_starts, segment_lengths, segments}, s);
    Columns columns{0, slice.shift == 0 && slice.full == slice.steps};
    for (int first = 0; first < slice.steps; first += WARP) {
        Index base = 0;
        for (int step = first; step < min(first + WARP, slice.steps); step += AT_ONCE)
            columns.take(slice, indices, step, base);
        if (first + lane_id() < slice.steps) bases[slice.first_step + (long long)first + lane_id()] = base;
    }
    const bool none = __all_sync(ALL_LANES, columns.lanes);
    __syncwarp();  // every lane has read the header
    if (lane_id() > 0) return;
    const int width = none ? 0 : columns.span < PAD_8 ? 1 : columns.span < PAD_16 ? 2 : 3;
    const unsigned blocks = unsigned(slice.steps) * (1u << width >> 1);
    headers[s] = make_uint4(header.x, header.y, blocks, header.w | unsigned(width) << 27);
    if (blocks) atomicAdd(sizes + s / TILE_SLICES, Count(blocks));
}

extern "C" __global__ void __launch_bounds__(TILE_SLICES)
dasp_place_deltas(const Count* __restrict__ sizes, long long slices, uint4* headers)
{
    __shared__ Count sums[TILE_SLICES / WARP + 1];
    const long long s = blockIdx.x * (long long)TILE_SLICES + threadIdx.x;
    Count total;
    const Count before = block_sum_before(s < slices ? Count(headers[s].z) : Count(0), sums, total);
    if (s < slices) headers[s].z = unsigned(sizes[blockIdx.x] + before);
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
                 const long long* __restrict__ segment_lengths, long long segments, long long slices,
                 const uint4* __restrict__ headers, const Index* __restrict__ bases, unsigned char* deltas)
{
    const long long s = (blockIdx.x * (long long)THREADS + threadIdx.x) / WARP;
    if (s >= slices) return;
    const Slice slice(headers[s], Rows{indptr, rows, positions, segment_starts, segment_lengths, segments}, s);
    unsigned char* first = deltas + 32ll * slice.first_block;
    switch (slice.width) {
    case 1: fill_deltas(slice, indices, bases, first); break;
    case 2: fill_deltas(slice, indices, bases, reinterpret_cast<unsigned short*>(first)); break;
    case 3: fill_deltas(slice, indices, bases, reinterpret_cast<unsigned*>(first));
    }
}
