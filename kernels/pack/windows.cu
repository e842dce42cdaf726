// Rows in the order in which slices take them: longest first inside each window, for windows that fit a tile and for one
// of all rows.
//
// Launch: blocks of 1024 threads; dasp_sort_windows where these are few, with more registers, and
// dasp_sort_many_windows where more must run at once. A block takes a ticket, so that tickets follow the order in which
// blocks start, and waits for none but those with lower ones. First come, where all rows are sorted, the tiles of its
// `tile_order`; then `tiles` for each other candidate; then blocks of a warp for each length; and then tiles again.
// A candidate is one of `windows`, or after them all rows, in one window if they fit a tile and else sorted tile by tile
// into `spare`. Those that are wider than a tile are left out, and 0 as well unless there are long rows (`left_out`). A
// tile is as many whole windows as fit; for 0, all that fits. Where windows are whole chunks, and keys one digit, one
// block sorts its tile for all of them, unless they are sorted `apart`: few blocks would leave multiprocessors idle.
// All rows: tiles are sorted each for itself, by the candidate `tile_order` (-1: none), and counted by their keys; sums
// of these, key by key, say where the rows of each key of each tile go.
// A sample, in dasp_sort_windows alone, where `stride` < m: windows divide a tile or are 0, with `left_out`, or of all
// rows, and tiles of `stride` rows in all are drawn from those of m, one of each equal part; long rows count as empty.
// indptr (m + 1); rows of more than `most` entries are in no order; long_tiles: how many these are, see survey.cu.
// longest: entries of the longest other row. bits: of longest + 1. rows (candidates, stride): the orders, without
// that of 0 where it is left out, the one of all rows last.
// counts (longest + 1, tiles of all rows, and one more): how many rows of each key each tile has, and then all before it.
// come (3): 0 before; tickets, and blocks of the first and of the third kind that have ended.

#include "order.cuh"

constexpr int PLACE_BITS = 13;  // of a place in a window
constexpr unsigned short GONE = 1 << PLACE_BITS, PLACE = GONE - 1;
constexpr int MOST_KEYS = CHUNKS * DIGITS;  // that rows of all tiles are counted by

// Windows of which a tile holds a whole number, in whole chunks: powers of two. An element has the same rank in its
// chunk in all of them.
__device__ __forceinline__ bool is_whole(long long window)
{
    return window >= CHUNK && window <= TILE && window % CHUNK == 0 && TILE % window == 0;
}

// The windows that are tried, and where their orders go; m rows that come from `tiles` tiles, or 0 if from as many.
struct Windows {
    const long long* given;
    int count;
    long long m, tiles;
    int left_out;
    Index *rows, *spare;

    // Whether rows are missing in the orders.
    __device__ __forceinline__ bool lacks() const { return left_out && !tiles; }

    // The row of the matrix that is number `first` here, the first one in its tile or not: `drawn_tile` of choose.py.
    __device__ __forceinline__ long long row(long long first) const
    {
        if (!tiles) return first;
        const long long nth = first / TILE, count = m / TILE, begin = nth * tiles / count;
        unsigned word = unsigned(nth) * 0x9e3779b1u;
        word = (word ^ word >> 15) * 0x85ebca77u;
        return (begin + (word ^ word >> 13) % ((nth + 1) * tiles / count - begin)) * TILE + first % TILE;
    }

    __device__ __forceinline__ long long at(int y) const { return y < count ? given[y] : min(m, (long long)TILE); }
    __device__ __forceinline__ Index* order(int y) const
    {
        return y == count && spare ? spare : rows + stored_before(y, given, count, left_out) * m;
    }
    __device__ __forceinline__ Index* all_rows() const
    {
        return rows + stored_before(count, given, count, left_out) * m;
    }
};

// How many long rows come before a tile, and inside of it before each chunk.
struct Gone {
    unsigned chunks[CHUNKS], sums[SORT_THREADS / WARP + 1];

    // Those before a row; every thread of the block calls it.
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

