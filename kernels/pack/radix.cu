// A stable sort of many elements by their keys, inside windows: LSD radix sort, six bits at a time.
//
// Elements are numbers from 0 on: rows, longest first, where `indptr` is not null; else they have `keys` (elements).
// A tile is up to 8192 neighbouring places of one window.
// from (elements) or null: the order so far, in which element i stands at i. shift: of the six bits in a key.
// counts (windows, DIGITS, tiles of a window, and one more): where each digit's elements of each tile begin in the new
//     order, which is to (elements); dasp_count_digits sets them, its last block when `come`, 0 before, is full. Null
//     where one tile has all elements: nothing need be counted before they are moved.
// gone (gone_count): rows, rising, of more than `most` entries. They are left out if `last`; the others then follow each
//     other without a gap. longest: entries of the longest other row.
//
// dasp_count_digits, dasp_move_digits: a block of 1024 threads for each tile, window by window.
// dasp_column_keys: any number of blocks of 256 threads.

#include "order.cuh"

constexpr int KEY_THREADS = 256;

__device__ __forceinline__ long long element_at(const Index* from, long long place)
{
    return from ? (long long)from[place] : place;
}

struct Keys {
    const unsigned* keys;
    LengthKeys lengths;

    __device__ __forceinline__ unsigned at(long long element) const
    {
        return lengths.indptr ? lengths.at(element) : keys[element];
    }
    __device__ __forceinline__ bool stays(unsigned key) const { return !lengths.indptr || key != lengths.none(); }
};

extern "C" __global__ void __launch_bounds__(SORT_THREADS)
dasp_count_digits(const unsigned* __restrict__ keys, const Start* __restrict__ indptr, long long longest,
                  long long most, const Index* __restrict__ from, long long elements, long long width, int shift,
                  Count* come, Count* counts)
{
    __shared__ DigitCounts here;
    const Keys of{keys, {indptr, longest, most}};
    const Tile tile(width, elements);
    here.clear();
    for (int i = threadIdx.x; i < tile.size; i += SORT_THREADS)
        here.add(digit_of(of.at(element_at(from, tile.first + i)), shift));
    here.deliver(tile, gridDim.x, come, counts);
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS, 1)
dasp_move_digits(const unsigned* __restrict__ keys, const Start* __restrict__ indptr, long long longest,
                 long long most, const Index* __restrict__ from, long long elements, long long width, int shift,
                 const Count* __restrict__ counts, const Index* __restrict__ gone, long long gone_count, int last,
                 Index* to)
{
    __shared__ unsigned short counters[CHUNKS * DIGITS];
    __shared__ unsigned sums[SORT_THREADS / WARP + 1];
    const Keys of{keys, {indptr, longest, most}};
    const Tile tile(width, elements);
    if (tile.size <= 0) return;
    const DigitSort sort{counters, sums, CHUNKS, int(ceil_div(tile.size, CHUNK))};

    Index element[MINE];
    unsigned digit[MINE], kept = 0;
#pragma unroll
    for (int q = 0; q < MINE; ++q) {
        digit[q] = DIGITS - 1;  // of nothing, behind the last element: nothing else comes after it
        if (slot_of(q) >= tile.size) continue;
        element[q] = Index(element_at(from, tile.first + slot_of(q)));
        const unsigned key = of.at(element[q]);
        digit[q] = digit_of(key, shift);
        kept |= unsigned(!last || of.stays(key)) << q;
    }
    sort.count(digit);
    sort.scan();
    const long long before = last ? lower_bound(gone, gone_count, tile.window * width) : 0;
#pragma unroll
    for (int q = 0; q < MINE; ++q) {
        if (!(kept >> q & 1)) continue;
        const unsigned own = digit[q] >> RANK_BITS, place = sort.place_of(slot_of(q), digit[q]);
        const unsigned first = counters[own * CHUNKS];  // of these in the tile
        to[(counts ? (long long)counts[tile.count_of(own)] : first) + place - first - before] = element[q];
    }
}

// keys (count): of segments that start with these entries, by their first columns.
extern "C" __global__ void __launch_bounds__(KEY_THREADS)
dasp_column_keys(const Column* __restrict__ indices, const long long* __restrict__ starts, long long count,
                 unsigned* keys)
{
    const long long threads = gridDim.x * (long long)KEY_THREADS;
    for (long long i = blockIdx.x * (long long)KEY_THREADS + threadIdx.x; i < count; i += threads)
        keys[i] = unsigned(indices[starts[i]]);
}
