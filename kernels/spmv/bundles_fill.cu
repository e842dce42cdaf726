// A matrix in bundles, as bundles.cu reads it, from CSR: the threads of a block merge the columns of ROWS rows.
//
// Each time around the merge takes the least column that any row begins with, and the entries of every row that begins with
// it. So entries of one row keep their order, whether their columns rise or not.
//
// Launch: one dimension, a block of ROWS threads for each bundle.
// indptr (rows + 1), indices (nnz), codes (nnz), or null where values are not stored.
// places (ROWS bundles): the row of each thread of each bundle; dasp_count_bundles makes them.
// starts (bundles + 1), chunks_of (OCTETS bundles + 1): see bundles.cu; dasp_count_bundles makes them.
// totals (4): 0 before; blocks that have counted, columns and chunks of all, and columns of the bundle that has most,
//     counted up to `most` + 1.
// columns, slots (32 to a chunk), values (32 to a chunk), the last two 0 before: see bundles.cu.

#include "../pack/codes.cuh"
#include "rows_merged.cuh"

constexpr int ROWS = 128, OCTET = 8, OCTETS = ROWS / OCTET, ENTRIES = 4;

// The row of a grid that stands at a place of a bundle, a box of `box_x` points of a line, `box_y` lines and as many
// planes as there is room for; -1 where a box goes beyond the grid. A line has `line` rows and a plane `plane`; 0 for a
// matrix that is no grid, whose rows keep their order.
__device__ __forceinline__ long long row_at(long long bundle, int place, long long line, long long plane,
                                            long long rows, int box_x, int box_y)
{
    if (line == 0) return bundle * ROWS + place < rows ? bundle * ROWS + place : -1;
    const long long lines = plane / line, planes = rows / plane;
    const long long along = ceil_div(line, box_x), across = ceil_div(lines, box_y);
    const long long x = bundle % along * box_x + place % box_x;
    const long long y = bundle / along % across * box_y + place / box_x % box_y;
    const long long z = bundle / along / across * (ROWS / box_x / box_y) + place / box_x / box_y;
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

extern "C" __global__ void __launch_bounds__(ROWS)
dasp_count_bundles(const long long* __restrict__ indptr, const Index* __restrict__ indices, long long rows,
                   long long bundles, long long line, long long plane, int box_x, int box_y, int most, Index* places,
                   Count* starts, Count* chunks_of, Count* totals)
{
    __shared__ long long words[ROWS / WARP];
    __shared__ Count sums[ROWS / WARP + 1];
    const long long place = blockIdx.x * (long long)ROWS + threadIdx.x;
    const long long mine = row_at(blockIdx.x, threadIdx.x, line, plane, rows, box_x, box_y);
    places[place] = Index(mine);
    Row row(indptr, indices, mine);
    long long longest = row.end - row.next;
#pragma unroll
    for (int flip = 1; flip < OCTET; flip *= 2) longest = max(longest, from_other_lane(longest, flip));
    if (place % OCTET == 0) chunks_of[place / OCTET] = ceil_div(longest, ENTRIES);
    int wanted = 0;
    for (; wanted <= most; ++wanted) {
        const long long column = block_min(row.column, words);
        if (column == NONE) break;
        while (row.column == column) row.advance();
    }
    if (threadIdx.x == 0) {
        starts[blockIdx.x] = wanted;
        atomicMax(totals + 3, Count(wanted));
    }
    if (!is_last_block(totals, gridDim.x)) return;
    block_scan(starts, bundles, sums);
    block_scan(chunks_of, OCTETS * bundles, sums);
    if (threadIdx.x == 0) {
        totals[1] = starts[bundles];
        totals[2] = chunks_of[OCTETS * bundles];
    }
}

extern "C" __global__ void __launch_bounds__(ROWS)
dasp_fill_bundles(const long long* __restrict__ indptr, const Index* __restrict__ indices,
                  const Code* __restrict__ codes, const Index* __restrict__ places, const Count* __restrict__ starts,
                  const Count* __restrict__ chunks_of, Index* columns, unsigned short* slots, Code* values)
{
    __shared__ long long words[ROWS / WARP];
    const long long place = blockIdx.x * (long long)ROWS + threadIdx.x;
    const Count first = starts[blockIdx.x], slot = WARP * chunks_of[place / OCTET] + ENTRIES * (place % OCTET);
    Row row(indptr, indices, places[place]);
    const long long begin = row.next;
    for (int wanted = 0;; ++wanted) {
        const long long column = block_min(row.column, words);
        if (column == NONE) break;
        if (threadIdx.x == 0) columns[first + wanted] = Index(column);
        for (; row.column == column; row.advance()) {
            const long long entry = row.next - begin, at = slot + entry / ENTRIES * WARP + entry % ENTRIES;
            slots[at] = (unsigned short)(wanted + 1);
            if (codes) values[at] = codes[row.next];
        }
    }
}
