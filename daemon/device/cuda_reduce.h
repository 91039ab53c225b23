/*
 * What the kernels do, for one thread of a grid of any size: the arithmetic of struct task, to the
 * bit as kernels.c. CUDA C++ for cuda_kernels.cu; C++ for a test that runs it on a CPU.
 *
 * A buffer is read and written in units of some elements, each by one thread and all of it read
 * before it is written, so that a destination may be a source. A unit is a vector of 16 bytes, a
 * word, or one element, as far as the addresses of all buffers allow.
 */
#ifndef DAEMON_DEVICE_CUDA_REDUCE_H
#define DAEMON_DEVICE_CUDA_REDUCE_H

#include <string.h>

#include "daemon/device/cuda_args.h"
#include "daemon/device/cuda_types.h"

#define VECTOR_BYTES 16u
#define LEAF         4u  /* sources that a thread reads before it combines any */
#define SOURCES_FEW  16u /* that are read as vectors */
#define DEPTH        24u /* results that may wait where there are more */

static_assert(SOURCES_FEW == 4 * LEAF, "vector_reduce() is the tree over four leaves");
/* one for each bit of a number of leaves, and of a number of groups */
static_assert((CUDA_SOURCES_MAX / LEAF + 1) * (CUDA_GROUPS_MAX + 1ull) <= 1ull << DEPTH,
              "a partial result has a place");

CUDA_FUNCTION uint64_t cuda_pointer(const cuda_args &a, uint32_t i)
{
    return a.pointer_table ? a.pointer_table[i] : a.pointers[i];
}

CUDA_FUNCTION cuda_group cuda_group_at(const cuda_args &a, uint32_t i)
{
    return a.group_table ? a.group_table[i] : a.groups[i];
}

/* ---- Some elements of a buffer <-> accumulators ---- */

/* `L` elements of T, as accumulators: one each, or all packed in one word. */
template <class T, unsigned L> struct value {
    static constexpr unsigned n = T::packed ? 1 : L;
    typename T::part part[n];
};

template <class T, unsigned L> CUDA_FUNCTION value<T, L> value_widen(typename T::word word)
{
    value<T, L> v;

    if constexpr (T::packed) {
        v.part[0] = word;
    } else {
        CUDA_UNROLL
        for (unsigned i = 0; i < L; i++)
            v.part[i] = T::widen(word >> 8 * T::width * i);
    }
    return v;
}

template <class T, unsigned L> CUDA_FUNCTION typename T::word value_narrow(const value<T, L> &v)
{
    typename T::word word = 0;

    if constexpr (T::packed) {
        word = v.part[0];
    } else {
        CUDA_UNROLL
        for (unsigned i = 0; i < L; i++)
            word |= T::narrow(v.part[i]) << 8 * T::width * i;
    }
    return word;
}

template <class T, cuda_operator OP, unsigned L>
CUDA_FUNCTION value<T, L> value_combine(const value<T, L> &a, const value<T, L> &b)
{
    value<T, L> v;

    CUDA_UNROLL
    for (unsigned i = 0; i < v.n; i++)
        v.part[i] = T::template combine<OP>(a.part[i], b.part[i]);
    return v;
}

template <class T, cuda_operator OP, unsigned L>
CUDA_FUNCTION void value_divide(value<T, L> *v, uint32_t divisor)
{
    if constexpr (OP == CUDA_SUM && !T::packed) {
        if (!divisor)
            return;
        CUDA_UNROLL
        for (unsigned i = 0; i < v->n; i++)
            v->part[i] /= (typename T::part)divisor;
    }
}

/* ---- Any number of sources, in groups: one element ---- */

template <class T, bool WIDE> CUDA_FUNCTION value<T, 1> element_load(uint64_t pointer, uint64_t at)
{
    if constexpr (WIDE) {
        value<T, 1> v;

        memory_load<4>(pointer + at * 4, v.part);
        return v;
    } else {
        typename T::word word = 0;

        memory_load<T::width>(pointer + at * T::width, &word);
        return value_widen<T, 1>(word);
    }
}

