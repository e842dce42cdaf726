// Asynchronous copies from global to shared memory, which pass no register (cp.async, sm_80; PTX ISA, "Data
// Movement and Conversion Instructions: Asynchronous copy").
//
// `copy<BYTES>` starts one copy of 4, 8 or 16 bytes, of which the first `inside` bytes (0 too) are read and the rest
// are zeros; `commit` closes a group; `wait<N>` returns when at most the last N groups of this thread are
// under way. Data that other threads copied is visible after a barrier that follows their wait.
//
// In the emulator a copy sets all bits of its target when it starts, and writes the data at the wait, so that
// a kernel that reads too early, or starts a copy into a tile that is still read, fails there.
#pragma once

class AsyncCopies {
public:
    template <int BYTES> __device__ __forceinline__ void copy(void* shared, const void* global, int inside)
    {
        static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async moves 4, 8 or 16 bytes");
#ifdef DASP_SIMT
        memset(shared, 0xff, BYTES);
        if (count == MOST)
            simt::fail_here("trap", "more asynchronous copies under way than the emulator holds");
        pending[count++] = {shared, global, BYTES, inside, group};
#else
        const unsigned target = static_cast<unsigned>(__cvta_generic_to_shared(shared));
        if (BYTES == 16)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(global), "r"(inside)
                         : "memory");
        else
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(global), "n"(BYTES),
                         "r"(inside)
                         : "memory");
#endif
    }

    __device__ __forceinline__ void commit()
    {
#ifdef DASP_SIMT
        ++group;
#else
        asm volatile("cp.async.commit_group;" ::: "memory");
#endif
    }

    template <int GROUPS> __device__ __forceinline__ void wait()
    {
#ifdef DASP_SIMT
        int kept = 0;
        for (int i = 0; i < count; ++i) {
            const Copy copy = pending[i];
            if (copy.group + GROUPS >= group) {
                pending[kept++] = copy;
                continue;
            }
            memset(copy.shared, 0, copy.bytes);
            if (copy.inside)
                memcpy(copy.shared, copy.global, copy.inside);
        }
        count = kept;
#else
        asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
#endif
    }

#ifdef DASP_SIMT
private:
    struct Copy {
        void* shared;
        const void* global;
        int bytes, inside, group;
    };
    static constexpr int MOST = 512;
    Copy pending[MOST];
    int count = 0, group = 0;
#endif
};

// ---- tiles of the tensor-core rungs ------------------------------------------------------------------

// They are stored in shared memory in their operand's own memory order, so that all copies are 16 bytes long and
// nothing is transposed on the way; fragments are read from either order.
//
// An operand's tile covers OUTER indices of m (or n) and BK of k. ALONG (neighbours along k lie side by side): stored
// [OUTER][BK + pad]; otherwise [BK][OUTER + pad].

// This thread's share of one operand's tiles. T is the element, ALIGNED whether 16 bytes may be copied at once.
template <class T, int OUTER, int BK, int PAD, bool ALONG, int THREADS, bool ALIGNED> struct TensorTile {
    static constexpr int WIDTH = 16 / sizeof(T);
    static constexpr int INNER = ALONG ? BK : OUTER; // elements that lie side by side
    static constexpr int ROWS = ALONG ? OUTER : BK;
    static constexpr int STRIDE = INNER + PAD;
    static constexpr int ELEMENTS = ROWS * STRIDE;
    static constexpr int PIECES = INNER / WIDTH;
    static constexpr int STEP = THREADS / PIECES; // rows per turn
    static constexpr int TURNS = (ROWS - 1) / STEP + 1;
    static_assert(THREADS % PIECES == 0, "a turn copies whole rows");
    static_assert(STRIDE % WIDTH == 0, "rows start at 16 bytes");

    const T* next; // address of this thread's first piece of the next tile
    long long ld;
    int inner, row; // the place of that piece in its tile
    int left; // outer indices inside the matrix, from that piece's first

    // Tiles of the outer indices from `first` up to `limit`, from `begin` on along k.
    __device__ __forceinline__ TensorTile(const T* matrix, long long ld, int first, int limit, int begin)
        : ld(ld), inner(int(threadIdx.x) % PIECES * WIDTH), row(int(threadIdx.x) / PIECES)
    {
        const int outer = first + (ALONG ? row : inner), p = begin + (ALONG ? inner : row);
        left = limit - outer;
        next = matrix + (ALONG ? outer * ld + p : p * ld + outer);
    }

    // Starts the copies of the next tile, whose first k is `start`; k from `end` on is zeros.
    __device__ __forceinline__ void load(AsyncCopies& copies, T* tile, int start, int end)
    {
        T* to = tile + row * STRIDE + inner;
        const int deep = end - start - (ALONG ? inner : row); // steps of k inside, from the first piece's first
        const int whole = min(max(ALONG ? deep : left, 0), WIDTH); // elements inside of a piece that exists
#pragma unroll(ALIGNED ? TURNS : 1) // element by element, the addresses of several turns would not fit the registers
        for (int turn = 0; turn < ROWS; turn += STEP) {
            if (ROWS % STEP != 0 && row + turn >= ROWS)
                continue;
            const int inside = turn < (ALONG ? left : deep) ? whole : 0;
            if constexpr (ALIGNED)
                copies.template copy<16>(to + turn * STRIDE, next + turn * ld, inside * int(sizeof(T)));
            else
                copy_elements(copies, to + turn * STRIDE, next + turn * ld, inside);
        }
        next += ALONG ? BK : BK * ld;
    }

    // cp.async moves no 2 bytes, so halves at odd places go through a register.
    __device__ __forceinline__ static void copy_elements(AsyncCopies& copies, T* to, const T* from, int inside)
    {
#pragma unroll
        for (int v = 0; v < WIDTH; ++v) {
            if constexpr (sizeof(T) >= 4)
                copies.template copy<sizeof(T)>(to + v, from + v, v < inside ? int(sizeof(T)) : 0);
            else
                to[v] = v < inside ? from[v] : T(0);
        }
    }

    // Offset in the tile of the element (outer, p).
    __device__ __forceinline__ static int at(int outer, int p)
    {
        return ALONG ? outer * STRIDE + p : p * STRIDE + outer;
    }
};
