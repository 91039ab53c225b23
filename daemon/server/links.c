#include <string.h>

#include "daemon/log/log.h"
#include "daemon/server/links_private.h"
#include "daemon/server/service.h"

/* ---- the table ---- */

/* By the node's name, where both are said, or else by the address. */
static bool link_is_of(const struct link *l, const char *node, const char *address)
{
    const char *name = l->known ? l->party.node : l->wanted;

    if (*name && *node)
        return !strcmp(name, node);
    return !strcmp(l->target.text, address) || !strcmp(l->facts.address, address);
}

static struct link *links_find(const struct links *links, const char *node, const char *address)
{
    struct link *l;

    list_for_each(l, &links->all, link)
        if (link_is_of(l, node, address))
            return l;
    return NULL;
}

static struct link *links_add(struct links *links, const struct address *target, const char *wanted)
{
    struct link *l = link_new(&links->wires, &links->due, target, wanted);

    if (!l)
        return NULL;
    l->deadline = service_now() + links->wires.connect_timeout_us;
    links->due = MIN(links->due, l->deadline);
    list_append(&links->all, &l->link);
    return l;
}

void links_lose(struct links *links, struct link *l, const struct error *why)
{
    /* what was never up, a client may have caused */
    log_write(l->state == LINK_UP ? LOG_LEVEL_NOTICE : LOG_LEVEL_INFO, NULL, "%s", why->text);
    link_set_state(l, LINK_LOST);
    list_remove(&l->link);
    if (l->rival)
        wire_close(l->rival);
    l->wire = l->rival = NULL;
    l->wires = NULL;
    l->due = NULL;
    link_ref(l);
    links->events->lost(links->comms, l, why, service_now());
    l->facts.peer = NULL;
    link_unref(l);
}

/* For the link that is wanted with its daemon, which has come by itself, or for a new one. */
static int links_take(struct links *links, struct wire *w, struct error *e)
{
    const struct party *p = wire_party(w);
    struct link *l = links_find(links, p->node, p->address);
    struct address address;

    if (!l && address_parse(p->address, &address, e) < 0)
        return -(int)e->code;
    if (!l)
        l = links_add(links, &address, p->node);
    if (!l)
        return error_set(e, ERROR_NO_MEMORY, "out of memory for a link");
    link_adopt(l, w);
    return 0;
}

/* ---- who is wanted ---- */

static int judge_dialled(struct links *links, struct wire *w, struct error *e)
{
    const struct party *p = wire_party(w);
    struct link *l = wire_link(w), *other;

    list_for_each(other, &links->all, link)
        if (other != l && other->known && !strcmp(other->party.node, p->node))
            return error_set(e, ERROR_INVALID_ARGUMENT,
                             "is node %s, which is linked as %s already: name it one way", p->node,
                             other->facts.address);
    link_know(l, p);
    return 0;
}

/* In place of a link that may have been used: its holders are told, and may open another. */
static int replace(struct links *links, struct link *l, struct wire *w, const char *what,
                   struct error *e)
{
    struct wire *old = l->wire;
    struct error why = { 0 };

    error_set(&why, ERROR_RANK_LOST, "node %s (%s): %s", l->facts.host, l->facts.address, what);
    links_lose(links, l, &why);
    wire_close(old);
    return links_take(links, w, e);
}

static int hold(struct link *l, struct wire *w, enum wire_verdict *ret)
{
    if (l->rival)
        wire_close(l->rival);
    l->rival = w;
    wire_set_link(w, l);
    wire_doubt(l->wire);
    *ret = WIRE_HOLD;
    return 0;
}

/* The same daemon has proven itself on two connections. */
static int judge_second(struct links *links, struct link *l, struct wire *w, enum wire_verdict *ret,
                        struct error *e)
{
    const struct party *p = wire_party(w);
    bool ours_decides = strcmp(links->wires.self.node, p->node) < 0;

    if (l->party.instance != p->instance)
        return replace(links, l, w, "was started anew", e);
    if (l->state == LINK_UP) /* it would not connect again if it knew of that one */
        return ours_decides ? hold(l, w, ret) : replace(links, l, w, "has connected again", e);
    if (ours_decides && wire_dialled(l->wire))
        *ret = WIRE_REFUSE;
    else
        link_adopt(l, w);
    return 0;
}

static int on_proven(void *owner, struct wire *w, enum wire_verdict *ret, struct error *e)
{
    struct links *links = owner;
    const struct party *p = wire_party(w);
    struct link *l;

    *ret = WIRE_PROCEED;
    if (wire_dialled(w))
        return judge_dialled(links, w, e);
    l = links_find(links, p->node, p->address);
    if (l && l->wire && wire_state(l->wire) >= WIRE_SETUP)
        return judge_second(links, l, w, ret, e);
    return links_take(links, w, e);
}

/* ---- what comes of it ---- */

static void on_up(void *owner, struct wire *w)
{
    struct links *links = owner;
    struct link *l = wire_link(w);

    link_rise(l);
    links->events->up(links->comms, l, service_now());
}

static void on_message(void *owner, struct wire *w, const struct peer_message *m)
{
    struct links *links = owner;

    links->events->message(links->comms, wire_link(w), m, wire_heard(w));
}

static void on_trusted(void *owner, struct wire *w)
{
    struct link *l = wire_link(w);

    (void)owner;
    if (l->rival)
        wire_part(steal(&l->rival), NULL);
}

