/* What a peer, or a stranger, does to a daemon's links: silence, tampering, coming again, floods.
 */
#include "tests/unit/links_puppet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

TEST(a_peer_that_dies_is_lost_at_once)
{
    struct comms *a = start(0);
    struct puppet *p = puppet_up(a, HIGHER, 1);

    puppet_free(p);
    run_until(a->lost);
    says(&a->why, "node puppet (127.0.0.1:9)");
    says(&a->why, "has died, or the connection was cut");
    assert_true(a->had_peer);
    assert_int_equal(fake.alive, 0);
}

TEST(a_silent_peer_is_lost_while_something_is_expected_of_it)
{
    struct comms *a = start(0);
    struct puppet *p = puppet_up(a, HIGHER, 1);
    struct link *l = a->last_up;

    run_for(3 * PEER_TIMEOUT / MS); /* nothing is: it may be silent */
    assert_int_equal(a->lost, 0);
    link_ops.ref(l);
    link_ops.expect(l, 1);
    link_ops.expect(l, 1);
    link_ops.expect(l, -1);
    lost_because(a, l, "has been silent for 0.3 s");
    puppet_free(p);
}

TEST(nothing_is_asked_of_a_peer_that_nothing_is_expected_of)
{
    struct comms *a = start(0);
    struct puppet *p = puppet_up(a, HIGHER, 1);

    link_ops.expect(a->last_up, 1);
    run_for(PEER_TIMEOUT / MS / 3);
    link_ops.expect(a->last_up, -1);
    while (puppet_look(p)) {
        struct peer_message m;

        puppet_receive(p, &m);
        assert_int_equal(m.kind, PEER_PING);
    }
    run_for(2 * PEER_TIMEOUT / MS);
    assert_int_equal(puppet_look(p), 0);
    assert_int_equal(a->lost, 0);
    puppet_free(p);
}

TEST(a_peer_that_lives_is_not_lost_however_long_it_takes)
{
    struct comms *a = start(0), *b = start(1);
    struct link *l = dial(a, b);

    link_ops.expect(l, 1); /* also while it is not up */
    run_until(a->up && b->up);
    run_for(5 * PEER_TIMEOUT / MS);
    assert_int_equal(a->lost + b->lost, 0);
    link_ops.expect(l, -1);
    link_ops.unref(l);
}

TEST(a_daemon_that_was_stopped_itself_does_not_blame_its_peers)
{
    struct comms *a = start(0), *b = start(1);
    struct link *l = dial(a, b);

    run_until(a->up && b->up);
    link_ops.expect(l, 1);
    for (unsigned i = 0; i < 3; i++) {
        usleep(2 * PEER_TIMEOUT);
        run_for(5);
    }
    assert_int_equal(a->lost + b->lost, 0);
    link_ops.expect(l, -1);
    link_ops.unref(l);
}

TEST(a_ping_is_answered)
{
    struct comms *a = start(0);
    struct puppet *p = puppet_up(a, HIGHER, 1);
    const struct peer_message ping = { .kind = PEER_PING };
    struct peer_message m;

    puppet_send(p, &ping);
    puppet_receive(p, &m);
    assert_int_equal(m.kind, PEER_PONG);
    puppet_free(p);
}