    // Tells how many elements of this thread's warp are gone, a bit for each of this lane. A warp has whole chunks.
    __device__ __forceinline__ void count(unsigned mine)
    {
        constexpr int each = CHUNK / WARP;
        static_assert(MINE % each == 0, "a warp has whole chunks");
#pragma unroll
        for (int k = 0; k < MINE / each; ++k) {
            const unsigned found = __reduce_add_sync(ALL_LANES, unsigned(__popc(mine >> k * each & ((1u << each) - 1))));
            if (lane_id() == 0) chunks[warp_id() * (MINE / each) + k] = found;
        }
        __syncthreads();
    }

    // Makes of these counts those of the chunks before each; every thread of the block calls it.
    __device__ __forceinline__ void add_up()
    {
        static_assert(CHUNKS == 2 * WARP, "two to a lane");
        if (warp_id() == 0) {
            const unsigned one = chunks[2 * lane_id()], other = chunks[2 * lane_id() + 1];
            const unsigned sum = warp_sum_before(one + other);
            chunks[2 * lane_id()] = sum;
            chunks[2 * lane_id() + 1] = sum + one;
        }
        __syncthreads();
    }
};

// Blocks that have come to a place, which others wait for.
__device__ __forceinline__ void arrive(Count* come)
{
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(come, Count(1));
}
__device__ __forceinline__ void wait_for(Count* come, long long blocks)
{
    if (threadIdx.x == 0)
        while (load_message(come) < Count(blocks)) __nanosleep(0);
    __syncthreads();
    __threadfence();
}

// What a block works in.
struct Room {
    unsigned words[TILE];
    unsigned short counters[CHUNKS * DIGITS];
    unsigned sums[SORT_THREADS / WARP + 1];
    Gone gone;
};

// A sort over all rows: of each tile how many rows there are of each key.
struct AllRows {
    static constexpr int AT_ONCE = 4;
    unsigned* counts;
    long long tiles;
    int keys;

    __device__ __forceinline__ unsigned* of(long long key) const { return counts + key * tiles; }
    __device__ __forceinline__ unsigned* totals() const { return counts + keys * tiles; }

