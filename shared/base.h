/* Words every file uses: cleanup, checked arithmetic, sizes. No I/O, no state. */
#ifndef SHARED_BASE_H
#define SHARED_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RANKS_MAX 4096u /* ranks of one communicator */
#define AXES_MAX  8u    /* axes of one tensor */

/* <sys/param.h>, which <uv.h> brings along, has the same two */
#undef MIN
#undef MAX

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b)     ((a) < (b) ? (a) : (b))
#define MAX(a, b)     ((a) > (b) ? (a) : (b))

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/* Runs f(&variable) when the variable leaves its scope. */
#define _cleanup_(f)       __attribute__((cleanup(f)))
#define _printf_(fmt, arg) __attribute__((format(printf, fmt, arg)))

/* Hands a pointer on: returns *p and leaves NULL behind, so that its cleanup finds nothing. */
#define steal(p)                                                                                   \
    ({                                                                                             \
        __typeof__(*(p)) steal_value_ = *(p);                                                      \
        *(p) = NULL;                                                                               \
        steal_value_;                                                                              \
    })

/* Makes f##p(T **), the form that _cleanup_ wants, of T *f(T *). */
#define DEFINE_CLEANUP(type, f)                                                                    \
    static inline void f##p(type *ptr)                                                             \
    {                                                                                              \
        if (*ptr)                                                                                  \
            f(*ptr);                                                                               \
    }

/* a * b and a + b in 64 bits; false, with *ret untouched, where the result does not fit. */
static inline bool mul_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t v;

    if (__builtin_mul_overflow(a, b, &v))
        return false;
    *ret = v;
    return true;
}

static inline bool add_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t v;

    if (__builtin_add_overflow(a, b, &v))
        return false;
    *ret = v;
    return true;
}

static inline uint64_t div_up_u64(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

#endif
