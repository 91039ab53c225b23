#include "client/meeting.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/carry.h"
#include "client/comm.h"
#include "client/copy.h"
#include "client/region.h"
#include "client/report.h"
#include "client/work.h"
#include "shared/slate.h"
#include "shared/socket_path.h"

#define SOCKET_NS 1000000 /* between two looks for the daemon's end */

/* ---------------------------------------------------------------- which calls */

/* Read by each rank: of more, the daemon makes each part once, and shares it among its CPUs. */
#define REDUCE_BYTES (128u << 10)

/* Plain memory, or a region that only this process has: of what others may have mapped too, the
 * daemon alone can tell whether it overlaps. What is misaligned, it words. */
static bool is_plain_operand(const struct posting *p, const struct operand *o)
{
    if (!o->t || !o->region)
        return true;
    if (o->bytes > 0 && o->offset % dtype_get(p->q.post.d.dtype)->width != 0)
        return false;
    return o->region->pooled && !o->region->lost;
}

/* Whether the budget, if there is one, suffices for all of it at once. */
static bool fits_budget(const struct posting *p)
{
    const struct descriptor *d = &p->q.post.d;

    if (d->budget == BUDGET_NONE || d->kind == COLLECTIVE_BARRIER)
        return true;
    return p->row->shape != SHAPE_EXCHANGE && descriptor_chunk(d) >= descriptor_block(d);
}

/* What a rank brings, be it another one. */
static uint64_t bytes_brought(const struct posting *p)
{
    if (p->in.t || !p->out.t)
        return p->in.bytes;
    return p->row->shape == SHAPE_OVER_R ? p->out.bytes * p->member->nranks : p->out.bytes;
}

static bool is_small(const struct posting *p)
{
    const uint64_t bytes = bytes_brought(p);

    if (p->row->flags & COLLECTIVE_HAS_OP && bytes * p->member->nranks > REDUCE_BYTES)
        return false;
    return bytes <= SLATE_BYTES;
}

static bool is_fit(const struct posting *p)
{
    const struct descriptor *d = &p->q.post.d;

    if (!p->attended || d->kind == COLLECTIVE_SPLIT || p->row->flags & COLLECTIVE_PAIR ||
        p->q.post.rejection.code || p->call->ret_persistent || p->call->expected_counts ||
        p->place.gpu)
        return false;
    if (d->kind != COLLECTIVE_BARRIER && !p->in.t && !p->out.t)
        return false; /* something is wrong with it, which the daemon words */
    return is_small(p) && fits_budget(p) && is_plain_operand(p, &p->in) &&
           is_plain_operand(p, &p->out) && !posting_overlaps(p);
}

/* ---------------------------------------------------------------- the slate */

static int slate_map(struct ruccl_member *m, int fd)
{
    const size_t bytes = slate_size(m->nranks);
    struct stat status;
    void *memory;

    if (fstat(fd, &status) < 0)
        return -errno;
    if ((uint64_t)status.st_size < bytes)
        return -EPROTO;
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return -errno;
    m->slate = memory;
    return 0;
}

/* Once a member; without one, all goes to the daemon. */
static void slate_ask(struct ruccl_member *m)
{
    struct request q = { .kind = REQUEST_SLATE_OPEN, .slate_open.comm = m->number };
    struct answer answer = { .fd = -1 };
    struct error e;
    int r;

    error_clear(&e);
    r = conn_ask(m->conn, &q, -1, conn_deadline(DAEMON_ANSWERS_US), &answer, &e);
    if (r == 0 && answer.fd >= 0) {
        r = slate_map(m, answer.fd);
        close(answer.fd);
        if (r < 0)
            error_set_errno(&e, -r, "map the slate");
    }
    if (r < 0)
        report_log(REPORT_INFO, "rank %u in %s meets nobody without the daemon: %s", m->rank, m->id,
                   e.text);
}

