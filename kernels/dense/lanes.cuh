// A warp's lanes as a rectangle of LM x LN, in Z order: bit 0 of the lane is a column's, bit 1 a row's.
//
// Shared memory serves a read of 16 bytes eight lanes at a time, so in four turns, but sixteen at a time, in two, if
// every lane l asks for the same as lane l ^ 1, or every one for the same as l ^ 2. Lanes of a row need the same
// elements of A and lanes of a column the same elements of B, so in Z order both kinds of read take two turns; row by
// row, those of A alone would.
#pragma once

template <int LM, int LN> struct LanePlace {
    static_assert(LM * LN == 32 && LM >= 2 && LN >= 2, "a warp has 32 lanes");
    static __device__ __forceinline__ int row(int lane) { return lane / 2 % 2 + lane / 4 / (LN / 2) * 2; }
    static __device__ __forceinline__ int column(int lane) { return lane % 2 + lane / 4 % (LN / 2) * 2; }
};
