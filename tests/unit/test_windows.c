/*
 * Windows: what the daemon reads and writes when, of tensors that pass through a short stage, and
 * that a client that lies, fails or stops in the middle harms only itself.
 */
#include "tests/unit/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/comm/persistent.h"
#include "tests/contract/flaky_device.h"

#define RANKS   3u
#define COUNT   100u
#define WINDOW  32u /* elements, of which a chunk is 8 */
#define BYTES   8192u
#define OUT     4096u /* where the outputs are, where they are not in place */
#define TIMEOUT 2000000u
#define SERIAL  9u

/* A rank, and the client behind it, which brings `given` and takes `got`. */
struct person {
    struct member *member;
    struct mapping *memory;
    uint64_t in_window, out_window;
    bool in_place;
    int32_t given[RANKS * COUNT], got[RANKS * COUNT];
    uint32_t in_blocks, out_blocks; /* of the last post's tensors; each is COUNT elements */
    uint64_t ready, done, taken; /* as in struct window of the library */
    uint32_t answers, made;
    struct error error; /* of the last answer */
};

static struct {
    uint64_t now;
    struct device *device;
    struct engine *engine;
    struct comms *comms;
    uint64_t budget; /* of the posts to come */
    struct person people[RANKS];
} w;

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

static int open_world(void **state)
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

/* However a test ends, nothing is under way, and nobody holds memory once the members are gone. */
static int close_world(void **state)
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

static int32_t *in_memory(const struct person *p)
{
    return (int32_t *)p->memory->base;
}

static int32_t *out_memory(const struct person *p)
{
    return p->in_place ? in_memory(p) : (int32_t *)((char *)p->memory->base + OUT);
}

static void set_windows(uint32_t rank, uint64_t in, uint64_t out, bool in_place)
{
    struct person *p = &w.people[rank];

    p->in_window = in;
    p->out_window = out;
    p->in_place = in_place;
}

static void set_all(uint64_t in, uint64_t out, bool in_place)
{
    for (uint32_t r = 0; r < RANKS; r++)
        set_windows(r, in, out, in_place);
}

static uint32_t blocks_of(enum collective_id kind, bool output)
{
    return collective_get(kind)->shape == (output ? SHAPE_TIMES_R : SHAPE_OVER_R) ? RANKS : 1;
}

static struct post call(uint32_t rank, enum collective_id kind, uint32_t root)
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

static void post(uint32_t rank, const struct post *p)
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

static void run(uint32_t rank, enum collective_id kind)
{
    struct post p = call(rank, kind, 0);

    post(rank, &p);
}

static void run_all(enum collective_id kind)
{
    for (uint32_t r = 0; r < RANKS; r++)
        run(r, kind);
}

static void staged(uint32_t rank, uint64_t ready, uint64_t taken)
{
    member_staged(w.people[rank].member, SERIAL, ready, taken, w.now);
}

/* Brings up to `n` elements more, as far as there is room. */
static void bring(struct person *p, uint64_t n, bool takes)
{
    const uint64_t room = (takes ? p->taken : p->done) + p->in_window;
    const uint64_t end = MIN(MIN(p->ready + n, COUNT), room);

    for (; p->in_window && p->ready < end; p->ready++)
        for (uint32_t b = 0; b < p->in_blocks; b++)
            in_memory(p)[b * p->in_window + p->ready % p->in_window] =
                p->given[b * COUNT + p->ready];
}

static void take(struct person *p, uint64_t n)
{
    const uint64_t end = MIN(p->taken + n, p->done);

    for (; p->out_window && p->taken < end; p->taken++)
        for (uint32_t b = 0; b < p->out_blocks; b++)
            p->got[b * COUNT + p->taken] =
                out_memory(p)[b * p->out_window + p->taken % p->out_window];
}

static void step(void)
{
    while (flaky_pending(w.device) || engine_wants_turn(w.engine))
        engine_poll(w.engine);
}

/* Everybody brings and takes `n` elements at a time, until all have been told of the end. */
static void go_on(uint64_t n)
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

static void expect_all_sums(void)
{
    for (uint32_t r = 0; r < RANKS; r++)
        expect_sums(r);
}

static void expect_failure(enum error_code code, const char *words)
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

/* ---- gates */

