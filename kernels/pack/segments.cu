// Rows too long for one slice: found, cut into segments, and the segments made slices.
//
// long_rows (r): the caller's rows, rising. offsets (r + 1): the first segment of each. segment_rows (segments): the
// long row that each is a piece of. starts (segments): its first entry; lengths: its entries.
//
// dasp_count_long: a block of 256 threads for each tile of 2048 rows. counts (2, tiles + 1): long rows and segments
//     before each tile, and of all, as soon as `come`, 0 before, is full.
// dasp_list_long: the same blocks.
// dasp_start_segments: any number of blocks of 256 threads. starts: in the order of numbers.
// dasp_sort_segments: one block of 512 threads, for up to 8192 segments. keys (segments): their first columns, of `bits`
//     bits; in_turn (segments): the segments in the order of these.
// dasp_place_segments: one block of 1024 threads. in_turn (segments) or null: the order in which they are stored; if
//     there is one, segment_rows are known. starts, lengths, headers: in that order; headers as in cut.cu, with the
//     number of the segment as first position.

#include "order.cuh"

constexpr int THREADS = 256, EACH = 8, ROWS = THREADS * EACH, PLACE_THREADS = 1024;
constexpr unsigned ONE_ROW = 5;  // log2 of the lanes to a segment

// Which of EACH rows, `stride` apart, are long, as bits; all loads at once.
__device__ __forceinline__ unsigned long_ones(const Start* indptr, long long m, long long first, int stride,
                                              const Cut& cut)
{
    unsigned found = 0;
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const long long row = first + k * stride;
        found |= unsigned(row < m && length_of(indptr, row) > cut.most()) << k;
    }
    return found;
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_count_long(const Start* __restrict__ indptr, long long m, int steps, int segment_steps, int most_segments,
                long long tiles, Count* come, Count* counts)
{
    __shared__ Count shared[2], sums[THREADS / WARP + 1];
    const Tally<2, 2> tally{shared};
    tally.clear();
    const Cut cut{steps, segment_steps, most_segments};
    const long long first = blockIdx.x * (long long)ROWS + threadIdx.x;
    const unsigned found = long_ones(indptr, m, first, THREADS, cut);
    const Count rows = __popc(found);
    Count segments = 0;
    for (unsigned left = found; left; left &= left - 1) {
        const long long length = length_of(indptr, first + (__ffs(left) - 1) * THREADS);
        segments += ceil_div(length, cut.room(length));
    }
    tally.add(0, rows);
    tally.add(1, segments);
    __syncthreads();
    if (threadIdx.x < 2) counts[threadIdx.x * (tiles + 1) + blockIdx.x] = shared[threadIdx.x];
    if (!is_last_block(come, tiles)) return;
    block_scan(counts, tiles, sums);
    __syncthreads();
    block_scan(counts + tiles + 1, tiles, sums);
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_list_long(const Start* __restrict__ indptr, long long m, int steps, int segment_steps, int most_segments,
               long long tiles, const Count* __restrict__ counts, Index* long_rows, Index* offsets)
{
    __shared__ Count sums[THREADS / WARP + 1], more[THREADS / WARP + 1];
    const Cut cut{steps, segment_steps, most_segments};
    const long long first = blockIdx.x * (long long)ROWS + threadIdx.x * EACH;
    const unsigned found = long_ones(indptr, m, first, 1, cut);
    const Count rows = __popc(found);
    Count segments = 0, total;
    for (unsigned left = found; left; left &= left - 1) {
        const long long length = length_of(indptr, first + __ffs(left) - 1);
        segments += ceil_div(length, cut.room(length));
    }
    Count place = counts[blockIdx.x] + block_sum_before(rows, sums, total);
    Count segment = counts[tiles + 1 + blockIdx.x] + block_sum_before(segments, more, total);
    for (unsigned left = found; left; left &= left - 1) {
        const long long row = first + __ffs(left) - 1, length = length_of(indptr, row);
        long_rows[place] = Index(row);
        offsets[place++] = Index(segment);
        segment += ceil_div(length, cut.room(length));
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) offsets[counts[tiles]] = Index(counts[2 * tiles + 1]);
}

// A segment of a long row.
struct Segment {
    long long start, length;
};

// The long row of which the segment of a number is a piece.
__device__ __forceinline__ long long owner_of(const Index* offsets, long long long_count, long long number)
{
    return lower_bound(offsets, long_count + 1, number + 1) - 1;
}

// The segment of a number, which is one of the r-th long row.
__device__ __forceinline__ Segment segment_of(const Start* indptr, const Index* long_rows, const Index* offsets,
                                              long long r, long long number, const Cut& cut)
{
    const long long row = long_rows[r], whole = length_of(indptr, row), room = cut.room(whole);
    const long long begun = room * (number - (long long)offsets[r]);
    return {(long long)indptr[row] + begun, min(whole - begun, room)};
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_start_segments(const Start* __restrict__ indptr, const Index* __restrict__ long_rows,
                    const Index* __restrict__ offsets, long long long_count, long long segments, int steps,
                    int segment_steps, int most_segments, Index* segment_rows, long long* starts)
{
    const Cut cut{steps, segment_steps, most_segments};
    const long long threads = gridDim.x * (long long)THREADS;
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < segments; i += threads) {
        const long long r = owner_of(offsets, long_count, i);
        segment_rows[i] = Index(r);
        starts[i] = segment_of(indptr, long_rows, offsets, r, i, cut).start;
    }
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS, 1)
dasp_sort_segments(const Start* __restrict__ indptr, const Column* __restrict__ indices,
                   const Index* __restrict__ long_rows, const Index* __restrict__ offsets, long long long_count,
                   long long segments, int steps, int segment_steps, int most_segments,
                   Index* segment_rows, int bits, unsigned* keys, Index* in_turn)
{
    __shared__ unsigned short order[TILE], counters[CHUNKS * DIGITS];
    __shared__ unsigned sums[SORT_THREADS / WARP + 1];
    const Cut cut{steps, segment_steps, most_segments};
    const int count = int(segments);
    for (int i = threadIdx.x; i < count; i += SORT_THREADS) {
        const long long r = owner_of(offsets, long_count, i);
        segment_rows[i] = Index(r);
        keys[i] = unsigned(indices[segment_of(indptr, long_rows, offsets, r, i, cut).start]);
        order[i] = (unsigned short)i;
    }
    __syncthreads();
    const DigitSort sort{counters, sums, CHUNKS, int(ceil_div(count, CHUNK))};
    for (int shift = 0; shift < bits; shift += DIGIT_BITS) {
        unsigned digit[MINE];
        unsigned short element[MINE];
#pragma unroll
        for (int q = 0; q < MINE; ++q) {
            digit[q] = DIGITS - 1;  // of nothing, behind the last segment
            if (slot_of(q) >= count) continue;
            element[q] = order[slot_of(q)];
            digit[q] = digit_of(keys[element[q]], shift);
        }
        sort.count<MINE>(digit);
        sort.scan();
#pragma unroll
        for (int q = 0; q < MINE; ++q)
            if (slot_of(q) < count) order[sort.place_of(slot_of(q), digit[q])] = element[q];
        __syncthreads();
    }
    for (int i = threadIdx.x; i < count; i += SORT_THREADS) in_turn[i] = Index(order[i]);
}

extern "C" __global__ void __launch_bounds__(PLACE_THREADS, 1)
dasp_place_segments(const Start* __restrict__ indptr, const Index* __restrict__ long_rows,
                    const Index* __restrict__ offsets, long long long_count, long long segments, int steps,
                    int segment_steps, int most_segments, Index* segment_rows, const Index* __restrict__ in_turn,
                    long long* starts, long long* lengths, uint4* headers)
{
    __shared__ Count sums[PLACE_THREADS / WARP + 1];
    const Cut cut{steps, segment_steps, most_segments};
    Count before = 0;
    for (long long begin = 0; begin < segments; begin += PLACE_THREADS) {
        const long long place = begin + threadIdx.x;
        const long long number = in_turn && place < segments ? (long long)in_turn[place] : place;
        Segment segment{0, 0};
        if (place < segments) {
            const long long r = in_turn ? (long long)segment_rows[number] : owner_of(offsets, long_count, number);
            if (!in_turn) segment_rows[number] = Index(r);
            segment = segment_of(indptr, long_rows, offsets, r, number, cut);
        }
        const Count mine = ceil_div(segment.length, WARP);
        Count total;
        const Count step = before + block_sum_before(mine, sums, total);
        if (place < segments) {
            starts[place] = segment.start;
            lengths[place] = segment.length;
            headers[place] = make_uint4(unsigned(step), unsigned(number), 0u,
                                        unsigned(mine) | unsigned(segment.length / WARP) << 12 | ONE_ROW << 24);
        }
        before += total;
        __syncthreads();
    }
}
