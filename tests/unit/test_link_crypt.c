/* The handshake between daemons, with everything done to the bytes that somebody between them could
 * do; and the files of its keys. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sodium.h>

#include "daemon/server/link_crypt.h"

/* As peer.proto numbers them. */
#define AES    1u
#define CHACHA 2u

static struct peer_codec *codec;
static struct link_key key, other_key, no_key;

static const struct party alice = {
    .version_min = 1,
    .version_max = 1,
    .node = "11111111-1111-1111-1111-111111111111",
    .instance = 71,
    .ciphers = AES | CHACHA,
    .host = "alice",
    .address = "10.0.0.1:7777",
};
static const struct party bob = {
    .version_min = 1,
    .version_max = 1,
    .node = "22222222-2222-2222-2222-222222222222",
    .instance = 72,
    .ciphers = AES | CHACHA,
    .host = "bob",
    .address = "[fd00::2]:7777",
};

/* ---- a handshake, and what may be done to it ---- */

#define MESSAGES 3u /* HELLO, WELCOME, PROOF */

struct bytes {
    uint8_t s[HANDSHAKE_BYTES_MAX + 1];
    size_t len;
};

struct shake {
    struct handshake a, b;
    int ra, rb; /* of the last call at each end; 1: proven */
    struct error ea, eb;
    struct bytes sent[MESSAGES];
    void (*tamper)(struct shake *s, unsigned message, struct bytes *b);
    size_t at;
    uint8_t mask;
};

static void start(struct shake *s, const struct party *a, const struct link_key *ka,
                  const struct party *b, const struct link_key *kb)
{
    assert_int_equal(handshake_init(&s->a, true, ka, a, codec), 0);
    assert_int_equal(handshake_init(&s->b, false, kb, b, codec), 0);
}

static const struct bytes *carry(struct shake *s, unsigned message, const struct handshake *from)
{
    struct bytes *b = &s->sent[message];

    memcpy(b->s, from->out, from->out_len);
    b->len = from->out_len;
    if (s->tamper && b->len)
        s->tamper(s, message, b);
    return b;
}

/* Each message goes on as long as its sender had something to say. */
static void finish(struct shake *s)
{
    const struct bytes *m = carry(s, 0, &s->a);

    s->rb = handshake_take(&s->b, codec, m->s, m->len, &s->eb);
    m = carry(s, 1, &s->b);
    if (!m->len)
        return;
    s->ra = handshake_take(&s->a, codec, m->s, m->len, &s->ea);
    m = carry(s, 2, &s->a);
    if (!m->len || s->rb < 0)
        return;
    s->rb = handshake_take(&s->b, codec, m->s, m->len, &s->eb);
}

static void says(const struct error *e, const char *what)
{
    if (!strstr(e->text, what))
        fail_msg("'%s' does not say '%s'", e->text, what);
}

static void both_proven(const struct shake *s)
{
    assert_int_equal(s->ra, HANDSHAKE_PROVEN);
    assert_int_equal(s->rb, HANDSHAKE_PROVEN);
}

TEST(two_with_the_key_prove_it_and_know_each_other)
{
    struct shake s = { 0 };

    start(&s, &alice, &key, &bob, &key);
    finish(&s);
    both_proven(&s);
    assert_string_equal(s.a.theirs.node, bob.node);
    assert_string_equal(s.a.theirs.host, "bob");
    assert_string_equal(s.a.theirs.address, "[fd00::2]:7777");
    assert_int_equal(s.a.theirs.instance, 72);
    assert_string_equal(s.b.theirs.node, alice.node);
    assert_string_equal(s.b.theirs.host, "alice");
    assert_int_equal(s.a.version, 1);
    assert_int_equal(s.b.version, 1);
}

TEST(two_without_a_key_are_as_good_as_each_other)
{
    struct shake s = { 0 };

    start(&s, &alice, &no_key, &bob, &no_key);
    finish(&s);
    both_proven(&s);
}

