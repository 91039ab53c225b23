/*
 * Two daemons as two nodes with two ranks each, on loopback addresses and without a key: what
 * clients have of a communicator that is across both.
 */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base.h"
#include "tests/end_to_end/actors.h"
#include "tests/end_to_end/cost.h"
#include "tests/end_to_end/trial.h"
#include "tests/unit/unit.h"

#define NODES        2u
#define RANKS        4u
#define TENSOR_BYTES (1u << 20)
#define KILL_TRIES   20

static const char *const names[NODES] = {
    "11111111-0000-4000-8000-000000000001",
    "22222222-0000-4000-8000-000000000002",
};
static const uint32_t node_of[RANKS] = { 0, 0, 1, 1 };

static struct harness nodes[NODES];
static struct world world;

static void start_nodes(void)
{
    for (uint32_t i = 0; i < NODES; i++) {
        char node[64];
        const char *const options[] = { "--set=listen=127.0.0.1:0", "--set=peer_timeout=60s", node,
                                        NULL };

        snprintf(node, sizeof(node), "--set=node=%s", names[i]);
        harness_start(&nodes[i], options);
    }
    world_open_across(&world, nodes, node_of, RANKS);
}

static int stop_nodes(void **state)
{
    int r = 0;

    (void)state;
    for (uint32_t i = 0; i < NODES; i++)
        r |= harness_stop(&nodes[i]);
    return r;
}

/* ---- what is computed */

struct sample {
    enum ruccl_dtype dtype;
    enum ruccl_op op;
};

static const struct sample reduced[] = {
    { RUCCL_F32, RUCCL_SUM }, { RUCCL_BF16, RUCCL_SUM }, { RUCCL_F16, RUCCL_MEAN },
    { RUCCL_F64, RUCCL_MAX }, { RUCCL_I32, RUCCL_SUM },  { RUCCL_F8E4M3, RUCCL_SUM },
    { RUCCL_U16, RUCCL_XOR },
};
static const struct sample moved[] = {
    { RUCCL_F32, TRIAL_NO_OP },
    { RUCCL_PACKED_U8, TRIAL_NO_OP },
    { RUCCL_C128, TRIAL_NO_OP },
};

/* Small enough to travel with the agreement, in some chunks, in one; and nothing at all. */
static void try_sizes(struct tensors *t, struct trial trial)
{
    static const struct {
        uint64_t count, row, units; /* units: of the least budget; 0: none */
    } sizes[] = { { 45, 3, 0 }, { 15001, 1, 1000 }, { 15000, 3, 0 }, { 1, 1, 2 }, { 0, 1, 0 } };

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        trial.count = sizes[i].count;
        trial.row = sizes[i].row;
        trial.budget = sizes[i].units * trial_least_budget(t, &trial);
        if (sizes[i].units == 0)
            trial.budget = RUCCL_NO_BUDGET;
        trial.shift = i;
        trial_run(t, &trial);
    }
}

static void try_too_small(struct tensors *t, struct trial trial)
{
    trial.count = trial.row = 1;
    trial.budget = trial_least_budget(t, &trial) - 1;
    trial_run_refused(t, &trial);
}

static void try_kind(struct tensors *t, enum trial_kind kind, const struct sample *samples,
                     size_t nsamples)
{
    for (size_t i = 0; i < nsamples; i++)
        for (unsigned alternative = 0; alternative < 2; alternative++) {
            const struct trial trial = {
                .kind = kind,
                .op = samples[i].op,
                .root = (uint32_t)i % RANKS,
                .in_place = alternative && scene_has_in_place(kind),
                .spare = alternative && !scene_has_in_place(kind),
            };

            tensors_fill(t, samples[i].dtype, 100 * i + 1);
            try_sizes(t, trial);
            if (i == 0) /* wider sums of what is small take more */
                try_too_small(t, trial);
            tensors_expect_unchanged(t);
        }
}

TEST(every_collective_is_exact)
{
    struct harness_usage before[NODES];
    struct tensors tensors;

    start_nodes();
    world_close(&world);
    for (uint32_t i = 0; i < NODES; i++)
        before[i] = harness_usage(&nodes[i]); /* with the link */

    world_open_across(&world, nodes, node_of, RANKS);
    tensors_init(&tensors, &world, TENSOR_BYTES, false);
    for (unsigned kind = 0; kind < TRIAL_KINDS; kind++)
        if (scene_reduces((enum trial_kind)kind))
            try_kind(&tensors, (enum trial_kind)kind, reduced, ARRAY_SIZE(reduced));
        else
            try_kind(&tensors, (enum trial_kind)kind, moved, ARRAY_SIZE(moved));
    tensors_fini(&tensors);
    world_close(&world);
    for (uint32_t i = 0; i < NODES; i++)
        harness_expect_usage(&nodes[i], &before[i]);
}

