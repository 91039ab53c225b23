/*
 * Row exchange (all_to_all, all_to_all_v): planned from the matrix of counts that all ranks share,
 * one round and one source at a time, so that a plan is never larger than the world.
 */
#ifndef DAEMON_PLAN_EXCHANGE_H
#define DAEMON_PLAN_EXCHANGE_H

#include "daemon/plan/plan.h"

/* R x R row counts with the prefix sums that place every pair's rows. Immutable once made. */
struct exchange;

/*
 * counts[s] is rank s's send counts, R of them. Copies what it needs.
 * Return: 0, -ENOMEM, or -EOVERFLOW where a sum of rows does not fit in 64 bits.
 */
int exchange_new(uint32_t nranks, const uint64_t *const *counts, struct exchange **ret);
struct exchange *exchange_free(struct exchange *x);
DEFINE_CLEANUP(struct exchange *, exchange_free)

uint64_t exchange_rows_max(const struct exchange *x);                     /* M */
uint64_t exchange_rows(const struct exchange *x, uint32_t s, uint32_t d); /* rows s sends d */
uint64_t exchange_rows_sent(const struct exchange *x, uint32_t s);
uint64_t exchange_rows_received(const struct exchange *x, uint32_t d);

/* Rows that `rank` has sent (received) once `rounds` rounds of p rows a pair are complete. */
uint64_t exchange_sent_after(const struct exchange *x, uint32_t rank, uint64_t rounds, uint64_t p);
uint64_t exchange_received_after(const struct exchange *x, uint32_t rank, uint64_t rounds,
                                 uint64_t p);

struct exchange_round {
    uint64_t round;        /* t */
    uint64_t rows;         /* p, of a pair */
    uint64_t row_elements; /* every rank's rows times this fit in 64 bits: the tensors hold them */
};

/*
 * What goes from s to d in a round: min(p, max(0, count - t*p)) rows from row (rows before d in s's
 * input) + t*p to row (prefix[s] at d) + t*p. False, with nothing written, where that is none.
 */
bool exchange_part(const struct exchange *x, uint32_t s, uint32_t d, const struct exchange_round *t,
                   struct span *ret_in, struct span *ret_out);

/*
 * Appends source s's copies of round t, `rows_p` rows of `row` elements a pair, to every d.
 * Return: 0 or -ENOMEM.
 */
int exchange_emit(struct plan *p, const struct exchange *x, uint32_t s, uint64_t t, uint64_t rows_p,
                  uint64_t row);

#endif
