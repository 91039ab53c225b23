#include "shared/kernels.h"

#include <string.h>

#include "shared/kernel_vectors.h"

/*
 * Compiled once per instruction set, with KERNEL_ROW its name. One always-inlined fold(), stamped
 * for every type, operator and number of sources: `type`, `op` and `n` are constants wherever they
 * are asked below.
 */
#define GROUP_MIN 4u
#define GROUP_MAX 8u   /* sources combined in registers, at most */
#define DEPTH     24u  /* partial results that may wait at once */
#define BLOCK     512u /* elements of a partial result: stays in cache */
#define OUTLINE   static __attribute__((noinline))

/* Of as many groups, and of the last one's sources, one for each bit of their number. */
_Static_assert(1ull * RANKS_MAX * RANKS_MAX / GROUP_MIN <= 1ull << (DEPTH - 2),
               "a partial result has a place");

INLINE bool is_narrow(enum dtype_id type)
{
    return type == DTYPE_F16 || type == DTYPE_BF16 || type == DTYPE_F8E4M3 || type == DTYPE_F8E5M2;
}

INLINE bool is_half(enum dtype_id type)
{
    return type == DTYPE_F16 || type == DTYPE_BF16;
}

INLINE bool is_small(enum dtype_id type)
{
    return is_narrow(type) && !is_half(type);
}

INLINE bool is_order(enum operator_id op)
{
    return op == OPERATOR_MIN || op == OPERATOR_MAX;
}

INLINE unsigned width_of(enum dtype_id type)
{
    switch (type) {
    case DTYPE_F64:
    case DTYPE_I64:
    case DTYPE_U64:
        return 8;
    case DTYPE_F16:
    case DTYPE_BF16:
    case DTYPE_I16:
    case DTYPE_U16:
        return 2;
    case DTYPE_I8:
    case DTYPE_U8:
    case DTYPE_F8E4M3:
    case DTYPE_F8E5M2:
        return 1;
    default:
        return 4;
    }
}

/* Bytes of one element in a buffer: an accumulator's where it is wide. */
INLINE unsigned stride_of(enum dtype_id type, bool wide)
{
    return wide && is_narrow(type) ? 4 : width_of(type);
}

/* Two vectors of each buffer: a cache line or more at once. Of f8 it is two of accumulators. */
INLINE unsigned strip_of(enum dtype_id type)
{
    return is_small(type) ? 2 * LANES : 2 * VEC_BYTES / width_of(type);
}

/* How many sources one loop combines: a power of two. Sums are what training waits for. */
INLINE unsigned group_of(enum dtype_id type, enum operator_id op)
{
    return op == OPERATOR_SUM && !is_small(type) ? GROUP_MAX : GROUP_MIN;
}

/* ---- Memory <-> accumulators ---- */

INLINE vec narrow_load(enum dtype_id type, const void *p)
{
    switch (type) {
    case DTYPE_F16:
        return f16_load(p);
    case DTYPE_BF16:
        return widen_u16(p) << 16;
    case DTYPE_F8E4M3:
        return small_decode(widen_u8(p), 4, 3, false);
    default:
        return small_decode(widen_u8(p), 5, 2, true);
    }
}

/*
 * `split`: the pair holds its even elements in a and its odd ones in b. For bf16 on both sides
 * that is two cheap operations a (little-endian) vector, where widening in order takes shuffles.
 */
INLINE struct pair load(enum dtype_id type, bool wide, bool split, const void *from)
{
    const uint8_t *p = from;

    if (split) {
        vec v = *(const vec_any *)p;

        return (struct pair){ v << 16, v & 0xffff0000 };
    }
    if (is_narrow(type) && !wide)
        return (struct pair){ narrow_load(type, p), narrow_load(type, p + LANES * width_of(type)) };
    return (struct pair){ *(const vec_any *)p, *(const vec_any *)(p + VEC_BYTES) };
}

/* Accumulators become what memory holds of them: once, however many destinations there are.
 * `clean`: of bf16, as bf16_encode_split() says. */
INLINE struct strip encode(enum dtype_id type, bool wide, bool split, bool clean, struct strip s)
{
    if (wide)
        return s;
    switch (type) {
    case DTYPE_F16:
        return (struct strip){ { f16_encode(s.low), f16_encode(s.high) }, s.high };
    case DTYPE_BF16:
        return (struct strip){ split ? bf16_encode_split(s, clean) : bf16_encode(s), s.high };
    case DTYPE_F8E4M3:
        return (struct strip){
            { small_encode(s.low.a, 4, 3, false), small_encode(s.low.b, 4, 3, false) }, s.high
        };
    case DTYPE_F8E5M2:
        return (struct strip){
            { small_encode(s.low.a, 5, 2, true), small_encode(s.low.b, 5, 2, true) }, s.high
        };
    default:
        return s;
    }
}