static const struct trial sample = {
    .kind = TRIAL_ALL_REDUCE, .op = RUCCL_SUM, .count = 15001, .row = 1, .budget = 40000
};

static void try_world(struct world *w)
{
    struct tensors tensors;

    tensors_init(&tensors, w, TENSOR_BYTES, false);
    tensors_fill(&tensors, RUCCL_BF16, 5);
    trial_run(&tensors, &sample);
    tensors_fini(&tensors);
}

/* Of ranks 0 and 2, and of 1 and 3, a node each; of 0 and 1, and of 2 and 3, one node alone. */
static void try_split(bool across)
{
    struct world parts[2] = { { .across = across }, { .across = across } };
    struct ruccl_comm children[RANKS];
    struct ruccl_work *works[RANKS];

    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(ruccl_split_async(world.comms[r], (int32_t)(across ? r % 2 : r / 2), 0,
                                           &children[r], &works[r]),
                         0);
    world.sequence++;
    for (uint32_t r = 0; r < RANKS; r++)
        expect_done(works[r], "split");
    for (uint32_t r = 0; r < RANKS; r++) {
        struct world *part = &parts[across ? r % 2 : r / 2];
        const uint32_t rank = ruccl_rank(children[r]);

        assert_int_equal(ruccl_world_size(children[r]), 2);
        part->nranks = part->nconns = 2;
        part->comms[rank] = children[r];
        part->conns[rank] = world.conns[r];
    }
    for (int i = 0; i < 2; i++) {
        try_world(&parts[i]);
        world_leave(&parts[i]);
    }
}

TEST(split_makes_communicators_across_nodes_and_on_one)
{
    start_nodes();
    try_split(true);
    try_split(false);
    try_world(&world);
    world_close(&world);
}

/* ---- a persistent operation; making one waits for the others, so each rank has a thread */

#define COUNT  20011u
#define STARTS 5

struct maker {
    pthread_t thread;
    struct ruccl_comm comm;
    struct ruccl_region *region;
    struct ruccl_persistent *made;
    int result;
    struct ruccl_error error;
};

static void *make(void *arg)
{
    struct maker *m = arg;
    const struct ruccl_tensor t = vector_of(m->region, COUNT);

    m->result = ruccl_all_reduce_init(m->comm, &t, &t, RUCCL_SUM, &m->made);
    m->error = *ruccl_last_error();
    return NULL;
}

static struct ruccl_region *alloc(uint32_t rank, uint64_t bytes)
{
    struct ruccl_region *region;

    if (ruccl_alloc(world_conn(&world, rank), bytes, &region) < 0)
        fail_msg("alloc: %s", ruccl_last_error()->text);
    return region;
}

static void start_once(struct maker makers[RANKS], int32_t round)
{
    struct ruccl_work *works[RANKS];

    for (uint32_t r = 0; r < RANKS; r++) {
        int32_t *values = ruccl_region_data(makers[r].region);

        for (int32_t i = 0; i < (int32_t)COUNT; i++)
            values[i] = i * (int32_t)(r + 1) + round;
    }
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(ruccl_start(makers[r].made, &works[r]), 0);
    for (uint32_t r = 0; r < RANKS; r++)
        expect_done(works[r], "start");
    for (uint32_t r = 0; r < RANKS; r++) {
        const int32_t *values = ruccl_region_data(makers[r].region);

        for (int32_t i = 0; i < (int32_t)COUNT; i++)
            assert_int_equal(values[i], 10 * i + 4 * round);
    }
}

