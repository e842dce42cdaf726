// Slices whose place is known: which entries their slots hold. A warp takes a slice, and lane l the l-th slot of
// each step.
#pragma once

#include "header.cuh"
#include "pack/segments.cuh"

// The rows and segments of which slices are made: see cut.cu and segments.cu.
struct Rows {
    const Start* indptr;
    const Index* rows;  // null where position p is row p
    long long positions;
    const long long *segment_starts, *segment_lengths;
    long long segments;
};

struct Slice {
    int steps, full, shift, width;
    unsigned first_step;
    long long start, length;  // of the run of this lane; no entries past the last row
    int lane;                 // of this lane in its run

    __device__ __forceinline__ Slice(const uint4& header, const Rows& from, long long s)
        : steps(steps_of(header)), full(full_of(header)), shift(shift_of(header)), width(width_of(header)),
          first_step(header.x), start(0), length(0), lane(lane_id() & ((1 << shift) - 1))
    {
        const long long position = (long long)header.y + (lane_id() >> shift);
        if (s < from.segments) {
            start = from.segment_starts[s];
            length = from.segment_lengths[s];
        } else if (position < from.positions) {
            const long long row = from.rows ? (long long)from.rows[position] : position;
            start = from.indptr[row];
            length = length_of(from.indptr, row);
        }
    }

    // Whether this lane's slot of a step holds an entry, and which.
    __device__ __forceinline__ bool has(int step) const { return place(step) < length; }
    __device__ __forceinline__ long long entry(int step) const { return start + place(step); }

    __device__ __forceinline__ long long place(int step) const { return ((long long)step << shift) + lane; }
};

// Threads of the blocks that store slices and fill deltas, and their slices.
constexpr int SLICE_THREADS = 256, BLOCK_SLICES = SLICE_THREADS / WARP;

// Blocks of 32 bytes of deltas of a slice, by its shape.
__device__ __forceinline__ unsigned blocks_of(unsigned shape) { return steps_of(shape) * (1u << width_of(shape) >> 1); }