template <class T>
CUDA_FUNCTION void element_store(const cuda_args &a, uint64_t at, const value<T, 1> &v)
{
    const typename T::word word = value_narrow<T, 1>(v);

    CUDA_NO_UNROLL
    for (uint32_t d = 0; d < a.ndst; d++) {
        const uint64_t to = cuda_pointer(a, a.nsrc + d);

        if (T::narrow_float && a.dst_wide)
            memory_store<4>(to + at * 4, v.part);
        else
            memory_store<T::width>(to + at * T::width, &word);
    }
}

/* The tree over `n` <= LEAF sources from the s-th on. */
template <class T, cuda_operator OP, bool WIDE>
CUDA_FUNCTION value<T, 1> element_leaf(const cuda_args &a, uint32_t s, uint32_t n, uint64_t at)
{
    value<T, 1> v[LEAF] = {};

    CUDA_UNROLL
    for (unsigned i = 0; i < LEAF; i++)
        if (i < n)
            v[i] = element_load<T, WIDE>(cuda_pointer(a, s + i), at);
    if (n > 1)
        v[0] = value_combine<T, OP, 1>(v[0], v[1]);
    if (n > 3)
        v[2] = value_combine<T, OP, 1>(v[2], v[3]);
    return n > 2 ? value_combine<T, OP, 1>(v[0], v[2]) : v[0];
}

/*
 * Partial results that wait. The i-th of a row, from 0, completes one for each bit that is set
 * below the lowest that is not, since the tree splits at powers of two.
 */
template <class T, cuda_operator OP> struct waiting {
    value<T, 1> stack[DEPTH];
    unsigned top;

    CUDA_METHOD void add(uint32_t i, value<T, 1> v)
    {
        CUDA_NO_UNROLL
        for (; i & 1; i >>= 1)
            v = value_combine<T, OP, 1>(stack[--top], v);
        stack[top++] = v;
    }

    /* All above the first `base` become one. */
    CUDA_METHOD value<T, 1> total(unsigned base)
    {
        value<T, 1> v = stack[--top];

        CUDA_NO_UNROLL
        while (top > base)
            v = value_combine<T, OP, 1>(stack[--top], v);
        return v;
    }
};

template <class T, cuda_operator OP>
CUDA_FUNCTION void element_reduce(const cuda_args &a, uint64_t at)
{
    waiting<T, OP> waiting;
    value<T, 1> v;
    uint32_t s = 0;

    waiting.top = 0;
    CUDA_NO_UNROLL
    for (uint32_t g = 0; g < a.ngroups; g++) {
        const cuda_group group = cuda_group_at(a, g);
        const unsigned base = waiting.top;

        CUDA_NO_UNROLL
        for (uint32_t i = 0; i < group.nsrc; i += LEAF) {
            if (T::narrow_float && group.wide)
                v = element_leaf<T, OP, T::narrow_float>(a, s + i, group.nsrc - i, at);
            else
                v = element_leaf<T, OP, false>(a, s + i, group.nsrc - i, at);
            waiting.add(i / LEAF, v);
        }
        v = waiting.total(base);
        waiting.add(g, v);
        s += group.nsrc;
    }
    v = waiting.total(0);
    value_divide<T, OP, 1>(&v, a.divisor);
    element_store<T>(a, at, v);
}

/* ---- Few sources, all of the element's type: a vector, in registers ---- */

template <class T> struct vector {
    static constexpr unsigned nwords = VECTOR_BYTES / sizeof(typename T::word);
    static constexpr unsigned lanes = sizeof(typename T::word) / T::width; /* of a word */
    static constexpr unsigned elements = VECTOR_BYTES / T::width;
    value<T, lanes> word[nwords];
};

template <class T, cuda_operator OP>
CUDA_FUNCTION vector<T> vector_combine(const vector<T> &a, const vector<T> &b)
{
    vector<T> v;

    CUDA_UNROLL
    for (unsigned w = 0; w < v.nwords; w++)
        v.word[w] = value_combine<T, OP, v.lanes>(a.word[w], b.word[w]);
    return v;
}

template <class T> CUDA_FUNCTION vector<T> vector_widen(const typename T::word *word)
{
    vector<T> v;

    CUDA_UNROLL
    for (unsigned w = 0; w < v.nwords; w++)
        v.word[w] = value_widen<T, v.lanes>(word[w]);
    return v;
}

