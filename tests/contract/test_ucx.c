/* The row "ucx" against a peer that speaks UCX and breaks the row's own rules. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <ucp/api/ucp.h>

#include "daemon/transport/ucx.h"

/* The wire, as another daemon knows it. */
enum {
    WIRE_DATA,
    WIRE_WITHDRAW,
    WIRE_CREDIT,
};

struct wire_header {
    uint8_t key[TRANSPORT_KEY_BYTES];
    uint64_t sequence, unit;
    uint32_t tag, zero;
};

static struct wire_header wire = { .key = "only one channel", .sequence = 1 };

static struct {
    const struct transport_ops *ops;
    struct transport *t;
    struct transport_peer *p;
    struct channel *c;
    unsigned nfailures;
    int failure;

    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h endpoint;
    unsigned nrequests, nmessages;
} s;

static void note_failure(void *owner, int err)
{
    (void)owner;
    s.nfailures++;
    s.failure = err;
}

static void note_error(void *arg, ucp_ep_h endpoint, ucs_status_t status)
{
    (void)arg;
    (void)endpoint;
    (void)status;
}

static ucs_status_t count_message(void *arg, const void *header, size_t header_bytes, void *data,
                                  size_t bytes, const ucp_am_recv_param_t *param)
{
    (void)arg;
    (void)header;
    (void)header_bytes;
    (void)data;
    (void)bytes;
    (void)param;
    s.nmessages++;
    return UCS_OK;
}

static void open_stranger(void)
{
    static const char *const settings[][2] = {
        { "TLS", "tcp" },         { "NET_DEVICES", "lo" },         { "ZCOPY_THRESH", "inf" },
        { "PUT_ENABLE", "n" },    { "TX_SEG_SIZE", "256K" },       { "RX_SEG_SIZE", "512K" },
        { "LOG_LEVEL", "fatal" }, { "KEEPALIVE_INTERVAL", "inf" },
    };
    const ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES,
                                  .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP };
    const ucp_worker_params_t worker_params = { 0 };
    const ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB,
        .id = WIRE_DATA,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = count_message,
    };
    ucp_config_t *config;

    assert_int_equal(ucp_config_read(NULL, NULL, &config), UCS_OK);
    for (size_t i = 0; i < ARRAY_SIZE(settings); i++)
        assert_int_equal(ucp_config_modify(config, settings[i][0], settings[i][1]), UCS_OK);
    assert_int_equal(ucp_init(&params, config, &s.context), UCS_OK);
    ucp_config_release(config);
    assert_int_equal(ucp_worker_create(s.context, &worker_params, &s.worker), UCS_OK);
    assert_int_equal(ucp_worker_set_am_recv_handler(s.worker, &handler), UCS_OK);
}

static void join(void)
{
    size_t len;
    struct error e = { 0 };
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = s.ops->peer_address(s.p, &len),
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler.cb = note_error,
    };
    ucp_address_t *address;

    assert_int_equal(ucp_worker_get_address(s.worker, &address, &len), UCS_OK);
    assert_int_equal(s.ops->peer_connect(s.p, address, len, &e), 0);
    ucp_worker_release_address(s.worker, address);
    assert_int_equal(ucp_ep_create(s.worker, &params, &s.endpoint), UCS_OK);
}

static void open_both(void)
{
    const struct transport_config config = { .devices = "lo", .address = "127.0.0.1", .ports = "" };
    struct error e = { 0 };

    memset(&s, 0, sizeof(s));
    s.ops = &transport_ucx;
    assert_int_equal(s.ops->open(&config, &s.t, &e), 0);
    assert_int_equal(s.ops->channel_open(s.t, wire.key, &s.c), 0);
    assert_int_equal(s.ops->peer_new(s.t, &s.p, &e), 0);
    s.ops->peer_watch(s.p, note_failure, NULL);
    open_stranger();
    join();
}

static void turn(void)
{
    s.ops->poll(s.t);
    ucp_worker_progress(s.worker);
}

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void turn_for(unsigned ms)
{
    const uint64_t until = now_ms() + ms;

    while (now_ms() < until)
        turn();
}

static void close_both(void)
{
    const ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                        .flags = UCP_EP_CLOSE_FLAG_FORCE };

    assert_null(ucp_ep_close_nbx(s.endpoint, &param));
    while (s.nrequests)
        turn();
    s.ops->peer_free(s.p);
    ucp_worker_destroy(s.worker);
    ucp_cleanup(s.context);
    s.ops->channel_close(s.c);
    s.ops->close(s.t);
}

