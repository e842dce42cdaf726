// Finds the facts of a CSR matrix that are needed before its rows are ordered, and whether it is valid: one
// pass over indptr and one over indices.
//
// Launch: one dimension, any number of blocks of `THREADS` threads; a thread takes rows, then entries, a grid apart.
// indptr (m + 1), indices (nnz): as the caller gave them, with any content. Nothing outside of them is read.
// facts (FACTS): 0 before; see `Fact`. Integers are counted and compared: equal inputs give equal facts.
// long_tiles (LONG_TILE_COUNTS, tiles): 0 before; of every 2048 rows the long ones, their segments, and steps of these.

#include "pack/pack.cuh"

// Numbers of a matrix, in the order of `Facts` in dasp/formats/sell/cuda/survey.py. A biased number is that number
// plus 2^63, so that unsigned words compare as the numbers do; 0 where there is none.
enum Fact {
    FALLS,             // rows that end before they begin, and a first one that does not begin at 0
    DESCENTS,          // entries with a column below that of the entry before
    ROW_DESCENTS,      // those of them that are the first of a row
    LONG_ROWS,         // rows of more than 32 `steps` entries
    SEGMENTS,          // pieces that these are cut into
    SEGMENT_STEPS,     // steps of these pieces
    SEGMENT_FULL,      // those of them without pads
    RISES,             // other rows that are longer than the last one before them, long ones left out
    LONGEST_WHOLE,     // entries of the longest of the other rows
    LONGEST,           // entries of the longest of all rows
    END,               // last number of indptr, biased
    MOST_COLUMN,       // largest column, biased
    LEAST_COLUMN_NOT,  // least column, biased, with every bit flipped
    FACTS
};
constexpr int SUMS = LONGEST_WHOLE;
constexpr Count BIAS = 1ull << 63;
constexpr int UNROLLED = 8, THREADS = 256;

// The facts that each thread of a block found. A loop adds up one fact after the other: with the loop
// unrolled, a kernel for a small matrix spent most of its time on fetching instructions.
struct Found {
    Count (*facts)[THREADS];

    __device__ __forceinline__ void set(int fact, Count value) const { facts[fact][threadIdx.x] = value; }

    // Adds the block's facts to `to`; every thread calls this. The first SUMS facts are sums, others maxima.
    __device__ __forceinline__ void deliver(Count* to) const
    {
        __syncthreads();
#pragma unroll 1
        for (int fact = warp_id(); fact < FACTS; fact += THREADS / WARP) {
            const bool sums = fact < SUMS;
            Count all = 0;
#pragma unroll
            for (int k = 0; k < THREADS; k += WARP) {
                const Count one = facts[fact][k + lane_id()];
                all = sums ? all + one : max(all, one);
            }
#pragma unroll
            for (int step = WARP / 2; step; step /= 2) {
                const Count other = __shfl_xor_sync(ALL_LANES, all, step);
                all = sums ? all + other : max(all, other);
            }
            if (lane_id() || !all) continue;
            if (sums) atomicAdd(to + fact, all);
            else atomicMax(to + fact, all);
        }
    }
};

__device__ __forceinline__ bool rises(const Start* indptr, long long row, long long length, const Cut& cut)
{
    long long before = row - 1;
    while (before >= 0 && length_of(indptr, before) > cut.most()) --before;
    return before >= 0 && length > length_of(indptr, before);
}

__device__ __forceinline__ void survey_rows(const Start* indptr, const Column* indices, long long m, long long nnz,
                                            const Cut& cut, long long thread, long long threads, const Found& found,
                                            Count* long_tiles)
{
    const long long tiles = ceil_div(m, LONG_TILE);
    Count falls = thread == 0 && indptr[0] != 0, descents = 0, long_rows = 0, segments = 0, steps = 0, full = 0;
    const Count end = thread == 0 ? Count((long long)indptr[m]) + BIAS : 0;
    Count rising = 0;
    long long longest_whole = 0, longest = 0;
    for (long long row = thread; row < m; row += threads) {
        const long long begin = indptr[row], length = length_of(indptr, row);
        falls += length < 0;
        longest = max(longest, length);
        if (length > 0 && begin > 0 && begin < nnz) descents += indices[begin] < indices[begin - 1];
        if (length > cut.most()) {
            const Count pieces = ceil_div(length, cut.room(length)), all = ceil_div(length, WARP);
            ++long_rows;
            segments += pieces;
            steps += all;
            full += length / WARP;
            Count* const tile = long_tiles + row / LONG_TILE;
            atomicAdd(tile + LONG_TILE_ROWS * tiles, 1ull);
            atomicAdd(tile + LONG_TILE_SEGMENTS * tiles, pieces);
            atomicAdd(tile + LONG_TILE_STEPS * tiles, all);
        } else {
            longest_whole = max(longest_whole, length);
            rising += rises(indptr, row, length, cut);
        }
    }
    found.set(FALLS, falls);
    found.set(ROW_DESCENTS, descents);
    found.set(LONG_ROWS, long_rows);
    found.set(SEGMENTS, segments);
    found.set(SEGMENT_STEPS, steps);
    found.set(SEGMENT_FULL, full);
    found.set(RISES, rising);
    found.set(LONGEST_WHOLE, Count(longest_whole));
    found.set(LONGEST, Count(longest));
    found.set(END, end);
}

__device__ __forceinline__ void survey_entries(const Column* indices, long long nnz, long long thread,
                                               long long threads, const Found& found)
{
    Count descents = 0;
    Column least = 0, most = 0;
    if (thread < nnz) least = most = indices[thread];
    for (long long first = thread; first < nnz; first += UNROLLED * threads) {
        Column column[UNROLLED], before[UNROLLED];
#pragma unroll
        for (int i = 0; i < UNROLLED; ++i) {
            const long long entry = min(first + i * threads, nnz - 1);
            column[i] = indices[entry];
            before[i] = indices[max(entry - 1, 0ll)];
        }
#pragma unroll
        for (int i = 0; i < UNROLLED; ++i) {
            least = min(least, column[i]);
            most = max(most, column[i]);
            descents += first + i * threads < nnz && column[i] < before[i];
        }
    }
    const bool any = thread < nnz;
    found.set(DESCENTS, descents);
    found.set(MOST_COLUMN, any ? Count((long long)most) + BIAS : 0);
    found.set(LEAST_COLUMN_NOT, any ? ~(Count((long long)least) + BIAS) : 0);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
dasp_survey(const Start* __restrict__ indptr, const Column* __restrict__ indices, long long m, long long nnz,
            int steps, int segment_steps, int most_segments, Count* facts, Count* long_tiles)
{
    __shared__ Count shared[FACTS][THREADS];
    const Found found{shared};
    const long long thread = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    const long long threads = gridDim.x * (long long)blockDim.x;
    survey_rows(indptr, indices, m, nnz, Cut{steps, segment_steps, most_segments}, thread, threads, found, long_tiles);
    survey_entries(indices, nnz, thread, threads, found);
    found.deliver(facts);
}
