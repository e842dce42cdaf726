// Counts the sectors of x that blocks of slices read: exactly, in a sample of places.
//
// A place is up to 16 slices from slice floor(i (slices - 16) / 23) on, i = 0 .. 23. It has blocks of
// `by_slice`, of `few` and of `many` slices, unless these are 0. A sector is 2^`sector_shift` columns.
// Launch: any number of thread blocks of 512 threads along x, which share the places, and candidates along y. A warp takes
//     a slice.
// rows, unmoved, before, totals: as in cut.cu. sampled (candidates, NUMBERS): 0 before; gets the steps of the
//     sampled slices, and the sectors of each kind of block.
// segment_starts, segment_lengths (segments): first entries and lengths of segments, the first slices.
// If the sectors of a block lie close together, each has a bit in shared memory; else they are hashed.
//     Blocks of one or more kinds are counted at once if there is room for the bits of all.
// shared_slots: words of 4 bytes of dynamic shared memory, for a tile at least.
// slots_...: the most slots of a hash table for a block of a kind: a power of two, twice its entries or more.
// tables (candidates, thread blocks along x, table_slots): hash tables that do not fit into shared memory;
//     not read if all sectors have bits.
// Deterministic: integers are counted, and the counts do not depend on the order of insertions.

#include "pack/cut.cuh"

constexpr int PLACES = 24, PLACE_SLICES = 16, KINDS = 3, AT_ONCE = 4, MARKED_AT_ONCE = 8;
constexpr unsigned FREE = 0xffffffffu;

// The i-th place, with the rounding of numpy.linspace.
__device__ __forceinline__ long long place_of(int i, long long slices)
{
    const long long last = max(slices - PLACE_SLICES, 0ll);
    return i == PLACES - 1 ? last : (long long)(double(i) * (double(last) / double(PLACES - 1)));
}

// Something for each kind of block.
template <class T> struct Kinds {
    T by_slice, few, many;

    __device__ __forceinline__ T of(int kind) const { return kind == 0 ? by_slice : kind == 1 ? few : many; }
};

// The slices of a place: their first positions (of a segment -1 - its place), log2 of the lanes to a row, and steps.
struct Sample {
    long long begin, end;
    long long first[PLACE_SLICES];
    int shift[PLACE_SLICES], steps[PLACE_SLICES];
    unsigned entries[PLACE_SLICES];
    // Of the sectors of each block of each kind: the least with its bits flipped, and the largest.
    unsigned least_not[KINDS][PLACE_SLICES], most[KINDS][PLACE_SLICES];
    unsigned words_before[KINDS][PLACE_SLICES];  // of the blocks that are counted at the same time

    __device__ __forceinline__ int count() const { return int(end - begin); }
    __device__ __forceinline__ unsigned least(int kind, int block) const { return ~least_not[kind][block]; }

    // The words that have a bit for each sector from the least to the largest one; 1 if there are no sectors.
    __device__ __forceinline__ unsigned words(int kind, int block) const
    {
        return (max(most[kind][block], least(kind, block)) - least(kind, block)) / WARP + 1;
    }
};

// The last tile with at most `slice` slices before it; every thread of the block calls this.
__device__ __forceinline__ long long tile_of(const Count* before, long long tiles, long long slice)
{
    long long low = 0;
    for (long long step = 1; step > 0;) {
        step = ceil_div(tiles - low, CUT_THREADS);
        const long long mine = low + threadIdx.x * step;
        const int counted = __syncthreads_count(mine < tiles && (long long)(before[2 * mine] >> 5) <= slice);
        low += (counted - 1) * step;
        tiles = min(tiles, low + step);
        if (step == 1) break;
    }
    return low;
}

// A tile in which slices are found, and the passages of chains of slices through its chunks.
struct Searched {
    CutTile tile;
    Count through[CUT_WARPS][WARP];
};

