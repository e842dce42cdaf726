// Messages of a GPU to another one, in whose memory it writes.
//
// The memory of all ranks is one range of addresses: `memory` is its lowest one, and places are bytes from
// there. A turn is a number that grows by one with each launch, the same on all ranks; 0 comes before the
// first. Messages of turn k lie in slot k % 2: a rank that begins turn k + 2 has heard from each neighbour in
// turn k + 1, and the neighbour was done with turn k before.
//
// A thread that waits longer than it may gives up for good: its GPU sends nothing any more, since others
// might then find data of a later turn here, and all that it should have received is NaN.
//
// With DASP_SCALAR the messages are rows of x, and dasp_bring_rows is compiled; without it they are numbers that are
// added, and dasp_sum_over_ranks is compiled.

#include "number.cuh"

// A NaN of any type: all its bits are 1.
template <class T> __device__ __forceinline__ T not_a_number()
{
    T value;
#pragma unroll
    for (int k = 0; k < int(sizeof(T)); ++k) reinterpret_cast<unsigned char*>(&value)[k] = 0xff;
    return value;
}

// Tries between two reads of `limit`, which is in the host's memory: some milliseconds.
constexpr unsigned TRIES = 4096;

// Milliseconds to wait for a process that has ended: all that it sent has come by then.
constexpr int ENDED = 1000;

// How long a thread has waited.
struct Patience {
    unsigned tries = 0;
    unsigned long long began = 0;
};

// Returns true to try again. limit (2 + ranks), in the host's memory: the milliseconds to wait; 1 if a thread, or the
// host, has given up; and for each rank 1 if its process has ended.
__device__ __forceinline__ bool waits_on(Patience& patience, int* limit, int rank)
{
#ifdef DASP_SIMT
    __nanosleep(0);
    return limit[1] == 0;
#else
    if (++patience.tries % TRIES != 0) return true;
    volatile int* const words = limit;
    if (words[1] != 0) return false;
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    if (patience.began == 0) patience.began = now;
    const int most = words[2 + rank] != 0 ? min(words[0], ENDED) : words[0];
    if (now - patience.began < 1000000ull * most) return true;
    words[1] = 1;
    return false;
#endif
}

// Sends a turn to another GPU: a thread that hears it sees all earlier writes of this thread, and those of
// its block before a barrier (PTX ISA, memory consistency model: release and acquire, scope sys).
__device__ __forceinline__ void say_turn(unsigned* flag, unsigned turn)
{
#ifdef DASP_SIMT
    __threadfence();
    store_message(flag, turn);
#else
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(turn) : "memory");
#endif
}

// Waits until the GPU of a rank has sent this turn; it may have sent the next one since. Returns false if it
// gives up.
__device__ __forceinline__ bool hear_turn(unsigned* flag, unsigned turn, int* limit, int rank)
{
    Patience patience;
    while (true) {
        unsigned said;
#ifdef DASP_SIMT
        said = load_message(flag);
        __threadfence();
#else
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(said) : "l"(flag) : "memory");
#endif
        if (int(said - turn) >= 0) return true;
        if (!waits_on(patience, limit, rank)) return false;
    }
}

// Sends a number: each half in one word with the turn. A reader that sees the turn in both words has the
// number, and waits for nothing else.
__device__ __forceinline__ void say_number(unsigned long long* words, double number, unsigned turn)
{
    const unsigned long long bits = bits_of(number), mark = (unsigned long long)turn << 32;
    const unsigned long long low = mark | (bits & 0xffffffffu), high = mark | (bits >> 32);
#ifdef DASP_SIMT
    store_message(words, low);
    store_message(words + 1, high);
#else
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(words), "l"(low), "l"(high) : "memory");
#endif
}

// Waits for a number that the GPU of a rank sends in this turn. Returns false if it gives up.
__device__ __forceinline__ bool hear_number(unsigned long long* words, unsigned turn, int* limit, int rank, double& number)
{
    Patience patience;
    while (true) {
        unsigned long long low, high;
#ifdef DASP_SIMT
        low = load_message(words);
        high = load_message(words + 1);
#else
        asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(words) : "memory");
#endif
        if (low >> 32 == turn && high >> 32 == turn) {
            number = sum_of((high << 32) | (low & 0xffffffffu));
            return true;
        }
        if (!waits_on(patience, limit, rank)) return false;
    }
}

#ifdef DASP_SCALAR

// ---- rows of x ---------------------------------------------------------------------------------------

// dasp_bring_rows sends rows of x to the GPUs of other ranks, and copies their rows to `received`.
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
// turns (blocks): the last turn. limit: see waits_on. lost (1): not 0 once any launch has given up here.
// received (rows, columns). DASP_SCALAR: any type of number.cuh.

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

#else

// ---- sums over ranks ---------------------------------------------------------------------------------

// dasp_sum_over_ranks adds numbers over the GPUs of all ranks.
//
// Each thread sends its number to all other ranks, receives theirs, and adds in the order of ranks: all ranks
// get the same bits.
//
// Launch: one dimension, blocks of DASP_THREADS threads, as many threads as numbers or more.
// mailboxes (ranks): the place in memory of each rank's mailbox, (2 slots, ranks that send, capacity, 2)
//     words of 8 bytes.
// turns (capacity): for each number, the turn of the last launch that had it. limit: see waits_on.
// lost (1): not 0 once any launch has given up here.
// numbers, totals (count): the numbers and their sums, which may be one array.

extern "C" __global__ void __launch_bounds__(DASP_THREADS)
dasp_sum_over_ranks(unsigned char* memory, const long long* mailboxes, int ranks, int rank, int capacity, unsigned* turns,
                    int* limit, unsigned* lost, const double* numbers, double* totals, int count)
{
    wait_for_earlier_kernels();
    const int number = DASP_THREADS * blockIdx.x + threadIdx.x;
    if (number >= count) return;
    const double mine = numbers[number];
    const unsigned turn = turns[number] + 1;
    const long long slot = (long long)(turn % 2) * ranks * capacity;
    const auto words = [&](int hears, int says) {
        return reinterpret_cast<unsigned long long*>(memory + mailboxes[hears]) + 2 * (slot + (long long)says * capacity + number);
    };
    bool apart = load_message(lost) != 0;
    for (int other = 1; other < ranks && !apart; ++other) say_number(words((rank + other) % ranks, rank), mine, turn);
    double total = 0;
    for (int other = 0; other < ranks && !apart; ++other) {
        double one = mine;
        if (other != rank) apart = !hear_number(words(rank, other), turn, limit, other, one);
        total += one;
    }
    turns[number] = turn;
    if (apart) {
        store_message(lost, 1u);
        total = not_a_number<double>();
    }
    totals[number] = total;
}

#endif
