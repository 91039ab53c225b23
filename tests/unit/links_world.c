#include "tests/unit/links_world.h"

#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/log/log.h"

/* ---- a transport that moves nothing ---- */

struct fake fake;

static const char *fake_settings(const struct transport *t)
{
    (void)t;
    return fake.settings;
}

static const char *fake_describe(const struct transport *t)
{
    (void)t;
    return "fake eth0";
}

static int fake_open(const struct transport_config *config, struct transport **ret, struct error *e)
{
    (void)config;
    (void)ret;
    return error_set(e, ERROR_SYSTEM, "not here");
}

static void fake_close(struct transport *t)
{
    (void)t;
}

static int fake_peer_new(struct transport *t, struct transport_peer **ret, struct error *e)
{
    struct fake_peer *p = calloc(1, sizeof(*p));

    (void)e;
    assert_non_null(p);
    p->base.transport = t;
    snprintf(p->address, sizeof(p->address), "fake peer %u", fake.made++);
    fake.alive++;
    fake.last = p;
    *ret = &p->base;
    return 0;
}

static const void *fake_peer_address(const struct transport_peer *p, size_t *ret_len)
{
    const struct fake_peer *f = (const struct fake_peer *)p;

    *ret_len = strlen(f->address);
    return f->address;
}

static int fake_peer_connect(struct transport_peer *p, const void *address, size_t len,
                             struct error *e)
{
    struct fake_peer *f = (struct fake_peer *)p;

    assert_false(f->connected);
    f->connected = true;
    if (len > 10 && !memcmp(address, "fake peer ", 10))
        return 0;
    return error_set(e, ERROR_PROTOCOL, "the fake knows no such peer");
}

static void fake_peer_free(struct transport_peer *p)
{
    fake.alive--;
    free(p);
}

static void fake_peer_watch(struct transport_peer *p, void (*failed)(void *owner, int err),
                            void *owner)
{
    struct fake_peer *f = (struct fake_peer *)p;

    f->failed = failed;
    f->owner = owner;
}

static int fake_channel_open(struct transport *t, const uint8_t name[TRANSPORT_KEY_BYTES],
                             struct channel **ret)
{
    (void)t;
    (void)name;
    (void)ret;
    return -ENOSYS;
}

static void fake_channel_close(struct channel *c)
{
    (void)c;
}

static int fake_move(struct channel *c, struct transport_peer *p, struct transfer *t)
{
    (void)c;
    (void)p;
    (void)t;
    return -ENOSYS;
}

static void fake_cancel(struct transfer *t)
{
    (void)t;
}

static void fake_poll(struct transport *t)
{
    (void)t;
}

static uint64_t fake_gpu_bytes_min(const struct transport *t)
{
    (void)t;
    return 1;
}

static bool fake_wants_turn(struct transport *t)
{
    (void)t;
    return false;
}

static int fake_fd(const struct transport *t)
{
    (void)t;
    return -1;
}

static const struct transport_ops fake_ops = {
    .name = "fake",
    .open = fake_open,
    .close = fake_close,
    .settings = fake_settings,
    .describe = fake_describe,
    .gpu_bytes_min = fake_gpu_bytes_min,
    .peer_new = fake_peer_new,
    .peer_address = fake_peer_address,
    .peer_connect = fake_peer_connect,
    .peer_free = fake_peer_free,
    .peer_watch = fake_peer_watch,
    .channel_open = fake_channel_open,
    .channel_close = fake_channel_close,
    .send = fake_move,
    .recv = fake_move,
    .cancel = fake_cancel,
    .poll = fake_poll,
    .wants_turn = fake_wants_turn,
    .fd = fake_fd,
};

static struct transport fake_transport = { &fake_ops };

/* ---- daemons ---- */

uv_loop_t loop;
static uv_prepare_t turn;
static uv_timer_t alarm_timer, limit;
struct comms daemons[DAEMONS_MAX];
struct link_key key, other_key, no_key;
static bool stirred; /* something was told since the last turn */

const char *const nodes[DAEMONS_MAX] = {
    "11111111-1111-1111-1111-111111111111",
    "22222222-2222-2222-2222-222222222222",
    "33333333-3333-3333-3333-333333333333",
    "44444444-4444-4444-4444-444444444444",
};

static void on_up(struct comms *c, struct link *l, uint64_t now)
{
    const struct link_facts *f = link_ops.facts(l);

    (void)now;
    stirred = true;
    c->up++;
    c->last_up = l;
    assert_int_equal(strlen(f->node), 36);
    assert_true(*f->host && *f->address);
}

static void on_message(struct comms *c, struct link *l, const struct peer_message *m, uint64_t now)
{
    (void)l;
    (void)now;
    if (m->kind == PEER_ASK) {
        c->messages++;
        c->in_order = c->in_order && m->ask.sequence == c->next;
        c->next = m->ask.sequence + 1;
    } else if (m->kind == PEER_MISSING) {
        for (uint32_t i = 0; i < m->missing.nranks; i++)
            c->big_bytes += strlen(m->missing.ranks[i].last);
    } else {
        fail_msg("message %d", (int)m->kind);
    }
}

static void on_lost(struct comms *c, struct link *l, const struct error *why, uint64_t now)
{
    (void)now;
    stirred = true;
    c->lost++;
    c->last_lost = l;
    c->why = *why;
    c->had_peer = link_ops.facts(l)->peer != NULL;
    if (c->reopens) {
        const struct link_facts *f = link_ops.facts(l);
        struct error e = { 0 };

        link_ops.open(c->links, f->address, f->node, true, &c->reopened, &e);
    }
}