// Finds slices `first` to last - 1, counted without segments. Every thread of the block calls this.
__device__ __forceinline__ void find_slices(const Order& order, const Count* before, long long tiles, int steps,
                                            int even, long long first, long long last, Searched& searched,
                                            Sample& sample)
{
    CutTile& tile = searched.tile;
    const long long found = sample.count() - last;  // slice s is the found + s-th of the place
    for (long long t = tile_of(before, tiles, first); t < tiles; ++t) {
        const Count come = before[2 * t];
        if ((long long)(come >> 5) >= last) break;
        tile.load(order, t * CUT_TILE, steps, even);
        const int size = int(min(order.count - t * CUT_TILE, (long long)CUT_TILE));
        searched.through[warp_id()][lane_id()] = tile.through_chunk(size).packed();
        __syncthreads();
        if (lane_id() == 0) {
            long long slice = come >> 5;
            int entry = int(come & 31);
            for (int chunk = 0; chunk < warp_id(); ++chunk) {
                const Passage one = Passage::of(searched.through[chunk][entry]);
                slice += one.slices;
                entry = one.exit;
            }
            const long long behind = slice + Passage::of(searched.through[warp_id()][entry]).slices;
            const int end = behind <= first ? 0 : min((warp_id() + 1) * CUT_CHUNK, size);
            for (int i = warp_id() * CUT_CHUNK + entry; i < end && slice < last; i = tile.next(i), ++slice) {
                if (slice < first) continue;
                sample.first[found + slice] = t * CUT_TILE + i;
                sample.shift[found + slice] = tile.shift(i);
                sample.steps[found + slice] = tile.steps(i);
            }
        }
        __syncthreads();
    }
}

// A set of sectors that counts new ones: a hash table or, with 0 slots, a bit for each one from `least` on.
struct Sectors {
    unsigned* table;
    unsigned slots, least;

    // Every thread of the block calls this. words: those that have the bits.
    __device__ __forceinline__ void clear(unsigned words) const
    {
        if (slots) words = slots;
        for (unsigned i = threadIdx.x; i < words; i += CUT_THREADS) table[i] = slots ? FREE : 0u;
    }

    // Sets the bits of sectors that are not FREE, and returns how many are new; all loads come first.
    template <int COUNT> __device__ __forceinline__ unsigned mark(const unsigned (&sector)[COUNT]) const
    {
        unsigned held[COUNT], found = 0;
#pragma unroll
        for (int k = 0; k < COUNT; ++k) held[k] = sector[k] == FREE ? FREE : peek(word_of(sector[k]));
#pragma unroll
        for (int k = 0; k < COUNT; ++k)
            if (const unsigned bit = bit_of(sector[k]); !(held[k] & bit)) found += !(atomicOr(word_of(sector[k]), bit) & bit);
        return found;
    }

    __device__ __forceinline__ unsigned* word_of(unsigned sector) const { return table + (sector - least) / WARP; }
    __device__ __forceinline__ unsigned bit_of(unsigned sector) const { return 1u << (sector - least) % WARP; }

    __device__ __forceinline__ unsigned slot_of(unsigned sector) const { return sector * 0x9e3779b1u & (slots - 1); }

    // Inserts a sector, whose first slot was seen to hold `held`. Returns whether it is new.
    __device__ __forceinline__ bool insert(unsigned sector, unsigned held) const
    {
        for (unsigned slot = slot_of(sector); held != sector;) {
            if (held == FREE) held = atomicCAS(table + slot, FREE, sector);
            if (held == FREE) return true;
            if (held == sector) return false;
            slot = (slot + 1) & (slots - 1);
            held = peek(table + slot);
        }
        return false;
    }
};

// The run of each lane in the slices of a place: the entries of its row, or of its segment.
struct Runs {
    long long start[PLACE_SLICES][WARP];
    unsigned length[PLACE_SLICES][WARP];

    // A warp calls it for slice k.
    __device__ __forceinline__ void find(int k, const Sample& sample, const Order& order, int most_steps,
                                         const long long* segment_starts, const long long* segment_lengths)
    {
        const long long first = sample.first[k], position = first + (lane_id() >> sample.shift[k]);
        start[k][lane_id()] = length[k][lane_id()] = 0;
        if (first < 0) {
            start[k][lane_id()] = segment_starts[-1 - first];
            length[k][lane_id()] = unsigned(segment_lengths[-1 - first]);
        } else if (position < order.count) {
            const long long row = order.row(position);
            start[k][lane_id()] = order.indptr[row];
            length[k][lane_id()] = order.length(row, most_steps);
        }
    }
};

// This lane's share of its run in slice k.
struct LaneRun {
    long long start;
    unsigned length;
    int shift, lane;

    __device__ __forceinline__ LaneRun(const Runs& runs, const Sample& sample, int k)
        : start(runs.start[k][lane_id()]), length(runs.length[k][lane_id()]), shift(sample.shift[k]),
          lane(lane_id() & ((1 << shift) - 1))
    {
    }

