/* Daemons link, dial each other at once, and do not link; and how they hear of it. */
#include "tests/unit/links_puppet.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* No label of a name is that long: nobody has to be asked. */
#define NO_SUCH_HOST "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"

/* ---- two daemons ---- */

static void link_up_over(const char *listen)
{
    struct links_config config = plain_config(1);

    config.listen = listen;
    struct comms *a = start(0), *b = start_with(1, &config);
    struct link *l = dial(a, b);

    assert_string_equal(link_ops.facts(l)->host, links_address(b->links));
    assert_null(link_ops.facts(l)->peer);
    send_asks(l, 0, 100);
    run_until(a->up && b->messages == 100);
    assert_int_equal(b->up, 1);
    assert_ptr_equal(a->last_up, l);
    assert_string_equal(link_ops.facts(l)->node, nodes[1]);
    assert_string_equal(link_ops.facts(l)->host, "two");
    assert_string_equal(link_ops.facts(l)->address, links_address(b->links));
    assert_non_null(link_ops.facts(l)->peer);
    assert_string_equal(link_ops.facts(b->last_up)->node, nodes[0]);
    assert_string_equal(link_ops.facts(b->last_up)->address, links_address(a->links));

    send_asks(l, 100, 1000);
    send_asks(b->last_up, 0, 1000);
    run_until(b->messages == 1100 && a->messages == 1000);
    assert_true(a->in_order && b->in_order);
    assert_int_equal(a->lost + b->lost, 0);
    link_ops.unref(l);
}

TEST(a_link_comes_up_and_carries_messages_in_order)
{
    link_up_over("127.0.0.1:0");
}

TEST(a_link_comes_up_over_the_newer_addresses_too)
{
    if (!have_v6())
        skip();
    link_up_over("[::1]:0");
}

TEST(a_name_that_means_several_addresses_finds_the_one_that_answers)
{
    static const char *const listens[] = { "127.0.0.1:0", "[::1]:0" };
    struct comms *a = start(0);

    for (unsigned i = 0; i < ARRAY_SIZE(listens); i++) {
        struct links_config config = plain_config(1 + i);
        char address[32];

        if (i && !have_v6())
            break;
        config.listen = listens[i];
        struct comms *b = start_with(1 + i, &config);

        snprintf(address, sizeof(address), "localhost%s", strrchr(links_address(b->links), ':'));
        struct link *l = open_link(a, address, "", true);

        run_until(a->up + a->lost == i + 1);
        if (a->lost) /* a host whose "localhost" is of one family only */
            says(&a->why, "cannot be connected to");
        link_ops.unref(l);
    }
}

TEST(big_messages_arrive_whole)
{
    struct comms *a = start(0), *b = start(1);
    struct link *l = dial(a, b);
    const struct peer_message *m = big_message();

    for (unsigned i = 0; i < 20; i++) {
        link_ops.send(l, m);
        send_asks(l, i, 1);
    }
    run_until(b->messages == 20);
    assert_true(b->in_order);
    assert_int_equal(b->big_bytes, 20ull * RANKS_MAX * PEER_TEXT_MAX);
    link_ops.unref(l);
}

/* A message of so many bytes: an ask, and behind it a field that nobody knows. */
static void send_long(struct comms *from, struct link *l, uint64_t sequence, size_t bytes)
{
    static const uint8_t tag[] = { 0xfa, 0x3f }; /* field 1023, with a length in front */
    const struct peer_message m = { .kind = PEER_ASK, .ask.sequence = sequence };
    struct link_message ask = link_ops.encode(from->links, &m);
    uint8_t *all = calloc(1, bytes), *at = all + ask.len;
    size_t rest = bytes - (size_t)ask.len - sizeof(tag) - 4;

    memcpy(all, ask.bytes, (size_t)ask.len);
    memcpy(at, tag, sizeof(tag));
    for (unsigned i = 0; i < 4; i++, rest >>= 7)
        at[sizeof(tag) + i] = (uint8_t)((rest & 0x7f) | (i < 3 ? 0x80 : 0));
    link_ops.send_encoded(l, &(struct link_message){ .bytes = all, .len = (int64_t)bytes });
    free(all);
}