static struct slate *slate_of(struct ruccl_member *m)
{
    if (!m->slate_asked) {
        m->slate_asked = true;
        if (m->conn->has_slates && m->conn->rings.memory && m->nranks <= SLATE_RANKS_MAX)
            slate_ask(m);
    }
    return m->slate;
}

void meeting_forget(struct ruccl_member *m)
{
    if (m->slate)
        munmap(m->slate, slate_size(m->nranks));
    m->slate = NULL;
}

/* ---------------------------------------------------------------- a meeting */

static struct slate_extent extent_of(const struct operand *o)
{
    if (!o->t || !o->region)
        return (struct slate_extent){ 0 };
    return (struct slate_extent){ o->address, o->address + o->bytes };
}

/* An all_to_all_v's, whose rows are each rank's own. */
static void take_counts(struct slate_seat *seat, const struct request_post *post)
{
    seat->call.axes[0] = 0;
    seat->room = post->out_rows;
    memcpy(seat->counts, post->counts, post->ncounts * sizeof(post->counts[0]));
}

static void take_seat(const struct meeting *g, int64_t now)
{
    struct slate_seat *seat = slate_seat(g->slate, g->nranks, g->sequence, g->rank);
    const struct posting *p = g->p;
    const struct descriptor *d = &p->q.post.d;

    seat->call =
        (struct slate_call){ d->kind, d->op, d->dtype, d->root, d->budget, d->shape.naxes, { 0 } };
    memcpy(seat->call.axes, d->shape.axes, d->shape.naxes * sizeof(d->shape.axes[0]));
    if (p->row->flags & COLLECTIVE_ROWS)
        take_counts(seat, &p->q.post);
    seat->process = (uint64_t)p->conn->pid;
    seat->in = extent_of(&p->in);
    seat->out = extent_of(&p->out);
    atomic_store_explicit(&seat->kind, d->kind, memory_order_relaxed);
    atomic_store_explicit(&seat->at_us, (uint64_t)now / 1000, memory_order_relaxed);
    atomic_store_explicit(&seat->sequence, g->sequence, memory_order_relaxed);
    if (p->in.t && p->in.bytes)
        copy_bytes(seat->bytes, (const void *)p->in.address, p->in.bytes);
}

/* Not inlined, so that what waiting takes can be counted apart from all else. */
static __attribute__((noinline)) enum slate_state wait_for_others(const struct meeting *g,
                                                                  int64_t until)
{
    enum slate_state state;

    do {
        if (conn_now() >= until || slate_is_shut(g->slate))
            return slate_close(g->slate, g->nranks, g->sequence);
        sched_yield();
        state = slate_look(g->slate, g->nranks, g->sequence);
    } while (state == SLATE_OPEN);
    return state;
}

/* Until all have come, or for as long as there is patience. */
static enum slate_state meet(const struct meeting *g, int64_t now)
{
    struct patience *patience = &g->p->member->patience;
    const int64_t until = now + patience_ns(patience, now);
    enum slate_state state = SLATE_OPEN;

    if (!slate_is_shut(g->slate)) {
        take_seat(g, now);
        state = slate_arrive(g->slate, g->nranks, g->sequence);
    }
    if (state == SLATE_OPEN)
        state = wait_for_others(g, until);
    patience_note(patience, state == SLATE_MET);
    return state;
}

/* ---------------------------------------------------------------- what is told of it */

static uint64_t sum(const uint64_t *counts, uint32_t n)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < n; i++)
        total += counts[i];
    return total;
}

/* All of it, as the daemon counts. */
static struct ruccl_progress whole_of(const struct posting *p, const struct ruccl_work *w)
{
    const struct descriptor *d = &p->q.post.d;
    struct ruccl_progress all = { 0 };
    uint64_t row = 1;

