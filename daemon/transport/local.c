#include "daemon/transport/local.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/transport/channels.h"

/* What one poll moves at the most. */
#define POLL_MOVES 256u

struct local {
    struct transport base;
    struct list peers;
    struct channel_table channels;
    struct list ended; /* struct transfer, whose end is known: done() has to be told */
    int event_fd;
    bool signalled;
    struct local_config config;
    uint64_t random, taken;
};

struct local_peer {
    struct transport_peer base;
    uint64_t id, wants; /* of the other end; 0: not connected */
    struct local_peer *other;
    bool lost, told; /* the other end is gone; `failed` knows */
    struct list sends, recvs, parcels;
    void (*failed)(void *owner, int err);
    void *owner;
    struct list link;   // local::peers
    struct list global; // peers
};

/* A message between leaving and coming. */
struct parcel {
    struct list link; // local_peer::parcels, of its receiver
    uint8_t key[TRANSPORT_KEY_BYTES];
    struct message_name name;
    uint64_t bytes;
    uint8_t data[];
};

static struct list peers = LIST_INIT(peers); /* of all transports */
static uint64_t last_id;

static struct local *local_of(struct transport *t)
{
    return container_of(t, struct local, base);
}

static struct local_peer *peer_of(struct transport_peer *p)
{
    return container_of(p, struct local_peer, base);
}

static struct local *peer_transport(const struct local_peer *p)
{
    return local_of(p->base.transport);
}

static uint64_t local_random(struct local *l)
{
    l->random = l->random * 6364136223846793005u + 1442695040888963407u;
    return l->random >> 33;
}

/* ---- what may move */

static bool same_message(const struct message_name *a, const struct message_name *b)
{
    return a->sequence == b->sequence && a->unit == b->unit && a->tag == b->tag;
}

static struct transfer *find_transfer(const struct list *l, const uint8_t *key,
                                      const struct message_name *name)
{
    struct transfer *t;

    list_for_each(t, l, link)
        if (same_message(&t->name, name) && memcmp(t->channel->key, key, TRANSPORT_KEY_BYTES) == 0)
            return t;
    return NULL;
}

/* Whether a message may ever be received. */
static bool is_wanted(const struct local *l, const struct transfer *t)
{
    return channels_find_wanted(&l->channels, t->channel->key, t->name.sequence) != NULL;
}

/* Whether a message may leave: it is small, awaited, or nobody will ever await it. */
static bool may_leave(const struct transfer *t)
{
    const struct local_peer *p = peer_of(t->peer);

    if (!p->other)
        return false;
    return t->bytes <= peer_transport(p)->config.eager_bytes ||
           find_transfer(&p->other->recvs, t->channel->key, &t->name) ||
           !is_wanted(peer_transport(p->other), t);
}

/* The receive of a parcel; NULL: not posted yet. */
static struct transfer *parcel_recv(const struct local_peer *p, const struct parcel *m)
{
    return find_transfer(&p->recvs, m->key, &m->name);
}

/* Something that poll() does: exactly one of the two. */
struct move {
    struct transfer *send;
    struct local_peer *to;
    struct parcel *parcel;
};

/* The moves there are; of those the n-th is told. */
static unsigned find_moves(struct local *l, unsigned n, struct move *ret)
{
    struct local_peer *p;
    unsigned found = 0;

    list_for_each(p, &l->peers, link) {
        struct transfer *t;
        struct parcel *m;

        list_for_each(t, &p->sends, link)
            if (may_leave(t) && found++ == n)
                *ret = (struct move){ .send = t };
        list_for_each(m, &p->parcels, link)
            if (parcel_recv(p, m) && found++ == n)
                *ret = (struct move){ .to = p, .parcel = m };
    }
    return found;
}

static struct local_peer *find_untold(const struct local *l)
{
    struct local_peer *p;

    list_for_each(p, &l->peers, link)
        if (p->lost && !p->told)
            return p;
    return NULL;
}

static bool local_wants_turn(struct transport *t)
{
    struct local *l = local_of(t);
    struct move move;

    return !list_empty(&l->ended) || find_untold(l) || find_moves(l, 0, &move) > 0;
}

/* Makes the descriptor say what there is to do; to be called after every change. */
static void stir(struct local *l)
{
    const bool due = local_wants_turn(&l->base);
    uint64_t n = 1;

    if (due != l->signalled) {
        ssize_t done = due ? write(l->event_fd, &n, sizeof(n)) : read(l->event_fd, &n, sizeof(n));

        l->signalled = done == sizeof(n) ? due : l->signalled;
    }
}

