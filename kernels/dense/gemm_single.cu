// Rungs 1 to 5. A thread has one result.
//
// gemm.cuh has the arrays, the numbering of blocks and DASP_RUNG.
#include "dense/gemm.cuh"

#if DASP_RUNG == 1

// Rung 1. One thread per result, neighbouring threads in neighbouring rows.
//
// Launch: 32 x 32 threads, one block per 32 x 32 results.
// Memory: 2k loads per result. The 32 lanes of a warp read 32 rows of A, so each load of A touches 32 lines,
// and so does each store of D.
extern "C" __global__ void __launch_bounds__(1024)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    const Corner corner(n, 32, 32);
    const int row = corner.row + threadIdx.x;
    const int column = corner.column + threadIdx.y;
    if (row >= m || column >= n)
        return;
    Real sum = 0;
    for (int p = 0; p < k; ++p)
        sum += a[row * lda + p] * b[p * ldb + column];
    d[row * ldd + column] = updated(sum, alpha, beta, c + row * ldc + column);
}

#elif DASP_RUNG == 2

// Rung 2. One thread per result, neighbouring threads in neighbouring columns.
//
// Launch: 32 x 32 threads, one block per 32 x 32 results.
// Memory: still 2k loads per result, but the 32 lanes of a warp read one element of A and 32 neighbours of B:
// two lines per step of k where there were 33, and one line per store.
extern "C" __global__ void __launch_bounds__(1024)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    const Corner corner(n, 32, 32);
    const int row = corner.row + threadIdx.y;
    const int column = corner.column + threadIdx.x;
    if (row >= m || column >= n)
        return;
    Real sum = 0;
    for (int p = 0; p < k; ++p)
        sum += a[row * lda + p] * b[p * ldb + column];
    d[row * ldd + column] = updated(sum, alpha, beta, c + row * ldc + column);
}

#elif DASP_RUNG == 3

// Rung 3. 32 x 32 tiles of A and B in shared memory.
//
// Launch: 32 x 32 threads, one block per 32 x 32 results.
// Memory: each element that is fetched serves 32 threads, so 2k/32 global loads per result; 2k loads from
// shared memory, of which the compiler joins four of A (they are neighbours) in one.
// Past the edges a tile holds zeros, so the inner loop has no conditions.
extern "C" __global__ void __launch_bounds__(1024)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    __shared__ __align__(16) Real tile_a[32][32];
    __shared__ __align__(16) Real tile_b[32][32];
    const Corner corner(n, 32, 32);
    const int row = corner.row + threadIdx.y;
    const int column = corner.column + threadIdx.x;
    Real sum = 0;
    for (int start = 0; start < k; start += 32) {
        const int p_a = start + threadIdx.x;
        const int p_b = start + threadIdx.y;
        tile_a[threadIdx.y][threadIdx.x] = row < m && p_a < k ? a[row * lda + p_a] : Real(0);
        tile_b[threadIdx.y][threadIdx.x] = p_b < k && column < n ? b[p_b * ldb + column] : Real(0);
        __syncthreads();
#pragma unroll
        for (int p = 0; p < 32; ++p)
            sum += tile_a[threadIdx.y][p] * tile_b[p][threadIdx.x];
        __syncthreads();
    }
    if (row < m && column < n)
        d[row * ldd + column] = updated(sum, alpha, beta, c + row * ldc + column);
}

#elif DASP_RUNG == 4

// Rung 4. As rung 3 with a one-dimensional thread index, and two pointers that walk along k.
//
// Launch: 1024 threads, one block per 32 x 32 results.
// Memory: as before. Both loads have a pointer and a step width, and no address is computed from four indices
// at each step: fewer registers and integer instructions per result.
extern "C" __global__ void __launch_bounds__(1024)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    __shared__ __align__(16) Real tile_a[32][32];
    __shared__ __align__(16) Real tile_b[32][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Corner corner(n, 32, 32);
    const int row = corner.row + warp;
    const int column = corner.column + lane;
    a += row * lda + lane;
    b += warp * ldb + column;
    const int left_a = row < m ? k - lane : 0; // as long as start is below, the element exists
    const int left_b = column < n ? k - warp : 0;
    Real sum = 0;
    for (int start = 0; start < k; start += 32) {
        tile_a[warp][lane] = start < left_a ? *a : Real(0);
        tile_b[warp][lane] = start < left_b ? *b : Real(0);
        a += 32;
        b += 32 * ldb;
        __syncthreads();
#pragma unroll
        for (int p = 0; p < 32; ++p)
            sum += tile_a[warp][p] * tile_b[p][lane];
        __syncthreads();
    }
    if (row < m && column < n)
        d[row * ldd + column] = updated(sum, alpha, beta, c + row * ldc + column);
}

#elif DASP_RUNG == 5

// Rung 5. As rung 4 with warps of 4 x 8 results, and tiles that 16-byte reads take without bank conflicts.
//
// Launch: 1024 threads, one block per 32 x 32 results.
// Memory: B's tile is stored by columns, so a thread reads neighbours in k from both tiles, 16 bytes at a time: 2k/4
// reads (float64: 2k/2) per result. A row of a tile is 16 bytes longer than 32 elements; without that pad the rows that
// are read together would lie in the same four banks. The lanes form a rectangle (gemm.cuh), so a read asks for 4 or 8
// pieces and takes two turns of shared memory: per warp, one turn for each step of k (float64: two), where rung 4 took
// one and a half (three). A warp stores 8 elements of each of 4 rows of B's tile at a time, in all 32 banks.
constexpr int PAD = 16 / sizeof(Real);

extern "C" __global__ void __launch_bounds__(1024)
dasp_gemm(int m, int n, int k, Real alpha, const Real* a, long long lda, const Real* b, long long ldb, Real beta,
          const Real* c, long long ldc, Real* d, long long ldd)
{
    __shared__ __align__(16) Real tile_a[32][32 + PAD];
    __shared__ __align__(16) Real tile_b[32][32 + PAD];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Corner corner(n, 32, 32);
    const int down = warp / 4 * 4 + LanePlace<4, 8>::row(lane); // of this thread's result, in the tile
    const int across = warp % 4 * 8 + LanePlace<4, 8>::column(lane);
    const int p_b = warp / 4 * 4 + lane / 8, column_b = warp % 4 * 8 + lane % 8; // of the element of B that it brings
    a += (corner.row + warp) * lda + lane;
    b += p_b * ldb + corner.column + column_b;
    const int left_a = corner.row + warp < m ? k - lane : 0; // as long as start is below, the element exists
    const int left_b = corner.column + column_b < n ? k - p_b : 0;
    Real sum = 0;
    for (int start = 0; start < k; start += 32) {
        tile_a[warp][lane] = start < left_a ? *a : Real(0);
        tile_b[column_b][p_b] = start < left_b ? *b : Real(0);
        a += 32;
        b += 32 * ldb;
        __syncthreads();
#pragma unroll
        for (int p = 0; p < 32; ++p)
            sum += tile_a[down][p] * tile_b[across][p];
        __syncthreads();
    }
    const int row = corner.row + down, column = corner.column + across;
    if (row < m && column < n)
        d[row * ldd + column] = updated(sum, alpha, beta, c + row * ldc + column);
}

#endif
