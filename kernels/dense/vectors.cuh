// 16-byte pieces of a matrix, read and written whole if they lie inside it.
//
// DASP_ALIGNED says that base addresses, leading dimensions and the lengths along them are multiples of 16 bytes, so that
// a piece lies inside the matrix or outside, never across its edge; without it every piece is read and written
// element by element, and everything else stays the same.
#pragma once
#include "dense/product.cuh"

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