TEST(the_longest_names_fit)
{
    struct party a = alice, b = bob;
    struct shake s = { 0 };

    memset(a.host, 'h', PEER_HOST_MAX);
    memset(a.address, 'a', PEER_ADDRESS_MAX);
    memset(b.host, 'h', PEER_HOST_MAX);
    memset(b.address, 'b', PEER_ADDRESS_MAX);
    a.instance = b.instance = UINT64_MAX;
    a.version_max = b.version_max = a.ciphers = b.ciphers = UINT32_MAX;
    start(&s, &a, &key, &b, &key);
    finish(&s);
    both_proven(&s);
}

TEST(another_key_is_named_on_both_sides)
{
    struct shake s = { 0 };

    start(&s, &alice, &key, &bob, &other_key);
    finish(&s);
    assert_int_equal(s.ra, -ERROR_PERMISSION);
    assert_int_equal(s.rb, -ERROR_PERMISSION);
    says(&s.ea, "does not prove the cluster key");
    says(&s.eb, "does not prove the cluster key");
}

TEST(a_missing_key_is_named_on_both_sides)
{
    struct shake s = { 0 };

    start(&s, &alice, &key, &bob, &no_key);
    finish(&s);
    says(&s.ea, "does not prove the cluster key");
    says(&s.eb, "this daemon has none");
}

TEST(the_highest_version_of_both_is_spoken)
{
    struct party a = alice, b = bob;
    struct shake s = { 0 };

    a.version_max = 5;
    b.version_min = 2;
    b.version_max = 9;
    start(&s, &a, &key, &b, &key);
    finish(&s);
    both_proven(&s);
    assert_int_equal(s.a.version, 5);
    assert_int_equal(s.b.version, 5);
}

TEST(versions_without_a_common_one_are_named_on_both_sides)
{
    struct party b = bob;
    struct shake s = { 0 };

    b.version_min = 2;
    b.version_max = 3;
    start(&s, &alice, &key, &b, &key);
    finish(&s);
    assert_int_equal(s.ra, -ERROR_VERSION);
    assert_int_equal(s.rb, -ERROR_VERSION);
    says(&s.ea, "versions 2 to 3 of the link, this daemon 1 to 1");
    says(&s.eb, "versions 1 to 1 of the link, this daemon 2 to 3");
}

/* What two with these sets of ciphers agree on, and alike. */
static const char *agreed(uint32_t of_alice, uint32_t of_bob)
{
    struct party a = alice, b = bob;
    struct shake s = { 0 };

    a.ciphers = of_alice;
    b.ciphers = of_bob;
    start(&s, &a, &key, &b, &key);
    finish(&s);
    both_proven(&s);
    assert_ptr_equal(s.a.cipher, s.b.cipher);
    return cipher_name(s.a.cipher);
}

TEST(aes_is_preferred_where_both_have_it)
{
    assert_string_equal(agreed(AES | CHACHA, AES | CHACHA), "AES-256-GCM");
    assert_string_equal(agreed(CHACHA, AES | CHACHA), "ChaCha20-Poly1305");
    assert_string_equal(agreed(AES | CHACHA, CHACHA), "ChaCha20-Poly1305");
    assert_string_equal(agreed(UINT32_MAX, CHACHA), "ChaCha20-Poly1305");
    assert_true(ciphers_here() & CHACHA);
}

TEST(ciphers_without_a_common_one_are_named_on_both_sides)
{
    struct party b = bob;
    struct shake s = { 0 };

    b.ciphers = ~(AES | CHACHA);
    start(&s, &alice, &key, &b, &key);
    finish(&s);
    assert_int_equal(s.ra, -ERROR_VERSION);
    assert_int_equal(s.rb, -ERROR_VERSION);
    says(&s.ea, "none of the ciphers");
    says(&s.eb, "none of the ciphers");
}

TEST(a_daemon_that_reaches_itself_says_so)
{
    struct shake s = { 0 };

    start(&s, &alice, &key, &alice, &key);
    finish(&s);
    says(&s.ea, "is this daemon itself");
    says(&s.eb, "is this daemon itself");
}

