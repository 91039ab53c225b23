#include "tests/end_to_end/scene.h"

#include <stdlib.h>
#include <string.h>

#include "tests/end_to_end/reference.h"
#include "tests/unit/unit.h"

#define GUARD  TENSORS_GUARD /* bytes before and behind an output that nobody may write */
#define POISON 0xa5
#define TAG    7

static const struct {
    const char *name;
    bool reduces, in_place, persistent, blocks;
    bool single; /* the budget is one rank's alone */
} kinds[TRIAL_KINDS] = {
    [TRIAL_ALL_REDUCE] = { "all_reduce", true, true, true, false, false },
    [TRIAL_REDUCE] = { "reduce", true, true, true, false, false },
    [TRIAL_REDUCE_SCATTER] = { "reduce_scatter", true, true, true, true, false },
    [TRIAL_ALL_GATHER] = { "all_gather", false, true, true, true, false },
    [TRIAL_BROADCAST] = { "broadcast", false, true, true, false, true },
    [TRIAL_GATHER] = { "gather", false, false, true, true, false },
    [TRIAL_SCATTER] = { "scatter", false, false, true, true, false },
    [TRIAL_ALL_TO_ALL] = { "all_to_all", false, false, false, true, false },
    [TRIAL_ALL_TO_ALL_V] = { "all_to_all_v", false, false, false, true, false },
    [TRIAL_RING] = { "send_recv", false, false, false, false, true },
};

const char *scene_kind_name(enum trial_kind kind)
{
    return kinds[kind].name;
}

bool scene_reduces(enum trial_kind kind)
{
    return kinds[kind].reduces;
}

bool scene_has_in_place(enum trial_kind kind)
{
    return kinds[kind].in_place;
}

bool scene_has_persistent(enum trial_kind kind)
{
    return kinds[kind].persistent;
}

bool scene_has_blocks(enum trial_kind kind)
{
    return kinds[kind].blocks;
}

/* ---- in elements */

struct scene scene_of(const struct trial *trial, enum ruccl_dtype dtype, uint32_t nranks)
{
    return (struct scene){ trial, dtype, nranks, ruccl_dtype_bytes(dtype),
                           trial->count / trial->row };
}

bool scene_is_exchange(const struct scene *s)
{
    return s->trial->kind == TRIAL_ALL_TO_ALL || s->trial->kind == TRIAL_ALL_TO_ALL_V;
}

uint64_t scene_units(const struct scene *s)
{
    return scene_is_exchange(s) ? s->rows : s->trial->count;
}

uint64_t scene_least_budget(const struct scene *s)
{
    const uint64_t row = scene_is_exchange(s) ? s->trial->row : 1;

    return s->width * row * (kinds[s->trial->kind].single ? 1 : s->nranks);
}

uint64_t scene_pair_rows(const struct scene *s, uint32_t from, uint32_t to)
{
    uint64_t seed = s->trial->count * 64 + from * 8 + to + 1;

    if (s->trial->kind == TRIAL_ALL_TO_ALL || (from == 0 && to == s->nranks - 1))
        return s->rows;
    if (from == 1 || to == 2)
        return 0;
    unit_random(&seed);
    return unit_random(&seed) % (s->rows + 1);
}

uint64_t scene_rows_sent(const struct scene *s, uint32_t from)
{
    uint64_t rows = 0;

    for (uint32_t to = 0; to < s->nranks; to++)
        rows += scene_pair_rows(s, from, to);
    return rows;
}

uint64_t scene_rows_received(const struct scene *s, uint32_t to)
{
    uint64_t rows = 0;

    for (uint32_t from = 0; from < s->nranks; from++)
        rows += scene_pair_rows(s, from, to);
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
        return scene_rows_sent(s, rank);
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
        return scene_rows_received(s, rank);
    default:
        return s->rows;
    }
}

uint64_t scene_in_count(const struct scene *s, uint32_t rank)
{
    return in_rows(s, rank) * s->trial->row;
}

bool scene_writes(const struct scene *s, uint32_t rank)
{
    if (s->trial->kind == TRIAL_REDUCE || s->trial->kind == TRIAL_GATHER)
        return rank == s->trial->root;
    return true;
}

/* ---- where tensors lie */

struct span scene_out_span(const struct scene *s, uint32_t rank)
{
    struct span span = { GUARD + s->trial->shift * s->width,
                         out_rows(s, rank) * s->trial->row * s->width };

    if (s->trial->in_place && s->trial->kind == TRIAL_REDUCE_SCATTER)
        span.at += rank * span.bytes;
    return span;
}

static struct span in_place_span(const struct scene *s, uint32_t rank)
{
    struct span span = { GUARD + s->trial->shift * s->width, scene_in_count(s, rank) * s->width };

    if (s->trial->kind == TRIAL_ALL_GATHER)
        span.at += rank * span.bytes;
    return span;
}

struct span scene_used_span(const struct scene *s, uint32_t rank)
{
    return s->trial->in_place && s->trial->kind == TRIAL_REDUCE_SCATTER ? in_place_span(s, rank)
                                                                        : scene_out_span(s, rank);
}