TEST(the_longest_message_arrives_and_one_a_byte_longer_ends_the_link)
{
    struct comms *a = start(0), *b = start(1);
    struct link *l = dial(a, b);

    run_until(a->up && b->up);
    send_long(a, l, 0, PEER_MESSAGE_BYTES);
    send_asks(l, 1, 1);
    run_until(b->messages == 2 || b->lost);
    assert_true(b->in_order);
    assert_int_equal(b->lost, 0);
    send_long(a, l, 2, PEER_MESSAGE_BYTES + 1);
    run_until(b->lost);
    says(&b->why, "longer than");
    assert_int_equal(b->messages, 2);
    link_ops.unref(l);
}

/* To links that are up, and to such as are on their way. */
TEST(what_is_encoded_once_goes_to_several)
{
    struct comms *a = start(0), *b = start(1), *c = start(2);
    struct link *to[2] = { dial(a, b), dial(a, c) };

    for (uint64_t i = 0; i < 200; i++) {
        const struct peer_message m = { .kind = PEER_ASK, .ask.sequence = i };
        struct link_message encoded;

        if (i == 100)
            run_until(b->messages == 100 && c->messages == 100);
        encoded = link_ops.encode(a->links, &m);
        link_ops.send_encoded(to[0], &encoded);
        link_ops.send_encoded(to[1], &encoded);
    }
    run_until(b->messages == 200 && c->messages == 200);
    assert_true(b->in_order && c->in_order);
    link_ops.unref(to[0]);
    link_ops.unref(to[1]);
}

TEST(a_link_is_opened_once_however_it_is_named)
{
    struct comms *a = start(0), *b = start(1);
    struct link *l = dial(a, b), *again[5];
    const char *address = links_address(b->links);

    again[0] = open_link(a, address, "", true);
    again[1] = open_link(a, address, nodes[1], false);
    run_until(a->up && b->up);
    again[2] = open_link(a, address, "", true);
    again[3] = open_link(a, "", nodes[1], false);
    again[4] = open_link(a, "10.9.9.9:1", nodes[1], true);
    for (unsigned i = 0; i < ARRAY_SIZE(again); i++) {
        assert_ptr_equal(again[i], l);
        link_ops.unref(l);
    }
    run_for(50);
    assert_int_equal(a->up, 1);
    assert_int_equal(b->up, 1);
    assert_int_equal(fake.alive, 2);

    /* the other side finds it too */
    struct link *other = dial(b, a);

    assert_ptr_equal(other, b->last_up);
    link_ops.unref(other);
    link_ops.unref(l);
}

TEST(what_was_sent_goes_out_though_nobody_holds_the_link_any_more)
{
    struct comms *a = start(0), *b = start(1);
    struct link *l = dial(a, b);

    send_asks(l, 0, 10);
    link_ops.unref(l);
    run_until(b->messages == 10);
}

TEST(an_awaited_link_comes_up_when_the_other_side_dials)
{
    struct comms *a = start(0), *b = start(1);
    struct link *l = open_link(a, links_address(b->links), nodes[1], false);

    send_asks(l, 0, 3);
    run_for(30);
    assert_int_equal(a->up, 0);
    struct link *m = dial(b, a);

    run_until(a->up && b->messages == 3);
    assert_ptr_equal(a->last_up, l);
    link_ops.unref(l);
    link_ops.unref(m);
}

TEST(an_awaited_link_is_dialled_when_asked)
{
    struct comms *a = start(0), *b = start(1);
    struct link *l = open_link(a, links_address(b->links), nodes[1], false);
    struct link *m = dial(a, b);

    assert_ptr_equal(l, m);
    run_until(a->up && b->up);
    link_ops.unref(l);
    link_ops.unref(m);
}

/* ---- both dial ---- */