/* The tree over `n` <= LEAF sources from the s-th on. */
template <class T, cuda_operator OP>
CUDA_FUNCTION vector<T> vector_leaf(const cuda_args &a, uint32_t s, uint32_t n, uint64_t at)
{
    typename T::word word[LEAF][vector<T>::nwords] = {};
    vector<T> v, right;

    CUDA_UNROLL
    for (unsigned i = 0; i < LEAF; i++)
        if (i < n)
            memory_load<VECTOR_BYTES>(a.pointers[s + i] + at * T::width, word[i]);
    v = vector_widen<T>(word[0]);
    if (n > 1)
        v = vector_combine<T, OP>(v, vector_widen<T>(word[1]));
    if (n > 2) {
        right = vector_widen<T>(word[2]);
        if (n > 3)
            right = vector_combine<T, OP>(right, vector_widen<T>(word[3]));
        v = vector_combine<T, OP>(v, right);
    }
    return v;
}

template <class T>
CUDA_FUNCTION void vector_store(const cuda_args &a, uint64_t at, const vector<T> &v)
{
    typename T::word out[vector<T>::nwords];

    if constexpr (T::narrow_float) {
        if (a.dst_wide) {
            constexpr unsigned bytes = sizeof(v.word), step = VECTOR_BYTES / sizeof(v.word[0]);

            CUDA_NO_UNROLL
            for (uint32_t d = 0; d < a.ndst; d++) {
                const uint64_t to = a.pointers[a.nsrc + d] + at * 4;

                CUDA_UNROLL
                for (unsigned i = 0; i < bytes / VECTOR_BYTES; i++)
                    memory_store<VECTOR_BYTES>(to + i * VECTOR_BYTES, &v.word[i * step]);
            }
            return;
        }
    }
    CUDA_UNROLL
    for (unsigned w = 0; w < v.nwords; w++)
        out[w] = value_narrow<T, v.lanes>(v.word[w]);
    CUDA_NO_UNROLL
    for (uint32_t d = 0; d < a.ndst; d++)
        memory_store<VECTOR_BYTES>(a.pointers[a.nsrc + d] + at * T::width, out);
}

template <class T, cuda_operator OP>
CUDA_FUNCTION void vector_reduce(const cuda_args &a, uint64_t at)
{
    vector<T> v = {}, left = {};

    CUDA_NO_UNROLL
    for (uint32_t i = 0; i < a.nsrc; i += LEAF) {
        const vector<T> leaf = vector_leaf<T, OP>(a, i, a.nsrc - i, at);

        if (i % (2 * LEAF)) {
            v = vector_combine<T, OP>(v, leaf);
        } else {
            left = v;
            v = leaf;
        }
    }
    if (a.nsrc > 2 * LEAF)
        v = vector_combine<T, OP>(left, v);
    CUDA_UNROLL
    for (unsigned w = 0; w < v.nwords; w++)
        value_divide<T, OP, v.lanes>(&v.word[w], a.divisor);
    vector_store<T>(a, at, v);
}

/* ---- Head, body, tail ---- */

/* How many elements lie before a buffer's first vector: `head`, modulo `every`. */
struct alignment {
    uint32_t head, every;
};

template <class T> CUDA_FUNCTION alignment alignment_of(uint64_t pointer, bool wide, uint64_t first)
{
    const bool large = T::narrow_float && wide;
    const uint64_t index = large ? pointer / 4 : pointer / T::width;
    const uint32_t every = large ? VECTOR_BYTES / 4 : VECTOR_BYTES / T::width;

    return { (uint32_t)(0 - (index + first)) & (every - 1), every };
}

/* Whether all buffers have vectors of the same elements; then *ret is how many lie before them. */
template <class T> CUDA_FUNCTION bool vectors_meet(const cuda_args &a, uint32_t *ret)
{
    const alignment first = alignment_of<T>(a.pointers[0], false, a.first);
    bool meet = true;

    CUDA_NO_UNROLL
    for (uint32_t i = 1; i < a.nsrc + a.ndst; i++) {
        const alignment b = alignment_of<T>(a.pointers[i], i >= a.nsrc && a.dst_wide, a.first);

        meet = meet && ((first.head ^ b.head) & (b.every - 1)) == 0;
    }
    *ret = first.head;
    return meet;
}

