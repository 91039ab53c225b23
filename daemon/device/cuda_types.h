/*
 * Element types and operators of cuda_reduce.h, one element or one word of packed integers at a
 * time, and memory as it reads and writes it. What a GPU has an instruction for and a CPU has not
 * is told apart here and nowhere else.
 */
#ifndef DAEMON_DEVICE_CUDA_TYPES_H
#define DAEMON_DEVICE_CUDA_TYPES_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define CUDA_FUNCTION  static __device__ __forceinline__
#define CUDA_MEMBER    static __device__ __forceinline__
#define CUDA_METHOD    __device__ __forceinline__
#define CUDA_UNROLL    _Pragma("unroll")
#define CUDA_NO_UNROLL _Pragma("unroll 1")
#else
#define CUDA_FUNCTION static inline
#define CUDA_MEMBER   static inline
#define CUDA_METHOD   inline
#define CUDA_UNROLL
#define CUDA_NO_UNROLL
/* The address of every access, for whoever wants to see that a GPU would take it. */
void memory_check(uint64_t address, unsigned bytes);
#endif

enum cuda_operator {
    CUDA_SUM,
    CUDA_PRODUCT,
    CUDA_MIN,
    CUDA_MAX,
    CUDA_AND,
    CUDA_OR,
    CUDA_XOR,
};

/* X(OPERATOR, operator, type): every kernel "reduce_<operator>_<type>" there is. */
#define CUDA_ORDERED_KERNELS(X, type)                                                              \
    X(SUM, sum, type)                                                                              \
    X(PRODUCT, product, type)                                                                      \
    X(MIN, min, type)                                                                              \
    X(MAX, max, type)
#define CUDA_INTEGER_KERNELS(X, type)                                                              \
    CUDA_ORDERED_KERNELS(X, type)                                                                  \
    X(AND, and, type)                                                                              \
    X(OR, or, type)                                                                                \
    X(XOR, xor, type)
#define CUDA_KERNEL_LIST(X)                                                                        \
    CUDA_ORDERED_KERNELS(X, f32)                                                                   \
    CUDA_ORDERED_KERNELS(X, f64)                                                                   \
    CUDA_ORDERED_KERNELS(X, f16)                                                                   \
    CUDA_ORDERED_KERNELS(X, bf16)                                                                  \
    CUDA_ORDERED_KERNELS(X, f8e4m3)                                                                \
    CUDA_ORDERED_KERNELS(X, f8e5m2)                                                                \
    CUDA_INTEGER_KERNELS(X, i8)                                                                    \
    CUDA_INTEGER_KERNELS(X, i16)                                                                   \
    CUDA_INTEGER_KERNELS(X, i32)                                                                   \
    CUDA_INTEGER_KERNELS(X, i64)                                                                   \
    CUDA_INTEGER_KERNELS(X, u8)                                                                    \
    CUDA_INTEGER_KERNELS(X, u16)                                                                   \
    CUDA_INTEGER_KERNELS(X, u32)                                                                   \
    CUDA_INTEGER_KERNELS(X, u64)

/* ---- Memory: what is read once and written once is not to push other things out of caches ---- */

#ifdef __CUDACC__
template <unsigned BYTES> struct memory_unit;
template <> struct memory_unit<1> {
    typedef unsigned char type;
};
template <> struct memory_unit<2> {
    typedef unsigned short type;
};
template <> struct memory_unit<4> {
    typedef unsigned int type;
};
template <> struct memory_unit<8> {
    typedef uint2 type;
};
template <> struct memory_unit<16> {
    typedef uint4 type;
};
#endif

/* BYTES bytes from and to an address that BYTES divides. */
template <unsigned BYTES> CUDA_FUNCTION void memory_load(uint64_t from, void *to)
{
#ifdef __CUDACC__
    typedef typename memory_unit<BYTES>::type unit;
    const unit v = __ldcs((const unit *)from);

    memcpy(to, &v, BYTES);
#else
    memory_check(from, BYTES);
    memcpy(to, (const void *)from, BYTES);
#endif
}

template <unsigned BYTES> CUDA_FUNCTION void memory_store(uint64_t to, const void *from)
{
#ifdef __CUDACC__
    typedef typename memory_unit<BYTES>::type unit;
    unit v;

    memcpy(&v, from, BYTES);
    __stcs((unit *)to, v);
#else
    memory_check(to, BYTES);
    memcpy((void *)to, from, BYTES);
#endif
}