TEST(a_peer_that_takes_nothing_is_lost_before_memory_is)
{
    struct comms *a = start(0);
    struct puppet *p = puppet_up(a, HIGHER, 1);
    struct link *l = a->last_up;
    const struct peer_message *m = big_message();
    unsigned sent = 0;

    link_ops.ref(l);
    for (; !a->lost && sent < 1000; sent++) {
        link_ops.send(l, m);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    assert_true(sent > 100 && sent < 1000);
    lost_because(a, l, "does not take what is sent to it: 64 MiB wait");
    puppet_free(p);
}

TEST(too_much_for_one_that_has_not_connected_is_a_loss_too)
{
    struct comms *a = start(0);
    struct link *l = open_link(a, "127.0.0.1:9", HIGHER, false);

    for (unsigned i = 0; i < 130; i++)
        link_ops.send(l, big_message());
    assert_int_equal(a->lost, 0); /* not from within */
    lost_because(a, l, "too much waits for it to connect");
}

TEST(a_frame_that_was_tampered_with_ends_the_link)
{
    struct comms *a = start(0);
    struct puppet *p = puppet_up(a, HIGHER, 1);
    const struct peer_message ask = { .kind = PEER_ASK };

    p->out.state[0] ^= 1;
    puppet_send(p, &ask);
    run_until(a->lost);
    says(&a->why, "tampered");
    assert_int_equal(a->messages, 0);
    puppet_free(p);
}

TEST(a_frame_that_is_repeated_ends_the_link)
{
    struct comms *a = start(0);
    struct puppet *p = puppet_up(a, HIGHER, 1);
    const struct peer_message ask = { .kind = PEER_ASK };

    puppet_send(p, &ask);
    p->out.counter--;
    puppet_send(p, &ask);
    run_until(a->lost);
    says(&a->why, "tampered");
    assert_int_equal(a->messages, 1);
    puppet_free(p);
}

TEST(a_frame_longer_than_any_ends_the_link)
{
    struct comms *a = start(0);
    struct puppet *p = puppet_up(a, HIGHER, 1);
    uint8_t head[FRAME_HEAD_BYTES];

    frame_set_length(head, PEER_MESSAGE_BYTES + FRAME_PADDING_MAX + FRAME_TAG_BYTES + 1);
    assert_int_equal(send(p->fd, head, sizeof(head), MSG_NOSIGNAL), sizeof(head));
    run_until(a->lost);
    says(&a->why, "more than there are");
    puppet_free(p);
}

TEST(a_frame_that_never_ends_is_silence)
{
    struct comms *a = start(0);
    struct puppet *p = puppet_up(a, HIGHER, 1);
    uint8_t head[FRAME_HEAD_BYTES];

    frame_set_length(head, PEER_MESSAGE_BYTES);
    assert_int_equal(send(p->fd, head, sizeof(head), MSG_NOSIGNAL), sizeof(head));
    link_ops.expect(a->last_up, 1);
    for (unsigned i = 0; i < 10 && !a->lost; i++) {
        assert_int_equal(send(p->fd, head, 1, MSG_NOSIGNAL), 1);
        run_for(PEER_TIMEOUT / MS / 4);
    }
    run_until(a->lost);
    says(&a->why, "has not finished a message for 0.3 s");
    puppet_free(p);
}

TEST(messages_out_of_their_turn_end_the_link)
{
    static const enum peer_kind kinds[] = { PEER_PROOF, PEER_PAYLOAD };

    for (unsigned i = 0; i < ARRAY_SIZE(kinds); i++) {
        struct comms *a = start(0);
        struct puppet *p = puppet_up(a, HIGHER, 1);
        struct peer_message m = { .kind = kinds[i] };

        puppet_send(p, &m);
        run_until(a->lost);
        says(&a->why, "out of its turn");
        puppet_receive(p, &m); /* it is told */
        assert_int_equal(m.kind, PEER_BYE);
        says(&m.bye.error, "out of its turn");
        puppet_free(p);
        stop(a);
    }
}

TEST(a_message_before_the_set_up_ends_the_link)
{
    struct comms *a = start(0);
    struct puppet *p = puppet_greet(a, HIGHER, 1, &key);
    const struct peer_message ask = { .kind = PEER_ASK };

    puppet_prove(p);
    puppet_send(p, &ask);
    run_until(a->lost);
    says(&a->why, "out of its turn");
    assert_int_equal(a->messages + a->up, 0);
    puppet_free(p);
}

TEST(an_end_in_good_order_is_told_with_its_reason)
{
    struct comms *a = start(0), *b = start(1);
    struct link *l = dial(a, b);

    run_until(a->up && b->up);
    stop(b);
    assert_int_equal(b->lost, 1);
    lost_because(a, l, "is stopping");
    says(&a->why, "node two (");
}

TEST(the_loss_of_the_payloads_connection_is_the_links_too)
{
    struct comms *a = start(0);
    struct puppet *p = puppet_up(a, HIGHER, 1);

    fake.last->failed(fake.last->owner, ECONNRESET);
    assert_int_equal(a->lost, 0); /* not from within */
    run_until(a->lost);
    says(&a->why, "payload");
    puppet_free(p);
}

/* ---- the same daemon again ---- */

TEST(a_daemon_started_anew_takes_the_place_of_the_dead_one)
{
    static const char *const names[] = { LOWER, HIGHER };

    for (unsigned i = 0; i < ARRAY_SIZE(names); i++) {
        struct comms *a = start(0);
        struct puppet *old = puppet_up(a, names[i], 1);
        struct link *l = a->last_up;

        link_ops.ref(l);
        struct puppet *fresh = puppet_dial(a, names[i], 2);

        lost_because(a, l, "was started anew");
        run_until(a->up == 2);
        assert_ptr_not_equal(a->last_up, l);
        assert_string_equal(link_ops.facts(a->last_up)->node, names[i]);
        puppet_free(old);
        run_for(20);
        assert_int_equal(a->lost, 1);
        assert_int_equal(fake.alive, 1);
        puppet_free(fresh);
        stop(a);
    }
}

TEST(a_link_opened_anew_while_its_daemon_comes_anew_is_that_link)
{
    struct comms *a = start(0);
    struct puppet *old = puppet_up(a, HIGHER, 1);

    a->reopens = true;
    struct puppet *fresh = puppet_dial(a, HIGHER, 2);

    run_until(a->up == 2);
    assert_ptr_equal(a->last_up, a->reopened);
    run_for(20);
    assert_int_equal(a->up, 2);
    assert_int_equal(a->lost, 1);
    a->reopens = false;
    link_ops.unref(a->reopened);
    puppet_free(old);
    puppet_free(fresh);
}

TEST(nothing_is_opened_any_more_when_the_daemon_stops)
{
    struct comms *a = start(0);
    struct puppet *p = puppet_up(a, HIGHER, 1);

    a->reopens = true;
    stop(a);
    assert_int_equal(a->lost, 1);
    assert_null(a->reopened);
    puppet_free(p);
}

TEST(a_daemon_that_decides_to_connect_again_has_lost_the_old_one)
{
    struct comms *a = start(0);
    struct puppet *old = puppet_up(a, LOWER, 1);
    struct puppet *fresh = puppet_dial(a, LOWER, 1);

    run_until(a->up == 2 && a->lost == 1);
    says(&a->why, "has connected again");
    puppet_free(old);
    puppet_free(fresh);
}

TEST(one_that_connects_again_while_its_link_works_is_turned_away)
{
    struct comms *a = start(0);
    struct puppet *old = puppet_up(a, HIGHER, 1);
    struct puppet *again = puppet_dial(a, HIGHER, 1);
    const struct peer_message pong = { .kind = PEER_PONG };
    struct peer_message m;

    puppet_receive(old, &m); /* is it still there? */
    assert_int_equal(m.kind, PEER_PING);
    puppet_send(old, &pong);
    puppet_receive(again, &m);
    assert_int_equal(m.kind, PEER_BYE);
    assert_int_equal(m.bye.error.code, ERROR_NONE);
    run_for(3 * PEER_TIMEOUT / MS);
    assert_int_equal(a->up, 1);
    assert_int_equal(a->lost, 0);
    puppet_free(old);
    puppet_free(again);
}

TEST(one_that_connects_again_after_its_link_has_died_unseen_is_taken)
{
    struct comms *a = start(0);
    struct puppet *old = puppet_up(a, HIGHER, 1);
    struct puppet *again = puppet_dial(a, HIGHER, 1);

    run_until(a->lost); /* the old one does not answer */
    says(&a->why, "has been silent");
    run_until(a->up == 2);
    run_for(20);
    assert_int_equal(a->lost, 1);
    assert_int_equal(fake.alive, 1);
    puppet_free(old);
    puppet_free(again);
}

TEST(of_several_that_connect_again_the_last_is_taken)
{
    struct comms *a = start(0);
    struct puppet *old = puppet_up(a, HIGHER, 1);
    struct puppet *again = puppet_dial(a, HIGHER, 1);

    run_for(20);
    struct puppet *last = puppet_dial(a, HIGHER, 1);

    puppet_free(old);
    run_until(a->up == 2 && a->lost == 1);
    struct peer_message m;

    puppet_receive(last, &m);
    assert_int_equal(m.kind, PEER_PAYLOAD);
    puppet_free(again);
    puppet_free(last);
}

/* ---- both dial, one step at a time ---- */

/* A daemon that has dialled a puppet, and the puppet, which has answered. */
struct crossing {
    struct comms *daemon;
    int listener;
    struct link *link;
    struct puppet *dialled;
};

static struct crossing cross(const char *node, unsigned connect_timeout_ms)
{
    struct links_config config = plain_config(0);
    struct crossing c;
    char address[64];

    config.connect_timeout_us = connect_timeout_ms * MS;
    c.daemon = start_with(0, &config);
    c.listener = raw_listen(address);
    c.link = open_link(c.daemon, address, "", true);
    send_asks(c.link, 0, 3);
    c.dialled = puppet_accept(c.listener, node, 1);
    return c;
}

static void cross_end(struct crossing *c)
{
    link_ops.unref(c->link);
    puppet_free(c->dialled);
    close(c->listener);
}

TEST(who_decides_keeps_what_it_has_proven_itself_on)
{
    struct crossing c = cross(HIGHER, 10000);
    struct peer_message m;

    puppet_answer(c.dialled);
    struct puppet *other = puppet_dial(c.daemon, HIGHER, 1);

    puppet_receive(other, &m);
    assert_int_equal(m.kind, PEER_BYE);
    assert_int_equal(m.bye.error.code, ERROR_NONE);
    puppet_set_up(c.dialled);
    puppet_hears_asks(c.dialled, 3);
    assert_ptr_equal(c.daemon->last_up, c.link);
    assert_int_equal(c.daemon->up, 1);
    puppet_free(other);
    cross_end(&c);
}

TEST(who_does_not_decide_goes_over_to_what_the_other_proves)
{
    struct crossing c = cross(LOWER, 10000);

    puppet_answer(c.dialled);
    struct puppet *other = puppet_up(c.daemon, LOWER, 1);

    puppet_hears_asks(other, 3);
    assert_ptr_equal(c.daemon->last_up, c.link);
    assert_int_equal(c.daemon->lost, 0);
    run_until(raw_closed(c.dialled->fd));
    assert_int_equal(fake.alive, 1);
    puppet_free(other);
    cross_end(&c);
}

TEST(who_comes_first_is_taken_whoever_decides)
{
    static const char *const names[] = { LOWER, HIGHER };

    for (unsigned i = 0; i < ARRAY_SIZE(names); i++) {
        struct crossing c = cross(names[i], 10000); /* it has not answered yet */

        /* that it is the same daemon, only its address tells by now */
        struct party self = puppet_party;
        struct puppet *other = calloc(1, sizeof(*other));

        assert_non_null(other);
        strcpy(self.node, names[i]);
        strcpy(self.address, link_ops.facts(c.link)->address);
        other->fd = raw_connect(c.daemon);
        assert_int_equal(peer_codec_new(&other->codec), 0);
        assert_int_equal(handshake_init(&other->h, true, &key, &self, other->codec), 0);
        puppet_put(other, other->h.out, other->h.out_len);
        puppet_prove(other);
        puppet_set_up(other);
        run_until(c.daemon->up);
        assert_ptr_equal(c.daemon->last_up, c.link);
        run_until(raw_closed(c.dialled->fd));
        assert_int_equal(c.daemon->lost, 0);
        puppet_free(other);
        cross_end(&c);
        stop(c.daemon);
    }
}

TEST(who_is_turned_away_waits_for_the_other_connection)
{
    const struct peer_message bye = { .kind = PEER_BYE };
    struct crossing c = cross(LOWER, 10000);

    puppet_answer(c.dialled);
    puppet_send(c.dialled, &bye);
    run_until(raw_closed(c.dialled->fd));
    assert_int_equal(c.daemon->lost, 0);
    struct puppet *other = puppet_up(c.daemon, LOWER, 1);

    puppet_hears_asks(other, 3);
    assert_ptr_equal(c.daemon->last_up, c.link);
    puppet_free(other);
    cross_end(&c);
}

TEST(who_is_turned_away_for_nothing_is_told)
{
    const struct peer_message bye = { .kind = PEER_BYE };
    struct crossing c = cross(LOWER, 200);

    puppet_answer(c.dialled);
    puppet_send(c.dialled, &bye);
    run_until(c.daemon->lost);
    says(&c.daemon->why, "did not connect within 0.2 s");
    says(&c.daemon->why, "node puppet");
    assert_int_equal(fake.alive, 0);
    cross_end(&c);
}

TEST(a_node_that_is_linked_under_another_address_is_not_linked_twice)
{
    struct comms *a;
    struct crossing c = cross(HIGHER, 10000);

    a = c.daemon;
    struct puppet *p = puppet_up(a, HIGHER, 1); /* which says that it is to be reached elsewhere */

    puppet_take_handshake(c.dialled, 0);
    run_until(a->lost);
    says(&a->why, "which is linked as 127.0.0.1:9 already");
    assert_ptr_equal(a->last_lost, c.link);
    puppet_free(p);
    cross_end(&c);
}

/* ---- strangers ---- */

TEST(a_stranger_that_claims_a_name_displaces_nobody)
{
    struct comms *a = start(0);
    struct puppet *p = puppet_up(a, HIGHER, 1);
    struct puppet *liar = puppet_greet(a, HIGHER, 2, &other_key);
    struct puppet *silent = puppet_greet(a, HIGHER, 2, &key);
    const struct peer_message ask = { .kind = PEER_ASK };

    puppet_prove(liar);
    run_until(raw_closed(liar->fd));
    puppet_send(p, &ask);
    run_until(a->messages == 1);
    assert_int_equal(a->lost, 0);
    assert_int_equal(a->up, 1);
    puppet_free(liar);
    puppet_free(silent);
    puppet_free(p);
}

TEST(garbage_is_dropped_and_hurts_nobody)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    struct comms *a = start(0), *b = start(1);
    struct link *l = dial(a, b);
    uint64_t seed = 3;

    run_until(a->up && b->up);
    for (unsigned i = 0; i < 200; i++) {
        uint8_t bytes[2000];
        size_t len = unit_random(&seed) % sizeof(bytes);
        int fd = raw_connect(b);

        for (size_t k = 0; k < len; k++)
            bytes[k] = (uint8_t)unit_random(&seed);
        if (i % 4 == 1)
            memset(bytes, 0, sizeof(bytes));
        if (i % 4 == 2)
            memcpy(bytes, http, len = sizeof(http));
        if (i % 4 == 3 && len > FRAME_HEAD_BYTES) /* a length that is allowed */
            frame_set_length(bytes, (uint32_t)MIN(len - FRAME_HEAD_BYTES, HANDSHAKE_BYTES_MAX));
        if (send(fd, bytes, len, MSG_NOSIGNAL) < 0)
            assert_true(errno == EPIPE || errno == ECONNRESET);
        if (len > FRAME_HEAD_BYTES)
            run_until(raw_closed(fd));
        close(fd);
    }
    send_asks(l, 0, 10);
    run_until(b->messages == 10);
    assert_int_equal(a->lost + b->lost, 0);
    assert_true(a->up == 1 && b->up == 1);
    link_ops.unref(l);
}

