// A matrix in bundles, as bundles.cu reads it, from CSR: the threads of a block merge the columns of ROWS rows.
//
// Each turn takes the least column that any row begins with, and the first entry of every row that begins with it. So
// entries of one row keep their order, whether their columns rise or not, and equal ones stay apart.
//
// Launch: one dimension, a block of ROWS threads for each bundle.
// indptr (rows + 1), indices (nnz), codes (nnz), or null where values are not stored.
// places (ROWS bundles): the row of each thread of each bundle; dasp_count_bundles makes them.
// starts (bundles + 1), units_of (SETS bundles + 1), values_of (SETS bundles + 1): see bundles.cu; dasp_count_bundles
//     makes them.
// totals (4): 0 before; blocks that have counted, columns and units of all, and columns of the bundle that has most,
//     counted up to `most` + 1, which stands for bundles that slots cannot count, too.
// columns, slots (16 to a unit), the last 0 before, values (nnz): see bundles.cu.

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

extern "C" __global__ void __launch_bounds__(ROWS)
dasp_count_bundles(const long long* __restrict__ indptr, const Index* __restrict__ indices, long long rows,
                   long long bundles, long long line, long long plane, int box_x, int box_y, int most, Index* places,
                   Count* starts, Count* units_of, Count* values_of, Count* totals)
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
    int wanted = __syncthreads_or(entries > MOST_VALUES) ? most + 1 : 0, slots = 0;
    for (long long before = NONE; wanted <= most;) {
        const long long column = block_min(row.column, words);
        if (column == NONE) break;
        wanted += column != before;
        before = column;
        const bool here = row.column == column;
        slots += of_group(here) != 0;
        if (here) row.advance();
    }
#pragma unroll
    for (int flip = GROUP; flip < SET; flip *= 2) slots = max(slots, from_other_lane(slots, flip));
    if (place % SET == 0) {
        units_of[place / SET] = ceil_div(slots, UNIT);
        values_of[place / SET] = entries;
    }
    if (threadIdx.x == 0) {
        starts[blockIdx.x] = wanted;
        atomicMax(totals + 3, Count(wanted));
    }
    if (!is_last_block(totals, gridDim.x)) return;
    block_scan(starts, bundles, sums);
    block_scan(units_of, SETS * bundles, sums);
    block_scan(values_of, SETS * bundles, sums);
    if (threadIdx.x == 0) {
        totals[1] = starts[bundles];
        totals[2] = units_of[SETS * bundles];
    }
}

extern "C" __global__ void __launch_bounds__(ROWS)
dasp_fill_bundles(const long long* __restrict__ indptr, const Index* __restrict__ indices,
                  const Code* __restrict__ codes, const Index* __restrict__ places, const Count* __restrict__ starts,
                  const Count* __restrict__ units_of, const Count* __restrict__ values_of, Index* columns,
                  unsigned* slots, Code* values)
{
    __shared__ long long words[ROWS / WARP];
    const long long place = blockIdx.x * (long long)ROWS + threadIdx.x;
    const int lane = lane_id(), group = lane / GROUP, row_of_group = lane % GROUP;
    const Count first = starts[blockIdx.x];
    unsigned* slot = slots + UNIT * GROUPS * units_of[place / SET] + group % GROUPS;
    Row row(indptr, indices, places[place]);
    unsigned start = unsigned(row.end - row.next);  // where the values of this thread's group begin in its set's
#pragma unroll
    for (int flip = 1; flip < GROUP; flip *= 2) start += from_other_lane(start, flip);
    unsigned before = 0;
#pragma unroll
    for (int g = 0; g + 1 < GROUPS; ++g) {
        const unsigned count = __shfl_sync(ALL_LANES, start, lane / SET * SET + g * GROUP);
        if (g < group % GROUPS) before += count;
    }
    start = before;
    Code* const own = values + values_of[place / SET];
    int wanted = -1;
    for (long long last = NONE;;) {
        const long long column = block_min(row.column, words);
        if (column == NONE) break;
        wanted += column != last;
        last = column;
        if (threadIdx.x == 0) columns[first + wanted] = Index(column);
        const unsigned here = of_group(row.column == column);
        if (!here) continue;
        if (row_of_group == 0) *slot = slot_word(start, wanted, here);
        slot += GROUPS;
        if (here >> row_of_group & 1) {
            if (codes) own[start + __popc(here & (1u << row_of_group) - 1)] = codes[row.next];
            row.advance();
        }
        start += __popc(here);
    }
}
