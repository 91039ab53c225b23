/* Memory, libruccl's and its callers', against a daemon that is a thread of this process. */
#include "tests/unit/fake_daemon.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---------------------------------------------------------------- plain memory */

TEST(plain_memory_is_copied_there_and_back)
{
    static const uint64_t sizes[] = { 0, 1, 3, 7, 4099 };
    struct pair p = pair_start((struct behaviour){ 0 });
    uint8_t in[4099], out[4099];

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct ruccl_tensor ti = bytes_tensor(in, sizes[i]), to = bytes_tensor(out, sizes[i]);

        memset(in, (int)i + 1, sizeof(in));
        memset(out, 0xee, sizeof(out));
        assert_int_equal(ruccl_all_reduce(p.comm, &ti, &to, RUCCL_SUM), 0);
        for (uint64_t k = 0; k < sizeof(out); k++)
            assert_int_equal(out[k], k < sizes[i] ? i + 2 : 0xee);
        assert_int_equal(ruccl_all_reduce(p.comm, &ti, &ti, RUCCL_SUM), 0);
        for (uint64_t k = 0; k < sizeof(in); k++)
            assert_int_equal(in[k], k < sizes[i] ? i + 2 : i + 1);
    }
    /* Two stages of one size served all. */
    assert_int_equal(p.daemon->regions_opened, 2);
    pair_stop(&p);
}

TEST(in_place_forms_of_plain_memory_alias_in_the_stage_too)
{
    struct pair p = pair_start((struct behaviour){ .rank = 2 });
    uint8_t bytes[12] = { 0, 0, 0, 0, 0, 0, 7, 8, 9 };
    struct ruccl_tensor whole = bytes_tensor(bytes, 12), block = bytes_tensor(bytes + 6, 3);
    struct request q;

    assert_int_equal(ruccl_all_gather(p.comm, &block, &whole), 0);
    q = fake_await(p.daemon, REQUEST_POST, 0);
    assert_int_equal(q.post.in.region, q.post.out.region);
    assert_int_equal(q.post.in.offset, 6);
    assert_int_equal(q.post.out.offset, 0);
    assert_int_equal(bytes[0], 8);
    assert_int_equal(bytes[6], 7);

    assert_int_equal(ruccl_reduce_scatter(p.comm, &whole, &block, RUCCL_SUM), 0);
    q = fake_await(p.daemon, REQUEST_POST, 1);
    assert_int_equal(q.post.in.region, q.post.out.region);
    assert_int_equal(q.post.in.offset, 0);
    assert_int_equal(q.post.out.offset, 6);
    assert_int_equal(p.daemon->regions_opened, 1);
    pair_stop(&p);
}

TEST(a_failed_or_released_work_leaves_plain_output_alone)
{
    struct pair p = pair_start((struct behaviour){ .hold_posts = true });
    uint8_t in[3] = { 1, 2, 3 }, out[3] = { 0 };
    struct ruccl_tensor ti = bytes_tensor(in, 3), to = bytes_tensor(out, 3);
    struct ruccl_work *failed, *released;
    struct request q;

    assert_int_equal(ruccl_all_reduce_async(p.comm, &ti, &to, RUCCL_SUM, &failed), 0);
    assert_int_equal(ruccl_all_reduce_async(p.comm, &ti, &to, RUCCL_SUM, &released), 0);
    ruccl_work_release(released);
    q = fake_await(p.daemon, REQUEST_POST, 0);
    fake_complete(p.daemon, &q, ERROR_MISMATCH, "ranks disagree");
    q = fake_await(p.daemon, REQUEST_POST, 1);
    fake_complete(p.daemon, &q, ERROR_NONE, "");
    assert_int_equal(ruccl_work_wait(failed, -1), -RUCCL_MISMATCH);
    assert_string_equal(ruccl_last_error()->text, "ranks disagree");
    ruccl_work_release(failed);
    assert_int_equal(ruccl_dispatch(p.conn), 0);
    assert_int_equal(out[0], 0);

    /* Their stages are free again. */
    p.daemon->b.hold_posts = false;
    assert_int_equal(ruccl_all_reduce(p.comm, &ti, &to, RUCCL_SUM), 0);
    assert_int_equal(out[0], 2);
    assert_int_equal(p.daemon->regions_opened, 4);
    pair_stop(&p);
}

