/* How addresses are written, and which of them mean this host. */
#include "tests/unit/unit.h"

#include <string.h>

#include "daemon/server/address.h"

static void read_as(const char *text, const char *wanted, const char *host, uint16_t port)
{
    struct address a;
    struct error e = { 0 };

    if (address_parse(text, &a, &e) < 0)
        fail_msg("'%s': %s", text, e.text);
    assert_string_equal(a.text, wanted);
    assert_string_equal(a.host, host);
    assert_int_equal(a.port, port);
}

TEST(addresses_are_written_one_way)
{
    read_as("10.0.0.1:7777", "10.0.0.1:7777", "10.0.0.1", 7777);
    read_as("[::1]:7777", "[::1]:7777", "::1", 7777);
    read_as("[FD00:0:0:0:0:0:0:2]:07777", "[fd00::2]:7777", "fd00::2", 7777);
    read_as("Node-3.Example.ORG:1", "node-3.example.org:1", "node-3.example.org", 1);
    read_as("0.0.0.0:0", "0.0.0.0:0", "0.0.0.0", 0);
    read_as("a:65535", "a:65535", "a", 65535);
}

TEST(what_is_none_is_refused)
{
    static const char *const none[] = {
        "",
        ":",
        "7777",
        "host",
        ":7777",
        "host:",
        "host:70000",
        "host:x",
        "host:-1",
        "host: 1",
        "host:1 ",
        "::1:7777",
        "[::1]",
        "[::1]7777",
        "[]:7",
        "[host]:7",
        "[10.0.0.1]:7",
        "ho st:7",
        "h\xc3\xb6st:7",
        "host:111111",
        "[:7",
        "]:7",
        "[::1:7",
        "a/b:7",
        "[::1]x:7",
    };

    for (size_t i = 0; i < ARRAY_SIZE(none); i++) {
        struct address a;
        struct error e = { 0 };

        if (address_parse(none[i], &a, &e) != -ERROR_INVALID_ARGUMENT)
            fail_msg("'%s' was taken", none[i]);
        assert_non_null(strstr(e.text, none[i]));
    }
}

TEST(a_host_of_any_length_is_taken_or_refused)
{
    for (size_t len = 1; len < 300; len++) {
        char text[310];
        struct address a;
        struct error e = { 0 };
        int r;

        memset(text, 'h', len);
        strcpy(text + len, ":65535");
        r = address_parse(text, &a, &e);
        assert_int_equal(r == 0, len < ADDRESS_HOST_BYTES);
        if (r == 0)
            assert_string_equal(a.text, text);
    }
}

TEST(loopback_is_told_apart)
{
    static const struct {
        const char *text;
        bool loopback, wildcard;
    } rows[] = {
        { "127.0.0.1:1", true, false },
        { "127.9.8.7:1", true, false },
        { "[::1]:1", true, false },
        { "[::ffff:127.0.0.1]:1", true, false },
        { "LocalHost:1", true, false },
        { "10.0.0.1:1", false, false },
        { "128.0.0.1:1", false, false },
        { "[::2]:1", false, false },
        { "[::ffff:10.0.0.1]:1", false, false },
        { "node:1", false, false },
        { "0.0.0.0:1", false, true },
        { "[::]:1", false, true },
        { "[0:0::0]:1", false, true },
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct address a;

        assert_int_equal(address_parse(rows[i].text, &a, NULL), 0);
        assert_int_equal(address_is_loopback(&a), rows[i].loopback);
        assert_int_equal(address_is_wildcard(&a), rows[i].wildcard);
    }
}

TEST(numbers_become_sockets_addresses_and_back)
{
    static const char *const texts[] = { "10.1.2.3:4", "[fd00::5]:6", "[::1]:65535" };

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        struct address a, b;
        struct sockaddr_storage sa;

        assert_int_equal(address_parse(texts[i], &a, NULL), 0);
        assert_true(address_number(&a, &sa));
        address_of((struct sockaddr *)&sa, &b);
        assert_string_equal(b.text, texts[i]);
        sockaddr_set_port((struct sockaddr *)&sa, 9);
        address_of((struct sockaddr *)&sa, &b);
        assert_int_equal(b.port, 9);
        assert_string_equal(b.host, a.host);
    }

    struct address name;
    struct sockaddr_storage sa;

    assert_int_equal(address_parse("node:1", &name, NULL), 0);
    assert_false(address_number(&name, &sa));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_written_one_way),
        cmocka_unit_test(what_is_none_is_refused),
        cmocka_unit_test(a_host_of_any_length_is_taken_or_refused),
        cmocka_unit_test(loopback_is_told_apart),
        cmocka_unit_test(numbers_become_sockets_addresses_and_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
