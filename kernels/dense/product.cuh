// Shared by all dense products: the element's type, a block's place in C, and the update of C.
//
//     D = alpha A B + beta C,  A m x k, B k x n, C and D m x n, row-major; lda, ldb, ldc, ldd elements from row
//     to row. D may be C. With beta == 0, C is never read. Sums are taken in order of k, so equal inputs give
//     equal bits.
#pragma once

#ifndef DASP_REAL
#define DASP_REAL float
#endif
using Real = DASP_REAL;

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a - 1) / b + 1; }

// The update of one result; `c` points to its old value, which is read only if beta is not zero.
__device__ __forceinline__ Real updated(Real sum, Real alpha, Real beta, const Real* c)
{
    return beta == Real(0) ? alpha * sum : alpha * sum + beta * *c;
}

// Blocks are numbered row by row over C, each `rows` x `columns` results; the grid has one dimension because
// its second one ends at 65,535.
struct Corner {
    int row, column;
    __device__ Corner(int n, int rows, int columns)
    {
        const int across = ceil_div(n, columns);
        row = int(blockIdx.x) / across * rows;
        column = int(blockIdx.x) % across * columns;
    }
};

// A warp's lanes as a rectangle of LM x LN, in Z order: bit 0 of the lane is a column's, bit 1 a row's.
//
// Shared memory serves a read of 16 bytes eight lanes at a time, so in four turns; but sixteen at a time, in
// two turns, if every lane l reads the same as lane l ^ 1, or every lane the same as l ^ 2. Lanes of a row
// need the same elements of A and lanes of a column the same elements of B, so in Z order both kinds of read
// take two turns; with lanes row by row, only those of A do.
template <int LM, int LN> struct LanePlace {
    static_assert(LM * LN == 32 && LM >= 2 && LN >= 2, "a warp has 32 lanes");
    static __device__ __forceinline__ int row(int lane) { return lane / 2 % 2 + lane / 4 / (LN / 2) * 2; }
    static __device__ __forceinline__ int column(int lane) { return lane % 2 + lane / 4 % (LN / 2) * 2; }
};