static void dial_each_other(uint64_t *seed)
{
    struct comms *a = start(0), *b = start(1);
    struct comms *first = unit_random(seed) % 2 ? a : b, *second = first == a ? b : a;
    struct link *l[2];

    l[0] = dial(first, second);
    send_asks(l[0], 0, 5);
    for (uint64_t n = unit_random(seed) % 12; n; n--)
        uv_run(&loop, UV_RUN_NOWAIT);
    l[1] = dial(second, first);
    send_asks(l[1], 0, 5);
    run_until(a->messages == 5 && b->messages == 5);
    for (uint64_t n = 0; n < 10; n++)
        uv_run(&loop, UV_RUN_NOWAIT);
    send_asks(l[0], 5, 5);
    send_asks(l[1], 5, 5);
    run_until(a->messages == 10 && b->messages == 10);
    assert_true(a->in_order && b->in_order);
    assert_int_equal(a->lost + b->lost, 0);
    assert_ptr_equal(first->last_up, l[0]);
    assert_ptr_equal(second->last_up, l[1]);
    assert_true(a->up == 1 && b->up == 1);
    run_until(fake.alive == 2);
    stop(a);
    stop(b);
    link_ops.unref(l[0]);
    link_ops.unref(l[1]);
    run_until(fake.alive == 0);
}

TEST(two_that_dial_each_other_at_once_have_one_link)
{
    uint64_t seed = 1;

    for (unsigned i = 0; i < 200; i++)
        dial_each_other(&seed);
}