TEST(a_copied_node_name_is_named_on_both_sides)
{
    struct party b = bob;
    struct shake s = { 0 };

    strcpy(b.node, alice.node);
    start(&s, &alice, &key, &b, &key);
    finish(&s);
    assert_int_equal(s.ra, -ERROR_INVALID_ARGUMENT);
    assert_int_equal(s.rb, -ERROR_INVALID_ARGUMENT);
    says(&s.ea, "copied");
    says(&s.eb, "copied");
}

/* ---- somebody in between ---- */

static unsigned tampered_message;

static void flip(struct shake *s, unsigned message, struct bytes *b)
{
    if (message == tampered_message && s->at < b->len)
        b->s[s->at] ^= s->mask;
}

static void cut(struct shake *s, unsigned message, struct bytes *b)
{
    if (message == tampered_message && s->at < b->len)
        b->len = s->at;
}

/* With the byte there was to be changed, at least one of the two has not taken the other for
 * proven. Returns false past the message's end. */
static bool refused_with(void (*tamper)(struct shake *, unsigned, struct bytes *), size_t at,
                         uint8_t mask)
{
    struct shake s = { .tamper = tamper, .at = at, .mask = mask };

    start(&s, &alice, &key, &bob, &key);
    finish(&s);
    if (s.ra == HANDSHAKE_PROVEN && s.rb == HANDSHAKE_PROVEN) {
        if (at < s.sent[tampered_message].len)
            fail_msg("message %u, byte %zu, mask %#x: nobody noticed", tampered_message, at, mask);
        return false;
    }
    return true;
}

TEST(no_bit_of_the_handshake_can_be_changed)
{
    for (tampered_message = 0; tampered_message < MESSAGES; tampered_message++) {
        size_t at = 0;

        for (;; at++) {
            bool there = true;

            for (unsigned bit = 0; bit < 8 && there; bit++)
                there = refused_with(flip, at, (uint8_t)(1u << bit));
            if (!there)
                break;
        }
        assert_true(at > PEER_PROOF_BYTES);
    }
}

TEST(no_message_of_the_handshake_can_be_cut)
{
    for (tampered_message = 0; tampered_message < MESSAGES; tampered_message++) {
        size_t at = 0;

        while (refused_with(cut, at, 0))
            at++;
        assert_true(at > PEER_PROOF_BYTES);
    }
}

/* Takes a cipher out of what the sender says of itself; `mask`: of which messages. */
static void strike_aes(struct shake *s, unsigned message, struct bytes *b)
{
    struct peer_message m;
    struct error e = { 0 };
    const void *bytes;

    if (!(s->mask & 1u << message))
        return;
    assert_int_equal(peer_codec_decode(codec, b->s, b->len, &m, &e), 0);
    m.hello.ciphers &= ~AES; /* a welcome begins with its hello */
    b->len = (size_t)peer_codec_encode(codec, &m, &bytes);
    assert_in_range(b->len, 1, HANDSHAKE_BYTES_MAX);
    memcpy(b->s, bytes, b->len);
}

TEST(nobody_in_between_talks_two_out_of_a_cipher)
{
    for (uint8_t messages = 0; messages < 4; messages++) {
        struct shake s = { .tamper = strike_aes, .mask = messages };

        start(&s, &alice, &key, &bob, &key);
        finish(&s);
        if (messages == 0) {
            both_proven(&s);
        } else {
            assert_int_equal(s.ra, -ERROR_PERMISSION);
            says(&s.ea, "does not prove the cluster key");
            assert_int_not_equal(s.rb, HANDSHAKE_PROVEN);
        }
    }
}

static struct bytes recorded[MESSAGES];

static void replay(struct shake *s, unsigned message, struct bytes *b)
{
    (void)s;
    if (message == tampered_message)
        *b = recorded[message];
}

