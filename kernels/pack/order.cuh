// The rows that are sorted, and the keys by which they are put in order.
#pragma once

#include "csr/sort.cuh"
#include "pack/segments.cuh"

// The rows that are sorted: all m or, if `count` is less, a sample of whole tiles, one drawn from each equal
// part of the matrix: `draw_tile` of choose.py.
struct Drawn {
    long long m, count;

    __device__ __forceinline__ bool is_sample() const { return count < m; }

    // The row of the matrix that comes i-th; the rows of a tile follow each other.
    __device__ __forceinline__ long long row(long long i) const
    {
        if (!is_sample()) return i;
        const long long nth = i / TILE, tiles = m / TILE, parts = count / TILE, begin = nth * tiles / parts;
        unsigned word = unsigned(nth) * 0x9e3779b1u;
        word = (word ^ word >> 15) * 0x85ebca77u;
        return (begin + (word ^ word >> 13) % ((nth + 1) * tiles / parts - begin)) * TILE + i % TILE;
    }
};

// Sort keys of rows: longest first. Rows that are in no slice come after all others of their window or, in a sample,
// are taken to be empty.
struct LengthKeys {
    const Start* indptr;
    long long longest, most;  // entries of the longest row in a slice, and of the longest possible one
    bool is_sample;

    __device__ __forceinline__ unsigned none() const { return unsigned(longest) + 1; }
    __device__ __forceinline__ unsigned at(long long row) const
    {
        const long long length = length_of(indptr, row);
        return length > most ? none() - unsigned(is_sample) : unsigned(longest - length);
    }
};
