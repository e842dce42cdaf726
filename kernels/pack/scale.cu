// The values of a plan times factors of their rows and columns, in the order in which the entries came in.
//
// Arrays of a pattern: see packed.cuh. codes (32 steps), table: see decode.cu. order (nnz) or null: see refill.cu.
// left (m), right (n): factors, multiplied in this order; null where there are none. made (nnz).
// Launch: a warp for each slice; blocks of 256 threads. DASP_VALUE: the type of values and factors.

#include "../number.cuh"
#include "decoding.cuh"
#include "packed.cuh"

constexpr int THREADS = 256, AT_ONCE = 4;

using Value = DASP_VALUE;

__device__ __forceinline__ Value as_value(Bits bits)
{
    Value value;
    static_assert(sizeof(value) == sizeof(bits), "as many bits");
    memcpy(&value, &bits, sizeof(value));
    return value;
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_scale_entries(const Index* __restrict__ rows, long long positions, const Index* __restrict__ long_rows,
                   const Index* __restrict__ segment_offsets, const Index* __restrict__ segment_rows,
                   long long segments, long long slices, const uint4* __restrict__ headers,
                   const Index* __restrict__ bases, const unsigned char* __restrict__ deltas,
                   const Code* __restrict__ codes, const Bits* __restrict__ table, const Count* __restrict__ starts,
                   const Count* __restrict__ pieces, const Place* __restrict__ order, const Value* __restrict__ left,
                   const Value* __restrict__ right, Value* __restrict__ made)
{
    const long long s = warp_of_grid<THREADS>();
    if (s >= slices) return;
    const Packed slice(headers[s], deltas);
    Count place = first_entry(slice, s, rows, positions, long_rows, segment_offsets, segment_rows, segments, starts,
                              pieces);
    Value factor = 1;
    if (left && s < segments) factor = load_plain(left + long_rows[segment_rows[slice.first]]);
    else if (left && slice.position() < positions)
        factor = load_plain(left + (rows ? (long long)rows[slice.position()] : slice.position()));
    for (int first = 0; first < slice.steps; first += AT_ONCE) {
        bool has[AT_ONCE];
        Value value[AT_ONCE], other[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const int step = first + k;
            unsigned delta;
            has[k] = step < slice.steps && slice.delta(step, delta);
            if (!has[k]) continue;
            value[k] = as_value(value_of(codes, table, slice.slot(step)));
            if (right) other[k] = load_plain(right + ((long long)bases[(long long)slice.first_step + step] + delta));
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const Count mine = slice.next_entry(has[k], place);
            if (!has[k]) continue;
            if (left) value[k] = value[k] * factor;
            if (right) value[k] = value[k] * other[k];
            store_plain(made + (order ? (long long)order[mine] : (long long)mine), value[k]);
        }
    }
}