    // The keys of a tile that is sorted, in so many slots.
    __device__ __forceinline__ void tell(long long tile, const unsigned* words, unsigned short* found, int slots) const
    {
        for (int key = threadIdx.x; key < keys; key += SORT_THREADS) found[key] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < slots; i += SORT_THREADS) {
            const unsigned key = words[i] >> PLACE_BITS;
            if (key < unsigned(keys) && (i == 0 || words[i - 1] >> PLACE_BITS != key)) found[key] = (unsigned short)-i;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < slots; i += SORT_THREADS) {
            const unsigned key = words[i] >> PLACE_BITS;
            if (key < unsigned(keys) && (i == slots - 1 || words[i + 1] >> PLACE_BITS != key))
                found[key] = (unsigned short)(found[key] + i + 1);
        }
        __syncthreads();
        for (int key = threadIdx.x; key < keys; key += SORT_THREADS) of(key)[tile] = found[key];
    }

    // The same of keys of one digit, from where the elements of each digit and chunk begin.
    __device__ __forceinline__ void tell(long long tile, const unsigned short* begin) const
    {
        for (int key = threadIdx.x; key < keys; key += SORT_THREADS)
            of(key)[tile] = unsigned(begin[(key + 1) * CHUNKS]) - begin[key * CHUNKS];
    }

    // Makes of the counts of a key those of the tiles before each; a warp calls it.
    __device__ __forceinline__ void add_up(long long key) const
    {
        unsigned before = 0;
        for (long long first = lane_id(); first - lane_id() < tiles; first += AT_ONCE * WARP) {
            unsigned mine[AT_ONCE];
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k) mine[k] = first + k * WARP < tiles ? of(key)[first + k * WARP] : 0u;
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k) {
                if (first + k * WARP < tiles) of(key)[first + k * WARP] = before + warp_sum_before(mine[k]);
                else warp_sum_before(mine[k]);
                before += __reduce_add_sync(ALL_LANES, mine[k]);
            }
        }
        if (lane_id() == 0) totals()[key] = before;
    }

    // Puts the rows of a tile, `size` in their order, into the order of all, as soon as `come` of so many blocks say that
    // counts are added up. Every thread of a block calls it.
    __device__ __forceinline__ void place(long long tile, const Index* from, int size, const LengthKeys& of_rows, Count* come,
                                          long long blocks, Room& room, Index* to) const
    {
        static_assert(MOST_KEYS % SORT_THREADS == 0, "each thread has as many keys");
        constexpr int each = MOST_KEYS / SORT_THREADS;
        unsigned short *const key_of = reinterpret_cast<unsigned short*>(room.words), *const begin = room.counters;
        unsigned* const base = room.words + TILE / 2;
        Index row[MINE];
#pragma unroll
        for (int q = 0; q < MINE; ++q) row[q] = slot(q) < size ? from[slot(q)] : Index(-1);
#pragma unroll
        for (int q = 0; q < MINE; ++q)
            if (slot(q) < size) key_of[slot(q)] = (unsigned short)of_rows.at(row[q]);
        __syncthreads();
#pragma unroll
        for (int q = 0; q < MINE; ++q)
            if (slot(q) < size && (slot(q) == 0 || key_of[slot(q) - 1] != key_of[slot(q)]))
                begin[key_of[slot(q)]] = (unsigned short)slot(q);
        wait_for(come, blocks);
        unsigned mine[each], before[each], sum = 0, all;
#pragma unroll
        for (int k = 0; k < each; ++k) {
            const int key = each * threadIdx.x + k;
            mine[k] = key < keys ? totals()[key] : 0u;
            before[k] = key < keys ? of(key)[tile] : 0u;
            sum += mine[k];
        }
        unsigned place = block_sum_before(sum, room.sums, all);
#pragma unroll
        for (int k = 0; k < each; ++k) {
            base[each * threadIdx.x + k] = place + before[k];
            place += mine[k];
        }
        __syncthreads();
#pragma unroll
        for (int q = 0; q < MINE; ++q)
            if (slot(q) < size) to[base[key_of[slot(q)]] + unsigned(slot(q) - begin[key_of[slot(q)]])] = row[q];
    }

    static __device__ __forceinline__ int slot(int q) { return q * SORT_THREADS + int(threadIdx.x); }
};

// What is sorted, and what of it.
struct Job {
    Windows windows;
    LengthKeys keys;
    const Count* long_tiles;
    int bits, candidates, apart, tile_order;
    AllRows all;
};

// Sorts the rows of a tile inside all whole windows, by keys of one digit: elements are ranked once.
struct WholeWindows {
    // Counts of chunks are kept apart by more than a row of banks.
    static constexpr int CHUNK_STRIDE = DIGITS + 2;
    const Job& job;
    Room& room;
    unsigned short *order, *counts;
    long long tile, first, row, gone;  // the row of the matrix that is first
    int chunks;

    // Candidates from `begin` to `end`.
    __device__ __forceinline__ void sort(int begin, int end) const
    {
        unsigned digit[MINE], left = 0;
        const DigitSort chunk_by_chunk{room.counters, room.sums, 1, chunks};
#pragma unroll
        for (int q = 0; q < MINE; ++q) {
            if (!chunk_by_chunk.has(slot_of(q))) continue;
            const bool is_there = first + slot_of(q) < job.windows.m;
            digit[q] = is_there ? job.keys.at(row + slot_of(q)) : job.keys.none();
            left |= unsigned(is_there && digit[q] == job.keys.none()) << q;
        }
        room.gone.count(left);
        room.gone.add_up();
        chunk_by_chunk.count(digit);
        for (int i = threadIdx.x; i < CHUNKS * DIGITS; i += SORT_THREADS)
            counts[i / DIGITS * CHUNK_STRIDE + i % DIGITS] = room.counters[i];
        __syncthreads();
        for (int y = begin; y < end; ++y) {
            if (!is_whole(job.windows.at(y))) continue;
            const int per_window = int(job.windows.at(y)) / CHUNK;
            place(digit, per_window);
            if (y == job.tile_order) job.all.tell(tile, room.counters);
            Index* const to = job.windows.order(y) + first - gone;
#pragma unroll
            for (int q = 0; q < MINE; ++q) {
                if (!chunk_by_chunk.has(slot_of(q)) || (order[slot_of(q)] & GONE)) continue;
                to[slot_of(q) - int(room.gone.chunks[slot_of(q) / CHUNK & -per_window])] =
                    Index(row + (order[slot_of(q)] & PLACE));
            }
            __syncthreads();
        }
    }

