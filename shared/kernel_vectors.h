/*
 * Vectors as wide as the target's registers, and the float types that C has not, in their lanes.
 * A `vec` is bits; what is in them is a cast away. Only kernels.c includes this, once per
 * instruction set.
 */
#ifndef SHARED_KERNEL_VECTORS_H
#define SHARED_KERNEL_VECTORS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VEC_BYTES 64
#elif defined(__AVX2__)
#define VEC_BYTES 32
#else
#define VEC_BYTES 16
#endif

#define LANES  (VEC_BYTES / 4)
#define INLINE static inline __attribute__((always_inline))

typedef uint32_t vec __attribute__((vector_size(VEC_BYTES)));
typedef vec vec_u32;
typedef int32_t vec_i32 __attribute__((vector_size(VEC_BYTES)));
typedef float vec_f32 __attribute__((vector_size(VEC_BYTES)));
typedef double vec_f64 __attribute__((vector_size(VEC_BYTES)));
typedef uint8_t vec_u8 __attribute__((vector_size(VEC_BYTES)));
typedef int8_t vec_i8 __attribute__((vector_size(VEC_BYTES)));
typedef uint16_t vec_u16 __attribute__((vector_size(VEC_BYTES)));
typedef int16_t vec_i16 __attribute__((vector_size(VEC_BYTES)));
typedef uint64_t vec_u64 __attribute__((vector_size(VEC_BYTES)));
typedef int64_t vec_i64 __attribute__((vector_size(VEC_BYTES)));

/* As many elements as a vec has 32-bit lanes. */
typedef uint16_t half_u16 __attribute__((vector_size(VEC_BYTES / 2)));
typedef uint8_t quarter_u8 __attribute__((vector_size(VEC_BYTES / 4)));

/* In memory, at any address. */
typedef vec vec_any __attribute__((aligned(1), may_alias));
typedef half_u16 half_any __attribute__((aligned(1), may_alias));
typedef quarter_u8 quarter_any __attribute__((aligned(1), may_alias));

/* Two vectors. Which element of a buffer is in which lane is the loader's business. */
struct pair {
    vec a, b;
};

/* What is combined at once. `high` means something only for halves, f16 and bf16: two vectors of
 * them are four of accumulators. */
struct strip {
    struct pair low, high;
};

/* ---- Stores past the caches, to addresses that VEC_BYTES divides. ---- */

INLINE void stream(void *p, vec v)
{
#if defined(__AVX512F__)
    _mm512_stream_si512(p, (__m512i)v);
#elif defined(__AVX2__)
    _mm256_stream_si256(p, (__m256i)v);
#elif defined(__SSE2__)
    _mm_stream_si128(p, (__m128i)v);
#else
    *(vec_any *)p = v;
#endif
}

/* Streamed stores are ordered by nothing else, not even by a lock. */
INLINE void stream_end(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}

INLINE vec choose(vec mask, vec yes, vec no)
{
    return (mask & yes) | (~mask & no);
}

/* ---- Widening and narrowing lanes: what gcc makes of __builtin_convertvector is slow ---- */

INLINE vec widen_u16(const void *p)
{
#if defined(__AVX512F__)
    return (vec)_mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
#elif defined(__AVX2__)
    return (vec)_mm256_cvtepu16_epi32(_mm_loadu_si128(p));
#else
    return __builtin_convertvector(*(const half_any *)p, vec);
#endif
}

INLINE vec widen_u8(const void *p)
{
#if defined(__AVX512F__)
    return (vec)_mm512_cvtepu8_epi32(_mm_loadu_si128(p));
#elif defined(__AVX2__)
    return (vec)_mm256_cvtepu8_epi32(_mm_loadl_epi64(p));
#else
    return __builtin_convertvector(*(const quarter_any *)p, vec);
#endif
}