    // Extends the sectors' range of each block with slice k by the slice's columns, which rise in a row.
    __device__ __forceinline__ void span(Sample& sample, int k, const Kinds<int>& sizes, const Column* indices,
                                         int sector_shift) const
    {
        unsigned least_not = 0, most = 0;
        if (length > 0) {
            least_not = ~unsigned(indices[start] >> sector_shift);
            most = unsigned(indices[start + length - 1] >> sector_shift);
        }
        least_not = warp_max(least_not);
        most = warp_max(most);
        const int size = sizes.of(lane_id());
        if (lane_id() < KINDS && size) {
            atomicMax(sample.least_not[lane_id()] + k / size, least_not);
            atomicMax(sample.most[lane_id()] + k / size, most);
        }
    }

    // The sectors of COUNT steps from `step` on, FREE where there is no entry; all loads at once.
    template <int COUNT>
    __device__ __forceinline__ void load(unsigned (&sector)[COUNT], const Column* indices, int sector_shift,
                                         int step) const
    {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            const unsigned place = unsigned((step + k) << shift) + lane;
            sector[k] = place < length ? unsigned(indices[start + place] >> sector_shift) : FREE;
        }
    }

    // Adds the sectors of AT_ONCE steps from `step` on, and returns how many are new; all loads come first.
    __device__ __forceinline__ unsigned count(const Sectors& sectors, const Column* indices, int sector_shift,
                                              int step) const
    {
        unsigned sector[AT_ONCE], held[AT_ONCE], found = 0;
        load(sector, indices, sector_shift, step);
        if (!sectors.slots) return sectors.mark(sector);
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k)
            held[k] = sector[k] == FREE ? FREE : peek(sectors.table + sectors.slot_of(sector[k]));
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k)
            if (sector[k] != FREE) found += sectors.insert(sector[k], held[k]);
        return found;
    }
};

// Counts the sectors of the blocks of a place; every thread of the block calls it.
struct Counter {
    const Runs& runs;
    Sample& sample;
    const Kinds<int>& sizes;
    const Column* indices;
    int sector_shift;
    unsigned *shared, *spare;  // words for bits or slots
    unsigned room;             // words that are shared
    Count* sampled;

    __device__ __forceinline__ int blocks(int kind) const
    {
        return sizes.of(kind) ? (sample.count() + sizes.of(kind) - 1) / sizes.of(kind) : 0;
    }

    __device__ __forceinline__ void add(int kind, unsigned found) const
    {
        found = __reduce_add_sync(ALL_LANES, found);
        if (lane_id() == 0 && found) atomicAdd(sampled + BY_SLICE + kind, Count(found));
    }

    // Counts all kinds, as many at once as there is room for.
    __device__ __forceinline__ void count(const Kinds<unsigned>& slots) const
    {
        for (int kind = 0; kind < KINDS;) {
            int end = kind;
            unsigned words = 0;
            for (; end < KINDS; ++end) {
                const unsigned own = lane_id() < blocks(end) ? sample.words(end, lane_id()) : 0u;
                const unsigned all = words + __reduce_add_sync(ALL_LANES, own), before = words + warp_sum_before(own);
                if (all > room) break;
                if (warp_id() == 0 && lane_id() < PLACE_SLICES) sample.words_before[end][lane_id()] = before;
                words = all;
            }
            if (words) count_at_once(kind, end, words);
            if (end == kind) count_in_turn(end++, slots);
            kind = end;
        }
    }

    // Counts all blocks of some kinds at once, each with its bits; loads columns once. A warp takes a slice.
    __device__ __forceinline__ void count_at_once(int begin, int end, unsigned words) const
    {
        constexpr int bits = 21;  // of the count of one kind, in a lane or a warp
        Sectors{shared, 0u, 0u}.clear(words);
        __syncthreads();
        Count found = 0;
        const int k = warp_id();
        if (k < sample.count()) {
            const LaneRun run(runs, sample, k);
            for (int step = 0; step < sample.steps[k]; step += MARKED_AT_ONCE) {
                unsigned sector[MARKED_AT_ONCE];
                run.load(sector, indices, sector_shift, step);
#pragma unroll 1
                for (int kind = begin; kind < end; ++kind) {
                    if (!sizes.of(kind)) continue;
                    const int block = k / sizes.of(kind);
                    const Sectors sectors{shared + sample.words_before[kind][block], 0u, sample.least(kind, block)};
                    found += Count(sectors.mark(sector)) << bits * kind;
                }
            }
        }
        for (int kind = begin; kind < end; ++kind) add(kind, unsigned(found >> bits * kind) & ((1u << bits) - 1));
        __syncthreads();
    }