TEST(a_chunk_waits_for_every_ranks_input)
{
    set_all(WINDOW, 0, false);
    run_all(COLLECTIVE_ALL_REDUCE);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(flaky_taken(w.device), 0);
        bring(&w.people[r], 8, false);
        staged(r, 7, 0);
        assert_int_equal(flaky_taken(w.device), 0);
    }
    staged(0, 8, 0);
    staged(2, 8, 0);
    assert_int_equal(flaky_taken(w.device), 0);
    staged(1, 8, 0);
    assert_int_equal(flaky_taken(w.device), 1);
    step();
    assert_int_equal(flaky_taken(w.device), 1);
    assert_int_equal(w.people[1].done, 8);
    go_on(COUNT);
    expect_all_sums();
}

TEST(a_chunk_waits_until_the_output_in_its_place_is_taken)
{
    set_windows(1, 0, WINDOW, false);
    run_all(COLLECTIVE_ALL_REDUCE);
    step();
    assert_int_equal(flaky_taken(w.device), 4);
    assert_int_equal(w.people[1].done, WINDOW);
    staged(1, 0, 7);
    assert_int_equal(flaky_taken(w.device), 4);
    take(&w.people[1], 16);
    staged(1, 0, 16);
    step();
    assert_int_equal(flaky_taken(w.device), 6);
    go_on(5);
    expect_all_sums();
}

TEST(what_is_staged_before_the_others_come_counts)
{
    set_windows(0, WINDOW, 0, false);
    run(0, COLLECTIVE_ALL_REDUCE);
    bring(&w.people[0], WINDOW, false);
    staged(0, WINDOW, 0);
    run(1, COLLECTIVE_ALL_REDUCE);
    run(2, COLLECTIVE_ALL_REDUCE);
    step();
    assert_int_equal(w.people[0].done, WINDOW);
    go_on(1);
    expect_all_sums();
}

TEST(only_who_has_a_window_is_told_of_progress)
{
    set_windows(2, WINDOW, WINDOW, true);
    run_all(COLLECTIVE_ALL_REDUCE);
    bring(&w.people[2], WINDOW, true);
    staged(2, WINDOW, 0);
    step();
    assert_int_equal(w.people[2].done, WINDOW);
    assert_int_equal(w.people[0].done, 0);
    go_on(3);
    expect_all_sums();
}

TEST(a_window_longer_than_the_tensor_is_all_of_it)
{
    set_all(512, 512, true);
    run_all(COLLECTIVE_ALL_REDUCE);
    for (uint32_t r = 0; r < RANKS; r++) {
        bring(&w.people[r], COUNT, true);
        staged(r, COUNT, 0);
    }
    step();
    for (uint32_t r = 0; r < RANKS; r++)
        take(&w.people[r], COUNT);
    expect_all_sums();
}

/* ---- any mixture */

/* Elements of a chunk under the budget; 0: there is none. */
static uint64_t chunk_of(enum collective_id kind)
{
    const struct descriptor d = {
        .kind = kind, .dtype = DTYPE_I32, .budget = w.budget, .nranks = RANKS
    };

    return w.budget == BUDGET_NONE ? 0 : descriptor_chunk(&d);
}

/* Of tensors in blocks shorter than these. */
static uint64_t random_window(enum collective_id kind, uint64_t *seed)
{
    const uint64_t chunk = chunk_of(kind), times = 1 + unit_random(seed) % 9;

    if (chunk == 0)
        return (const uint64_t[]){ 0, 4, 16, 32, 64 }[unit_random(seed) % 5];
    if (unit_random(seed) % 4 == 0 ||
        (collective_get(kind)->shape != SHAPE_SAME && times * chunk >= COUNT))
        return 0;
    return times * chunk;
}

static bool takes_part(enum collective_id kind, uint32_t rank, uint32_t root, bool output)
{
    const uint32_t flags = collective_get(kind)->flags;

    return rank == root || !(flags & (output ? COLLECTIVE_OUT_AT_ROOT : COLLECTIVE_IN_AT_ROOT));
}

static void mix(enum collective_id kind, uint32_t root, uint64_t *seed)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        const bool in_place = collective_get(kind)->shape == SHAPE_SAME && unit_random(seed) % 2;
        const uint64_t in = random_window(kind, seed), out = random_window(kind, seed);

        set_windows(r, in, in_place ? in : out, in_place);
        /* what does not count has no window that anybody moves */
        if (!takes_part(kind, r, root, false))
            w.people[r].in_window = 0;
        if (!takes_part(kind, r, root, true))
            w.people[r].out_window = 0;
    }
}