CUDA_FUNCTION uint32_t float_bits(float v)
{
    uint32_t u;

    memcpy(&u, &v, sizeof(u));
    return u;
}

CUDA_FUNCTION float float_of(uint32_t u)
{
    float v;

    memcpy(&v, &u, sizeof(v));
    return v;
}

/* ---- Floats of 1 sign bit, E exponent bits and M fraction bits ---- */

/*
 * `ieee`: the highest exponent means infinity and NaN; else only all ones is NaN, and what
 * overflows becomes that.
 */
template <int E, int M, bool ieee> CUDA_FUNCTION uint32_t small_narrow(float v)
{
    constexpr int shift = 23 - M, infinity = ((1 << E) - 1) << M;
    constexpr uint32_t rebias = (uint32_t)(128 - (1 << (E - 1))) << 23;
    constexpr uint32_t smallest_normal = rebias + (1 << 23);
    constexpr uint32_t last = ieee ? infinity : (1 << (E + M)) - 1;
    constexpr uint32_t magic = smallest_normal + (shift << 23);
    const uint32_t u = float_bits(v), sign = u >> 31 << (E + M), magnitude = u & 0x7fffffff;
    uint32_t r;

    if (magnitude > 0x7f800000)
        return sign | last | (ieee ? 1 << (M - 1) : 0);
    if (magnitude < smallest_normal) /* a number whose last bit is the smallest rounds to it */
        r = float_bits(float_of(magnitude) + float_of(magic)) - magic;
    else
        r = (magnitude + ((1 << (shift - 1)) - 1) + (magnitude >> shift & 1) - rebias) >> shift;
    return sign | (r > last ? last : r);
}

CUDA_FUNCTION float half_widen(uint32_t h)
{
#ifdef __CUDACC__
    float v;

    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"((unsigned short)h));
    return v;
#else
    const uint32_t sign = h >> 15 << 31, magnitude = (h & 0x7fff) << 13;

    if (magnitude >= 0x1fu << 23)
        return float_of(sign | magnitude | 0x7f800000);
    if (magnitude >= 1u << 23)
        return float_of(sign | (magnitude + (112u << 23)));
    return (sign ? -1 : 1) * (float)(h & 0x3ff) * 0x1p-24f;
#endif
}

CUDA_FUNCTION uint32_t half_narrow(float v)
{
#ifdef __CUDACC__
    unsigned short h;

    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
#else
    return small_narrow<5, 10, true>(v);
#endif
}

/* ---- Floating types: T::part is an accumulator ---- */

/* IEEE 754-2019 minimum and maximum: a NaN on either side stays, and -0 is below +0. */
template <cuda_operator OP, class F, class U> CUDA_FUNCTION F float_extreme(F a, F b)
{
    const bool before = OP == CUDA_MIN ? a < b : a > b;
    U x, y;

    if (a == b) {
        memcpy(&x, &a, sizeof(x));
        memcpy(&y, &b, sizeof(y));
        x = OP == CUDA_MIN ? x | y : x & y;
        memcpy(&a, &x, sizeof(a));
        return a;
    }
    return before || a != a ? a : b;
}

template <class F, class U> struct floating {
    typedef F part;
    static constexpr bool packed = false;

    template <cuda_operator OP> CUDA_MEMBER F combine(F a, F b)
    {
        if constexpr (OP == CUDA_SUM)
            return a + b;
        else if constexpr (OP == CUDA_PRODUCT)
            return a * b;
        else
            return float_extreme<OP, F, U>(a, b);
    }
};

struct f32 : floating<float, uint32_t> {
    typedef uint32_t word;
    static constexpr unsigned width = 4;
    static constexpr bool narrow_float = false;

    CUDA_MEMBER float widen(uint32_t u)
    {
        return float_of(u);
    }
    CUDA_MEMBER uint32_t narrow(float v)
    {
        return float_bits(v);
    }
};

struct f64 : floating<double, uint64_t> {
    typedef uint64_t word;
    static constexpr unsigned width = 8;
    static constexpr bool narrow_float = false;

