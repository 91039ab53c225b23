#include "daemon/comm/forming.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/description.h"
#include "daemon/comm/nodes.h"
#include "daemon/comm/rendezvous.h"

/* A node that has a rank in a root's group. */
struct guest {
    struct link *link; /* NULL: lost */
    bool ready;
};

struct forming {
    struct comm *comm;
    struct link *root; /* a guest's; NULL: lost, or this is the root */
    bool is_guest;
    bool told;            /* who is where has been said */
    bool answered;        /* this node is ready, or has said why not */
    struct guest *guests; /* a root's */
    uint32_t nguests, room;
};

static const struct comms_config *config_of(const struct forming *f)
{
    return &f->comm->comms->config;
}

static const struct link_ops *ops_of(const struct forming *f)
{
    return config_of(f)->link_ops;
}

bool forming_is_guest(const struct forming *f)
{
    return f && f->is_guest;
}

static struct forming *forming_new(struct comm *c, bool is_guest)
{
    struct forming *f = calloc(1, sizeof(*f));

    if (f) {
        f->comm = c;
        f->is_guest = is_guest;
        c->forming = f;
    }
    return f;
}

static void let_go(const struct forming *f, struct link *l)
{
    if (!l)
        return;
    ops_of(f)->expect(l, -1);
    ops_of(f)->unref(l);
}

struct forming *forming_free(struct forming *f)
{
    if (!f)
        return NULL;
    let_go(f, f->root);
    for (uint32_t i = 0; i < f->nguests; i++)
        let_go(f, f->guests[i].link);
    f->comm->forming = NULL;
    free(f->guests);
    free(f);
    return NULL;
}

/* ---- guests ask */

int forming_ask(struct comm *c, const char *address, struct error *e)
{
    struct forming *f = forming_new(c, true);
    int r;

    if (!f)
        return error_set(e, ERROR_NO_MEMORY, "join: no memory for a communicator");
    r = ops_of(f)->open(config_of(f)->links, address, "", true, &f->root, e);
    if (r < 0) {
        f->root = NULL;
        forming_free(f);
        return r;
    }
    ops_of(f)->expect(f->root, 1);
    if (c->forming_deadline_us < TIME_NEVER - FORMING_GRACE_US)
        c->forming_deadline_us += FORMING_GRACE_US;
    return 0;
}

void forming_ask_for(struct forming *f, const struct member *m, uid_t uid)
{
    const struct comm *c = f->comm;
    const struct peer_message message = { .kind = PEER_JOIN,
                                          .join = { .id = c->id,
                                                    .rank = m->rank,
                                                    .nranks = c->nranks,
                                                    .uid = (uint32_t)uid,
                                                    .pid = (uint32_t)m->pid,
                                                    .label = c->label,
                                                    .algorithm = c->algorithm,
                                                    .timeout_us = c->timeout_us } };

    ops_of(f)->send(f->root, &message);
}

/* ---- the root seats them */

/* The guest behind a link, perhaps a new one. Return: 0 or -ENOMEM. */
static int find_guest(struct forming *f, struct link *l, uint32_t *ret)
{
    uint32_t i = 0;

    while (i < f->nguests && f->guests[i].link != l)
        i++;
    if (i == f->room) {
        uint32_t room = MAX(2 * f->room, 8);
        struct guest *guests = reallocarray(f->guests, room, sizeof(*guests));

        if (!guests)
            return -ENOMEM;
        f->guests = guests;
        f->room = room;
    }
    if (i == f->nguests) {
        f->guests[f->nguests++] = (struct guest){ .link = l };
        ops_of(f)->ref(l);
        ops_of(f)->expect(l, 1);
    }
    *ret = i;
    return 0;
}

static bool is_guest_link(const struct forming *f, const struct link *l, struct guest **ret)
{
    for (uint32_t i = 0; i < f->nguests; i++) {
        if (f->guests[i].link == l) {
            *ret = &f->guests[i];
            return true;
        }
    }
    return false;
}

static void send_refused(const struct comms *comms, struct link *l, const char *id, uint32_t rank,
                         const struct error *why)
{
    struct peer_message m = { .kind = PEER_REFUSED, .refused = { .id = id, .rank = rank } };

    m.refused.error = *why;
    comms->config.link_ops->send(l, &m);
}

