#include "tests/end_to_end/trial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base.h"
#include "tests/end_to_end/reference.h"
#include "tests/unit/unit.h"

#define GUARD  TENSORS_GUARD /* bytes before and behind an output that nobody may write */
#define POISON 0xa5
#define TAG    7

static const struct {
    const char *name;
    bool reduces, in_place, blocks, single; /* single: the budget is one rank's alone */
} kinds[TRIAL_KINDS] = {
    [TRIAL_ALL_REDUCE] = { "all_reduce", true, true, false, false },
    [TRIAL_REDUCE] = { "reduce", true, true, false, false },
    [TRIAL_REDUCE_SCATTER] = { "reduce_scatter", true, true, true, false },
    [TRIAL_ALL_GATHER] = { "all_gather", false, true, true, false },
    [TRIAL_BROADCAST] = { "broadcast", false, true, false, true },
    [TRIAL_GATHER] = { "gather", false, false, true, false },
    [TRIAL_SCATTER] = { "scatter", false, false, true, false },
    [TRIAL_ALL_TO_ALL] = { "all_to_all", false, false, true, false },
    [TRIAL_ALL_TO_ALL_V] = { "all_to_all_v", false, false, true, false },
    [TRIAL_RING] = { "send and recv", false, false, false, true },
};

bool trial_reduces(enum trial_kind kind)
{
    return kinds[kind].reduces;
}

bool trial_has_in_place(enum trial_kind kind)
{
    return kinds[kind].in_place;
}

bool trial_has_blocks(enum trial_kind kind)
{
    return kinds[kind].blocks;
}

/* ---- what a trial means, in elements */

struct scene {
    struct tensors *t;
    const struct trial *trial;
    uint32_t nranks, width;
    uint64_t rows; /* of a block, or the most of a pair */
};

static struct scene scene_of(struct tensors *t, const struct trial *trial)
{
    return (struct scene){ t, trial, t->world->nranks, ruccl_dtype_bytes(t->dtype),
                           trial->count / trial->row };
}

static void scene_fail(const struct scene *s, uint32_t rank, const char *what)
{
    const struct trial *j = s->trial;

    fail_msg("%s of %llu %s (op %d, rows of %llu, root %u, budget %lld, %s, shift %llu) among %u "
             "ranks: rank %u: %s",
             kinds[j->kind].name, (unsigned long long)j->count, ruccl_dtype_name(s->t->dtype),
             (int)j->op, (unsigned long long)j->row, j->root, (long long)j->budget,
             j->in_place ? "in place"
             : j->spare  ? "with room to spare"
                         : "not in place",
             (unsigned long long)j->shift, s->nranks, rank, what);
}

/* Uneven, with ranks that send or receive nothing; the pair (0, R - 1) has the most. */
static uint64_t pair_rows(const struct scene *s, uint32_t from, uint32_t to)
{
    uint64_t seed = s->trial->count * 64 + from * 8 + to + 1;

    if (s->trial->kind == TRIAL_ALL_TO_ALL || (from == 0 && to == s->nranks - 1))
        return s->rows;
    if (from == 1 || to == 2)
        return 0;
    unit_random(&seed);
    return unit_random(&seed) % (s->rows + 1);
}

static uint64_t rows_sent(const struct scene *s, uint32_t from)
{
    uint64_t rows = 0;

    for (uint32_t to = 0; to < s->nranks; to++)
        rows += pair_rows(s, from, to);
    return rows;
}

static uint64_t rows_received(const struct scene *s, uint32_t to)
{
    uint64_t rows = 0;

    for (uint32_t from = 0; from < s->nranks; from++)
        rows += pair_rows(s, from, to);
    return rows;
}

static uint64_t in_rows(const struct scene *s, uint32_t rank)
{
    switch (s->trial->kind) {
    case TRIAL_REDUCE_SCATTER:
    case TRIAL_SCATTER:
        return s->rows * s->nranks;
    case TRIAL_ALL_TO_ALL:
    case TRIAL_ALL_TO_ALL_V:
        return rows_sent(s, rank);
    default:
        return s->rows;
    }
}