INLINE void store_pair(bool streamed, void *to, struct pair v)
{
    uint8_t *p = to;

    if (streamed) {
        stream(p, v.a);
        stream(p + VEC_BYTES, v.b);
    } else {
        *(vec_any *)p = v.a;
        *(vec_any *)(p + VEC_BYTES) = v.b;
    }
}

/* `streamed`: not of f8, whose pieces are small. */
INLINE void store(enum dtype_id type, bool wide, bool streamed, void *to, struct strip s)
{
    uint8_t *p = to;

    if (is_small(type) && !wide) {
        narrow_u8(p, s.low.a);
        narrow_u8(p + LANES, s.low.b);
        return;
    }
    store_pair(streamed, p, s.low);
    if (is_half(type) && wide)
        store_pair(streamed, p + 2 * VEC_BYTES, s.high);
}

/* ---- Operators ---- */

/* IEEE 754-2019 minimum and maximum: a NaN on either side stays, and -0 is below +0. */
#define FLOAT_COMBINE(T, a, b)                                                                     \
    switch (op) {                                                                                  \
    case OPERATOR_SUM:                                                                             \
        return (vec)((T)a + (T)b);                                                                 \
    case OPERATOR_PRODUCT:                                                                         \
        return (vec)((T)a * (T)b);                                                                 \
    case OPERATOR_MIN:                                                                             \
        r = choose((vec)((T)a < (T)b), a, b);                                                      \
        r = choose((vec)((T)a == (T)b), a | b, r);                                                 \
        return choose((vec)((T)a != (T)a), a, r);                                                  \
    default:                                                                                       \
        r = choose((vec)((T)a > (T)b), a, b);                                                      \
        r = choose((vec)((T)a == (T)b), a & b, r);                                                 \
        return choose((vec)((T)a != (T)a), a, r);                                                  \
    }

INLINE vec f32_combine(enum operator_id op, vec a, vec b)
{
    vec r;

    FLOAT_COMBINE(vec_f32, a, b)
}

INLINE vec f64_combine(enum operator_id op, vec a, vec b)
{
    vec r;

    FLOAT_COMBINE(vec_f64, a, b)
}

/* T holds the elements as they compare, U as they wrap. */
#define INTEGER_COMBINE(T, U, a, b)                                                                \
    switch (op) {                                                                                  \
    case OPERATOR_SUM:                                                                             \
        return (vec)((U)a + (U)b);                                                                 \
    case OPERATOR_PRODUCT:                                                                         \
        return (vec)((U)a * (U)b);                                                                 \
    case OPERATOR_MIN:                                                                             \
        return choose((vec)((T)a < (T)b), a, b);                                                   \
    case OPERATOR_MAX:                                                                             \
        return choose((vec)((T)a > (T)b), a, b);                                                   \
    case OPERATOR_AND:                                                                             \
        return a & b;                                                                              \
    case OPERATOR_OR:                                                                              \
        return a | b;                                                                              \
    default:                                                                                       \
        return a ^ b;                                                                              \
    }

INLINE vec integer_combine(enum dtype_id type, enum operator_id op, vec a, vec b)
{
    switch (type) {
    case DTYPE_I8:
        INTEGER_COMBINE(vec_i8, vec_u8, a, b)
    case DTYPE_I16:
        INTEGER_COMBINE(vec_i16, vec_u16, a, b)
    case DTYPE_I32:
        INTEGER_COMBINE(vec_i32, vec_u32, a, b)
    case DTYPE_I64:
        INTEGER_COMBINE(vec_i64, vec_u64, a, b)
    case DTYPE_U8:
        INTEGER_COMBINE(vec_u8, vec_u8, a, b)
    case DTYPE_U16:
        INTEGER_COMBINE(vec_u16, vec_u16, a, b)
    case DTYPE_U32:
        INTEGER_COMBINE(vec_u32, vec_u32, a, b)
    default:
        INTEGER_COMBINE(vec_u64, vec_u64, a, b)
    }
}

INLINE vec combine(enum dtype_id type, enum operator_id op, vec a, vec b)
{
    if (type == DTYPE_F64)
        return f64_combine(op, a, b);
    if (type == DTYPE_F32 || is_narrow(type))
        return f32_combine(op, a, b);
    return integer_combine(type, op, a, b);
}