/* What a rank's output holds at `i` of a block. */
static int32_t right(enum collective_id kind, uint32_t root, uint32_t rank, uint32_t block,
                     uint32_t i)
{
    switch (kind) {
    case COLLECTIVE_BROADCAST:
        return w.people[root].given[i];
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_GATHER:
        return w.people[block].given[i];
    case COLLECTIVE_SCATTER:
        return w.people[root].given[rank * COUNT + i];
    case COLLECTIVE_REDUCE_SCATTER:
        return (int32_t)(6 * (rank * COUNT + i + 1));
    default:
        return (int32_t)(6 * (i + 1));
    }
}

static void expect_mixed(enum collective_id kind, uint32_t root)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct person *p = &w.people[r];
        const int32_t *got = p->out_window ? p->got : out_memory(p);

        if (p->error.code)
            fail_msg("%s, budget %lld: %s", collective_get(kind)->name, (long long)w.budget,
                     p->error.text);
        for (uint32_t k = 0; k < p->out_blocks * COUNT && takes_part(kind, r, root, true); k++)
            assert_int_equal(got[k], right(kind, root, r, k / COUNT, k % COUNT));
    }
}

static void try_mixture(enum collective_id kind, uint32_t root, uint64_t *seed)
{
    mix(kind, root, seed);
    for (uint32_t r = 0; r < RANKS; r++) {
        struct post p = call(r, kind, root);

        post(r, &p);
    }
    go_on(1 + unit_random(seed) % 40);
    expect_mixed(kind, root);
}

static const enum collective_id kinds[] = {
    COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE,         COLLECTIVE_BROADCAST, COLLECTIVE_ALL_GATHER,
    COLLECTIVE_GATHER,     COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_SCATTER,
};

static void try_mixtures(uint64_t seed)
{
    static const uint64_t budgets[] = { BUDGET_NONE,    RANKS * 4 * 7 + 11, RANKS * 4,
                                        RANKS * 4 * 33, RANKS * 4 * 100,    RANKS * 4 * 1000 };

    for (unsigned round = 0; round < 200 * ARRAY_SIZE(kinds); round++) {
        flaky_configure(w.device, &(struct flaky_config){ .seed = round + 1,
                                                          .busy_percent = round % 4 * 20,
                                                          .inline_percent = round % 5 * 25 });
        w.budget = budgets[unit_random(&seed) % ARRAY_SIZE(budgets)];
        try_mixture(kinds[round % ARRAY_SIZE(kinds)], (uint32_t)(unit_random(&seed) % RANKS),
                    &seed);
    }
}

TEST(windows_of_any_kind_mix_and_the_bits_are_right)
{
    try_mixtures(11);
}

/* A chunk is as long as the budget says, and who copies is not told of each where they are short.
 */
TEST(with_a_budget_its_chunks_pass)
{
    w.budget = RANKS * 5 * sizeof(int32_t);
    set_all(40, 40, true);
    run_all(COLLECTIVE_ALL_REDUCE);
    for (uint32_t r = 0; r < RANKS; r++)
        bring(&w.people[r], 40, true);
    staged(0, 40, 0);
    staged(1, 14, 0);
    staged(2, 40, 0);
    step();
    assert_int_equal(flaky_taken(w.device), 2);
    assert_int_equal(w.people[0].done, 10);
    staged(1, 15, 0);
    step();
    assert_int_equal(flaky_taken(w.device), 3);
    assert_int_equal(w.people[0].done, 10);
    staged(1, 40, 0);
    step();
    assert_int_equal(flaky_taken(w.device), 8);
    assert_true(w.people[0].done >= 40);
    go_on(11);
    expect_all_sums();
}

/* ---- lies */

TEST(numbers_that_go_back_mean_nothing)
{
    set_all(WINDOW, WINDOW, true);
    run_all(COLLECTIVE_ALL_REDUCE);
    for (uint32_t r = 0; r < RANKS; r++) {
        bring(&w.people[r], 16, true);
        staged(r, 16, 0);
        staged(r, 3, 0);
    }
    step();
    assert_int_equal(w.people[0].done, 16);
    go_on(8);
    expect_all_sums();
}

