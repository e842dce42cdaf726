// The transpose of a matrix, once its entries are sorted by their columns (radix.cu).
//
// indptr (m + 1), indices (nnz), data (nnz): of the matrix; data as their bits.
// order (nnz): numbers of the entries, sorted by column and, in a column, as they stand in the matrix.
// to_indptr (n + 1), to_indices (nnz), to_data (nnz): of the transpose.
// differs: set to 1 where the transpose has another number than the matrix; null if these are of different shapes.
//
// Any number of blocks of 256 threads.

#include "codes.cuh"
#include "pack.cuh"

using Place = DASP_PLACE;

constexpr int THREADS = 256;

__device__ __forceinline__ bool same(Code one, Code other)
{
#if DASP_CODE_BYTES == 16
    return one.x == other.x && one.y == other.y;
#else
    return one == other;
#endif
}

// Sets `differs` if a lane found a difference; every lane of a warp calls it.
__device__ __forceinline__ void tell(bool found, Count* differs)
{
    if (__any_sync(ALL_LANES, found) && lane_id() == 0) atomicMax(differs, 1ull);
}

// keys (nnz): the columns as the sort takes them.
extern "C" __global__ void __launch_bounds__(THREADS)
dasp_entry_keys(const Column* __restrict__ indices, long long nnz, unsigned* __restrict__ keys)
{
    const long long threads = gridDim.x * (long long)THREADS;
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < nnz; i += threads)
        keys[i] = unsigned(indices[i]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_turn_entries(const Start* __restrict__ indptr, const Column* __restrict__ indices, const Code* __restrict__ data,
                  long long m, long long nnz, const Place* __restrict__ order, Column* __restrict__ to_indices,
                  Code* __restrict__ to_data, Count* differs)
{
    const long long threads = gridDim.x * (long long)THREADS;
    bool found = false;
#pragma unroll 1  // four at once do not fit in registers
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < nnz; i += threads) {
        const long long entry = order[i];
        const Column row = Column(lower_bound(indptr, m + 1, entry + 1) - 1);
        const Code value = data[entry];
        to_indices[i] = row;
        to_data[i] = value;
        if (differs) found |= row != indices[i] || !same(value, data[i]);
    }
    tell(found, differs);
}

extern "C" __global__ void __launch_bounds__(THREADS)
dasp_start_columns(const Start* __restrict__ indptr, const Column* __restrict__ indices, long long n, long long nnz,
                   const Place* __restrict__ order, long long* __restrict__ to_indptr, Count* differs)
{
    const long long threads = gridDim.x * (long long)THREADS;
    bool found = false;
    for (long long column = blockIdx.x * (long long)THREADS + threadIdx.x; column <= n; column += threads) {
        long long first = 0, count = nnz;
        while (count > 0) {
            const long long half = count / 2;
            if ((long long)indices[order[first + half]] < column) {
                first += half + 1;
                count -= half + 1;
            } else {
                count = half;
            }
        }
        to_indptr[column] = first;
        if (differs) found |= first != (long long)indptr[column];
    }
    tell(found, differs);
}