/* The lanes' values fit. */
INLINE vec narrow_u16(struct pair v)
{
#if defined(__AVX512F__)
    __m512i low = _mm512_castsi256_si512(_mm512_cvtepi32_epi16((__m512i)v.a));

    return (vec)_mm512_inserti64x4(low, _mm512_cvtepi32_epi16((__m512i)v.b), 1);
#elif defined(__AVX2__)
    __m256i turns = _mm256_packus_epi32((__m256i)v.a, (__m256i)v.b);

    return (vec)_mm256_permute4x64_epi64(turns, 0xd8);
#else
    union {
        half_u16 half[2];
        vec whole;
    } r = { { __builtin_convertvector(v.a, half_u16), __builtin_convertvector(v.b, half_u16) } };

    return r.whole;
#endif
}

INLINE void narrow_u8(void *p, vec v)
{
#if defined(__AVX512F__)
    _mm_storeu_si128(p, _mm512_cvtepi32_epi8((__m512i)v));
#elif defined(__AVX2__)
    __m256i twice = _mm256_packus_epi32((__m256i)v, (__m256i)v);
    __m128i words = _mm256_castsi256_si128(_mm256_permute4x64_epi64(twice, 0x08));

    _mm_storel_epi64(p, _mm_packus_epi16(words, words));
#else
    *(quarter_any *)p = __builtin_convertvector(v, quarter_u8);
#endif
}

/* ---- Element types that have no arithmetic of their own ---- */

/* Bits 31..16 are the bf16 nearest to the float, if that is a number; those below are anything. */
INLINE vec bf16_round(vec u)
{
#ifdef __AVX512F__
    __m512i v = (__m512i)u;
    __mmask16 odd = _mm512_test_epi32_mask(v, _mm512_set1_epi32(0x10000));

    v = _mm512_add_epi32(v, _mm512_set1_epi32(0x7fff));
    return (vec)_mm512_mask_add_epi32(v, odd, v, _mm512_set1_epi32(1));
#else
    return u + 0x7fff + ((u >> 16) & 1);
#endif
}

/* One answer for a whole strip. */
INLINE bool any_nan(struct strip s)
{
#if defined(__AVX512F__)
    return (_mm512_cmp_ps_mask((__m512)s.low.a, (__m512)s.low.b, _CMP_UNORD_Q) |
            _mm512_cmp_ps_mask((__m512)s.high.a, (__m512)s.high.b, _CMP_UNORD_Q)) != 0;
#elif defined(__AVX2__)
    __m256 low = _mm256_cmp_ps((__m256)s.low.a, (__m256)s.low.b, _CMP_UNORD_Q);
    __m256 high = _mm256_cmp_ps((__m256)s.high.a, (__m256)s.high.b, _CMP_UNORD_Q);

    return _mm256_movemask_ps(_mm256_or_ps(low, high)) != 0;
#else
    (void)s;
    return true;
#endif
}

/* As bf16_round(); NaN, which that takes to infinity or beyond, stays NaN. */
INLINE vec bf16_round_any(vec u)
{
    return choose((vec)((vec_i32)(u & 0x7fffffff) > 0x7f800000), u | 0x400000, bf16_round(u));
}

INLINE vec bf16_high(struct pair rounded)
{
    return narrow_u16((struct pair){ rounded.a >> 16, rounded.b >> 16 });
}

INLINE struct pair bf16_encode(struct strip s)
{
    if (__builtin_expect(any_nan(s), false))
        return (struct pair){
            bf16_high((struct pair){ bf16_round_any(s.low.a), bf16_round_any(s.low.b) }),
            bf16_high((struct pair){ bf16_round_any(s.high.a), bf16_round_any(s.high.b) }),
        };
    return (struct pair){
        bf16_high((struct pair){ bf16_round(s.low.a), bf16_round(s.low.b) }),
        bf16_high((struct pair){ bf16_round(s.high.a), bf16_round(s.high.b) }),
    };
}

#ifdef __AVX512BF16__
INLINE bool any_subnormal(struct strip s)
{
    const int subnormal = 0x20;

    return _mm512_fpclass_ps_mask((__m512)s.low.a, subnormal) |
           _mm512_fpclass_ps_mask((__m512)s.low.b, subnormal) |
           _mm512_fpclass_ps_mask((__m512)s.high.a, subnormal) |
           _mm512_fpclass_ps_mask((__m512)s.high.b, subnormal);
}

