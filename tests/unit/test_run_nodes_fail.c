/* Runs between nodes that come to a bad end, at any moment and by anybody's fault, and leave
 * nothing. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/unit/walk.h"

/* As a communicator does: who hears of a failure stops what it has. */
static void cancel(struct operation *o, uint32_t node)
{
    struct part *p = &o->parts[node];

    if (!p->ndone)
        operation_over(o, node, engine_cancel(daemons[node].engine, p->run));
}

static bool any_failed(const struct operation *o)
{
    for (uint32_t i = 0; i < o->nodes->nnodes; i++)
        if (o->parts[i].ndone && o->parts[i].result < 0)
            return true;
    return false;
}

/* Runs until all are over, everyone stopped some time after the first has failed. */
static void run_to_a_bad_end(struct operation *o)
{
    for (uint32_t n = 0; !operation_is_over(o); n++) {
        operation_release_some(o, 3);
        for (uint32_t i = 0; i < o->nodes->nnodes && any_failed(o); i++)
            if (any_below(4) == 0)
                cancel(o, i);
        if (!operation_is_over(o) && !any_failed(o) && !operation_any_held(o))
            daemons_turn(o->nodes->nnodes);
        for (uint32_t i = 0; i < o->nodes->nnodes; i++)
            engine_poll(daemons[i].engine);
        assert_true(n < POLLS_MAX);
    }
}

/* If it came out well for all, it came out right. Nothing goes on; the links are new ones. */
static void end_badly(struct operation *o)
{
    if (!any_failed(o))
        operation_compare(o);
    operation_finish(o);
    for (uint32_t i = 0; i < NODES_MAX; i++)
        assert_false(engine_wants_turn(daemons[i].engine) &&
                     local_pending(daemons[i].transport) == 0 &&
                     engine_poll(daemons[i].engine) == ENGINE_PENDING);
    links_close();
    links_open();
}

static void try_cancel(const struct algorithm *a, const struct placement *nodes, size_t type)
{
    struct operation o = operation_of(a, nodes, type, 30, 5);
    uint32_t turns = any_below(30);

    daemons_any_weather();
    operation_fill(&o);
    operation_start(&o, false);
    while (turns-- && !operation_is_over(&o)) {
        operation_release_some(&o, 3);
        for (uint32_t i = 0; i < nodes->nnodes; i++)
            if (any_below(2))
                engine_poll(daemons[i].engine);
    }
    cancel(&o, any_below(nodes->nnodes));
    run_to_a_bad_end(&o);
    end_badly(&o);
}

TEST(cancelled_at_any_moment_it_ends_once_and_leaves_nothing)
{
    walk(try_cancel, 3);
}

static void try_fault_of_transport(const struct algorithm *a, const struct placement *nodes,
                                   size_t type)
{
    struct operation o = operation_of(a, nodes, type, 12, 4);
    const uint32_t bad = any_below(nodes->nnodes);
    bool failed;

    daemons_any_weather();
    local_configure(daemons[bad].transport,
                    &(struct local_config){ .seed = 1 + any_below(9),
                                            .delayed = any_below(2),
                                            .fail_transfer = 1 + any_below(12),
                                            .fail_errno = EIO,
                                            .fail_at_once = any_below(2) });
    operation_fill(&o);
    operation_start(&o, false);
    run_to_a_bad_end(&o);
    failed = any_failed(&o);
    assert_true(!failed || o.parts[bad].result == -EIO);
    end_badly(&o);
}

TEST(a_message_that_fails_fails_its_run_and_no_more)
{
    walk(try_fault_of_transport, 3);
}

static void try_fault_of_device(const struct algorithm *a, const struct placement *nodes,
                                size_t type)
{
    struct operation o = operation_of(a, nodes, type, 12, 4);
    const uint32_t bad = any_below(nodes->nnodes);
    bool failed;

    daemons_any_weather();
    daemons_fail_task(bad, 1 + any_below(12), EIO);
    operation_fill(&o);
    operation_start(&o, false);
    run_to_a_bad_end(&o);
    failed = any_failed(&o);
    assert_true(!failed || o.parts[bad].result == -EIO);
    end_badly(&o);
}

TEST(a_task_that_fails_fails_its_run_and_no_more)
{
    walk(try_fault_of_device, 3);
}

