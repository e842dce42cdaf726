// Sends rows of x to the GPUs of other ranks, and copies their rows to `received`: see peers.cuh.
//
// A message is some rows for one neighbour. Each block copies its piece of every message, tells all
// neighbours that its pieces are there, and waits for the same pieces of their messages. So no block waits
// for another block of its launch.
//
// Launch: one dimension, blocks of DASP_THREADS threads, equally many on all ranks. The kernel begins when
//     the kernels before it have ended, and lets none begin before its own end: waiting blocks of a later
//     kernel would take the place of the product that runs beside this one.
// neighbours (count, 9), for each: the first row that is sent to it and one past the last, as indices of
//     `places`; the place in memory of its first slot for them, and the bytes to its second; the place of its
//     flags for this rank; the first row of `received` that it sends and one past the last; the place of this
//     rank's flags for it; its rank. Flags (blocks), 4 bytes each: the last turn of each block.
// own, own_step: the place in memory of this rank's first slot, and the bytes to its second.
// places: the rows of x that are sent, or null: place i is row i. Element (i, j) of x lies i row + j column
//     elements after the first.
// turns (blocks): the last turn. limit: see peers.cuh. lost (1): not 0 once any launch has given up here.
// received (rows, columns). DASP_SCALAR: any type of number.cuh.

#include "distributed/peers.cuh"

using Scalar = DASP_SCALAR;

constexpr int IN_FLIGHT = 4;  // elements that a thread reads before it writes the first

struct Neighbour {
    long long first, end, slot, step, their_flags, received, received_end, own_flags, rank;
};

// Copies this block's piece of a message of `elements` elements.
template <class Read, class Write>
__device__ __forceinline__ void copy_piece(long long elements, const Read& read, const Write& write)
{
    const long long from = elements * blockIdx.x / gridDim.x, to = elements * (blockIdx.x + 1ll) / gridDim.x;
    for (long long first = from + threadIdx.x; first < to; first += IN_FLIGHT * DASP_THREADS) {
        Scalar held[IN_FLIGHT];
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; ++k)
            if (first + k * DASP_THREADS < to) held[k] = read(first + k * DASP_THREADS);
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; ++k)
            if (first + k * DASP_THREADS < to) write(first + k * DASP_THREADS, held[k]);
    }
}

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_bring_rows(unsigned char* memory, const long long* neighbours, int count, long long own, long long own_step,
                const long long* places, long long columns, unsigned* turns, int* limit, unsigned* lost, Scalar* received,
                const Scalar* x, long long row, long long column)
{
    const Neighbour* const each = reinterpret_cast<const Neighbour*>(neighbours);
    const unsigned turn = turns[blockIdx.x] + 1;
    const long long slot = turn % 2;
    bool apart = load_message(lost) != 0;
    for (int k = 0; k < count && !apart; ++k) {
        const Neighbour to = each[k];
        Scalar* const target = reinterpret_cast<Scalar*>(memory + to.slot + slot * to.step);
        copy_piece((to.end - to.first) * columns,
                   [&](long long at) {
                       const long long i = columns == 1 ? at : at / columns, c = at - i * columns;
                       const long long place = places == nullptr ? to.first + i : places[to.first + i];
                       return load_plain(&x[place * row + c * column]);
                   },
                   [&](long long at, Scalar value) { store_plain(&target[at], value); });
    }
    apart = __syncthreads_or(apart);
    for (int k = threadIdx.x; k < count && !apart; k += DASP_THREADS)
        say_turn(reinterpret_cast<unsigned*>(memory + each[k].their_flags) + blockIdx.x, turn);
    for (int k = threadIdx.x; k < count && !apart; k += DASP_THREADS)
        apart = !hear_turn(reinterpret_cast<unsigned*>(memory + each[k].own_flags) + blockIdx.x, turn, limit, int(each[k].rank));
    apart = __syncthreads_or(apart);
    if (threadIdx.x == 0) {
        turns[blockIdx.x] = turn;
        if (apart) store_message(lost, 1u);
    }
    const Scalar* const came = reinterpret_cast<const Scalar*>(memory + own + slot * own_step);
    const Scalar nothing = not_a_number<Scalar>();
    for (int k = 0; k < count; ++k) {
        const long long first = each[k].received * columns;
        copy_piece((each[k].received_end - each[k].received) * columns,
                   [&](long long at) { return apart ? nothing : load_plain(&came[first + at]); },
                   [&](long long at, Scalar value) { store_plain(&received[first + at], value); });
    }
}