/* The words of the lower and the upper half in turn. */
INLINE vec bf16_interleave(vec v)
{
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);

    return (vec)_mm512_permutexvar_epi16(order, (__m512i)v);
}
#endif

/* The upper halves of a and b, whose elements are the even and the odd ones, in order. */
INLINE vec bf16_join(vec a, vec b)
{
    return (a >> 16) | (b & 0xffff0000);
}

/* bf16_join() of what bf16_round() gives. */
INLINE vec bf16_round_split(struct pair v)
{
#if defined(__AVX2__) && !defined(__AVX512F__)
    /* half of the last bit is added, and the bit taken back where that left nothing below: a tie */
    __m256i a = (__m256i)(v.a + 0x8000), b = (__m256i)(v.b + 0x8000);
    __m256i above = _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xaa);
    __m256i below = _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa);
    __m256i tie = _mm256_subs_epu16(_mm256_set1_epi16(1), below);

    return (vec)_mm256_andnot_si256(tie, above);
#else
    return bf16_join(bf16_round(v.a), bf16_round(v.b));
#endif
}

/*
 * Pairs that have their even elements in a and their odd ones in b, back in order. `clean`: they
 * came of arithmetic on bf16. A NaN then is an operand's, made quiet, or the CPU's own: nothing is
 * below bit 16, rounding leaves it alone, and it need not be looked for.
 */
INLINE struct pair bf16_encode_split(struct strip s, bool clean)
{
#ifdef __AVX512BF16__
    /* rounds and keeps NaN as we do, but takes a subnormal for zero */
    if (__builtin_expect(!any_subnormal(s), true))
        return (struct pair){
            bf16_interleave((vec)_mm512_cvtne2ps_pbh((__m512)s.low.b, (__m512)s.low.a)),
            bf16_interleave((vec)_mm512_cvtne2ps_pbh((__m512)s.high.b, (__m512)s.high.a)),
        };
#endif
    if (!clean && __builtin_expect(any_nan(s), false))
        return (struct pair){
            bf16_join(bf16_round_any(s.low.a), bf16_round_any(s.low.b)),
            bf16_join(bf16_round_any(s.high.a), bf16_round_any(s.high.b)),
        };
    return (struct pair){ bf16_round_split(s.low), bf16_round_split(s.high) };
}

/*
 * A float of 1 sign bit, E exponent bits and M fraction bits with the usual bias, in the low bits
 * of each lane. `ieee`: the highest exponent means infinity and NaN; else (e4m3) only all ones is
 * NaN. Written for the default rounding mode, and for CPUs that may flush subnormal f32: neither
 * decode nor encode ever needs one.
 */
INLINE vec small_decode(vec h, int E, int M, bool ieee)
{
    uint32_t rebias = (uint32_t)(128 - (1 << (E - 1))) << 23;
    vec one = (vec){ 0 } + (1u << 23);
    vec magnitude = (h & ((1u << (E + M)) - 1)) << (23 - M);
    vec sign = (h >> (E + M)) << 31;
    vec value, subnormal, special;

    value = magnitude + rebias;
    subnormal = (vec)((vec_f32)(value + one) - (vec_f32)(one + rebias));
    value = choose((vec)((vec_i32)magnitude < 1 << 23), subnormal, value);
    if (ieee) {
        int infinity = ((1 << E) - 1) << 23;
        vec quiet = (vec)((vec_i32)magnitude > infinity) & 0x400000;

        special = (vec)((vec_i32)magnitude >= infinity);
        value = choose(special, magnitude | 0x7f800000 | quiet, value);
    } else {
        special = (vec)(magnitude == ((1u << (E + M)) - 1) << (23 - M));
        value = choose(special, (vec){ 0 } + 0x7fc00000, value);
    }
    return value | sign;
}

