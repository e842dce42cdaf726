// The least column of every step, the width that each slice's deltas need, and where its deltas begin.
//
// Arrays of slices: see cut.cu, segments.cu and slices.cuh. indices (nnz): columns, rising inside a row.
// sizes (tiles and one more): blocks of deltas of 1024 slices; 0 before.
//
// dasp_measure_columns: a warp for each slice; blocks of 256 threads. bases (steps): least columns. headers: gets the
//     width, and in its third number the blocks of the slice. sizes: added to.
// dasp_place_deltas: a block of 1024 threads for each tile of slices, after a scan of sizes. headers: the third
//     number becomes the first block.

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
