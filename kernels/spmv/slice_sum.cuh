// The sums of the rows of a slice, by one warp. slices.cu says how a slice is stored.
#pragma once

#include "spmv/slices.cuh"

#ifndef DASP_IN_FLIGHT
#error "define DASP_IN_FLIGHT: steps whose loads are in flight before the first is multiplied, 1 to 8"
#endif

// Fewer take fewer registers, and let more warps run, which pays where slices have few steps.
constexpr int IN_FLIGHT = DASP_IN_FLIGHT;

// Adds STEPS steps, all loads before the first product.
template <int STEPS, class Delta>
__device__ __forceinline__ void add_steps(const Slices& slices, const X* x, long long step,
                                          const Delta* deltas, Sum& sum)
{
    Index column[STEPS];
    Code code[STEPS];
    X b[STEPS];
    Weight a[STEPS];
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        column[k] = load_column(slices.bases + step + k, deltas + 32 * k);
        code[k] = load_code(slices.values + 32 * (step + k) + lane_id());
    }
#if DASP_CODING == CODING_EQUAL
    const Weight equal = weight_of(Code(), slices.table);
#endif
    __syncwarp();  // else the compiler issues the loads of values after the columns have arrived
    wait_for_earlier_kernels();
#pragma unroll
    for (int k = 0; k < STEPS; ++k) b[k] = load_result_at(x + column[k], column[k]);
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
#if DASP_CODING == CODING_EQUAL
        a[k] = column[k] < 0 ? Weight(0) : equal;
#elif DASP_CODING == CODING_DICTIONARY
        a[k] = convert<Weight>(load_result_at(slices.table + code[k], column[k]));
#else
        a[k] = convert<Weight>(code[k]);
#endif
    }
#pragma unroll
    for (int k = 0; k < STEPS; ++k) sum = multiply_add(a[k], convert<Operand>(b[k]), sum);
}

// Adds the last STEPS steps; nothing is compiled for more of them than can be left.
template <int STEPS, class Delta>
__device__ __forceinline__ void add_last(const Slices& slices, const X* x, long long step, const Delta* deltas,
                                         Sum& sum)
{
    if constexpr (STEPS < IN_FLIGHT) add_steps<STEPS>(slices, x, step, deltas, sum);
}

// The sum of a row of a slice with deltas of a type, in each of its lanes. The last steps have a body for each number of
// them, so that no load is issued for a step that does not exist.
template <class Delta>
__device__ __forceinline__ Sum sum_of_slice(const Slices& slices, const X* x, const uint4& header)
{
    const int lanes = 1 << shift_of(header);
    const auto* deltas = reinterpret_cast<const Delta*>(slices.deltas + 32ll * header.z);
    long long step = header.x;
    int steps = steps_of(header);
    Sum sum = 0;
#pragma unroll 1
    for (; steps >= IN_FLIGHT; steps -= IN_FLIGHT, step += IN_FLIGHT, deltas += 32 * IN_FLIGHT)
        add_steps<IN_FLIGHT>(slices, x, step, deltas, sum);
    switch (steps) {
    case 7: add_last<7>(slices, x, step, deltas, sum); break;
    case 6: add_last<6>(slices, x, step, deltas, sum); break;
    case 5: add_last<5>(slices, x, step, deltas, sum); break;
    case 4: add_last<4>(slices, x, step, deltas, sum); break;
    case 3: add_last<3>(slices, x, step, deltas, sum); break;
    case 2: add_last<2>(slices, x, step, deltas, sum); break;
    case 1: add_last<1>(slices, x, step, deltas, sum); break;
    }
    for (int distance = 1; distance < lanes; distance *= 2) sum += from_other_lane(sum, distance);
    return sum;
}

// The sum of a row of the slice that a header describes, in each of the row's lanes.
__device__ __forceinline__ Sum sum_of_slice(const Slices& slices, const X* x, const uint4& header)
{
    switch (width_of(header)) {
    case 0: return sum_of_slice<LaneDelta>(slices, x, header);
    case 1: return sum_of_slice<unsigned char>(slices, x, header);
    case 2: return sum_of_slice<unsigned short>(slices, x, header);
    default: return sum_of_slice<unsigned int>(slices, x, header);
    }
}
