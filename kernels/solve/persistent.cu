// Conjugate gradients from b to x in one launch, for systems that fit on the chip: each block keeps its slices of the
// plan and its rows of the vectors in shared memory until the method stops.
//
// Ghysels and Vanroose (2014), doi:10.1016/j.parco.2013.06.001, algorithm 4, for M a diagonal or none; the scalars are
// those of dasp/solvers/cg.py. The one vector that all blocks read, M w, has two copies that are written in
// turn. An iteration is one product, each of whose rows is updated as soon as it is computed, and one sum
// over the grid.
//
// Launch: cooperative, one dimension, blocks of DASP_THREADS threads, with as much dynamic shared memory as
//     the largest share of a block takes: see dasp/solvers/persistent.py.
// The plan's arrays: as in spmv/slices.cu, without segments.
// b, x (n): by rows. x is read if `mode` is FROM_X or AGAIN, and written.
// diagonal (n): M is diag(diagonal); not read if DASP_JACOBI is 0.
// shown (2, stride): the two copies of M w, by rows. kept (4, stride): w, z, s, p by positions, written if a
//     launch stops at a limit; the older copy in `shown` then becomes r, by positions.
// nbytes: of dynamic shared memory, more than any block's share. record (SLOTS): scalars for the next launch.
// history (most + 1): the square of the residual's norm after each iteration. mailbox (MAILBOX), in the
//     host's memory: `record`, then the beginning of `history`.
// messages: see grid.cuh.
// mode: where to begin. finish: whether the true residual is computed at the end.
// Equal inputs and equal launches give equal bits: every sum has a fixed order.
// Short loops before and after the iteration are not unrolled: else compiling takes half as long again.

#include "solve/grid.cuh"
#include "spmv/slices.cuh"

#ifndef DASP_JACOBI
#error "define DASP_JACOBI: 1 if there is a diagonal preconditioner, else 0"
#endif
#ifndef DASP_MAILBOX
#error "define DASP_MAILBOX: how many numbers the host sees when a launch is done"
#endif

enum Mode { FROM_ZERO, FROM_X, AGAIN };
enum Finish { NEVER, ALWAYS, UNLESS_LIMIT };
// Why it stopped (dasp/solvers/scalars.py, dasp/solvers/cg.py).
enum Reason { RUNNING, CLAIMED, LIMIT, NOT_FINITE, NOTHING, INDEFINITE = 8, BAD_M };
enum Slot { REASON, COUNT, BB, RR, START, WANTED, GOAL, TRUE_RR, XX, RHO, CURVATURE, OVER_RHO, OVER_ALPHA, SHOWN, SLOTS };
constexpr int MAILBOX = DASP_MAILBOX, HISTORY = 16;  // numbers of `mailbox`, and where the history begins there
// The work before a sum over the grid: set r = b (BEGIN) or r = b - A x (OF_X); compute w (FIRST); one
// iteration (ITERATE); read the vectors of an earlier launch (READ); none, as x was just written (WRITTEN);
// compute the true residual (TRUE).
enum Phase { BEGIN, OF_X, FIRST, ITERATE, READ, WRITTEN, TRUE };

constexpr double FINITE = 1e308, LOW = 1e-200, HIGH = 1e200;
constexpr int THREADS = DASP_THREADS;
constexpr int WARPS = THREADS / 32;
constexpr int SUMS = DASP_JACOBI ? 3 : 2;
constexpr int LOCAL = DASP_JACOBI ? 7 : 6;  // numbers of a row in shared memory
constexpr int STEPS = 8;                    // of a chunk: gathers of a lane that wait together
constexpr int VALUE_BYTES = DASP_CODING == CODING_EQUAL ? 0 : 32 * int(sizeof(Code));  // of a step

// A place between two slices: how much of the plan lies before it.
struct Place {
    int slice;
    unsigned step, deltas;  // blocks of 32 bytes of these
    int position;

    __device__ __forceinline__ long long bytes(int identity) const
    {
        const long long of_row = LOCAL * sizeof(X) + (identity ? 0 : sizeof(Index));
        return (long long)(VALUE_BYTES + sizeof(Index)) * step + 32ll * deltas + of_row * position + 16ll * slice;
    }
};

