// Rows of a CSR that threads go through together, column by column, each thread one row.
#pragma once

#include "../pack/pack.cuh"

constexpr long long NONE = 0x7fffffffffffffffll;

// A row, from its next entry on: none of a row below 0.
struct Row {
    const Index* indices;
    long long next, end;
    long long column, after;  // of the next entry, and of the one behind it

    __device__ Row(const long long* indptr, const Index* indices, long long row)
        : indices(indices), next(row >= 0 ? indptr[row] : 0), end(row >= 0 ? indptr[row + 1] : 0),
          column(at(next)), after(at(next + 1))
    {
    }
    __device__ __forceinline__ long long at(long long entry) const { return entry < end ? indices[entry] : NONE; }
    __device__ __forceinline__ void advance()
    {
        column = after;
        after = at(++next + 1);
    }
};