TEST(who_says_too_much_gets_what_lies_there_and_harms_nobody_else)
{
    set_windows(1, WINDOW, WINDOW, true);
    run_all(COLLECTIVE_ALL_REDUCE);
    memset(w.people[1].memory->base, 0, BYTES);
    staged(1, UINT64_MAX, UINT64_MAX);
    step();
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(w.people[r].error.code, 0);
    for (uint32_t i = 0; i < WINDOW; i++) /* the first turn of the window was all zero */
        assert_int_equal(out_memory(&w.people[0])[i], 4 * (i + 1));
    for (uint32_t i = WINDOW; i < BYTES / sizeof(int32_t); i++)
        assert_int_equal(in_memory(&w.people[1])[i], 0);
}

TEST(what_nobody_waits_for_is_ignored)
{
    set_all(0, 0, false);
    run(0, COLLECTIVE_BARRIER);
    staged(0, 5, 5);
    member_staged(w.people[0].member, SERIAL + 1, 5, 5, w.now);
    run(1, COLLECTIVE_BARRIER);
    run(2, COLLECTIVE_BARRIER);
    staged(0, 5, 5); /* of one that is over */
    assert_int_equal(w.people[2].error.code, 0);

    run_all(COLLECTIVE_ALL_REDUCE);
    staged(1, UINT64_MAX, UINT64_MAX); /* of one without windows, while it runs */
    step();
    expect_all_sums();
}

TEST(a_persistent_operation_has_no_windows_to_move)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        struct post p = call(r, COLLECTIVE_ALL_REDUCE, 0);

        p.persistent = true;
        post(r, &p);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(member_start(w.people[r].member,
                                      &(struct start){ .id = w.people[r].made, .serial = SERIAL },
                                      w.now),
                         0);
    staged(2, 1, UINT64_MAX);
    step();
    expect_all_sums();
}

/* ---- windows that make no sense */

static void expect_rejected(const struct post *odd, enum error_code code, const char *words)
{
    struct post even = call(1, odd->d.kind, 0);

    even.d.budget = odd->d.budget;
    even.persistent = odd->persistent;
    post(0, odd);
    post(1, &even);
    even = call(2, odd->d.kind, 0);
    even.d.budget = odd->d.budget;
    even.persistent = odd->persistent;
    post(2, &even);
    expect_failure(code, words);
    assert_int_equal(w.people[0].error.ranks[0], 0);
    assert_int_equal(flaky_taken(w.device), 0);
}

TEST(exchanges_and_what_is_persistent_take_no_windows)
{
    struct post p;

    set_windows(0, WINDOW, 0, false);
    p = call(0, COLLECTIVE_ALL_TO_ALL, 0);
    p.d.shape.axes[0] = COUNT - COUNT % RANKS;
    post(0, &p);
    assert_int_equal(w.people[0].answers, 0);
    run(1, COLLECTIVE_ALL_TO_ALL);
    run(2, COLLECTIVE_ALL_TO_ALL);
    assert_int_equal(w.people[1].error.code, ERROR_INVALID_ARGUMENT);
    p = call(0, COLLECTIVE_ALL_REDUCE, 0);
    p.persistent = true;
    expect_rejected(&p, ERROR_INVALID_ARGUMENT, "but takes none");
}

TEST(windows_are_powers_of_two_or_of_whole_chunks)
{
    static const char power[] = "takes one of a power of two, at least 4, without a budget";
    struct post p;

    set_windows(0, WINDOW, 0, false);
    p = call(0, COLLECTIVE_ALL_REDUCE, 0);
    p.in.window = 2;
    expect_rejected(&p, ERROR_INVALID_ARGUMENT, "input has a window of 2 elements");
    expect_failure(ERROR_INVALID_ARGUMENT, power);
    p.in.window = 48;
    expect_rejected(&p, ERROR_INVALID_ARGUMENT, power);
    p.d.budget = RANKS * 5 * sizeof(int32_t);
    expect_rejected(&p, ERROR_INVALID_ARGUMENT, "takes one of whole chunks with a budget");
    p.d.budget = 2;
    expect_rejected(&p, ERROR_BUDGET_TOO_SMALL, "the least that works is 12");
    p.d.budget = BUDGET_NONE;
    p.in.window = UINT64_MAX / 3;
    expect_rejected(&p, ERROR_INVALID_ARGUMENT, power);
}

