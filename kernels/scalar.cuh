// The types in the arithmetic of y = alpha A x + beta y.
//
//     Value   in which A is stored (where it is not coded: spmv/slices.cu)
//     X       of x
//     Sum     of every product and sum, of alpha and of beta
//     Y       of y
//
// Values and x are made ready for a Sum where they are loaded, real numbers as real ones, and a sum is made Y where it
// is stored, so nothing between knows more than one type. What a type is, and can do, stands in number.cuh.
#pragma once

#include "number.cuh"

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

using Value = DASP_VALUE;
using X = DASP_X;
using Sum = DASP_SUM;
using Y = DASP_Y;

// What a value, and a number of x, is made to be multiplied: Sum, or its real part's type if it is real.
using Factor = Multiplied<Sum, Value>;
using Operand = Multiplied<Sum, X>;

// A sum is so many messages of these bits: one, or one for each part.
using Real = Parts<Sum>::Real;
using Bits = decltype(bits_of(Real()));
constexpr int MESSAGES = Parts<Sum>::are_two ? 2 : 1;

// A signalling NaN, which no arithmetic gives: stands for a sum, or a part of one, that is not there.
constexpr Bits ABSENT = sizeof(Bits) == 8 ? Bits(0x7ff4da5f00000000ull) : Bits(0x7fa0da5f);