__device__ __forceinline__ Place place_before(const uint4* headers, int slice)
{
    const uint4 header = load_cached(headers + slice);
    return {slice, header.x, header.z, int(header.y)};
}

__device__ __forceinline__ Place place_behind_all(const uint4* headers, int count, int positions)
{
    const uint4 last = load_cached(headers + count - 1);
    const int width = width_of(last);
    return {count, last.x + steps_of(last), last.z + steps_of(last) * (width == 0 ? 0 : 1 << (width - 1)), positions};
}

// The first slice whose predecessors take at least `bytes` bytes. Every thread of the block calls this.
__device__ __forceinline__ int slice_at(const uint4* headers, int count, int identity, long long bytes)
{
    int low = 0, high = count;
    while (low < high) {
        const int width = (high - low + THREADS - 1) / THREADS, probe = low + int(threadIdx.x) * width;
        const int found = __syncthreads_count(probe < high && place_before(headers, probe).bytes(identity) < bytes);
        high = found == 0 ? low : min(high, low + found * width);
        low = found == 0 ? low : low + (found - 1) * width + 1;
    }
    return low;
}

// A block's part of the plan, in shared memory; indices are those of the whole plan.
struct Near {
    const uint4* headers;
    const Index* bases;
    const unsigned char* deltas;
    const Code* values;
    const Value* table;  // not in shared memory

    template <class Delta> __device__ __forceinline__ Index column(const uint4& header, int step) const
    {
        return column_of(bases[header.x + step],
                         reinterpret_cast<const Delta*>(deltas + 32ll * header.z)[32 * step + lane_id()]);
    }

    __device__ __forceinline__ Factor value(unsigned step) const
    {
#if DASP_CODING == CODING_EQUAL
        return convert<Factor>(load_cached(table));
#elif DASP_CODING == CODING_DICTIONARY
        return convert<Factor>(load_cached(table + values[32ll * step + lane_id()]));
#else
        return convert<Factor>(values[32ll * step + lane_id()]);
#endif
    }
};

template <> __device__ __forceinline__ Index Near::column<LaneDelta>(const uint4& header, int step) const
{
    return bases[header.x + step] + lane_id();
}

// Up to STEPS steps of a slice, whose x is being loaded.
struct Chunk {
    Operand x[STEPS];
    unsigned pads;  // a bit for each step, set if this lane's slot is a pad

    template <class Delta>
    __device__ __forceinline__ void load_of(const Near& near, const uint4& header, int first, int steps, const X* from)
    {
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            if (k >= steps) break;
            const Index column = near.column<Delta>(header, first + k);
            if (CODED && column < 0) pads |= 1u << k;
            x[k] = load_x(from, column);
        }
    }

    __device__ __forceinline__ void load(const Near& near, const uint4& header, int first, const X* from)
    {
        const int steps = min(STEPS, steps_of(header) - first);
        pads = 0;
        switch (width_of(header)) {
        case 0: load_of<LaneDelta>(near, header, first, steps, from); break;
        case 1: load_of<unsigned char>(near, header, first, steps, from); break;
        case 2: load_of<unsigned short>(near, header, first, steps, from); break;
        default: load_of<unsigned int>(near, header, first, steps, from);
        }
    }

    // Adds its products to a sum, the lane's own.
    __device__ __forceinline__ void add_to(Sum& sum, const Near& near, const uint4& header, int first) const
    {
        const int steps = min(STEPS, steps_of(header) - first);
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            if (k >= steps) break;
            const Factor a = near.value(header.x + first + k);
            sum = multiply_add(CODED && (pads >> k & 1) ? Factor(0) : a, x[k], sum);
        }
    }
};

// A warp's way through its slices, chunk by chunk.
struct Cursor {
    int slice, end, first;  // first step of the chunk
    uint4 header;

    __device__ __forceinline__ Cursor(const Near& near, int slice, int end) : slice(slice), end(end), first(0)
    {
        if (slice < end) header = near.headers[slice];
    }

    __device__ __forceinline__ bool inside() const { return slice < end; }
    __device__ __forceinline__ bool is_last_of_slice() const { return first + STEPS >= steps_of(header); }

    __device__ __forceinline__ void advance(const Near& near)
    {
        first += STEPS;
        if (first < steps_of(header)) return;
        first = 0;
        slice += WARPS;
        if (slice < end) header = near.headers[slice];
    }
};

