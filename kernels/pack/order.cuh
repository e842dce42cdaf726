// The keys by which the rows of a sort window are put in order.
#pragma once

#include "../csr/sort.cuh"
#include "segments.cuh"

// Sort keys of rows: longest first. Rows that are in no slice come after all others of their window or, in a sample,
// are taken to be empty.
struct LengthKeys {
    const Start* indptr;
    long long longest, most;  // entries of the longest row in a slice, and that it could have
    bool sampled = false;

    __device__ __forceinline__ unsigned none() const { return unsigned(longest) + 1; }
    __device__ __forceinline__ unsigned at(long long row) const
    {
        const long long length = length_of(indptr, row);
        return length > most ? none() - unsigned(sampled) : unsigned(longest - length);
    }
};
