// Cuts rows, in a given order, into slices: see cut.cuh.
//
// rows (candidates - unmoved, stride) or null: the rows of each order, `positions` of them. unmoved: 1 if the first
//     candidate is the caller's order, which is not stored, else 0.
// even: 1 if no row of a slice has more than `steps` entries, else 0.
// before (candidates, tiles, 2): the slices before each tile times 32, plus the entry of the chain; the steps
//     before it. The passages of chains through each tile (candidates, tiles, 32), by their entry, follow.
// totals (candidates, NUMBERS), 0 before: get the slices, their steps and their full steps.
// headers (segments + slices): of each slice first step, first position, 0, and its shape without the width; those of
//     segments, segment_headers (segments), come first.
//
// dasp_cut_tiles: a block of 512 threads for each tile of 2048 positions, along x, of each candidate, along y. The last
//     block of a candidate, by the count COME of its totals, follows the chain.
// dasp_cut_headers: the same blocks, for one candidate; `segments` slices with `steps_before` steps come first.
//     placed (positions) or null: gets the rows in their order.
// In both a warp cuts 128 positions; lane l follows the chain that enters at position l.
// Deterministic: integers are added, in any order; which block is the last one changes nothing.
// Loops whose turns wait for each other are not unrolled: compiling would take half as long again.

#include "pack/cut.cuh"

// A chain of slices on its way through tiles.
struct Chain {
    static constexpr int AHEAD = 4;
    Count entry;
    Count slices, steps, full;

    // Goes on through tiles `first` to last - 1, AHEAD loads at once. If `before` is not null, writes there
    // how the chain enters each tile.
    __device__ __forceinline__ void pass(const Count* passages, int first, int last, Count* before)
    {
        for (; first < last; first += AHEAD) {
            Count mine[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; ++k)
                mine[k] = first + k < last ? passages[(long long)(first + k) * WARP + lane_id()] : 0;
#pragma unroll
            for (int k = 0; k < AHEAD; ++k) {
                if (first + k >= last) break;
                if (before && lane_id() == 0) {
                    before[2ll * (first + k)] = slices << 5 | entry;
                    before[2ll * (first + k) + 1] = steps;
                }
                const Passage one = Passage::of(__shfl_sync(ALL_LANES, mine[k], int(entry)));
                entry = Count(one.exit);
                slices += one.slices;
                steps += one.steps;
                full += one.full;
            }
        }
    }
};

// Follows the chain of one candidate through all tiles: each warp takes some tiles, first for every entry,
// then for the entry that the chain has. Every thread of the block calls this.
__device__ __forceinline__ void follow_chain(const Count* passages, int tiles, Count* before, Count* totals,
                                             Chain (&through)[CUT_WARPS][WARP], Chain (&come)[CUT_WARPS])
{
    const int each = (tiles + CUT_WARPS - 1) / CUT_WARPS;
    const int first = min(warp_id() * each, tiles), last = min(first + each, tiles);
    Chain mine{Count(lane_id()), 0, 0, 0};
    mine.pass(passages, first, last, nullptr);
    through[warp_id()][lane_id()] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        Chain chain{0, 0, 0, 0};
#pragma unroll 1
        for (int warp = 0; warp < CUT_WARPS; ++warp) {
            come[warp] = chain;
            const Chain& on = through[warp][chain.entry];
            chain = {on.entry, chain.slices + on.slices, chain.steps + on.steps, chain.full + on.full};
        }
        totals[SLICES] = chain.slices;
        totals[STEPS] = chain.steps;
        totals[FULL] = chain.full;
    }
    __syncthreads();
    Chain chain = come[warp_id()];
    chain.pass(passages, first, last, before);
}

// The same if all slices have 32 rows, so that every tile begins with a slice: each thread takes some tiles.
__device__ __forceinline__ void add_up_tiles(const Count* passages, int tiles, Count* before, Count* totals, Count* sums)
{
    const int each = (tiles + CUT_THREADS - 1) / CUT_THREADS;
    const int first = min((int)threadIdx.x * each, tiles), last = min(first + each, tiles);
    Count slices = 0, steps = 0, full = 0;
#pragma unroll 4
    for (int tile = first; tile < last; ++tile) {
        const Passage one = Passage::of(passages[(long long)tile * WARP]);
        slices += one.slices;
        steps += one.steps;
        full += one.full;
    }
    Count all_slices, all_steps, all_full;
    slices = block_sum_before(slices, sums, all_slices);
    __syncthreads();
    steps = block_sum_before(steps, sums, all_steps);
    __syncthreads();
    block_sum_before(full, sums, all_full);
    if (threadIdx.x == 0) {
        totals[SLICES] = all_slices;
        totals[STEPS] = all_steps;
        totals[FULL] = all_full;
    }
    __syncthreads();
    for (int tile = first; tile < last; ++tile) {
        const Passage one = Passage::of(passages[(long long)tile * WARP]);
        before[2ll * tile] = slices << 5;
        before[2ll * tile + 1] = steps;
        slices += one.slices;
        steps += one.steps;
    }
}