TEST(no_message_of_another_handshake_is_good)
{
    struct shake first = { 0 };

    start(&first, &alice, &key, &bob, &key);
    finish(&first);
    both_proven(&first);
    memcpy(recorded, first.sent, sizeof(recorded));
    for (tampered_message = 0; tampered_message < MESSAGES; tampered_message++) {
        struct shake s = { .tamper = replay };

        start(&s, &alice, &key, &bob, &key);
        finish(&s);
        assert_false(s.ra == HANDSHAKE_PROVEN && s.rb == HANDSHAKE_PROVEN);
        assert_true(s.ra < 0 || s.rb < 0);
    }
}

TEST(a_proof_sent_back_is_none)
{
    struct shake s = { 0 };
    struct peer_message m;
    struct error e = { 0 };
    const void *bytes;
    int64_t len;
    uint8_t proof[PEER_PROOF_BYTES];

    /* somebody without the key greets, and sends back what the answer proves */
    start(&s, &alice, &other_key, &bob, &key);
    assert_int_equal(handshake_take(&s.b, codec, s.a.out, s.a.out_len, &e), 0);
    assert_int_equal(peer_codec_decode(codec, s.b.out, s.b.out_len, &m, &e), 0);
    memcpy(proof, m.welcome.proof, sizeof(proof));
    m = (struct peer_message){ .kind = PEER_PROOF };
    memcpy(m.proof.proof, proof, sizeof(proof));
    len = peer_codec_encode(codec, &m, &bytes);
    assert_true(len > 0);
    assert_int_equal(handshake_take(&s.b, codec, bytes, (size_t)len, &e), -ERROR_PERMISSION);
}

TEST(messages_out_of_their_turn_are_refused)
{
    struct shake s = { 0 };
    struct error e = { 0 };

    start(&s, &alice, &key, &bob, &key);
    assert_int_equal(handshake_take(&s.a, codec, s.a.out, s.a.out_len, &e), -ERROR_PROTOCOL);
    says(&e, "does not speak as a daemon of ruCCL does");
}

TEST(garbage_is_refused_at_every_length)
{
    uint64_t seed = 5;

    for (unsigned i = 0; i < 2000; i++) {
        uint8_t bytes[HANDSHAKE_BYTES_MAX + 8];
        size_t len = unit_random(&seed) % sizeof(bytes);
        struct handshake h;
        struct error e = { 0 };

        for (size_t k = 0; k < len; k++)
            bytes[k] = (uint8_t)unit_random(&seed);
        assert_int_equal(handshake_init(&h, i % 2, &key, &alice, codec), 0);
        assert_int_equal(handshake_take(&h, codec, bytes, len, &e), -ERROR_PROTOCOL);
    }
}

/* ---- what comes of it ---- */

static void seals_of_a_handshake(struct seal *ret_out, struct seal *ret_in)
{
    struct shake s = { 0 };
    struct seal ignored;

    start(&s, &alice, &key, &bob, &key);
    finish(&s);
    both_proven(&s);
    handshake_seals(&s.a, ret_out, &ignored);
    handshake_seals(&s.b, &ignored, ret_in);
}

TEST(no_two_connections_have_a_key_in_common)
{
    uint8_t frames[2][256] = { "    what daemons say", "    what daemons say" };
    struct seal out[2], in[2];
    size_t len;

    for (unsigned i = 0; i < 2; i++)
        seals_of_a_handshake(&out[i], &in[i]);
    len = seal_close(&out[0], frames[0], 16);
    memcpy(frames[1], frames[0], len);
    assert_int_equal(seal_open(&in[1], frames[1], len), -EBADMSG);
    assert_int_equal(seal_open(&in[0], frames[0], len), 16);
}

/* ---- key files ---- */

static char path[] = "/tmp/ruccl-key-XXXXXX";

static void write_key(size_t len, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_TRUNC | O_CREAT, 0600);
    uint8_t bytes[LINK_KEY_FILE_MAX + 1];

    assert_true(fd >= 0 && len <= sizeof(bytes));
    memset(bytes, 'k', len);
    assert_int_equal(write(fd, bytes, len), len);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void key_refused(const char *where, int code, const char *why)
{
    struct link_key k;
    struct error e = { 0 };

    assert_int_equal(link_key_read(where, &k, &e), -code);
    says(&e, where);
    says(&e, why);
}