/* The comm is held, and has a seat for it. */
static void seat_remote(struct comm *c, struct link *l, const struct join *join, uint64_t now)
{
    struct forming *f = c->forming ? c->forming : forming_new(c, false);
    struct error mismatch = { 0 }, e = { 0 };
    uint32_t guest;

    if (!f || find_guest(f, l, &guest) < 0) {
        error_set(&e, ERROR_NO_MEMORY, "join: no memory for a member");
        send_refused(c->comms, l, c->id, join->request->rank, &e);
        return;
    }
    if (rendezvous_differs(c, join->request, &mismatch)) {
        comm_fail(c, &mismatch, now);
        return;
    }
    c->seats[join->request->rank] =
        (struct seat){ .state = SEAT_REMOTE, .node = guest, .pid = join->pid };
    c->nremote++;
    rendezvous_advance(c, now);
}

static void on_join(struct comms *comms, struct link *l, const struct peer_message *m, uint64_t now)
{
    struct request_join request = { .rank = m->join.rank,
                                    .nranks = m->join.nranks,
                                    .timeout_us = m->join.timeout_us };
    const struct join join = { .request = &request,
                               .uid = (uid_t)m->join.uid,
                               .pid = (pid_t)m->join.pid };
    struct error e = { 0 };
    struct comm *c;

    request.id = m->join.id;
    request.label = m->join.label;
    request.algorithm = m->join.algorithm;
    if (rendezvous_admit(comms, &join, false, now, &c, &e) < 0) {
        send_refused(comms, l, m->join.id, m->join.rank, &e);
        return;
    }
    seat_remote(c, l, &join, now);
    comm_drop(c);
}

static const char *guest_host(const struct forming *f, uint32_t guest)
{
    return f->guests[guest].link ? ops_of(f)->facts(f->guests[guest].link)->host : "a lost node";
}

/* ---- who is where */

const char *forming_host(const struct comm *c, uint32_t rank)
{
    const uint32_t node = c->seats[rank].node;

    return c->nodes ? c->nodes->items[node].host : guest_host(c->forming, node);
}

static void send_to_guests(const struct forming *f, const struct peer_message *m)
{
    for (uint32_t i = 0; i < f->nguests; i++)
        if (f->guests[i].link)
            ops_of(f)->send(f->guests[i].link, m);
}

static int describe(const struct forming *f, struct description *d)
{
    const struct link_facts **guests = calloc(f->nguests, sizeof(*guests));
    int r;

    if (!guests)
        return -ENOMEM;
    for (uint32_t i = 0; i < f->nguests; i++)
        guests[i] = ops_of(f)->facts(f->guests[i].link);
    r = description_init(d, f->comm, guests, f->nguests);
    free(guests);
    return r;
}

/* This node's part in a group whose nodes are known. */
static int take_part(struct forming *f, const struct peer_form *form, struct error *e)
{
    struct comm *c = f->comm;
    int r = nodes_new(c, form, e);

    if (r == 0)
        r = nodes_open_links(c->nodes, e);
    if (r == 0)
        nodes_expect(c->nodes);
    return r;
}

static void advance(struct forming *f, uint64_t now);

void forming_tell(struct forming *f, uint64_t now)
{
    struct description d = { 0 };
    struct comm *c = f->comm;
    struct error e = { 0 };
    int r = describe(f, &d);

    if (r < 0) {
        error_set_errno(&e, -r, "join: describing the group");
    } else {
        f->told = true;
        send_to_guests(f, &(struct peer_message){ .kind = PEER_FORM, .form = d.form });
        if (c->ntaken)
            r = take_part(f, &d.form, &e);
    }
    description_fini(&d);
    if (r < 0)
        comm_fail(c, &e, now);
    else
        advance(f, now);
}

/* ---- all are ready */

static bool guests_are_ready(const struct forming *f)
{
    for (uint32_t i = 0; i < f->nguests; i++)
        if (!f->guests[i].ready)
            return false;
    return true;
}

/* This node's answer: to the root, or, being it, to itself. */
static void answer(struct forming *f, const struct error *e, uint64_t now)
{
    struct peer_message m = { .kind = PEER_READY, .ready = { .id = f->comm->id } };

    f->answered = true;
    if (f->is_guest) {
        m.ready.error = *e;
        ops_of(f)->send(f->root, &m);
    } else if (e->code) {
        comm_fail(f->comm, e, now);
    }
}

static void advance(struct forming *f, uint64_t now)
{
    struct comm *c = f->comm;
    struct error e = { 0 };

    if (c->nodes && !f->answered && nodes_are_up(c->nodes)) {
        nodes_prepare(c->nodes, &e);
        answer(f, &e, now);
        if (c->state == COMM_FAILED)
            return;
    }
    if (f->is_guest || !f->told || (c->nodes && !f->answered) || !guests_are_ready(f))
        return;
    send_to_guests(f, &(struct peer_message){ .kind = PEER_GO, .go = { .id = c->id } });
    forming_free(f);
    if (c->nodes) /* else the ranks are all elsewhere, and that was it */
        rendezvous_formed(c);
}