static void on_refused(void *owner, struct wire *w)
{
    struct links *links = owner;
    struct link *l = wire_link(w);

    if (!l || l->wire != w)
        return;
    l->wire = NULL;
    link_set_state(l, LINK_AWAITED);
    links->due = MIN(links->due, l->deadline);
}

static void on_ended(void *owner, struct wire *w, const struct error *why)
{
    struct links *links = owner;
    struct link *l = wire_link(w);
    struct error e = { 0 };

    if (!l || l->wire != w) {
        log_info(NULL, "%s", why->text);
        if (l && l->rival == w)
            l->rival = NULL;
        return;
    }
    struct wire *rival = steal(&l->rival);

    links_lose(links, l, why);
    if (!rival)
        return;
    wire_set_link(rival, NULL);
    if (links_take(links, rival, &e) < 0)
        wire_part(rival, &e);
    else
        wire_proceed(rival);
}

const struct wire_events links_wire_events = {
    .proven = on_proven,
    .up = on_up,
    .message = on_message,
    .trusted = on_trusted,
    .refused = on_refused,
    .ended = on_ended,
};

/* ---- time ---- */

/* What has no wire has nobody else to tell of it. */
static void links_expire(struct links *links, struct link *l)
{
    struct wire *w = l->wire;

    error_set(&l->failure, ERROR_TIMEOUT, "node %s (%s): did not connect within %.1f s",
              l->facts.host, l->facts.address, (double)links->wires.connect_timeout_us / 1e6);
    const struct error why = l->failure;

    links_lose(links, l, &why);
    if (w)
        wire_close(w);
}

static void links_look(struct links *links, uint64_t now)
{
    struct link *l, *tmp;

    links->due = TIME_NEVER;
    list_for_each_safe(l, tmp, &links->all, link) {
        if (l->failure.code || (!l->wire && now >= l->deadline))
            links_expire(links, l);
        else if (!l->wire)
            links->due = MIN(links->due, l->deadline);
    }
}

void links_turn(struct links *links, uint64_t now)
{
    if (now >= links->due)
        links_look(links, now);
    wires_turn(&links->wires, now);
    if (links->knocking)
        links_accept(links, now);
}

uint64_t links_deadline(const struct links *links)
{
    return MIN(links->due, wires_deadline(&links->wires));
}

/* ---- what comm has ---- */

static int dial(struct links *links, struct link *l, struct error *e)
{
    struct wire *w = wire_dial(&links->wires, &l->target, l->wanted);

    if (!w)
        return error_set(e, ERROR_NO_MEMORY, "out of memory for a connection");
    l->wire = w;
    wire_set_link(w, l);
    link_set_state(l, LINK_DIALLED);
    return 0;
}

static int find_or_add(struct links *links, const char *address, const char *node,
                       struct link **ret, struct error *e)
{
    struct address target = { .text = "" };

    if (links->stopping)
        return error_set(e, ERROR_DAEMON_STOPPING, "this daemon is stopping");
    if (!strcmp(node, links->wires.self.node) || !strcmp(address, links->wires.self.address))
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s is this daemon itself", address);
    if (*address && address_parse(address, &target, e) < 0)
        return -(int)e->code;
    *ret = links_find(links, node, target.text);
    if (!*ret && !*address)
        return error_set(e, ERROR_NOT_FOUND,
                         "node %s is not linked with this one, and nothing says where it is", node);
    if (!*ret)
        *ret = links_add(links, &target, node);
    return *ret ? 0 : error_set(e, ERROR_NO_MEMORY, "out of memory for a link");
}

static int ops_open(void *owner, const char *address, const char *node, bool dials,
                    struct link **ret, struct error *e)
{
    struct links *links = owner;
    struct link *l;
    int r;

    r = find_or_add(links, address, node, &l, e);
    if (r == 0 && dials && l->state == LINK_AWAITED && !l->wire)
        r = dial(links, l, e);
    if (r < 0)
        return r;
    link_ref(l);
    *ret = l;
    return 0;
}

static struct link_message ops_encode(void *owner, const struct peer_message *m)
{
    struct links *links = owner;
    struct link_message encoded = { 0 };

    encoded.len = wires_encode(&links->wires, m, &encoded.bytes);
    return encoded;
}

static struct link_message ops_encode_payload(void *owner, const struct peer_agree *agree)
{
    struct links *links = owner;
    struct link_message encoded = { 0 };

    encoded.len = peer_codec_encode_payload(links->wires.codec, agree, &encoded.bytes);
    return encoded;
}

const struct link_ops link_ops = {
    .open = ops_open,
    .ref = link_ref,
    .unref = link_unref,
    .facts = link_facts,
    .send = link_send,
    .encode = ops_encode,
    .send_encoded = link_send_encoded,
    .encode_payload = ops_encode_payload,
    .expect = link_expect,
};

void links_status(const struct links *links, uint64_t now,
                  void (*show)(void *context, const struct status_item *item), void *context)
{
    const struct transport *t = links->wires.transport;
    const struct link *l;

    list_for_each(l, &links->all, link) {
        struct status_item item = { .kind = STATUS_PEER };

        item.peer.node = l->facts.node;
        item.peer.host = l->facts.host;
        item.peer.address = l->facts.address;
        item.peer.state = link_state_name(l);
        item.peer.transport = t ? t->ops->describe(t) : "";
        item.peer.gpu_direct = t && transport_gpu_bytes_min(t) != TRANSPORT_NO_GPUS;
        item.peer.expecting = (uint32_t)l->expecting;
        item.peer.heard_age_us = l->wire ? now - MIN(now, wire_heard(l->wire)) : 0;
        show(context, &item);
    }
}