/* In every lane: what a mean divides by, or its inverse, which a power of two makes exact. */
struct divisor {
    vec value;
    bool none, inverse;
};

INLINE struct divisor divisor_of(enum dtype_id type, uint32_t n)
{
    const bool none = n == 0, inverse = !none && (n & (n - 1)) == 0;
    const double value = inverse ? 1 / (double)n : (double)n;

    if (type == DTYPE_F64)
        return (struct divisor){ (vec)((vec_f64){ 0 } + value), none, inverse };
    return (struct divisor){ (vec)((vec_f32){ 0 } + (float)value), none, inverse };
}

/* Both ways give the same bits. A product takes a fraction of a division's time. */
INLINE vec divide(enum dtype_id type, vec v, struct divisor by)
{
    if (by.inverse)
        return combine(type, OPERATOR_PRODUCT, v, by.value);
    if (type == DTYPE_F64)
        return (vec)((vec_f64)v / (vec_f64)by.value);
    return (vec)((vec_f32)v / (vec_f32)by.value);
}

INLINE bool has_mean(enum dtype_id type, enum operator_id op)
{
    return op == OPERATOR_SUM && (type == DTYPE_F64 || type == DTYPE_F32 || is_narrow(type));
}

INLINE struct strip divide_strip(enum dtype_id type, struct strip s, struct divisor by)
{
    return (struct strip){ { divide(type, s.low.a, by), divide(type, s.low.b, by) },
                           { divide(type, s.high.a, by), divide(type, s.high.b, by) } };
}

/* ---- The loop ---- */

INLINE struct pair join(enum dtype_id type, enum operator_id op, struct pair l, struct pair r)
{
    return (struct pair){ combine(type, op, l.a, r.a), combine(type, op, l.b, r.b) };
}

/* The canonical tree over n <= GROUP_MAX sources, at `offset` bytes of each. */
INLINE struct pair tree(enum dtype_id type, enum operator_id op, unsigned n, bool wide, bool split,
                        const uint8_t *const *src, uint64_t offset)
{
#define T1(i) load(type, wide, split, src[i] + offset)
#define T2(i) join(type, op, T1(i), T1(i + 1))
#define T4(i) join(type, op, T2(i), T2(i + 2))
    switch (n) {
    case 1:
        return T1(0);
    case 2:
        return T2(0);
    case 3:
        return join(type, op, T2(0), T1(2));
    case 4:
        return T4(0);
    case 5:
        return join(type, op, T4(0), T1(4));
    case 6:
        return join(type, op, T4(0), T2(4));
    case 7:
        return join(type, op, T4(0), join(type, op, T2(4), T1(6)));
    default:
        return join(type, op, T4(0), T4(4));
    }
#undef T1
#undef T2
#undef T4
}

/* One after the other: the accumulators of both at once would not fit the registers. */
INLINE struct strip combine_strip(enum dtype_id type, enum operator_id op, unsigned n, bool wide,
                                  bool split, const uint8_t *const *src, uint64_t offset)
{
    struct strip s;

    s.low = tree(type, op, n, wide, split, src, offset);
    s.high = s.low;
    if (is_half(type))
        s.high = tree(type, op, n, wide, split, src, offset + 2 * LANES * stride_of(type, wide));
    return s;
}

/* Of what n sources have at `offset`. */
INLINE struct range range_of(unsigned n, const uint8_t *const *src, uint64_t offset)
{
    struct range r = range_at(src[0] + offset);

    for (unsigned i = 1; i < n; i++)
        r = range_join(r, range_at(src[i] + offset));
    return r;
}

/* Halves need no widening to be compared. False where there is a NaN: that is for accumulators. */
INLINE bool order_halves(enum dtype_id type, enum operator_id op, unsigned n,
                         const uint8_t *const *src, uint64_t offset, struct pair *ret)
{
    const struct range a = range_of(n, src, offset), b = range_of(n, src, offset + VEC_BYTES);
    const int16_t infinity = type == DTYPE_F16 ? 0x7c00 : 0x7f80;

    if (__builtin_expect(range_exceeds(range_join(a, b), infinity), false))
        return false;
    *ret = op == OPERATOR_MIN ? (struct pair){ half_key(a.least), half_key(b.least) }
                              : (struct pair){ half_key(a.most), half_key(b.most) };
    return true;
}

