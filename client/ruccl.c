/* Names and numbers: what the public header and the rest of the tree must agree on. */
#include "client/ruccl.h"

#include "proto/codec.h"
#include "shared/collective.h"
#include "shared/mem.h"

#define SAME_ERROR(ID, number, name)                                                               \
    _Static_assert((int)RUCCL_##ID == (int)ERROR_##ID, "ruccl.h: code " name);
ERROR_LIST(SAME_ERROR)
#undef SAME_ERROR

#define SAME_DTYPE(ID, name, number, width, class, acc)                                            \
    _Static_assert((int)RUCCL_##ID == (int)DTYPE_##ID, "ruccl.h: dtype " #name);
DTYPE_LIST(SAME_DTYPE)
#undef SAME_DTYPE

#define SAME_OPERATOR(ID, name, number)                                                            \
    _Static_assert((int)RUCCL_##ID == (int)OPERATOR_##ID, "ruccl.h: operation " #name);
OPERATOR_LIST(SAME_OPERATOR)
#undef SAME_OPERATOR

_Static_assert(RUCCL_MAX_AXES == AXES_MAX, "ruccl.h: axes");
_Static_assert(RUCCL_MAX_RANKS == RANKS_MAX, "ruccl.h: ranks");
_Static_assert(RUCCL_NO_BUDGET == BUDGET_NONE, "ruccl.h: budget");
_Static_assert(RUCCL_ID_BYTES == CODEC_ID_MAX + 1, "ruccl.h: id");
_Static_assert(sizeof(((struct ruccl_error *)0)->text) == ERROR_TEXT_BYTES, "ruccl.h: text");
_Static_assert(sizeof(((struct ruccl_error *)0)->ranks) == sizeof(((struct error *)0)->ranks),
               "ruccl.h: ranks of an error");
_Static_assert(sizeof(((struct ruccl_stats *)0)->algorithm) == CODEC_ALGORITHM_MAX + 1,
               "ruccl.h: algorithm");
_Static_assert(sizeof(struct ruccl_progress) == sizeof(struct progress), "ruccl.h: progress");

const char *ruccl_code_name(int code)
{
    return code == 0 ? "ok" : error_name((uint32_t)(code < 0 ? -(int64_t)code : code));
}

const char *ruccl_version(void)
{
    return PROJECT_VERSION;
}

uint32_t ruccl_dtype_bytes(enum ruccl_dtype dtype)
{
    const struct dtype *t = dtype_get(dtype);

    return t ? t->width : 0;
}

const char *ruccl_dtype_name(enum ruccl_dtype dtype)
{
    const struct dtype *t = dtype_get(dtype);

    return t ? t->name : NULL;
}
