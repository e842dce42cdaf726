// Rows in the order in which slices take them: longest first inside each window, for windows that fit a tile.
//
// Launch: a block of 512 threads for each tile, along x, of each candidate, along y. A candidate is one of
// `windows`, or after them one window of all rows; those that are wider than a tile are left out, and 0 as well
// unless there are long rows. A tile is as many whole windows as fit; for 0, all that fits. Where windows are whole
// chunks, and keys one digit, one block sorts its tile for all of them, unless they are sorted `apart`: few blocks
// would leave multiprocessors idle. Of the last candidate, if it is wider than a tile, the first digits are counted,
// as dasp_count_digits does it.
// indptr (m + 1); long_rows (long_count): rows of more than `most` entries, rising: they are in no order.
// longest: entries of the longest other row. bits: of longest + 1. rows (candidates, stride): the orders, without
// that of 0 where it is left out.
// come, counts: as in radix.cu.

#include "order.cuh"

constexpr int PLACE_BITS = 13;  // of a place in a window
// Elements of a thread between the turns of a loop: so many instructions are run once that fetching them takes longer
// than to keep the elements in memory, as arrays that loops go through.
constexpr int UNROLLED = 4;
constexpr unsigned short GONE = 1 << PLACE_BITS, PLACE = GONE - 1;

// Windows of which a tile holds a whole number, in whole chunks: powers of two. An element has the same rank in its
// chunk in all of them.
__device__ __forceinline__ bool is_whole(long long window)
{
    return window >= CHUNK && window <= TILE && window % CHUNK == 0 && TILE % window == 0;
}

// The windows that are tried.
struct Windows {
    const long long* given;
    int count;
    long long m;

    __device__ __forceinline__ long long at(int y) const { return y < count ? given[y] : m; }
    __device__ __forceinline__ long long stored_before(int y, long long long_count) const
    {
        return ::stored_before(y, given, count, long_count > 0);
    }
    __device__ __forceinline__ int first_whole(int last) const
    {
        int y = 0;
        while (y < last && !is_whole(at(y))) ++y;
        return y;
    }
};

// Sorts the rows of a tile inside all whole windows, by keys of one digit: elements are ranked once.
struct WholeWindows {
    // Counts of chunks are kept apart by more than a row of banks.
    static constexpr int CHUNK_STRIDE = DIGITS + 2;
    unsigned short *order, *counts, *counters;
    unsigned* sums;
    long long* gone;  // long rows before the window of each chunk
    long long first;
    int chunks, begin, end;  // candidates from `begin` to `end`

    __device__ __forceinline__ void sort(const Windows& windows, const LengthKeys& keys, const Index* long_rows,
                                         long long long_count, long long stride, Index* rows) const
    {
        unsigned digit[MINE];
        const DigitSort chunk_by_chunk{counters, sums, 1, chunks};
#pragma unroll UNROLLED
        for (int q = 0; q < MINE; ++q) {
            if (!chunk_by_chunk.has(slot_of(q))) continue;
            const long long row = first + slot_of(q);
            digit[q] = row < windows.m ? keys.at(row) : keys.none();
        }
        chunk_by_chunk.count<UNROLLED>(digit);
        for (int i = threadIdx.x; i < CHUNKS * DIGITS; i += SORT_THREADS)
            counts[i / DIGITS * CHUNK_STRIDE + i % DIGITS] = counters[i];
        __syncthreads();
        for (int y = begin; y < end; ++y) {
            if (!is_whole(windows.at(y))) continue;
            const int window = int(windows.at(y));
            if (threadIdx.x < CHUNKS)
                gone[threadIdx.x] = lower_bound(long_rows, long_count, first + (threadIdx.x * CHUNK & -window));
            place(digit, window / CHUNK, keys.none());
#pragma unroll UNROLLED
            for (int q = 0; q < MINE; ++q) {
                if (!chunk_by_chunk.has(slot_of(q)) || (order[slot_of(q)] & GONE)) continue;
                Index* const to = rows + windows.stored_before(y, long_count) * stride + first + slot_of(q) - gone[slot_of(q) / CHUNK];
                *to = Index(first + (order[slot_of(q)] & PLACE));
            }
            __syncthreads();
        }
    }

    // Puts the elements in order inside windows of so many chunks.
    __device__ __forceinline__ void place(const unsigned (&ranked)[MINE], int per_window, unsigned none) const
    {
        const DigitSort sort{counters, sums, per_window, chunks};
        const int shift = 31 - __clz(per_window);
        for (int i = threadIdx.x; i < CHUNKS * DIGITS; i += SORT_THREADS) {
            const int digit = i >> shift & (DIGITS - 1), window = i >> shift >> DIGIT_BITS;
            counters[i] = counts[(window * per_window + (i & (per_window - 1))) * CHUNK_STRIDE + digit];
        }
        __syncthreads();
        sort.scan();
#pragma unroll UNROLLED
        for (int q = 0; q < MINE; ++q) {
            if (!sort.has(slot_of(q))) continue;
            const unsigned gone = ranked[q] >> RANK_BITS == none ? GONE : 0;
            order[sort.place_of(slot_of(q), ranked[q])] = (unsigned short)(slot_of(q) | gone);
        }
        __syncthreads();
    }
};

