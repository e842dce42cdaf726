// Values from the codes that hold every bit of them.
//
// Launch: one dimension, any number of blocks of 256 threads.
// codes (count): as DASP_CODING says, not read if all values are equal. table: the values that codes stand for.
// data (count): the values as bits.

#include "decoding.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_decode(const Code* __restrict__ codes, const Bits* __restrict__ table, long long count, Bits* __restrict__ data)
{
    const long long threads = gridDim.x * (long long)THREADS;
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < count; i += threads)
        data[i] = value_of(codes, table, i);
}
