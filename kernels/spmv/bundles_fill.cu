// A matrix in bundles, as bundles.cu reads it, from CSR: the threads of a block merge the columns of ROWS rows.
//
// Each turn takes the least column that any row begins with, and the first entry of every row that begins with it. So
// entries of one row keep their order, whether their columns rise or not, and equal ones stay apart.
//
// Launch: one dimension, a block of ROWS threads for each bundle.
// indptr (rows + 1), indices (nnz), codes (nnz), or null where values are not stored.
// places (ROWS bundles): the row of each thread of each bundle; dasp_count_bundles makes them.
// more_of (SETS bundles + 1), values_of (SETS bundles + 1), extents (SETS bundles): see bundles.cu; dasp_count_bundles
//     makes them.
// totals (4): 0 before; blocks that have counted, columns and chunks behind the first of all, and columns of the bundle that has most,
//     counted up to `most` + 1, which stands for bundles that slots cannot count, too.
// columns (pool bundles), slots (32 to a chunk), the last 0 before, values (nnz): see bundles.cu.

#include "../pack/codes.cuh"
#include "rows_merged.cuh"
#include "bundles.cuh"

// The row of a grid that stands at a place of a bundle, a box of `box_x` points of a line, `box_y` lines and as many
// planes as there is room for; -1 where a box goes beyond the grid. The rows of a group are 2 points of 2 lines. A line
// has `line` rows and a plane `plane`; 0 for a matrix that is no grid, whose rows keep their order.
__device__ __forceinline__ long long row_at(long long bundle, int place, long long line, long long plane,
                                            long long rows, int box_x, int box_y)
{
    if (line == 0) return bundle * ROWS + place < rows ? bundle * ROWS + place : -1;
    const long long lines = plane / line, planes = rows / plane;
    const long long along = ceil_div(line, box_x), across = ceil_div(lines, box_y);
    const int group = place / GROUP, half_x = box_x / 2, half_y = box_y / 2;
    const long long x = bundle % along * box_x + group % half_x * 2 + place % 2;
    const long long y = bundle / along % across * box_y + group / half_x % half_y * 2 + place % GROUP / 2;
    const long long z = bundle / along / across * (ROWS / box_x / box_y) + group / half_x / half_y;
    return x < line && y < lines && z < planes ? z * plane + y * line + x : -1;
}

// The least of a number over the block, in each thread.
__device__ __forceinline__ long long block_min(long long number, long long* words)
{
    number = warp_min(number);
    if (lane_id() == 0) words[warp_id()] = number;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < ROWS / WARP; ++w) number = min(number, words[w]);
    __syncthreads();
    return number;
}

// Which rows of this thread's group something holds for, as bits.
__device__ __forceinline__ unsigned of_group(bool holds)
{
    return __ballot_sync(ALL_LANES, holds) >> lane_id() / GROUP * GROUP & (1u << GROUP) - 1;
}

// What a unit costs whose slots several rows may have, and one whose slots a row has alone each.
constexpr int SHARED_COST = 5, ALONE_COST = 3;