static void try_loss(const struct algorithm *a, const struct placement *nodes, size_t type)
{
    struct operation o = operation_of(a, nodes, type, 30, 5);
    uint32_t turns = any_below(12);

    daemons_any_weather();
    operation_fill(&o);
    operation_start(&o, false);
    while (turns-- && !operation_is_over(&o)) {
        operation_release_some(&o, 2);
        engine_poll(daemons[any_below(nodes->nnodes)].engine);
    }
    if (any_below(2)) {
        local_lose(daemons[0].peers[1]);
    } else { /* the link is gone, and its peer with it; another comes instead */
        transport_local.peer_free(daemons[0].peers[1]);
        transport_local.peer_free(daemons[1].peers[0]);
        cancel(&o, 0);
        cancel(&o, 1);
        links_join(0, 1);
    }
    run_to_a_bad_end(&o);
    for (uint32_t i = 0; i < nodes->nnodes; i++)
        assert_true(o.parts[i].result == 0 || o.parts[i].result == -ECONNRESET ||
                    o.parts[i].result == -ECANCELED);
    end_badly(&o);
}

TEST(a_lost_peer_ends_the_runs_that_need_it)
{
    walk(try_loss, 3);
}

/* ---------------------------------------------------------------- claims: memory */

/* As a device makes it, of memory that it would have refused: the file can be cut short. */
static struct mapping *mapping_new(uint64_t bytes, int *ret_fd)
{
    struct mapping *m = calloc(1, sizeof(*m));
    int fd = memfd_create("ruccl-test-run", MFD_CLOEXEC);

    assert_non_null(m);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    *m = (struct mapping){ .device = daemons[0].device, .refs = 1, .bytes = bytes };
    m->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(m->base, MAP_FAILED);
    *ret_fd = fd;
    return m;
}

/* Node 0's only rank has its input, or its output, in memory that goes away. */
static void try_memory(const char *name, bool input, bool enclosing)
{
    _cleanup_(placement_freep) struct placement *p = placement_of(2, 1);
    struct operation o = operation_of(find_algorithm(COLLECTIVE_BROADCAST, name), p, 0, 4096, 4096);
    struct operation other =
        operation_of(find_algorithm(COLLECTIVE_ALL_REDUCE, "direct"), p, 0, 64, 8);
    struct mapping *m;
    int fd;

    o.w.in_place = other.w.in_place = false;
    o.at_home = true;
    o.w.d.root = input ? 0 : 1;
    o.piece = 4096;
    operation_fill(&o);
    operation_fill(&other);
    m = mapping_new(4096 * 4, &fd);
    if (input)
        o.in[0] = m->base;
    else
        o.out[0] = m->base;

    sequence++;
    for (uint32_t i = 0; i < 2; i++) {
        operation_emit(&o, i);
        operation_prepare(&o, i, enclosing ? RUN_ENCLOSING : RUN_AT_ONCE, i == 0 ? m : NULL);
    }
    assert_int_equal(ftruncate(fd, 0), 0);
    operation_start(&other, false);
    sequence++;
    for (uint32_t i = 0; i < 2; i++)
        operation_submit(&o, i);
    run_to_a_bad_end(&o);
    assert_int_equal(o.parts[0].result, -EFAULT);
    assert_true(m->fault);
    operation_run(&other);
    assert_int_equal(other.parts[0].result, 0);
    operation_compare(&other);
    operation_finish(&other);
    operation_finish(&o);
    mapping_unref(m);
    close(fd);
    links_close();
    links_open();
}

TEST(memory_that_is_gone_under_the_transport_fails_its_run_alone)
{
    daemons_close(NULL);
    daemons_open(NULL); /* above the handlers of cmocka, which come anew with every test */
    for (uint32_t i = 0; i < 8; i++) {
        daemons_any_weather();
        try_memory(i & 1 ? "direct" : "tree", i & 2, i & 4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cancelled_at_any_moment_it_ends_once_and_leaves_nothing),
        cmocka_unit_test(a_message_that_fails_fails_its_run_and_no_more),
        cmocka_unit_test(a_task_that_fails_fails_its_run_and_no_more),
        cmocka_unit_test(a_lost_peer_ends_the_runs_that_need_it),
        cmocka_unit_test(memory_that_is_gone_under_the_transport_fails_its_run_alone),
    };

    return walk_run_group(tests, ARRAY_SIZE(tests));
}