extern "C" __global__ void __launch_bounds__(SORT_THREADS)
dasp_sort_windows(const Start* __restrict__ indptr, const Index* __restrict__ long_rows, long long long_count,
                  const long long* __restrict__ windows, int window_count, long long m, long long most,
                  long long longest, int bits, long long stride, int apart, Index* rows, Count* come, Count* counts)
{
    __shared__ unsigned words[TILE];
    __shared__ unsigned short counters[CHUNKS * DIGITS];
    __shared__ unsigned sums[SORT_THREADS / WARP + 1];
    __shared__ DigitCounts here;
    __shared__ long long gone[CHUNKS];

    const Windows all{windows, window_count, m};
    const long long given = all.at(blockIdx.y);
    const LengthKeys keys{indptr, longest, most};
    if (is_whole(given) && bits <= DIGIT_BITS) {
        const long long begin = blockIdx.x * (long long)TILE;
        if (begin >= m || (!apart && all.first_whole(blockIdx.y) < (int)blockIdx.y)) return;
        const int from = apart ? (int)blockIdx.y : 0, to = apart ? from + 1 : (int)gridDim.y;
        unsigned short* const order = reinterpret_cast<unsigned short*>(words);
        const int chunks = int(ceil_div(min(m - begin, (long long)TILE), CHUNK));
        WholeWindows{order, order + TILE, counters, sums, gone, begin, chunks, from, to}.sort(
            all, keys, long_rows, long_count, stride, rows);
        return;
    }
    if (given > TILE) {
        const Tile tile(min(given, m), m);
        const Count blocks = ceil_div(m, min(given, m)) * tile.tiles;
        if (!counts || (int)blockIdx.y < (int)gridDim.y - 1 || blockIdx.x >= blocks) return;
        here.clear();
        for (int i = threadIdx.x; i < tile.size; i += SORT_THREADS) here.add(digit_of(keys.at(tile.first + i), 0));
        here.deliver(tile, blocks, come, counts);
        return;
    }
    const bool sorts = given > 0;
    const long long window = sorts ? min(given, m) : TILE;
    if (!sorts && long_count == 0) return;
    const int per_window = int(ceil_div(window, CHUNK)), fit = CHUNKS / per_window;
    const long long first = blockIdx.x * fit * window, left = m - first;
    if (left <= 0) return;
    const long long whole = min(left / window, (long long)fit);
    const long long rest = whole < fit ? ceil_div(left - whole * window, CHUNK) : 0;
    const DigitSort sort{counters, sums, per_window, int(whole * per_window + rest)};

    unsigned word[MINE], digit[MINE];
#pragma unroll UNROLLED
    for (int q = 0; q < MINE; ++q) {
        if (!sort.has(slot_of(q))) continue;
        const int nth = sort.window_of(slot_of(q)), place = slot_of(q) - nth * per_window * CHUNK;
        const long long row = first + nth * window + place;
        unsigned key = keys.none();
        if (place < window && row < m) key = keys.at(row);
        if (!sorts && key != keys.none()) key = 0;
        word[q] = key << PLACE_BITS | unsigned(place);
    }
    for (int shift = 0; shift < bits; shift += DIGIT_BITS) {
#pragma unroll UNROLLED
        for (int q = 0; q < MINE; ++q) digit[q] = word[q] >> (PLACE_BITS + shift) & (DIGITS - 1);
        sort.count<UNROLLED>(digit);
        sort.scan();
#pragma unroll UNROLLED
        for (int q = 0; q < MINE; ++q)
            if (sort.has(slot_of(q))) words[sort.place_of(slot_of(q), digit[q])] = word[q];
        __syncthreads();
#pragma unroll UNROLLED
        for (int q = 0; q < MINE; ++q)
            if (sort.has(slot_of(q))) word[q] = words[slot_of(q)];
    }
    if (threadIdx.x < CHUNKS) gone[threadIdx.x] = lower_bound(long_rows, long_count, first + threadIdx.x * window);
    __syncthreads();
    rows += all.stored_before(blockIdx.y, long_count) * stride;
#pragma unroll UNROLLED
    for (int q = 0; q < MINE; ++q) {
        if (!sort.has(slot_of(q)) || word[q] >> PLACE_BITS == keys.none()) continue;
        const int nth = sort.window_of(slot_of(q));
        const long long begin = first + nth * window;
        rows[begin - gone[nth] + slot_of(q) - nth * per_window * CHUNK] =
            Index(begin + (word[q] & ((1u << PLACE_BITS) - 1)));
    }
}