// Multiplies a warp's slices by `from`: calls `take` with the position and the sum of each row, in the first
// of the row's lanes. The gathers of a chunk are in flight while the chunk before is added.
template <class Take>
__device__ __forceinline__ void multiply(const Near& near, int first, int end, int positions, const X* from,
                                         const Take& take)
{
    Cursor ahead(near, first, end), here = ahead;
    Chunk next;
    Sum sum = 0;
    bool there = false;  // is a chunk being loaded?
#pragma unroll 1
    while (here.inside()) {
        const Chunk chunk = next;
        if (ahead.inside()) {
            next.load(near, ahead.header, ahead.first, from);
            ahead.advance(near);
        }
        if (!there) {
            there = true;
            continue;
        }
        chunk.add_to(sum, near, here.header, here.first);
        if (here.is_last_of_slice()) {
            const int shift = shift_of(here.header);
            for (int lanes = 1; lanes < 1 << shift; lanes *= 2) sum += from_other_lane(sum, lanes);
            const int position = int(here.header.y) + (lane_id() >> shift);
            if ((lane_id() & ((1 << shift) - 1)) == 0 && position < positions) take(position, sum);
            sum = 0;
        }
        here.advance(near);
    }
}

// Judges r, and computes the scalars of the next iteration; all other threads wait. total: w'M r, r'r, r'M r.
__device__ __forceinline__ void decide(double* scalar, const double (&total)[SUMS], double most, double* history,
                                       X& step, X& turn)
{
    const double rr = total[1], rho = total[SUMS - 1], made = scalar[COUNT];
    const double beta = rho * scalar[OVER_RHO], curvature = total[0] - beta * rho * scalar[OVER_ALPHA];
    const int reason = !(rr < FINITE) ? NOT_FINITE : rr <= scalar[GOAL] ? CLAIMED : !(rho > 0) ? BAD_M
                       : !(curvature > 0) ? INDEFINITE : made >= most ? LIMIT : RUNNING;
    if (blockIdx.x == 0) history[int(made)] = rr;
    scalar[REASON] = reason;
    scalar[RR] = rr;
    if (reason != RUNNING) return;
    scalar[COUNT] = made + 1;
    scalar[RHO] = rho;
    scalar[CURVATURE] = curvature;
    step = X(rho / curvature);
    turn = X(beta);
}

// Computes scalars of this iteration that the next one needs, while other warps multiply.
__device__ __forceinline__ void look_ahead(double* scalar)
{
    scalar[OVER_RHO] = 1 / scalar[RHO];
    scalar[OVER_ALPHA] = scalar[CURVATURE] / scalar[RHO];
}

