#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/socket_path.h"

static int clear_environment(void **state)
{
    (void)state;
    unsetenv("RUCCL_SOCKET");
    unsetenv("XDG_RUNTIME_DIR");
    return 0;
}

/* The path for `uid`, or the complaint. */
static const char *path_for(uid_t uid, size_t size)
{
    static char buffer[256];
    static struct error e;
    uid_t own = geteuid();

    if (own != uid && seteuid(uid) < 0)
        skip(); /* only root can be somebody else */
    memset(&e, 0, sizeof(e));

    int r = socket_path_default(buffer, size, &e);

    assert_int_equal(seteuid(own), 0);
    assert_int_equal(r, -(int)e.code);
    return r < 0 ? e.text : buffer;
}

static void test_environment_decides_first(void **state)
{
    (void)state;
    setenv("RUCCL_SOCKET", "/somewhere/else.sock", 1);
    setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
    assert_string_equal(path_for(geteuid(), 256), "/somewhere/else.sock");
}

static void test_root_has_one_place(void **state)
{
    (void)state;
    setenv("XDG_RUNTIME_DIR", "/run/user/0", 1);
    assert_string_equal(path_for(0, 256), "/run/ruccl/ruccld.sock");
}

static void test_others_have_their_runtime_directory(void **state)
{
    (void)state;
    setenv("RUCCL_SOCKET", "", 1);
    setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
    assert_string_equal(path_for(1000, 256), "/run/user/7/ruccl/ruccld.sock");
}

static void test_nowhere_is_worded(void **state)
{
    (void)state;
    assert_non_null(strstr(path_for(1000, 256), "set RUCCL_SOCKET or XDG_RUNTIME_DIR"));
    setenv("XDG_RUNTIME_DIR", "", 1);
    assert_non_null(strstr(path_for(1000, 256), "set RUCCL_SOCKET or XDG_RUNTIME_DIR"));
}

static void test_path_fits_exactly_or_not_at_all(void **state)
{
    (void)state;
    setenv("RUCCL_SOCKET", "/a/b", 1);
    assert_string_equal(path_for(geteuid(), 5), "/a/b");
    assert_string_equal(path_for(geteuid(), 4), "socket path /a/b is longer than 3 bytes");
}

#define TEST(f) cmocka_unit_test_setup(f, clear_environment)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_environment_decides_first),           TEST(test_root_has_one_place),
        TEST(test_others_have_their_runtime_directory), TEST(test_nowhere_is_worded),
        TEST(test_path_fits_exactly_or_not_at_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