TEST(a_flood_of_strangers_keeps_nobody_out)
{
    struct links_config config = plain_config(1);
    int fds[100];

    config.max_strangers = 4;
    struct comms *a = start(0), *b = start_with(1, &config);

    for (unsigned i = 0; i < ARRAY_SIZE(fds); i++)
        fds[i] = raw_connect(b);
    struct link *l = dial(a, b);

    run_until(a->up && b->up);
    assert_true(raw_closed(fds[0]) && raw_closed(fds[90])); /* the oldest made room */
    for (unsigned i = 0; i < ARRAY_SIZE(fds); i++)
        close(fds[i]);
    link_ops.unref(l);
}

TEST(many_that_come_at_once_wait_for_their_turn)
{
    struct links_config config = plain_config(1);
    struct puppet *puppets[50];

    config.max_strangers = 1;
    config.connect_timeout_us = PATIENCE_MS * MS;
    struct comms *b = start_with(1, &config);

    for (unsigned i = 0; i < ARRAY_SIZE(puppets); i++) {
        char node[37];

        snprintf(node, sizeof(node), "%08u-0000-0000-0000-000000000000", 90000000 + i);
        puppets[i] = puppet_greet(b, node, 1, &key);
    }
    for (unsigned i = 0; i < ARRAY_SIZE(puppets); i++) {
        puppet_prove(puppets[i]);
        puppet_set_up(puppets[i]);
    }
    run_until(b->up == ARRAY_SIZE(puppets));
    assert_int_equal(b->lost, 0);
    for (unsigned i = 0; i < ARRAY_SIZE(puppets); i++)
        puppet_free(puppets[i]);
}