// Judges b and the first r; total: b'b, r'r.
__device__ __forceinline__ void begin(double* scalar, const double (&total)[SUMS], double wanted, double margin)
{
    const double bb = total[0], rr = total[1], goal = wanted * margin;
    scalar[BB] = bb;
    scalar[RR] = scalar[START] = rr;
    scalar[WANTED] = wanted;
    scalar[GOAL] = goal;
    scalar[OVER_RHO] = scalar[OVER_ALPHA] = 0;
    scalar[REASON] = !(bb >= 0) ? NOT_FINITE : bb < LOW || bb > HIGH ? NOTHING : !(rr < FINITE) ? NOT_FINITE
                     : rr <= goal ? CLAIMED : RUNNING;
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS, 1)
dasp_persistent(const uint4* __restrict__ headers, const Index* __restrict__ bases,
              const unsigned char* __restrict__ deltas, const Code* __restrict__ values,
              const Value* __restrict__ table, const Index* __restrict__ rows, long long count, long long positions,
              int identity, const X* diagonal, X* shown, X* kept, long long stride, int nbytes, double* record,
              double* history, double* mailbox, unsigned long long* messages, const X* b, X* x, double most, double rtol,
              double atol, double margin, int mode, int finish)
{
    // This block's share: slices with an equal part of all bytes.
    const Place all = place_behind_all(headers, int(count), int(positions));
    const long long bytes = all.bytes(identity);
    const int first_slice = slice_at(headers, all.slice, identity, bytes * blockIdx.x / gridDim.x);
    const int end_slice = slice_at(headers, all.slice, identity, bytes * (blockIdx.x + 1) / gridDim.x);
    const Place start = first_slice < all.slice ? place_before(headers, first_slice) : all;
    const Place end = end_slice < all.slice ? place_before(headers, end_slice) : all;
    const int mine = end.position - start.position;  // rows
    if (end.bytes(identity) - start.bytes(identity) + 16 > nbytes) __trap();  // a slice is longer than the plan says

    // Shared memory holds the block's part of the plan, its rows of the vectors, and scalars, equal in all
    // blocks.
    extern __shared__ __align__(16) unsigned char memory[];
    uint4* const words = reinterpret_cast<uint4*>(memory);  // headers, values and deltas, one after the other
    const int steps = int(end.step - start.step), of_headers = end.slice - start.slice;
    const int of_values = VALUE_BYTES / 16 * steps, before_deltas = of_headers + of_values;
    const int before_bases = before_deltas + 2 * int(end.deltas - start.deltas);
    const uint4* const more_values = reinterpret_cast<const uint4*>(values + 32ll * start.step) - of_headers;
    const uint4* const more_deltas = reinterpret_cast<const uint4*>(deltas + 32ll * start.deltas) - before_deltas;
    for (int i = threadIdx.x; i < before_bases; i += THREADS)
        words[i] = load_stream((i < of_headers ? headers + start.slice : i < before_deltas ? more_values : more_deltas) + i);
    Index* const near_bases = reinterpret_cast<Index*>(words + before_bases);
    for (int i = threadIdx.x; i < steps; i += THREADS) near_bases[i] = load_stream(bases + start.step + i);
    Near near;
    near.table = table;
    near.headers = words - start.slice;
    near.values = reinterpret_cast<const Code*>(words + of_headers) - 32ll * start.step;
    near.deltas = reinterpret_cast<const unsigned char*>(words + before_deltas) - 32ll * start.deltas;
    near.bases = near_bases - start.step;
    X* const numbers = reinterpret_cast<X*>(words + before_bases + (steps * int(sizeof(Index)) + 15) / 16);
    X *const own_x = numbers, *const r = own_x + mine, *const w = r + mine, *const z = w + mine, *const s = z + mine;
    X *const p = s + mine, *const inverse = p + mine;
    Index* const own_rows = reinterpret_cast<Index*>(numbers + LOCAL * mine);
    const auto row_of = [&](int i) { return identity ? Index(start.position + i) : own_rows[i]; };
    const auto times_m = [&](int i, X value) { return DASP_JACOBI ? inverse[i] * value : value; };
#pragma unroll 1
    for (int i = threadIdx.x; i < mine; i += THREADS) {
        const Index row = identity ? Index(start.position + i) : load_stream(rows + start.position + i);
        if (!identity) own_rows[i] = row;
        if (DASP_JACOBI) inverse[i] = diagonal[row];
    }
    __shared__ double scalar[SLOTS];
    __shared__ X step, turn;  // how far to go along p, and how much of p to keep
    if (threadIdx.x == 0) step = turn = 0;
    if (threadIdx.x < SLOTS) scalar[threadIdx.x] = threadIdx.x == COUNT ? 0 : record[threadIdx.x];
    __syncthreads();

    Grid<THREADS, SUMS> grid(messages);
    int at = mode == AGAIN ? int(scalar[SHOWN]) : 0;
    Phase phase = mode == FROM_ZERO ? BEGIN : mode == FROM_X ? OF_X : scalar[REASON] == LIMIT ? READ : TRUE;
#pragma unroll 1
    for (;;) {
        // b'b, w'M r or, with TRUE, the square of the true residual; r'r or, with TRUE, x'x; r'M r.
        double value[SUMS] = {};
        const auto measure = [&](int i, X of_r, X of_w) {
            const X of_u = times_m(i, of_r);
            value[0] += double(of_w) * double(of_u);
            value[1] += double(of_r) * double(of_r);
            if (DASP_JACOBI) value[SUMS - 1] += double(of_r) * double(of_u);
        };
        const auto begin_row = [&](int i, Index row, X product) {
            const X right = b[row], left = right - product;
            r[i] = left;
            shown[row] = times_m(i, left);
            value[0] += double(right) * double(right);
            value[1] += double(left) * double(left);
        };

        if (phase == BEGIN) {
#pragma unroll 1
            for (int i = threadIdx.x; i < mine; i += THREADS) {
                own_x[i] = 0;
                begin_row(i, row_of(i), 0);
            }
        } else if (phase == READ) {
            const X* const of_r = shown + (1 - at) * stride + start.position;
            const X* const of_w = kept + start.position;
#pragma unroll 1
            for (int i = threadIdx.x; i < mine; i += THREADS) {
                own_x[i] = x[row_of(i)];
                r[i] = of_r[i];
                w[i] = of_w[i];
                z[i] = of_w[stride + i];
                s[i] = of_w[2 * stride + i];
                p[i] = of_w[3 * stride + i];
                measure(i, r[i], w[i]);
            }
        } else if (phase != WRITTEN) {
            const X* const from = phase == OF_X || phase == TRUE ? x : shown + at * stride;
            X* const to = shown + (1 - at) * stride;
            const X along = step, keep = turn;
            multiply(near, start.slice + int(threadIdx.x) / 32, end.slice, int(positions), from,
                     [&](int position, Sum sum) {
                const int i = position - start.position;
                const Index row = row_of(i);
                const X made = convert<X>(sum);
                if (phase == ITERATE) {
                    const X of_z = made + keep * z[i], of_s = w[i] + keep * s[i];
                    const X of_p = times_m(i, r[i]) + keep * p[i];
                    const X of_r = r[i] - along * of_s, of_w = w[i] - along * of_z;
                    to[row] = times_m(i, of_w);
                    z[i] = of_z;
                    s[i] = of_s;
                    p[i] = of_p;
                    own_x[i] += along * of_p;
                    r[i] = of_r;
                    w[i] = of_w;
                    measure(i, of_r, of_w);
                } else if (phase == FIRST) {
                    to[row] = times_m(i, made);
                    w[i] = made;
                    z[i] = s[i] = p[i] = 0;
                    measure(i, r[i], made);
                } else if (phase == OF_X) {
                    own_x[i] = x[row];
                    begin_row(i, row, made);
                } else {
                    const double left = double(b[row] - made);
                    value[0] += left * left;
                    value[1] += double(x[row]) * double(x[row]);
                }
            });
            if (phase == FIRST || phase == ITERATE) at = 1 - at;
        }

        grid.sum(value, [&](const double (&total)[SUMS]) {
            if (phase == BEGIN || phase == OF_X) {
                const double relative = rtol * rtol * total[0], absolute = atol * atol;
                begin(scalar, total, relative > absolute ? relative : absolute, margin);
            } else if (phase == TRUE) {
                scalar[TRUE_RR] = total[0];
                scalar[XX] = total[1];
            } else if (phase != WRITTEN)
                decide(scalar, total, most, history, step, turn);
        });
        if (phase == TRUE) break;
        if (phase == WRITTEN) {
            phase = TRUE;
            continue;
        }
        if (scalar[REASON] == RUNNING) {
            if (phase != BEGIN && phase != OF_X && threadIdx.x == THREADS - 32) look_ahead(scalar);
            phase = phase == BEGIN || phase == OF_X ? FIRST : ITERATE;
            continue;
        }

        // It stopped.
        X* const of_r = shown + (1 - at) * stride + start.position;
        X* const of_w = kept + start.position;
#pragma unroll 1
        for (int i = threadIdx.x; i < mine; i += THREADS) {
            x[row_of(i)] = own_x[i];
            if (scalar[REASON] != LIMIT) continue;
            of_r[i] = r[i];
            of_w[i] = w[i];
            of_w[stride + i] = z[i];
            of_w[2 * stride + i] = s[i];
            of_w[3 * stride + i] = p[i];
        }
        if (finish == NEVER || (finish == UNLESS_LIMIT && scalar[REASON] == LIMIT)) break;
        phase = WRITTEN;
    }

    if (blockIdx.x > 0) return;
    __syncthreads();
    if (threadIdx.x == 0) scalar[SHOWN] = at;
    __syncthreads();
    if (threadIdx.x < SLOTS) record[threadIdx.x] = mailbox[threadIdx.x] = scalar[threadIdx.x];
    const int behind = min(HISTORY + 1 + int(scalar[COUNT]), MAILBOX);
#pragma unroll 1
    for (int at = HISTORY + threadIdx.x; at < behind; at += THREADS) mailbox[at] = history[at - HISTORY];
}
