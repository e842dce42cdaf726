// CUDA's vocabulary for g++: a .cu file that includes nothing but .cuh files compiles against this header
// and runs in the emulator (runtime.cpp). It is included ahead of every kernel, with DASP_SIMT defined.
//
// Left as plain words here and rewritten by build.py after preprocessing: __global__, __shared__ and
// __launch_bounds__, because kernels, shared arrays and launch bounds are found in the preprocessed text.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define __host__
#define __device__
#define __constant__
#define __managed__
#define __forceinline__ inline // left to the compiler: what is inlined everywhere takes twice as long to compile
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
#define __builtin_assume(x) ((x) ? (void)0 : simt::fail_here("assumption", "__builtin_assume(" #x ") does not hold"))

// ---- vector types ----------------------------------------------------------------------------------

#define SIMT_VECTOR(T, name, align1, align2, align4)                                                        \
    struct name##1 { T x; };                                                                                \
    struct __attribute__((aligned(align2))) name##2 { T x, y; };                                            \
    struct name##3 { T x, y, z; };                                                                          \
    struct __attribute__((aligned(align4))) name##4 { T x, y, z, w; };                                      \
    inline name##1 make_##name##1(T x) { return {x}; }                                                      \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                              \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                      \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SIMT_VECTOR(signed char, char, 1, 2, 4)
SIMT_VECTOR(unsigned char, uchar, 1, 2, 4)
SIMT_VECTOR(short, short, 2, 4, 8)
SIMT_VECTOR(unsigned short, ushort, 2, 4, 8)
SIMT_VECTOR(int, int, 4, 8, 16)
SIMT_VECTOR(unsigned, uint, 4, 8, 16)
SIMT_VECTOR(long long, longlong, 8, 16, 16)
SIMT_VECTOR(unsigned long long, ulonglong, 8, 16, 16)
SIMT_VECTOR(float, float, 4, 8, 16)
SIMT_VECTOR(double, double, 8, 16, 16)
#undef SIMT_VECTOR

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// ---- what the runtime provides ---------------------------------------------------------------------

namespace simt {

struct Site {
    const char* file;
    int line;
};
#define SIMT_HERE simt::Site{__builtin_FILE(), __builtin_LINE()}

constexpr unsigned all_lanes = 0xffffffffu;
constexpr int widest_exchange = 64; // bytes that one lane can bring to an exchange

extern "C" {
__attribute__((const)) uint3 simt_thread_index();
__attribute__((const)) uint3 simt_block_index();
__attribute__((const)) uint3 simt_block_shape();
__attribute__((const)) uint3 simt_grid_shape();
__attribute__((const)) int simt_lane();
void* simt_dynamic_shared();
void simt_barrier(const char* file, int line);
int simt_barrier_reduce(int op, int predicate, const char* file, int line);
void simt_exchange(const char* kind, unsigned mask, const void* mine, int bytes, void* all, const char* file, int line);
void simt_take(const char* kind, unsigned mask, const void* mine, int bytes, int source, void* out, const char* file,
               int line);
void simt_sync_warp(unsigned mask, const char* file, int line);
void simt_fence(int device);
void simt_sleep();
void simt_touch(const void* address, size_t bytes, int write);
unsigned simt_rmw32(int op, void* address, unsigned value, unsigned compare);
unsigned long long simt_rmw64(int op, void* address, unsigned long long value, unsigned long long compare);
void simt_fail(const char* kind, const char* text) __attribute__((noreturn));
}

__attribute__((always_inline)) inline int lane() { return simt_lane(); }
inline void fail_here(const char* kind, const char* text) { simt_fail(kind, text); }

// The value of each of the 32 lanes of this warp, in each of them: what a warp-wide instruction sees.
template <class T>
inline void gather_lanes(T value, T (&out)[32], const char* file = __builtin_FILE(), int line = __builtin_LINE())
{
    static_assert(sizeof(T) <= widest_exchange, "too wide for one exchange");
    simt_exchange("gather_lanes", all_lanes, &value, sizeof(T), out, file, line);
}

// The same for registers that come as an array: out[lane][register].
template <class T, int N>
inline void gather_lanes(const T (&value)[N], T (&out)[32][N], const char* file = __builtin_FILE(),
                         int line = __builtin_LINE())
{
    static_assert(sizeof(value) <= widest_exchange, "too wide for one exchange");
    simt_exchange("gather_lanes", all_lanes, value, sizeof(value), out, file, line);
}

// Converts to whatever pointer an `extern __shared__` array decays to.
struct DynamicShared {
    template <class T> operator T*() const { return static_cast<T*>(simt_dynamic_shared()); }
};

enum Op { add, exchange, compare_exchange, minimum, maximum, bit_and, bit_or, bit_xor, increment, decrement,
          minimum_unsigned, maximum_unsigned };

template <class T> struct is_word { static constexpr bool value = false; };
#define SIMT_WORD(T) template <> struct is_word<T> { static constexpr bool value = true; };
SIMT_WORD(int) SIMT_WORD(unsigned) SIMT_WORD(long) SIMT_WORD(unsigned long) SIMT_WORD(long long)
SIMT_WORD(unsigned long long) SIMT_WORD(float) SIMT_WORD(double)

template <class To, class From> inline To bits(From value)
{
    static_assert(sizeof(To) == sizeof(From), "sizes differ");
    To result;
    __builtin_memcpy(&result, &value, sizeof(To));
    return result;
}

} // namespace simt