INLINE vec small_encode(vec u, int E, int M, bool ieee)
{
    int shift = 23 - M;
    uint32_t rebias = (uint32_t)(128 - (1 << (E - 1))) << 23;
    int smallest_normal = (int)rebias + (1 << 23);
    int infinity = ((1 << E) - 1) << M;
    int last = ieee ? infinity : (1 << (E + M)) - 1; /* what overflow becomes */
    vec magic = (vec){ 0 } + (uint32_t)(smallest_normal + (shift << 23));
    vec sign = (u >> 31) << (E + M);
    vec magnitude = u & 0x7fffffff;
    vec value, subnormal, nan;

    /* adding a number whose last bit is the smallest subnormal rounds to it */
    subnormal = (vec)((vec_f32)magnitude + (vec_f32)magic) - magic;
    value = magnitude + ((1u << (shift - 1)) - 1) + ((magnitude >> shift) & 1);
    value = (value - rebias) >> shift;
    value = choose((vec)((vec_i32)magnitude < smallest_normal), subnormal, value);
    value = choose((vec)((vec_i32)value > last), (vec){ 0 } + (uint32_t)last, value);

    nan = (vec){ 0 } + (uint32_t)last;
    if (ieee)
        nan |= (1u << (M - 1)) | ((magnitude >> shift) & ((1u << M) - 1));
    value = choose((vec)((vec_i32)magnitude > 0x7f800000), nan, value);
    return value | sign;
}

INLINE vec f16_load(const void *p)
{
#if defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256(p));
#elif defined(__F16C__)
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128(p));
#else
    return small_decode(widen_u16(p), 5, 10, true);
#endif
}

INLINE vec f16_encode(struct pair v)
{
#if defined(__AVX512F__)
    __m256i low = _mm512_cvtps_ph((__m512)v.a, _MM_FROUND_TO_NEAREST_INT);
    __m256i high = _mm512_cvtps_ph((__m512)v.b, _MM_FROUND_TO_NEAREST_INT);

    return (vec)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
#elif defined(__F16C__)
    __m128i low = _mm256_cvtps_ph((__m256)v.a, _MM_FROUND_TO_NEAREST_INT);
    __m128i high = _mm256_cvtps_ph((__m256)v.b, _MM_FROUND_TO_NEAREST_INT);

    return (vec)_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
#else
    return narrow_u16(
        (struct pair){ small_encode(v.a, 5, 10, true), small_encode(v.b, 5, 10, true) });
#endif
}

/* ---- The order of halves ---- */

/*
 * 16-bit integers that are ordered as the halves' values are: -0 is below +0, and NaN is beyond
 * the infinities. A key's key is the half again.
 */
INLINE vec half_key(vec h)
{
    return h ^ (vec)(((vec_i16)h >> 15) & 0x7fff);
}

/* The least and the greatest of some keys, lane by lane. */
struct range {
    vec least, most;
};

INLINE struct range range_at(const void *p)
{
    const vec key = half_key(*(const vec_any *)p);

    return (struct range){ key, key };
}

INLINE struct range range_join(struct range l, struct range r)
{
#if defined(__AVX512F__)
    return (struct range){ (vec)_mm512_min_epi16((__m512i)l.least, (__m512i)r.least),
                           (vec)_mm512_max_epi16((__m512i)l.most, (__m512i)r.most) };
#elif defined(__AVX2__)
    return (struct range){ (vec)_mm256_min_epi16((__m256i)l.least, (__m256i)r.least),
                           (vec)_mm256_max_epi16((__m256i)l.most, (__m256i)r.most) };
#else
    return (struct range){
        choose((vec)((vec_i16)l.least < (vec_i16)r.least), l.least, r.least),
        choose((vec)((vec_i16)l.most > (vec_i16)r.most), l.most, r.most),
    };
#endif
}

/* Whether a NaN is among them. `infinity`: the type's, which is its own key. */
INLINE bool range_exceeds(struct range r, int16_t infinity)
{
    const vec_i16 beyond = ((vec_i16)r.most > infinity) | ((vec_i16)r.least < (int16_t)~infinity);

#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)beyond, (__m512i)beyond) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_epi8((__m256i)beyond) != 0;
#else
    const vec_u64 both = (vec_u64)beyond;

    return (both[0] | both[1]) != 0;
#endif
}

#endif
