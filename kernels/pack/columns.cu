// Stores the columns of slices as deltas from the least one of every step, in the width of each slice.
//
// Arrays of slices: see cut.cu, segments.cu and slices.cuh; bases and widths: see store.cu.
// sizes (thread blocks): the 32-byte blocks of deltas before the slices of each thread block: see store.cu.
// indices (nnz): columns, rising inside a row. deltas: of each slice in its width, 0, 8, 16 or 32 bits, every bit set in
// a pad. headers get the first block of each slice's deltas.
// Launch: a warp for each slice, whose lane l takes the l-th slot of each step; blocks of 256 threads.
// Deterministic: each delta and each header is written once, and depends on integers alone.

#include "pack/slices.cuh"

constexpr int AT_ONCE = 8;  // columns of a row in a sector of memory

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