static bool names_node(const struct peer_form *form, const char *node)
{
    for (uint32_t i = 0; i < form->nnodes; i++)
        if (!strcmp(form->nodes[i].node, node))
            return true;
    return false;
}

/* Ranks that came here while they were taken elsewhere: the root's word on them is on its way. */
static void expel_strays(struct forming *f, const struct peer_form *form, uint64_t now)
{
    struct comm *c = f->comm;

    if (form->nranks != c->nranks || !names_node(form, config_of(f)->node))
        return; /* another group */
    for (uint32_t r = 0; r < c->nranks; r++) {
        const struct peer_node *node = &form->nodes[form->node_of_rank[r]];
        struct error e = { 0 };

        if (!c->seats[r].member || !strcmp(node->node, config_of(f)->node))
            continue;
        error_set(&e, ERROR_DUPLICATE_RANK, "join: rank %u is taken by pid %u on %s already", r,
                  form->pids[r], node->host);
        error_add_rank(&e, r);
        comm_expel(c->seats[r].member, &e, now);
    }
}

static void on_form(struct forming *f, const struct peer_form *form, uint64_t now)
{
    struct comm *c = f->comm;
    struct error e = { 0 };

    if (f->told)
        return;
    f->told = true;
    c->uid = (uid_t)form->uid;
    snprintf(c->label, sizeof(c->label), "%s", form->label);
    expel_strays(f, form, now);
    if (c->ntaken == c->nranks) /* nothing but its rendezvous concerns other nodes */
        answer(f, &e, now);
    else if (take_part(f, form, &e) < 0)
        comm_fail(c, &e, now);
    else
        advance(f, now);
}

static void on_ready(struct forming *f, struct guest *g, const struct error *e, uint64_t now)
{
    if (e->code) {
        comm_fail(f->comm, e, now);
        return;
    }
    g->ready = f->told;
    advance(f, now);
}

static void on_go(struct forming *f)
{
    struct comm *c = f->comm;

    if (!f->answered)
        return;
    forming_free(f);
    rendezvous_formed(c);
}

/* ---- what goes wrong */

void forming_fail(struct forming *f, const struct error *cause)
{
    struct peer_message m = { .kind = f->is_guest ? PEER_WITHDRAW : PEER_REFUSED };

    if (f->is_guest) {
        m.withdraw.id = f->comm->id;
        m.withdraw.error = *cause;
        if (f->root)
            ops_of(f)->send(f->root, &m);
    } else {
        m.refused.id = f->comm->id;
        m.refused.rank = PEER_ALL_RANKS;
        m.refused.error = *cause;
        send_to_guests(f, &m);
    }
    forming_free(f);
}

/* What another node has said, which may be nothing. */
static const struct error *cause_of(const struct error *e)
{
    static const struct error none = { .code = ERROR_PROTOCOL,
                                       .text = "join: another node gave up without a cause" };

    return e->code ? e : &none;
}

static void on_refused(struct forming *f, uint32_t rank, const struct error *why, uint64_t now)
{
    struct comm *c = f->comm;

    if (rank == PEER_ALL_RANKS)
        comm_fail(c, cause_of(why), now);
    else if (rank < c->nranks && c->seats[rank].member && !f->told)
        comm_expel(c->seats[rank].member, cause_of(why), now);
}

/* A guest may fail the group even when it has formed, unless it has heard so. */
static void on_withdraw(struct comm *c, const struct link *l, const struct error *why, uint64_t now)
{
    struct guest *g;
    uint32_t node;

    if ((c->forming && is_guest_link(c->forming, l, &g)) ||
        (c->nodes && nodes_find_link(c->nodes, l, &node)))
        comm_fail(c, cause_of(why), now);
}

/* A guest has lost its root. */
static void lose_root(struct forming *f, const struct error *why, uint64_t now)
{
    struct text t = { 0 };
    struct error e = { 0 };

    text_add_label(&t, f->comm);
    text_add(&t, "join: the daemon that made the id, %s, cannot be asked: %s",
             ops_of(f)->facts(f->root)->address, why->text);
    error_set(&e, why->code, "%s", t.s);
    let_go(f, steal(&f->root));
    comm_fail(f->comm, &e, now);
}