static uint64_t out_rows(const struct scene *s, uint32_t rank)
{
    switch (s->trial->kind) {
    case TRIAL_ALL_GATHER:
    case TRIAL_GATHER:
        return s->rows * s->nranks;
    case TRIAL_ALL_TO_ALL:
    case TRIAL_ALL_TO_ALL_V:
        return rows_received(s, rank);
    default:
        return s->rows;
    }
}

/* Whether this rank's output is to be written. */
static bool writes(const struct scene *s, uint32_t rank)
{
    if (s->trial->kind == TRIAL_REDUCE || s->trial->kind == TRIAL_GATHER)
        return rank == s->trial->root;
    return true;
}

/* An output is pieces of inputs, or of the reduction, one behind the other. */
struct piece {
    const uint8_t *bytes;
    uint64_t count;
};

static struct piece piece_of(const struct scene *s, const uint8_t *from, uint64_t first,
                             uint64_t count)
{
    return (struct piece){ from + (s->trial->shift + first) * s->width, count };
}

static uint64_t rows_before(const struct scene *s, uint32_t from, uint32_t to)
{
    uint64_t rows = 0;

    for (uint32_t d = 0; d < to; d++)
        rows += pair_rows(s, from, d);
    return rows;
}

static uint32_t pieces_of_output(const struct scene *s, uint32_t rank, struct piece *ret)
{
    const struct trial *j = s->trial;
    uint8_t *const *given = s->t->given;
    const uint64_t n = j->count;

    switch (j->kind) {
    case TRIAL_ALL_REDUCE:
    case TRIAL_REDUCE:
        ret[0] = piece_of(s, s->t->expected, 0, n);
        return 1;
    case TRIAL_REDUCE_SCATTER:
        ret[0] = piece_of(s, s->t->expected, rank * n, n);
        return 1;
    case TRIAL_BROADCAST:
        ret[0] = piece_of(s, given[j->root], 0, n);
        return 1;
    case TRIAL_SCATTER:
        ret[0] = piece_of(s, given[j->root], rank * n, n);
        return 1;
    case TRIAL_RING:
        ret[0] = piece_of(s, given[(rank + s->nranks - 1) % s->nranks], 0, n);
        return 1;
    case TRIAL_ALL_GATHER:
    case TRIAL_GATHER:
        for (uint32_t r = 0; r < s->nranks; r++)
            ret[r] = piece_of(s, given[r], 0, n);
        return s->nranks;
    default:
        for (uint32_t r = 0; r < s->nranks; r++)
            ret[r] = piece_of(s, given[r], rows_before(s, r, rank) * j->row,
                              pair_rows(s, r, rank) * j->row);
        return s->nranks;
    }
}

/* ---- where it lies, in bytes of the out slab */

struct span {
    uint64_t at, bytes;
};

/* The output; in place it may be a block of the input. */
static struct span out_span(const struct scene *s, uint32_t rank)
{
    struct span span = { GUARD + s->trial->shift * s->width,
                         out_rows(s, rank) * s->trial->row * s->width };

    if (s->trial->in_place && s->trial->kind == TRIAL_REDUCE_SCATTER)
        span.at += rank * span.bytes;
    return span;
}

static struct span in_place_span(const struct scene *s, uint32_t rank)
{
    struct span span = { GUARD + s->trial->shift * s->width,
                         in_rows(s, rank) * s->trial->row * s->width };

    if (s->trial->kind == TRIAL_ALL_GATHER)
        span.at += rank * span.bytes;
    return span;
}

/* All that the collective may write. */
static struct span used_span(const struct scene *s, uint32_t rank)
{
    return s->trial->in_place && s->trial->kind == TRIAL_REDUCE_SCATTER ? in_place_span(s, rank)
                                                                        : out_span(s, rank);
}

/* Spare rows of capacity that nothing comes to. */
static uint64_t spare_rows(const struct scene *s)
{
    return s->trial->spare && s->trial->kind == TRIAL_ALL_TO_ALL_V
               ? GUARD / TENSORS_WIDTH / s->trial->row
               : 0;
}

