#include "daemon/plan/exchange.h"

#include <errno.h>
#include <stdlib.h>

/* Only running sums are kept: a count is the difference of two, a rank's total is the last. */
struct exchange {
    uint32_t nranks;
    uint64_t rows_max;
    uint64_t *sent;     /* [s][d], d to R: rows of s's input before those to d */
    uint64_t *received; /* [s][d], s to R: rows of d's output before those from s */
};

static uint64_t *exchange_sent(const struct exchange *x, uint32_t s, uint32_t d)
{
    return &x->sent[(size_t)s * (x->nranks + (size_t)1) + d];
}

static uint64_t *exchange_received(const struct exchange *x, uint32_t s, uint32_t d)
{
    return &x->received[(size_t)s * x->nranks + d];
}

static int exchange_sum(struct exchange *x, const uint64_t *const *counts)
{
    for (uint32_t s = 0; s < x->nranks; s++)
        for (uint32_t d = 0; d < x->nranks; d++) {
            const uint64_t rows = counts[s][d];

            if (!add_u64(*exchange_sent(x, s, d), rows, exchange_sent(x, s, d + 1)) ||
                !add_u64(*exchange_received(x, s, d), rows, exchange_received(x, s + 1, d)))
                return -EOVERFLOW;
            x->rows_max = MAX(x->rows_max, rows);
        }
    return 0;
}

int exchange_new(uint32_t nranks, const uint64_t *const *counts, struct exchange **ret)
{
    /* Two 32-bit numbers: the product fits, and calloc() checks the rest. */
    const size_t cells = (size_t)nranks * (nranks + (size_t)1);
    _cleanup_(exchange_freep) struct exchange *x = calloc(1, sizeof(*x));
    int r;

    if (!x)
        return -ENOMEM;
    x->nranks = nranks;
    x->sent = calloc(cells, sizeof(*x->sent));
    x->received = calloc(cells, sizeof(*x->received));
    if (!x->sent || !x->received)
        return -ENOMEM;

    r = exchange_sum(x, counts);
    if (r < 0)
        return r;

    *ret = steal(&x);
    return 0;
}

struct exchange *exchange_free(struct exchange *x)
{
    if (!x)
        return NULL;
    free(x->sent);
    free(x->received);
    free(x);
    return NULL;
}

uint64_t exchange_rows_max(const struct exchange *x)
{
    return x->rows_max;
}

uint64_t exchange_rows(const struct exchange *x, uint32_t s, uint32_t d)
{
    return *exchange_sent(x, s, d + 1) - *exchange_sent(x, s, d);
}

uint64_t exchange_rows_sent(const struct exchange *x, uint32_t s)
{
    return *exchange_sent(x, s, x->nranks);
}

uint64_t exchange_rows_received(const struct exchange *x, uint32_t d)
{
    return *exchange_received(x, x->nranks, d);
}

/* Rows a pair may have moved after `rounds`: more than any count where the product does not fit. */
static uint64_t rows_until(uint64_t rounds, uint64_t p)
{
    uint64_t rows = UINT64_MAX;

    mul_u64(rounds, p, &rows);
    return rows;
}

uint64_t exchange_sent_after(const struct exchange *x, uint32_t rank, uint64_t rounds, uint64_t p)
{
    const uint64_t until = rows_until(rounds, p);
    uint64_t rows = 0;

    for (uint32_t d = 0; d < x->nranks; d++)
        rows += MIN(exchange_rows(x, rank, d), until);
    return rows;
}

uint64_t exchange_received_after(const struct exchange *x, uint32_t rank, uint64_t rounds,
                                 uint64_t p)
{
    const uint64_t until = rows_until(rounds, p);
    uint64_t rows = 0;

    for (uint32_t s = 0; s < x->nranks; s++)
        rows += MIN(exchange_rows(x, s, rank), until);
    return rows;
}

bool exchange_part(const struct exchange *x, uint32_t s, uint32_t d, const struct exchange_round *t,
                   struct span *ret_in, struct span *ret_out)
{
    const uint64_t first = rows_until(t->round, t->rows), rows = exchange_rows(x, s, d);

    if (first >= rows)
        return false;

    const uint64_t count = MIN(t->rows, rows - first) * t->row_elements;
    const uint64_t from = (*exchange_sent(x, s, d) + first) * t->row_elements;
    const uint64_t to = (*exchange_received(x, s, d) + first) * t->row_elements;

    *ret_in = (struct span){ BUFFER_IN, s, from, count };
    *ret_out = (struct span){ BUFFER_OUT, d, to, count };
    return true;
}

int exchange_emit(struct plan *p, const struct exchange *x, uint32_t s, uint64_t t, uint64_t rows_p,
                  uint64_t row)
{
    const struct exchange_round round = { t, rows_p, row };

    for (uint32_t d = 0; d < x->nranks; d++) {
        struct span in, out;
        int r = 0;

        if (exchange_part(x, s, d, &round, &in, &out))
            r = plan_add(p, STEP_COPY, in, out);
        if (r < 0)
            return r;
    }
    return 0;
}
