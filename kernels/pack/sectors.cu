// How many sectors of x a block of slices reads: counted exactly, in a sample of places.
//
// A place is up to 16 slices from slice floor(i (slices - 16) / 23) on, i = 0 .. 23; blocks of `by_slice`, of `few` and
// of `many` slices, where these are not 0, follow each other inside it. A sector is 2^`sector_shift` columns.
// Launch: any number of thread blocks of 256 threads along x, which share the places, each for one kind of block, and
// candidates along y: all run at once. rows, windows, before, totals: as in cut.cu. sampled (candidates, SAMPLED): 0
//     before; the steps of the slices that are looked at, and the sectors of each kind of block.
// words (word_count): what is told to the host as soon as all is counted; told, done: see pack.cuh.
// segment_starts, segment_lengths (segments): runs that are slices of one row each, before the others.
// Where the sectors of a block lie close enough together, each has a bit in shared memory; else they are hashed. All
//     blocks of a place are counted at once where the bits of all of them find room.
// slots_...: of the hash table for a block of each kind, a power of two, at least twice its entries. tables (candidates,
//     thread blocks along x, table_slots): for those that do not fit into shared memory, not read if all sectors have
//     bits. The counts do not depend on the order of insertions.

#include "candidates.cuh"

constexpr int PLACES = 24, PLACE_SLICES = 16, SHARED_SLOTS = 8192, AT_ONCE = 4, MARKED_AT_ONCE = 8;
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

// What a thread block is asked for: all blocks of one kind in a place, slices first .. last.
struct Unit {
    int kind, size;
    unsigned slots;
    long long first, last;

    __device__ __forceinline__ void set(int nth, const Kinds<int>& sizes, const Kinds<unsigned>& all_slots,
                                        long long slices)
    {
        kind = 2;  // the largest first: they take longest
        for (int before = nth / PLACES + 1; before > 0 && kind >= 0; --kind) before -= sizes.of(kind) ? 1 : 0;
        ++kind;
        size = sizes.of(kind);
        slots = all_slots.of(kind);
        first = place_of(nth % PLACES, slices);
        last = min(first + PLACE_SLICES, slices);
    }
};

// The slices of a place: their first positions (of a segment -1 - its place), log2 of the lanes to a row, and steps.
struct Sample {
    Unit unit;
    long long first[PLACE_SLICES];
    int shift[PLACE_SLICES], steps[PLACE_SLICES];
    int count;
    unsigned least_not[PLACE_SLICES], most[PLACE_SLICES];  // of a block's sectors: the least with its bits flipped

    __device__ __forceinline__ unsigned least(int block) const { return ~least_not[block]; }

    // So many words have a bit for each sector from the least to the largest one; one where there are none.
    __device__ __forceinline__ unsigned words(int block) const
    {
        return (max(most[block], least(block)) - least(block)) / WARP + 1;
    }
};

// The last tile to which at most `slice` slices come; every thread of the block calls it.
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

// A tile in which slices are found, and what its chunks do to a chain of slices.
struct Searched {
    CutTile tile;
    Count through[CUT_WARPS][WARP];
};

// Finds slices first .. last, which follow the segments. Every thread of the block calls it.
__device__ __forceinline__ void find_slices(const Order& order, const Count* before, long long tiles, int steps,
                                            long long first, long long last, Searched& searched, Sample& sample)
{
    CutTile& tile = searched.tile;
    for (long long t = tile_of(before, tiles, first); t < tiles; ++t) {
        long long slice = before[2 * t] >> 5;
        if (slice >= last) break;
        tile.load(order, t * CUT_TILE, steps);
        const int size = int(min(order.count - t * CUT_TILE, (long long)CUT_TILE));
        searched.through[warp_id()][lane_id()] = tile.through_chunk(size).packed();
        __syncthreads();
        int entry = int(before[2 * t] & 31);
        for (int chunk = 0; threadIdx.x == 0 && chunk < CUT_WARPS && slice < last; ++chunk) {
            const Passage all = Passage::of(searched.through[chunk][entry]);
            const int end = slice + all.slices <= first ? 0 : min((chunk + 1) * CUT_CHUNK, size);
            for (int i = chunk * CUT_CHUNK + entry, k = 0; i < end; i = tile.next(i), ++k) {
                if (slice + k < first || slice + k >= last) continue;
                sample.first[sample.count] = t * CUT_TILE + i;
                sample.shift[sample.count] = tile.shifts[i];
                sample.steps[sample.count++] = tile.steps[i];
            }
            slice += all.slices;
            entry = all.exit;
        }
        __syncthreads();
    }
}

// The tile in which slices are found, and then the hash table.
union Memory {
    Searched searched;
    unsigned table[SHARED_SLOTS];
};

