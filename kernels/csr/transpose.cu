// Transposes a matrix whose entries were sorted by their columns (sort.cu).
//
// indptr (m + 1), indices (nnz): of the matrix. order (nnz): the numbers of the entries, sorted by column,
// and in their old order in a column. to_indptr (n + 1), to_indices (nnz): of the transpose.
//
// Launch: any number of blocks of 256 threads; a thread searches for one entry, or one column, at a time.
// Deterministic: every number has one writer.

#include "csr/scan.cuh"

using Start = DASP_START;
using Column = DASP_COLUMN;
using Place = DASP_PLACE;

constexpr int THREADS = 256;

// to_indices: the row of each entry.
extern "C" __global__ void __launch_bounds__(THREADS)
dasp_find_rows(const Start* __restrict__ indptr, long long m, long long nnz, const Place* __restrict__ order,
               Column* __restrict__ to_indices)
{
    const long long threads = gridDim.x * (long long)THREADS;
    for (long long i = blockIdx.x * (long long)THREADS + threadIdx.x; i < nnz; i += threads)
        to_indices[i] = Column(lower_bound(indptr, m + 1, (long long)order[i] + 1) - 1);
}

// to_indptr: for each column the number of entries in the columns before it.
extern "C" __global__ void __launch_bounds__(THREADS)
dasp_start_columns(const Column* __restrict__ indices, long long n, long long nnz, const Place* __restrict__ order,
                   long long* __restrict__ to_indptr)
{
    const long long threads = gridDim.x * (long long)THREADS;
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
    }
}