static void prepare(const struct scene *s)
{
    for (uint32_t r = 0; r < s->nranks; r++) {
        const struct span used = used_span(s, r);
        uint8_t *out = s->t->out[r].bytes;

        memset(out, POISON, used.at + used.bytes + GUARD);
        if (s->trial->in_place) {
            const struct span in = in_place_span(s, r);

            memcpy(out + in.at, s->t->given[r] + s->trial->shift * s->width, in.bytes);
        }
    }
}

/* ---- calling it */

static struct ruccl_tensor tensor_in(const struct scene *s, const struct slab *slab, uint64_t at,
                                     uint64_t rows)
{
    struct ruccl_tensor t = { .dtype = s->t->dtype, .region = slab->region };

    if (slab->region)
        t.offset = at;
    else
        t.data = slab->bytes + at;
    if (rows == 1 && s->trial->row == 1 && !kinds[s->trial->kind].blocks)
        return t; /* no axes */
    t.shape[t.naxes++] = rows;
    if (s->trial->row > 1)
        t.shape[t.naxes++] = s->trial->row;
    return t;
}

#define WORKS_MAX 2

/* The works of one rank's call. Return: how many. */
static uint32_t call(const struct scene *s, uint32_t rank, struct ruccl_work **works)
{
    const struct trial *j = s->trial;
    const struct ruccl_comm comm = ruccl_bounded(s->t->world->comms[rank], j->budget);
    const struct slab *in_slab = j->in_place ? &s->t->out[rank] : &s->t->in[rank];
    const uint64_t in_at = j->in_place ? in_place_span(s, rank).at : j->shift * s->width;
    const struct ruccl_tensor in = tensor_in(s, in_slab, in_at, in_rows(s, rank));
    const struct ruccl_tensor out =
        tensor_in(s, &s->t->out[rank], out_span(s, rank).at, out_rows(s, rank) + spare_rows(s));
    const bool bare = j->spare && rank != j->root; /* leaves out what only the root uses */
    uint64_t send[HARNESS_RANKS], expected[HARNESS_RANKS];
    int r = 0;

    switch (j->kind) {
    case TRIAL_ALL_REDUCE:
        r = ruccl_all_reduce_async(comm, &in, &out, j->op, works);
        break;
    case TRIAL_REDUCE:
        r = ruccl_reduce_async(comm, &in, bare ? NULL : &out, j->op, j->root, works);
        break;
    case TRIAL_REDUCE_SCATTER:
        r = ruccl_reduce_scatter_async(comm, &in, &out, j->op, works);
        break;
    case TRIAL_ALL_GATHER:
        r = ruccl_all_gather_async(comm, &in, &out, works);
        break;
    case TRIAL_BROADCAST:
        r = ruccl_broadcast_async(comm, bare ? NULL : &in, &out, j->root, works);
        break;
    case TRIAL_GATHER:
        r = ruccl_gather_async(comm, &in, bare ? NULL : &out, j->root, works);
        break;
    case TRIAL_SCATTER:
        r = ruccl_scatter_async(comm, bare ? NULL : &in, &out, j->root, works);
        break;
    case TRIAL_ALL_TO_ALL:
        r = ruccl_all_to_all_async(comm, &in, &out, works);
        break;
    case TRIAL_ALL_TO_ALL_V:
        for (uint32_t i = 0; i < s->nranks; i++) {
            send[i] = pair_rows(s, rank, i);
            expected[i] = pair_rows(s, i, rank);
        }
        r = ruccl_all_to_all_v_async(comm, &in, send, &out, j->spare ? NULL : expected, works);
        break;
    default:
        r = ruccl_send_async(comm, &in, (rank + 1) % s->nranks, TAG, works);
        if (r == 0)
            r = ruccl_recv_async(comm, &out, (rank + s->nranks - 1) % s->nranks, TAG, works + 1);
    }
    if (r < 0)
        scene_fail(s, rank, ruccl_last_error()->text);
    return j->kind == TRIAL_RING ? 2 : 1;
}

/* ---- checking it */

struct chunks {
    uint64_t n, length, count;
};

static bool is_exchange(const struct trial *j)
{
    return j->kind == TRIAL_ALL_TO_ALL || j->kind == TRIAL_ALL_TO_ALL_V;
}