const struct links_events events = { .up = on_up, .message = on_message, .lost = on_lost };

static void on_alarm(uv_timer_t *handle)
{
    (void)handle;
}

static void on_turn(uv_prepare_t *handle)
{
    uint64_t now = uv_hrtime() / 1000, due = UINT64_MAX;

    (void)handle;
    for (size_t i = 0; i < DAEMONS_MAX; i++)
        if (daemons[i].links) {
            links_turn(daemons[i].links, now);
            due = MIN(due, links_deadline(daemons[i].links));
        }
    if (stirred) /* whoever waits for it is to see it now */
        due = now;
    stirred = false;
    if (due == UINT64_MAX) {
        uv_timer_stop(&alarm_timer);
    } else {
        uv_update_time(&loop);
        uv_timer_start(&alarm_timer, on_alarm, due > now ? div_up_u64(due - now, 1000) : 0, 0);
    }
}

struct links_config plain_config(unsigned i)
{
    static const char *const hosts[DAEMONS_MAX] = { "one", "two", "three", "four" };

    return (struct links_config){
        .loop = &loop,
        .listen = "127.0.0.1:0",
        .advertise = "",
        .node = nodes[i],
        .host = hosts[i],
        .key = &key,
        .version_min = PEER_VERSION_MIN,
        .version_max = PEER_VERSION_MAX,
        .transport = &fake_transport,
        .connect_timeout_us = 10000 * MS,
        .peer_timeout_us = PEER_TIMEOUT,
        .max_strangers = 64,
    };
}

struct comms *start_with(unsigned i, const struct links_config *config)
{
    struct comms *c = &daemons[i];
    struct error e = { 0 };

    *c = (struct comms){ .in_order = true };
    strcpy(c->node, config->node);
    if (links_open(config, &events, &c->links, &e) < 0)
        fail_msg("%s", e.text);
    links_serve(c->links, c);
    return c;
}

struct comms *start(unsigned i)
{
    struct links_config config = plain_config(i);

    return start_with(i, &config);
}

void stop(struct comms *c)
{
    links_close(c->links); /* whose holders may still call it meanwhile */
    c->links = NULL;
}

static void on_limit(uv_timer_t *handle)
{
    *(bool *)handle->data = true;
}

void limit_start(bool *ret_late, unsigned ms)
{
    *ret_late = false;
    limit.data = ret_late;
    uv_update_time(&loop);
    uv_timer_start(&limit, on_limit, ms, 0);
}

void limit_stop(void)
{
    uv_timer_stop(&limit);
}

void run_for(unsigned ms)
{
    bool over;

    limit_start(&over, ms);
    while (!over)
        uv_run(&loop, UV_RUN_ONCE);
}

struct link *open_link(struct comms *c, const char *address, const char *node, bool dial)
{
    struct link *l = NULL;
    struct error e = { 0 };

    if (link_ops.open(c->links, address, node, dial, &l, &e) < 0)
        fail_msg("%s", e.text);
    return l;
}

struct link *dial(struct comms *from, const struct comms *to)
{
    return open_link(from, links_address(to->links), to->node, true);
}

void says(const struct error *e, const char *what)
{
    if (!strstr(e->text, what))
        fail_msg("'%s' does not say '%s'", e->text, what);
}

void lost_because(struct comms *c, struct link *l, const char *what)
{
    run_until(c->lost);
    assert_ptr_equal(c->last_lost, l);
    says(&c->why, what);
    assert_true(c->why.code != ERROR_NONE);
    link_ops.unref(l);
}

void send_asks(struct link *l, uint64_t first, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        struct peer_message m = { .kind = PEER_ASK, .ask.sequence = first + i };

        link_ops.send(l, &m);
    }
}

const struct peer_message *big_message(void)
{
    static struct peer_rank ranks[RANKS_MAX];
    static char text[PEER_TEXT_MAX + 1];
    static struct peer_message m = { .kind = PEER_MISSING };

    memset(text, 't', PEER_TEXT_MAX);
    for (uint32_t i = 0; i < RANKS_MAX; i++)
        ranks[i] = (struct peer_rank){ .rank = i, .last = text };
    m.missing.ranks = ranks;
    m.missing.nranks = RANKS_MAX;
    return &m;
}

bool have_v6(void)
{
    struct sockaddr_in6 sa = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool have = fd >= 0 && bind(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0;

    if (fd >= 0)
        close(fd);
    return have;
}

int set_up(void **state)
{
    (void)state;
    memset(daemons, 0, sizeof(daemons));
    memset(&fake, 0, sizeof(fake));
    fake.settings = "";
    uv_loop_init(&loop);
    uv_prepare_init(&loop, &turn);
    uv_timer_init(&loop, &alarm_timer);
    uv_timer_init(&loop, &limit);
    uv_prepare_start(&turn, on_turn);
    return 0;
}

/* Nothing is left behind, whatever the test did. */
int tear_down(void **state)
{
    (void)state;
    for (size_t i = 0; i < DAEMONS_MAX; i++)
        links_close(steal(&daemons[i].links));
    uv_close((uv_handle_t *)&turn, NULL);
    uv_close((uv_handle_t *)&alarm_timer, NULL);
    uv_close((uv_handle_t *)&limit, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_int_equal(fake.alive, 0);
    return 0;
}

int keys_read(void **state)
{
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    log_open(LOG_TARGET_STDERR, getenv("LINKS_LOG") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
    link_key_none(&no_key);
    key = other_key = (struct link_key){ .shared = true };
    memset(key.bytes, 1, sizeof(key.bytes));
    memset(other_key.bytes, 2, sizeof(other_key.bytes));
    return 0;
}
