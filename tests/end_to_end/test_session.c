/* What a connection holds and asks for at the level of packets. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/end_to_end/daemon.h"
#include "tests/end_to_end/raw.h"
#include "tests/unit/unit.h"

/* ---- quotas ---- */

TEST(quotas_name_their_key)
{
    struct request r = { .kind = REQUEST_REGION_OPEN };
    struct daemon d;
    struct raw a, b, c;
    char id[CODEC_ID_MAX + 1];
    int fd = raw_memfd(8192), pidfd = raw_pidfd(getpid());

    daemon_run(&d, "--set=max_sessions=2", "--set=max_regions=2", "--set=max_region_bytes=16KiB",
               "--set=max_in_flight=1", "--set=max_communicators=3", "--set=max_strangers=2");
    raw_open(&a, d.socket);
    raw_open(&b, d.socket);
    raw_connect(&c, d.socket);
    raw_hello(&c, CODEC_VERSION_MIN, CODEC_VERSION_MAX, pidfd);
    raw_expect_done(&c, ERROR_QUOTA, "max_sessions");
    raw_expect_goodbye(&c, ERROR_QUOTA, "max_sessions");
    raw_close(&c);

    raw_open_region(&a, 1, fd, 8192);
    raw_open_region(&b, 1, fd, 8192); /* the quota is the uid's, not the session's */
    r.region_open.region = 2;
    r.region_open.bytes = 8192;
    raw_ask(&a, &r, fd, ERROR_QUOTA, "max_regions");
    raw_ask(&b, &(struct request){ .kind = REQUEST_REGION_CLOSE, .region_close.region = 1 }, -1,
            ERROR_NONE, NULL);
    r.region_open.bytes = 8193;
    raw_ask(&a, &r, fd, ERROR_QUOTA, "max_region_bytes");
    r.region_open.bytes = UINT64_MAX;
    raw_ask(&a, &r, fd, ERROR_QUOTA, "max_region_bytes");
    raw_open_region(&a, 2, fd, 8192);

    raw_new_id(&a, id);
    raw_join(&a, 1, id, 0, 2);
    raw_join(&a, 2, id, 1, 2);
    raw_expect_done(&a, ERROR_QUOTA, "max_in_flight");

    close(pidfd);
    close(fd);
    raw_close(&a);
    raw_wait_for_sessions(&b, 1);
    raw_open(&a, d.socket); /* what a session held is free again */
    raw_close(&a);
    raw_close(&b);
    daemon_stop(&d);
}

TEST(strangers_of_one_user_are_few)
{
    struct daemon d;
    struct raw a, b, c;

    daemon_run(&d, "--set=max_strangers=2");
    raw_connect(&a, d.socket);
    raw_connect(&b, d.socket);
    raw_connect(&c, d.socket);
    raw_expect_goodbye(&c, ERROR_QUOTA, "max_strangers");
    raw_close(&a);
    raw_close(&b);
    raw_close(&c);
    daemon_stop(&d);
}

/* ---- regions ---- */

TEST(regions_are_checked_opened_and_closed)
{
    struct request open = { .kind = REQUEST_REGION_OPEN };
    struct request shut = { .kind = REQUEST_REGION_CLOSE, .region_close.region = 1 };
    struct daemon d;
    struct raw c;
    int fd = raw_memfd(65536), loose = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    daemon_run(&d);
    raw_open(&c, d.socket);
    open.region_open.region = 1;
    open.region_open.bytes = 65536;
    assert_int_equal(ftruncate(loose, 65536), 0);
    raw_ask(&c, &open, loose, ERROR_INVALID_ARGUMENT, "SEAL");
    open.region_open.bytes = 65537;
    raw_ask(&c, &open, fd, ERROR_INVALID_ARGUMENT, NULL);

    for (int i = 0; i < 3; i++) {
        raw_open_region(&c, 1, fd, 65536);
        raw_open_region(&c, 2, fd, 65536); /* the same memory */
        raw_open_region(&c, 3, fd, 4096);  /* a part of it */
        for (uint32_t region = 1; region <= 3; region++) {
            shut.region_close.region = region;
            raw_ask(&c, &shut, -1, ERROR_NONE, NULL);
        }
    }
    raw_ask(&c, &shut, -1, ERROR_NOT_FOUND, "region 3 is not open");
    raw_open_region(&c, 1, fd, 65536); /* the end of the session closes it */
    close(loose);
    close(fd);
    raw_close(&c);
    daemon_stop(&d);
}

/* ---- operations ---- */

TEST(two_ranks_of_one_session_reduce)
{
    struct daemon d;
    struct raw c;
    struct request r;
    int fd0 = raw_memfd(4096), fd1 = raw_memfd(4096);
    int32_t values[2][5] = { { 1, 2, 3, 4, 5 }, { 10, 20, 30, 40, 50 } }, sums[5];
    struct progress progress;

    daemon_run(&d);
    raw_open(&c, d.socket);
    raw_open_region(&c, 1, fd0, 4096);
    raw_open_region(&c, 2, fd1, 4096);
    assert_int_equal(pwrite(fd0, values[0], sizeof(values[0]), 0), sizeof(values[0]));
    assert_int_equal(pwrite(fd1, values[1], sizeof(values[1]), 0), sizeof(values[1]));
    raw_join_both(&c);

    r = raw_sum(1, 1, 9, 1, 5);
    raw_send(&c, &r, -1);
    r = raw_sum(2, 1, 8, 2, 5);
    raw_send(&c, &r, -1);
    for (int i = 0; i < 2; i++) {
        if (raw_expect_completion(&c, 0)->code)
            fail_msg("%s", c.reply.completion.error.text);
    }
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(pread(rank ? fd1 : fd0, sums, sizeof(sums), 0), sizeof(sums));
        for (int i = 0; i < 5; i++)
            assert_int_equal(sums[i], values[0][i] + values[1][i]);
    }
    struct progress_cell *cells =
        mmap(NULL, c.slots * sizeof(*cells), PROT_READ, MAP_SHARED, c.cells, 0);

    assert_ptr_not_equal(cells, MAP_FAILED);
    assert_true(progress_read(&cells[9], &progress));
    assert_int_equal(progress.elements_done, 5);
    assert_int_equal(progress.elements_total, 5);
    munmap(cells, c.slots * sizeof(*cells));
    close(fd0);
    close(fd1);
    raw_close(&c);
    daemon_stop(&d);
}