static uint64_t unit_bytes(const struct scene *s)
{
    return s->width * (is_exchange(s->trial) ? s->trial->row : 1);
}

uint64_t trial_least_budget(const struct tensors *t, const struct trial *trial)
{
    const uint64_t row = is_exchange(trial) ? trial->row : 1;

    return ruccl_dtype_bytes(t->dtype) * row * (kinds[trial->kind].single ? 1 : t->world->nranks);
}

static void check_stats(const struct scene *s, uint32_t rank, struct ruccl_work *work)
{
    const uint64_t n = is_exchange(s->trial) ? s->rows : s->trial->count;
    const uint64_t sharers = kinds[s->trial->kind].single ? 1 : s->nranks;
    struct ruccl_stats stats;
    uint64_t length;

    if (ruccl_work_stats(work, &stats) < 0)
        scene_fail(s, rank, ruccl_last_error()->text);
    length = s->trial->budget == RUCCL_NO_BUDGET ? stats.chunk_elements
                                                 : s->trial->budget / sharers / unit_bytes(s);
    if (n == 0)
        length = 0;
    if (stats.chunk_elements != length || (n > 0 && length == 0))
        scene_fail(s, rank, "chunks of another length than the budget gives");
    if (stats.chunks != (n == 0 ? 0 : div_up_u64(n, length)))
        scene_fail(s, rank, "another number of chunks than the budget gives");
    if (stats.peak_bytes > s->trial->budget)
        scene_fail(s, rank, "more bytes in flight than the budget allows");
    if (strcmp(stats.algorithm, "hierarchical") != 0)
        scene_fail(s, rank, "not the algorithm of a node");
    if (stats.sequence != (s->trial->kind == TRIAL_RING ? 0 : s->t->world->sequence))
        scene_fail(s, rank, "not the collective's sequence number");
}

static void check_progress(const struct scene *s, uint32_t rank, struct ruccl_work *work)
{
    struct ruccl_progress p, whole = { .elements_total = s->trial->count };
    struct ruccl_stats stats;

    if (ruccl_work_progress(work, &p) < 0 || ruccl_work_stats(work, &stats) < 0)
        scene_fail(s, rank, ruccl_last_error()->text);
    if (is_exchange(s->trial)) {
        whole.rows_sent = whole.rows_to_send = rows_sent(s, rank);
        whole.rows_received = whole.rows_to_receive = rows_received(s, rank);
        whole.elements_total = whole.rows_received * s->trial->row;
    }
    whole.elements_done = whole.elements_total;
    whole.chunks_done = whole.chunks_total = stats.chunks;
    if (memcmp(&p, &whole, sizeof(p)) != 0)
        scene_fail(s, rank, "progress does not end with everything done");
}

static void check_counts(const struct scene *s, uint32_t rank, struct ruccl_work *work)
{
    uint64_t counts[HARNESS_RANKS];

    if (ruccl_work_receive_counts(work, counts) < 0)
        scene_fail(s, rank, ruccl_last_error()->text);
    for (uint32_t r = 0; r < s->nranks; r++)
        if (counts[r] != pair_rows(s, r, rank))
            scene_fail(s, rank, "wrong receive counts");
}

static bool is_poison(const uint8_t *p, uint64_t bytes)
{
    return bytes == 0 || (p[0] == POISON && memcmp(p, p + 1, bytes - 1) == 0);
}

static void check_pieces(const struct scene *s, uint32_t rank, const uint8_t *out)
{
    /* A sum of NaNs may be any NaN; a move, and with one rank everything is, keeps its bits. */
    const bool lenient = kinds[s->trial->kind].reduces && s->nranks > 1;
    struct piece pieces[HARNESS_RANKS];
    const uint32_t n = pieces_of_output(s, rank, pieces);
    char where[96];

    for (uint32_t i = 0; i < n; i++) {
        const uint64_t count = pieces[i].count, bytes = count * s->width;
        uint64_t bad = lenient ? reference_difference(s->t->dtype, pieces[i].bytes, out, count)
                       : memcmp(pieces[i].bytes, out, bytes) ? 0
                                                             : count;

        if (bad < count) {
            if (!lenient)
                while (!memcmp(pieces[i].bytes + bad * s->width, out + bad * s->width, s->width))
                    bad++;
            snprintf(where, sizeof(where), "element %llu of piece %u of the output is wrong",
                     (unsigned long long)bad, i);
            scene_fail(s, rank, where);
        }
        out += bytes;
    }
}

