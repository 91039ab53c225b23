/* Bells: whose they are, who can write them, and that one call wakes all who sleep at one. */
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/server/bells.h"
#include "tests/unit/unit.h"

#define SLEEPERS 8

static struct list belfries;

static int open_tower(void **state)
{
    (void)state;
    list_init(&belfries);
    return 0;
}

static struct belfry *get(uid_t uid)
{
    struct belfry *b = NULL;

    assert_int_equal(belfry_get(&belfries, uid, &b), 0);
    return b;
}

TEST(a_uid_has_one_belfry_while_anybody_needs_it)
{
    struct belfry *one = get(1000), *other = get(1001);

    assert_ptr_not_equal(one, other);
    assert_ptr_equal(get(1000), one);
    assert_null(belfry_put(one));
    assert_ptr_equal(get(1000), one);
    belfry_put(one);
    belfry_put(one);
    assert_ptr_equal(list_first(&belfries, struct belfry, link), other);
    belfry_put(other);
    assert_true(list_empty(&belfries));
    assert_null(belfry_put(NULL));
}

TEST(who_is_nobody_in_particular_shares_with_nobody)
{
    struct belfry *alone = NULL, *listed = get(65534);

    assert_int_equal(belfry_get(NULL, 65534, &alone), 0);
    assert_ptr_not_equal(alone, listed);
    belfry_put(alone);
    assert_ptr_equal(list_first(&belfries, struct belfry, link), listed);
    belfry_put(listed);
}

TEST(clients_see_the_bells_and_cannot_write_them)
{
    struct belfry *b = get(1000);
    const struct bells *seen = mmap(NULL, sizeof(*seen), PROT_READ, MAP_SHARED, b->fd, 0);
    char path[64];
    int fd;

    assert_ptr_not_equal(seen, MAP_FAILED);
    bell_ring(&b->bells->rung[7], 1);
    assert_int_equal(seen->rung[7], 1);
    assert_int_equal(seen->rung[6], 0);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0), MAP_FAILED);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", b->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) { /* we may, being of the same uid: the seals say no */
        assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
        assert_true(write(fd, "x", 1) < 0);
        assert_true(ftruncate(fd, 0) < 0);
        close(fd);
    }
    munmap((void *)seen, sizeof(*seen));
    belfry_put(b);
}

static _Atomic uint32_t asleep;

static void *sleep_at(void *bell)
{
    const _Atomic uint32_t *number = bell;
    const uint32_t seen = atomic_load(number);

    atomic_fetch_add(&asleep, 1);
    while (atomic_load(number) == seen)
        syscall(SYS_futex, number, FUTEX_WAIT, seen, NULL, NULL, 0);
    return NULL;
}

/* Through mappings of their own, as processes have them. */
TEST(one_ring_wakes_all_who_sleep_there)
{
    struct belfry *b = get(1000);
    struct bells *seen = mmap(NULL, sizeof(*seen), PROT_READ, MAP_SHARED, b->fd, 0);
    pthread_t threads[SLEEPERS];

    atomic_store(&asleep, 0);
    for (int i = 0; i < SLEEPERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, sleep_at, &seen->rung[1023]), 0);
    while (atomic_load(&asleep) < SLEEPERS)
        sched_yield();
    usleep(50000); /* in the kernel by now: whoever were not would not need to be woken */
    bell_ring(&b->bells->rung[1023], SLEEPERS);
    for (int i = 0; i < SLEEPERS; i++)
        pthread_join(threads[i], NULL);
    munmap(seen, sizeof(*seen));
    belfry_put(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_uid_has_one_belfry_while_anybody_needs_it, open_tower),
        cmocka_unit_test_setup(who_is_nobody_in_particular_shares_with_nobody, open_tower),
        cmocka_unit_test_setup(clients_see_the_bells_and_cannot_write_them, open_tower),
        cmocka_unit_test_setup(one_ring_wakes_all_who_sleep_there, open_tower),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
