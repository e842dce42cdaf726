// Sums of numbers over the GPUs of all ranks: see peers.cuh.
//
// Each thread sends its number to all other ranks, receives theirs, and adds in the order of ranks: all ranks
// get the same bits.
//
// Launch: one dimension, blocks of DASP_THREADS threads, as many threads as numbers or more.
// mailboxes (ranks): the place in memory of each rank's mailbox, (2 slots, ranks that send, capacity, 2)
//     words of 8 bytes.
// turns (capacity): for each number, the turn of the last launch that had it. limit: see peers.cuh.
// lost (1): not 0 once any launch has given up here.
// numbers, totals (count): the numbers and their sums, which may be one array.

#include "distributed/peers.cuh"

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
