#include "daemon/server/link.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/log/log.h"

/* A message that waits for the link to be up. */
struct kept {
    struct list link; // link::kept
    size_t len;
    uint8_t bytes[];
};

static const char *const state_names[] = {
    [LINK_DIALLED] = "connecting",
    [LINK_AWAITED] = "awaited",
    [LINK_UP] = "up",
    [LINK_LOST] = "lost",
};

const char *link_state_name(const struct link *l)
{
    return state_names[l->state];
}

struct link *link_new(struct wires *wires, uint64_t *due, const struct address *target,
                      const char *wanted)
{
    struct link *l = calloc(1, sizeof(*l));

    if (!l)
        return NULL;
    l->state = LINK_AWAITED;
    l->wires = wires;
    l->due = due;
    l->target = *target;
    strncpy(l->wanted, wanted, sizeof(l->wanted) - 1);
    l->facts = (struct link_facts){
        .node = "",
        .host = l->target.text,
        .address = l->target.text,
    };
    list_init(&l->link);
    list_init(&l->kept);
    return l;
}

static void link_drop_kept(struct link *l)
{
    while (!list_empty(&l->kept)) {
        struct kept *kept = list_first(&l->kept, struct kept, link);

        list_remove(&kept->link);
        free(kept);
    }
    l->kept_bytes = 0;
}

void link_ref(struct link *l)
{
    l->refs++;
}

void link_unref(struct link *l)
{
    assert(l->refs > 0);
    if (--l->refs || l->state != LINK_LOST)
        return;
    link_drop_kept(l);
    free(l);
}

void link_set_state(struct link *l, enum link_state state)
{
    assert(l->state != LINK_LOST && (l->state != LINK_UP || state == LINK_LOST));
    if (state == l->state)
        return;
    log_info(NULL, "link with node %s (%s): %s -> %s", l->facts.host, l->facts.address,
             state_names[l->state], state_names[state]);
    l->state = state;
}

void link_know(struct link *l, const struct party *p)
{
    l->party = *p;
    l->known = true;
    l->facts.node = l->party.node;
    l->facts.host = l->party.host;
    l->facts.address = l->party.address;
}

void link_adopt(struct link *l, struct wire *w)
{
    if (l->wire)
        wire_close(l->wire);
    l->wire = w;
    wire_set_link(w, l);
    link_know(l, wire_party(w));
}

void link_rise(struct link *l)
{
    link_set_state(l, LINK_UP);
    l->facts.peer = wire_peer(l->wire);
    if (l->expecting)
        wire_expect(l->wire, l->expecting);
    struct kept *kept;

    list_for_each(kept, &l->kept, link)
        wire_send(l->wire, kept->bytes, kept->len);
    link_drop_kept(l);
}

static void link_fail(struct link *l, enum error_code code, const char *what)
{
    error_set(&l->failure, code, "node %s (%s): %s", l->facts.host, l->facts.address, what);
    *l->due = 0;
}

static void link_keep(struct link *l, const void *bytes, size_t len)
{
    struct kept *kept = NULL;

    if (l->kept_bytes + len > WIRE_QUEUE_BYTES) {
        link_fail(l, ERROR_RANK_LOST, "too much waits for it to connect");
        return;
    }
    kept = malloc(sizeof(*kept) + len);
    if (!kept) {
        link_fail(l, ERROR_NO_MEMORY, "out of memory for a message to it");
        return;
    }
    kept->len = len;
    memcpy(kept->bytes, bytes, len);
    l->kept_bytes += len;
    list_append(&l->kept, &kept->link);
}

void link_send_encoded(struct link *l, const struct link_message *m)
{
    if (l->state == LINK_UP)
        wire_send_encoded(l->wire, m->bytes, m->len);
    else if (l->state != LINK_LOST && m->len < 0)
        link_fail(l, ERROR_SYSTEM, "cannot write a message to it");
    else if (l->state != LINK_LOST)
        link_keep(l, m->bytes, (size_t)m->len);
}

void link_send(struct link *l, const struct peer_message *m)
{
    struct link_message encoded = { 0 };

    if (l->state == LINK_LOST)
        return;
    encoded.len = wires_encode(l->wires, m, &encoded.bytes);
    link_send_encoded(l, &encoded);
}

void link_expect(struct link *l, int change)
{
    l->expecting += change;
    assert(l->expecting >= 0);
    if (l->state == LINK_UP)
        wire_expect(l->wire, change);
}

const struct link_facts *link_facts(const struct link *l)
{
    return &l->facts;
}