/* A strip at `offset` bytes of each source, as memory is to hold it. */
INLINE struct strip reduce_strip(enum dtype_id type, enum operator_id op, unsigned n, bool src_wide,
                                 bool dst_wide, const uint8_t *const *src, uint64_t offset,
                                 struct divisor divisor)
{
    const bool split = type == DTYPE_BF16 && !src_wide && !dst_wide;
    const bool clean = n > 1 && (op == OPERATOR_SUM || op == OPERATOR_PRODUCT);
    struct strip s;

    if (is_half(type) && is_order(op) && !src_wide && !dst_wide &&
        order_halves(type, op, n, src, offset, &s.low)) {
        s.high = s.low;
        return s;
    }
    s = combine_strip(type, op, n, src_wide, split, src, offset);
    if (has_mean(type, op) && !divisor.none)
        s = divide_strip(type, s, divisor);
    return encode(type, dst_wide, split, clean, s);
}

/* Where results go. The loop over destinations vanishes where there are as many as sources. */
enum outlet { OUTLET_ANY, OUTLET_EACH, OUTLET_STREAM };

/* Whole strips only: the first `count` elements, count a multiple of the strip. */
INLINE void fold(enum dtype_id type, enum operator_id op, unsigned n, bool src_wide, bool dst_wide,
                 enum outlet outlet, const struct kernel_args *args, uint64_t count)
{
    const unsigned from = stride_of(type, src_wide), to = stride_of(type, dst_wide);
    const bool each = outlet == OUTLET_EACH, streamed = outlet == OUTLET_STREAM;
    /* asked once: for all the compiler knows, a store could change them */
    const uint32_t ndst = each ? n : args->ndst;
    const struct divisor divisor = divisor_of(type, args->divisor);
    const uint64_t end = args->first + count;
    const uint8_t *src[GROUP_MAX];
    uint8_t *dst[GROUP_MAX];

    for (unsigned i = 0; i < n; i++) {
        src[i] = args->src[i];
        if (each)
            dst[i] = args->dst[i];
    }

    for (uint64_t i = args->first; i < end; i += strip_of(type)) {
        const struct strip s =
            reduce_strip(type, op, n, src_wide, dst_wide, src, i * from, divisor);

        for (uint32_t d = 0; d < ndst; d++) {
            uint8_t *out = each ? dst[d] : args->dst[d];

            store(type, dst_wide, streamed, out + i * to, s);
        }
    }
    if (streamed)
        stream_end();
}

INLINE void fold_any(enum dtype_id type, enum operator_id op, bool src_wide, bool dst_wide,
                     enum outlet outlet, const struct kernel_args *args, uint64_t count)
{
    switch (args->nsrc) {
#define FOLD(n)                                                                                    \
    case n:                                                                                        \
        if (n <= group_of(type, op))                                                               \
            fold(type, op, n, src_wide, dst_wide, outlet, args, count);                            \
        break;
        FOLD(1)
        FOLD(2)
        FOLD(3)
        FOLD(4)
        FOLD(5)
        FOLD(6)
        FOLD(7)
        FOLD(8)
#undef FOLD
    }
}

static bool can_stream(const struct kernel_args *args, unsigned to)
{
    for (uint32_t d = 0; d < args->ndst; d++)
        if (((uintptr_t)args->dst[d] + args->first * to) % VEC_BYTES != 0)
            return false;
    return args->stream;
}

/* What is neither wide: sums, and so copies, are worth a loop for every outlet. */
INLINE void fold_plain(enum dtype_id type, enum operator_id op, const struct kernel_args *args,
                       uint64_t count)
{
    if (op == OPERATOR_SUM && can_stream(args, width_of(type)))
        fold_any(type, op, false, false, OUTLET_STREAM, args, count);
    else if (op == OPERATOR_SUM && args->ndst == args->nsrc)
        fold_any(type, op, false, false, OUTLET_EACH, args, count);
    else
        fold_any(type, op, false, false, OUTLET_ANY, args, count);
}

/* Writes `bytes` bytes of a result to every destination, at `offset`. */
static void spread(const struct kernel_args *args, uint64_t offset, const void *result,
                   size_t bytes)
{
    for (uint32_t d = 0; d < args->ndst; d++)
        memcpy((uint8_t *)args->dst[d] + offset, result, bytes);
}

