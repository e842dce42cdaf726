// A pattern, read slot by slot: which slots hold entries, and which entries. The entries of a row follow each
// other in rising slots, with or without pads between these.
//
// rows (positions) or null where position p is row p; long_rows (r), segment_offsets (r + 1), segment_rows (segments),
//     headers (slices), bases (steps), deltas: see pattern.py.
// starts (m + 1): the first entry of each row, and the number of all. pieces (segments): the entries of each.
#pragma once

#include "header.cuh"
#include "pack/pack.cuh"

// The number of this warp among all of a launch, which is that of its slice.
template <int THREADS> __device__ __forceinline__ long long warp_of_grid()
{
    return (blockIdx.x * (long long)THREADS + threadIdx.x) / WARP;
}

// A slice of a pattern, as one lane of its warp sees it.
struct Packed {
    int steps, full, shift, width;
    unsigned first_step, first, first_block;
    const unsigned char* deltas;

    __device__ __forceinline__ Packed(const uint4& header, const unsigned char* all)
        : steps(steps_of(header)), full(full_of(header)), shift(shift_of(header)),
          width(width_of(header)), first_step(header.x), first(header.y), first_block(header.z),
          deltas(all + 32ll * header.z)
    {
    }

    // The slot of a step, counted through all slices.
    __device__ __forceinline__ long long slot(int step) const
    {
        return WARP * ((long long)first_step + step) + lane_id();
    }

    // Sets the delta of this lane's slot in a step. Returns whether the slot holds an entry.
    __device__ __forceinline__ bool delta(int step, unsigned& delta) const
    {
        const int slot = WARP * step + lane_id();
        switch (width) {
        case 0: delta = lane_id(); return true;
        case 1: delta = deltas[slot]; return delta != 0xffu;
        case 2: delta = reinterpret_cast<const unsigned short*>(deltas)[slot]; return delta != 0xffffu;
        default: delta = reinterpret_cast<const unsigned*>(deltas)[slot]; return delta != 0xffffffffu;
        }
    }

    // Whether the slot of a step holds an entry.
    __device__ __forceinline__ bool has(int step) const
    {
        unsigned ignored;
        return step < full || (step < steps && delta(step, ignored));
    }

    // A bit for each of COUNT steps, set if this lane's slot holds an entry; all loads at once.
    template <int COUNT> __device__ __forceinline__ unsigned held(int first_of_them) const
    {
        switch (width) {
        case 0: return (1u << min(max(steps - first_of_them, 0), COUNT)) - 1;
        case 1: return held_beside<COUNT>(deltas, first_of_them);
        case 2: return held_beside<COUNT>(reinterpret_cast<const unsigned short*>(deltas), first_of_them);
        default: return held_beside<COUNT>(reinterpret_cast<const unsigned*>(deltas), first_of_them);
        }
    }

    // The lanes that share this one's row.
    __device__ __forceinline__ unsigned lanes() const
    {
        return ALL_LANES >> (WARP - (1 << shift)) << (lane_id() >> shift << shift);
    }

    // The position of this lane's row.
    __device__ __forceinline__ long long position() const { return (long long)first + (lane_id() >> shift); }

    // The entry in this lane's slot, if it `has` one. `entry`, the row's next one, moves on by the step.
    __device__ __forceinline__ Count next_entry(bool has, Count& entry) const
    {
        const unsigned entries = __ballot_sync(ALL_LANES, has) & lanes();
        const Count mine = entry + __popc(entries & lanes_before());
        entry += __popc(entries);
        return mine;
    }

private:
    template <int COUNT, class Delta>
    __device__ __forceinline__ unsigned held_beside(const Delta* all, int begin) const
    {
        Delta deltas_of[COUNT];
#pragma unroll
        for (int k = 0; k < COUNT; ++k)
            deltas_of[k] = begin + k >= full && begin + k < steps ? all[WARP * (begin + k) + lane_id()] : Delta();
        unsigned held = 0;
#pragma unroll
        for (int k = 0; k < COUNT; ++k) held |= unsigned(begin + k < steps && deltas_of[k] != Delta(-1)) << k;
        return held;
    }
};

// The first entry of a segment: those of its row's segments before it come first.
__device__ __forceinline__ Count start_of(unsigned number, const Index* long_rows, const Index* segment_offsets,
                                          const Index* segment_rows, const Count* starts, const Count* pieces)
{
    const long long r = segment_rows[number];
    Count before = 0;
    for (long long other = (long long)segment_offsets[r] + lane_id(); other < number; other += WARP)
        before += pieces[other];
#pragma unroll
    for (int step = WARP / 2; step; step /= 2) before += __shfl_xor_sync(ALL_LANES, before, step);
    return starts[long_rows[r]] + before;
}

// The first entry of this lane's row, or segment, in a slice. Every lane of a warp calls this.
__device__ __forceinline__ Count first_entry(const Packed& slice, long long s, const Index* rows, long long positions,
                                             const Index* long_rows, const Index* segment_offsets,
                                             const Index* segment_rows, long long segments, const Count* starts,
                                             const Count* pieces)
{
    if (s < segments) return start_of(slice.first, long_rows, segment_offsets, segment_rows, starts, pieces);
    if (slice.position() >= positions) return 0;
    return starts[rows ? (long long)rows[slice.position()] : slice.position()];
}