static void note_sent(void *request, ucs_status_t status, void *owner)
{
    (void)status;
    (void)owner;
    ucp_request_free(request);
    s.nrequests--;
}

/* `header` and `data` are the caller's for the whole test. */
static void say(unsigned id, const void *header, size_t header_bytes, const void *data,
                size_t bytes, unsigned flags)
{
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = flags,
        .cb.send = note_sent,
    };

    s.nrequests +=
        UCS_PTR_IS_PTR(ucp_am_send_nbx(s.endpoint, id, header, header_bytes, data, bytes, &param));
}

static void note_done(struct transfer *t, int r)
{
    *(int *)t->owner = r;
}

/* A message of node "us" and one to it, both of which arrive. */
static void assert_works(void)
{
    static uint8_t byte = 7, got;
    static const struct iovec in = { &got, 1 }, out = { &byte, 1 };
    int received = TRANSPORT_PENDING, sent;
    struct transfer r = { .name = { 9, 9, 9 },
                          .parts = &in,
                          .nparts = 1,
                          .bytes = 1,
                          .done = note_done,
                          .owner = &received };
    struct transfer o = { .name = { 9, 9, 9 },
                          .parts = &out,
                          .nparts = 1,
                          .bytes = 1,
                          .done = note_done,
                          .owner = &sent };
    static struct wire_header mine;
    const unsigned before = s.nmessages;

    mine = wire;
    mine.sequence = mine.unit = mine.tag = 9;
    got = 0;
    assert_int_equal(channel_recv(s.c, s.p, &r), TRANSPORT_PENDING);
    say(WIRE_DATA, &mine, sizeof(mine), &byte, 1, UCP_AM_SEND_FLAG_EAGER);
    sent = channel_send(s.c, s.p, &o);
    for (const uint64_t until = now_ms() + 20000; now_ms() < until;) {
        if (received == 0 && sent == 0 && s.nmessages > before)
            break;
        turn();
    }
    assert_int_equal(received, 0);
    assert_int_equal(sent, 0);
    assert_int_equal(got, 7);
    assert_int_equal(s.nmessages, before + 1);
    assert_int_equal(s.nfailures, 0);
}

TEST(headers_of_another_length_are_ignored)
{
    static const uint8_t zeros[4096];
    static const size_t lengths[] = { 0, 1, 8, 16, 39, 41, 4096 };

    open_both();
    assert_works();
    for (unsigned id = 0; id <= WIRE_CREDIT; id++) {
        for (size_t i = 0; i < ARRAY_SIZE(lengths); i++) {
            const size_t len = lengths[i];

            say(id, len ? zeros : NULL, len, zeros, 100, UCP_AM_SEND_FLAG_EAGER);
            say(id, len ? zeros : NULL, len, zeros, 100, UCP_AM_SEND_FLAG_RNDV);
        }
    }
    turn_for(20);
    assert_works();
    close_both();
}

TEST(withdrawals_of_what_is_not_there_and_credit_for_what_was_not_sent_are_ignored)
{
    static const uint64_t credits[] = { 1, 1 << 20, UINT64_MAX };

    open_both();
    say(WIRE_WITHDRAW, &wire, sizeof(wire), NULL, 0, UCP_AM_SEND_FLAG_EAGER);
    for (size_t i = 0; i < ARRAY_SIZE(credits); i++)
        say(WIRE_CREDIT, &credits[i], sizeof(credits[i]), NULL, 0, UCP_AM_SEND_FLAG_EAGER);
    turn_for(20);
    assert_works();
    close_both();
}

TEST(a_peer_that_sends_more_than_it_may_is_failed_once)
{
    static const uint8_t zeros[65536];
    struct transfer t = { .nparts = 0, .bytes = 0, .done = note_done };

    open_both();
    for (unsigned i = 0; i < 100; i++)
        say(WIRE_DATA, &wire, sizeof(wire), zeros, sizeof(zeros), UCP_AM_SEND_FLAG_EAGER);
    for (const uint64_t until = now_ms() + 20000; !s.nfailures && now_ms() < until;)
        turn();
    turn_for(20);
    assert_int_equal(s.nfailures, 1);
    assert_int_equal(s.failure, ENOBUFS);
    assert_int_equal(channel_send(s.c, s.p, &t), -ECONNRESET);
    assert_int_equal(channel_recv(s.c, s.p, &t), -ECONNRESET);
    close_both();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_of_another_length_are_ignored),
        cmocka_unit_test(
            withdrawals_of_what_is_not_there_and_credit_for_what_was_not_sent_are_ignored),
        cmocka_unit_test(a_peer_that_sends_more_than_it_may_is_failed_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