/* What is left behind the last whole strip: padded, it is one more. nsrc <= GROUP_MAX. */
OUTLINE void reduce_tail(kernel_fn kernel, const struct kernel_args *args, unsigned from,
                         unsigned to, unsigned strip, uint64_t done)
{
    uint8_t in[GROUP_MAX][4 * VEC_BYTES], out[4 * VEC_BYTES]; /* room for a wide strip of halves */
    const void *src[GROUP_MAX];
    uint64_t first = args->first + done, count = args->count - done;
    struct kernel_args padded = *args;

    for (uint32_t i = 0; i < args->nsrc; i++) {
        memset(in[i], 0, strip * from);
        memcpy(in[i], (const uint8_t *)args->src[i] + first * from, count * from);
        src[i] = in[i];
    }
    padded.src = src;
    padded.dst = (void *[]){ out };
    padded.ndst = 1;
    padded.first = 0;
    padded.count = strip;
    padded.stream = false;
    kernel(&padded);
    spread(args, first * to, out, count * to);
}

/* Partial results over some sources: accumulators, not rounded. The last are combined first. */
struct stack {
    _Alignas(64) uint8_t block[DEPTH][BLOCK * sizeof(double)];
    unsigned top;
};

/* The canonical tree over `n` sources from `src` on, as a block of its own. */
static void push_tree(kernel_fn kernel, const struct kernel_args *args, const void *const *src,
                      uint32_t n, bool wide, unsigned from, struct stack *stack)
{
    const void *here[GROUP_MAX];
    void *block = stack->block[stack->top++];

    for (uint32_t i = 0; i < n; i++)
        here[i] = (const uint8_t *)src[i] + args->first * from;
    kernel(&(struct kernel_args){
        .src = here,
        .dst = &block,
        .nsrc = n,
        .ndst = 1,
        .count = args->count,
        .src_wide = wide,
        .dst_wide = true,
    });
}

/* The two last blocks become one: left op right. */
static void combine_last(kernel_fn kernel, struct stack *stack, uint64_t count)
{
    void *left = stack->block[stack->top - 2], *right = stack->block[stack->top - 1];

    stack->top--;
    kernel(&(struct kernel_args){
        .src = (const void *[]){ left, right },
        .dst = &left,
        .nsrc = 2,
        .ndst = 1,
        .count = count,
        .src_wide = true,
        .dst_wide = true,
    });
}

/* What the i-th of a row of blocks completes: one for each bit that is set below the lowest that is
 * not, since the tree splits at powers of two. */
static void carry(kernel_fn kernel, struct stack *stack, uint32_t i, uint64_t count)
{
    for (; i & 1; i >>= 1)
        combine_last(kernel, stack, count);
}

/*
 * More sources than one loop combines: the tree over what the loop does is the tree over sources,
 * since a split of more than `most` sources, a power of two, falls on a multiple of it.
 */
static void push_group(kernel_fn kernel, const struct kernel_args *args, const void *const *src,
                       const struct source_group *g, unsigned most, unsigned from,
                       struct stack *stack)
{
    const unsigned base = stack->top;

    for (uint32_t i = 0; i < g->nsrc; i += most) {
        push_tree(kernel, args, src + i, MIN(g->nsrc - i, most), g->wide, from, stack);
        carry(kernel, stack, i / most, args->count);
    }
    while (stack->top > base + 1)
        combine_last(kernel, stack, args->count);
}

/* Bytes that an element, and an accumulator, has in memory. */
struct widths {
    unsigned narrow, wide;
};

static void reduce_block(kernel_fn kernel, const struct kernel_args *args, unsigned most,
                         struct widths widths)
{
    const struct source_group all = { args->nsrc, args->src_wide };
    const struct source_group *groups = args->ngroups ? args->groups : &all;
    const unsigned to = args->dst_wide ? widths.wide : widths.narrow;
    const void *const *src = args->src;
    _Alignas(64) uint8_t result[BLOCK * sizeof(double)];
    struct stack stack;

    stack.top = 0;
    for (uint32_t i = 0; i < MAX(args->ngroups, 1); src += groups[i++].nsrc) {
        push_group(kernel, args, src, &groups[i], most,
                   groups[i].wide ? widths.wide : widths.narrow, &stack);
        carry(kernel, &stack, i, args->count);
    }
    while (stack.top > 1)
        combine_last(kernel, &stack, args->count);

    kernel(&(struct kernel_args){
        .src = (const void *[]){ stack.block[0] },
        .dst = (void *[]){ result },
        .nsrc = 1,
        .ndst = 1,
        .count = args->count,
        .divisor = args->divisor,
        .src_wide = true,
        .dst_wide = args->dst_wide,
    });
    spread(args, args->first * to, result, args->count * to);
}

