// A diagonal of a matrix in slices, in one launch: one warp looks through one slice.
//
// Launch: one dimension, blocks of DASP_THREADS threads, and at least as many warps as slices.
// Arrays of the plan: see slices.cu. further: how far behind its row the column of an entry of the diagonal is.
// y (length): the sum of those entries of each row from `first_row` on; of rows that are cut nothing is written where
//     there is none. claims (cut + 1), where rows are cut: 0 before; 1 for those with an entry, and at the end if two
//     segments of a row have some: then y does not hold.
// Equal inputs give equal bits: a lane adds up in the order of the steps, and lanes of a row in a fixed order.

#include "slices.cuh"

constexpr int AT_ONCE = 4;

// Sums this lane's entries in a column.
struct Column {
    const Slices& slices;
    long long column;
    Sum sum = 0;
    bool found = false;

    // Whether deltas of a type may reach so far behind a base; that of a pad does not.
    template <class Delta> static __device__ __forceinline__ bool reaches(long long further, const Delta*)
    {
        return further >= 0 && further < (long long)Delta(-1);
    }
    static __device__ __forceinline__ bool reaches(long long further, const LaneDelta*) { return further == lane_id(); }

    template <class Delta> static __device__ __forceinline__ bool is(const Delta* deltas, int slot, long long further)
    {
        return (long long)load_stream(deltas + slot) == further;
    }
    static __device__ __forceinline__ bool is(const LaneDelta*, int, long long) { return true; }

    // Looks through the steps of a slice from the first one on.
    template <class Delta> __device__ __forceinline__ void look(unsigned first_step, int steps, const Delta* deltas)
    {
        for (int first = 0; first < steps; first += TILE) {
            const int here = min(steps - first, TILE);
            Index base = 0;
            if (lane_id() < here) base = load_cached(slices.bases + first_step + first + lane_id());
            for (int begin = 0; begin < here; begin += AT_ONCE) {
                bool hit[AT_ONCE];
#pragma unroll
                for (int k = 0; k < AT_ONCE; ++k) {
                    const int step = begin + k;
                    const long long further = column - (long long)__shfl_sync(ALL_LANES, base, step % TILE);
                    hit[k] = step < here && reaches(further, deltas) &&
                             is(deltas, TILE * (first + step) + lane_id(), further);
                }
#pragma unroll
                for (int k = 0; k < AT_ONCE; ++k) {
                    if (!hit[k]) continue;
                    const long long slot = TILE * ((long long)first_step + first + begin + k) + lane_id();
                    sum += convert<Sum>(load_value(slices, slot));
                    found = true;
                }
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_diagonal(const uint4* __restrict__ headers, const Index* __restrict__ bases,
              const unsigned char* __restrict__ deltas, const Code* __restrict__ values,
              const Value* __restrict__ table, const Index* __restrict__ rows, const Index* __restrict__ long_rows,
              const Index* __restrict__ segment_rows, long long count, long long segments, long long positions,
              long long cut, int identity, unsigned long long* claims, long long further, long long first_row,
              long long length, Sum* y)
{
    const long long s = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / TILE;
    if (s >= count) return;
    const uint4 header = load_cached(headers + s);
    const int steps = header.w & 0xfff, shift = header.w >> 24 & 7, width = header.w >> 27 & 3;
    const long long r = s < segments ? (long long)segment_rows[header.y] : 0;
    const long long position = (long long)header.y + (lane_id() >> shift);
    long long row = PAD;
    if (s < segments) row = long_rows[r];
    else if (position < positions) row = identity ? position : (long long)rows[position];

    const Slices slices{bases, deltas, values, table};
    Column column{slices, row < 0 ? -1 : row + further};
    const unsigned char* own = deltas + TILE * (long long)header.z;
    if (width == 0) column.look(header.x, steps, static_cast<const LaneDelta*>(nullptr));
    else if (width == 1) column.look(header.x, steps, own);
    else if (width == 2) column.look(header.x, steps, reinterpret_cast<const unsigned short*>(own));
    else column.look(header.x, steps, reinterpret_cast<const unsigned*>(own));

    Sum sum = column.sum;
    for (int flip = 1; flip < 1 << shift; flip *= 2) sum += from_other_lane(sum, flip);
    const bool found = __any_sync(ALL_LANES, column.found);
    if ((lane_id() & ((1 << shift) - 1)) || row < first_row || row >= first_row + length) return;
    if (s < segments) {
        if (!found) return;
        if (atomicExch(claims + r, 1ull)) atomicExch(claims + cut, 1ull);
    }
    store_plain(y + (row - first_row), sum);
}