static void lose_guest(struct forming *f, uint32_t guest, const struct error *why, uint64_t now)
{
    const struct comm *c = f->comm;
    uint32_t *ranks = malloc(c->nranks * sizeof(*ranks));
    struct text t = { 0 };
    struct error e = { 0 };
    uint32_t n = 0;

    for (uint32_t r = 0; ranks && r < c->nranks; r++) {
        if (c->seats[r].state == SEAT_REMOTE && !c->nodes && c->seats[r].node == guest) {
            ranks[n++] = r;
            error_add_rank(&e, r);
        }
    }
    text_add_label(&t, c);
    text_add(&t, "join: ");
    if (n) {
        text_add_ranks(&t, ranks, n);
        text_add(&t, " (on %s) lost: ", guest_host(f, guest));
    }
    error_set(&e, ERROR_RANK_LOST, "%s%s", t.s, why->text);
    free(ranks);
    let_go(f, steal(&f->guests[guest].link));
    comm_fail(f->comm, &e, now);
}

void forming_link_lost(struct forming *f, const struct link *l, const struct error *why,
                       uint64_t now)
{
    if (f->is_guest && f->root == l) {
        lose_root(f, why, now);
        return;
    }
    for (uint32_t i = 0; i < f->nguests; i++) {
        if (f->guests[i].link == l) {
            lose_guest(f, i, why, now);
            return;
        }
    }
}

/* ---- */

void forming_link_up(struct forming *f, uint64_t now)
{
    if (f->told)
        advance(f, now);
}

/* What only the root's link, or only a guest's, may say of a group. */
static void receive_of(struct comm *c, struct link *l, const struct peer_message *m, uint64_t now)
{
    struct forming *f = c->forming;
    const bool from_root = f && f->is_guest && f->root == l;
    struct guest *g;

    if (m->kind == PEER_WITHDRAW)
        on_withdraw(c, l, &m->withdraw.error, now);
    else if (m->kind == PEER_READY && f && !f->is_guest && is_guest_link(f, l, &g))
        on_ready(f, g, &m->ready.error, now);
    else if (m->kind == PEER_REFUSED && from_root)
        on_refused(f, m->refused.rank, &m->refused.error, now);
    else if (m->kind == PEER_FORM && from_root)
        on_form(f, &m->form, now);
    else if (m->kind == PEER_GO && from_root)
        on_go(f);
}

static const char *id_of(const struct peer_message *m)
{
    switch (m->kind) {
    case PEER_REFUSED:
        return m->refused.id;
    case PEER_WITHDRAW:
        return m->withdraw.id;
    case PEER_FORM:
        return m->form.id;
    case PEER_READY:
        return m->ready.id;
    default:
        return m->go.id;
    }
}

void forming_receive(struct comms *comms, struct link *l, const struct peer_message *m,
                     uint64_t now)
{
    struct comm *c;

    if (m->kind == PEER_JOIN) {
        on_join(comms, l, m, now);
        return;
    }
    c = rendezvous_find(comms, id_of(m));
    if (!c)
        return;
    comm_hold(c);
    receive_of(c, l, m, now);
    comm_drop(c);
}

/* Nodes that are not ready, from the root's view. */
static void add_unready(const struct forming *f, struct text *t)
{
    const char *comma = "";

    text_add(t, "all ranks joined, not ready: ");
    for (uint32_t i = 0; i < f->nguests; i++) {
        const struct link_facts *facts;

        if (f->guests[i].ready)
            continue;
        facts = ops_of(f)->facts(f->guests[i].link);
        text_add(t, "%snode %s (%s)", comma, facts->host, facts->address);
        comma = ", ";
    }
    if (f->comm->nodes && !f->answered)
        text_add(t, "%snode %s (%s)", comma, config_of(f)->host, config_of(f)->address);
}

/* Nodes that this one has no link to yet. */
static void add_unlinked(const struct nodes *n, struct text *t, struct error *e)
{
    const char *comma = "";

    text_add(t, "no link yet to ");
    for (uint32_t i = 0; i < n->placement->nnodes; i++) {
        if (i == n->own || n->peers[i])
            continue;
        text_add(t, "%s", comma);
        text_add_node(t, &n->items[i]);
        error_add_node(e, n, i);
        comma = ", ";
    }
}

bool forming_add_late(const struct forming *f, struct text *t, struct error *e)
{
    if (!f || (!f->is_guest && !f->told))
        return false;
    if (!f->is_guest)
        add_unready(f, t);
    else if (f->told && !f->answered)
        add_unlinked(f->comm->nodes, t, e);
    else
        text_add(t, "no answer from the daemon that made the id, %s",
                 ops_of(f)->facts(f->root)->address);
    return true;
}