OUTLINE void reduce_blocks(kernel_fn kernel, const struct kernel_args *args, unsigned most,
                           struct widths widths)
{
    struct kernel_args block = *args;

    for (uint64_t done = 0; done < args->count; done += BLOCK) {
        block.first = args->first + done;
        block.count = MIN(args->count - done, BLOCK);
        reduce_block(kernel, &block, most, widths);
    }
}

/* ---- The row ---- */

/* A kernel: picks the loop that was stamped for these arguments. `self` is the kernel itself. */
INLINE void reduce(enum dtype_id type, enum operator_id op, kernel_fn self,
                   const struct kernel_args *args)
{
    const unsigned from = stride_of(type, args->src_wide), to = stride_of(type, args->dst_wide);
    const uint64_t whole = args->count - args->count % strip_of(type);

    if (args->nsrc > group_of(type, op) || args->ngroups) {
        reduce_blocks(self, args, group_of(type, op),
                      (struct widths){ stride_of(type, false), stride_of(type, true) });
        return;
    }

    if (is_narrow(type) && args->src_wide && args->dst_wide) {
        KERNEL_ROW.reduce[DTYPE_F32][op](args);
        return;
    }
    if (is_narrow(type) && args->src_wide)
        fold_any(type, op, true, false, OUTLET_ANY, args, whole);
    else if (is_narrow(type) && args->dst_wide)
        fold_any(type, op, false, true, OUTLET_ANY, args, whole);
    else
        fold_plain(type, op, args, whole);

    if (whole < args->count)
        reduce_tail(self, args, from, to, strip_of(type), whole);
}

#define KERNEL(ID, name, OP, oname)                                                                \
    static void name##_##oname(const struct kernel_args *args)                                     \
    {                                                                                              \
        reduce(DTYPE_##ID, OPERATOR_##OP, name##_##oname, args);                                   \
    }
#define KERNELS_ORDER(ID, name)                                                                    \
    KERNEL(ID, name, MIN, min)                                                                     \
    KERNEL(ID, name, MAX, max)
#define KERNELS_FLOAT(ID, name)                                                                    \
    KERNELS_ORDER(ID, name)                                                                        \
    KERNEL(ID, name, SUM, sum)                                                                     \
    KERNEL(ID, name, PRODUCT, product)
#define KERNELS_SIGNED(ID, name)   KERNELS_ORDER(ID, name)
#define KERNELS_UNSIGNED(ID, name) KERNELS_ORDER(ID, name)
#define KERNELS_OPAQUE(ID, name)
#define KERNELS(ID, name, number, width, class, acc) KERNELS_##class(ID, name)

DTYPE_LIST(KERNELS)

/* Integers of a width wrap alike. */
#define KERNELS_WRAP(ID, name)                                                                     \
    KERNEL(ID, name, SUM, sum)                                                                     \
    KERNEL(ID, name, PRODUCT, product)                                                             \
    KERNEL(ID, name, AND, and)                                                                     \
    KERNEL(ID, name, OR, or)                                                                       \
    KERNEL(ID, name, XOR, xor)

KERNELS_WRAP(U8, wrap1)
KERNELS_WRAP(U16, wrap2)
KERNELS_WRAP(U32, wrap4)
KERNELS_WRAP(U64, wrap8)

#define SLOTS_FLOAT(name, width)                                                                   \
    [OPERATOR_SUM] = name##_sum, [OPERATOR_PRODUCT] = name##_product, [OPERATOR_MIN] = name##_min, \
    [OPERATOR_MAX] = name##_max, [OPERATOR_MEAN] = name##_sum,
#define SLOTS_SIGNED(name, width)                                                                  \
    [OPERATOR_SUM] = wrap##width##_sum, [OPERATOR_PRODUCT] = wrap##width##_product,                \
    [OPERATOR_MIN] = name##_min, [OPERATOR_MAX] = name##_max, [OPERATOR_AND] = wrap##width##_and,  \
    [OPERATOR_OR] = wrap##width##_or, [OPERATOR_XOR] = wrap##width##_xor,
#define SLOTS_UNSIGNED(name, width) SLOTS_SIGNED(name, width)
#define SLOTS_OPAQUE(name, width)
#define SLOTS(ID, name, number, width, class, acc) [number] = { SLOTS_##class(name, width) },

const struct kernel_row KERNEL_ROW = {
    .name = KERNEL_NAME,
    .supported = KERNEL_SUPPORTED,
    .reduce = { DTYPE_LIST(SLOTS) },
};