#define threadIdx (simt::simt_thread_index())
#define blockIdx (simt::simt_block_index())
#define blockDim (simt::simt_block_shape())
#define gridDim (simt::simt_grid_shape())
constexpr int warpSize = 32;

// ---- barriers, votes, shuffles ---------------------------------------------------------------------

#define SIMT_WHERE const char* file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(SIMT_WHERE) { simt::simt_barrier(file, line); }
inline int __syncthreads_count(int p, SIMT_WHERE) { return simt::simt_barrier_reduce(0, p, file, line); }
inline int __syncthreads_and(int p, SIMT_WHERE) { return simt::simt_barrier_reduce(1, p, file, line); }
inline int __syncthreads_or(int p, SIMT_WHERE) { return simt::simt_barrier_reduce(2, p, file, line); }
inline void __syncwarp(unsigned mask = simt::all_lanes, SIMT_WHERE) { simt::simt_sync_warp(mask, file, line); }
inline void __threadfence() { simt::simt_fence(1); }
inline void __threadfence_system() { simt::simt_fence(1); }
inline void __threadfence_block() { simt::simt_fence(0); }
inline void __nanosleep(unsigned) { simt::simt_sleep(); }
inline void __trap() { simt::simt_fail("trap", "__trap() was reached"); }

inline unsigned __ballot_sync(unsigned mask, int predicate, SIMT_WHERE)
{
    int all[32];
    simt::simt_exchange("__ballot_sync", mask, &predicate, sizeof(int), all, file, line);
    unsigned votes = 0;
    for (int lane = 0; lane < 32; ++lane)
        votes |= unsigned((mask >> lane & 1) && all[lane] != 0) << lane;
    return votes;
}
inline int __any_sync(unsigned mask, int predicate, SIMT_WHERE)
{
    return __ballot_sync(mask, predicate, file, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, SIMT_WHERE)
{
    return __ballot_sync(mask, predicate, file, line) == mask;
}

template <class T> inline unsigned __match_any_sync(unsigned mask, T value, SIMT_WHERE)
{
    T all[32];
    simt::simt_exchange("__match_any_sync", mask, &value, sizeof(T), all, file, line);
    unsigned same = 0;
    for (int lane = 0; lane < 32; ++lane)
        same |= unsigned((mask >> lane & 1) && all[lane] == value) << lane;
    return same;
}

// Integers only, as on the GPU.
#define SIMT_REDUCE(name, T, expression)                                                                    \
    inline T name(unsigned mask, T value, SIMT_WHERE)                                                       \
    {                                                                                                       \
        T all[32], a = value;                                                                               \
        simt::simt_exchange(#name, mask, &value, sizeof(T), all, file, line);                               \
        bool first = true;                                                                                  \
        for (int lane = 0; lane < 32; ++lane)                                                               \
            if (mask >> lane & 1) {                                                                         \
                const T b = all[lane];                                                                      \
                a = first ? b : T(expression);                                                              \
                first = false;                                                                              \
            }                                                                                               \
        return a;                                                                                           \
    }
SIMT_REDUCE(__reduce_add_sync, unsigned, a + b)
SIMT_REDUCE(__reduce_add_sync, int, unsigned(a) + unsigned(b))
SIMT_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
SIMT_REDUCE(__reduce_min_sync, int, a < b ? a : b)
SIMT_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
SIMT_REDUCE(__reduce_max_sync, int, a > b ? a : b)
SIMT_REDUCE(__reduce_and_sync, unsigned, a & b)
SIMT_REDUCE(__reduce_or_sync, unsigned, a | b)
SIMT_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef SIMT_REDUCE

namespace simt {
// `source` is the lane to read from; beyond the segment, shuffles give a lane its own value back.
template <class T>
inline T shuffle(const char* kind, unsigned mask, T value, int source, const char* file, int line)
{
    static_assert(is_word<T>::value, "shuffles take 4-byte and 8-byte numbers, half and bfloat16");
    T result;
    simt_take(kind, mask, &value, sizeof(T), source, &result, file, line);
    return result;
}
inline void check_width(int width)
{
    if (width < 1 || width > 32 || (width & (width - 1)))
        simt_fail("warp", "the width of a shuffle must be a power of two up to 32");
}
} // namespace simt

template <class T> inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, SIMT_WHERE)
{
    simt::check_width(width);
    const int first = simt::lane() & ~(width - 1);
    return simt::shuffle("__shfl_sync", mask, value, first | (source & (width - 1)), file, line);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_WHERE)
{
    simt::check_width(width);
    const int first = simt::lane() & ~(width - 1), source = simt::lane() - int(delta);
    return simt::shuffle("__shfl_up_sync", mask, value, source < first ? simt::lane() : source, file, line);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_WHERE)
{
    simt::check_width(width);
    const int last = simt::lane() | (width - 1), source = simt::lane() + int(delta);
    return simt::shuffle("__shfl_down_sync", mask, value, source > last ? simt::lane() : source, file, line);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32, SIMT_WHERE)
{
    simt::check_width(width);
    const int last = simt::lane() | (width - 1), source = simt::lane() ^ flip;
    return simt::shuffle("__shfl_xor_sync", mask, value, source > last ? simt::lane() : source, file, line);
}

// ---- memory ----------------------------------------------------------------------------------------

template <class T> inline T __ldg(const T* address) { return *address; }
template <class T> inline T __ldcs(const T* address) { return *address; }
template <class T> inline T __ldcg(const T* address) { return *address; }
template <class T> inline T __ldca(const T* address) { return *address; }
template <class T> inline T __ldlu(const T* address) { return *address; }
template <class T> inline T __ldcv(const T* address) { return *address; }
template <class T> inline void __stcs(T* address, T value) { *address = value; }
template <class T> inline void __stcg(T* address, T value) { *address = value; }
template <class T> inline void __stwb(T* address, T value) { *address = value; }
template <class T> inline void __stwt(T* address, T value) { *address = value; }

inline size_t __cvta_generic_to_shared(const void* address) { return reinterpret_cast<size_t>(address); }
inline void* __cvta_shared_to_generic(size_t address) { return reinterpret_cast<void*>(address); }
inline size_t __cvta_generic_to_global(const void* address) { return reinterpret_cast<size_t>(address); }

namespace simt {
// g++ moves small copies with plain instructions and no check, hence our own.
inline void* copy_bytes(void* to, const void* from, size_t bytes)
{
    simt_touch(from, bytes, 0);
    simt_touch(to, bytes, 1);
    return __builtin_memcpy(to, from, bytes);
}
inline void* set_bytes(void* to, int value, size_t bytes)
{
    simt_touch(to, bytes, 1);
    return __builtin_memset(to, value, bytes);
}
} // namespace simt
#define memcpy simt::copy_bytes
#define memset simt::set_bytes

// ---- atomics: integers only; a floating-point atomic has no fixed order, so it is no function here ---

#define SIMT_ATOMIC(name, T, width, op)                                                                     \
    inline T name(T* address, T value) { return (T)simt::simt_rmw##width(op, address, value, 0); }
#define SIMT_ATOMICS(T, width, smallest, largest)                                                           \
    SIMT_ATOMIC(atomicAdd, T, width, simt::add)                                                             \
    SIMT_ATOMIC(atomicExch, T, width, simt::exchange)                                                       \
    SIMT_ATOMIC(atomicMin, T, width, smallest)                                                              \
    SIMT_ATOMIC(atomicMax, T, width, largest)                                                               \
    SIMT_ATOMIC(atomicAnd, T, width, simt::bit_and)                                                         \
    SIMT_ATOMIC(atomicOr, T, width, simt::bit_or)                                                           \
    SIMT_ATOMIC(atomicXor, T, width, simt::bit_xor)                                                         \
    inline T atomicCAS(T* address, T compare, T value)                                                      \
    {                                                                                                       \
        return (T)simt::simt_rmw##width(simt::compare_exchange, address, value, compare);                      \
    }
SIMT_ATOMICS(int, 32, simt::minimum, simt::maximum)
SIMT_ATOMICS(unsigned, 32, simt::minimum_unsigned, simt::maximum_unsigned)
SIMT_ATOMICS(unsigned long long, 64, simt::minimum_unsigned, simt::maximum_unsigned)
SIMT_ATOMIC(atomicInc, unsigned, 32, simt::increment)
SIMT_ATOMIC(atomicDec, unsigned, 32, simt::decrement)
inline int atomicSub(int* address, int value) { return atomicAdd(address, int(0u - unsigned(value))); }
inline unsigned atomicSub(unsigned* address, unsigned value) { return atomicAdd(address, 0u - value); }
#undef SIMT_ATOMICS
#undef SIMT_ATOMIC
float atomicAdd(float*, float) = delete;
double atomicAdd(double*, double) = delete;
float atomicExch(float*, float) = delete;

// ---- arithmetic ------------------------------------------------------------------------------------

#define SIMT_MATH1(name)                                                                                    \
    inline double name(double x) { return __builtin_##name(x); }                                            \
    inline float name(float x) { return __builtin_##name##f(x); }                                           \
    inline float name##f(float x) { return __builtin_##name##f(x); }
SIMT_MATH1(fabs) SIMT_MATH1(sqrt) SIMT_MATH1(floor) SIMT_MATH1(ceil) SIMT_MATH1(trunc) SIMT_MATH1(rint)
SIMT_MATH1(round) SIMT_MATH1(exp) SIMT_MATH1(exp2) SIMT_MATH1(log) SIMT_MATH1(log2)
#undef SIMT_MATH1
#define SIMT_MATH2(name)                                                                                    \
    inline double name(double x, double y) { return __builtin_##name(x, y); }                               \
    inline float name(float x, float y) { return __builtin_##name##f(x, y); }                               \
    inline float name##f(float x, float y) { return __builtin_##name##f(x, y); }
SIMT_MATH2(fmin) SIMT_MATH2(fmax) SIMT_MATH2(copysign) SIMT_MATH2(pow) SIMT_MATH2(fmod) SIMT_MATH2(hypot)
#undef SIMT_MATH2
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double rsqrt(double x) { return 1 / __builtin_sqrt(x); }
inline float rsqrtf(float x) { return 1 / __builtin_sqrtf(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
template <class T> inline bool isnan(T x) { return __builtin_isnan(x); }
template <class T> inline bool isinf(T x) { return __builtin_isinf(x); }
template <class T> inline bool isfinite(T x) { return __builtin_isfinite(x); }
constexpr int abs(int x) { return x < 0 ? -x : x; }
constexpr long long abs(long long x) { return x < 0 ? -x : x; }
constexpr long long llabs(long long x) { return x < 0 ? -x : x; }
inline double abs(double x) { return __builtin_fabs(x); }
inline float abs(float x) { return __builtin_fabsf(x); }

namespace simt {
template <class A, class B> using common = decltype(true ? A() : B());
} // namespace simt
// As CUDA's: mixed integers go to their common type, and a NaN loses against a number.
template <class A, class B> constexpr simt::common<A, B> max(A a, B b)
{
    using T = simt::common<A, B>;
    return T(a) != T(a) ? T(b) : T(a) < T(b) ? T(b) : T(a);
}
template <class A, class B> constexpr simt::common<A, B> min(A a, B b)
{
    using T = simt::common<A, B>;
    return T(a) != T(a) ? T(b) : T(b) < T(a) ? T(b) : T(a);
}

// ---- bits ------------------------------------------------------------------------------------------

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline unsigned __brev(unsigned x)
{
    unsigned result = 0;
    for (int bit = 0; bit < 32; ++bit)
        result |= (x >> bit & 1) << (31 - bit);
    return result;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    if (selector & 0x8888)
        simt::simt_fail("intrinsic", "__byte_perm: a selector nibble above 7 is not defined by the CUDA manual");
    const unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned result = 0;
    for (int byte = 0; byte < 4; ++byte)
        result |= unsigned(both >> 8 * (selector >> 4 * byte & 7) & 0xff) << 8 * byte;
    return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    return unsigned((((unsigned long long)high << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return unsigned(((unsigned long long)high << 32 | low) >> (shift & 31));
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline int __dp4a(int a, int b, int c)
{
    for (int byte = 0; byte < 4; ++byte)
        c = int(unsigned(c) + unsigned(int((signed char)(a >> 8 * byte)) * int((signed char)(b >> 8 * byte))));
    return c;
}
inline int __float_as_int(float x) { return simt::bits<int>(x); }
inline unsigned __float_as_uint(float x) { return simt::bits<unsigned>(x); }
inline float __int_as_float(int x) { return simt::bits<float>(x); }
inline float __uint_as_float(unsigned x) { return simt::bits<float>(x); }
inline long long __double_as_longlong(double x) { return simt::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return simt::bits<double>(x); }
inline int __double2hiint(double x) { return int(simt::bits<unsigned long long>(x) >> 32); }
inline int __double2loint(double x) { return int(simt::bits<unsigned long long>(x)); }
inline double __hiloint2double(int high, int low)
{
    return simt::bits<double>((unsigned long long)unsigned(high) << 32 | unsigned(low));
}
inline float __double2float_rn(double x) { return float(x); }
inline int __double2int_rz(double x) { return int(x); }
inline int __float2int_rz(float x) { return int(x); }
inline int __float2int_rn(float x) { return int(__builtin_rintf(x)); }
inline float __int2float_rn(int x) { return float(x); }
inline double __int2double_rn(int x) { return double(x); }

// ---- kernels, as Python finds them -----------------------------------------------------------------

struct __half;
struct __nv_bfloat16;

namespace simt {

struct Parameter {
    int pointer;  // 1: a pointer, and the rest describes what it points to
    int constant; // 1: a pointer to const
    int kind;     // 'f' real, 'i' signed, 'u' unsigned, 'b' bool, 'h' half, 'n' bfloat16, 'V' a struct or void
    int bytes;    // 0 for void
};
struct Kernel {
    const char* name;
    void (*call)(void** arguments);
    int parameters;
    const Parameter* parameter;
    int most_threads; // from __launch_bounds__, else 1024
};

template <class T> struct kind_of { static constexpr int value = 'V', bytes = sizeof(T); };
template <> struct kind_of<void> { static constexpr int value = 'V', bytes = 0; };
template <> struct kind_of<__half> { static constexpr int value = 'h', bytes = 2; };
template <> struct kind_of<__nv_bfloat16> { static constexpr int value = 'n', bytes = 2; };
#define SIMT_KIND(T, letter) template <> struct kind_of<T> { static constexpr int value = letter, bytes = sizeof(T); };
SIMT_KIND(float, 'f') SIMT_KIND(double, 'f') SIMT_KIND(bool, 'b') SIMT_KIND(char, 'i') SIMT_KIND(signed char, 'i')
SIMT_KIND(short, 'i') SIMT_KIND(int, 'i') SIMT_KIND(long, 'i') SIMT_KIND(long long, 'i') SIMT_KIND(unsigned char, 'u')
SIMT_KIND(unsigned short, 'u') SIMT_KIND(unsigned, 'u') SIMT_KIND(unsigned long, 'u') SIMT_KIND(unsigned long long, 'u')
#undef SIMT_KIND
template <class T> struct describe { static constexpr Parameter value = {0, 0, kind_of<T>::value, kind_of<T>::bytes}; };
template <class T> struct describe<T*> { static constexpr Parameter value = {1, 0, kind_of<T>::value, kind_of<T>::bytes}; };
template <class T> struct describe<const T*> {
    static constexpr Parameter value = {1, 1, kind_of<T>::value, kind_of<T>::bytes};
};

template <int... I> struct numbers {};
template <int N, int... I> struct count_to : count_to<N - 1, N - 1, I...> {};
template <int... I> struct count_to<0, I...> { using type = numbers<I...>; };

template <auto function> struct Launcher;
template <class... P, void (*function)(P...)> struct Launcher<function> {
    template <int... I> __attribute__((no_sanitize("thread"))) static void call(void** arguments, numbers<I...>)
    {
        (void)arguments;
        function(*static_cast<P*>(arguments[I])...);
    }
    __attribute__((no_sanitize("thread"), noinline)) static void enter(void** arguments)
    {
        call(arguments, typename count_to<sizeof...(P)>::type());
    }
    static constexpr Parameter parameter[sizeof...(P) + 1] = {describe<P>::value..., {0, 0, 0, 0}};
    static constexpr Kernel kernel(const char* name, int most_threads)
    {
        return {name, enter, sizeof...(P), parameter, most_threads};
    }
};

constexpr int first_of(int first = 1024, int = 0, int = 0) { return first; }

} // namespace simt