// A set of sectors; how many of the calls put in a new one. Without slots each sector from `least` on has a bit.
struct Sectors {
    unsigned* table;
    unsigned slots, least;

    // Every thread of the block calls it; `words` have the bits.
    __device__ __forceinline__ void clear(unsigned words) const
    {
        if (slots) words = slots;
        for (unsigned i = threadIdx.x; i < words; i += CUT_THREADS) table[i] = slots ? FREE : 0u;
    }

    // Sets the bit of a sector.
    __device__ __forceinline__ bool mark(unsigned sector) const
    {
        unsigned* const word = table + (sector - least) / WARP;
        const unsigned bit = 1u << (sector - least) % WARP;
        return !(peek(word) & bit) && !(atomicOr(word, bit) & bit);
    }

    __device__ __forceinline__ unsigned slot_of(unsigned sector) const { return sector * 0x9e3779b1u & (slots - 1); }

    // Puts in a sector, where its slot was seen to hold `held`.
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

// Where the slots of each lane are in the slices of a place: the runs of rows, or of segments.
struct Runs {
    long long start[PLACE_SLICES][WARP];
    unsigned length[PLACE_SLICES][WARP];

    // A warp calls it for slice k.
    __device__ __forceinline__ void find(int k, const Sample& sample, const Order& order,
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
            length[k][lane_id()] = unsigned(length_of(order.indptr, row));
        }
    }
};

// Where this lane's slots of slice k are.
struct LaneRun {
    long long start;
    unsigned length;
    int shift, lane;

    __device__ __forceinline__ LaneRun(const Runs& runs, const Sample& sample, int k)
        : start(runs.start[k][lane_id()]), length(runs.length[k][lane_id()]), shift(sample.shift[k]),
          lane(lane_id() & ((1 << shift) - 1))
    {
    }