TEST(windows_of_blocks_are_shorter_than_these)
{
    struct post p;

    set_windows(0, 128, 0, false);
    p = call(0, COLLECTIVE_ALL_GATHER, 0);
    expect_rejected(&p, ERROR_INVALID_ARGUMENT, "takes one that is shorter than a rank's block");
    set_windows(0, 0, 64, false);
    p = call(0, COLLECTIVE_ALL_GATHER, 0);
    p.out.offset = BYTES - RANKS * 64 * sizeof(int32_t) + sizeof(int32_t);
    expect_rejected(&p, ERROR_OUT_OF_RANGE, "output of 768 bytes");
}

/* Where they would lie if they had no windows is not where they lie. */
TEST(what_would_be_in_place_without_windows_is_not)
{
    struct post p;

    for (uint32_t r = 1; r < RANKS; r++)
        set_windows(r, 0, 0, false);
    set_windows(0, 16, 16, false);
    p = call(0, COLLECTIVE_ALL_GATHER, 0);
    p.out.offset = 0;
    expect_rejected(&p, ERROR_OVERLAP, "rank 0 overlap");
}

TEST(pairs_take_no_windows)
{
    struct post p;

    set_windows(0, WINDOW, 0, false);
    p = call(0, COLLECTIVE_SEND, 0);
    p.peer = 1;
    post(0, &p);
    run(1, COLLECTIVE_RECV);
    assert_int_equal(w.people[0].error.code, ERROR_INVALID_ARGUMENT);
    assert_int_equal(w.people[1].error.code, ERROR_INVALID_ARGUMENT);
}

TEST(a_window_lies_in_its_region)
{
    struct post p;

    set_windows(0, WINDOW, 0, false);
    p = call(0, COLLECTIVE_ALL_REDUCE, 0);
    p.in.offset = BYTES - WINDOW * sizeof(int32_t) + sizeof(int32_t);
    expect_rejected(&p, ERROR_OUT_OF_RANGE, "input of 128 bytes");
    p.in.offset = BYTES - 1;
    expect_rejected(&p, ERROR_MISALIGNED, "");
    p.in.offset = 0;
    p.in.window = 1ull << 63; /* no bytes that 64 bits hold; the tensor has fewer */
    post(0, &p);
    run(1, COLLECTIVE_ALL_REDUCE);
    run(2, COLLECTIVE_ALL_REDUCE);
    bring(&w.people[0], COUNT, false);
    memcpy(in_memory(&w.people[0]), w.people[0].given, sizeof(w.people[0].given));
    staged(0, COUNT, 0);
    step();
    expect_all_sums();
}

/* The same bytes, but not the same elements at the same time. */
TEST(in_place_is_of_one_window)
{
    struct post p;

    set_windows(0, WINDOW, 2 * WINDOW, true);
    p = call(0, COLLECTIVE_ALL_REDUCE, 0);
    expect_rejected(&p, ERROR_OVERLAP, "rank 0 overlap");
    set_windows(0, WINDOW, 0, true);
    p = call(0, COLLECTIVE_ALL_REDUCE, 0);
    expect_rejected(&p, ERROR_OVERLAP, "rank 0 overlap");
    set_windows(0, 0, WINDOW, true);
    p = call(0, COLLECTIVE_ALL_REDUCE, 0);
    expect_rejected(&p, ERROR_OVERLAP, "rank 0 overlap");
}

/* ---- the end in the middle */

/* Posts, and goes as far as `chunks` chunks into it. */
static void begin(uint64_t chunks)
{
    set_all(WINDOW, WINDOW, true);
    run_all(COLLECTIVE_ALL_REDUCE);
    for (uint32_t r = 0; r < RANKS; r++) {
        bring(&w.people[r], chunks * 8, true);
        staged(r, chunks * 8, 0);
    }
}

static void expect_memory_free(void)
{
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(w.people[r].memory->refs, 1);
}

TEST(a_failing_chunk_ends_it_for_all)
{
    flaky_configure(w.device,
                    &(struct flaky_config){ .seed = 1, .fail_task = 2, .fail_errno = EIO });
    begin(4);
    step();
    expect_failure(ERROR_SYSTEM, "all_reduce 1 of 'job'");
    expect_memory_free();
    for (uint32_t r = 0; r < RANKS; r++)
        staged(r, COUNT, COUNT);
    assert_true(flaky_taken(w.device) <= 3);
    set_all(0, 0, false);
    run_all(COLLECTIVE_ALL_REDUCE); /* the communicator goes on */
    step();
    expect_all_sums();
}

