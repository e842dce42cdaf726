// A stable sort of elements by their keys, LSD radix sort, six bits at a time; and the transpose of a matrix, whose
// entries are sorted by their columns.
//
// Elements are numbers from 0 on. keys (count): of each, not negative. A tile is up to 8192 neighbouring places.
// from (count): the order so far, or null: element i is at place i. to (count): the new order. shift: that of
//     the six bits in a key.
// counts (DIGITS, tiles), and one more: the place in `to` at which each digit's elements of each tile begin.
// come (1), 0 before: counts the blocks that are done.
//
// Launch: dasp_count_digits, whose last block adds up the counts, then dasp_move_digits, for each six bits of
//     the keys from the lowest on; a block of 1024 threads for each tile. A warp has 256 neighbouring
//     elements (sort.cuh).
// To transpose, the keys are the columns: indptr (m + 1), indices (nnz), and order (nnz) as the sort gave it. Then
//     dasp_find_rows and dasp_start_columns, any number of blocks of 256 threads, make to_indices (nnz) and
//     to_indptr (n + 1); a thread searches for one entry, or one column, at a time.
// Deterministic: the order that a stable sort gives is the only one, and every number of a transpose has one writer.

#include "csr/sort.cuh"

#ifndef DASP_KEY
#error "define DASP_KEY, DASP_PLACE and DASP_START: the integer types of keys, of elements and of indptr"
#endif

using Key = DASP_KEY;
using Place = DASP_PLACE;
using Start = DASP_START;

// The tile of a block.
struct Tile {
    long long first;  // its first place
    int size;

    __device__ __forceinline__ explicit Tile(long long count)
        : first(blockIdx.x * (long long)TILE), size(int(min((long long)TILE, count - first)))
    {
    }

    __device__ __forceinline__ long long count_of(unsigned digit) const
    {
        return digit * (long long)gridDim.x + blockIdx.x;
    }
};

__device__ __forceinline__ long long element_at(const Place* from, long long place)
{
    return from ? (long long)from[place] : place;
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS)
dasp_count_digits(const Key* __restrict__ keys, const Place* __restrict__ from, long long count, int shift, Count* come,
                  Count* counts)
{
    __shared__ unsigned found[DIGITS];
    __shared__ Count sums[SORT_THREADS / WARP + 1];
    const Tile tile(count);
    if (threadIdx.x < DIGITS) found[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < tile.size; i += SORT_THREADS)
        atomicAdd(found + digit_of(keys[element_at(from, tile.first + i)], shift), 1u);
    __syncthreads();
    if (threadIdx.x < DIGITS) counts[tile.count_of(threadIdx.x)] = found[threadIdx.x];
    if (is_last_block(come, gridDim.x)) block_scan(counts, gridDim.x * (long long)DIGITS, sums);
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS, 1)
dasp_move_digits(const Key* __restrict__ keys, const Place* __restrict__ from, long long count, int shift,
                 const Count* __restrict__ counts, Place* to)
{
    __shared__ unsigned short counters[CHUNKS * DIGITS];
    __shared__ unsigned sums[SORT_THREADS / WARP + 1];
    const Tile tile(count);
    const DigitSort sort{counters, sums, CHUNKS, int(ceil_div(tile.size, CHUNK))};

    Place element[MINE];
    unsigned digit[MINE];
#pragma unroll
    for (int q = 0; q < MINE; ++q) {
        digit[q] = DIGITS - 1;  // past the last element: no element is sorted after these
        if (slot_of(q) >= tile.size) continue;
        element[q] = Place(element_at(from, tile.first + slot_of(q)));
        digit[q] = digit_of(keys[element[q]], shift);
    }
    sort.count(digit);
    sort.scan();
#pragma unroll
    for (int q = 0; q < MINE; ++q) {
        if (slot_of(q) >= tile.size) continue;
        const unsigned own = digit[q] >> RANK_BITS, place = sort.place_of(slot_of(q), digit[q]);
        const unsigned first = counters[own * CHUNKS];  // of these in the tile
        to[(long long)counts[tile.count_of(own)] + place - first] = element[q];
    }
}

// ---- the transpose ----------------------------------------------------------------------------------

constexpr int SEARCH_THREADS = 256;

// to_indices: the row of each entry.
extern "C" __global__ void __launch_bounds__(SEARCH_THREADS)
dasp_find_rows(const Start* __restrict__ indptr, long long m, long long nnz, const Place* __restrict__ order,
               Key* __restrict__ to_indices)
{
    const long long threads = gridDim.x * (long long)SEARCH_THREADS;
    for (long long i = blockIdx.x * (long long)SEARCH_THREADS + threadIdx.x; i < nnz; i += threads)
        to_indices[i] = Key(lower_bound(indptr, m + 1, (long long)order[i] + 1) - 1);
}

// to_indptr: for each column the number of entries in the columns before it.
extern "C" __global__ void __launch_bounds__(SEARCH_THREADS)
dasp_start_columns(const Key* __restrict__ indices, long long n, long long nnz, const Place* __restrict__ order,
                   long long* __restrict__ to_indptr)
{
    const long long threads = gridDim.x * (long long)SEARCH_THREADS;
    for (long long column = blockIdx.x * (long long)SEARCH_THREADS + threadIdx.x; column <= n; column += threads) {
        long long first = 0, count = nnz;
        while (count > 0) {
            const long long half = count / 2;
            if ((long long)indices[order[first + half]] < column) {
                first += half + 1;
                count -= half + 1;
            } else {
                count = half;
            }
        }
        to_indptr[column] = first;
    }
}