    // Lets a block know between which sectors the columns of a row lie, which rise.
    __device__ __forceinline__ void span(Sample& sample, int block, const Column* indices, int sector_shift) const
    {
        unsigned least_not = 0, most = 0;
        if (length > 0) {
            least_not = ~unsigned(indices[start] >> sector_shift);
            most = unsigned(indices[start + length - 1] >> sector_shift);
        }
        least_not = warp_max(least_not);
        most = warp_max(most);
        if (lane_id() == 0) {
            atomicMax(sample.least_not + block, least_not);
            atomicMax(sample.most + block, most);
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

    // How many sectors are new in the steps from `first` on, of which each `parts`-th MARKED_AT_ONCE are taken, up to
    // `steps`; they have bits.
    __device__ __forceinline__ unsigned mark(const Sectors& sectors, const Column* indices, int sector_shift,
                                             int first, int parts, int steps) const
    {
        unsigned found = 0;
        for (int step = MARKED_AT_ONCE * first; step < steps; step += MARKED_AT_ONCE * parts) {
            unsigned sector[MARKED_AT_ONCE];
            load(sector, indices, sector_shift, step);
#pragma unroll
            for (int k = 0; k < MARKED_AT_ONCE; ++k)
                if (sector[k] != FREE) found += sectors.mark(sector[k]);
        }
        return found;
    }

    // How many sectors are new in AT_ONCE steps from `step` on; all first looks at once.
    __device__ __forceinline__ unsigned insert(const Sectors& sectors, const Column* indices, int sector_shift,
                                               int step) const
    {
        unsigned sector[AT_ONCE], held[AT_ONCE], found = 0;
        load(sector, indices, sector_shift, step);
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
    const Sample& sample;
    const Column* indices;
    int sector_shift;
    unsigned *shared, *spare;  // words for bits or slots

    // All blocks, each with its bits, of which lane b knows how many words come before those of block b.
    __device__ __forceinline__ unsigned count_at_once(unsigned words_before, unsigned words) const
    {
        Sectors{shared, 0u, 0u}.clear(words);
        __syncthreads();
        unsigned found = 0;
        for (int k = warp_id(); k < sample.count; k += CUT_WARPS) {
            const int block = k / sample.unit.size;
            unsigned* const bits = shared + __shfl_sync(ALL_LANES, words_before, block);
            const Sectors sectors{bits, 0u, sample.least(block)};
            found += LaneRun(runs, sample, k).mark(sectors, indices, sector_shift, 0, 1, sample.steps[k]);
        }
        return found;
    }

    // One block after the other, with bits or slots; its warps share slices if these are fewer.
    __device__ __forceinline__ unsigned count_in_turn() const
    {
        const Unit& unit = sample.unit;
        const int warps = max(CUT_WARPS / unit.size, 1), part = warp_id() % warps;
        unsigned found = 0;
        for (int first = 0; first < sample.count; first += unit.size) {
            const int begin = first + warp_id() / warps, end = min(first + unit.size, sample.count);
            const int block = first / unit.size;
            const bool have_bits = sample.words(block) <= SHARED_SLOTS;
            const Sectors sectors{have_bits || unit.slots <= SHARED_SLOTS ? shared : spare,
                                  have_bits ? 0u : unit.slots, sample.least(block)};
            sectors.clear(sample.words(block));
            __syncthreads();
            for (int k = begin; k < end; k += CUT_WARPS / warps) {
                const LaneRun run(runs, sample, k);
                if (have_bits) found += run.mark(sectors, indices, sector_shift, part, warps, sample.steps[k]);
                for (int step = AT_ONCE * part; !have_bits && step < sample.steps[k]; step += AT_ONCE * warps)
                    found += run.insert(sectors, indices, sector_shift, step);
            }
            __syncthreads();
        }
        return found;
    }
};

extern "C" __global__ void __launch_bounds__(CUT_THREADS, 3)
dasp_count_sectors(const Start* __restrict__ indptr, const Column* __restrict__ indices,
                   const Index* __restrict__ rows, long long stride, const long long* __restrict__ windows,
                   int window_count, long long positions, int identity, int steps, const Count* __restrict__ before,
                   const long long* __restrict__ segment_starts, const long long* __restrict__ segment_lengths,
                   long long segments, int sector_shift, int by_slice, int few, int many, unsigned slots_by_slice,
                   unsigned slots_few, unsigned slots_many, const Count* __restrict__ totals, unsigned* tables,
                   long long table_slots, Count* sampled, Count* done, Count* words, int word_count, Count* told)
{
    __shared__ Memory memory;
    __shared__ Sample sample;
    __shared__ Runs runs;
    const Order order = candidate_order(indptr, rows, stride, windows, window_count, positions, identity);
    const long long tiles = ceil_div(positions, CUT_TILE);
    before += blockIdx.y * tiles * 2;
    sampled += blockIdx.y * SAMPLED;
    unsigned* const table = tables + (blockIdx.y * gridDim.x + blockIdx.x) * table_slots;
    const long long all = segments + (long long)totals[blockIdx.y * TOTALS + SLICES];
    const Kinds<int> sizes{by_slice, few, many};
    const Kinds<unsigned> slots{slots_by_slice, slots_few, slots_many};
    const int first_kind = by_slice ? 0 : few ? 1 : 2;
    const int units = PLACES * ((by_slice != 0) + (few != 0) + (many != 0));

    for (int nth = blockIdx.x; nth < units; nth += gridDim.x) {
        const Unit& unit = sample.unit;
        if (threadIdx.x < PLACE_SLICES) sample.least_not[threadIdx.x] = sample.most[threadIdx.x] = 0;
        if (threadIdx.x == 0) {
            sample.unit.set(nth, sizes, slots, all);
            sample.count = 0;
            for (long long s = unit.first; s < min(unit.last, segments); ++s) {
                sample.first[sample.count] = -1 - s;
                sample.shift[sample.count] = MOST_SHIFT;
                sample.steps[sample.count++] = int(ceil_div(segment_lengths[s], WARP));
            }
        }
        __syncthreads();
        if (unit.last > segments)
            find_slices(order, before, tiles, steps, max(unit.first - segments, 0ll), unit.last - segments,
                        memory.searched, sample);
        __syncthreads();
        for (int k = warp_id(); k < sample.count; k += CUT_WARPS) {
            runs.find(k, sample, order, segment_starts, segment_lengths);
            LaneRun(runs, sample, k).span(sample, k / unit.size, indices, sector_shift);
        }
        __syncthreads();
        const Counter counter{runs, sample, indices, sector_shift, memory.table, table};
        const int blocks = int(ceil_div(sample.count, unit.size));
        const unsigned own = lane_id() < blocks ? sample.words(lane_id()) : 0u, before_own = warp_sum_before(own);
        const unsigned bits = __reduce_add_sync(ALL_LANES, own);
        unsigned found = bits <= SHARED_SLOTS ? counter.count_at_once(before_own, bits) : counter.count_in_turn();
        unsigned looked_at = lane_id() < sample.count && warp_id() == 0 ? unsigned(sample.steps[lane_id()]) : 0u;
        found = __reduce_add_sync(ALL_LANES, found);
        looked_at = __reduce_add_sync(ALL_LANES, looked_at);
        if (lane_id() == 0 && found) atomicAdd(sampled + BY_SLICE + unit.kind, Count(found));
        if (lane_id() == 0 && looked_at && unit.kind == first_kind)
            atomicAdd(sampled + SAMPLED_STEPS, Count(looked_at));
        __syncthreads();
    }
    tell_host(done, gridDim.x * Count(gridDim.y), words, word_count, told);
}