static void stir_both(struct local_peer *p)
{
    stir(peer_transport(p));
    if (p->other)
        stir(peer_transport(p->other));
}

/* ---- the ends of transfers */

/* `private` is NULL until the end is known, then 1 - r. */
static void transfer_end(struct transfer *t, int r)
{
    struct local *l = local_of(t->channel->transport);

    list_remove(&t->link);
    t->private = (void *)(intptr_t)(1 - r);
    list_append(&l->ended, &t->link);
}

static void transfer_tell(struct transfer *t)
{
    const int r = 1 - (int)(intptr_t)t->private;

    list_remove(&t->link);
    t->done(t, r);
}

static void parcel_drop(struct parcel *m)
{
    list_remove(&m->link);
    free(m);
}

/* Nothing of a peer is on its way any more. */
static void peer_clear(struct local_peer *p)
{
    while (!list_empty(&p->sends))
        transfer_end(list_first(&p->sends, struct transfer, link), -ECONNRESET);
    while (!list_empty(&p->recvs))
        transfer_end(list_first(&p->recvs, struct transfer, link), -ECONNRESET);
    while (!list_empty(&p->parcels))
        parcel_drop(list_first(&p->parcels, struct parcel, link));
}

static void peer_lose(struct local_peer *p)
{
    if (p->lost)
        return;
    p->lost = true;
    p->other = NULL;
    peer_clear(p);
    stir(peer_transport(p));
}

/* ---- moving */