    CUDA_MEMBER double widen(uint64_t u)
    {
        double v;

        memcpy(&v, &u, sizeof(v));
        return v;
    }
    CUDA_MEMBER uint64_t narrow(double v)
    {
        uint64_t u;

        memcpy(&u, &v, sizeof(u));
        return u;
    }
};

/* In words of several, whose upper bits widen() is given too. */
template <unsigned WIDTH> struct narrow_floating : floating<float, uint32_t> {
    typedef uint32_t word;
    static constexpr unsigned width = WIDTH;
    static constexpr bool narrow_float = true;
};

struct f16 : narrow_floating<2> {
    CUDA_MEMBER float widen(uint32_t h)
    {
        return half_widen(h & 0xffff);
    }
    CUDA_MEMBER uint32_t narrow(float v)
    {
        return half_narrow(v);
    }
};

struct bf16 : narrow_floating<2> {
    CUDA_MEMBER float widen(uint32_t h)
    {
        return float_of(h << 16);
    }
    CUDA_MEMBER uint32_t narrow(float v)
    {
        const uint32_t u = float_bits(v);

        return (v != v ? u | 0x400000 : u + 0x7fff + (u >> 16 & 1)) >> 16;
    }
};

/* As a half of the same digits, whose exponent is biased by 8 more. */
struct f8e4m3 : narrow_floating<1> {
    CUDA_MEMBER float widen(uint32_t b)
    {
        const uint32_t magnitude = b & 0x7f, sign = (b & 0x80) << 8;

        return half_widen(magnitude == 0x7f ? sign | 0x7e00 : sign | magnitude << 7) * 256;
    }
    CUDA_MEMBER uint32_t narrow(float v)
    {
        return small_narrow<4, 3, false>(v);
    }
};

/* The upper byte of a half. */
struct f8e5m2 : narrow_floating<1> {
    CUDA_MEMBER float widen(uint32_t b)
    {
        return half_widen((b & 0xff) << 8);
    }
    CUDA_MEMBER uint32_t narrow(float v)
    {
        return small_narrow<5, 2, true>(v);
    }
};

/* ---- Integers: as many as fit into a word, S as they compare, U as they wrap ---- */

template <class W, class U, class S> struct integer {
    typedef W word;
    typedef W part;
    static constexpr unsigned width = sizeof(U), lanes = sizeof(W) / sizeof(U);
    static constexpr bool packed = true, narrow_float = false;

    template <cuda_operator OP> CUDA_MEMBER U one(U a, U b)
    {
        if constexpr (OP == CUDA_PRODUCT)
            return (U)((W)a * b);
        else if constexpr (OP == CUDA_MIN)
            return (S)a < (S)b ? a : b;
        else
            return (S)a > (S)b ? a : b;
    }

    CUDA_MEMBER W sum(W a, W b)
    {
        if constexpr (lanes == 1) {
            return a + b;
        } else { /* no carry from one into the next */
            constexpr U ones = (U)-1;
            constexpr W top = (W)-1 / ones << (8 * width - 1);

            return ((a & ~top) + (b & ~top)) ^ ((a ^ b) & top);
        }
    }

    template <cuda_operator OP> CUDA_MEMBER W combine(W a, W b)
    {
        if constexpr (OP == CUDA_SUM) {
            return sum(a, b);
        } else if constexpr (OP == CUDA_AND) {
            return a & b;
        } else if constexpr (OP == CUDA_OR) {
            return a | b;
        } else if constexpr (OP == CUDA_XOR) {
            return a ^ b;
        } else {
            W r = 0;

            CUDA_UNROLL
            for (unsigned i = 0; i < lanes; i++) {
                const unsigned at = 8 * width * i;

                r |= (W)one<OP>((U)(a >> at), (U)(b >> at)) << at;
            }
            return r;
        }
    }
};

typedef integer<uint32_t, uint8_t, int8_t> i8;
typedef integer<uint32_t, uint16_t, int16_t> i16;
typedef integer<uint32_t, uint32_t, int32_t> i32;
typedef integer<uint64_t, uint64_t, int64_t> i64;
typedef integer<uint32_t, uint8_t, uint8_t> u8;
typedef integer<uint32_t, uint16_t, uint16_t> u16;
typedef integer<uint32_t, uint32_t, uint32_t> u32;
typedef integer<uint64_t, uint64_t, uint64_t> u64;

#endif
