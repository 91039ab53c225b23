#include "tests/unit/links_puppet.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/server/address.h"

int raw_connect(const struct comms *to)
{
    struct address a;
    struct sockaddr_storage sa;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(address_parse(links_address(to->links), &a, NULL), 0);
    assert_true(address_number(&a, &sa));
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(struct sockaddr_in)), 0);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

int raw_listen(char ret_address[64])
{
    struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(sa);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    assert_int_equal(listen(fd, 4), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
    snprintf(ret_address, 64, "127.0.0.1:%u", ntohs(sa.sin_port));
    return fd;
}

bool raw_closed(int fd)
{
    char bytes[4096];
    ssize_t n;

    while ((n = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0)
        ;
    return n == 0 || (n < 0 && errno != EAGAIN);
}

void puppet_put(struct puppet *p, const void *bytes, size_t len)
{
    uint8_t frame[FRAME_HEAD_BYTES + HANDSHAKE_BYTES_MAX];

    frame_set_length(frame, (uint32_t)len);
    memcpy(frame + FRAME_HEAD_BYTES, bytes, len);
    assert_int_equal(send(p->fd, frame, FRAME_HEAD_BYTES + len, MSG_NOSIGNAL),
                     FRAME_HEAD_BYTES + len);
}

size_t puppet_look(struct puppet *p)
{
    ssize_t n = recv(p->fd, p->bytes + p->have, sizeof(p->bytes) - p->have, MSG_DONTWAIT);

    if (n > 0)
        p->have += (size_t)n;
    if (n == 0 || (n < 0 && errno != EAGAIN))
        p->over = true;
    if (p->have < FRAME_HEAD_BYTES || p->have - FRAME_HEAD_BYTES < frame_length(p->bytes))
        return 0;
    return FRAME_HEAD_BYTES + frame_length(p->bytes);
}

static void puppet_drop(struct puppet *p, size_t len)
{
    memmove(p->bytes, p->bytes + len, p->have - len);
    p->have -= len;
}

static size_t puppet_frame(struct puppet *p, uint8_t *ret)
{
    size_t len;

    run_until((len = puppet_look(p)) || p->over);
    assert_true(len > 0);
    memcpy(ret, p->bytes, len);
    puppet_drop(p, len);
    return len;
}

void puppet_send(struct puppet *p, const struct peer_message *m)
{
    uint8_t frame[4096];
    const void *bytes;
    int64_t len = peer_codec_encode(p->codec, m, &bytes);
    size_t whole;

    assert_true(len >= 0 && len < 4000);
    memcpy(frame + FRAME_HEAD_BYTES, bytes, (size_t)len);
    whole = seal_close(&p->out, frame, (size_t)len);
    assert_int_equal(send(p->fd, frame, whole, MSG_NOSIGNAL), whole);
}

void puppet_receive(struct puppet *p, struct peer_message *ret)
{
    static uint8_t frame[1 << 16];
    struct error e = { 0 };
    size_t len = puppet_frame(p, frame);
    int64_t text = seal_open(&p->in, frame, len);

    assert_true(text >= 0);
    assert_int_equal(peer_codec_decode(p->codec, frame + FRAME_HEAD_BYTES, (size_t)text, ret, &e),
                     0);
}

const struct party puppet_party = {
    .version_min = PEER_VERSION_MIN,
    .version_max = PEER_VERSION_MAX,
    .node = "",
    .instance = 99,
    .ciphers = 2, /* as where the CPU has nothing for AES */
    .host = "puppet",
    .address = "127.0.0.1:9",
};

struct puppet *puppet_greet(const struct comms *to, const char *node, uint64_t instance,
                            const struct link_key *its_key)
{
    struct puppet *p = calloc(1, sizeof(*p));
    struct party self = puppet_party;

    assert_non_null(p);
    strcpy(self.node, node);
    self.instance = instance;
    p->fd = raw_connect(to);
    assert_int_equal(peer_codec_new(&p->codec), 0);
    assert_int_equal(handshake_init(&p->h, true, its_key, &self, p->codec), 0);
    puppet_put(p, p->h.out, p->h.out_len);
    return p;
}

void puppet_prove(struct puppet *p)
{
    uint8_t frame[FRAME_HEAD_BYTES + HANDSHAKE_BYTES_MAX];
    struct error e = { 0 };
    size_t len = puppet_frame(p, frame);

    handshake_take(&p->h, p->codec, frame + FRAME_HEAD_BYTES, len - FRAME_HEAD_BYTES, &e);
    puppet_put(p, p->h.out, p->h.out_len);
    handshake_seals(&p->h, &p->out, &p->in);
}

void puppet_set_up(struct puppet *p)
{
    struct peer_message m = { .kind = PEER_PAYLOAD };

    m.payload.transport = "fake";
    m.payload.settings = "";
    m.payload.address = "fake peer of a puppet";
    m.payload.address_bytes = 21;
    puppet_send(p, &m);
}

struct puppet *puppet_dial(const struct comms *to, const char *node, uint64_t instance)
{
    struct puppet *p = puppet_greet(to, node, instance, &key);

    puppet_prove(p);
    puppet_set_up(p);
    return p;
}

struct puppet *puppet_up(struct comms *to, const char *node, uint64_t instance)
{
    unsigned before = to->up;
    struct puppet *p = puppet_dial(to, node, instance);
    struct peer_message m;

    puppet_receive(p, &m);
    assert_int_equal(m.kind, PEER_PAYLOAD);
    run_until(to->up == before + 1);
    return p;
}

void puppet_free(struct puppet *p)
{
    close(p->fd);
    peer_codec_free(p->codec);
    free(p);
}

struct puppet *puppet_accept(int listener, const char *node, uint64_t instance)
{
    struct puppet *p = calloc(1, sizeof(*p));
    struct party self = puppet_party;

    assert_non_null(p);
    strcpy(self.node, node);
    self.instance = instance;
    fcntl(listener, F_SETFL, O_NONBLOCK);
    run_until((p->fd = accept(listener, NULL, NULL)) >= 0);
    fcntl(p->fd, F_SETFL, O_NONBLOCK);
    assert_int_equal(peer_codec_new(&p->codec), 0);
    assert_int_equal(handshake_init(&p->h, false, &key, &self, p->codec), 0);
    return p;
}

void puppet_take_handshake(struct puppet *p, int wanted)
{
    uint8_t frame[FRAME_HEAD_BYTES + HANDSHAKE_BYTES_MAX];
    struct error e = { 0 };
    size_t len = puppet_frame(p, frame);

    assert_int_equal(
        handshake_take(&p->h, p->codec, frame + FRAME_HEAD_BYTES, len - FRAME_HEAD_BYTES, &e),
        wanted);
    if (p->h.out_len)
        puppet_put(p, p->h.out, p->h.out_len);
}

void puppet_answer(struct puppet *p)
{
    struct peer_message m;

    puppet_take_handshake(p, 0);
    puppet_take_handshake(p, HANDSHAKE_PROVEN);
    handshake_seals(&p->h, &p->out, &p->in);
    puppet_receive(p, &m);
    assert_int_equal(m.kind, PEER_PAYLOAD);
}

void puppet_hears_asks(struct puppet *p, uint64_t n)
{
    struct peer_message m;

    for (uint64_t i = 0; i < n; i++) {
        puppet_receive(p, &m);
        assert_int_equal(m.kind, PEER_ASK);
        assert_int_equal(m.ask.sequence, i);
    }
}
