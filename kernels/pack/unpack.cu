// The way back from slices: where each row's entries begin, and the column, the code and the slot of each of them.
// The entries of a row follow each other in rising slots, whatever lies between these.
//
// rows (positions) or null where position p is row p; long_rows (r), segment_offsets (r + 1), segment_rows (segments),
//     headers (slices), bases (steps), deltas: of a pattern, see pattern.py.
// starts (m + 1): 0 before; the entries of each row, and then the first one of each row and the number of all.
// pieces (segments): entries of the segment of each number.
// sizes (tiles + 1): 0 before; entries before each tile of 2048 rows, and of all, as soon as `come`, 0 before, is full.
// codes (32 steps) or null where there are none. order (nnz) or null: which of the entries that came in is each one.
// to_indices, to_codes (nnz) and slots (nnz), or null for what is not asked; slots as the entries came in.
//
// dasp_count_entries, dasp_fill_entries: a warp for each slice; blocks of 256 threads.
// dasp_start_rows: a block of 256 threads for each tile.

#include "codes.cuh"
#include "pack.cuh"

#if !defined(DASP_PLACE) || !defined(DASP_ORDER)
#error "define DASP_PLACE, the type of slots, and DASP_ORDER, that of places of entries"
#endif

using Place = DASP_PLACE;
using Order = DASP_ORDER;

constexpr int THREADS = 256, AT_ONCE = 4, EACH = 8, TILE_ROWS = THREADS * EACH;

// A slice of a pattern, as one lane of the warp sees it that takes it.
struct Packed {
    int steps, full, shift, width;
    unsigned first_step, first, first_block;
    const unsigned char* deltas;

    __device__ __forceinline__ Packed(const uint4& header, const unsigned char* all)
        : steps(header.w & 0xfff), full(header.w >> 12 & 0xfff), shift(header.w >> 24 & 7),
          width(header.w >> 27 & 3), first_step(header.x), first(header.y), first_block(header.z),
          deltas(all + 32ll * header.z)
    {
    }

    // The slot of a step, counted through all slices.
    __device__ __forceinline__ long long slot(int step) const
    {
        return WARP * ((long long)first_step + step) + lane_id();
    }

    // What is stored of the column in a step. Returns whether the slot holds an entry.
    __device__ __forceinline__ bool delta(int step, unsigned& delta) const
    {
        const int slot = WARP * step + lane_id();
        switch (width) {
        case 0: delta = lane_id(); return true;
        case 1: delta = deltas[slot]; return delta != 0xffu;
        case 2: delta = reinterpret_cast<const unsigned short*>(deltas)[slot]; return delta != 0xffffu;
        default: delta = reinterpret_cast<const unsigned*>(deltas)[slot]; return delta != 0xffffffffu;
        }
    }

    // The lanes that share this one's row.
    __device__ __forceinline__ unsigned lanes() const
    {
        return ALL_LANES >> (WARP - (1 << shift)) << (lane_id() >> shift << shift);
    }

    // The position of this lane's row.
    __device__ __forceinline__ long long position() const { return (long long)first + (lane_id() >> shift); }
};

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_count_entries(const Index* __restrict__ rows, long long positions, const Index* __restrict__ long_rows,
                   const Index* __restrict__ segment_rows, long long segments, long long slices,
                   const uint4* __restrict__ headers, const unsigned char* __restrict__ deltas, Count* starts,
                   Count* pieces, long long tiles, Count* come, Count* sizes)
{
    __shared__ Count sums[THREADS / WARP + 1];
    const long long s = (blockIdx.x * (long long)THREADS + threadIdx.x) / WARP;
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

// The first entry of a segment: those of its row's segments before it come first.
__device__ __forceinline__ Count start_of(unsigned number, const Index* long_rows, const Index* segment_offsets,
                                          const Index* segment_rows, const Count* starts, const Count* pieces)
{
    const long long r = segment_rows[number];
    Count before = 0;
    for (long long other = (long long)segment_offsets[r] + lane_id(); other < number; other += WARP)
        before += pieces[other];
#pragma unroll
    for (int step = WARP / 2; step; step /= 2) before += __shfl_xor_sync(ALL_LANES, before, step);
    return starts[long_rows[r]] + before;
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_fill_entries(const Index* __restrict__ rows, long long positions, const Index* __restrict__ long_rows,
                  const Index* __restrict__ segment_offsets, const Index* __restrict__ segment_rows,
                  long long segments, long long slices, const uint4* __restrict__ headers,
                  const Index* __restrict__ bases, const unsigned char* __restrict__ deltas,
                  const Code* __restrict__ codes, const Count* __restrict__ starts, const Count* __restrict__ pieces,
                  const Order* __restrict__ order, Index* to_indices, Code* to_codes, Place* slots)
{
    const long long s = (blockIdx.x * (long long)THREADS + threadIdx.x) / WARP;
    if (s >= slices) return;
    const Packed slice(headers[s], deltas);
    Count place = 0;
    if (s < segments) {
        place = start_of(slice.first, long_rows, segment_offsets, segment_rows, starts, pieces);
    } else if (slice.position() < positions) {
        place = starts[rows ? (long long)rows[slice.position()] : slice.position()];
    }
    for (int first = 0; first < slice.steps; first += AT_ONCE) {
        unsigned delta[AT_ONCE];
        bool has[AT_ONCE];
        Index base[AT_ONCE];
        Code code[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const int step = first + k;
            has[k] = step < slice.steps && slice.delta(step, delta[k]);
            if (has[k] && to_indices) base[k] = bases[(long long)slice.first_step + step];
            if (has[k] && to_codes) code[k] = codes[slice.slot(step)];
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const unsigned entries = __ballot_sync(ALL_LANES, has[k]) & slice.lanes();
            const Count mine = place + __popc(entries & lanes_before());
            place += __popc(entries);
            if (!has[k]) continue;
            if (to_indices) to_indices[mine] = Index(base[k] + delta[k]);
            if (to_codes) to_codes[mine] = code[k];
            if (slots) slots[order ? Count(order[mine]) : mine] = Place(slice.slot(first + k));
        }
    }
}
