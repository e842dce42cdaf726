// How many sectors of x a block of slices reads: counted exactly, in a sample of places.
//
// A place is up to 16 slices from slice floor(i (slices - 16) / 23) on, i = 0 .. 23; blocks of `by_slice`, of `few` and
// of `many` slices, where these are not 0, follow each other inside it. A sector is `sector_columns` columns.
// Launch: any number of thread blocks of 256 threads along x, which share the blocks of all places; candidates
// along y. rows, windows, before, totals: as in cut.cu. sampled (candidates, SAMPLED): 0 before; the steps of the slices
//     that are looked at, and the sectors of each kind of block.
// segment_starts, segment_lengths (segments): runs that are slices of one row each, before the others.
// Where the sectors of a block lie close enough together, each has a bit in shared memory; else they are hashed.
// slots_...: of the hash table for a block of each kind, a power of two, at least twice its entries. tables (candidates,
//     thread blocks along x, table_slots): for those that do not fit into shared memory, not read if all sectors have
//     bits. The counts do not depend on the order of insertions.

#include "candidates.cuh"

constexpr int PLACES = 24, PLACE_SLICES = 16, SHARED_SLOTS = 8192, AT_ONCE = 4;
constexpr unsigned FREE = 0xffffffffu;

// Slices of one block: their first positions (of a segment -1 - its place), log2 of the lanes to a row, and steps.
struct Sample {
    long long first[PLACE_SLICES];
    int shift[PLACE_SLICES], steps[PLACE_SLICES];
    int count;
    unsigned least_not, most;  // of the sectors: the least one with its bits flipped, and the largest

    __device__ __forceinline__ void clear()
    {
        count = 0;
        least_not = most = 0;
    }
};

// The i-th place, with the rounding of numpy.linspace.
__device__ __forceinline__ long long place_of(int i, long long slices)
{
    const long long last = max(slices - PLACE_SLICES, 0ll);
    return i == PLACES - 1 ? last : (long long)(double(i) * (double(last) / double(PLACES - 1)));
}

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

// Finds slices first .. last, which follow the segments. Every thread of the block calls it.
__device__ __forceinline__ void find_slices(const Order& order, const Count* before, long long tiles, int steps,
                                            long long first, long long last, CutTile& tile, Sample& sample)
{
    for (long long t = tile_of(before, tiles, first); t < tiles; ++t) {
        long long slice = before[2 * t] >> 5;
        if (slice >= last) break;
        tile.load(order, t * CUT_TILE, steps);
        if (threadIdx.x == 0) {
            const int size = int(min(order.count - t * CUT_TILE, (long long)CUT_TILE));
            for (int i = int(before[2 * t] & 31); i < size && slice < last; i = tile.next(i), ++slice) {
                if (slice < first) continue;
                sample.first[sample.count] = t * CUT_TILE + i;
                sample.shift[sample.count] = tile.shifts[i];
                sample.steps[sample.count++] = tile.steps[i];
            }
        }
        __syncthreads();
    }
}

// The tile in which slices are found, and then the hash table.
union Memory {
    CutTile tile;
    unsigned table[SHARED_SLOTS];
};

// A set of sectors; how many of the calls put in a new one. Without slots each sector from `least` on has a bit.
struct Sectors {
    unsigned* table;
    unsigned slots, least;

    // Every thread of the block calls it.
    __device__ __forceinline__ void clear(unsigned most) const
    {
        const unsigned words = slots ? slots : (most - least) / WARP + 1;
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

// Where this lane's slots of a slice are: the run of its row, or of a segment.
struct LaneRun {
    long long start = 0, length = 0;
    int lane;

    __device__ __forceinline__ LaneRun(const Order& order, const long long* segment_starts,
                                       const long long* segment_lengths, long long first, int shift)
        : lane(lane_id() & ((1 << shift) - 1))
    {
        const long long position = first + (lane_id() >> shift);
        if (first < 0) {
            start = segment_starts[-1 - first];
            length = segment_lengths[-1 - first];
        } else if (position < order.count) {
            const long long row = order.row(position);
            start = order.indptr[row];
            length = length_of(order.indptr, row);
        }
    }

    // Lets a block know between which sectors the columns of a row lie, which rise.
    __device__ __forceinline__ void span(Sample& sample, const Column* indices, int sector_columns) const
    {
        unsigned least_not = 0, most = 0;
        if (length > 0) {
            least_not = ~unsigned(indices[start] / sector_columns);
            most = unsigned(indices[start + length - 1] / sector_columns);
        }
        least_not = warp_max(least_not);
        most = warp_max(most);
        if (lane_id() == 0) {
            atomicMax(&sample.least_not, least_not);
            atomicMax(&sample.most, most);
        }
    }

    // How many sectors are new in AT_ONCE steps from `step` on; all loads, and then all first looks, at once.
    __device__ __forceinline__ unsigned insert(const Sectors& sectors, const Column* indices, int sector_columns,
                                               long long step, int shift) const
    {
        unsigned sector[AT_ONCE], held[AT_ONCE], found = 0;
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const long long place = ((step + k) << shift) + lane;
            sector[k] = place < length ? unsigned(indices[start + place] / sector_columns) : FREE;
        }
        if (!sectors.slots) {
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k)
                if (sector[k] != FREE) found += sectors.mark(sector[k]);
            return found;
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k)
            held[k] = sector[k] == FREE ? FREE : peek(sectors.table + sectors.slot_of(sector[k]));
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k)
            if (sector[k] != FREE) found += sectors.insert(sector[k], held[k]);
        return found;
    }
};

