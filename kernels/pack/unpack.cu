// Unpacks slices: counts the entries of each row, writes the column and the code of each entry, restores values from
// codes, and sets the codes of pads to 0.
//
// Arrays of a pattern: see packed.cuh. lengths (m), 0 before: get the entries of each row.
// codes (32 steps) and to_codes (nnz), or null if codes are not stored. to_indices (nnz): columns.
// table: the values that codes stand for. data (nnz): the values as bits.
//
// dasp_count_entries, dasp_fill_entries, dasp_clear_pads: a warp for each slice, whose lane l takes the l-th slot of each
//     step; blocks of 256 threads.
// dasp_decode, unless codes are values: any number of blocks of 256 threads; a thread takes values a grid apart.
// Deterministic: entries keep the order of their slots; lengths of long rows are sums of integers, in any order.

#include "pack/packed.cuh"
#include "pack/values.cuh"

constexpr int THREADS = 256, AT_ONCE = 4;

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_count_entries(const Index* __restrict__ rows, long long positions, const Index* __restrict__ long_rows,
                   const Index* __restrict__ segment_rows, long long segments, long long slices,
                   const uint4* __restrict__ headers, const unsigned char* __restrict__ deltas, Count* lengths,
                   Count* pieces)
{
    const long long s = warp_of_grid<THREADS>();
    if (s >= slices) return;
    const Packed slice(headers[s], deltas);
    unsigned count = unsigned(slice.full) << slice.shift;
    for (int step = slice.full; step < slice.steps; ++step) {
        unsigned delta;
        count += __popc(__ballot_sync(ALL_LANES, slice.delta(step, delta)) & slice.lanes());
    }
    if (lane_id() & ((1 << slice.shift) - 1)) return;  // one lane of each row goes on
    if (s < segments) {
        pieces[slice.first] = count;
        atomicAdd(lengths + long_rows[segment_rows[slice.first]], Count(count));
    } else if (slice.position() < positions) {
        lengths[rows ? (long long)rows[slice.position()] : slice.position()] = count;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_fill_entries(const Index* __restrict__ rows, long long positions, const Index* __restrict__ long_rows,
                  const Index* __restrict__ segment_offsets, const Index* __restrict__ segment_rows,
                  long long segments, long long slices, const uint4* __restrict__ headers,
                  const Index* __restrict__ bases, const unsigned char* __restrict__ deltas,
                  const Code* __restrict__ codes, const Count* __restrict__ starts, const Count* __restrict__ pieces,
                  Index* to_indices, Code* to_codes)
{
    const long long s = warp_of_grid<THREADS>();
    if (s >= slices) return;
    const Packed slice(headers[s], deltas);
    Count place = first_entry(slice, s, rows, positions, long_rows, segment_offsets, segment_rows, segments, starts,
                              pieces);
    for (int first = 0; first < slice.steps; first += AT_ONCE) {
        unsigned delta[AT_ONCE];
        bool has[AT_ONCE];
        Index base[AT_ONCE];
        Code code[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const int step = first + k;
            has[k] = step < slice.steps && slice.delta(step, delta[k]);
            if (has[k]) base[k] = bases[(long long)slice.first_step + step];
            if (has[k] && to_codes) code[k] = codes[slice.slot(step)];
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const Count mine = slice.next_entry(has[k], place);
            if (!has[k]) continue;
            to_indices[mine] = Index(base[k] + delta[k]);
            if (to_codes) to_codes[mine] = code[k];
        }
    }
}

#if DASP_CODING != CODING_PLAIN
// The value that the i-th code stands for, as its bits; of equal values there are no codes.
__device__ __forceinline__ Bits value_of(const Code* codes, const Bits* table, long long i)
{
#if DASP_CODING == CODING_SINGLE
    return Single::widen(codes[i]);
#elif DASP_CODING == CODING_BYTE
    return of_byte<Bits>((signed char)codes[i]);
#elif DASP_CODING == CODING_DICTIONARY
    return table[codes[i]];
#else
    return table[0];
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_decode(const Code* __restrict__ codes, const Bits* __restrict__ table, long long count, Bits* __restrict__ data)
{
    const long long threads = gridDim.x * (long long)THREADS;
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < count; i += threads)
        data[i] = value_of(codes, table, i);
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_clear_pads(long long slices, const uint4* __restrict__ headers, const unsigned char* __restrict__ deltas,
                Code* codes)
{
    const long long s = warp_of_grid<THREADS>();
    if (s >= slices) return;
    const Packed slice(headers[s], deltas);
    for (int step = slice.full; step < slice.steps; ++step)
        if (!slice.has(step)) codes[slice.slot(step)] = Code();
}
