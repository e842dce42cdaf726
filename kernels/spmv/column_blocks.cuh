// A column block: where each lane of a warp reads X and writes Y.
//
// LANES lanes, a group, share the COLUMNS columns of a column block: lane q's column i PACK + w is column
// (i LANES + q) PACK + w of the block, so that a group reads LANES * PACK neighbouring columns at once.
// slices_columns.cu describes the arrays.
#pragma once

#include "spmv/tile.cuh"

#ifndef DASP_COLUMNS
#error "define DASP_COLUMNS: columns of a column block, 1 to 32, a power of two unless DASP_LANES is 1"
#endif
#ifndef DASP_LANES
#error "define DASP_LANES: lanes that share a slot, a power of two, at most DASP_COLUMNS"
#endif
#ifndef DASP_PACK
#error "define DASP_PACK: columns of X in one load, at most DASP_COLUMNS / DASP_LANES and 16 bytes"
#endif
#ifndef DASP_Y_PACK
#error "define DASP_Y_PACK: columns of Y in one store, 1 or DASP_PACK"
#endif
#ifndef DASP_WHOLE
#error "define DASP_WHOLE: 1 if every column block has all its columns"
#endif
#ifndef DASP_NEAR
#error "define DASP_NEAR: 1 if columns of X lie beside each other for certain"
#endif
#ifndef DASP_FILLED
#error "define DASP_FILLED: 1 if each lane has columns to read for certain"
#endif
#ifndef DASP_REGISTERS
#error "define DASP_REGISTERS: registers of a thread, at most"
#endif

constexpr int COLUMNS = DASP_COLUMNS;
constexpr int LANES = DASP_LANES;
constexpr int PACK = DASP_PACK;
constexpr int Y_PACK = DASP_Y_PACK;
constexpr int OWN = COLUMNS / LANES;
constexpr int PACKS = OWN / PACK;

static_assert(OWN * LANES == COLUMNS && PACKS * PACK == OWN && 32 % LANES == 0, "lanes and packs of equal size");
static_assert(Y_PACK == 1 || Y_PACK == PACK, "a store writes what a load of X read, or one column");

// The largest power of two that is at most `most` and at most `count`, and at least 1.
__host__ __device__ constexpr int power_of_two(int count, int most)
{
    int power = 1;
    while (2 * power <= count && 2 * power <= most) power *= 2;
    return power;
}

// A word of BYTES bytes for one load or store, of a type that lies in registers as numbers of type Real do.
template <int BYTES, class Real> struct Word;
template <class Real> struct Word<2, Real> { using Type = unsigned short; };
template <class Real> struct Word<4, Real> { using Type = unsigned; };
template <class Real> struct Word<8, Real> { using Type = uint2; };
template <class Real> struct Word<16, Real> { using Type = uint4; };
template <> struct Word<8, double> { using Type = double; };
template <> struct Word<16, double> { using Type = double2; };

// N numbers that are loaded, or stored, at once. The load is a plain one: an earlier kernel may have written
// X, so the read-only cache may not be used, and a load that names another cache keeps the compiler from
// reordering anything.
template <class T, int N> struct Pack {
    using Whole = typename Word<N * sizeof(T), typename Parts<T>::Real>::Type;
    Whole whole;

    __device__ __forceinline__ T operator[](int i) const
    {
        T items[N];
        memcpy(items, &whole, sizeof whole);
        return items[i];
    }

    __device__ __forceinline__ void load(const T* address) { whole = *reinterpret_cast<const Whole*>(address); }
    __device__ __forceinline__ void store(T* address) const { *reinterpret_cast<Whole*>(address) = whole; }
};

// The bytes from the first row to row i; `row`: those from a row to the next.
__device__ __forceinline__ unsigned long long bytes_to(int i, int row)
{
    return (unsigned long long)unsigned(i) * unsigned(row);
}
__device__ __forceinline__ unsigned long long bytes_to(long long i, int row) { return i * row; }

// A column block of X as one lane reads it, from the lane's first column on. zeros: read for a pad. column:
// elements from a column to the next. row: bytes from a row to the next. columns: how many columns are left.
struct XBlock {
    const X* x;
    const X* zeros;
    long long column;
    int row;
    int columns;

    __device__ __forceinline__ const X* at(Index i) const
    {
        return reinterpret_cast<const X*>(reinterpret_cast<const char*>(x) + bytes_to(i, row));
    }

    // Loads pack p of a row whose columns lie beside each other; zeros if the lane has no columns there.
    __device__ __forceinline__ void load(const X* start, int p, Pack<X, PACK>& read) const
    {
        if (DASP_FILLED || p * LANES * PACK < columns)
            read.load(start + p * LANES * PACK);
        else
            read = {};
    }

    template <bool FULL> __device__ __forceinline__ void load(Index i, Pack<X, PACK> (&read)[PACKS]) const
    {
        if (DASP_NEAR) {
            const X* const start = FULL || i >= 0 ? at(i) : zeros;
#pragma unroll
            for (int p = 0; p < PACKS; ++p) load(start, p, read[p]);
        } else {
#pragma unroll
            for (int p = 0; p < PACKS; ++p) {
                if ((FULL || i >= 0) && (DASP_FILLED || p * LANES * PACK < columns))
                    read[p].load(at(i) + p * LANES * PACK * column);
                else
                    read[p] = {};
            }
        }
    }
};

// A column block of Y as one lane writes it, from the lane's first column on. column, row: elements from a
// column, or from a row, to the next. columns: how many columns are left.
struct YBlock {
    Y* y;
    long long column;
    int row;
    int columns;
    Sum alpha;
    Sum beta;

    __device__ __forceinline__ void store(Index i, const Sum (&sum)[OWN]) const
    {
        Y* const start = y + (long long)i * row;
#pragma unroll
        for (int v = 0; v < OWN; v += Y_PACK) {
            const int first = v / PACK * LANES * PACK + v % PACK;
            if (!DASP_WHOLE && first >= columns) continue;
            Pack<Y, Y_PACK> written;
            Y items[Y_PACK];
            if (!(beta == Sum(0))) written.load(start + first * column);
#pragma unroll
            for (int w = 0; w < Y_PACK; ++w) {
                const Sum product = scaled(alpha, sum[v + w]);
                items[w] = convert<Y>(beta == Sum(0) ? product : product + scaled(beta, convert<Sum>(written[w])));
            }
            memcpy(&written.whole, items, sizeof items);
            written.store(start + first * column);
        }
    }
};