/* Spare rows of capacity that nothing comes to. */
static uint64_t spare_rows(const struct scene *s)
{
    return s->trial->spare && s->trial->kind == TRIAL_ALL_TO_ALL_V
               ? GUARD / TENSORS_WIDTH / s->trial->row
               : 0;
}

void scene_prepare(const struct scene *s, uint32_t rank, const uint8_t *given, uint8_t *out)
{
    const struct span used = scene_used_span(s, rank);

    memset(out, POISON, used.at + used.bytes + GUARD);
    if (s->trial->in_place) {
        const struct span in = in_place_span(s, rank);

        memcpy(out + in.at, given + s->trial->shift * s->width, in.bytes);
    }
}

static bool is_poison(const uint8_t *p, uint64_t bytes)
{
    return bytes == 0 || (p[0] == POISON && memcmp(p, p + 1, bytes - 1) == 0);
}

bool scene_kept_guards(const struct scene *s, uint32_t rank, const uint8_t *out)
{
    const struct span used = scene_used_span(s, rank);

    return is_poison(out, used.at) && is_poison(out + used.at + used.bytes, GUARD);
}

bool scene_kept_output(const struct scene *s, uint32_t rank, const uint8_t *given,
                       const uint8_t *out)
{
    const struct span in = in_place_span(s, rank), used = scene_used_span(s, rank);

    if (!s->trial->in_place)
        return is_poison(out + used.at, used.bytes);
    return !memcmp(out + in.at, given + s->trial->shift * s->width, in.bytes);
}

/* ---- what the output has to be */

static struct scene_piece piece_of(const struct scene *s, const uint8_t *from, uint64_t first,
                                   uint64_t count)
{
    return (struct scene_piece){ from + (s->trial->shift + first) * s->width, count };
}

static uint64_t rows_before(const struct scene *s, uint32_t from, uint32_t to)
{
    uint64_t rows = 0;

    for (uint32_t d = 0; d < to; d++)
        rows += scene_pair_rows(s, from, d);
    return rows;
}

uint32_t scene_pieces(const struct scene *s, uint32_t rank, uint8_t *const *given,
                      const uint8_t *expected, struct scene_piece *ret)
{
    const struct trial *j = s->trial;
    const uint64_t n = j->count;

    switch (j->kind) {
    case TRIAL_ALL_REDUCE:
    case TRIAL_REDUCE:
        ret[0] = piece_of(s, expected, 0, n);
        return 1;
    case TRIAL_REDUCE_SCATTER:
        ret[0] = piece_of(s, expected, rank * n, n);
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
                              scene_pair_rows(s, r, rank) * j->row);
        return s->nranks;
    }
}

/* ---- the call */

