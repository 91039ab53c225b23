#include "tests/end_to_end/trial.h"

#include <stdio.h>
#include <string.h>

#include "shared/base.h"
#include "tests/end_to_end/reference.h"
#include "tests/unit/unit.h"

static struct scene scene_in(const struct tensors *t, const struct trial *trial)
{
    return scene_of(trial, t->dtype, t->world->nranks);
}

uint64_t trial_least_budget(const struct tensors *t, const struct trial *trial)
{
    const struct scene s = scene_in(t, trial);

    return scene_least_budget(&s);
}

/* ---- checking it */

static void trial_fail(const struct scene *s, uint32_t rank, const char *what)
{
    const struct trial *j = s->trial;

    fail_msg("%s of %llu %s (op %d, rows of %llu, root %u, budget %lld, %s, shift %llu) among %u "
             "ranks: rank %u: %s",
             scene_kind_name(j->kind), (unsigned long long)j->count, ruccl_dtype_name(s->dtype),
             (int)j->op, (unsigned long long)j->row, j->root, (long long)j->budget,
             j->in_place ? "in place"
             : j->spare  ? "with room to spare"
                         : "not in place",
             (unsigned long long)j->shift, s->nranks, rank, what);
}

/* Between nodes a pair of ranks may still be of one node. */
static bool is_algorithm(const struct scene *s, bool across, const char *name)
{
    const bool of_a_node = strcmp(name, "hierarchical") == 0;

    return of_a_node != across || (across && s->trial->kind == TRIAL_RING);
}

static void check_stats(const struct scene *s, uint32_t rank, const struct world *w,
                        struct ruccl_work *work)
{
    const uint64_t n = scene_units(s);
    struct ruccl_stats stats;
    uint64_t length;

    if (ruccl_work_stats(work, &stats) < 0)
        trial_fail(s, rank, ruccl_last_error()->text);
    length = s->trial->budget == RUCCL_NO_BUDGET ? stats.chunk_elements
                                                 : s->trial->budget / scene_least_budget(s);
    if (n == 0)
        length = 0;
    if (stats.chunk_elements != length || (n > 0 && length == 0))
        trial_fail(s, rank, "chunks of another length than the budget gives");
    if (stats.chunks != (n == 0 ? 0 : div_up_u64(n, length)))
        trial_fail(s, rank, "another number of chunks than the budget gives");
    if (stats.peak_bytes > s->trial->budget)
        trial_fail(s, rank, "more bytes in flight than the budget allows");
    if (!is_algorithm(s, w->across, stats.algorithm))
        trial_fail(s, rank, "not an algorithm of so many nodes");
    if (stats.sequence != (s->trial->kind == TRIAL_RING ? 0 : w->sequence))
        trial_fail(s, rank, "not the collective's sequence number");
}

static void check_progress(const struct scene *s, uint32_t rank, struct ruccl_work *work)
{
    struct ruccl_progress p, whole = { .elements_total = s->trial->count };
    struct ruccl_stats stats;

    if (ruccl_work_progress(work, &p) < 0 || ruccl_work_stats(work, &stats) < 0)
        trial_fail(s, rank, ruccl_last_error()->text);
    if (scene_is_exchange(s)) {
        whole.rows_sent = whole.rows_to_send = scene_rows_sent(s, rank);
        whole.rows_received = whole.rows_to_receive = scene_rows_received(s, rank);
        whole.elements_total = whole.rows_received * s->trial->row;
    }
    whole.elements_done = whole.elements_total;
    whole.chunks_done = whole.chunks_total = stats.chunks;
    if (memcmp(&p, &whole, sizeof(p)) != 0)
        trial_fail(s, rank, "progress does not end with everything done");
}

static void check_counts(const struct scene *s, uint32_t rank, struct ruccl_work *work)
{
    uint64_t counts[HARNESS_RANKS];

    if (ruccl_work_receive_counts(work, counts) < 0)
        trial_fail(s, rank, ruccl_last_error()->text);
    for (uint32_t r = 0; r < s->nranks; r++)
        if (counts[r] != scene_pair_rows(s, r, rank))
            trial_fail(s, rank, "wrong receive counts");
}

static void check_pieces(const struct scene *s, const struct tensors *t, uint32_t rank,
                         const uint8_t *out)
{
    /* A sum of NaNs may be any NaN; a move, and with one rank everything is, keeps its bits. */
    const bool lenient = scene_reduces(s->trial->kind) && s->nranks > 1;
    struct scene_piece pieces[HARNESS_RANKS];
    const uint32_t n = scene_pieces(s, rank, t->given, t->expected, pieces);
    char where[96];

    for (uint32_t i = 0; i < n; i++) {
        const uint64_t count = pieces[i].count, bytes = count * s->width;
        uint64_t bad = lenient ? reference_difference(s->dtype, pieces[i].bytes, out, count)
                       : memcmp(pieces[i].bytes, out, bytes) ? 0
                                                             : count;

        if (bad < count) {
            if (!lenient)
                while (!memcmp(pieces[i].bytes + bad * s->width, out + bad * s->width, s->width))
                    bad++;
            snprintf(where, sizeof(where), "element %llu of piece %u of the output is wrong",
                     (unsigned long long)bad, i);
            trial_fail(s, rank, where);
        }
        out += bytes;
    }
}