extern "C" __global__ void __launch_bounds__(ROWS)
dasp_count_bundles(const long long* __restrict__ indptr, const Index* __restrict__ indices, long long rows,
                   long long bundles, long long line, long long plane, int box_x, int box_y, int most, Index* places,
                   Count* more_of, Count* values_of, unsigned* extents, Count* totals)
{
    __shared__ long long words[ROWS / WARP];
    __shared__ Count sums[ROWS / WARP + 1];
    const long long place = blockIdx.x * (long long)ROWS + threadIdx.x;
    const long long mine = row_at(blockIdx.x, threadIdx.x, line, plane, rows, box_x, box_y);
    places[place] = Index(mine);
    Row row(indptr, indices, mine);
    Count entries = row.end - row.next;
#pragma unroll
    for (int flip = 1; flip < SET; flip *= 2) entries += from_other_lane(entries, flip);
    int wanted = __syncthreads_or(entries > MOST_VALUES) ? most + 1 : 0, slots = 0, alone = 0;
    for (long long before = NONE; wanted <= most;) {
        const long long column = block_min(row.column, words);
        if (column == NONE) break;
        wanted += column != before;
        before = column;
        const unsigned here = of_group(row.column == column);
        slots += here != 0;
        if (row.column == column) {
            alone += __popc(here) == 1;
            row.advance();
        }
    }
    int units = 0, of_several = 0, least = 0x7fffffff;
    const int longest = warp_max(alone);
    for (int apart = 0; apart <= longest; ++apart) {
        int left = min(alone, apart);
#pragma unroll
        for (int flip = 1; flip < GROUP; flip *= 2) left += from_other_lane(left, flip);
        left = slots - left;
#pragma unroll
        for (int flip = GROUP; flip < SET; flip *= 2) left = max(left, from_other_lane(left, flip));
        const int several = (left + UNIT - 1) / UNIT, cost = SHARED_COST * several + ALONE_COST * apart;
        if (cost >= least) continue;
        least = cost;
        of_several = several;
        units = several + apart;
    }
    if (place % SET == 0) {
        more_of[place / SET] = max(units - 1, 0) / CHUNK;
        values_of[place / SET] = entries;
        extents[2 * (place / SET)] = units;
        extents[2 * (place / SET) + 1] = of_several;
    }
    if (threadIdx.x == 0) {
        atomicAdd(totals + 1, Count(wanted));
        atomicMax(totals + 3, Count(wanted));
    }
    if (!is_last_block(totals, gridDim.x)) return;
    block_scan(more_of, SETS * bundles, sums);
    block_scan(values_of, SETS * bundles, sums);
    if (threadIdx.x == 0) totals[2] = more_of[SETS * bundles];
}

extern "C" __global__ void __launch_bounds__(ROWS)
dasp_fill_bundles(const long long* __restrict__ indptr, const Index* __restrict__ indices,
                  const Code* __restrict__ codes, const Index* __restrict__ places, const Count* __restrict__ more_of,
                  const Count* __restrict__ values_of, const unsigned* __restrict__ extents, long long pool,
                  Index* columns, unsigned* slots, Code* values)
{
    __shared__ long long words[ROWS / WARP];
    const long long place = blockIdx.x * (long long)ROWS + threadIdx.x, set = place / SET;
    const int lane = lane_id(), group = lane / GROUP, in_group = lane % GROUP;
    Row row(indptr, indices, places[place]);
    unsigned start = unsigned(row.end - row.next);
#pragma unroll
    for (int flip = 1; flip < GROUP; flip *= 2) start += from_other_lane(start, flip);
    unsigned before = 0;  // values of the set's groups before this one
#pragma unroll
    for (int g = 0; g + 1 < GROUPS; ++g) {
        const unsigned count = __shfl_sync(ALL_LANES, start, lane / SET * SET + g * GROUP);
        before += g < group % GROUPS ? count : 0;
    }
    start = before;
    Code* const own = values + values_of[set];
    const int of_several = extents[2 * set + 1], most = extents[2 * set] - of_several;
    unsigned* const first = slots + CHUNK_SLOTS * set + group % GROUPS;
    unsigned* const others = slots + CHUNK_SLOTS * (SETS * (long long)gridDim.x + more_of[set] - 1) + group % GROUPS;
    const auto slot_at = [&](int of_group) -> unsigned& {
        return (of_group < CHUNK * UNIT ? first : others)[GROUPS * of_group];
    };
    int wanted = -1, several = 0, singles = 0;
    columns += pool * blockIdx.x;
    for (long long last = NONE;;) {
        const long long column = block_min(row.column, words);
        if (column == NONE) break;
        wanted += column != last;
        last = column;
        if (threadIdx.x == 0) columns[wanted] = Index(column);
        const bool mine = row.column == column;
        const unsigned here = of_group(mine);
        const bool apart = mine && __popc(here) == 1 && singles < most;
        if (apart) slot_at(UNIT * (of_several + singles++) + in_group) = slot_word(start, wanted, here);
        if (of_group(apart) == 0 && here) {
            if (in_group == 0) slot_at(several) = slot_word(start, wanted, here);
            ++several;
        }
        if (mine) {
            if (codes) own[start + __popc(here & (1u << in_group) - 1)] = codes[row.next];
            row.advance();
        }
        start += __popc(here);
    }
    for (long long i = wanted + 1 + threadIdx.x; i < pool; i += ROWS) columns[i] = Index(-1);
}