TEST(four_that_all_dial_each_other_have_one_link_each)
{
    uint64_t seed = 7;
    struct link *links[DAEMONS_MAX][DAEMONS_MAX] = { 0 };

    for (unsigned i = 0; i < DAEMONS_MAX; i++)
        start(i);
    for (unsigned k = 0; k < 100; k++) {
        unsigned i = unit_random(&seed) % DAEMONS_MAX, j = unit_random(&seed) % DAEMONS_MAX;

        if (i == j || links[i][j])
            continue;
        links[i][j] = dial(&daemons[i], &daemons[j]);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    for (unsigned i = 0; i < DAEMONS_MAX; i++) {
        run_until(daemons[i].up == DAEMONS_MAX - 1);
        assert_int_equal(daemons[i].lost, 0);
    }
    run_until(fake.alive == DAEMONS_MAX * (DAEMONS_MAX - 1));
    for (unsigned i = 0; i < DAEMONS_MAX; i++)
        for (unsigned j = 0; j < DAEMONS_MAX; j++)
            if (links[i][j])
                link_ops.unref(links[i][j]);
}

/* ---- who is not linked ---- */

TEST(another_key_is_refused_by_name)
{
    struct links_config config = plain_config(1);

    config.key = &other_key;
    struct comms *a = start(0), *b = start_with(1, &config);

    lost_because(a, dial(a, b), "does not prove the cluster key");
    says(&a->why, links_address(b->links));
    run_for(20);
    assert_int_equal(b->up + b->lost + a->up, 0);
}

TEST(another_version_is_refused_by_name)
{
    struct links_config config = plain_config(1);

    config.version_min = config.version_max = PEER_VERSION_MAX + 1;
    struct comms *a = start(0), *b = start_with(1, &config);

    lost_because(a, dial(a, b), "speaks versions 3 to 3 of the link, this daemon 2 to 2");
    assert_int_equal(a->why.code, ERROR_VERSION);
}

TEST(a_copied_node_name_is_refused_by_name)
{
    struct links_config config = plain_config(1);

    config.node = nodes[0];
    struct comms *a = start(0), *b = start_with(1, &config);

    lost_because(a, open_link(a, links_address(b->links), "", true), "copied");
}

TEST(a_daemon_is_not_its_own_peer)
{
    struct comms *a = start(0);
    struct link *l;
    struct error e = { 0 };
    char address[64];

    assert_int_equal(link_ops.open(a->links, links_address(a->links), "", true, &l, &e),
                     -ERROR_INVALID_ARGUMENT);
    says(&e, "is this daemon itself");
    e.code = ERROR_NONE;
    assert_true(link_ops.open(a->links, "10.0.0.1:1", nodes[0], true, &l, &e) < 0);
    says(&e, "is this daemon itself");

    /* under another name it finds out for itself */
    snprintf(address, sizeof(address), "localhost%s", strrchr(links_address(a->links), ':'));
    lost_because(a, open_link(a, address, "", true), "is this daemon itself");
}

TEST(the_wrong_node_at_an_address_is_named)
{
    struct comms *a = start(0), *b = start(1);

    lost_because(a, open_link(a, links_address(b->links), nodes[2], true),
                 "is node 22222222-2222-2222-2222-222222222222, and not 33333333");
}

TEST(what_cannot_be_opened_is_said_at_once)
{
    struct comms *a = start(0);
    struct link *l;
    struct error e = { 0 };

    assert_true(link_ops.open(a->links, "nowhere", "", true, &l, &e) < 0);
    says(&e, "'nowhere' is no address");
    e.code = ERROR_NONE;
    assert_true(link_ops.open(a->links, "", nodes[3], true, &l, &e) < 0);
    says(&e, nodes[3]);
}

TEST(without_a_key_only_this_host_is_dialled)
{
    struct links_config config = plain_config(0);

    config.key = &no_key;
    struct comms *a = start_with(0, &config);

    config = plain_config(1);
    config.key = &no_key;
    struct comms *b = start_with(1, &config);
    struct link *l = dial(a, b);

    run_until(a->up && b->up);
    link_ops.unref(l);
    lost_because(a, open_link(a, "192.0.2.1:7777", "", true), "cluster_key");
    says(&a->why, "192.0.2.1:7777");
}

TEST(loopback_and_other_addresses_do_not_mix)
{
    struct links_config config = plain_config(1);

    config.advertise = "192.0.2.7:7777";
    struct comms *a = start(0), *b = start_with(1, &config);

    lost_because(a, open_link(a, "192.0.2.1:7777", "", true), "192.0.2.1:7777 is on another host");
    says(&a->why, links_address(a->links));
    lost_because(b, dial(b, a), "is a loopback address");
    says(&b->why, links_address(a->links));
}

TEST(listening_that_cannot_be_is_an_error_that_says_where)
{
    static const struct {
        const char *listen, *advertise, *why;
    } rows[] = {
        { "0.0.0.0:0", "", "'advertise' one" },
        { "[::]:0", "", "'advertise' one" },
        { "127.0.0.1:0", "0.0.0.0:7", "'advertise' one" },
        { "127.0.0.1:0", "10.0.0.1:0", "has no port" },
        { "127.0.0.1", "", "'127.0.0.1' is no address" },
        { "127.0.0.1:0", "x", "'x' is no address" },
        { "192.0.2.1:7", "", "cannot listen at 192.0.2.1:7" },
        { NO_SUCH_HOST ":7", "", "cannot listen at " NO_SUCH_HOST ":7" },
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct links_config config = plain_config(0);
        struct links *links;
        struct error e = { 0 };

        config.listen = rows[i].listen;
        config.advertise = rows[i].advertise;
        assert_true(links_open(&config, &events, &links, &e) < 0);
        says(&e, rows[i].why);
    }

    struct comms *a = start(0);
    struct links_config config = plain_config(1);
    struct links *links;
    struct error e = { 0 };

    config.listen = links_address(a->links);
    assert_true(links_open(&config, &events, &links, &e) < 0);
    says(&e, config.listen);
}

TEST(wildcards_are_listened_at_and_an_address_advertised)
{
    struct links_config config = plain_config(1);
    struct comms *a = start(0);

    config.listen = have_v6() ? "[::]:0" : "0.0.0.0:0";
    config.advertise = "127.0.0.1:7";
    struct comms *b = start_with(1, &config);

    assert_string_equal(links_address(b->links), "127.0.0.1:7");
    struct link *l = dial(b, a);

    run_until(a->up && b->up);
    assert_string_equal(link_ops.facts(a->last_up)->address, "127.0.0.1:7");
    link_ops.unref(l);
}

TEST(transports_that_differ_are_named_on_both_sides)
{
    struct links_config config = plain_config(1);

    config.transport = NULL;
    struct comms *a = start(0), *b = start_with(1, &config);

    lost_because(a, dial(a, b), "'fake'");
    run_until(b->lost);
    says(&b->why, "set 'transport' alike");
}

/* ---- lost in every state ---- */

TEST(a_name_that_means_nothing_is_a_loss)
{
    struct comms *a = start(0);

    lost_because(a, open_link(a, NO_SUCH_HOST ":7", "", true), "cannot be resolved");
    says(&a->why, "the daemon at " NO_SUCH_HOST);
}

TEST(an_address_where_nobody_listens_is_a_loss)
{
    struct comms *a = start(0);
    char address[64];

    close(raw_listen(address));
    lost_because(a, open_link(a, address, "", true), "connection refused");
    says(&a->why, address);
}

TEST(one_that_says_nothing_is_a_loss)
{
    struct links_config config = plain_config(0);
    char address[64];
    int fd = raw_listen(address);

    config.connect_timeout_us = 100 * MS;
    struct comms *a = start_with(0, &config);

    lost_because(a, open_link(a, address, "", true), "has not finished the handshake within 0.1 s");
    assert_int_equal(a->why.code, ERROR_TIMEOUT);
    close(fd);
}

TEST(one_that_hangs_up_in_the_handshake_is_a_loss)
{
    char address[64];
    int fd = raw_listen(address), connection = -1;
    struct comms *a = start(0);
    struct link *l = open_link(a, address, "", true);

    fcntl(fd, F_SETFL, O_NONBLOCK);
    run_until((connection = accept(fd, NULL, NULL)) >= 0);
    shutdown(connection, SHUT_WR);
    lost_because(a, l, "closed the connection during the handshake");
    close(connection);
    close(fd);
}

/* Without a key it does not even hear out who comes from elsewhere, and cannot say so. */
TEST(one_that_hangs_up_unheard_may_be_of_another_key)
{
    char address[64];
    int fd = raw_listen(address), connection = -1, unread = 0;
    struct comms *a = start(0);
    struct link *l = open_link(a, address, "", true);

    fcntl(fd, F_SETFL, O_NONBLOCK);
    run_until((connection = accept(fd, NULL, NULL)) >= 0);
    run_until(ioctl(connection, FIONREAD, &unread) == 0 && unread > 0); /* its greeting */
    close(connection);
    lost_because(a, l, "have both the same cluster_key? Its log says why");
    close(fd);
}

TEST(one_that_is_awaited_and_does_not_come_is_a_loss)
{
    struct links_config config = plain_config(0);

    config.connect_timeout_us = 100 * MS;
    struct comms *a = start_with(0, &config);

    lost_because(a, open_link(a, "127.0.0.1:9", HIGHER, false), "did not connect within 0.1 s");
    says(&a->why, "127.0.0.1:9");
}

TEST(closing_loses_every_link_in_any_state)
{
    char address[64];
    int fd = raw_listen(address);
    struct comms *a = start(0), *b = start(1);
    struct puppet *p = puppet_up(a, HIGHER, 1);
    struct puppet *proven = puppet_greet(a, LOWER, 1, &key);
    struct puppet *greeted = puppet_greet(a, nodes[3], 1, &key);
    struct link *l[4] = {
        open_link(a, "127.0.0.1:9", nodes[2], false),
        open_link(a, address, "", true),
        dial(a, b),
        NULL,
    };

    puppet_prove(proven);
    run_until(b->up);
    l[3] = open_link(a, "localhost:9", "", true);
    stop(a);
    assert_int_equal(a->lost, 6);
    for (unsigned i = 0; i < ARRAY_SIZE(l); i++)
        link_ops.unref(l[i]);
    run_until(b->lost);
    run_until(raw_closed(greeted->fd) && raw_closed(proven->fd));
    puppet_free(p);
    puppet_free(proven);
    puppet_free(greeted);
    close(fd);
}

TEST(a_lost_link_takes_what_is_sent_and_forgets_it)
{
    struct comms *a = start(0);
    char address[64];

    close(raw_listen(address));
    struct link *l = open_link(a, address, "", true);

    run_until(a->lost);
    send_asks(l, 0, 3);
    link_ops.expect(l, 1);
    link_ops.expect(l, -1);
    struct link *fresh = open_link(a, address, "", true); /* another try is another link */

    assert_ptr_not_equal(fresh, l);
    link_ops.unref(l);
    run_until(a->lost == 2);
    link_ops.unref(fresh);
}

static void take_status(void *context, const struct status_item *item)
{
    struct status_item *items = context;

    assert_int_equal(item->kind, STATUS_PEER);
    items[strcmp(item->peer.state, "up") ? 1 : 0] = *item;
}

TEST(status_shows_each_peer)
{
    struct comms *a = start(0), *b = start(1);
    struct link *l = dial(a, b), *m = open_link(a, "127.0.0.1:9", "", false);
    struct status_item items[2] = { 0 };

    run_until(a->up && b->up);
    link_ops.expect(l, 2);
    run_for(10);
    links_status(a->links, uv_hrtime() / 1000, take_status, items);
    assert_string_equal(items[0].peer.node, nodes[1]);
    assert_string_equal(items[0].peer.host, "two");
    assert_string_equal(items[0].peer.address, links_address(b->links));
    assert_string_equal(items[0].peer.transport, "fake eth0");
    assert_true(items[0].peer.gpu_direct);
    assert_int_equal(items[0].peer.expecting, 2);
    assert_in_range(items[0].peer.heard_age_us, 1, PATIENCE_MS * MS);
    assert_string_equal(items[1].peer.node, "");
    assert_string_equal(items[1].peer.address, "127.0.0.1:9");
    assert_string_equal(items[1].peer.state, "awaited");
    link_ops.expect(l, -2);
    link_ops.unref(l);
    link_ops.unref(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        LINK_TEST(a_link_comes_up_and_carries_messages_in_order),
        LINK_TEST(a_link_comes_up_over_the_newer_addresses_too),
        LINK_TEST(a_name_that_means_several_addresses_finds_the_one_that_answers),
        LINK_TEST(big_messages_arrive_whole),
        LINK_TEST(the_longest_message_arrives_and_one_a_byte_longer_ends_the_link),
        LINK_TEST(what_is_encoded_once_goes_to_several),
        LINK_TEST(a_link_is_opened_once_however_it_is_named),
        LINK_TEST(what_was_sent_goes_out_though_nobody_holds_the_link_any_more),
        LINK_TEST(an_awaited_link_comes_up_when_the_other_side_dials),
        LINK_TEST(an_awaited_link_is_dialled_when_asked),
        LINK_TEST(two_that_dial_each_other_at_once_have_one_link),
        LINK_TEST(four_that_all_dial_each_other_have_one_link_each),
        LINK_TEST(another_key_is_refused_by_name),
        LINK_TEST(another_version_is_refused_by_name),
        LINK_TEST(a_copied_node_name_is_refused_by_name),
        LINK_TEST(a_daemon_is_not_its_own_peer),
        LINK_TEST(the_wrong_node_at_an_address_is_named),
        LINK_TEST(what_cannot_be_opened_is_said_at_once),
        LINK_TEST(without_a_key_only_this_host_is_dialled),
        LINK_TEST(loopback_and_other_addresses_do_not_mix),
        LINK_TEST(listening_that_cannot_be_is_an_error_that_says_where),
        LINK_TEST(wildcards_are_listened_at_and_an_address_advertised),
        LINK_TEST(transports_that_differ_are_named_on_both_sides),
        LINK_TEST(a_name_that_means_nothing_is_a_loss),
        LINK_TEST(an_address_where_nobody_listens_is_a_loss),
        LINK_TEST(one_that_says_nothing_is_a_loss),
        LINK_TEST(one_that_hangs_up_in_the_handshake_is_a_loss),
        LINK_TEST(one_that_hangs_up_unheard_may_be_of_another_key),
        LINK_TEST(one_that_is_awaited_and_does_not_come_is_a_loss),
        LINK_TEST(closing_loses_every_link_in_any_state),
        LINK_TEST(a_lost_link_takes_what_is_sent_and_forgets_it),
        LINK_TEST(status_shows_each_peer),
    };

    return cmocka_run_group_tests(tests, keys_read, NULL);
}