TEST(a_persistent_operation_is_made_once_and_started_often)
{
    struct maker makers[RANKS];

    start_nodes();
    for (uint32_t r = 0; r < RANKS; r++) {
        makers[r] = (struct maker){ .comm = ruccl_bounded(world.comms[r], 16000),
                                    .region = alloc(r, COUNT * sizeof(int32_t)) };
        pthread_create(&makers[r].thread, NULL, make, &makers[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        pthread_join(makers[r].thread, NULL);
    for (uint32_t r = 0; r < RANKS; r++)
        if (makers[r].result < 0)
            fail_msg("init: %s", makers[r].error.text);
    for (int32_t round = 0; round < STARTS; round++)
        start_once(makers, round);
    for (uint32_t r = 0; r < RANKS; r++) {
        ruccl_persistent_release(makers[r].made);
        ruccl_free(makers[r].region);
    }
    world_close(&world);
}

/* ---- what goes wrong */

TEST(ranks_that_disagree_are_told_the_same_on_both_nodes_and_go_on)
{
    struct ruccl_work *works[RANKS];
    struct ruccl_region *regions[RANKS];
    char text[sizeof(ruccl_last_error()->text)] = "";

    start_nodes();
    for (uint32_t r = 0; r < RANKS; r++) {
        struct ruccl_tensor t = vector_of(regions[r] = alloc(r, 4096), r == 3 ? 999 : 1000);

        assert_int_equal(ruccl_all_reduce_async(world.comms[r], &t, &t, RUCCL_SUM, &works[r]), 0);
    }
    world.sequence++;
    for (uint32_t r = 0; r < RANKS; r++) {
        expect_failure(works[r], RUCCL_MISMATCH, "all_reduce");
        if (r > 0)
            assert_string_equal(ruccl_last_error()->text, text);
        snprintf(text, sizeof(text), "%s", ruccl_last_error()->text);
        ruccl_free(regions[r]);
    }
    try_world(&world);
    world_close(&world);
}

#define TOLD_US 10000000 /* far from the peer_timeout */

static int64_t await_told(struct ruccl_work *work, int64_t killed_us, const char *words)
{
    char missing[128];
    const int r = ruccl_work_wait(work, TOLD_US);
    const struct ruccl_error *e = ruccl_last_error();

    if (r != -RUCCL_RANK_LOST)
        fail_msg("%s after the kill: %s", r < 0 ? ruccl_code_name(r) : "nothing", e->text);
    if (!words_in(e->text, words, missing))
        fail_msg("no '%s' in: %s", missing, e->text);
    assert_int_equal(e->nranks, 2);
    assert_int_equal(e->ranks[0], 2);
    assert_int_equal(e->ranks[1], 3);
    return stage_now_us() - killed_us;
}

/* Host and address of the second node, as errors put them. */
static void name_second_node(char ret[512])
{
    char host[256] = "", id[RUCCL_ID_BYTES];

    gethostname(host, sizeof(host) - 1);
    assert_int_equal(ruccl_new_id(world.conns[2], id), 0);
    snprintf(ret, 512, "%s|%s", host, strchr(id, '@') + 1);
}

static bool any_is_done(struct ruccl_work *works[RANKS], uint32_t nworks)
{
    bool any = false;

    for (uint32_t r = 0; r < nworks; r++)
        any |= ruccl_work_wait(works[r], TOLD_US) == 0;
    return any;
}

/* Return: whether it was before the end of the operation. */
static bool kill_second_node(struct ruccl_work *works[RANKS], uint32_t nworks)
{
    char words[512];
    int64_t killed_us;
    bool in_time;

    name_second_node(words);
    killed_us = stage_now_us();
    harness_kill(&nodes[1]);
    in_time = !any_is_done(works, nworks);
    for (uint32_t r = 0; in_time && r < 2; r++)
        assert_true(await_told(works[r], killed_us, words) < TOLD_US);
    for (uint32_t r = 2; in_time && r < nworks; r++)
        assert_int_equal(ruccl_work_wait(works[r], 0), -RUCCL_DAEMON_LOST);
    for (uint32_t r = 0; r < nworks; r++)
        ruccl_work_release(works[r]);
    return in_time;
}

/* Those of the first node leave, and have one communicator more, by themselves. */
static void go_on_alone(void)
{
    struct world alone = { .nranks = 2, .nconns = 2 };

    memcpy(alone.conns, world.conns, sizeof(alone.conns));
    for (uint32_t r = 0; r < 2; r++)
        assert_int_equal(ruccl_leave(world.comms[r]), 0);
    for (uint32_t r = 2; r < RANKS; r++)
        ruccl_close(world.conns[r]);
    world_join(&world, &alone);
    try_world(&world);
    world_close(&world);
}

TEST(those_who_wait_for_ranks_of_a_daemon_that_dies_are_told_by_its_name)
{
    struct ruccl_work *works[RANKS];

    start_nodes();
    for (uint32_t r = 0; r < 2; r++)
        assert_int_equal(ruccl_barrier_async(world.comms[r], &works[r]), 0);
    poll(NULL, 0, 50); /* it may have come to the daemons, or not */
    assert_true(kill_second_node(works, 2));
    go_on_alone();
}

/* Return: whether data still moved. What has failed or ended is left then. */
static bool kill_while_data_moves(void)
{
    struct ruccl_work *works[RANKS];
    struct ruccl_region *regions[RANKS];
    struct ruccl_progress progress = { 0 };
    const int64_t deadline = stage_now_us() + HARNESS_PATIENCE_US;
    bool in_time;

    start_nodes();
    for (uint32_t r = 0; r < RANKS; r++) {
        /* in thousands of chunks */
        const struct ruccl_comm comm = ruccl_bounded(world.comms[r], 4096);
        const struct ruccl_tensor t = vector_of(regions[r] = alloc(r, 8u << 20), 2u << 20);

        assert_int_equal(ruccl_all_reduce_async(comm, &t, &t, RUCCL_SUM, &works[r]), 0);
    }
    while (progress.chunks_done == 0) {
        assert_true(stage_now_us() < deadline);
        assert_int_equal(ruccl_work_progress(works[0], &progress), 0);
    }
    in_time = kill_second_node(works, RANKS);
    for (uint32_t r = 0; r < 2; r++)
        ruccl_free(regions[r]);
    return in_time;
}

TEST(a_daemon_that_dies_while_data_moves_is_named_too)
{
    for (int tries = 0; !kill_while_data_moves(); tries++) {
        if (tries == KILL_TRIES)
            fail_msg("the operation was always faster than the kill");
        for (uint32_t r = 0; r < RANKS; r++)
            ruccl_close(world.conns[r]);
        assert_int_equal(stop_nodes(NULL), 0);
    }
    go_on_alone();
}

/* ---- what is shown, and what it costs */

static void read_status(const struct harness *h, const char *option, char *ret, size_t size)
{
    char command[512];
    FILE *f;

    snprintf(command, sizeof(command), "\"$RUCCLCTL\" status %s --socket %s", option, h->socket);
    f = popen(command, "re");
    assert_non_null(f);
    ret[fread(ret, 1, size - 1, f)] = '\0';
    assert_int_equal(pclose(f), 0);
}

static void expect_status(const struct harness *h, const char *option, const char *words)
{
    static char status[1 << 16];
    char missing[128];

    read_status(h, option, status, sizeof(status));
    if (!words_in(status, words, missing))
        fail_msg("no '%s' in the status:\n%s", missing, status);
}

TEST(each_shows_the_other_in_its_status)
{
    char words[1024], host_and_address[512];

    start_nodes();
    name_second_node(host_and_address);
    snprintf(words, sizeof(words), "%s|\"state\": \"up\"|\"expecting\": 0|\"node\": \"%s\"",
             host_and_address, names[1]);
    expect_status(&nodes[0], "--json", words);
    snprintf(words, sizeof(words), "%s|PEER|%s", host_and_address, names[1]);
    expect_status(&nodes[0], "", words);
    snprintf(words, sizeof(words), "\"node\": \"%s\"|\"state\": \"up\"", names[0]);
    expect_status(&nodes[1], "--json", words);
    world_close(&world);
}

#define IDLE_S    3
#define SETTLE_MS 500 /* for what is left of the work before */

TEST(idle_daemons_with_a_link_use_no_cpu)
{
    struct cost before[NODES];
    pid_t pids[NODES];

    start_nodes();
    try_world(&world);
    for (uint32_t i = 0; i < NODES; i++)
        pids[i] = nodes[i].pid;
    poll(NULL, 0, SETTLE_MS);
    cost_await_rest(pids, NODES);
    for (uint32_t i = 0; i < NODES; i++)
        before[i] = cost_of(nodes[i].pid);
    poll(NULL, 0, IDLE_S * 1000);
    for (uint32_t i = 0; i < NODES; i++)
        cost_expect_idle("a daemon", nodes[i].pid, &before[i], IDLE_S);
    world_close(&world);
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_teardown(name, stop_nodes)
    const struct CMUnitTest tests[] = {
        CLAIM(every_collective_is_exact),
        CLAIM(split_makes_communicators_across_nodes_and_on_one),
        CLAIM(a_persistent_operation_is_made_once_and_started_often),
        CLAIM(ranks_that_disagree_are_told_the_same_on_both_nodes_and_go_on),
        CLAIM(those_who_wait_for_ranks_of_a_daemon_that_dies_are_told_by_its_name),
        CLAIM(a_daemon_that_dies_while_data_moves_is_named_too),
        CLAIM(each_shows_the_other_in_its_status),
        CLAIM(idle_daemons_with_a_link_use_no_cpu),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