// The passages of all candidates, which follow `before`.
__device__ __forceinline__ Count* passages_of(Count* before, long long tiles, int candidates)
{
    return before + 2 * tiles * candidates;
}

extern "C" __global__ void __launch_bounds__(CUT_THREADS, 4)
dasp_cut_tiles(const Start* __restrict__ indptr, const Index* __restrict__ rows, long long stride,
               int unmoved, long long positions, int steps, int even, Count* before, Count* totals)
{
    __shared__ CutTile tile;
    __shared__ Count through[CUT_WARPS][WARP];
    __shared__ Chain chains[CUT_WARPS][WARP], chain[CUT_WARPS];
    const Order order = candidate_order(indptr, rows, stride, unmoved, positions);
    const long long first = blockIdx.x * (long long)CUT_TILE;
    tile.load(order, first, steps, even);
    through[warp_id()][lane_id()] = tile.through_chunk(int(min(positions - first, (long long)CUT_TILE))).packed();
    __syncthreads();
    const long long tiles = gridDim.x, own = blockIdx.y * tiles;
    if (warp_id() == 0) {
        Passage all{lane_id(), 0, 0, 0};
#pragma unroll 1
        for (int chunk = 0; chunk < CUT_WARPS; ++chunk) {
            const Passage one = Passage::of(through[chunk][all.exit]);
            all = {one.exit, all.slices + one.slices, all.steps + one.steps, all.full + one.full};
        }
        passages_of(before, tiles, gridDim.y)[(own + blockIdx.x) * WARP + lane_id()] = all.packed();
    }
    totals += blockIdx.y * NUMBERS;
    if (!is_last_block(totals + COME, tiles)) return;
    const Count* const passages = passages_of(before, tiles, gridDim.y) + own * WARP;
    before += own * 2;
    if (even) add_up_tiles(passages, int(tiles), before, totals, through[0]);
    else follow_chain(passages, int(tiles), before, totals, chains, chain);
}

extern "C" __global__ void __launch_bounds__(CUT_THREADS)
dasp_cut_headers(const Start* __restrict__ indptr, const Index* __restrict__ rows, long long positions, int steps,
                 int even, const Count* __restrict__ before, const uint4* __restrict__ segment_headers,
                 long long segments, long long steps_before, uint4* headers, Index* placed)
{
    __shared__ CutTile tile;
    __shared__ Count through[CUT_WARPS][WARP];
    const long long first = blockIdx.x * (long long)CUT_TILE;
    const int size = int(min(positions - first, (long long)CUT_TILE));
    const Order order{indptr, rows, positions};
#pragma unroll 1
    for (long long s = blockIdx.x * (long long)CUT_THREADS + threadIdx.x; s < segments;
         s += gridDim.x * (long long)CUT_THREADS)
        headers[s] = segment_headers[s];
    if (size <= 0) return;
    tile.load(order, first, steps, even, placed);
    through[warp_id()][lane_id()] = tile.through_chunk(size).packed();
    __syncthreads();
    if (lane_id() > 0) return;
    int entry = int(before[2 * blockIdx.x] & 31);
    Count slice = segments + (before[2 * blockIdx.x] >> 5), step = steps_before + before[2 * blockIdx.x + 1];
#pragma unroll 1
    for (int chunk = 0; chunk < warp_id(); ++chunk) {
        const Passage one = Passage::of(through[chunk][entry]);
        entry = one.exit;
        slice += one.slices;
        step += one.steps;
    }
    for (int i = warp_id() * CUT_CHUNK + entry; i < min((warp_id() + 1) * CUT_CHUNK, size); i = tile.next(i)) {
        headers[slice++] = make_uint4(unsigned(step), unsigned(first + i), 0u, tile.shapes[i]);
        step += tile.steps(i);
    }
}
