/* Blocking calls on large plain memory that end in the middle, or while a copy is under way. */
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/unit/window_caller.h"

/* ---- in the middle */

TEST(a_failure_while_it_copies_ends_the_call)
{
    uint8_t *m = memory_new(0, true);
    struct caller c;

    open_pair(&c);
    for (uint32_t i = 0; i < 30; i++) {
        for (uint64_t k = 0; k < COUNT; k++)
            m[k] = given(k);
        c.in = c.out = bytes_tensor(m, COUNT);
        call_begin(&c, i);
        move(&c, WINDOW / 4 + i * 30011);
        tell_progress(&c);
        if (i % 2)
            sleep_ms(1);
        complete(&c, ERROR_RANK_LOST);
        call_end(&c, -RUCCL_RANK_LOST);
        assert_string_equal(c.error.text, "told");
        expect_guards(m);
        for (uint64_t k = c.done; k < COUNT; k++)
            assert_int_equal(m[k], given(k));
    }
    assert_int_equal(c.p.daemon->regions_opened, 1);
    memory_free(m, 0);
    pair_stop(&c.p);
}

TEST(a_rejected_call_has_no_window)
{
    uint8_t *m = memory_new(0, true);
    struct caller c;

    open_pair(&c);
    c.in = c.out = bytes_tensor(m, COUNT);
    c.out.data = m + 1;
    call_begin(&c, 0);
    assert_int_equal(c.post.post.rejection.code, ERROR_OVERLAP);
    assert_int_equal(c.post.post.in.window, 0);
    fake_complete(c.p.daemon, &c.post, ERROR_NONE, "");
    call_end(&c, -RUCCL_OVERLAP);
    assert_int_equal(fake_count(c.p.daemon, REQUEST_STAGED), 0);
    memory_free(m, 0);
    pair_stop(&c.p);
}

/* ---- while it copies: a page of the output that lets nobody by until it is told to */

#define PAGE 4096u

static struct {
    uint8_t *page;
    sem_t reached, go;
} gate;

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)context;
    if ((uintptr_t)info->si_addr / PAGE != (uintptr_t)gate.page / PAGE) {
        struct sigaction action = { .sa_handler = SIG_DFL };

        sigaction(signal, &action, NULL);
        return;
    }
    sem_post(&gate.reached);
    while (sem_wait(&gate.go) != 0)
        ;
    mprotect(gate.page, PAGE, PROT_READ | PROT_WRITE);
}

/* The client copies out what has been done, as far as the gate. */
static void stand_at_gate(struct caller *c, uint8_t *m)
{
    const struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };

    sigaction(SIGSEGV, &action, NULL);
    sem_init(&gate.reached, 0, 0);
    sem_init(&gate.go, 0, 0);
    gate.page = m + 16 * PAGE;
    assert_int_equal(mprotect(gate.page, PAGE, PROT_READ), 0);
    c->in = c->out = bytes_tensor(m, COUNT);
    call_begin(c, 0);
    move(c, WINDOW / 2);
    tell_progress(c);
    while (sem_wait(&gate.reached) != 0)
        ;
}

static void leave_gate(struct caller *c, int result)
{
    const struct sigaction action = { .sa_handler = SIG_DFL };

    sem_post(&gate.go);
    call_end(c, result);
    sigaction(SIGSEGV, &action, NULL);
}

static uint8_t *pages_new(void)
{
    uint8_t *m = mmap(NULL, COUNT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(m != MAP_FAILED);
    for (uint64_t i = 0; i < COUNT; i++)
        m[i] = given(i);
    return m;
}

/* Its stage is nobody else's until it has stopped copying. */
TEST(a_failure_during_a_copy_leaves_it_its_stage)
{
    uint8_t *m = pages_new(), *other = memory_new(0, true);
    const struct ruccl_tensor t = bytes_tensor(other, WINDOW);
    struct ruccl_work *work;
    struct request second;
    struct caller c;

    open_pair(&c);
    stand_at_gate(&c, m);
    complete(&c, ERROR_RANK_LOST);
    assert_int_equal(ruccl_drop_id(c.p.conn, "x"), 0); /* reads the completion in passing */
    assert_int_equal(ruccl_all_reduce_async(c.comm, &t, &t, RUCCL_SUM, &work), 0);
    second = fake_await(c.p.daemon, REQUEST_POST, 1);
    assert_int_not_equal(second.post.in.region, c.post.post.in.region);
    fake_complete(c.p.daemon, &second, ERROR_NONE, "");
    assert_int_equal(ruccl_work_wait(work, -1), 0);
    ruccl_work_release(work);
    leave_gate(&c, -RUCCL_RANK_LOST);

    assert_int_equal(ruccl_all_reduce_async(c.comm, &t, &t, RUCCL_SUM, &work), 0);
    ruccl_work_release(work);
    assert_int_equal(c.p.daemon->regions_opened, 2); /* both stages came back */
    munmap(m, COUNT);
    pair_stop(&c.p);
    memory_free(other, 0);
}

TEST(a_daemon_lost_during_a_copy_leaves_it_its_stage)
{
    uint8_t *m = pages_new();
    struct caller c;

    open_pair(&c);
    stand_at_gate(&c, m);
    fake_die(c.p.daemon);
    assert_int_equal(ruccl_drop_id(c.p.conn, "x"), -RUCCL_DAEMON_LOST);
    leave_gate(&c, -RUCCL_DAEMON_LOST);
    munmap(m, COUNT);
    pair_stop(&c.p);
}

static void end_in_the_middle(void (*end)(struct caller *c), int result)
{
    uint8_t *m = memory_new(0, true);
    const int before = count_fds();

    for (uint32_t i = 0; i < 10; i++) {
        struct caller c;

        open_pair(&c);
        c.in = c.out = bytes_tensor(m, COUNT);
        call_begin(&c, 0);
        move(&c, 1 + i * (WINDOW / 10));
        for (uint64_t k = 0; k < c.done; k++)
            m[k] = given(k);
        tell_progress(&c);
        end(&c);
        call_end(&c, result);
        expect_guards(m);
        if (c.p.conn)
            ruccl_close(c.p.conn);
        fake_stop(c.p.daemon);
        for (uint64_t k = 0; k < COUNT; k++)
            m[k] = given(k);
    }
    assert_int_equal(count_fds(), before);
    memory_free(m, 0);
}

static void by_death(struct caller *c)
{
    fake_die(c->p.daemon);
}

static void by_close(struct caller *c)
{
    ruccl_close(c->p.conn);
    c->p.conn = NULL;
}

TEST(a_lost_daemon_ends_the_call)
{
    end_in_the_middle(by_death, -RUCCL_DAEMON_LOST);
}

TEST(close_ends_the_call)
{
    end_in_the_middle(by_close, -RUCCL_CLOSED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_while_it_copies_ends_the_call),
        cmocka_unit_test(a_rejected_call_has_no_window),
        cmocka_unit_test(a_failure_during_a_copy_leaves_it_its_stage),
        cmocka_unit_test(a_daemon_lost_during_a_copy_leaves_it_its_stage),
        cmocka_unit_test(a_lost_daemon_ends_the_call),
        cmocka_unit_test(close_ends_the_call),
    };

    return cmocka_run_group_tests_name("client_windows_end", tests, NULL, NULL);
}
