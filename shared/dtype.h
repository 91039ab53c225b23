/* Element types: one row each. Loops, kernels, wire and tests all come from this list. */
#ifndef SHARED_DTYPE_H
#define SHARED_DTYPE_H

#include "shared/base.h"

struct text;

enum dtype_class {
    DTYPE_CLASS_FLOAT,    /* arithmetic, rounds */
    DTYPE_CLASS_SIGNED,   /* arithmetic, wraps */
    DTYPE_CLASS_UNSIGNED, /* arithmetic, wraps */
    DTYPE_CLASS_OPAQUE,   /* moved bit for bit, never reduced */
};

/*
 * X(ID, name, number, width in bytes, class, accumulation type)
 * The number is the wire's and the public header's; it is never reused.
 */
#define DTYPE_LIST(X)                                                                              \
    X(F32, f32, 1, 4, FLOAT, F32)                                                                  \
    X(F64, f64, 2, 8, FLOAT, F64)                                                                  \
    X(F16, f16, 3, 2, FLOAT, F32)                                                                  \
    X(BF16, bf16, 4, 2, FLOAT, F32)                                                                \
    X(F8E4M3, f8e4m3, 5, 1, FLOAT, F32)                                                            \
    X(F8E5M2, f8e5m2, 6, 1, FLOAT, F32)                                                            \
    X(I8, i8, 7, 1, SIGNED, I8)                                                                    \
    X(I16, i16, 8, 2, SIGNED, I16)                                                                 \
    X(I32, i32, 9, 4, SIGNED, I32)                                                                 \
    X(I64, i64, 10, 8, SIGNED, I64)                                                                \
    X(U8, u8, 11, 1, UNSIGNED, U8)                                                                 \
    X(U16, u16, 12, 2, UNSIGNED, U16)                                                              \
    X(U32, u32, 13, 4, UNSIGNED, U32)                                                              \
    X(U64, u64, 14, 8, UNSIGNED, U64)                                                              \
    X(BOOL, bool, 15, 1, OPAQUE, BOOL)                                                             \
    X(C64, c64, 16, 8, OPAQUE, C64)                                                                \
    X(C128, c128, 17, 16, OPAQUE, C128)                                                            \
    X(F8E4M3FNUZ, f8e4m3fnuz, 18, 1, OPAQUE, F8E4M3FNUZ)                                           \
    X(F8E5M2FNUZ, f8e5m2fnuz, 19, 1, OPAQUE, F8E5M2FNUZ)                                           \
    X(F8E8M0, f8e8m0, 20, 1, OPAQUE, F8E8M0)                                                       \
    X(F4E2M1X2, f4e2m1x2, 21, 1, OPAQUE, F4E2M1X2)                                                 \
    X(PACKED_U8, packed_u8, 22, 1, OPAQUE, PACKED_U8)                                              \
    X(PACKED_U32, packed_u32, 23, 4, OPAQUE, PACKED_U32)

enum dtype_id {
    DTYPE_NONE,
#define DTYPE_ENUM(ID, name, number, width, class, acc) DTYPE_##ID = number,
    DTYPE_LIST(DTYPE_ENUM)
#undef DTYPE_ENUM
        DTYPE_END
};

struct dtype {
    const char *name;
    uint8_t width; /* bytes */
    enum dtype_class class;
    enum dtype_id accumulator; /* the type partial sums are kept in; itself where none is wider */
};

/* The row of `id`, or NULL for a number that names no type: safe on numbers from outside. */
const struct dtype *dtype_get(uint32_t id);

/* Appends "f32, f64, ...": all names. */
void text_add_dtypes(struct text *t);

/* The type called `name`, or DTYPE_NONE. */
enum dtype_id dtype_by_name(const char *name);

static inline bool dtype_is_integer(const struct dtype *t)
{
    return t->class == DTYPE_CLASS_SIGNED || t->class == DTYPE_CLASS_UNSIGNED;
}

#endif
