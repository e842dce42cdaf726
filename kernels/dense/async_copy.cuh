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
