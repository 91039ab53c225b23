#include <jansson.h>

#include "client/ctl/print.h"

/* An object in the making. What cannot be put in, also a NULL that an inner one left, spoils it. */
struct object {
    json_t *json;
    bool spoilt;
};

static struct object object_new(void)
{
    return (struct object){ .json = json_object() };
}

/* The object, or NULL where something is missing in it. */
static json_t *object_end(struct object *o)
{
    if (!o->spoilt)
        return o->json;
    json_decref(o->json);
    return NULL;
}

static void put(struct object *o, const char *key, json_t *value)
{
    o->spoilt |= json_object_set_new(o->json, key, value) < 0;
}

static void put_text(struct object *o, const char *key, const char *s)
{
    put(o, key, json_string(s));
}

/* jansson's integers have a sign; what is beyond them keeps its magnitude. */
static void put_number(struct object *o, const char *key, uint64_t v)
{
    put(o, key, v <= INT64_MAX ? json_integer((json_int_t)v) : json_real((double)v));
}

static json_t *json_daemon(const struct status_item *d)
{
    struct object o = object_new();

    put_text(&o, "version", d->daemon.version);
    put_text(&o, "node", d->daemon.node);
    put_number(&o, "pid", d->daemon.pid);
    put_number(&o, "uptime_us", d->daemon.uptime_us);
    put_text(&o, "state", d->daemon.state);
    put_number(&o, "sessions", d->daemon.sessions);
    put_number(&o, "communicators", d->daemon.communicators);
    put_number(&o, "regions", d->daemon.regions);
    put_number(&o, "region_bytes", d->daemon.region_bytes);
    put_number(&o, "workers", d->daemon.workers);
    put_text(&o, "kernels", d->daemon.kernels);
    return object_end(&o);
}

static json_t *json_gpu(const struct status_item *g)
{
    struct object o = object_new();

    put_text(&o, "uuid", g->gpu.uuid);
    put_text(&o, "name", g->gpu.name);
    put_number(&o, "mapped_bytes", g->gpu.mapped_bytes);
    put_number(&o, "mappings", g->gpu.mappings);
    put(&o, "failed", json_boolean(g->gpu.failed));
    put_number(&o, "failures", g->gpu.failures);
    return object_end(&o);
}

static json_t *json_peer(const struct status_item *p)
{
    struct object o = object_new();

    put_text(&o, "node", p->peer.node);
    put_text(&o, "host", p->peer.host);
    put_text(&o, "address", p->peer.address);
    put_text(&o, "state", p->peer.state);
    put_text(&o, "transport", p->peer.transport);
    put_text(&o, "gpu_memory", p->peer.gpu_direct ? "direct" : "staged");
    put_number(&o, "expecting", p->peer.expecting);
    put_number(&o, "heard_age_us", p->peer.heard_age_us);
    return object_end(&o);
}

static json_t *json_session(const struct status_item *s)
{
    struct object o = object_new();

    put_number(&o, "session", s->session.session);
    put_number(&o, "pid", s->session.pid);
    put_number(&o, "uid", s->session.uid);
    put_text(&o, "name", s->session.name);
    put_number(&o, "regions", s->session.regions);
    put_number(&o, "region_bytes", s->session.region_bytes);
    put_number(&o, "in_flight", s->session.in_flight);
    put_number(&o, "members", s->session.members);
    return object_end(&o);
}

static json_t *json_member(const struct status_item *m)
{
    struct object o = object_new();

    put_number(&o, "rank", m->member.rank);
    put_number(&o, "session", m->member.session);
    put_number(&o, "pid", m->member.pid);
    put_number(&o, "sequence", m->member.sequence);
    put_text(&o, "last", m->member.last);
    put_number(&o, "last_age_us", m->member.last_age_us);
    put(&o, "arrived", json_boolean(m->member.arrived));
    return object_end(&o);
}

static json_t *json_oldest(const struct status_item *c)
{
    const struct collective *kind = collective_get(c->communicator.oldest_kind);
    struct object o = object_new();

    put_text(&o, "kind", kind ? kind->name : "");
    put_number(&o, "sequence", c->communicator.oldest_sequence);
    put_number(&o, "age_us", c->communicator.oldest_age_us);
    put_text(&o, "state", c->communicator.oldest_state);
    put_text(&o, "arrived", c->communicator.oldest_arrived);
    put_text(&o, "missing", c->communicator.oldest_missing);
    return object_end(&o);
}

static json_t *json_communicator(const struct status *s, const struct status_item *c)
{
    const bool failed = *c->communicator.failure;
    const bool waiting = c->communicator.oldest_kind != COLLECTIVE_NONE;
    const struct status_item *item = NULL;
    struct object o = object_new();
    json_t *members = json_array();

    while ((item = status_next_member(s, c->communicator.communicator, item)))
        o.spoilt |= json_array_append_new(members, json_member(item)) < 0;

    put_number(&o, "communicator", c->communicator.communicator);
    put_text(&o, "label", c->communicator.label);
    put_text(&o, "state", c->communicator.state);
    put_number(&o, "nranks", c->communicator.nranks);
    put_number(&o, "present", c->communicator.present);
    put_number(&o, "sequence", c->communicator.sequence);
    put(&o, "failure", failed ? json_string(c->communicator.failure) : json_null());
    put(&o, "oldest", waiting ? json_oldest(c) : json_null());
    put(&o, "members", members);
    return object_end(&o);
}

static json_t *json_status(const struct status *s)
{
    const struct status_item *daemon = status_next(s, STATUS_DAEMON, NULL), *item = NULL;
    json_t *peers = json_array(), *sessions = json_array(), *communicators = json_array();
    json_t *gpus = json_array();
    struct object o = object_new();

    while ((item = status_next(s, STATUS_GPU, item)))
        o.spoilt |= json_array_append_new(gpus, json_gpu(item)) < 0;
    while ((item = status_next(s, STATUS_PEER, item)))
        o.spoilt |= json_array_append_new(peers, json_peer(item)) < 0;
    while ((item = status_next(s, STATUS_SESSION, item)))
        o.spoilt |= json_array_append_new(sessions, json_session(item)) < 0;
    while ((item = status_next(s, STATUS_COMMUNICATOR, item)))
        o.spoilt |= json_array_append_new(communicators, json_communicator(s, item)) < 0;

    put(&o, "daemon", daemon ? json_daemon(daemon) : json_null());
    put(&o, "gpus", gpus);
    put(&o, "peers", peers);
    put(&o, "sessions", sessions);
    put(&o, "communicators", communicators);
    return object_end(&o);
}

int json_write(json_t *root, FILE *out, struct error *e)
{
    if (!root)
        return error_set(e, ERROR_NO_MEMORY, "out of memory for JSON");

    int r = json_dumpf(root, out, JSON_INDENT(2));

    json_decref(root);
    if (r < 0)
        return error_set(e, ERROR_SYSTEM, "cannot write the output");
    fputc('\n', out);
    return 0;
}

int print_json(const struct status *s, FILE *out, struct error *e)
{
    return json_write(json_status(s), out, e);
}
