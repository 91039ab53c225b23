#include "tests/unit/windows_world.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define OUT 4096u /* where the outputs are, where they are not in place */

struct windows_world w;

static uint64_t clock_now(void)
{
    return w.now;
}

static void joined(void *owner, struct member *m, const struct error *e)
{
    assert_null(e);
    ((struct person *)owner)->member = m;
}

static void completed(void *owner, struct member *m, uint64_t serial, const struct completion *c)
{
    struct person *p = owner;

    assert_true(m == p->member && serial == SERIAL);
    p->answers++;
    p->made = c->persistent;
    p->error = c->error ? *c->error : (struct error){ 0 };
    if (!c->error)
        p->done = COUNT;
}

static void left(void *owner, struct member *m)
{
    assert_true(((struct person *)owner)->member == m);
    ((struct person *)owner)->member = NULL;
}

static void progressed(void *owner, struct member *m, uint64_t serial, uint64_t elements_done)
{
    struct person *p = owner;

    assert_true(m == p->member && serial == SERIAL && p->answers == 0);
    assert_true(p->in_window || p->out_window);
    assert_true(elements_done > p->done && elements_done < COUNT);
    p->done = elements_done;
}

static struct mapping *make_memory(void)
{
    struct mapping *m;
    int fd = memfd_create("windows", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_true(fd >= 0 && ftruncate(fd, BYTES) == 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    assert_int_equal(device_import_memfd(w.device, fd, BYTES, &m, NULL), 0);
    close(fd);
    return m;
}

static void form(void)
{
    char id[COMM_ID_BYTES];
    struct member *m;

    assert_int_equal(comms_id_new(w.comms, 1000, w.now, id, NULL), 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        struct request_join request = { .id = id,
                                        .rank = r,
                                        .nranks = RANKS,
                                        .label = "job",
                                        .timeout_us = TIMEOUT,
                                        .algorithm = "" };
        struct join join = { &request, &w.people[r], r, 1000, (pid_t)(500 + r) };

        assert_int_equal(comms_join(w.comms, &join, w.now, &m, NULL), 0);
    }
}

int open_world(void **state)
{
    const struct comm_events events = { joined, completed, left, progressed };
    struct comms_config config = { .now = clock_now,
                                   .host = "here",
                                   .node = "node",
                                   .overflow_uid = 65534,
                                   .id_lifetime_us = TIMEOUT,
                                   .chunk_bytes = 1 << 20,
                                   .max_comms = 1 };

    (void)state;
    memset(&w, 0, sizeof(w));
    w.now = 5;
    w.budget = BUDGET_NONE;
    assert_int_equal(device_flaky.open(&(struct device_config){ 0 }, &w.device, NULL), 0);
    assert_int_equal(engine_new(w.device, NULL, NULL, &w.engine), 0);
    config.engine = w.engine;
    assert_int_equal(comms_new(&config, &events, &w.comms), 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        w.people[r].memory = make_memory();
        for (uint32_t i = 0; i < RANKS * COUNT; i++)
            w.people[r].given[i] = (int32_t)((i + 1) * (r + 1));
    }
    form();
    return 0;
}

int close_world(void **state)
{
    (void)state;
    for (uint32_t r = 0; r < RANKS; r++)
        if (w.people[r].member)
            member_lost(w.people[r].member, "died", w.now);
    if (comms_count(w.comms) != 0 || flaky_pending(w.device) != 0)
        return -1;
    comms_free(w.comms);
    engine_free(w.engine);
    for (uint32_t r = 0; r < RANKS; r++) {
        if (w.people[r].memory->refs != 1)
            return -1;
        mapping_unref(w.people[r].memory);
    }
    w.device->ops->close(w.device);
    return 0;
}

/* ---- what clients do */

int32_t *in_memory(const struct person *p)
{
    return (int32_t *)p->memory->base;
}

int32_t *out_memory(const struct person *p)
{
    return p->in_place ? in_memory(p) : (int32_t *)((char *)p->memory->base + OUT);
}

void set_windows(uint32_t rank, uint64_t in, uint64_t out, bool in_place)
{
    struct person *p = &w.people[rank];

    p->in_window = in;
    p->out_window = out;
    p->in_place = in_place;
}

void set_all(uint64_t in, uint64_t out, bool in_place)
{
    for (uint32_t r = 0; r < RANKS; r++)
        set_windows(r, in, out, in_place);
}

static uint32_t blocks_of(enum collective_id kind, bool output)
{
    return collective_get(kind)->shape == (output ? SHAPE_TIMES_R : SHAPE_OVER_R) ? RANKS : 1;
}

struct post call(uint32_t rank, enum collective_id kind, uint32_t root)
{
    const struct person *p = &w.people[rank];
    const uint64_t count = kind == COLLECTIVE_REDUCE_SCATTER ? RANKS * COUNT : COUNT;

    return (struct post){ .serial = SERIAL,
                          .d = { .kind = kind,
                                 .op = OPERATOR_SUM,
                                 .dtype = DTYPE_I32,
                                 .shape = { 1, { count } },
                                 .root = root,
                                 .budget = w.budget },
                          .in = { p->memory, 0, p->in_window },
                          .out = { p->memory, p->in_place ? 0 : OUT, p->out_window } };
}

void post(uint32_t rank, const struct post *p)
{
    struct person *who = &w.people[rank];

    who->ready = who->done = who->taken = who->answers = 0;
    who->in_blocks = blocks_of(p->d.kind, false);
    who->out_blocks = blocks_of(p->d.kind, true);
    memset(who->got, 0, sizeof(who->got));
    if (!who->in_window)
        memcpy(in_memory(who), who->given, sizeof(who->given));
    assert_int_equal(member_post(who->member, p, w.now), 0);
}

void run(uint32_t rank, enum collective_id kind)
{
    struct post p = call(rank, kind, 0);

    post(rank, &p);
}

void run_all(enum collective_id kind)
{
    for (uint32_t r = 0; r < RANKS; r++)
        run(r, kind);
}

void staged(uint32_t rank, uint64_t ready, uint64_t taken)
{
    member_staged(w.people[rank].member, SERIAL, ready, taken, w.now);
}

void bring(struct person *p, uint64_t n, bool takes)
{
    const uint64_t room = (takes ? p->taken : p->done) + p->in_window;
    const uint64_t end = MIN(MIN(p->ready + n, COUNT), room);

    for (; p->in_window && p->ready < end; p->ready++)
        for (uint32_t b = 0; b < p->in_blocks; b++)
            in_memory(p)[b * p->in_window + p->ready % p->in_window] =
                p->given[b * COUNT + p->ready];
}

void take(struct person *p, uint64_t n)
{
    const uint64_t end = MIN(p->taken + n, p->done);

    for (; p->out_window && p->taken < end; p->taken++)
        for (uint32_t b = 0; b < p->out_blocks; b++)
            p->got[b * COUNT + p->taken] =
                out_memory(p)[b * p->out_window + p->taken % p->out_window];
}

void step(void)
{
    while (flaky_pending(w.device) || engine_wants_turn(w.engine))
        engine_poll(w.engine);
}

void go_on(uint64_t n)
{
    for (unsigned turn = 0; w.people[0].answers == 0; turn++) {
        assert_true(turn < 10 * COUNT);
        for (uint32_t r = 0; r < RANKS && w.people[r].answers == 0; r++) {
            struct person *p = &w.people[r];

            take(p, n);
            bring(p, n, p->in_place && p->out_window);
            staged(r, p->ready, p->taken);
        }
        step();
    }
    for (uint32_t r = 0; r < RANKS; r++)
        take(&w.people[r], COUNT);
}

static void expect_sums(uint32_t rank)
{
    const struct person *p = &w.people[rank];
    const int32_t *got = p->out_window ? p->got : out_memory(p);

    assert_int_equal(p->error.code, 0);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(got[i], 6 * (i + 1));
}

void expect_all_sums(void)
{
    for (uint32_t r = 0; r < RANKS; r++)
        expect_sums(r);
}

void expect_failure(enum error_code code, const char *words)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        if (!w.people[r].member)
            continue;
        assert_int_equal(w.people[r].answers, 1);
        assert_int_equal(w.people[r].error.code, code);
        if (!strstr(w.people[r].error.text, words))
            fail_msg("no '%s' in: %s", words, w.people[r].error.text);
    }
}