TEST(regions_are_used_as_they_are)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    struct ruccl_region *region;
    struct ruccl_tensor in, out;
    struct request q;
    uint8_t *data;

    assert_int_equal(ruccl_alloc(p.conn, 100, &region), 0);
    assert_int_equal(ruccl_region_bytes(region), 100);
    data = ruccl_region_data(region);
    data[3] = 41;
    in = (struct ruccl_tensor){ RUCCL_U8, 0, { 0 }, region, 3, NULL };
    out = (struct ruccl_tensor){ RUCCL_U8, 0, { 0 }, region, 5, NULL };
    assert_int_equal(ruccl_all_reduce(p.comm, &in, &out, RUCCL_SUM), 0);
    assert_int_equal(data[5], 42);
    q = fake_await(p.daemon, REQUEST_POST, 0);
    assert_int_equal(q.post.in.offset, 3);
    assert_int_equal(p.daemon->regions_opened, 1);
    ruccl_free(region);
    assert_int_equal(ruccl_all_reduce(p.comm, &in, &out, RUCCL_SUM), -RUCCL_INVALID_ARGUMENT);
    pair_stop(&p);
}

TEST(a_region_ends_where_it_was_asked_to)
{
    static const struct {
        uint64_t offset, bytes;
        enum ruccl_code code;
    } rows[] = {
        { 98, 2, RUCCL_OK },
        { 100, 0, RUCCL_OK },
        { 99, 2, RUCCL_OUT_OF_RANGE },
        { 101, 0, RUCCL_OUT_OF_RANGE },
        { UINT64_MAX, 2, RUCCL_OUT_OF_RANGE },
    };
    struct pair p = pair_start((struct behaviour){ 0 });
    struct ruccl_region *region;

    assert_int_equal(ruccl_alloc(p.conn, 100, &region), 0);
    for (uint32_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct ruccl_tensor t = { RUCCL_U8, 1, { rows[i].bytes }, region, rows[i].offset, NULL };

        assert_int_equal(ruccl_all_reduce(p.comm, &t, &t, RUCCL_SUM), -(int)rows[i].code);
        assert_int_equal(fake_await(p.daemon, REQUEST_POST, i).post.rejection.code, rows[i].code);
    }
    assert_non_null(strstr(ruccl_last_error()->text, "region of 100 bytes"));
    pair_stop(&p);
}

/* ---------------------------------------------------------------- the pool */

static uint8_t *alloc_zeroed(struct pair *p, uint64_t bytes, struct ruccl_region **ret)
{
    uint8_t *data;

    assert_int_equal(ruccl_alloc(p->conn, bytes, ret), 0);
    assert_int_equal(ruccl_region_bytes(*ret), bytes);
    data = ruccl_region_data(*ret);
    for (uint64_t i = 0; i < bytes; i++)
        assert_int_equal(data[i], 0);
    return data;
}

TEST(alloc_in_a_loop_makes_nothing)
{
    static const uint64_t sizes[] = { 1, 4096, 70000, (3u << 20) + 5 };
    struct pair p = pair_start((struct behaviour){ 0 });

    for (int i = 0; i < 20; i++)
        for (size_t k = 0; k < ARRAY_SIZE(sizes); k++) {
            struct ruccl_region *region, *other;

            assert_int_equal(ruccl_alloc(p.conn, sizes[k], &region), 0);
            assert_int_equal(ruccl_alloc(p.conn, sizes[k], &other), 0);
            assert_ptr_not_equal(ruccl_region_data(region), ruccl_region_data(other));
            ruccl_free(region);
            ruccl_free(other);
        }
    /* Two of each, of which the first two share a page's size. */
    assert_int_equal(p.daemon->regions_opened, 2 * ARRAY_SIZE(sizes) - 2);
    assert_int_equal(p.daemon->regions_closed, 0);
    pair_stop(&p);
}

TEST(freed_memory_is_zero_when_it_is_handed_out_again)
{
    static const uint64_t sizes[] = { 8000, 4500, 8192, 1, 6000 };
    struct pair p = pair_start((struct behaviour){ 0 });
    struct ruccl_region *region;
    uint8_t plain[500];
    struct ruccl_tensor t = bytes_tensor(plain, sizeof(plain));

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        memset(alloc_zeroed(&p, sizes[i], &region), 0xff, sizes[i]);
        ruccl_free(region);
    }
    assert_int_equal(p.daemon->regions_opened, 2);

    /* Also what was a stage before. */
    memset(plain, 0xee, sizeof(plain));
    assert_int_equal(ruccl_all_reduce(p.comm, &t, &t, RUCCL_SUM), 0);
    alloc_zeroed(&p, 64u << 10, &region);
    assert_int_equal(p.daemon->regions_opened, 3);
    pair_stop(&p);
}

