// Long rows: one warp sums one segment of a row; the warp of the last segment adds the row's partials.
#pragma once

#include "spmv/partial.cuh"

// rows (r), offsets (r + 1), segment_offsets (r + 1), segment_rows (segments): see dasp/formats/dasp/pattern.py.
// columns, values: whole groups of 64 slots for each row, pads (column -1, value 0) after its entries.
// segment: the slots of each segment but the last of a row. partials (MESSAGES * segments): see partial.cuh.
struct LongPart {
    const Index* rows;
    const Offset* offsets;
    const Offset* segment_offsets;
    const Index* segment_rows;
    const Index* columns;
    const Value* values;
    Bits* partials;
    int segment;
};

// The sum of slots begin to end - 1, in every lane. Four tiles are in flight before the first product.
__device__ __forceinline__ Sum sum_slots(const LongPart& part, const X* x, Offset begin, Offset end)
{
    constexpr int STEPS = 4;
    TileSum sum;
    for (Offset slot = begin + lane_id(); slot < end; slot += STEPS * TILE) {
        Index column[STEPS];
        Factor a[STEPS];
        Operand b[STEPS];
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const bool inside = slot + step * TILE < end;
            column[step] = inside ? load_stream(part.columns + slot + step * TILE) : PAD;
            a[step] = inside ? convert<Factor>(load_stream(part.values + slot + step * TILE)) : Factor(0);
        }
#pragma unroll
        for (int step = 0; step < STEPS; ++step) b[step] = load_x(x, column[step]);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) sum.add(a[step], b[step]);
    }
    return sum.all();
}

__device__ __forceinline__ void multiply_segment(const LongPart& part, const X* x, const Result& result,
                                                 long long s)
{
    const Index r = part.segment_rows[s];
    const Offset first = part.segment_offsets[r], last = part.segment_offsets[r + 1] - 1;
    const Offset begin = part.offsets[r] + (Offset(s) - first) * part.segment;
    const Sum sum = sum_slots(part, x, begin, min(Offset(begin + part.segment), part.offsets[r + 1]));
    deliver(sum, part.partials + MESSAGES * (long long)first, s - first, last - first, part.rows[r], result);
}