TEST(a_death_while_all_wait_for_data_is_told_at_once)
{
    begin(2);
    step();
    assert_int_equal(w.people[0].done, 16);
    member_lost(w.people[1].member, "died", w.now);
    w.people[1].member = NULL;
    expect_failure(ERROR_RANK_LOST, "rank 1 (pid 501 on here) died");
    expect_memory_free();
}

TEST(a_death_while_data_moves_waits_for_the_device)
{
    begin(2);
    assert_int_equal(flaky_pending(w.device), 2);
    member_lost(w.people[2].member, "died", w.now);
    w.people[2].member = NULL;
    assert_int_equal(w.people[0].answers, 0);
    staged(0, COUNT, COUNT); /* too late */
    assert_int_equal(flaky_taken(w.device), 2);
    step();
    expect_failure(ERROR_RANK_LOST, "rank 2 (pid 502 on here) died");
    expect_memory_free();
    assert_int_equal(flaky_taken(w.device), 2);
}

TEST(an_abort_ends_it)
{
    begin(3);
    step();
    member_abort(w.people[0].member, "enough", w.now);
    expect_failure(ERROR_ABORTED, "aborted by rank 0: enough");
    expect_memory_free();
}

TEST(a_timeout_names_whose_memory_is_waited_for)
{
    begin(1);
    step();
    bring(&w.people[0], 8, true);
    bring(&w.people[2], 8, true);
    staged(0, 16, 0);
    staged(2, 16, 0);
    w.now += TIMEOUT;
    comms_tick(w.comms, w.now);
    expect_failure(ERROR_TIMEOUT, "its memory is waited for: rank 1 (pid 501 on here)");
    assert_int_equal(w.people[0].error.nranks, 1);
    assert_int_equal(w.people[0].error.ranks[0], 1);
    expect_memory_free();
}

TEST(a_timeout_names_who_does_not_take_its_output)
{
    set_windows(2, 0, WINDOW, false);
    run_all(COLLECTIVE_ALL_REDUCE);
    step();
    w.now += TIMEOUT;
    comms_tick(w.comms, w.now);
    expect_failure(ERROR_TIMEOUT, "its memory is waited for: rank 2 (pid 502 on here)");
    assert_int_equal(w.people[0].error.ranks[0], 2);
    expect_memory_free();
}

TEST(a_timeout_of_the_device_names_nobody)
{
    flaky_configure(w.device, &(struct flaky_config){ .seed = 1, .stuck_task = 1 });
    begin(1);
    w.now += TIMEOUT;
    comms_tick(w.comms, w.now);
    step();
    expect_failure(ERROR_TIMEOUT, "of moving data");
    assert_int_equal(w.people[0].error.nranks, 0);
}

#define CASE(claim) cmocka_unit_test_setup_teardown(claim, open_world, close_world)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_chunk_waits_for_every_ranks_input),
        CASE(a_chunk_waits_until_the_output_in_its_place_is_taken),
        CASE(what_is_staged_before_the_others_come_counts),
        CASE(only_who_has_a_window_is_told_of_progress),
        CASE(a_window_longer_than_the_tensor_is_all_of_it),
        CASE(windows_of_any_kind_mix_and_the_bits_are_right),
        CASE(numbers_that_go_back_mean_nothing),
        CASE(who_says_too_much_gets_what_lies_there_and_harms_nobody_else),
        CASE(what_nobody_waits_for_is_ignored),
        CASE(a_persistent_operation_has_no_windows_to_move),
        CASE(with_a_budget_its_chunks_pass),
        CASE(exchanges_and_what_is_persistent_take_no_windows),
        CASE(windows_are_powers_of_two_or_of_whole_chunks),
        CASE(windows_of_blocks_are_shorter_than_these),
        CASE(what_would_be_in_place_without_windows_is_not),
        CASE(pairs_take_no_windows),
        CASE(a_window_lies_in_its_region),
        CASE(in_place_is_of_one_window),
        CASE(a_failing_chunk_ends_it_for_all),
        CASE(a_death_while_all_wait_for_data_is_told_at_once),
        CASE(a_death_while_data_moves_waits_for_the_device),
        CASE(an_abort_ends_it),
        CASE(a_timeout_names_whose_memory_is_waited_for),
        CASE(a_timeout_names_who_does_not_take_its_output),
        CASE(a_timeout_of_the_device_names_nobody),
    };

    return cmocka_run_group_tests_name("windows", tests, NULL, NULL);
}
