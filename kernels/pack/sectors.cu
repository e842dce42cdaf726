// How many sectors of x a block of slices reads: counted exactly, in a sample of places.
//
// A place is up to 16 slices from slice floor(i (slices - 16) / 23) on, i = 0 .. 23; blocks of `block_slices` follow
// each other inside it. A sector is `sector_columns` columns.
// Launch: any number of thread blocks of 256 threads along x, which share the blocks of all places; candidates
// along y. rows, windows, before, totals: as in cut.cu. sampled (candidates, SAMPLED): the number `kind` of each is
//     added to, and with `steps_too` the steps of the slices that are looked at.
// segment_starts, segment_lengths (segments): runs that are slices of one row each, before the others.
// tables (candidates, blocks along x, slots) or null: a hash table of `slots`, a power of two, at least twice the
//     entries of a block; null if SHARED_SLOTS are enough. The count does not depend on the order of insertions.

#include "candidates.cuh"

constexpr int PLACES = 24, PLACE_SLICES = 16, SHARED_SLOTS = 8192;
constexpr unsigned FREE = 0xffffffffu;

// Slices of one block: their first positions, log2 of the lanes to a row, and steps.
struct Sample {
    long long first[PLACE_SLICES];
    int shift[PLACE_SLICES], steps[PLACE_SLICES];
    int count;
};

// The i-th place, with the rounding of numpy.linspace.
__device__ __forceinline__ long long place_of(int i, long long slices)
{
    const long long last = max(slices - PLACE_SLICES, 0ll);
    return i == PLACES - 1 ? last : (long long)(double(i) * (double(last) / double(PLACES - 1)));
}

// Finds slices first .. last, which follow the segments. Every thread of the block calls it.
__device__ __forceinline__ void find_slices(const Order& order, const Count* before, long long tiles, int steps,
                                            long long first, long long last, CutTile& tile, Sample& sample)
{
    long long low = 0, high = tiles;  // the tile in which slice `first` begins: the last one not after it
    while (high - low > 1) {
        const long long middle = (low + high) / 2;
        if ((long long)(before[2 * middle] >> 5) <= first) low = middle;
        else high = middle;
    }
    for (long long t = low; t < tiles; ++t) {
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

// A set of sectors; how many of the calls put in a new one.
struct Sectors {
    unsigned* table;
    unsigned slots;

    __device__ __forceinline__ bool insert(unsigned sector) const
    {
        for (unsigned slot = sector * 0x9e3779b1u & (slots - 1);; slot = (slot + 1) & (slots - 1)) {
            unsigned held = peek(table + slot);
            if (held == FREE) held = atomicCAS(table + slot, FREE, sector);
            if (held == FREE) return true;
            if (held == sector) return false;
        }
    }

    // The new sectors of a run, counted by lane; a warp calls it.
    __device__ __forceinline__ unsigned insert_run(const Column* indices, long long start, long long length,
                                                   int sector_columns) const
    {
        unsigned found = 0;
        for (long long i = lane_id(); i < length; i += WARP)
            found += insert(unsigned(indices[start + i] / sector_columns));
        return found;
    }
};

extern "C" __global__ void __launch_bounds__(CUT_THREADS, 2)
dasp_count_sectors(const Start* __restrict__ indptr, const Column* __restrict__ indices,
                   const Index* __restrict__ rows, long long stride, const long long* __restrict__ windows,
                   int window_count, long long positions, int identity, int steps, const Count* __restrict__ before,
                   const long long* __restrict__ segment_starts, const long long* __restrict__ segment_lengths,
                   long long segments, int sector_columns, int block_slices, int kind, int steps_too,
                   const Count* __restrict__ totals, unsigned* tables, unsigned slots, Count* sampled)
{
    __shared__ Memory memory;
    __shared__ Sample sample;
    const Order order = candidate_order(indptr, rows, stride, windows, window_count, positions, identity);
    const long long tiles = ceil_div(positions, CUT_TILE);
    before += blockIdx.y * tiles * 2;
    sampled += blockIdx.y * SAMPLED;
    const Sectors sectors{tables ? tables + (blockIdx.y * gridDim.x + blockIdx.x) * (long long)slots : memory.table,
                          slots};
    const long long all = segments + (long long)totals[blockIdx.y * TOTALS + SLICES];
    const int blocks = PLACE_SLICES / block_slices + (PLACE_SLICES % block_slices > 0);

    for (int unit = blockIdx.x; unit < PLACES * blocks; unit += gridDim.x) {
        const long long place = place_of(unit / blocks, all), first = place + unit % blocks * block_slices;
        const long long last = min(min(first + block_slices, place + PLACE_SLICES), all);
        if (first >= last) continue;
        if (threadIdx.x == 0) sample.count = 0;
        __syncthreads();
        if (last > segments)
            find_slices(order, before, tiles, steps, max(first - segments, 0ll), last - segments, memory.tile, sample);
        for (unsigned i = threadIdx.x; i < slots; i += CUT_THREADS) sectors.table[i] = FREE;
        __syncthreads();
        unsigned found = 0, found_steps = 0;
        for (long long s = first + warp_id(); s < min(last, segments); s += CUT_WARPS) {
            found += sectors.insert_run(indices, segment_starts[s], segment_lengths[s], sector_columns);
            found_steps += lane_id() == 0 ? unsigned(ceil_div(segment_lengths[s], WARP)) : 0u;
        }
        for (int k = 0; k < sample.count; ++k) {
            found_steps += threadIdx.x == 0 ? sample.steps[k] : 0;
            const long long end = min(sample.first[k] + (WARP >> sample.shift[k]), positions);
            for (long long position = sample.first[k] + warp_id(); position < end; position += CUT_WARPS) {
                const long long row = order.row(position);
                found += sectors.insert_run(indices, indptr[row], length_of(indptr, row), sector_columns);
            }
        }
        found = __reduce_add_sync(ALL_LANES, found);
        found_steps = __reduce_add_sync(ALL_LANES, found_steps);
        if (lane_id() == 0 && found) atomicAdd(sampled + kind, Count(found));
        if (lane_id() == 0 && found_steps && steps_too) atomicAdd(sampled + SAMPLED_STEPS, Count(found_steps));
        __syncthreads();
    }
}
