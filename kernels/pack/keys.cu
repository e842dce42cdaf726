// Keys of rows and of segments, by which csr/sort.cu puts them in order.
//
// Launch: any number of blocks of 256 threads; a thread takes rows, or segments, a grid apart.
// Deterministic: each key is written once.

#include "pack/order.cuh"

constexpr int THREADS = 256;

// keys (m): of each row. By these, windows of `width` rows follow each other, each with its longest rows
// first, and rows of more than `most` entries come last. longest: entries of the longest other row. count:
// rows that are sorted, see `Drawn`; elements (count): get their numbers.
extern "C" __global__ void __launch_bounds__(THREADS)
dasp_row_keys(const Start* __restrict__ indptr, long long m, long long count, long long width, long long longest,
              long long most, long long* __restrict__ keys, Index* __restrict__ elements)
{
    const Drawn drawn{m, count};
    const LengthKeys lengths{indptr, longest, most, drawn.is_sample()};
    const long long threads = gridDim.x * (long long)THREADS;
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < count; i += threads) {
        const long long row = drawn.row(i);
        const unsigned key = lengths.at(row);
        keys[row] = (key == lengths.none() ? ceil_div(count, width) : i / width) * (longest + 1) +
                    (key == lengths.none() ? 0 : key);
        elements[i] = Index(row);
    }
}

// keys (count): the first columns of segments. starts (count): their first entries.
extern "C" __global__ void __launch_bounds__(THREADS)
dasp_column_keys(const Column* __restrict__ indices, const long long* __restrict__ starts, long long count,
                 Column* __restrict__ keys)
{
    const long long threads = gridDim.x * (long long)THREADS;
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < count; i += threads)
        keys[i] = indices[starts[i]];
}