// Something for each kind of block.
template <class T> struct Kinds {
    T by_slice, few, many;

    __device__ __forceinline__ T of(int kind) const { return kind == 0 ? by_slice : kind == 1 ? few : many; }
};

// What a thread block is asked for: one block of slices, of one kind.
struct Unit {
    int kind, size;
    unsigned slots;
    long long first, last;

    __device__ __forceinline__ Unit(int nth, const Kinds<int>& sizes, const Kinds<unsigned>& all_slots,
                                    long long slices)
    {
        // The largest first: they take longest.
        kind = nth < units(sizes.many) ? 2 : nth < units(sizes.many) + units(sizes.few) ? 1 : 0;
        nth -= (kind < 2 ? units(sizes.many) : 0) + (kind < 1 ? units(sizes.few) : 0);
        size = sizes.of(kind);
        slots = all_slots.of(kind);
        const int blocks = units(size) / PLACES;
        const long long place = place_of(nth / blocks, slices);
        first = place + nth % blocks * size;
        last = min(min(first + size, place + PLACE_SLICES), slices);
    }

    static __device__ __forceinline__ int units(int size)
    {
        return size ? PLACES * ((PLACE_SLICES + size - 1) / size) : 0;
    }
};

extern "C" __global__ void __launch_bounds__(CUT_THREADS, 3)
dasp_count_sectors(const Start* __restrict__ indptr, const Column* __restrict__ indices,
                   const Index* __restrict__ rows, long long stride, const long long* __restrict__ windows,
                   int window_count, long long positions, int identity, int steps, const Count* __restrict__ before,
                   const long long* __restrict__ segment_starts, const long long* __restrict__ segment_lengths,
                   long long segments, int sector_columns, int by_slice, int few, int many, unsigned slots_by_slice,
                   unsigned slots_few, unsigned slots_many, const Count* __restrict__ totals, unsigned* tables,
                   long long table_slots, Count* sampled)
{
    __shared__ Memory memory;
    __shared__ Sample sample;
    const Order order = candidate_order(indptr, rows, stride, windows, window_count, positions, identity);
    const long long tiles = ceil_div(positions, CUT_TILE);
    before += blockIdx.y * tiles * 2;
    sampled += blockIdx.y * SAMPLED;
    unsigned* const table = tables + (blockIdx.y * gridDim.x + blockIdx.x) * table_slots;
    const long long all = segments + (long long)totals[blockIdx.y * TOTALS + SLICES];
    const Kinds<int> sizes{by_slice, few, many};
    const Kinds<unsigned> slots{slots_by_slice, slots_few, slots_many};
    const int first_kind = by_slice ? 0 : few ? 1 : 2;
    const int units = Unit::units(by_slice) + Unit::units(few) + Unit::units(many);

    for (int nth = blockIdx.x; nth < units; nth += gridDim.x) {
        const Unit unit(nth, sizes, slots, all);
        if (unit.first >= unit.last) continue;
        if (threadIdx.x == 0) {
            sample.clear();
            for (long long s = unit.first; s < min(unit.last, segments); ++s) {
                sample.first[sample.count] = -1 - s;
                sample.shift[sample.count] = MOST_SHIFT;
                sample.steps[sample.count++] = int(ceil_div(segment_lengths[s], WARP));
            }
        }
        __syncthreads();
        if (unit.last > segments)
            find_slices(order, before, tiles, steps, max(unit.first - segments, 0ll), unit.last - segments,
                        memory.tile, sample);
        __syncthreads();
        const int warps = max(CUT_WARPS / unit.size, 1), part = warp_id() % warps;  // that share a slice
        for (int k = warp_id() / warps; k < sample.count; k += CUT_WARPS / warps)
            LaneRun(order, segment_starts, segment_lengths, sample.first[k], sample.shift[k])
                .span(sample, indices, sector_columns);
        __syncthreads();
        const bool have_bits = ~sample.least_not > sample.most || sample.most - ~sample.least_not < WARP * SHARED_SLOTS;
        const Sectors sectors{have_bits || unit.slots <= SHARED_SLOTS ? memory.table : table,
                              have_bits ? 0u : unit.slots, ~sample.least_not};
        sectors.clear(max(sample.most, ~sample.least_not));
        __syncthreads();

        unsigned found = 0, looked_at = 0;
        for (int k = warp_id() / warps; k < sample.count; k += CUT_WARPS / warps) {
            const LaneRun run(order, segment_starts, segment_lengths, sample.first[k], sample.shift[k]);
            for (int step = AT_ONCE * part; step < sample.steps[k]; step += AT_ONCE * warps)
                found += run.insert(sectors, indices, sector_columns, step, sample.shift[k]);
            looked_at += part == 0 && lane_id() == 0 ? unsigned(sample.steps[k]) : 0u;
        }
        found = __reduce_add_sync(ALL_LANES, found);
        looked_at = __reduce_add_sync(ALL_LANES, looked_at);
        if (lane_id() == 0 && found) atomicAdd(sampled + BY_SLICE + unit.kind, Count(found));
        if (lane_id() == 0 && looked_at && unit.kind == first_kind) atomicAdd(sampled + SAMPLED_STEPS, Count(looked_at));
        __syncthreads();
    }
}