static void check_output(const struct scene *s, uint32_t rank)
{
    const uint8_t *slab = s->t->out[rank].bytes;
    const struct span used = used_span(s, rank), out = out_span(s, rank);

    if (!is_poison(slab, used.at) || !is_poison(slab + used.at + used.bytes, GUARD))
        scene_fail(s, rank, "bytes around the output were written");
    if (writes(s, rank))
        check_pieces(s, rank, slab + out.at);
    else if (s->trial->in_place
                 ? memcmp(slab + out.at, s->t->given[rank] + s->trial->shift * s->width, out.bytes)
                 : !is_poison(slab + out.at, out.bytes))
        scene_fail(s, rank, "an output that only the root has was written");
}

/* All ranks hold the same bits, NaNs included. */
static void check_alike(const struct scene *s)
{
    const struct span out = out_span(s, 0);

    for (uint32_t r = 1; r < s->nranks && s->trial->kind == TRIAL_ALL_REDUCE; r++)
        if (memcmp(s->t->out[0].bytes + out.at, s->t->out[r].bytes + out.at, out.bytes))
            scene_fail(s, r, "other bits than rank 0 has");
}

static struct scene begin(struct tensors *t, const struct trial *trial)
{
    const struct scene s = scene_of(t, trial);
    const uint64_t blocks = kinds[trial->kind].blocks ? t->world->nranks : 1;

    assert_true((trial->count * blocks + spare_rows(&s) * trial->row) * s.width <= t->bytes);
    assert_true(trial->shift <= TENSORS_SHIFT);
    if (kinds[trial->kind].reduces)
        tensors_expect_reduction(t, trial->op, trial->count * blocks + trial->shift);
    prepare(&s);
    if (trial->kind != TRIAL_RING)
        t->world->sequence++;
    return s;
}

void trial_run(struct tensors *t, const struct trial *trial)
{
    const struct scene s = begin(t, trial);
    struct ruccl_work *works[HARNESS_RANKS][WORKS_MAX];
    uint32_t n = 0;

    for (uint32_t r = 0; r < s.nranks; r++)
        n = call(&s, r, works[r]);
    for (uint32_t r = 0; r < s.nranks; r++)
        for (uint32_t i = 0; i < n; i++)
            if (ruccl_work_wait(works[r][i], HARNESS_PATIENCE_US) != 0)
                scene_fail(&s, r, ruccl_last_error()->text);
    for (uint32_t r = 0; r < s.nranks; r++) {
        for (uint32_t i = 0; i < n; i++) {
            check_stats(&s, r, works[r][i]);
            check_progress(&s, r, works[r][i]);
            if (trial->kind == TRIAL_ALL_TO_ALL_V)
                check_counts(&s, r, works[r][i]);
            ruccl_work_release(works[r][i]);
        }
        check_output(&s, r);
    }
    check_alike(&s);
}

void trial_run_refused(struct tensors *t, const struct trial *trial)
{
    const struct scene s = begin(t, trial);
    struct ruccl_work *works[HARNESS_RANKS][WORKS_MAX];
    char least[32];
    uint32_t n = 0;

    snprintf(least, sizeof(least), " %llu", (unsigned long long)trial_least_budget(t, trial));
    for (uint32_t r = 0; r < s.nranks; r++)
        n = call(&s, r, works[r]);
    for (uint32_t r = 0; r < s.nranks; r++) {
        const struct span used = used_span(&s, r);

        for (uint32_t i = 0; i < n; i++) {
            expect_failure(works[r][i], RUCCL_BUDGET_TOO_SMALL, kinds[trial->kind].name);
            if (!strstr(ruccl_last_error()->text, least))
                scene_fail(&s, r, "the error does not name the least budget that works");
        }
        if (!trial->in_place && !is_poison(t->out[r].bytes, used.at + used.bytes + GUARD))
            scene_fail(&s, r, "a refused collective wrote something");
    }
}
