// Shared by all dense products: the element's type, a block's place in C, and pieces of 16 bytes.
//
//     D = alpha A B + beta C,  A m x k, B k x n, C and D m x n, row-major; lda, ldb, ldc, ldd elements from row
//     to row. D may be C. With beta == 0, C is never read. Sums are taken in order of k, so equal inputs give
//     equal bits.
//
// The rungs of the ladder are numbered as in dasp/dense/gemm/rungs_cuda.py. Each is called dasp_gemm and compiled alone:
// where a file has several, DASP_RUNG is the number of the one that is compiled.
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

// The same in groups of GROUP rows of blocks, column by column: blocks that run together share more of A and B in
// the second-level cache.
template <int BM, int BN, int GROUP> struct GroupedCorner {
    int row, column;
    __device__ GroupedCorner(int m, int n)
    {
        const int down = ceil_div(m, BM), across = ceil_div(n, BN);
        const int group = int(blockIdx.x) / (GROUP * across), inside = int(blockIdx.x) % (GROUP * across);
        const int height = min(down - group * GROUP, GROUP);
        row = (group * GROUP + inside % height) * BM;
        column = inside / height * BN;
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

// ---- pieces of 16 bytes, read and written whole if they lie inside a matrix ---------------------------

// DASP_ALIGNED says that base addresses, leading dimensions and the lengths along them are multiples of 16 bytes, so that
// a piece lies inside the matrix or outside, never across its edge; without it every piece is read and written
// element by element, and everything else stays the same.
#ifndef DASP_ALIGNED
#define DASP_ALIGNED 0
#endif

constexpr int WIDTH = 16 / sizeof(Real); // elements of a piece
struct __align__(16) Piece {
    Real element[WIDTH];
};

__device__ __forceinline__ Piece read_piece(const Real* address)
{
    return *reinterpret_cast<const Piece*>(address);
}

// The piece at `address`, of which the first `inside` elements exist (any number); zeros for the rest.
__device__ __forceinline__ Piece read_piece(const Real* address, int inside)
{
    Piece piece = {};
    if constexpr (DASP_ALIGNED) {
        if (inside > 0)
            piece = read_piece(address);
    } else {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i)
            piece.element[i] = i < inside ? address[i] : Real(0);
    }
    return piece;
}

// Updates the first `inside` elements (any number) of a piece of D.
__device__ __forceinline__ void update_piece(Piece sum, Real alpha, Real beta, const Real* c, Real* d, int inside)
{
    if constexpr (DASP_ALIGNED) {
        if (inside <= 0)
            return;
        Piece old = sum; // not used with beta == 0
        if (beta != Real(0))
            old = read_piece(c);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i)
            sum.element[i] = updated(sum.element[i], alpha, beta, &old.element[i]);
        *reinterpret_cast<Piece*>(d) = sum;
    } else {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i)
            if (i < inside)
                d[i] = updated(sum.element[i], alpha, beta, c + i);
    }
}
