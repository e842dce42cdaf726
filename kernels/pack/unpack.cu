// The way back from slices: where each row's entries begin, and the column and the code of each of them; and
// pads as they must be.
//
// Arrays of a pattern: see packed.cuh. starts (m + 1): 0 before; the entries of each row, and then the first of each.
// sizes (tiles + 1): 0 before; entries before each tile of 2048 rows, and of all, as soon as `come`, 0 before, is full.
// codes (32 steps) and to_codes (nnz), or null where there are none. to_indices (nnz).
//
// dasp_count_entries, dasp_fill_entries, dasp_flip_bits, dasp_clear_pads: a warp for each slice; blocks of 256 threads.
// dasp_flip_bits: bits of every 8 bytes, or of a code that has fewer; of codes, to codes that are 0 in pads.
// dasp_start_rows: a block of 256 threads for each tile.

#include "codes.cuh"
#include "packed.cuh"

constexpr int THREADS = 256, AT_ONCE = 4, EACH = 8, TILE_ROWS = THREADS * EACH;

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_count_entries(const Index* __restrict__ rows, long long positions, const Index* __restrict__ long_rows,
                   const Index* __restrict__ segment_rows, long long segments, long long slices,
                   const uint4* __restrict__ headers, const unsigned char* __restrict__ deltas, Count* starts,
                   Count* pieces, long long tiles, Count* come, Count* sizes)
{
    __shared__ Count sums[THREADS / WARP + 1];
    const long long s = warp_of_grid<THREADS>();
    if (s < slices) {
        const Packed slice(headers[s], deltas);
        unsigned count = unsigned(slice.full) << slice.shift;
        for (int step = slice.full; step < slice.steps; ++step) {
            unsigned delta;
            count += __popc(__ballot_sync(ALL_LANES, slice.delta(step, delta)) & slice.lanes());
        }
        const bool first = (lane_id() & ((1 << slice.shift) - 1)) == 0;
        if (s < segments && first) {
            const long long row = long_rows[segment_rows[slice.first]];
            pieces[slice.first] = count;
            atomicAdd(starts + row, Count(count));
            atomicAdd(sizes + row / TILE_ROWS, Count(count));
        } else if (s >= segments) {
            const bool mine = first && slice.position() < positions;
            const long long row = !mine ? -1 : rows ? (long long)rows[slice.position()] : slice.position();
            if (mine) starts[row] = count;
            // Rows that follow each other lie in one tile, most of them.
            const long long tile = __shfl_sync(ALL_LANES, row, 0) / TILE_ROWS;
            const bool here = mine && row / TILE_ROWS == tile;
            const unsigned together = __reduce_add_sync(ALL_LANES, here ? count : 0u);
            if (lane_id() == 0) atomicAdd(sizes + tile, Count(together));
            if (mine && !here) atomicAdd(sizes + row / TILE_ROWS, Count(count));
        }
    }
    if (is_last_block(come, gridDim.x)) block_scan(sizes, tiles, sums);
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_start_rows(long long m, const Count* __restrict__ sizes, Count* starts)
{
    __shared__ Count sums[THREADS / WARP + 1];
    const long long first = blockIdx.x * (long long)TILE_ROWS + threadIdx.x * EACH;
    const int rows = int(min(m - first, (long long)EACH));  // none, or fewer than none, behind the last
    Count mine[EACH], sum = 0, total;
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        mine[k] = k < rows ? starts[first + k] : 0;
        sum += mine[k];
    }
    Count place = sizes[blockIdx.x] + block_sum_before(sum, sums, total);
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        if (k < rows) starts[first + k] = place;
        place += mine[k];
    }
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) starts[m] = sizes[gridDim.x];
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_fill_entries(const Index* __restrict__ rows, long long positions, const Index* __restrict__ long_rows,
                  const Index* __restrict__ segment_offsets, const Index* __restrict__ segment_rows,
                  long long segments, long long slices, const uint4* __restrict__ headers,
                  const Index* __restrict__ bases, const unsigned char* __restrict__ deltas,
                  const Code* __restrict__ codes, const Count* __restrict__ starts, const Count* __restrict__ pieces,
                  Index* to_indices, Code* to_codes)
{
    const long long s = warp_of_grid<THREADS>();
    if (s >= slices) return;
    const Packed slice(headers[s], deltas);
    Count place = first_entry(slice, s, rows, positions, long_rows, segment_offsets, segment_rows, segments, starts,
                              pieces);
    for (int first = 0; first < slice.steps; first += AT_ONCE) {
        unsigned delta[AT_ONCE];
        bool has[AT_ONCE];
        Index base[AT_ONCE];
        Code code[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const int step = first + k;
            has[k] = step < slice.steps && slice.delta(step, delta[k]);
            if (has[k]) base[k] = bases[(long long)slice.first_step + step];
            if (has[k] && to_codes) code[k] = codes[slice.slot(step)];
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const Count mine = slice.next_entry(has[k], place);
            if (!has[k]) continue;
            to_indices[mine] = Index(base[k] + delta[k]);
            if (to_codes) to_codes[mine] = code[k];
        }
    }
}

// A code with some bits flipped in each word of it.
template <class T> __device__ __forceinline__ T flipped(T code, unsigned long long bits) { return T(code ^ T(bits)); }
__device__ __forceinline__ ulonglong2 flipped(ulonglong2 code, unsigned long long bits)
{
    return {code.x ^ bits, code.y ^ bits};
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_flip_bits(long long slices, const uint4* __restrict__ headers, const unsigned char* __restrict__ deltas,
               unsigned long long bits, const Code* __restrict__ codes, Code* to_codes)
{
    const long long s = warp_of_grid<THREADS>();
    if (s >= slices) return;
    const Packed slice(headers[s], deltas);
    for (int first = 0; first < slice.steps; first += AT_ONCE) {
        const unsigned held = slice.held<AT_ONCE>(first);
        Code code[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) code[k] = held >> k & 1 ? codes[slice.slot(first + k)] : Code();
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k)
            if (first + k < slice.steps)
                to_codes[slice.slot(first + k)] = held >> k & 1 ? flipped(code[k], bits) : Code();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_clear_pads(long long slices, const uint4* __restrict__ headers, const unsigned char* __restrict__ deltas,
                Code* codes)
{
    const long long s = warp_of_grid<THREADS>();
    if (s >= slices) return;
    const Packed slice(headers[s], deltas);
    for (int step = slice.full; step < slice.steps; ++step)
        if (!slice.has(step)) codes[slice.slot(step)] = Code();
}
