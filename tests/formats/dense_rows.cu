// y = alpha A x + beta y for rows that are stored densely: a thread takes a row, pads have column -1.
#include "number.cuh"

extern "C" __global__ void
dasp_dense_rows(const long long* __restrict__ columns, const DASP_VALUE* __restrict__ numbers, long long rows,
                long long width, const DASP_X* __restrict__ x, DASP_Y* y, DASP_SUM alpha, DASP_SUM beta)
{
    const long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (row >= rows) return;
    DASP_SUM sum = 0;
    for (long long slot = row * width; slot < (row + 1) * width; ++slot)
        if (columns[slot] >= 0) sum += numbers[slot] * x[columns[slot]];
    y[row] = alpha * sum + (beta != 0 ? beta * y[row] : 0);
}
