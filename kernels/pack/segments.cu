// Finds the rows too long for one slice, cuts them into segments, and makes slices of the segments.
//
// long_rows (r): the caller's rows, rising. offsets (r + 1): the first segment of each, and their number.
// segment_rows (segments): the long row of each segment. starts, lengths (segments): first entry, entries.
// headers (segments): as in cut.cu, with the number of the segment as first position. All are in the order of
// these numbers; to_starts, to_lengths and to_headers in that of `order`.
//
// Deterministic: places follow from sums of integers, and each is written once.
//
// dasp_list_long: a block of 256 threads for each tile of 2048 rows. long_tiles (LONG_TILE_COUNTS, tiles): see survey.cu.
// dasp_column_keys: any number of blocks of 256 threads; a thread takes segments a grid apart. keys (segments): their
//     first columns, by which csr/sort.cu puts them in order.
// dasp_place_segments: one block of 1024 threads. order (segments): the number of the segment at each place.

#include "header.cuh"
#include "pack/pack.cuh"

constexpr int THREADS = 256, EACH = LONG_TILE / THREADS, PLACE_THREADS = 1024;
constexpr unsigned ONE_ROW = 5;  // log2 of the lanes to a segment

// Which of EACH neighbouring rows are long, as bits; all loads at once.
__device__ __forceinline__ unsigned long_ones(const Start* indptr, long long m, long long first, const Cut& cut)
{
    unsigned found = 0;
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const long long row = first + k;
        found |= unsigned(row < m && length_of(indptr, row) > cut.most()) << k;
    }
    return found;
}

// The segments of a matrix.
struct Segments {
    long long *starts, *lengths;
    uint4* headers;

    // Writes a segment, by its number, to a place, with `step` steps of other segments before it.
    __device__ __forceinline__ void put(long long place, long long number, long long start, long long length,
                                        Count step) const
    {
        starts[place] = start;
        lengths[place] = length;
        headers[place] = make_uint4(unsigned(step), unsigned(number), 0u,
                                    shape_of(unsigned(ceil_div(length, WARP)), unsigned(length / WARP), ONE_ROW));
    }
};

// Long rows of a tile: which ones, and segments and steps of those before each.
struct LongRows {
    unsigned short rows[LONG_TILE];
    unsigned segments[LONG_TILE + 1], steps[LONG_TILE];
};

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_list_long(const Start* __restrict__ indptr, long long m, int steps, int segment_steps, int most_segments,
               const Count* __restrict__ long_tiles, Index* long_rows, Index* offsets, Index* segment_rows,
               long long* starts, long long* lengths, uint4* headers)
{
    __shared__ LongRows here;
    __shared__ Count before[LONG_TILE_COUNTS], sums[LONG_TILE_COUNTS][THREADS / WARP + 1];
    const long long tiles = gridDim.x, tile = blockIdx.x;
    const bool ends = tile == tiles - 1;
    if (long_tiles[LONG_TILE_ROWS * tiles + tile] == 0 && !ends) return;
    const Tally<LONG_TILE_COUNTS> tally{before};
    tally.clear();
    Count of_others[LONG_TILE_COUNTS] = {};
    for (long long other = threadIdx.x; other < tile; other += THREADS)
#pragma unroll
        for (int k = 0; k < LONG_TILE_COUNTS; ++k) of_others[k] += long_tiles[k * tiles + other];
#pragma unroll
    for (int k = 0; k < LONG_TILE_COUNTS; ++k) tally.add(k, of_others[k]);

    const Cut cut{steps, segment_steps, most_segments};
    const long long first = tile * LONG_TILE, mine = threadIdx.x * EACH;
    const unsigned found = long_ones(indptr, m, first + mine, cut);
    Count own[LONG_TILE_COUNTS] = {Count(__popc(found)), 0, 0}, all[LONG_TILE_COUNTS];
    for (unsigned left = found; left; left &= left - 1) {
        const long long length = length_of(indptr, first + mine + __ffs(left) - 1);
        own[LONG_TILE_SEGMENTS] += ceil_div(length, cut.room(length));
        own[LONG_TILE_STEPS] += ceil_div(length, WARP);
    }
    Count place[LONG_TILE_COUNTS];
#pragma unroll
    for (int k = 0; k < LONG_TILE_COUNTS; ++k) place[k] = block_sum_before(own[k], sums[k], all[k]);
    for (unsigned left = found; left; left &= left - 1) {
        const int row = int(mine) + __ffs(left) - 1;
        const long long length = length_of(indptr, first + row);
        const Count nth = place[LONG_TILE_ROWS]++;
        here.rows[nth] = (unsigned short)row;
        here.segments[nth] = unsigned(place[LONG_TILE_SEGMENTS]);
        here.steps[nth] = unsigned(place[LONG_TILE_STEPS]);
        long_rows[before[LONG_TILE_ROWS] + nth] = Index(first + row);
        offsets[before[LONG_TILE_ROWS] + nth] = Index(before[LONG_TILE_SEGMENTS] + place[LONG_TILE_SEGMENTS]);
        place[LONG_TILE_SEGMENTS] += ceil_div(length, cut.room(length));
        place[LONG_TILE_STEPS] += ceil_div(length, WARP);
    }
    const long long count = all[LONG_TILE_ROWS], pieces = all[LONG_TILE_SEGMENTS];
    if (threadIdx.x == 0) {
        here.segments[count] = unsigned(pieces);
        if (ends) offsets[before[LONG_TILE_ROWS] + count] = Index(before[LONG_TILE_SEGMENTS] + pieces);
    }
    __syncthreads();
    const Segments to{starts, lengths, headers};
    for (long long piece = threadIdx.x; piece < pieces; piece += THREADS) {
        const long long nth = lower_bound(here.segments, count + 1, piece + 1) - 1;
        const long long row = first + here.rows[nth], length = length_of(indptr, row), room = cut.room(length);
        const long long begun = room * (piece - here.segments[nth]), number = before[LONG_TILE_SEGMENTS] + piece;
        segment_rows[number] = Index(before[LONG_TILE_ROWS] + nth);
        to.put(number, number, (long long)indptr[row] + begun, min(length - begun, room),
               before[LONG_TILE_STEPS] + here.steps[nth] + begun / WARP);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_column_keys(const Column* __restrict__ indices, const long long* __restrict__ starts, long long count,
                 Column* __restrict__ keys)
{
    const long long threads = gridDim.x * (long long)THREADS;
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < count; i += threads)
        keys[i] = indices[starts[i]];
}

extern "C" __global__ void __launch_bounds__(PLACE_THREADS, 1)
dasp_place_segments(const long long* __restrict__ starts, const long long* __restrict__ lengths, long long segments,
                    const Index* __restrict__ order, long long* to_starts, long long* to_lengths,
                    uint4* to_headers)
{
    __shared__ Count sums[PLACE_THREADS / WARP + 1];
    const Segments to{to_starts, to_lengths, to_headers};
    Count before = 0;
    for (long long begin = 0; begin < segments; begin += PLACE_THREADS) {
        const long long place = begin + threadIdx.x;
        const long long number = place < segments ? (long long)order[place] : 0;
        const long long length = place < segments ? lengths[number] : 0;
        Count total;
        const Count step = before + block_sum_before(Count(ceil_div(length, WARP)), sums, total);
        if (place < segments) to.put(place, number, starts[number], length, step);
        before += total;
        __syncthreads();
    }
}