    // Puts the elements in order inside windows of so many chunks.
    __device__ __forceinline__ void place(const unsigned (&ranked)[MINE], int per_window) const
    {
        const DigitSort sort{room.counters, room.sums, per_window, chunks};
        const int shift = 31 - __clz(per_window);
        for (int i = threadIdx.x; i < CHUNKS * DIGITS; i += SORT_THREADS) {
            const int digit = i >> shift & (DIGITS - 1), window = i >> shift >> DIGIT_BITS;
            room.counters[i] = counts[(window * per_window + (i & (per_window - 1))) * CHUNK_STRIDE + digit];
        }
        __syncthreads();
        sort.scan();
#pragma unroll
        for (int q = 0; q < MINE; ++q) {
            if (!sort.has(slot_of(q))) continue;
            const unsigned gone = ranked[q] >> RANK_BITS == job.keys.none() ? GONE : 0;
            order[sort.place_of(slot_of(q), ranked[q])] = (unsigned short)(slot_of(q) | gone);
        }
        __syncthreads();
    }
};

// Sorts a tile of a candidate.
__device__ __forceinline__ void sort_tile(const Job& job, long long tile, int y, Room& room)
{
    const Windows& all = job.windows;
    const LengthKeys& keys = job.keys;
    const long long given = all.at(y), m = all.m;
    if (is_whole(given) && job.bits <= DIGIT_BITS) {
        const long long begin = tile * TILE;
        int last = job.candidates - 1;
        while (!is_whole(all.at(last))) --last;
        if (begin >= m || (!job.apart && y != last)) return;
        unsigned short* const order = reinterpret_cast<unsigned short*>(room.words);
        const long long gone = all.lacks() ? room.gone.before(begin, keys, job.long_tiles) : 0;
        const int chunks = int(ceil_div(min(m - begin, (long long)TILE), CHUNK));
        const WholeWindows windows{job, room, order, order + TILE, tile, begin, all.row(begin), gone, chunks};
        windows.sort(job.apart ? y : 0, y + 1);
        return;
    }
    const bool sorts = given > 0;
    if (given > TILE || (!sorts && !all.left_out)) return;
    const int window = int(sorts ? min(given, m) : TILE);
    const int per_window = (window + CHUNK - 1) / CHUNK, fit = CHUNKS / per_window;
    const long long first = tile * (fit * window);
    if (first >= m) return;
    const long long first_row = all.row(first);
    const int here = int(min(m - first, (long long)fit * window)), whole = here / window;
    const DigitSort sort{room.counters, room.sums, per_window,
                         whole * per_window + (here - whole * window + CHUNK - 1) / CHUNK};

    unsigned word[MINE], digit[MINE], gone = 0;
#pragma unroll
    for (int q = 0; q < MINE; ++q) {
        if (!sort.has(slot_of(q))) continue;
        const int nth = sort.window_of(slot_of(q)), place = slot_of(q) - nth * per_window * CHUNK;
        unsigned key = keys.none();
        if (place < window && first + nth * window + place < m) {
            key = keys.at(first_row + nth * window + place);
            gone |= unsigned(key == keys.none()) << q;
        }
        if (!sorts && key != keys.none()) key = 0;
        word[q] = key << PLACE_BITS | unsigned(place);
    }
    const long long before = all.lacks() ? room.gone.before(first, keys, job.long_tiles) : 0;
    room.gone.count(gone);
    room.gone.add_up();
    for (int shift = 0; shift < job.bits; shift += DIGIT_BITS) {
#pragma unroll
        for (int q = 0; q < MINE; ++q) digit[q] = word[q] >> (PLACE_BITS + shift) & (DIGITS - 1);
        sort.count(digit);
        sort.scan();
#pragma unroll
        for (int q = 0; q < MINE; ++q)
            if (sort.has(slot_of(q))) room.words[sort.place_of(slot_of(q), digit[q])] = word[q];
        __syncthreads();
#pragma unroll
        for (int q = 0; q < MINE; ++q)
            if (sort.has(slot_of(q))) word[q] = room.words[slot_of(q)];
    }
    Index* const to = all.order(y) + first - before;
#pragma unroll
    for (int q = 0; q < MINE; ++q) {
        if (!sort.has(slot_of(q)) || word[q] >> PLACE_BITS == keys.none()) continue;
        const int nth = sort.window_of(slot_of(q));
        const int begin = nth * window;
        to[begin - int(room.gone.chunks[nth * per_window]) + slot_of(q) - nth * per_window * CHUNK] =
            Index(first_row + begin + (word[q] & ((1u << PLACE_BITS) - 1)));
    }
    if (y == job.tile_order) job.all.tell(tile, room.words, room.counters, sort.chunks * CHUNK);
}

