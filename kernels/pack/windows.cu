// Orders rows for slices: longest first inside each window.
//
// indptr (m + 1). count: rows that are sorted, see `Drawn`.
// longest: entries of the longest row in a slice. Rows of more than `most` entries are left out or, in a sample, taken
//     to be empty.
//
// dasp_sort_windows, for windows that fit a tile: a block of 1024 threads for each tile, along x, of each of up to four
//     orders, along y. A tile is as many whole windows as fit; blocks past the last tile do nothing.
//     windows: for each order, in 16 bits, the rows of a window, at most a tile; 0 leaves the rows in their order, and
//     tiles are full; in a sample, windows divide a tile. bits: of longest + 1. left_out: whether rows are left out;
//     long_tiles: how many, see survey.cu. rows (orders, count): the rows in each order, without those left out.
// dasp_row_keys, for wider windows, compiled alone if DASP_KEY says the type of keys: any number of blocks of 256 threads;
//     a thread takes rows a grid apart. keys (m): of each row, for csr/sort.cu. By these, windows of `width` rows follow
//     each other, each with its longest rows first, and rows of more than `most` entries come last.
//     elements (count): get the rows' numbers.
// Deterministic: the sort is stable, and each key is written once.

#include "csr/sort.cuh"
#include "pack/pack.cuh"

// The rows that are sorted: all m or, if `count` is less, a sample of whole tiles, one drawn from each equal
// part of the matrix: `draw_tile` of choose.py.
struct Drawn {
    long long m, count;

    __device__ __forceinline__ bool is_sample() const { return count < m; }

    // The row of the matrix that comes i-th; the rows of a tile follow each other.
    __device__ __forceinline__ long long row(long long i) const
    {
        if (!is_sample()) return i;
        const long long nth = i / TILE, tiles = m / TILE, parts = count / TILE, begin = nth * tiles / parts;
        unsigned word = unsigned(nth) * 0x9e3779b1u;
        word = (word ^ word >> 15) * 0x85ebca77u;
        return (begin + (word ^ word >> 13) % ((nth + 1) * tiles / parts - begin)) * TILE + i % TILE;
    }
};

// Sort keys of rows: longest first. Rows that are in no slice come after all others of their window or, in a sample,
// are taken to be empty.
struct LengthKeys {
    const Start* indptr;
    long long longest, most;  // entries of the longest row in a slice, and of the longest possible one
    bool is_sample;

    __device__ __forceinline__ unsigned none() const { return unsigned(longest) + 1; }
    __device__ __forceinline__ unsigned at(long long row) const
    {
        const long long length = length_of(indptr, row);
        return length > most ? none() - unsigned(is_sample) : unsigned(longest - length);
    }
};

#ifndef DASP_KEY

constexpr int WINDOW_BITS = 16, PLACE_BITS = 13;  // of a window, and of a place in it
constexpr unsigned PLACE = (1u << PLACE_BITS) - 1;

// How many long rows come before a tile, and inside of it before each chunk.
struct Gone {
    unsigned chunks[CHUNKS], sums[SORT_THREADS / WARP + 1];

    // The long rows before a row; every thread of the block calls this.
    __device__ __forceinline__ long long before(long long row, const LengthKeys& keys, const Count* long_tiles)
    {
        const long long whole = row / LONG_TILE;
        unsigned found = 0, all;
        for (long long tile = threadIdx.x; tile < whole; tile += SORT_THREADS) found += unsigned(long_tiles[tile]);
        for (long long other = whole * LONG_TILE + threadIdx.x; other < row; other += SORT_THREADS)
            found += keys.at(other) == keys.none();
        block_sum_before(found, sums, all);
        return all;
    }

