/* Slates at the level of packets: who is given one. */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/slate.h"
#include "tests/end_to_end/daemon.h"
#include "tests/end_to_end/raw.h"
#include "tests/unit/unit.h"

static void expect_slate(struct raw *c, uint32_t comm, uint32_t nranks)
{
    const int fd = raw_open_slate(c, comm);
    struct stat status;

    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &status), 0);
    assert_int_equal(status.st_size, slate_size(nranks));
    assert_int_equal(ftruncate(fd, 0), -1); /* it keeps its size */
    close(fd);
}

static void expect_no_slate(struct raw *c, uint32_t comm)
{
    assert_int_equal(raw_open_slate(c, comm), -1);
}

static void refuse_slate(struct raw *c, uint32_t comm, enum error_code code, const char *text)
{
    struct request r = { .kind = REQUEST_SLATE_OPEN, .slate_open.comm = comm };

    raw_ask(c, &r, -1, code, text);
    assert_int_equal(packet_take_fd(&c->in, 0), -1);
}

/* All ranks in one session, as its numbers from `first` on. */
static void join_all(struct raw *c, uint32_t first, uint32_t nranks, const char *algorithm)
{
    char id[CODEC_ID_MAX + 1];

    raw_new_id(c, id);
    for (uint32_t r = 0; r < nranks; r++)
        raw_join_as(c, first + r, id, r, nranks, algorithm, 60000000);
    for (uint32_t r = 0; r < nranks; r++)
        raw_expect_done(c, ERROR_NONE, NULL);
}

static void leave(struct raw *c, uint32_t comm)
{
    struct request r = { .kind = REQUEST_LEAVE, .leave.comm = comm };

    raw_ask(c, &r, -1, ERROR_NONE, NULL);
}

TEST(members_with_rings_are_given_the_same_slate_as_often_as_they_ask)
{
    struct stat first, again;
    struct raw_pair p;
    struct daemon d;
    int fds[2];

    daemon_run(&d);
    raw_pair_open(&p, d.socket, 60000000);
    fds[0] = raw_open_slate(&p.a, 1);
    expect_no_slate(&p.b, 1); /* has none */
    raw_open_rings(&p.b);
    fds[1] = raw_open_slate(&p.b, 1);
    assert_int_equal(fstat(fds[0], &first), 0);
    assert_int_equal(fstat(fds[1], &again), 0);
    assert_int_equal(first.st_ino, again.st_ino);
    for (int i = 0; i < 10; i++)
        expect_slate(&p.a, 1, 2);
    close(fds[0]);
    close(fds[1]);
    leave(&p.b, 1);
    refuse_slate(&p.b, 1, ERROR_CLOSED, "communicator 1 is not open");
    raw_pair_close(&p);
    daemon_stop(&d);
}

TEST(who_is_no_member_yet_or_any_more_is_given_none)
{
    struct request abort = { .kind = REQUEST_ABORT, .abort = { 1, "no" } };
    struct request none = { .kind = REQUEST_SLATE_OPEN };
    char id[CODEC_ID_MAX + 1];
    struct daemon d;
    struct raw c;

    daemon_run(&d);
    raw_open(&c, d.socket);
    raw_open_rings(&c);
    refuse_slate(&c, 9, ERROR_CLOSED, "communicator 9 is not open");
    raw_new_id(&c, id);
    raw_join(&c, 1, id, 0, 2);
    expect_no_slate(&c, 1);
    raw_join(&c, 2, id, 1, 2);
    raw_expect_done(&c, ERROR_NONE, NULL);
    raw_expect_done(&c, ERROR_NONE, NULL);
    expect_slate(&c, 1, 2);
    raw_ask(&c, &abort, -1, ERROR_NONE, NULL);
    expect_no_slate(&c, 2); /* it has failed */
    leave(&c, 1);
    refuse_slate(&c, 1, ERROR_CLOSED, "communicator 1 is not open");
    raw_send(&c, &none, -1);
    raw_expect_goodbye(&c, ERROR_PROTOCOL, "slate_open");
    raw_close(&c);
    daemon_stop(&d);
}

TEST(communicators_that_only_the_daemon_can_serve_are_given_none)
{
    struct daemon d;
    struct raw c;

    daemon_run(&d);
    raw_open(&c, d.socket);
    raw_open_rings(&c);
    join_all(&c, 1, SLATE_RANKS_MAX, "");
    join_all(&c, 101, SLATE_RANKS_MAX + 1, "");
    join_all(&c, 201, 2, "hierarchical");
    join_all(&c, 301, 2, "auto");
    join_all(&c, 401, 1, "");
    expect_slate(&c, 1, SLATE_RANKS_MAX);
    expect_slate(&c, SLATE_RANKS_MAX, SLATE_RANKS_MAX);
    expect_no_slate(&c, 101);
    expect_no_slate(&c, 201);
    expect_slate(&c, 301, 2);
    expect_slate(&c, 401, 1);
    raw_close(&c);
    daemon_stop(&d);
}

TEST(a_slate_is_charged_once_for_as_long_as_its_communicator_lives)
{
    struct request abort = { .kind = REQUEST_ABORT, .abort = { 1, "no" } };
    struct daemon d;
    struct raw c;

    daemon_run(&d, "--set=max_fds=4"); /* of a session two, and one for bells */
    raw_open(&c, d.socket);
    raw_open_rings(&c);
    join_all(&c, 21, 2, "hierarchical");
    for (int i = 0; i < 3; i++) {
        join_all(&c, 1, 3, "");
        join_all(&c, 11, 2, "");
        expect_no_slate(&c, 21); /* for which nothing is charged */
        expect_slate(&c, 1, 3);
        expect_slate(&c, 1, 3);
        expect_slate(&c, 2, 3);
        refuse_slate(&c, 11, ERROR_QUOTA, "max_fds");
        raw_ask(&c, &abort, -1, ERROR_NONE, NULL);
        expect_no_slate(&c, 1);
        leave(&c, 1); /* who asked first */
        leave(&c, 2);
        refuse_slate(&c, 12, ERROR_QUOTA, "max_fds");
        leave(&c, 3);
        expect_slate(&c, 12, 2);
        leave(&c, 11);
        leave(&c, 12);
    }
    raw_close(&c);
    daemon_stop(&d);
}

TEST(a_slate_is_charged_with_its_bytes)
{
    char limit[64];
    struct daemon d;
    struct raw c;

    snprintf(limit, sizeof(limit), "--set=max_region_bytes=%zu", slate_size(3) + slate_size(2) - 1);
    daemon_run(&d, limit);
    raw_open(&c, d.socket);
    raw_open_rings(&c);
    join_all(&c, 1, 3, "");
    join_all(&c, 11, 2, "");
    expect_slate(&c, 1, 3);
    refuse_slate(&c, 11, ERROR_QUOTA, "max_region_bytes");
    for (uint32_t comm = 1; comm <= 3; comm++)
        leave(&c, comm);
    expect_slate(&c, 11, 2);
    raw_close(&c);
    daemon_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        daemon_test(members_with_rings_are_given_the_same_slate_as_often_as_they_ask),
        daemon_test(who_is_no_member_yet_or_any_more_is_given_none),
        daemon_test(communicators_that_only_the_daemon_can_serve_are_given_none),
        daemon_test(a_slate_is_charged_once_for_as_long_as_its_communicator_lives),
        daemon_test(a_slate_is_charged_with_its_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
