// Rows in the order in which slices take them: longest first inside each window, for windows that fit a tile.
//
// Launch: a block of 512 threads for each tile, along x, of each candidate, along y. A candidate is one of
// `windows`, or after them one window of all rows; those that are wider than a tile are left out, and 0 as well
// unless there are long rows. A tile is as many whole windows as fit; for 0, all that fits.
// indptr (m + 1); long_rows (long_count): rows of more than `most` entries, rising: they are in no order.
// longest: entries of the longest other row. bits: of longest + 1. rows (candidates, stride): the orders.

#include "order.cuh"

constexpr int PLACE_BITS = 13;  // of a place in a window

extern "C" __global__ void __launch_bounds__(SORT_THREADS)
dasp_sort_windows(const Start* __restrict__ indptr, const Index* __restrict__ long_rows, long long long_count,
                  const long long* __restrict__ windows, int window_count, long long m, long long most,
                  long long longest, int bits, long long stride, Index* rows)
{
    __shared__ unsigned words[TILE];
    __shared__ unsigned short counters[CHUNKS * DIGITS];
    __shared__ unsigned sums[SORT_THREADS / WARP + 1];

    const long long given = (int)blockIdx.y < window_count ? windows[blockIdx.y] : m;
    const bool sorts = given > 0;
    const long long window = sorts ? min(given, m) : TILE;
    if (window > TILE || (!sorts && long_count == 0)) return;
    const int per_window = int(ceil_div(window, CHUNK)), fit = CHUNKS / per_window;
    const long long first = blockIdx.x * fit * window, left = m - first;
    if (left <= 0) return;
    const long long whole = min(left / window, (long long)fit);
    const long long rest = whole < fit ? ceil_div(left - whole * window, CHUNK) : 0;
    const DigitSort sort{counters, sums, per_window, int(whole * per_window + rest)};
    const LengthKeys keys{indptr, longest, most};

    unsigned word[MINE], digit[MINE];
#pragma unroll
    for (int q = 0; q < MINE; ++q) {
        if (!sort.has(slot_of(q))) continue;
        const int nth = slot_of(q) / CHUNK / per_window, place = slot_of(q) - nth * per_window * CHUNK;
        const long long row = first + nth * window + place;
        unsigned key = keys.none();
        if (place < window && row < m) key = keys.at(row);
        if (!sorts && key != keys.none()) key = 0;
        word[q] = key << PLACE_BITS | unsigned(place);
    }
    for (int shift = 0; shift < bits; shift += DIGIT_BITS) {
#pragma unroll
        for (int q = 0; q < MINE; ++q) digit[q] = word[q] >> (PLACE_BITS + shift) & (DIGITS - 1);
        sort.count(digit);
        sort.scan();
#pragma unroll
        for (int q = 0; q < MINE; ++q)
            if (sort.has(slot_of(q))) words[sort.place_of(slot_of(q), digit[q])] = word[q];
        __syncthreads();
#pragma unroll
        for (int q = 0; q < MINE; ++q)
            if (sort.has(slot_of(q))) word[q] = words[slot_of(q)];
    }
    rows += blockIdx.y * stride;
#pragma unroll
    for (int q = 0; q < MINE; ++q) {
        if (!sort.has(slot_of(q)) || word[q] >> PLACE_BITS == keys.none()) continue;
        const int nth = slot_of(q) / CHUNK / per_window;
        const long long begin = first + nth * window, before = lower_bound(long_rows, long_count, begin);
        rows[begin - before + slot_of(q) - nth * per_window * CHUNK] =
            Index(begin + (word[q] & ((1u << PLACE_BITS) - 1)));
    }
}
