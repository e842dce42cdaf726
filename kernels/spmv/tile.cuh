// The product of one 8 x 4 tile with the x of its slots, and sums over tiles.
//
// Slot l of a tile is row l/4, column l%4. Lane l holds it, together with x at that slot's column. Row r of
// the tile is multiplied by its own x only: on the tensor core this x is B's column r, and only the diagonal
// of C has a meaning; without it each lane does one multiply-add.
//
// And the types in every product y = alpha A x + beta y:
//
//     Value   of A as it is stored, unless it is coded (spmv/slices.cu)
//     X       of x
//     Sum     of every product and sum, of alpha and of beta
//     Y       of y
//
// Values and x are converted for a Sum when they are loaded, real numbers to real ones, and a sum is
// converted to Y when it is stored, so code between the two knows one type only. number.cuh defines all
// types.
#pragma once

#include "mma.cuh"
#include "number.cuh"
#include "warp.cuh"

#ifndef DASP_VALUE
#error "define DASP_VALUE: the type in which values are stored: float, double, Float16, Bfloat16 or Complex<>"
#endif
#ifndef DASP_X
#error "define DASP_X: the type of x, likewise"
#endif
#ifndef DASP_SUM
#error "define DASP_SUM: the type of products and sums, float, double, or Complex<> of one of them"
#endif
#ifndef DASP_Y
#error "define DASP_Y: the type of y, as of x"
#endif
#ifndef DASP_INDEX
#error "define DASP_INDEX: the type of rows and columns, int or long long"
#endif
#ifndef DASP_OFFSET
#error "define DASP_OFFSET: the type of positions in packed arrays, int or long long"
#endif
// 1 to multiply tiles on tensor cores (DASP_SUM double, sm_80), 0 for FMA.
#ifndef DASP_MMA
#define DASP_MMA 0
#endif
#ifndef DASP_THREADS
#error "define DASP_THREADS: threads of a block, a multiple of 32"
#endif

using Value = DASP_VALUE;
using X = DASP_X;
using Sum = DASP_SUM;
using Y = DASP_Y;

// The types to which values and x are converted to be multiplied: Sum, or its real type if they are real.
using Factor = Multiplied<Sum, Value>;
using Operand = Multiplied<Sum, X>;

// A sum is sent as MESSAGES words of type Bits: one, or one for each part of a complex number.
using Real = Parts<Sum>::Real;
using Bits = decltype(bits_of(Real()));
constexpr int MESSAGES = Parts<Sum>::are_two ? 2 : 1;

// A signalling NaN, which no arithmetic gives: stands for a message that has not come.
constexpr Bits ABSENT = sizeof(Bits) == 8 ? Bits(0x7ff4da5f00000000ull) : Bits(0x7fa0da5f);

using Index = DASP_INDEX;
using Offset = DASP_OFFSET;

constexpr int TILE = 32;
constexpr int TILE_ROWS = 8;
constexpr int TILE_COLUMNS = 4;
constexpr Index PAD = -1;

// Sums the rows of the tiles that are added to it.
struct TileSum {
#if DASP_MMA
    Sum c[2] = {0, 0};

    __device__ __forceinline__ void add(Sum a, Sum b) { mma_m8n8k4(c, a, b); }

    // The sum of row lane/4, in each of its four lanes.
    __device__ __forceinline__ Sum row() const
    {
        const int r = lane_id() / TILE_COLUMNS;
        return __shfl_sync(ALL_LANES, r % 2 ? c[1] : c[0], TILE_COLUMNS * r + r / 2);
    }

    // The sum of all eight rows, in every lane.
    __device__ __forceinline__ Sum all() const
    {
        const int r = lane_id() / TILE_COLUMNS;
        const bool diagonal = lane_id() % TILE_COLUMNS == r / 2;
        return warp_sum(diagonal ? (r % 2 ? c[1] : c[0]) : Sum(0));
    }
#else
    Sum sum = 0;

    template <class A, class B> __device__ __forceinline__ void add(A a, B b) { sum = multiply_add(a, b, sum); }
    __device__ __forceinline__ Sum row() const { return quad_sum(sum); }
    __device__ __forceinline__ Sum all() const { return warp_sum(sum); }
#endif
};

// x at a slot's column; a pad reads nothing.
__device__ __forceinline__ Operand load_x(const X* x, Index column)
{
    return column >= 0 ? convert<Operand>(load_result(x + column)) : Operand(0);
}

// Where a product's result goes: y = alpha * sum + beta * y, and y is not read if beta is 0.
struct Result {
    Y* y;
    Sum alpha;
    Sum beta;

    __device__ __forceinline__ void store(Index row, Sum sum) const
    {
        if (row < 0) return;
        const Sum total = beta == Sum(0) ? scaled(alpha, sum)
                                         : scaled(alpha, sum) + scaled(beta, convert<Sum>(load_plain(y + row)));
        store_plain(y + row, convert<Y>(total));
    }
};
