/* What device.h promises of memory, of faults in it and of leaving, asked of every device there is
 * and of the flaky one. */
#include "tests/contract/device_world.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- Claims: memory ---- */

static void assert_rejected(struct device *d, int fd, uint64_t bytes, const char *says)
{
    unsigned mapped = count_mapped();
    struct mapping *m = NULL;
    struct error e = { 0 };

    assert_true(fd >= 0);
    assert_int_equal(device_import_memfd(d, fd, bytes, &m, &e), -ERROR_INVALID_ARGUMENT);
    assert_int_equal(e.code, ERROR_INVALID_ARGUMENT);
    assert_null(m);
    assert_int_equal(count_mapped(), mapped);
    if (!strstr(e.text, says))
        fail_msg("\"%s\" does not say \"%s\"", e.text, says);
    close(fd);
}

static int read_only_memfd(void)
{
    int fd = make_memfd(4096, SEALED), reader;
    char path[64];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    reader = open(path, O_RDONLY | O_CLOEXEC);
    close(fd);
    return reader;
}

static int pipe_end(void)
{
    int fds[2];

    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    close(fds[1]);
    return fds[0];
}

static int regular_file(void)
{
    return open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
}

TEST(import_refuses_what_could_hurt_and_says_how_to_fix_it)
{
    for_each_host_kind(k)
    {
        struct device *d = open_kind(&k);
        int huge = memfd_create(MEMFD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);

        assert_rejected(d, pipe_end(), 4096, "not a file");
        assert_rejected(d, open("/dev/null", O_RDWR | O_CLOEXEC), 4096, "not a file");
        assert_rejected(d, regular_file(), 4096, "not memory on tmpfs");
        if (huge >= 0)
            assert_rejected(d, huge, 4096, "without MFD_HUGETLB");
        assert_rejected(d, read_only_memfd(), 4096, "reading and writing");
        assert_rejected(d, make_memfd(4096, 0), 4096, "F_SEAL_SHRINK | F_SEAL_GROW");
        assert_rejected(d, make_memfd(4096, F_SEAL_SHRINK), 4096, "F_SEAL_GROW");
        assert_rejected(d, make_memfd(4096, F_SEAL_GROW), 4096, "F_SEAL_SHRINK");
        assert_rejected(d, make_memfd(4096, SEALED | F_SEAL_WRITE), 4096, "against writing");
        assert_rejected(d, make_memfd(4096, SEALED | F_SEAL_FUTURE_WRITE), 4096, "against writing");
        assert_rejected(d, make_memfd(4096, SEALED), 0, "no bytes");
        assert_rejected(d, make_memfd(4096, SEALED), 4097, "its memory has 4096");
        assert_rejected(d, make_memfd(4096, SEALED), UINT64_MAX, "its memory has 4096");
        close_device(d);
    }
}

TEST(import_shares_the_clients_bytes_and_tells_one_memory_from_another)
{
    for_each_host_kind(k)
    {
        struct device *d = open_kind(&k);
        int fd = make_memfd(4096, SEALED);
        struct mapping *a, *b, *other = import_new(d, 1);

        assert_int_equal(pwrite(fd, "x", 1, 4095), 1);
        assert_int_equal(device_import_memfd(d, fd, 4096, &a, NULL), 0);
        assert_int_equal(device_import_memfd(d, fd, 100, &b, NULL), 0);
        close(fd);
        assert_int_equal(((char *)a->base)[4095], 'x');
        assert_int_equal(a->bytes, 4096);
        assert_int_equal(b->bytes, 100);
        assert_false(a->fault);
        assert_ptr_equal(a->device, d);
        assert_true(a->dev == b->dev && a->ino == b->ino);
        assert_false(a->dev == other->dev && a->ino == other->ino);
        mapping_unref(a);
        mapping_unref(b);
        mapping_unref(other);
        close_device(d);
    }
}

TEST(large_memory_lies_on_a_huge_page_boundary_and_goes_away_whole)
{
    for_each_host_kind(k)
    {
        struct device *d = open_kind(&k);
        static const uint64_t sizes[] = { 2 * MIB, 2 * MIB + 1, 5 * MIB + 4097, 64 * MIB };

        for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
            struct mapping *m = import_new(d, sizes[i]);

            assert_int_equal((uintptr_t)m->base % (2 * MIB), 0);
            ((char *)m->base)[sizes[i] - 1] = 1;
            mapping_unref(m);
        }
        assert_int_equal(count_mapped(), 0);
        close_device(d);
    }
}

TEST(memory_is_mapped_until_the_last_reference_goes)
{
    for_each_kind(k)
    {
        struct device *d = open_kind(&k);
        struct mapping *m = import_new(d, 4096);

        assert_ptr_equal(mapping_ref(m), m);
        assert_int_equal(count_mapped_by(d), 1);
        assert_null(mapping_unref(m));
        assert_int_equal(count_mapped_by(d), 1);
        assert_null(mapping_unref(m));
        assert_int_equal(count_mapped_by(d), 0);
        assert_null(mapping_unref(NULL));
        close_device(d);
    }
}

/* ---- Claims: faults ---- */