static void copy(const struct transfer *t, void *to, const void *from, uint64_t bytes)
{
    if (t->gpu)
        local_of(t->channel->transport)->config.copy_gpu(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

static void copy_out(const struct transfer *t, uint8_t *to)
{
    for (uint32_t i = 0; i < t->nparts; to += t->parts[i++].iov_len)
        if (t->parts[i].iov_len)
            copy(t, to, t->parts[i].iov_base, t->parts[i].iov_len);
}

static void copy_in(const struct transfer *t, const uint8_t *from)
{
    for (uint32_t i = 0; i < t->nparts; from += t->parts[i++].iov_len)
        if (t->parts[i].iov_len)
            copy(t, t->parts[i].iov_base, from, t->parts[i].iov_len);
}

/* Return: how the send ends. */
static int leave(struct transfer *t)
{
    struct local_peer *to = peer_of(t->peer)->other;
    struct parcel *m;

    if (!is_wanted(peer_transport(to), t))
        return 0;
    m = malloc(sizeof(*m) + t->bytes);
    if (!m)
        return -ENOMEM;
    memcpy(m->key, t->channel->key, sizeof(m->key));
    m->name = t->name;
    m->bytes = t->bytes;
    copy_out(t, m->data);
    list_append(&to->parcels, &m->link);
    stir(peer_transport(to));
    return 0;
}

/* Return: how its receive ends. */
static int come(const struct transfer *t, struct parcel *m)
{
    const int r = m->bytes == t->bytes ? 0 : -EMSGSIZE;

    if (r == 0)
        copy_in(t, m->data);
    parcel_drop(m);
    return r;
}

/* Return: false, nothing moves. */
static bool move_one(struct local *l, unsigned keep)
{
    struct move move = { 0 };
    const unsigned n = find_moves(l, 0, &move);

    if (n == 0 || n <= keep)
        return false;
    if (l->config.seed)
        find_moves(l, (unsigned)(local_random(l) % n), &move);
    if (move.send) {
        transfer_end(move.send, leave(move.send));
    } else {
        struct transfer *t = parcel_recv(move.to, move.parcel);

        transfer_end(t, come(t, move.parcel));
    }
    return true;
}

static void tell_ended(struct local *l)
{
    for (unsigned i = 0; i < POLL_MOVES && !list_empty(&l->ended); i++)
        transfer_tell(list_first(&l->ended, struct transfer, link));
}

static void tell_lost(struct local *l)
{
    struct local_peer *p;

    while ((p = find_untold(l))) {
        p->told = true;
        if (p->failed)
            p->failed(p->owner, ECONNRESET);
    }
}

static void local_poll(struct transport *t)
{
    struct local *l = local_of(t);

    tell_ended(l);
    if (move_one(l, 0))
        for (unsigned i = 1; i < POLL_MOVES && move_one(l, l->config.delayed); i++)
            ;
    tell_ended(l);
    tell_lost(l);
    stir(l);
}

static uint64_t local_gpu_bytes_min(const struct transport *t)
{
    const struct local_config *config = &container_of(t, const struct local, base)->config;

    return config->copy_gpu ? config->gpu_bytes_min : TRANSPORT_NO_GPUS;
}

/* ---- transfers */

/* What the configuration has against it. Return: 0, or -errno with *ret_later where it is taken. */
static int local_refuse(struct local *l, bool *ret_later)
{
    *ret_later = false;
    if (++l->taken != l->config.fail_transfer)
        return 0;
    *ret_later = !l->config.fail_at_once;
    return -l->config.fail_errno;
}

static bool goes_inline(struct local *l)
{
    return l->config.inline_percent && local_random(l) % 100 < l->config.inline_percent;
}

/* Return: as send and recv do; it is in `list` where it is pending. */
static int local_take(struct channel *c, struct local_peer *p, struct transfer *t, bool outgoing,
                      struct list *list)
{
    struct local *l = local_of(c->transport);
    bool later;
    int r;

    assert(c->transport == p->base.transport);
    assert(!t->gpu || t->bytes >= local_gpu_bytes_min(c->transport));
    if (p->lost)
        return -ECONNRESET;
    r = local_refuse(l, &later);
    if (r < 0 && !later)
        return r;
    t->channel = c;
    t->peer = &p->base;
    t->outgoing = outgoing;
    t->private = NULL;
    list_append(list, &t->link);
    if (later)
        transfer_end(t, r);
    return TRANSPORT_PENDING;
}

static int local_send(struct channel *c, struct transport_peer *peer, struct transfer *t)
{
    struct local_peer *p = peer_of(peer);
    int r = local_take(c, p, t, true, &p->sends);

    if (r == TRANSPORT_PENDING && !t->private && may_leave(t) && goes_inline(peer_transport(p))) {
        list_remove(&t->link);
        r = leave(t);
    }
    stir_both(p);
    return r;
}

static struct parcel *find_parcel(const struct local_peer *p, const struct transfer *t)
{
    struct parcel *m;

    list_for_each(m, &p->parcels, link)
        if (parcel_recv(p, m) == t)
            return m;
    return NULL;
}

static int local_recv(struct channel *c, struct transport_peer *peer, struct transfer *t)
{
    struct local_peer *p = peer_of(peer);
    int r = local_take(c, p, t, false, &p->recvs);
    struct parcel *m = r == TRANSPORT_PENDING ? find_parcel(p, t) : NULL;

    if (m && goes_inline(peer_transport(p))) {
        list_remove(&t->link);
        r = come(t, m);
    }
    stir_both(p);
    return r;
}

static void local_cancel(struct transfer *t)
{
    if (!t->private)
        transfer_end(t, -ECANCELED);
    stir(local_of(t->channel->transport));
}

/* ---- peers and channels */

static int local_peer_new(struct transport *t, struct transport_peer **ret, struct error *e)
{
    struct local_peer *p = calloc(1, sizeof(*p));

    if (!p)
        return error_set_errno(e, ENOMEM, "making a peer");
    p->base.transport = t;
    p->id = ++last_id;
    list_init(&p->sends);
    list_init(&p->recvs);
    list_init(&p->parcels);
    list_append(&local_of(t)->peers, &p->link);
    list_append(&peers, &p->global);
    *ret = &p->base;
    return 0;
}

static const void *local_peer_address(const struct transport_peer *p, size_t *ret_len)
{
    *ret_len = sizeof(uint64_t);
    return &container_of(p, const struct local_peer, base)->id;
}

static struct local_peer *find_peer(uint64_t id)
{
    struct local_peer *p;

    list_for_each(p, &peers, global)
        if (p->id == id)
            return p;
    return NULL;
}

static int local_peer_connect(struct transport_peer *peer, const void *address, size_t len,
                              struct error *e)
{
    struct local_peer *p = peer_of(peer), *other;
    uint64_t id = 0;

    if (len == sizeof(id))
        memcpy(&id, address, sizeof(id));
    other = find_peer(id);
    if (!other)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "the transport \"local\" joins peers of one process, and this is none");
    p->wants = id;
    if (other->wants == p->id) {
        p->other = other;
        other->other = p;
        stir_both(p);
    }
    return 0;
}

/* Whoever is connected with it, or wanted to be, finds it gone. */
static void peer_leave(struct local_peer *gone)
{
    struct local_peer *p;

    list_for_each(p, &peers, global)
        if (p->wants == gone->id)
            peer_lose(p);
}

static void tell_ended_of(struct local *l, const struct transport_peer *p)
{
    struct list now;

    list_init(&now);
    for (struct list *i = l->ended.next, *next = i->next; i != &l->ended;
         i = next, next = i->next) {
        if (container_of(i, struct transfer, link)->peer != p)
            continue;
        list_remove(i);
        list_append(&now, i);
    }
    while (!list_empty(&now))
        transfer_tell(list_first(&now, struct transfer, link));
}

static void local_peer_free(struct transport_peer *peer)
{
    struct local_peer *p = peer_of(peer);
    struct local *l = peer_transport(p);

    p->lost = p->told = true; /* done() may submit, which comes to nothing */
    p->other = NULL;
    peer_leave(p);
    peer_clear(p);
    tell_ended_of(l, peer);
    list_remove(&p->link);
    list_remove(&p->global);
    free(p);
    stir(l);
}

static void local_peer_watch(struct transport_peer *peer, void (*failed)(void *owner, int err),
                             void *owner)
{
    struct local_peer *p = peer_of(peer);

    p->failed = failed;
    p->owner = owner;
}

static int local_channel_open(struct transport *t, const uint8_t key[TRANSPORT_KEY_BYTES],
                              struct channel **ret)
{
    return channels_open(&local_of(t)->channels, t, key, ret);
}

static void local_channel_forget(struct channel *channel, uint64_t sequence)
{
    struct channel_entry *c = channel_entry(channel);
    struct local_peer *p;

    c->forgotten = MAX(c->forgotten, sequence);
    list_for_each(p, &local_of(channel->transport)->peers, link) {
        struct parcel *m, *tmp;

        list_for_each_safe(m, tmp, &p->parcels, link)
            if (memcmp(m->key, channel->key, TRANSPORT_KEY_BYTES) == 0 &&
                m->name.sequence <= sequence)
                parcel_drop(m);
        stir_both(p); /* what was for it leaves into nothing */
    }
}

static void local_channel_close(struct channel *channel)
{
    local_channel_forget(channel, UINT64_MAX);
    channels_close(channel_entry(channel));
}

/* ---- the transport */

static int local_open(const struct transport_config *config, struct transport **ret,
                      struct error *e)
{
    struct local *l = calloc(1, sizeof(*l));

    (void)config;
    if (!l)
        return error_set_errno(e, ENOMEM, "opening the local transport");
    l->base.ops = &transport_local;
    list_init(&l->peers);
    channels_init(&l->channels);
    list_init(&l->ended);
    l->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->event_fd < 0) {
        const int err = errno;

        free(l);
        return error_set_errno(e, err, "opening the local transport");
    }
    *ret = &l->base;
    return 0;
}