TEST(no_more_than_a_quarter_lies_fallow)
{
    static const uint64_t sizes[] = { 1, 4097, 33000, 65537, (1u << 20) + 1, (5u << 20) - 1 };
    struct pair p = pair_start((struct behaviour){ 0 });

    for (uint32_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct ruccl_region *region;
        struct request q;

        assert_int_equal(ruccl_alloc(p.conn, sizes[i], &region), 0);
        q = fake_await(p.daemon, REQUEST_REGION_OPEN, i);
        assert_in_range(q.region_open.bytes, sizes[i], MAX(sizes[i] / 4 * 5, sizes[i] + 4095));
    }
    pair_stop(&p);
}

TEST(idle_memory_is_bounded)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    struct ruccl_region *small, *large;

    assert_int_equal(ruccl_alloc(p.conn, 4096, &small), 0);
    assert_int_equal(ruccl_alloc(p.conn, 256u << 20, &large), 0);
    ruccl_free(large);
    assert_int_equal(fake_count(p.daemon, REQUEST_REGION_CLOSE), 0);
    ruccl_free(small);
    /* What has been idle longest went. */
    assert_int_equal(fake_await(p.daemon, REQUEST_REGION_CLOSE, 0).region_close.region,
                     fake_await(p.daemon, REQUEST_REGION_OPEN, 1).region_open.region);
    assert_int_equal(ruccl_alloc(p.conn, 4096, &small), 0);
    assert_int_equal(p.daemon->regions_opened, 2);
    pair_stop(&p);
}

TEST(a_quota_gets_idle_memory_back)
{
    struct pair p = pair_start((struct behaviour){ .regions_max = 2 });
    struct ruccl_region *regions[2], *more;
    uint8_t byte[1] = { 7 };
    struct ruccl_tensor t = bytes_tensor(byte, 1);

    for (int i = 0; i < 2; i++)
        assert_int_equal(ruccl_alloc(p.conn, 4096, &regions[i]), 0);
    assert_int_equal(ruccl_alloc(p.conn, 10000, &more), -RUCCL_QUOTA);
    ruccl_free(regions[0]);
    assert_int_equal(ruccl_alloc(p.conn, 10000, &more), 0);
    ruccl_free(more);
    assert_int_equal(ruccl_all_reduce(p.comm, &t, &t, RUCCL_SUM), 0);
    assert_int_equal(byte[0], 8);
    assert_int_equal(ruccl_alloc(p.conn, 10000, &more), 0);
    assert_int_equal(p.daemon->regions_closed, 3);
    pair_stop(&p);
}

/* A work over memory that is freed at once. */
static struct ruccl_work *post_and_free(struct pair *p, struct ruccl_region *region, bool as_out)
{
    uint8_t byte[1];
    struct ruccl_tensor shared = { RUCCL_U8, 1, { 1 }, region, 0, NULL };
    struct ruccl_tensor plain = bytes_tensor(byte, 1);
    struct ruccl_work *work;

    assert_int_equal(ruccl_all_reduce_async(p->comm, as_out ? &plain : &shared,
                                            as_out ? &shared : &plain, RUCCL_SUM, &work),
                     0);
    ruccl_free(region);
    return work;
}

TEST(memory_is_not_handed_out_under_an_unfinished_operation)
{
    for (int as_out = 0; as_out < 2; as_out++) {
        struct pair p = pair_start((struct behaviour){ .hold_posts = true });
        struct ruccl_region *region, *other, *again;
        struct request q;
        uint8_t *data;

        assert_int_equal(ruccl_alloc(p.conn, 100, &region), 0);
        data = ruccl_region_data(region);
        ruccl_work_release(post_and_free(&p, region, as_out));
        assert_int_equal(ruccl_alloc(p.conn, 100, &other), 0);
        assert_ptr_not_equal(ruccl_region_data(other), data);
        assert_int_equal(fake_count(p.daemon, REQUEST_REGION_CLOSE), 0);

        q = fake_await(p.daemon, REQUEST_POST, 0);
        fake_complete(p.daemon, &q, ERROR_NONE, "");
        /* The barrier's answer comes behind that of the work. */
        p.daemon->b.hold_posts = false;
        assert_int_equal(ruccl_barrier(p.comm), 0);
        assert_int_equal(ruccl_alloc(p.conn, 100, &again), 0);
        assert_ptr_equal(ruccl_region_data(again), data);
        assert_int_equal(data[0], 0);
        pair_stop(&p);
    }
}