TEST(memory_cut_short_fails_its_tasks_and_hurts_nobody)
{
    const uint64_t bytes = 16 * MIB;

    for_each_host_kind(k) for (unsigned small = 0; small < 2; small++) for (unsigned keep = 0;
                                                                            keep < 2; keep++)
    {
        struct device *d = open_kind(&k);
        struct mapping *good = import_new(d, bytes), *bad, *both[2];
        void *src = good->base, *dst;
        struct task t = copy_task(&src, &dst, 1, bytes);
        int fd;

        bad = import_unsealed(d, bytes, &fd);
        dst = bad->base;
        both[0] = good;
        both[1] = bad;
        t.mappings = both;
        t.nmappings = 2;
        t.small = small;
        fill(good->base, bytes, 5);
        assert_int_equal(run(d, &t), 0);

        assert_int_equal(ftruncate(fd, (off_t)(keep ? bytes / 2 : 0)), 0);
        assert_int_equal(run(d, &t), -EFAULT);
        assert_true(bad->fault);
        assert_false(good->fault);
        assert_int_equal(run(d, &t), -EFAULT);

        t.nmappings = 1;
        dst = (uint8_t *)good->base + bytes / 2;
        t.count = bytes / 2;
        assert_int_equal(run(d, &t), 0);
        assert_memory_equal(dst, good->base, bytes / 2);

        mapping_unref(bad);
        mapping_unref(good);
        close(fd);
        assert_int_equal(count_mapped(), 0);
        close_device(d);
    }
}

TEST(a_punched_hole_reads_as_zeros)
{
    for_each_host_kind(k)
    {
        struct device *d = open_kind(&k);
        int fd = make_memfd(MIB, SEALED);
        struct mapping *m;
        void *src, *dst = malloc(MIB);
        struct task t = copy_task(&src, &dst, 1, MIB);

        assert_non_null(dst);
        assert_int_equal(device_import_memfd(d, fd, MIB, &m, NULL), 0);
        src = m->base;
        t.mappings = &m;
        t.nmappings = 1;
        memset(src, 7, MIB);
        assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, MIB), 0);
        assert_int_equal(run(d, &t), 0);
        for (unsigned i = 0; i < MIB; i += 512)
            assert_int_equal(((uint8_t *)dst)[i], 0);
        assert_false(m->fault);
        mapping_unref(m);
        free(dst);
        close(fd);
        close_device(d);
    }
}

static sigjmp_buf before_fault;

static void jump_back(int sig)
{
    siglongjmp(before_fault, sig);
}

static bool read_faults(const volatile char *p)
{
    if (sigsetjmp(before_fault, 1))
        return true;
    (void)*p;
    return false;
}

TEST(a_fault_of_others_goes_to_the_handler_that_was_there_before)
{
    for_each_kind(k)
    {
        struct sigaction mine = { .sa_handler = jump_back }, before, after;
        int fd = make_memfd(4096, 0);
        char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        struct device *d;

        assert_int_equal(ftruncate(fd, 0), 0);
        sigaction(SIGBUS, &mine, &before);
        d = open_kind(&k);
        assert_true(read_faults(p));
        close_device(d);
        sigaction(SIGBUS, &before, &after);
        assert_ptr_equal(after.sa_handler, jump_back);
        munmap(p, 4096);
        close(fd);
    }
}

/* ---- Claims: leaving ---- */

/* A thread that has been joined is seen there a moment longer. */
static void await_threads(unsigned most)
{
    for (unsigned ms = 0; count_entries("/proc/self/task") > most; ms++) {
        assert_true(ms < 20000);
        usleep(1000);
    }
}

TEST(close_leaves_no_thread_and_no_descriptor)
{
    for_each_kind(k) /* which has been open before: drivers keep something for the next time */
    {
        const unsigned nthreads = count_entries("/proc/self/task");
        unsigned nfds = count_entries("/proc/self/fd");
        struct device *d = open_kind(&k);
        struct mapping *m = import_new(d, 4 * MIB);
        void *src = m->base, *dst = (uint8_t *)m->base + 2 * MIB;
        struct task t = copy_task(&src, &dst, 1, 2 * MIB);

        t.mappings = &m;
        t.nmappings = 1;
        assert_int_equal(run(d, &t), 0);
        mapping_unref(m);
        close_device(d);
        await_threads(nthreads);
        assert_int_equal(count_entries("/proc/self/fd"), nfds);
    }
}

static long cpu_us(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 + u.ru_utime.tv_usec +
           u.ru_stime.tv_usec;
}

static bool is_idle(void)
{
    const long before = cpu_us();

    usleep(50000);
    return cpu_us() - before < 10000;
}

/* Workers that did not get the CPU may still be about to go to sleep. */
static void await_idleness(void)
{
    for (unsigned tries = 0; !is_idle(); tries++)
        assert_true(tries < 400);
}

TEST(an_idle_device_uses_no_cpu)
{
    void *src = memory_new(MIB), *dst = memory_new(MIB);

    for_each_kind(k)
    {
        struct device *d = open_kind(&k);
        struct task t = copy_task(&src, &dst, 1, MIB);

        assert_int_equal(run(d, &t), 0);
        await_idleness();
        close_device(d);
    }
    memory_free();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(import_refuses_what_could_hurt_and_says_how_to_fix_it),
        cmocka_unit_test(import_shares_the_clients_bytes_and_tells_one_memory_from_another),
        cmocka_unit_test(large_memory_lies_on_a_huge_page_boundary_and_goes_away_whole),
        cmocka_unit_test(memory_is_mapped_until_the_last_reference_goes),
        cmocka_unit_test(memory_cut_short_fails_its_tasks_and_hurts_nobody),
        cmocka_unit_test(a_punched_hole_reads_as_zeros),
        cmocka_unit_test(a_fault_of_others_goes_to_the_handler_that_was_there_before),
        cmocka_unit_test(close_leaves_no_thread_and_no_descriptor),
        cmocka_unit_test(an_idle_device_uses_no_cpu),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
