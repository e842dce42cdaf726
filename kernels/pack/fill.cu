// The codes of values in the slots of slices.
//
// Arrays of slices: see cut.cu, segments.cu, columns.cu and slices.cuh. codes (nnz): of the entries, of DASP_CODE_BYTES
// each; order (nnz) or null: where the code of the i-th entry stands. stored (32 steps): codes by slots, 0 in a pad.
// Launch: a warp for each slice; blocks of 256 threads.

#include "codes.cuh"
#include "slices.cuh"

#ifndef DASP_PLACE
#error "define DASP_PLACE: the type of places of entries"
#endif

using Place = DASP_PLACE;

constexpr int THREADS = 256, AT_ONCE = 4;

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_fill_codes(const Start* __restrict__ indptr, const Code* __restrict__ codes, const Place* __restrict__ order,
                const Index* __restrict__ rows, long long positions, const long long* __restrict__ segment_starts,
                const long long* __restrict__ segment_lengths, long long segments, long long slices,
                const uint4* __restrict__ headers, Code* stored)
{
    const long long s = (blockIdx.x * (long long)THREADS + threadIdx.x) / WARP;
    if (s >= slices) return;
    const Slice slice(headers[s], Rows{indptr, rows, positions, segment_starts, segment_lengths, segments}, s);
    stored += WARP * (long long)slice.first_step + lane_id();
    for (int first = 0; first < slice.steps; first += AT_ONCE) {
        Code code[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const int step = first + k;
            code[k] = Code();
            if (step >= slice.steps || !slice.has(step)) continue;
            code[k] = codes[order ? (long long)order[slice.entry(step)] : slice.entry(step)];
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k)
            if (first + k < slice.steps) stored[WARP * (first + k)] = code[k];
    }
}