    if (p->row->shape == SHAPE_EXCHANGE) {
        shape_row_count(&d->shape, &row);
        all.rows_to_send = w->ncounts ? sum(p->call->send_counts, w->ncounts) : d->shape.axes[0];
        all.rows_to_receive = w->ncounts ? sum(w->counts, w->ncounts) : d->shape.axes[0];
        all.elements_total = all.rows_to_receive * row;
    } else if (p->row->shape != SHAPE_NONE) {
        all.elements_total = descriptor_block(d);
    }
    all.elements_done = all.elements_total;
    all.rows_sent = all.rows_to_send;
    all.rows_received = all.rows_to_receive;
    all.chunks_done = all.chunks_total = all.elements_total || all.rows_to_send ? 1 : 0;
    return all;
}

static void tell(const struct meeting *g, struct ruccl_work *w, int64_t came, int64_t met)
{
    w->progress = whole_of(g->p, w);
    w->stats = (struct ruccl_stats){ .sequence = g->sequence,
                                     .wait_us = (uint64_t)(met - came) / 1000,
                                     .run_us = (uint64_t)(conn_now() - met) / 1000,
                                     .chunks = w->progress.chunks_total,
                                     .chunk_elements = w->ncounts ? w->progress.rows_to_receive
                                                                  : w->progress.elements_total,
                                     .algorithm = "slate" };
}

/* ---------------------------------------------------------------- the order of things */

/* Also for a look, now and again, whether the daemon still lives: it is not asked here. */
static bool may_begin(struct ruccl_conn *c, const struct ruccl_member *m, int64_t now)
{
    if (now - c->polled_at > SOCKET_NS) {
        conn_poll(c);
        c->polled_at = now;
    }
    return m->slate && m->unfinished == 0 && !c->end.code &&
           (m->nranks == 1 || patience_ns(&m->patience, now) > 0);
}

/* Who meets looks for a while, and may post then: not long, so that chores can wait. */
static bool nobody_meets(const void *subject)
{
    const struct ruccl_member *m = subject;

    return !m->at_slate;
}

/* Without the lock. Return: whether it is done. */
static bool go_through(const struct meeting *g, struct ruccl_work *w, int64_t now)
{
    int64_t met;

    if (meet(g, now) != SLATE_MET || !slate_agrees(g->slate, g->nranks, g->sequence))
        return false;
    met = w->hidden ? 0 : conn_now();
    if (!carry_out(g, w->counts))
        return false;
    if (!w->hidden)
        tell(g, w, now, met);
    return true;
}

bool meeting_hold(struct posting *p, struct ruccl_work *w)
{
    struct ruccl_member *m = p->member;
    struct meeting g = { .p = p, .rank = m->rank, .nranks = m->nranks };
    int64_t now;
    bool done;

    if (!is_fit(p) || !slate_of(m))
        return false;
    conn_wait_alone(p->conn, nobody_meets, m, CONN_NO_DEADLINE);
    now = conn_now(); /* what was waited for until here is not the others' fault */
    if (!may_begin(p->conn, m, now))
        return false;
    m->at_slate = p->met = true;
    g.slate = m->slate;
    g.sequence = p->q.post.sequence = m->next_sequence++;

    pthread_mutex_unlock(&p->conn->lock);
    done = go_through(&g, w, now);
    pthread_mutex_lock(&p->conn->lock);
    if (done) {
        work_skip(w);
        meeting_end(p);
    }
    return done;
}

void meeting_end(struct posting *p)
{
    if (!p->met)
        return;
    p->met = p->member->at_slate = false;
    conn_wake(p->conn);
}

int meeting_skip(struct ruccl_member *m, uint64_t *ret_sequence, struct error *e)
{
    struct ruccl_conn *c = m->conn;
    int r;

    for (;;) {
        conn_wait_alone(c, nobody_meets, m, CONN_NO_DEADLINE);
        r = conn_take_turn(c, e);
        if (r < 0 || !m->at_slate)
            break;
        conn_give_turn(c); /* who meets may have to send */
    }
    if (r < 0)
        return r;
    *ret_sequence = m->next_sequence++;
    if (m->slate && m->unfinished == 0)
        slate_close(m->slate, m->nranks, *ret_sequence);
    return 0;
}