TEST(memory_freed_under_an_operation_goes_with_the_connection)
{
    struct pair p = pair_start((struct behaviour){ .hold_posts = true });
    struct ruccl_region *region, *kept;
    struct ruccl_work *work;

    assert_int_equal(ruccl_alloc(p.conn, 100, &region), 0);
    assert_int_equal(ruccl_alloc(p.conn, 100, &kept), 0);
    work = post_and_free(&p, region, false);
    fake_die(p.daemon);
    assert_int_equal(ruccl_work_wait(work, -1), -RUCCL_DAEMON_LOST);
    ruccl_work_release(work);
    ((uint8_t *)ruccl_region_data(kept))[0] = 1; /* stays its caller's */
    ruccl_free(kept);
    assert_int_equal(ruccl_alloc(p.conn, 100, &region), -RUCCL_DAEMON_LOST);
    pair_stop(&p);
}

TEST(memory_without_pages_is_not_handed_out_again)
{
    struct pair p = pair_start((struct behaviour){ .hold_posts = true });
    struct ruccl_region *region;
    struct ruccl_work *work;
    struct request q;

    assert_int_equal(ruccl_alloc(p.conn, 100, &region), 0);
    work = post_and_free(&p, region, true);
    q = fake_await(p.daemon, REQUEST_POST, 0);
    fake_complete(p.daemon, &q, ERROR_MEMORY_FAULT, "no pages");
    assert_int_equal(ruccl_work_wait(work, -1), -RUCCL_MEMORY_FAULT);
    ruccl_work_release(work);
    assert_int_equal(ruccl_alloc(p.conn, 100, &region), 0);
    assert_int_equal(p.daemon->regions_opened, 3);
    /* Its stage went as well: nobody knows which of them it was. */
    assert_int_equal(fake_await(p.daemon, REQUEST_REGION_OPEN, 2).region_open.bytes, 4096);
    fake_await(p.daemon, REQUEST_REGION_CLOSE, 1);
    pair_stop(&p);
}

TEST(register_names_the_missing_property)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct ruccl_region *region;

    assert_int_equal(ftruncate(fd, 4096), 0);
    assert_int_equal(ruccl_register(p.conn, fd, 4096, &region), -RUCCL_INVALID_ARGUMENT);
    assert_non_null(strstr(ruccl_last_error()->text, "F_SEAL_SHRINK"));
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_int_equal(ruccl_register(p.conn, fd, 4096, &region), -RUCCL_INVALID_ARGUMENT);
    assert_non_null(strstr(ruccl_last_error()->text, "F_SEAL_GROW"));
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), 0);
    assert_int_equal(ruccl_register(p.conn, fd, 4097, &region), -RUCCL_INVALID_ARGUMENT);
    assert_int_equal(ruccl_register(p.conn, fd, 0, &region), -RUCCL_INVALID_ARGUMENT);
    assert_int_equal(ruccl_register(p.conn, fd, 4096, &region), 0);
    close(fd);
    memset(ruccl_region_data(region), 1, 4096);
    ruccl_release(region);
    fake_await(p.daemon, REQUEST_REGION_CLOSE, 0);
    pair_stop(&p);
}

TEST(memory_of_gpus_needs_a_driver)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    struct ruccl_region *region = NULL;

    if (driver) {
        dlclose(driver);
        pair_stop(&p);
        skip();
    }
    assert_int_equal(ruccl_register_cuda(p.conn, &p, 1, &region), -RUCCL_NOT_FOUND);
    assert_non_null(strstr(ruccl_last_error()->text, "no CUDA driver"));
    assert_null(region);
    assert_int_equal(ruccl_region_is_staged(NULL), 0);
    pair_stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_memory_is_copied_there_and_back),
        cmocka_unit_test(in_place_forms_of_plain_memory_alias_in_the_stage_too),
        cmocka_unit_test(a_failed_or_released_work_leaves_plain_output_alone),
        cmocka_unit_test(regions_are_used_as_they_are),
        cmocka_unit_test(a_region_ends_where_it_was_asked_to),
        cmocka_unit_test(alloc_in_a_loop_makes_nothing),
        cmocka_unit_test(freed_memory_is_zero_when_it_is_handed_out_again),
        cmocka_unit_test(no_more_than_a_quarter_lies_fallow),
        cmocka_unit_test(idle_memory_is_bounded),
        cmocka_unit_test(a_quota_gets_idle_memory_back),
        cmocka_unit_test(memory_is_not_handed_out_under_an_unfinished_operation),
        cmocka_unit_test(memory_freed_under_an_operation_goes_with_the_connection),
        cmocka_unit_test(memory_without_pages_is_not_handed_out_again),
        cmocka_unit_test(register_names_the_missing_property),
        cmocka_unit_test(memory_of_gpus_needs_a_driver),
    };

    return cmocka_run_group_tests_name("client_memory", tests, NULL, NULL);
}