static void local_close(struct transport *t)
{
    struct local *l = local_of(t);

    assert(list_empty(&l->peers) && list_empty(&l->ended));
    channels_fini(&l->channels);
    close(l->event_fd);
    free(l);
}

static const char *local_settings(const struct transport *t)
{
    (void)t;
    return "local 1";
}

static const char *local_describe(const struct transport *t)
{
    (void)t;
    return "within one process";
}

static int local_fd(const struct transport *t)
{
    return container_of(t, const struct local, base)->event_fd;
}

const struct transport_ops transport_local = {
    .name = "local",
    .in_process = true,
    .open = local_open,
    .close = local_close,
    .settings = local_settings,
    .describe = local_describe,
    .gpu_bytes_min = local_gpu_bytes_min,
    .peer_new = local_peer_new,
    .peer_address = local_peer_address,
    .peer_connect = local_peer_connect,
    .peer_free = local_peer_free,
    .peer_watch = local_peer_watch,
    .channel_open = local_channel_open,
    .channel_close = local_channel_close,
    .channel_forget = local_channel_forget,
    .send = local_send,
    .recv = local_recv,
    .cancel = local_cancel,
    .poll = local_poll,
    .wants_turn = local_wants_turn,
    .fd = local_fd,
};

/* ---- for tests */

void local_configure(struct transport *t, const struct local_config *config)
{
    struct local *l = local_of(t);

    l->config = *config;
    l->random = config->seed;
    l->taken = 0;
}

void local_lose(struct transport_peer *peer)
{
    struct local_peer *p = peer_of(peer), *other = p->other;

    peer_lose(p);
    if (other)
        peer_lose(other);
}

static unsigned count(const struct list *l)
{
    unsigned n = 0;

    for (const struct list *i = l->next; i != l; i = i->next)
        n++;
    return n;
}

unsigned local_pending(const struct transport *t)
{
    const struct local *l = container_of(t, const struct local, base);
    unsigned n = count(&l->ended);
    struct local_peer *p;

    list_for_each(p, &l->peers, link)
        n += count(&p->sends) + count(&p->recvs) + count(&p->parcels);
    return n;
}