static void check_output(const struct scene *s, const struct tensors *t, uint32_t rank)
{
    const uint8_t *out = t->out[rank].bytes;

    if (!scene_kept_guards(s, rank, out))
        trial_fail(s, rank, "bytes around the output were written");
    if (scene_writes(s, rank))
        check_pieces(s, t, rank, out + scene_out_span(s, rank).at);
    else if (!scene_kept_output(s, rank, t->given[rank], out))
        trial_fail(s, rank, "an output that only the root has was written");
}

/* All ranks hold the same bits, NaNs included. */
static void check_alike(const struct scene *s, const struct tensors *t)
{
    const struct span out = scene_out_span(s, 0);

    for (uint32_t r = 1; r < s->nranks && s->trial->kind == TRIAL_ALL_REDUCE; r++)
        if (memcmp(t->out[0].bytes + out.at, t->out[r].bytes + out.at, out.bytes))
            trial_fail(s, r, "other bits than rank 0 has");
}

/* ---- running it */

static struct scene begin(struct tensors *t, const struct trial *trial)
{
    const struct scene s = scene_in(t, trial);
    const uint64_t blocks = scene_has_blocks(trial->kind) ? t->world->nranks : 1;
    const uint64_t spare = trial->spare && trial->kind == TRIAL_ALL_TO_ALL_V ? TENSORS_GUARD : 0;

    assert_true(trial->count * blocks * s.width + spare <= t->bytes);
    assert_true(trial->shift <= TENSORS_SHIFT);
    if (scene_reduces(trial->kind))
        tensors_expect_reduction(t, trial->op, trial->count * blocks + trial->shift);
    for (uint32_t r = 0; r < s.nranks; r++) {
        scene_prepare(&s, r, t->given[r], t->out[r].bytes);
        tensors_write(t, &t->out[r]);
    }
    if (trial->kind != TRIAL_RING)
        t->world->sequence++;
    return s;
}

/* Return: how many works each rank has. */
static uint32_t call_all(const struct scene *s, struct tensors *t,
                         struct ruccl_work *works[][SCENE_WORKS_MAX])
{
    int n = 0;

    for (uint32_t r = 0; r < s->nranks; r++) {
        n = scene_call(s, r, t->world->comms[r], &t->in[r], &t->out[r], works[r]);
        if (n < 0)
            trial_fail(s, r, ruccl_last_error()->text);
    }
    return (uint32_t)n;
}

void trial_run(struct tensors *t, const struct trial *trial)
{
    const struct scene s = begin(t, trial);
    struct ruccl_work *works[HARNESS_RANKS][SCENE_WORKS_MAX];
    const uint32_t n = call_all(&s, t, works);

    for (uint32_t r = 0; r < s.nranks; r++)
        for (uint32_t i = 0; i < n; i++)
            if (ruccl_work_wait(works[r][i], HARNESS_PATIENCE_US) != 0)
                trial_fail(&s, r, ruccl_last_error()->text);
    for (uint32_t r = 0; r < s.nranks; r++) {
        for (uint32_t i = 0; i < n; i++) {
            check_stats(&s, r, t->world, works[r][i]);
            check_progress(&s, r, works[r][i]);
            if (trial->kind == TRIAL_ALL_TO_ALL_V)
                check_counts(&s, r, works[r][i]);
            ruccl_work_release(works[r][i]);
        }
        tensors_read(t, &t->out[r]);
        check_output(&s, t, r);
    }
    check_alike(&s, t);
}

void trial_run_refused(struct tensors *t, const struct trial *trial)
{
    const struct scene s = begin(t, trial);
    struct ruccl_work *works[HARNESS_RANKS][SCENE_WORKS_MAX];
    const uint32_t n = call_all(&s, t, works);
    char least[32];

    snprintf(least, sizeof(least), " %llu", (unsigned long long)scene_least_budget(&s));
    for (uint32_t r = 0; r < s.nranks; r++) {
        for (uint32_t i = 0; i < n; i++) {
            expect_failure(works[r][i], RUCCL_BUDGET_TOO_SMALL, scene_kind_name(trial->kind));
            if (!strstr(ruccl_last_error()->text, least))
                trial_fail(&s, r, "the error does not name the least budget that works");
        }
        tensors_read(t, &t->out[r]);
        if (!trial->in_place && (!scene_kept_guards(&s, r, t->out[r].bytes) ||
                                 !scene_kept_output(&s, r, NULL, t->out[r].bytes)))
            trial_fail(&s, r, "a refused collective wrote something");
    }
}