template <class T> CUDA_FUNCTION bool few(const cuda_args &a)
{
    return a.nsrc <= SOURCES_FEW && !a.pointer_table && a.ngroups == 1 &&
           !(T::narrow_float && cuda_group_at(a, 0).wide);
}

/* As the thread-th of `nthreads` of a grid. */
template <class T, cuda_operator OP>
CUDA_FUNCTION void cuda_reduce(const cuda_args &a, uint64_t thread, uint64_t nthreads)
{
    constexpr unsigned elements = vector<T>::elements;
    uint64_t body = 0; /* elements */
    uint32_t head = 0;

    if (few<T>(a) && vectors_meet<T>(a, &head) && head < a.count) {
        body = (a.count - head) / elements * elements;
        CUDA_NO_UNROLL
        for (uint64_t i = thread * elements; i < body; i += nthreads * elements)
            vector_reduce<T, OP>(a, a.first + head + i);
    }
    CUDA_NO_UNROLL
    for (uint64_t i = thread; i < a.count - body; i += nthreads)
        element_reduce<T, OP>(a, a.first + (i < head ? i : i + body));
}

/* ---- Copies ---- */

#define COPY_UNITS 4u /* that a thread reads before it writes any */

/* `units` units of BYTES bytes, from byte `from` on. */
template <unsigned BYTES>
CUDA_FUNCTION void units_copy(const cuda_args &a, uint64_t from, uint64_t units, uint64_t thread,
                              uint64_t nthreads)
{
    const uint64_t src = cuda_pointer(a, 0) + from;
    struct {
        uint8_t byte[BYTES];
    } v[COPY_UNITS];

    CUDA_NO_UNROLL
    for (uint64_t u = thread; u < units; u += COPY_UNITS * nthreads) {
        CUDA_UNROLL
        for (unsigned i = 0; i < COPY_UNITS; i++)
            if (u + i * nthreads < units)
                memory_load<BYTES>(src + (u + i * nthreads) * BYTES, &v[i]);
        CUDA_NO_UNROLL
        for (uint32_t d = 0; d < a.ndst; d++) {
            const uint64_t dst = cuda_pointer(a, 1 + d) + from;

            if (dst == src)
                continue;
            CUDA_UNROLL
            for (unsigned i = 0; i < COPY_UNITS; i++)
                if (u + i * nthreads < units)
                    memory_store<BYTES>(dst + (u + i * nthreads) * BYTES, &v[i]);
        }
    }
}

CUDA_FUNCTION void byte_copy(const cuda_args &a, uint64_t at)
{
    uint8_t byte;

    memory_load<1>(cuda_pointer(a, 0) + at, &byte);
    CUDA_NO_UNROLL
    for (uint32_t d = 0; d < a.ndst; d++)
        if (cuda_pointer(a, 1 + d) != cuda_pointer(a, 0))
            memory_store<1>(cuda_pointer(a, 1 + d) + at, &byte);
}

CUDA_FUNCTION void cuda_copy(const cuda_args &a, uint64_t thread, uint64_t nthreads)
{
    const uint64_t src = cuda_pointer(a, 0);
    uint64_t differ = 0, head, body = 0; /* bytes */
    uint32_t bytes = VECTOR_BYTES;

    CUDA_NO_UNROLL
    for (uint32_t d = 0; d < a.ndst; d++)
        differ |= src ^ cuda_pointer(a, 1 + d);
    while (differ & (bytes - 1))
        bytes /= 2;

    head = (0 - (src + a.first)) & (bytes - 1);
    if (head < a.count)
        body = (a.count - head) & ~(uint64_t)(bytes - 1);
    switch (bytes) {
    case 16:
        units_copy<16>(a, a.first + head, body / 16, thread, nthreads);
        break;
    case 8:
        units_copy<8>(a, a.first + head, body / 8, thread, nthreads);
        break;
    case 4:
        units_copy<4>(a, a.first + head, body / 4, thread, nthreads);
        break;
    case 2:
        units_copy<2>(a, a.first + head, body / 2, thread, nthreads);
        break;
    default:
        units_copy<1>(a, a.first + head, body, thread, nthreads);
    }
    CUDA_NO_UNROLL
    for (uint64_t i = thread; i < a.count - body; i += nthreads)
        byte_copy(a, a.first + (i < head ? i : i + body));
}

#endif
