// A stable sort of many elements by their keys, inside windows: LSD radix sort, six bits at a time.
//
// Elements are numbers from 0 on; keys (elements): theirs. A tile is up to 8192 neighbouring places of one window.
// from (elements) or null: the order so far, in which element i stands at i. shift: of the six bits in a key.
// counts (windows, DIGITS, tiles of a window, and one more): dasp_count_digits sets them; after a scan of all,
//     dasp_move_digits reads there where each digit's elements of each tile begin. to (elements): the new order.
// gone (gone_count): elements, rising, that have the key `none` and are left out if `last`; the others then follow
//     each other without a gap.
//
// dasp_count_digits, dasp_move_digits: a block of 512 threads for each tile, window by window.
// dasp_length_keys, dasp_column_keys: any number of blocks of 256 threads; see there.

#include "order.cuh"

constexpr int KEY_THREADS = 256;

// The tile of a block.
struct Tile {
    long long window, tiles, first;  // number of its window, tiles of a window, its first place
    int size;

    __device__ __forceinline__ Tile(long long width, long long elements)
    {
        tiles = ceil_div(width, TILE);
        window = blockIdx.x / tiles;
        const long long inside = (blockIdx.x - window * tiles) * TILE;
        first = window * width + inside;
        size = int(min(min((long long)TILE, width - inside), elements - first));
    }

    __device__ __forceinline__ long long count_of(unsigned digit) const
    {
        return (window * DIGITS + digit) * tiles + blockIdx.x - window * tiles;
    }
};

__device__ __forceinline__ long long element_at(const Index* from, long long place)
{
    return from ? (long long)from[place] : place;
}

__device__ __forceinline__ unsigned digit_of(unsigned key, int shift) { return key >> shift & (DIGITS - 1); }

extern "C" __global__ void __launch_bounds__(SORT_THREADS)
dasp_count_digits(const unsigned* __restrict__ keys, const Index* __restrict__ from, long long elements,
                  long long width, int shift, Count* counts)
{
    __shared__ unsigned found[DIGITS];
    const Tile tile(width, elements);
    if (threadIdx.x < DIGITS) found[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < tile.size; i += SORT_THREADS)
        atomicAdd(found + digit_of(keys[element_at(from, tile.first + i)], shift), 1u);
    __syncthreads();
    if (threadIdx.x < DIGITS) counts[tile.count_of(threadIdx.x)] = found[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS)
dasp_move_digits(const unsigned* __restrict__ keys, const Index* __restrict__ from, long long elements,
                 long long width, int shift, const Count* __restrict__ counts, const Index* __restrict__ gone,
                 long long gone_count, unsigned none, int last, Index* to)
{
    __shared__ unsigned short counters[CHUNKS * DIGITS];
    __shared__ unsigned sums[SORT_THREADS / WARP + 1];
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
        const unsigned key = keys[element[q]];
        digit[q] = digit_of(key, shift);
        kept |= unsigned(!last || key != none) << q;
    }
    sort.count(digit);
    sort.scan();
    const long long before = last ? lower_bound(gone, gone_count, tile.window * width) : 0;
#pragma unroll
    for (int q = 0; q < MINE; ++q) {
        if (!(kept >> q & 1)) continue;
        const unsigned own = digit[q] >> RANK_BITS, nth = sort.place_of(slot_of(q), digit[q]) - counters[own * CHUNKS];
        to[(long long)counts[tile.count_of(own)] - before + nth] = element[q];
    }
}

// keys (m): of rows by their lengths, longest first; longest + 1 for rows of more than `most` entries.
extern "C" __global__ void __launch_bounds__(KEY_THREADS)
dasp_length_keys(const Start* __restrict__ indptr, long long m, long long longest, long long most, unsigned* keys)
{
    const LengthKeys of{indptr, longest, most};
    for (long long row = blockIdx.x * (long long)KEY_THREADS + threadIdx.x; row < m; row += gridDim.x * KEY_THREADS)
        keys[row] = of.at(row);
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