    // Counts the long rows before each chunk; bit q: this thread's element q is one. Warps have whole chunks.
    __device__ __forceinline__ void count(unsigned mine)
    {
        constexpr int each = CHUNK / WARP;
        static_assert(MINE % each == 0, "a warp has whole chunks");
        static_assert(CHUNKS == 2 * WARP, "two to a lane");
#pragma unroll
        for (int k = 0; k < MINE / each; ++k) {
            const unsigned found = __reduce_add_sync(ALL_LANES, unsigned(__popc(mine >> k * each & ((1u << each) - 1))));
            if (lane_id() == 0) chunks[warp_id() * (MINE / each) + k] = found;
        }
        __syncthreads();
        if (warp_id() == 0) {
            const unsigned one = chunks[2 * lane_id()], other = chunks[2 * lane_id() + 1];
            const unsigned sum = warp_sum_before(one + other);
            chunks[2 * lane_id()] = sum;
            chunks[2 * lane_id() + 1] = sum + one;
        }
        __syncthreads();
    }
};

extern "C" __global__ void __launch_bounds__(SORT_THREADS, 1)
dasp_sort_windows(const Start* __restrict__ indptr, long long m, long long count, long long longest, long long most,
                  int bits, long long windows, int left_out, const Count* __restrict__ long_tiles,
                  Index* __restrict__ rows)
{
    __shared__ unsigned words[TILE], sums[SORT_THREADS / WARP + 1];
    __shared__ unsigned short counters[CHUNKS * DIGITS];
    __shared__ Gone gone;
    const Drawn drawn{m, count};
    const LengthKeys keys{indptr, longest, most, drawn.is_sample()};
    const long long window = windows >> WINDOW_BITS * blockIdx.y & ((1 << WINDOW_BITS) - 1);
    const int size = int(min(window ? window : (long long)TILE, count));
    const int per_window = (size + CHUNK - 1) / CHUNK, fit = CHUNKS / per_window;
    const long long first = blockIdx.x * ((long long)fit * size);
    if (first >= count) return;
    const long long first_row = drawn.row(first);
    const int here = int(min(count - first, (long long)fit * size)), whole = here / size;
    const DigitSort sort{counters, sums, per_window, whole * per_window + (here - whole * size + CHUNK - 1) / CHUNK};

    unsigned word[MINE], digit[MINE], is_gone = 0;  // a word: the key of a row, and its place in its window
#pragma unroll
    for (int q = 0; q < MINE; ++q) {
        if (!sort.has(slot_of(q))) continue;
        const int nth = sort.window_of(slot_of(q)), place = slot_of(q) - nth * per_window * CHUNK;
        unsigned key = keys.none();
        if (place < size && nth * size + place < here) {
            key = keys.at(first_row + nth * size + place);
            is_gone |= unsigned(key == keys.none()) << q;
        }
        if (!window && key != keys.none()) key = 0;
        word[q] = key << PLACE_BITS | unsigned(place);
    }
    const long long before = left_out ? gone.before(first, keys, long_tiles) : 0;
    gone.count(is_gone);
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
    Index* const to = rows + blockIdx.y * count + first - before;
#pragma unroll
    for (int q = 0; q < MINE; ++q) {
        if (!sort.has(slot_of(q)) || word[q] >> PLACE_BITS == keys.none()) continue;
        const int nth = sort.window_of(slot_of(q)), begin = nth * size;
        to[begin - int(gone.chunks[nth * per_window]) + slot_of(q) - nth * per_window * CHUNK] =
            Index(first_row + begin + (word[q] & PLACE));
    }
}

#else

using Key = DASP_KEY;
constexpr int KEY_THREADS = 256;

extern "C" __global__ void __launch_bounds__(KEY_THREADS)
dasp_row_keys(const Start* __restrict__ indptr, long long m, long long count, long long width, long long longest,
              long long most, Key* __restrict__ keys, Index* __restrict__ elements)
{
    const Drawn drawn{m, count};
    const LengthKeys lengths{indptr, longest, most, drawn.is_sample()};
    const long long threads = gridDim.x * (long long)KEY_THREADS;
    for (long long i = blockIdx.x * (long long)KEY_THREADS + threadIdx.x; i < count; i += threads) {
        const long long row = drawn.row(i);
        const unsigned key = lengths.at(row);
        keys[row] = (key == lengths.none() ? ceil_div(count, width) : i / width) * (longest + 1) +
                    (key == lengths.none() ? 0 : key);
        elements[i] = Index(row);
    }
}

#endif