    // Counts one block of a kind after the other, with bits or slots; warps share slices if these are fewer.
    __device__ __forceinline__ void count_in_turn(int kind, const Kinds<unsigned>& all_slots) const
    {
        const int size = sizes.of(kind), warps = max(CUT_WARPS / size, 1), part = warp_id() % warps;
        unsigned found = 0;
        for (int block = 0; block < blocks(kind); ++block) {
            const int begin = block * size + warp_id() / warps, end = min((block + 1) * size, sample.count());
            const bool have_bits = sample.words(kind, block) <= room;
            const bool mine = lane_id() / size == block && lane_id() < sample.count();
            const unsigned most = 2 * __reduce_add_sync(ALL_LANES, mine ? sample.entries[lane_id()] : 0u);
            const unsigned slots = min(all_slots.of(kind), 1u << (WARP - __clz(max(most, 64u) - 1)));
            const Sectors sectors{have_bits || slots <= room ? shared : spare, have_bits ? 0u : slots,
                                  sample.least(kind, block)};
            sectors.clear(sample.words(kind, block));
            __syncthreads();
            for (int k = begin; k < end; k += CUT_WARPS / warps) {
                const LaneRun run(runs, sample, k);
                for (int step = AT_ONCE * part; step < sample.steps[k]; step += AT_ONCE * warps)
                    found += run.count(sectors, indices, sector_shift, step);
            }
            __syncthreads();
        }
        add(kind, found);
    }
};

extern "C" __global__ void __launch_bounds__(CUT_THREADS, 2)
dasp_count_sectors(const Start* __restrict__ indptr, const Column* __restrict__ indices,
                   const Index* __restrict__ rows, long long stride, int unmoved, long long positions, int steps, int even,
                   const Count* __restrict__ before, const long long* __restrict__ segment_starts,
                   const long long* __restrict__ segment_lengths, long long segments, int sector_shift, int by_slice,
                   int few, int many, unsigned slots_by_slice, unsigned slots_few, unsigned slots_many,
                   const Count* __restrict__ totals, unsigned* tables, long long table_slots, int shared_slots,
                   Count* sampled)
{
    static_assert(CUT_WARPS == PLACE_SLICES, "a warp for each slice of a place");
    extern __shared__ __align__(16) unsigned shared[];  // the tile in which slices are found, and then tables
    __shared__ Sample sample;
    __shared__ Runs runs;
    const Order order = candidate_order(indptr, rows, stride, unmoved, positions);
    const long long tiles = ceil_div(positions, CUT_TILE);
    before += blockIdx.y * tiles * 2;
    sampled += blockIdx.y * NUMBERS;
    unsigned* const table = tables + (blockIdx.y * gridDim.x + blockIdx.x) * table_slots;
    const long long all = segments + (long long)totals[blockIdx.y * NUMBERS + SLICES];
    const Kinds<int> sizes{by_slice, few, many};
    const Kinds<unsigned> slots{slots_by_slice, slots_few, slots_many};
    const int k = warp_id();

    for (int nth = blockIdx.x; nth < PLACES; nth += gridDim.x) {
        if (threadIdx.x < PLACE_SLICES)
            for (int kind = 0; kind < KINDS; ++kind)
                sample.least_not[kind][threadIdx.x] = sample.most[kind][threadIdx.x] = 0;
        if (threadIdx.x == 0) {
            sample.begin = place_of(nth, all);
            sample.end = min(sample.begin + PLACE_SLICES, all);
        }
        __syncthreads();
        const long long segment = sample.begin + threadIdx.x;
        if (segment < min(sample.end, segments)) {
            sample.first[threadIdx.x] = -1 - segment;
            sample.shift[threadIdx.x] = MOST_SHIFT;
            sample.steps[threadIdx.x] = int(ceil_div(segment_lengths[segment], WARP));
        }
        if (sample.end > segments)
            find_slices(order, before, tiles, steps, even, max(sample.begin - segments, 0ll), sample.end - segments,
                        *reinterpret_cast<Searched*>(shared), sample);
        __syncthreads();
        if (k < sample.count()) {
            runs.find(k, sample, order, steps, segment_starts, segment_lengths);
            LaneRun(runs, sample, k).span(sample, k, sizes, indices, sector_shift);
            const unsigned entries = __reduce_add_sync(ALL_LANES, runs.length[k][lane_id()]) >> sample.shift[k];
            if (lane_id() == 0) sample.entries[k] = entries;
        }
        __syncthreads();
        Counter{runs, sample, sizes, indices, sector_shift, shared, table, unsigned(shared_slots), sampled}
            .count(slots);
        if (lane_id() == 0 && k < sample.count()) atomicAdd(sampled + SAMPLED_STEPS, Count(sample.steps[k]));
        __syncthreads();
    }
}
