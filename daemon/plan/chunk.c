/*
 * With R ranks, W bytes an element and a budget of B bytes:
 *
 * | collective                  | n, what is cut          | c, of one chunk         | chunks     |
 * |-----------------------------|-------------------------|-------------------------|------------|
 * | all_reduce, reduce          | all elements            | floor(floor(B/R)/W)     | ceil(n/c)  |
 * | all_gather, gather          | elements of one input   | likewise                |            |
 * | reduce_scatter, scatter     | elements of one output  | likewise                |            |
 * | broadcast, send and recv    | all elements            | floor(B/W)              |            |
 * | all_to_all, all_to_all_v    | the most rows of a pair | floor(floor(B/R)/W'),   | the rounds |
 * |                             |                         | W' bytes a row          |            |
 * | barrier, split              | 0                       |                         | 0          |
 */
#include "daemon/plan/chunk.h"

#define LENGTH_ALIGN 64u /* keeps untuned chunks on cache lines, for every element width */

/* What is cut, and the bytes of one piece of it: an element, or a row for the exchanges. */
static void chunk_unit(const struct descriptor *d, uint64_t rows_max, uint64_t *ret_n,
                       uint64_t *ret_bytes)
{
    uint64_t row = 1;

    /* Nothing here can fail: the descriptor has been checked. */
    if (collective_get(d->kind)->shape == SHAPE_EXCHANGE) {
        shape_row_count(&d->shape, &row);
        *ret_n = rows_max;
    } else {
        *ret_n = descriptor_block(d);
    }
    *ret_bytes = row * dtype_get(d->dtype)->width;
}

static uint64_t length_tuned(uint64_t length)
{
    if (length > LENGTH_ALIGN)
        return length - length % LENGTH_ALIGN;
    return MAX(length, 1);
}

static int budget_error(const struct descriptor *d, uint32_t sharers, uint64_t bytes,
                        struct error *e)
{
    uint64_t least = BUDGET_NONE; /* where no number is enough, only no budget is */

    mul_u64(sharers, bytes, &least);
    return error_set(e, ERROR_BUDGET_TOO_SMALL,
                     "%s: a budget of %llu bytes is too small; the least that works is %llu",
                     collective_get(d->kind)->name, (unsigned long long)d->budget,
                     (unsigned long long)least);
}

int chunk_plan(const struct descriptor *d, uint64_t rows_max, uint64_t tuned_bytes,
               struct chunking *ret, struct error *e)
{
    const uint32_t sharers = descriptor_sharers(d);
    uint64_t n = 0, bytes = 0, length;

    if (collective_get(d->kind)->shape != SHAPE_NONE)
        chunk_unit(d, rows_max, &n, &bytes);
    if (n == 0) {
        *ret = (struct chunking){ 0 };
        return 0;
    }

    if (d->budget == BUDGET_NONE)
        length = length_tuned(tuned_bytes / bytes);
    else
        length = d->budget / sharers / bytes;
    if (length == 0)
        return budget_error(d, sharers, bytes, e);

    *ret = (struct chunking){ n, length, div_up_u64(n, length) };
    return 0;
}