TEST(strangers_have_a_deadline_of_their_own)
{
    struct links_config config = plain_config(1);

    config.connect_timeout_us = 3000 * MS; /* enough for what follows */
    struct comms *b = start_with(1, &config);
    int fd = raw_connect(b);
    struct puppet *greeted = puppet_greet(b, HIGHER, 1, &key);
    struct puppet *proven = puppet_greet(b, LOWER, 1, &key);

    puppet_prove(proven);
    run_until(raw_closed(fd) && raw_closed(greeted->fd) && raw_closed(proven->fd));
    assert_int_equal(b->up, 0);
    close(fd);
    puppet_free(greeted);
    puppet_free(proven);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        LINK_TEST(a_peer_that_dies_is_lost_at_once),
        LINK_TEST(a_silent_peer_is_lost_while_something_is_expected_of_it),
        LINK_TEST(nothing_is_asked_of_a_peer_that_nothing_is_expected_of),
        LINK_TEST(a_peer_that_lives_is_not_lost_however_long_it_takes),
        LINK_TEST(a_daemon_that_was_stopped_itself_does_not_blame_its_peers),
        LINK_TEST(a_ping_is_answered),
        LINK_TEST(a_peer_that_takes_nothing_is_lost_before_memory_is),
        LINK_TEST(too_much_for_one_that_has_not_connected_is_a_loss_too),
        LINK_TEST(a_frame_that_was_tampered_with_ends_the_link),
        LINK_TEST(a_frame_that_is_repeated_ends_the_link),
        LINK_TEST(a_frame_longer_than_any_ends_the_link),
        LINK_TEST(a_frame_that_never_ends_is_silence),
        LINK_TEST(messages_out_of_their_turn_end_the_link),
        LINK_TEST(a_message_before_the_set_up_ends_the_link),
        LINK_TEST(an_end_in_good_order_is_told_with_its_reason),
        LINK_TEST(the_loss_of_the_payloads_connection_is_the_links_too),
        LINK_TEST(a_daemon_started_anew_takes_the_place_of_the_dead_one),
        LINK_TEST(a_link_opened_anew_while_its_daemon_comes_anew_is_that_link),
        LINK_TEST(nothing_is_opened_any_more_when_the_daemon_stops),
        LINK_TEST(a_daemon_that_decides_to_connect_again_has_lost_the_old_one),
        LINK_TEST(one_that_connects_again_while_its_link_works_is_turned_away),
        LINK_TEST(one_that_connects_again_after_its_link_has_died_unseen_is_taken),
        LINK_TEST(of_several_that_connect_again_the_last_is_taken),
        LINK_TEST(who_decides_keeps_what_it_has_proven_itself_on),
        LINK_TEST(who_does_not_decide_goes_over_to_what_the_other_proves),
        LINK_TEST(who_comes_first_is_taken_whoever_decides),
        LINK_TEST(who_is_turned_away_waits_for_the_other_connection),
        LINK_TEST(who_is_turned_away_for_nothing_is_told),
        LINK_TEST(a_node_that_is_linked_under_another_address_is_not_linked_twice),
        LINK_TEST(a_stranger_that_claims_a_name_displaces_nobody),
        LINK_TEST(garbage_is_dropped_and_hurts_nobody),
        LINK_TEST(a_flood_of_strangers_keeps_nobody_out),
        LINK_TEST(many_that_come_at_once_wait_for_their_turn),
        LINK_TEST(strangers_have_a_deadline_of_their_own),
    };

    return cmocka_run_group_tests(tests, keys_read, NULL);
}