TEST(a_key_file_gives_a_key)
{
    struct link_key a, b;
    struct error e = { 0 };

    write_key(32, 0600);
    assert_int_equal(link_key_read(path, &a, &e), 0);
    assert_true(a.shared);
    write_key(LINK_KEY_FILE_MAX, 0640); /* its group may read it: a credential's is the service's */
    assert_int_equal(link_key_read(path, &b, &e), 0);
    assert_memory_not_equal(a.bytes, b.bytes, sizeof(a.bytes));
    write_key(32, 0400);
    assert_int_equal(link_key_read(path, &b, &e), 0);
    assert_memory_equal(a.bytes, b.bytes, sizeof(a.bytes));
}

TEST(key_files_that_are_none_are_named)
{
    char fifo[sizeof(path) + 5];

    key_refused("/nonexistent/key", ERROR_SYSTEM, "No such file");
    key_refused("/tmp", ERROR_INVALID_ARGUMENT, "regular file");
    key_refused("/dev/null", ERROR_INVALID_ARGUMENT, "regular file");
    snprintf(fifo, sizeof(fifo), "%s.fifo", path);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    key_refused(fifo, ERROR_INVALID_ARGUMENT, "regular file");
    unlink(fifo);
    write_key(31, 0600);
    key_refused(path, ERROR_INVALID_ARGUMENT, "31 bytes");
    write_key(0, 0600);
    key_refused(path, ERROR_INVALID_ARGUMENT, "0 bytes");
    write_key(LINK_KEY_FILE_MAX + 1, 0600);
    key_refused(path, ERROR_INVALID_ARGUMENT, "4097 bytes");
    write_key(32, 0604);
    key_refused(path, ERROR_PERMISSION, "0604");
    write_key(32, 0660);
    key_refused(path, ERROR_PERMISSION, "0660");
}

static int set_up(void **state)
{
    struct error e = { 0 };
    int fd = mkstemp(path);

    (void)state;
    if (fd < 0 || peer_codec_new(&codec) < 0)
        return -1;
    close(fd);
    write_key(64, 0600);
    if (link_key_read(path, &key, &e) < 0)
        return -1;
    write_key(65, 0600);
    if (link_key_read(path, &other_key, &e) < 0)
        return -1;
    link_key_none(&no_key);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    codec = peer_codec_free(codec);
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_with_the_key_prove_it_and_know_each_other),
        cmocka_unit_test(two_without_a_key_are_as_good_as_each_other),
        cmocka_unit_test(the_longest_names_fit),
        cmocka_unit_test(another_key_is_named_on_both_sides),
        cmocka_unit_test(a_missing_key_is_named_on_both_sides),
        cmocka_unit_test(the_highest_version_of_both_is_spoken),
        cmocka_unit_test(versions_without_a_common_one_are_named_on_both_sides),
        cmocka_unit_test(aes_is_preferred_where_both_have_it),
        cmocka_unit_test(ciphers_without_a_common_one_are_named_on_both_sides),
        cmocka_unit_test(a_daemon_that_reaches_itself_says_so),
        cmocka_unit_test(a_copied_node_name_is_named_on_both_sides),
        cmocka_unit_test(no_bit_of_the_handshake_can_be_changed),
        cmocka_unit_test(no_message_of_the_handshake_can_be_cut),
        cmocka_unit_test(nobody_in_between_talks_two_out_of_a_cipher),
        cmocka_unit_test(no_message_of_another_handshake_is_good),
        cmocka_unit_test(a_proof_sent_back_is_none),
        cmocka_unit_test(messages_out_of_their_turn_are_refused),
        cmocka_unit_test(garbage_is_refused_at_every_length),
        cmocka_unit_test(no_two_connections_have_a_key_in_common),
        cmocka_unit_test(a_key_file_gives_a_key),
        cmocka_unit_test(key_files_that_are_none_are_named),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