__device__ __forceinline__ void sort_windows(const Job& job, int tiles, Count* come)
{
    __shared__ Room room;
    __shared__ int ticket;
    const int tile_order = job.tile_order;
    if (threadIdx.x == 0) ticket = tile_order < 0 ? int(blockIdx.x) : int(atomicAdd(come, Count(1)));
    __syncthreads();
    const int all_tiles = int(job.all.tiles);
    const int sums = tile_order < 0 ? 0 : int(job.keys.longest) / (SORT_THREADS / WARP) + 1;
    const int others = int(gridDim.x) - 2 * all_tiles - sums;
    int nth = ticket - all_tiles;
    if (nth < others) {
        int y = nth < 0 ? tile_order : nth / tiles;
        y += int(nth >= 0 && tile_order >= 0 && y >= tile_order);
        sort_tile(job, nth < 0 ? ticket : nth % tiles, y, room);
        if (nth < 0) arrive(come + 1);
        return;
    }
    nth -= others;
    wait_for(come + 1, all_tiles);
    if (nth < sums) {
        const int key = nth * (SORT_THREADS / WARP) + warp_id();
        if (key <= job.keys.longest) job.all.add_up(key);
        arrive(come + 2);
        return;
    }
    nth -= sums;
    const long long begin = (long long)nth * TILE, end = min(begin + TILE, job.windows.m);
    long long first = begin, size = end - begin;
    if (job.windows.lacks()) {
        first -= room.gone.before(begin, job.keys, job.long_tiles);
        __syncthreads();
        size = end - room.gone.before(end, job.keys, job.long_tiles) - first;
        __syncthreads();
    }
    Index* const to = job.windows.all_rows();
    job.all.place(nth, job.windows.order(tile_order) + first, int(size), job.keys, come + 2, sums, room, to);
}

#define DASP_SORT_WINDOWS(name, blocks)                                                                                \
    extern "C" __global__ void __launch_bounds__(SORT_THREADS, blocks)                                                 \
    name(const Start* __restrict__ indptr, const Count* __restrict__ long_tiles, int left_out,                         \
         const long long* __restrict__ windows, int window_count, int candidates, long long m, long long most,         \
         long long longest, int bits, long long stride, int apart, int tiles, int tile_order, Index* rows,             \
         Index* spare, Count* come, unsigned* counts)                                                                  \
    {                                                                                                                  \
        const long long all_tiles = tile_order < 0 ? 0 : ceil_div(stride, TILE);                                       \
        const bool sampled = (blocks) == 1 && stride < m;                                                              \
        const Job job{{windows, window_count, stride, sampled ? m / TILE : 0, left_out, rows, spare},                  \
                      {indptr, longest, most, sampled}, long_tiles, bits, candidates, apart, tile_order,               \
                      {counts, all_tiles, int(longest) + 1}};                                                          \
        sort_windows(job, tiles, come);                                                                                \
    }
DASP_SORT_WINDOWS(dasp_sort_windows, 1)
DASP_SORT_WINDOWS(dasp_sort_many_windows, 2)
