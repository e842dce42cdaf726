// y = alpha A x + beta y for a matrix in slices, in one launch: one warp multiplies one slice.
//
// A slice has 32 / T rows, T lanes to a row, and runs of 32 slots called steps: slot l of step k is entry
// k T + l % T of the slice's row l / T, and lane l multiplies it. The first `segments` slices are segments
// of rows too long for a slice, T = 32, and the warp of a row's last segment adds the row's partial sums.
//
// Launch: one dimension, blocks of DASP_THREADS threads, and at least as many warps as slices. The arrays of the
//     plan are constant, and are read before the kernels that come earlier in the stream have ended.
//     With DASP_DOT and no segments any number of warps will do: they take slices in turn; or, if `run` is
//     not 0, each takes `run` slices, and those of a block are neighbours.
// headers (slices): first step, first position (of a segment: its number, row by row), first block of 32
//     bytes of deltas, and from the lowest bit steps (12), full steps (12, not read here), log2 T (3), width (2).
// bases (steps): the column to which a step's deltas are added. deltas: those of each slice in its width, 0,
//     8, 16 or 32 bits. A delta with all bits set is a pad, which reads no x and takes part in no sum. Deltas
//     of width 0 are the numbers of the lanes, and are not stored.
// values (32 * steps): in the matrix's type or as codes (DASP_CODING); table: the values of the codes.
// rows (positions): the caller's row at each position; not read if `identity`: position p is row p.
// long_rows (r), segment_offsets (r + 1), segment_rows (segments): see dasp/formats/sell/pattern.py.
// partials (MESSAGES * segments), tickets (1): see partial.cuh.
// x (n) is read through the cache and everything else is streamed past it. y (m) is written once for every
// row. Equal inputs give equal bits: every sum has a fixed order.
// DASP_DOT 1: leaves the sums of y'w too (see dot.cuh), and beta is 0. DASP_DOT 2: also those of y'y.

#include "spmv/partial.cuh"
#include "spmv/slices.cuh"

#ifndef DASP_IN_FLIGHT
#error "define DASP_IN_FLIGHT: steps whose loads are in flight before the first is multiplied, 1 to 8"
#endif
#ifndef DASP_DOT
#define DASP_DOT 0
#endif
#if DASP_DOT
#include "spmv/dot.cuh"
#define DOT_PARAMETERS , const X* w, double* sums, int run
#else
#define DOT_PARAMETERS
#endif

// DASP_REGISTERS: the most registers of a lane. Without it, and with DASP_DOT, the compiler decides.
#if defined(DASP_REGISTERS) && !DASP_DOT
#define BOUNDS DASP_THREADS, 65536 / DASP_REGISTERS / DASP_THREADS
#else
#define BOUNDS DASP_THREADS
#endif

// Fewer steps take fewer registers, so that more warps run, which pays where slices have few steps.
constexpr int IN_FLIGHT = DASP_IN_FLIGHT;

// Adds STEPS steps, all loads before the first product.
template <int STEPS, class Delta>
__device__ __forceinline__ void add_steps(const Slices& slices, const X* x, long long step,
                                          const Delta* deltas, Sum& sum)
{
    Index column[STEPS];
    Code code[STEPS];
    X b[STEPS];
    Factor a[STEPS];
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        column[k] = load_column(slices.bases + step + k, deltas + 32 * k);
        code[k] = load_code(slices.values + 32 * (step + k) + lane_id());
    }
#if DASP_CODING == CODING_EQUAL
    const Factor equal = factor_of(Code(), slices.table);
#endif
    __syncwarp();  // else the compiler issues the loads of values after the columns have arrived
    wait_for_earlier_kernels();
#pragma unroll
    for (int k = 0; k < STEPS; ++k) b[k] = load_result_at(x + column[k], column[k]);
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
#if DASP_CODING == CODING_EQUAL
        a[k] = column[k] < 0 ? Factor(0) : equal;
#elif DASP_CODING == CODING_DICTIONARY
        a[k] = convert<Factor>(load_result_at(slices.table + code[k], column[k]));
#else
        a[k] = convert<Factor>(code[k]);
#endif
    }