TEST(an_unknown_region_fails_the_operation_for_all_and_no_more)
{
    struct daemon d;
    struct raw c;
    struct request r;
    int fd = raw_memfd(4096);

    daemon_run(&d);
    raw_open(&c, d.socket);
    raw_open_region(&c, 1, fd, 4096);
    raw_join_both(&c);
    r = raw_sum(1, 1, 0, 1, 5);
    raw_send(&c, &r, -1);
    r = raw_sum(2, 1, 1, 77, 5);
    raw_send(&c, &r, -1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(raw_expect_completion(&c, 0)->code, ERROR_NOT_FOUND);
        assert_non_null(strstr(c.reply.completion.error.text, "region 77 is not open"));
    }
    raw_barrier(&c, 1, 2, 0);
    raw_barrier(&c, 2, 2, 1);
    assert_int_equal(raw_expect_completion(&c, 0)->code, ERROR_NONE);
    assert_int_equal(raw_expect_completion(&c, 0)->code, ERROR_NONE);
    close(fd);
    raw_close(&c);
    daemon_stop(&d);
}

TEST(a_communicator_that_is_not_open_is_named)
{
    struct request leave = { .kind = REQUEST_LEAVE, .leave.comm = 9 };
    struct request abort = { .kind = REQUEST_ABORT, .abort.comm = 9, .abort.text = "x" };
    struct daemon d;
    struct raw c;
    uint64_t serial;

    daemon_run(&d);
    raw_open(&c, d.socket);
    serial = raw_barrier(&c, 9, 4, 0);
    assert_int_equal(raw_expect_completion(&c, serial)->code, ERROR_CLOSED);
    assert_int_equal(c.reply.completion.sequence, 4);
    raw_ask(&c, &leave, -1, ERROR_CLOSED, "communicator 9 is not open");
    raw_ask(&c, &abort, -1, ERROR_CLOSED, "communicator 9 is not open");
    raw_close(&c);
    daemon_stop(&d);
}

TEST(a_number_is_free_again_after_leaving)
{
    struct request leave = { .kind = REQUEST_LEAVE };
    struct daemon d;
    struct raw c;

    daemon_run(&d);
    raw_open(&c, d.socket);
    for (int i = 0; i < 3; i++) {
        raw_join_both(&c);
        leave.leave.comm = 1;
        raw_ask(&c, &leave, -1, ERROR_NONE, NULL);
        leave.leave.comm = 2;
        raw_ask(&c, &leave, -1, ERROR_NONE, NULL);
    }
    raw_close(&c);
    daemon_stop(&d);
}

TEST(a_split_gives_its_numbers_to_the_children)
{
    struct request r = { .kind = REQUEST_POST };
    struct request leave = { .kind = REQUEST_LEAVE, .leave.comm = 12 };
    struct daemon d;
    struct raw c;

    daemon_run(&d);
    raw_open(&c, d.socket);
    raw_join_both(&c);
    r.post.sequence = 1;
    r.post.d.kind = COLLECTIVE_SPLIT;
    r.post.d.budget = BUDGET_NONE;
    for (uint32_t comm = 1; comm <= 2; comm++) {
        r.post.comm = comm;
        r.post.slot = comm;
        r.post.child = 10 + comm;
        r.post.color = comm == 1 ? -1 : 4; /* rank 0 takes part and gets none */
        raw_send(&c, &r, -1);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(raw_expect_completion(&c, 0)->code, ERROR_NONE);
        if (c.reply.completion.child_nranks) {
            assert_int_equal(c.reply.completion.child_nranks, 1);
            assert_int_equal(c.reply.completion.child_rank, 0);
            assert_int_equal(strncmp(c.reply.completion.child_id, "rc1-", 4), 0);
        }
    }
    raw_barrier(&c, 12, 1, 0);
    assert_int_equal(raw_expect_completion(&c, 0)->code, ERROR_NONE);
    raw_barrier(&c, 11, 1, 0);
    assert_int_equal(raw_expect_completion(&c, 0)->code, ERROR_CLOSED);
    raw_ask(&c, &leave, -1, ERROR_NONE, NULL);
    raw_close(&c);
    daemon_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        daemon_test(quotas_name_their_key),
        daemon_test(strangers_of_one_user_are_few),
        daemon_test(regions_are_checked_opened_and_closed),
        daemon_test(two_ranks_of_one_session_reduce),
        daemon_test(an_unknown_region_fails_the_operation_for_all_and_no_more),
        daemon_test(a_communicator_that_is_not_open_is_named),
        daemon_test(a_number_is_free_again_after_leaving),
        daemon_test(a_split_gives_its_numbers_to_the_children),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
