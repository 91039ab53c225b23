#include "tests/end_to_end/persistent_world.h"

#include <string.h>

struct harness harness;
struct stage *stage;
struct world world;

int stop(void **state)
{
    (void)state;
    stage = stage_close(stage);
    return harness_stop(&harness);
}

void open_all(void)
{
    harness_start(&harness, NULL);
    world_open(&world, &harness, RANKS, RANKS);
}

/* ---- memory */

void set_alloc(struct set *s)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        const uint64_t bytes = RANKS * COUNT * sizeof(int32_t);

        assert_int_equal(ruccl_alloc(world_conn(&world, r), bytes, &s->in[r]), 0);
        assert_int_equal(ruccl_alloc(world_conn(&world, r), bytes, &s->out[r]), 0);
    }
}

void set_free(struct set *s)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        ruccl_free(s->in[r]);
        ruccl_free(s->out[r]);
    }
}

static int32_t given(uint32_t rank, uint64_t i, uint32_t round)
{
    return (int32_t)((rank + 1) * (i + 1 + 31 * round));
}

void set_fill(const struct set *s, uint32_t round)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        int32_t *in = ruccl_region_data(s->in[r]);

        for (uint64_t i = 0; i < RANKS * COUNT; i++)
            in[i] = given(r, i, round);
        memset(ruccl_region_data(s->out[r]), 0, RANKS * COUNT * sizeof(int32_t));
    }
}

/* ---- what is right: element i of rank's output */

static bool has_output(enum kind kind, uint32_t rank, uint32_t root)
{
    return rank == root || (kind != REDUCE && kind != GATHER);
}

static uint64_t output_blocks(enum kind kind)
{
    return kind == ALL_GATHER || kind == GATHER ? RANKS : 1;
}

static int32_t expected(enum kind kind, uint32_t rank, uint32_t root, uint64_t i, uint32_t round)
{
    switch (kind) {
    case ALL_REDUCE:
    case REDUCE:
        return 6 * given(0, i, round);
    case REDUCE_SCATTER:
        return 6 * given(0, rank * COUNT + i, round);
    case ALL_GATHER:
    case GATHER:
        return given((uint32_t)(i / COUNT), i % COUNT, round);
    case BROADCAST:
        return given(root, i, round);
    default:
        return given(root, rank * COUNT + i, round);
    }
}

void expect_outputs(const struct set *s, enum kind kind, uint32_t root, uint32_t round)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        const int32_t *out = ruccl_region_data(s->out[r]);
        const uint64_t n = output_blocks(kind) * COUNT;

        for (uint64_t i = 0; i < RANKS * COUNT; i++)
            if (out[i] !=
                (i < n && has_output(kind, r, root) ? expected(kind, r, root, i, round) : 0))
                fail_msg("kind %d, start %u, rank %u: element %llu is %d", (int)kind, round, r,
                         (unsigned long long)i, out[i]);
    }
}

/* ---- making */

int make_one(const struct maker *m, struct ruccl_persistent **ret)
{
    switch (m->kind) {
    case ALL_REDUCE:
        return ruccl_all_reduce_init(m->comm, &m->in, &m->out, RUCCL_SUM, ret);
    case ALL_GATHER:
        return ruccl_all_gather_init(m->comm, &m->in, &m->out, ret);
    case REDUCE_SCATTER:
        return ruccl_reduce_scatter_init(m->comm, &m->in, &m->out, RUCCL_SUM, ret);
    case BROADCAST:
        return ruccl_broadcast_init(m->comm, &m->in, &m->out, m->root, ret);
    case REDUCE:
        return ruccl_reduce_init(m->comm, &m->in, &m->out, RUCCL_SUM, m->root, ret);
    case GATHER:
        return ruccl_gather_init(m->comm, &m->in, &m->out, m->root, ret);
    default:
        return ruccl_scatter_init(m->comm, &m->in, &m->out, m->root, ret);
    }
}

static void *make(void *arg)
{
    struct maker *m = arg;

    m->result = make_one(m, &m->made);
    if (m->result < 0)
        m->error = *ruccl_last_error();
    return NULL;
}

void makers_init(struct maker makers[RANKS], const struct set *s, enum kind kind, uint32_t root)
{
    const bool wide_in = kind == REDUCE_SCATTER || kind == SCATTER;

    for (uint32_t r = 0; r < RANKS; r++)
        makers[r] = (struct maker){
            .comm = world.comms[r],
            .kind = kind,
            .root = root,
            .in = vector_of(s->in[r], wide_in ? RANKS * COUNT : COUNT),
            .out = vector_of(s->out[r], output_blocks(kind) * COUNT),
        };
}

void make_all(struct maker makers[RANKS])
{
    for (uint32_t r = 0; r < RANKS; r++)
        pthread_create(&makers[r].thread, NULL, make, &makers[r]);
    for (uint32_t r = 0; r < RANKS; r++)
        pthread_join(makers[r].thread, NULL);
}

void made_of(const struct set *s, enum kind kind, uint32_t root,
             struct ruccl_persistent *ret[RANKS])
{
    struct maker makers[RANKS];

    makers_init(makers, s, kind, root);
    make_all(makers);
    for (uint32_t r = 0; r < RANKS; r++) {
        if (makers[r].result < 0)
            fail_msg("init: %s", makers[r].error.text);
        ret[r] = makers[r].made;
    }
}

struct ruccl_work *started(struct ruccl_persistent *p)
{
    struct ruccl_work *work;

    if (ruccl_start(p, &work) < 0)
        fail_msg("start: %s", ruccl_last_error()->text);
    return work;
}

void start_all(struct ruccl_persistent *p[RANKS])
{
    struct ruccl_work *works[RANKS];

    for (uint32_t r = 0; r < RANKS; r++)
        works[r] = started(p[r]);
    for (uint32_t r = 0; r < RANKS; r++)
        expect_done(works[r], "start");
}

void release_all(struct ruccl_persistent *p[RANKS])
{
    for (uint32_t r = 0; r < RANKS; r++)
        ruccl_persistent_release(p[r]);
}

void expect_going_on(struct ruccl_persistent *p[RANKS], const struct set *s)
{
    struct ruccl_work *works[RANKS];

    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(ruccl_barrier_async(world.comms[r], &works[r]), 0);
    for (uint32_t r = 0; r < RANKS; r++)
        expect_done(works[r], "barrier");
    set_fill(s, 99);
    start_all(p);
    expect_outputs(s, ALL_REDUCE, 0, 99);
}
