// Finds a diagonal of a matrix in slices, in one launch: one warp searches one slice.
//
// Launch: one dimension, blocks of DASP_THREADS threads, and at least as many warps as slices.
// Arrays of the plan: see slices.cu. further: the column of an entry of the diagonal minus its row.
// y (length): for each row from `first_row` on, the sum of its entries on the diagonal; a split row without
//     one is not written. claims (cut + 1), cut the number of split rows: 0 before; becomes 1 for each split
//     row with such an entry, and at the end if two segments of one row have some: y is then wrong.
// Deterministic: duplicate entries are added in their order, and no two segments of a row write y.

#include "spmv/slices.cuh"

constexpr int AT_ONCE = 4;

// True if the delta of a slot, of 8, 16 or 32 bits, is `further`; false for a pad.
template <class Delta>
__device__ __forceinline__ bool is_further(const unsigned char* deltas, int slot, long long further)
{
    if (further < 0 || further >= (long long)Delta(-1)) return false;
    return (long long)load_stream(reinterpret_cast<const Delta*>(deltas) + slot) == further;
}

// The same for deltas of the width that a header names; those of width 0 are not stored.
__device__ __forceinline__ bool is_further(int width, const unsigned char* deltas, int slot, long long further)
{
    if (width == 0) return further == lane_id();
    if (width == 1) return is_further<unsigned char>(deltas, slot, further);
    if (width == 2) return is_further<unsigned short>(deltas, slot, further);
    return is_further<unsigned>(deltas, slot, further);
}

template <class T> __device__ __forceinline__ T from_lane(T value, int lane) { return __shfl_sync(ALL_LANES, value, lane); }
template <class T> __device__ __forceinline__ Complex<T> from_lane(Complex<T> value, int lane)
{
    return {from_lane(value.real, lane), from_lane(value.imag, lane)};
}

// Adds the value of each lane with a hit, one after the other, to the sum of its row, in each of the row's
// `lanes` lanes. All lanes of a warp call this.
__device__ __forceinline__ void add_in_order(Sum& sum, bool hit, Sum value, int lanes)
{
    const int first = lane_id() & ~(lanes - 1);
    for (unsigned hits = __ballot_sync(ALL_LANES, hit); hits; hits &= hits - 1) {
        const int lane = __ffs(int(hits)) - 1;
        const Sum other = from_lane(value, lane);
        if ((lane & ~(lanes - 1)) == first) sum += other;
    }
}

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
    const int steps = steps_of(header), shift = shift_of(header), width = width_of(header);
    const long long r = s < segments ? (long long)segment_rows[header.y] : 0;
    const long long position = (long long)header.y + (lane_id() >> shift);
    long long row = PAD;
    if (s < segments) row = long_rows[r];
    else if (position < positions) row = identity ? position : (long long)rows[position];

    const Slices slices{bases, deltas, values, table};
    const unsigned char* own = deltas + TILE * (long long)header.z;
    const long long column = row < 0 ? -1 : row + further;
    Sum sum = 0;
    bool found = false;
    for (int first = 0; first < steps; first += TILE) {
        const int here = min(steps - first, TILE);
        Index base = 0;
        if (lane_id() < here) base = load_cached(bases + header.x + first + lane_id());
        for (int begin = 0; begin < here; begin += AT_ONCE) {
            unsigned hits = 0;
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k) {
                const int step = begin + k;
                const long long behind = column - (long long)__shfl_sync(ALL_LANES, base, step % TILE);
                const bool hit = step < here && is_further(width, own, TILE * (first + step) + lane_id(), behind);
                hits |= unsigned(hit) << k;
            }
            found = found || hits;
            for (int k = 0; __any_sync(ALL_LANES, hits >> k); ++k) {
                const bool hit = hits >> k & 1;
                Sum value = 0;
                if (hit) value = convert<Sum>(load_value(slices, TILE * ((long long)header.x + first + begin + k) + lane_id()));
                add_in_order(sum, hit, value, 1 << shift);
            }
        }
    }

    found = __any_sync(ALL_LANES, found);
    if ((lane_id() & ((1 << shift) - 1)) || row < first_row || row >= first_row + length) return;
    if (s < segments) {
        if (!found) return;
        if (atomicExch(claims + r, 1ull)) {  // the host then ignores y and finds the diagonal in another way
            atomicExch(claims + cut, 1ull);
            return;
        }
    }
    store_plain(y + (row - first_row), sum);
}
