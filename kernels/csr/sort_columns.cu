// Sorts the entries of each row by their columns, equal columns in their old order.
//
// indptr (m + 1), indices (nnz): of the matrix. to_columns (nnz): columns in the new order. to_order (nnz):
// the place of each in the matrix. longest (1), 0 before: the entries of the longest row of more than 1024,
// if there is one.
//
// dasp_sort_columns: a block of 256 threads for each 1024 entries, counted from 0; it takes the rows that begin there.
//     In a row of more than 1024 entries, each run of 1024 from the row's beginning is sorted alone.
//     A warp sorts a row of up to 32 entries, the block a longer one.
// dasp_merge_columns: the same blocks. Merges sorted runs of `width` entries of columns (nnz) and order
//     (nnz), two neighbours at a time.
// Deterministic: the rank of an entry among those of its run is its place, whichever thread finds it.

#include "csr/scan.cuh"

using Start = DASP_START;
using Column = DASP_COLUMN;
using Place = DASP_PLACE;

constexpr int THREADS = 256, RUN = 1024, FEW = WARP, WARPS = THREADS / WARP;

struct Sorted {
    Column* columns;
    Place* order;

    __device__ __forceinline__ void put(long long to, Column column, long long from) const
    {
        columns[to] = column;
        order[to] = Place(from);
    }
};

// Sorts a row of up to 32 entries; every lane of a warp calls this.
__device__ __forceinline__ void sort_short(const Column* indices, long long begin, int length, const Sorted& to)
{
    const Column mine = lane_id() < length ? indices[begin + lane_id()] : Column(0);
    int rank = 0;
    for (int other = 0; other < length; ++other) {
        const Column column = __shfl_sync(ALL_LANES, mine, other);
        rank += column < mine || (column == mine && other < lane_id());
    }
    if (lane_id() < length) to.put(begin + rank, mine, begin + lane_id());
}

// Sorts up to 1024 entries; every thread of a block calls this.
__device__ __forceinline__ void sort_run(const Column* indices, long long begin, int length, Column* columns,
                                         const Sorted& to)
{
    __syncthreads();
    for (int i = threadIdx.x; i < length; i += THREADS) columns[i] = indices[begin + i];
    __syncthreads();
    for (int i = threadIdx.x; i < length; i += THREADS) {
        const Column mine = columns[i];
        int rank = 0;
        for (int other = 0; other < length; ++other)
            rank += columns[other] < mine || (columns[other] == mine && other < i);
        to.put(begin + rank, mine, begin + i);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_sort_columns(const Start* __restrict__ indptr, const Column* __restrict__ indices, long long m,
                  Column* to_columns, Place* to_order, Count* longest)
{
    __shared__ Column columns[RUN];
    __shared__ long long longer[RUN / FEW + 1];  // rows of more than 32 entries that begin here
    __shared__ unsigned longer_count;
    const Sorted to{to_columns, to_order};
    const long long here = blockIdx.x * (long long)RUN;
    const long long first = lower_bound(indptr, m + 1, here), last = min(lower_bound(indptr, m + 1, here + RUN), m);
    if (threadIdx.x == 0) longer_count = 0;
    __syncthreads();
    for (long long row = first + warp_id(); row < last; row += WARPS) {
        const long long begin = indptr[row], length = (long long)indptr[row + 1] - begin;
        if (length <= FEW) sort_short(indices, begin, int(length), to);
        else if (lane_id() == 0) longer[atomicAdd(&longer_count, 1u)] = row;
    }
    __syncthreads();
    for (unsigned i = 0; i < longer_count; ++i) {
        const long long begin = indptr[longer[i]], end = indptr[longer[i] + 1];
        sort_run(indices, begin, int(min(end - begin, (long long)RUN)), columns, to);
        if (threadIdx.x == 0 && end - begin > RUN) atomicMax(longest, Count(end - begin));
    }
    if (first == 0) return;
    const long long begin = indptr[first - 1], end = indptr[first];
    const long long run = begin + ceil_div(here - begin, RUN) * RUN;  // of the row that began before
    if (run < end && run < here + RUN) sort_run(indices, run, int(min(end - run, (long long)RUN)), columns, to);
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_merge_columns(const Start* __restrict__ indptr, long long m, long long nnz, long long width,
                   const Column* __restrict__ columns, const Place* __restrict__ order, Column* to_columns,
                   Place* to_order)
{
    const Sorted to{to_columns, to_order};
    const long long here = blockIdx.x * (long long)RUN;
    const long long first = lower_bound(indptr, m + 1, here + 1) - 1;
    const long long rows = lower_bound(indptr, m + 1, min(here + RUN, nnz)) - first;
    for (long long entry = here + threadIdx.x; entry < min(here + RUN, nnz); entry += THREADS) {
        const long long row = first + lower_bound(indptr + first, rows + 1, entry + 1) - 1;
        const long long begin = indptr[row], length = (long long)indptr[row + 1] - begin, place = entry - begin;
        const long long run = place / width * width, even = run / (2 * width) * (2 * width);
        const long long other = even == run ? run + width : even;
        long long rank = 0;
        if (other < length) {
            const long long least = (long long)columns[entry] + (even == run ? 0 : 1);
            rank = lower_bound(columns + begin + other, min(width, length - other), least);
        }
        to.put(begin + even + place - run + rank, columns[entry], order[entry]);
    }
}