#pragma unroll
    for (int k = 0; k < STEPS; ++k) sum = multiply_add(a[k], convert<Operand>(b[k]), sum);
}

// Adds the last STEPS steps. At most IN_FLIGHT - 1 can be left: nothing is compiled for more.
template <int STEPS, class Delta>
__device__ __forceinline__ void add_last(const Slices& slices, const X* x, long long step, const Delta* deltas,
                                         Sum& sum)
{
    if constexpr (STEPS < IN_FLIGHT) add_steps<STEPS>(slices, x, step, deltas, sum);
}

// The sum of this lane's row of a slice with deltas of type Delta, in each lane of the row. Each number of
// last steps has a body of its own, so that no load is issued for a step that does not exist.
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

// The sum of this lane's row of the slice that a header describes, in each lane of the row.
__device__ __forceinline__ Sum sum_of_slice(const Slices& slices, const X* x, const uint4& header)
{
    switch (width_of(header)) {
    case 0: return sum_of_slice<LaneDelta>(slices, x, header);
    case 1: return sum_of_slice<unsigned char>(slices, x, header);
    case 2: return sum_of_slice<unsigned short>(slices, x, header);
    default: return sum_of_slice<unsigned int>(slices, x, header);
    }
}

extern "C" __global__ void __launch_bounds__(BOUNDS)
dasp_slices(const uint4* __restrict__ headers, const Index* __restrict__ bases,
            const unsigned char* __restrict__ deltas, const Code* __restrict__ values,
            const Value* __restrict__ table, const Index* __restrict__ rows,
            const Index* __restrict__ long_rows, const Index* __restrict__ segment_offsets,
            const Index* __restrict__ segment_rows, Bits* partials, unsigned* tickets, long long count,
            long long segments, long long positions, int identity, const X* __restrict__ x, Y* y, Sum alpha, Sum beta
            DOT_PARAMETERS)
{
    const unsigned block = number_of_block(segments, tickets);
    const Slices slices{bases, deltas, values, table};
    const Result result{y, alpha, beta};
#if DASP_DOT
    Dots dots;
#endif

    const auto multiply = [&](long long s, const uint4& header) {
        const int shift = shift_of(header);
        Index row = PAD, first = 0, last = 0;
        if (s < segments) {
            const Index r = load_cached(segment_rows + header.y);
            row = load_cached(long_rows + r);
            first = load_cached(segment_offsets + r);
            last = load_cached(segment_offsets + r + 1) - 1;
        } else {
            const long long position = header.y + (lane_id() >> shift);
            if (position < positions) row = identity ? Index(position) : load_stream(rows + position);
        }
        const bool stores = s < segments ? lane_id() == 0 && header.y == last : (lane_id() & ((1 << shift) - 1)) == 0;
#if DASP_DOT
        X other = 0;
        const bool counts = stores && row >= 0;
#endif
        const Sum sum = sum_of_slice(slices, x, header);

        wait_for_earlier_kernels();  // a slice of empty rows has not waited yet
        if (s < segments)
            deliver(sum, partials + MESSAGES * (long long)first, header.y - first, last - first, row, result);
        else if (stores)
            result.store(row, sum);
#if DASP_DOT
        if (counts) other = load_result(w + row);
        const Y made = s < segments && counts ? y[row] : convert<Y>(alpha * sum);
        if (counts) dots.add(double(made), double(other));
#endif
    };

#if DASP_DOT
    constexpr unsigned WARPS = DASP_THREADS / 32;
    const unsigned step = run ? WARPS : gridDim.x * WARPS;
    const unsigned end = run ? min(unsigned(count), (block + 1) * run * WARPS) : unsigned(count);
    for (unsigned s = block * WARPS * (run ? run : 1) + threadIdx.x / 32; s < end; s += step)
        multiply(s, load_cached(headers + s));
    wait_for_earlier_kernels();  // a warp without a slice has not waited yet
    leave_dots(sums, block, gridDim.x, dots);
#else
    const long long first = (block * (long long)blockDim.x + threadIdx.x) / 32;
    if (first < count) multiply(first, load_cached(headers + first));
#endif
}