static struct ruccl_tensor tensor_in(const struct scene *s, const struct slab *slab, uint64_t at,
                                     uint64_t rows)
{
    struct ruccl_tensor t = { .dtype = s->dtype, .region = slab->region };

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

static struct ruccl_tensor input_of(const struct scene *s, uint32_t rank, const struct slab *in,
                                    const struct slab *out)
{
    if (s->trial->in_place)
        return tensor_in(s, out, in_place_span(s, rank).at, in_rows(s, rank));
    return tensor_in(s, in, s->trial->shift * s->width, in_rows(s, rank));
}

static struct ruccl_tensor output_of(const struct scene *s, uint32_t rank, const struct slab *out)
{
    return tensor_in(s, out, scene_out_span(s, rank).at, out_rows(s, rank) + spare_rows(s));
}

/* Whether this rank leaves out what only the root uses. */
static bool is_bare(const struct scene *s, uint32_t rank)
{
    return s->trial->spare && rank != s->trial->root;
}

static int call_all_to_all_v(const struct scene *s, uint32_t rank, struct ruccl_comm comm,
                             const struct ruccl_tensor *in, const struct ruccl_tensor *out,
                             struct ruccl_work **ret)
{
    uint64_t send[REFERENCE_RANKS], expected[REFERENCE_RANKS];

    for (uint32_t i = 0; i < s->nranks; i++) {
        send[i] = scene_pair_rows(s, rank, i);
        expected[i] = scene_pair_rows(s, i, rank);
    }
    return ruccl_all_to_all_v_async(comm, in, send, out, s->trial->spare ? NULL : expected, ret);
}

static int call_ring(const struct scene *s, uint32_t rank, struct ruccl_comm comm,
                     const struct ruccl_tensor *in, const struct ruccl_tensor *out,
                     struct ruccl_work **ret)
{
    const uint32_t next = (rank + 1) % s->nranks, before = (rank + s->nranks - 1) % s->nranks;
    int r = ruccl_send_async(comm, in, next, TAG, &ret[0]);

    if (r < 0)
        return r;
    if (s->ring_receive)
        comm = ruccl_on_stream(comm, s->ring_receive);
    r = ruccl_recv_async(comm, out, before, TAG, &ret[1]);
    if (r < 0)
        ruccl_work_release(ret[0]);
    return r;
}

int scene_call(const struct scene *s, uint32_t rank, struct ruccl_comm unbounded,
               const struct slab *in_slab, const struct slab *out_slab, struct ruccl_work **ret)
{
    const struct trial *j = s->trial;
    const struct ruccl_comm comm = ruccl_bounded(unbounded, j->budget);
    const struct ruccl_tensor in = input_of(s, rank, in_slab, out_slab);
    const struct ruccl_tensor out = output_of(s, rank, out_slab);
    const bool bare = is_bare(s, rank);
    int r;

    switch (j->kind) {
    case TRIAL_ALL_REDUCE:
        r = ruccl_all_reduce_async(comm, &in, &out, j->op, ret);
        break;
    case TRIAL_REDUCE:
        r = ruccl_reduce_async(comm, &in, bare ? NULL : &out, j->op, j->root, ret);
        break;
    case TRIAL_REDUCE_SCATTER:
        r = ruccl_reduce_scatter_async(comm, &in, &out, j->op, ret);
        break;
    case TRIAL_ALL_GATHER:
        r = ruccl_all_gather_async(comm, &in, &out, ret);
        break;
    case TRIAL_BROADCAST:
        r = ruccl_broadcast_async(comm, bare ? NULL : &in, &out, j->root, ret);
        break;
    case TRIAL_GATHER:
        r = ruccl_gather_async(comm, &in, bare ? NULL : &out, j->root, ret);
        break;
    case TRIAL_SCATTER:
        r = ruccl_scatter_async(comm, bare ? NULL : &in, &out, j->root, ret);
        break;
    case TRIAL_ALL_TO_ALL:
        r = ruccl_all_to_all_async(comm, &in, &out, ret);
        break;
    case TRIAL_ALL_TO_ALL_V:
        r = call_all_to_all_v(s, rank, comm, &in, &out, ret);
        break;
    default:
        r = call_ring(s, rank, comm, &in, &out, ret);
    }
    if (r < 0)
        return r;
    return j->kind == TRIAL_RING ? 2 : 1;
}

int scene_call_blocking(const struct scene *s, uint32_t rank, struct ruccl_comm unbounded,
                        const struct slab *in_slab, const struct slab *out_slab)
{
    const struct trial *j = s->trial;
    const struct ruccl_comm comm = ruccl_bounded(unbounded, j->budget);
    const struct ruccl_tensor in = input_of(s, rank, in_slab, out_slab);
    const struct ruccl_tensor out = output_of(s, rank, out_slab);
    const bool bare = is_bare(s, rank);

    switch (j->kind) {
    case TRIAL_ALL_REDUCE:
        return ruccl_all_reduce(comm, &in, &out, j->op);
    case TRIAL_REDUCE:
        return ruccl_reduce(comm, &in, bare ? NULL : &out, j->op, j->root);
    case TRIAL_REDUCE_SCATTER:
        return ruccl_reduce_scatter(comm, &in, &out, j->op);
    case TRIAL_ALL_GATHER:
        return ruccl_all_gather(comm, &in, &out);
    case TRIAL_BROADCAST:
        return ruccl_broadcast(comm, bare ? NULL : &in, &out, j->root);
    case TRIAL_GATHER:
        return ruccl_gather(comm, &in, bare ? NULL : &out, j->root);
    case TRIAL_SCATTER:
        return ruccl_scatter(comm, bare ? NULL : &in, &out, j->root);
    case TRIAL_ALL_TO_ALL:
        return ruccl_all_to_all(comm, &in, &out);
    default:
        abort();
    }
}

int scene_init_persistent(const struct scene *s, uint32_t rank, struct ruccl_comm unbounded,
                          const struct slab *in_slab, const struct slab *out_slab,
                          struct ruccl_persistent **ret)
{
    const struct trial *j = s->trial;
    const struct ruccl_comm comm = ruccl_bounded(unbounded, j->budget);
    const struct ruccl_tensor in = input_of(s, rank, in_slab, out_slab);
    const struct ruccl_tensor out = output_of(s, rank, out_slab);

    switch (j->kind) {
    case TRIAL_ALL_REDUCE:
        return ruccl_all_reduce_init(comm, &in, &out, j->op, ret);
    case TRIAL_REDUCE:
        return ruccl_reduce_init(comm, &in, &out, j->op, j->root, ret);
    case TRIAL_REDUCE_SCATTER:
        return ruccl_reduce_scatter_init(comm, &in, &out, j->op, ret);
    case TRIAL_ALL_GATHER:
        return ruccl_all_gather_init(comm, &in, &out, ret);
    case TRIAL_BROADCAST:
        return ruccl_broadcast_init(comm, &in, &out, j->root, ret);
    case TRIAL_GATHER:
        return ruccl_gather_init(comm, &in, &out, j->root, ret);
    case TRIAL_SCATTER:
        return ruccl_scatter_init(comm, &in, &out, j->root, ret);
    default:
        abort();
    }
}
