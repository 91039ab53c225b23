/* The kernels of daemon/device/cuda_kernels.cu, by those of the host. */
#include <stdlib.h>
#include <string.h>

#include "shared/collective.h"
#include "tests/fake_cuda/fake.h"

#define NAME_MAX_BYTES 64u

/* An element's bytes, of `dtype` itself and of its accumulator. */
struct widths {
    uint64_t narrow, wide;
};

bool twin_find(const char *name, struct twin *ret)
{
    char words[NAME_MAX_BYTES], *op, *dtype;
    struct twin twin = { .copy = strcmp(name, "copy") == 0, .dtype = DTYPE_U8 };
    enum operator_id op_id = OPERATOR_SUM;

    if (!twin.copy) {
        if (strncmp(name, "reduce_", 7) != 0 || strlen(name) >= sizeof(words))
            return false;
        op = strcpy(words, name) + 7;
        dtype = strchr(op, '_');
        if (!dtype)
            return false;
        *dtype++ = '\0';
        op_id = operator_by_name(op);
        twin.dtype = dtype_by_name(dtype);
    }
    if (op_id == OPERATOR_NONE || op_id == OPERATOR_MEAN || twin.dtype == DTYPE_NONE)
        return false;
    twin.reduce = kernel_row_best()->reduce[twin.dtype][op_id];
    if (!twin.reduce)
        return false;
    *ret = twin;
    return true;
}

/* A table of the arguments: one that they hold themselves, or one in memory. NULL: neither. */
static const void *twin_table(CUcontext context, const void *table, const void *own, uint64_t size,
                              uint64_t align, uint64_t n, uint64_t own_max)
{
    if (!table)
        return n <= own_max ? own : NULL;
    if ((uintptr_t)table % align != 0)
        return NULL;
    return ranges_check(context, (uintptr_t)table, n * size, TOUCH_KERNEL) ? table : NULL;
}

static CUresult twin_check(CUcontext context, const struct cuda_args *args, uint64_t pointer,
                           uint64_t width, uint64_t align)
{
    uint64_t start, bytes;

    if (pointer % align != 0)
        return CUDA_ERROR_MISALIGNED_ADDRESS;
    if (!mul_u64(args->first, width, &start) || !mul_u64(args->count, width, &bytes) ||
        !add_u64(pointer, start, &start) || !ranges_check(context, start, bytes, TOUCH_KERNEL))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    return CUDA_SUCCESS;
}

static CUresult twin_check_sources(CUcontext context, const struct cuda_args *args,
                                   const uint64_t *pointers, const struct cuda_group *groups,
                                   struct widths widths)
{
    uint32_t n = 0;

    for (uint32_t g = 0; g < args->ngroups; g++)
        for (uint32_t i = 0; i < groups[g].nsrc; i++) {
            const uint64_t width = groups[g].wide ? widths.wide : widths.narrow;
            CUresult r;

            if (n == args->nsrc)
                return CUDA_ERROR_ILLEGAL_ADDRESS;
            r = twin_check(context, args, pointers[n++], width, width);
            if (r != CUDA_SUCCESS)
                return r;
        }
    return n == args->nsrc ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult twin_check_destinations(CUcontext context, const struct cuda_args *args,
                                        const uint64_t *pointers, struct widths widths)
{
    const uint64_t width = args->dst_wide ? widths.wide : widths.narrow;

    for (uint32_t i = 0; i < args->ndst; i++) {
        const CUresult r = twin_check(context, args, pointers[args->nsrc + i], width, width);

        if (r != CUDA_SUCCESS)
            return r;
    }
    return CUDA_SUCCESS;
}

static CUresult twin_compute(const struct twin *twin, const struct cuda_args *args,
                             const uint64_t *pointers, const struct cuda_group *groups)
{
    struct source_group *sources = calloc(args->ngroups, sizeof(*sources));

    if (!sources)
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    for (uint32_t g = 0; g < args->ngroups; g++)
        sources[g] = (struct source_group){ .nsrc = groups[g].nsrc, .wide = groups[g].wide != 0 };
    twin->reduce(&(struct kernel_args){
        .src = (const void *const *)pointers,
        .dst = (void *const *)(pointers + args->nsrc),
        .nsrc = args->nsrc,
        .ndst = args->ndst,
        .first = args->first,
        .count = args->count,
        .divisor = args->divisor,
        .dst_wide = args->dst_wide != 0,
        .groups = sources,
        .ngroups = args->ngroups,
    });
    free(sources);
    return CUDA_SUCCESS;
}

static CUresult twin_run_checked(const struct twin *twin, CUcontext context,
                                 const struct cuda_args *args)
{
    const struct dtype *type = dtype_get(twin->dtype);
    const struct widths widths = { type->width, dtype_get(type->accumulator)->width };
    const uint64_t npointers = (uint64_t)args->nsrc + args->ndst;
    const uint64_t *pointers =
        twin_table(context, args->pointer_table, args->pointers, sizeof(*pointers),
                   _Alignof(uint64_t), npointers, CUDA_INLINE_POINTERS);
    const struct cuda_group *groups =
        twin_table(context, args->group_table, args->groups, sizeof(*groups),
                   _Alignof(struct cuda_group), args->ngroups, CUDA_INLINE_GROUPS);
    CUresult r;

    if (!pointers || !groups || args->nsrc == 0 || args->ndst == 0 || args->ngroups == 0)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    r = twin_check_sources(context, args, pointers, groups, widths);
    if (r == CUDA_SUCCESS)
        r = twin_check_destinations(context, args, pointers, widths);
    return r == CUDA_SUCCESS ? twin_compute(twin, args, pointers, groups) : r;
}

/* A copy has no groups: it has one source. */
static struct cuda_args copy_args(const struct cuda_args *args)
{
    struct cuda_args one = *args;

    one.ngroups = 1;
    one.group_table = NULL;
    one.groups[0] = (struct cuda_group){ .nsrc = 1 };
    one.divisor = one.dst_wide = 0;
    return one;
}

CUresult twin_run(const struct twin *twin, CUcontext context, const struct cuda_args *args)
{
    const struct cuda_args own = twin->copy ? copy_args(args) : *args;
    CUresult r;

    pthread_rwlock_rdlock(&ranges_lock);
    r = twin_run_checked(twin, context, &own);
    pthread_rwlock_unlock(&ranges_lock);
    return r;
}
