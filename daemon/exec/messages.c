#include "daemon/exec/messages.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/exec/bind.h"
#include "daemon/exec/bounce.h"
#include "daemon/exec/units.h"

/* ---- by the transport */

static struct message *message_take(struct run *run)
{
    struct message *m;

    if (list_empty(&run->messages)) {
        m = calloc(1, sizeof(*m));
        if (m)
            m->run = run;
        return m;
    }
    m = list_first(&run->messages, struct message, link);
    list_remove(&m->link);
    return m;
}

void messages_fini(struct run *run)
{
    struct message *m, *tmp;

    assert(list_empty(&run->under_way) && list_empty(&run->bouncing));
    list_for_each_safe(m, tmp, &run->messages, link) {
        free(m->parts);
        free(m->bounce.copies);
        free(m);
    }
    free(run->enclosure.bytes);
}

static void message_over(struct message *m, int r)
{
    struct run *run = m->run;

    run_uncount(run, m->counted);
    list_prepend(&run->messages, &m->link);
    if (r == 0 && fault_found(&run->area))
        r = -EFAULT;
    if (r < 0)
        run_fail(run, r);
    else if (m->slot)
        run_step_done(run, m->slot, m->step);
}

/* Of a receive, its bytes are here. */
static void message_arrived(struct message *m, int r)
{
    if (r == 0 && m->slot && m->slot->plan->steps[m->step].kind == STEP_RECV && bounce_is_needed(m))
        bounce_start(m, false, message_over);
    else
        message_over(m, r);
}

static void message_done(struct transfer *t, int r)
{
    struct message *m = t->owner;

    m->run->in_flight--;
    m->run->means->stirred = true;
    list_remove(&m->link);
    message_arrived(m, r);
}

/* The transport may touch the memory within the call. */
static int message_submit(struct message *m, uint32_t peer, bool send)
{
    const struct run_network *n = m->run->spec.network;
    const struct fault_area *before = fault_enter(&m->run->area);
    int r;

    m->transfer.done = message_done;
    r = send ? channel_send(n->channel, n->peers[peer], &m->transfer)
             : channel_recv(n->channel, n->peers[peer], &m->transfer);
    fault_leave(before);
    return r;
}

static void message_start(struct message *m, uint32_t peer, bool send)
{
    struct run *run = m->run;
    int r = fault_found(&run->area) ? -EFAULT : message_submit(m, peer, send);

    if (r == TRANSPORT_PENDING) {
        run->in_flight++;
        list_append(&run->under_way, &m->link);
    } else {
        message_arrived(m, r);
    }
}

/* Of a send, its bytes have been copied from the GPUs. */
static void message_departs(struct message *m, int r)
{
    if (r < 0)
        message_over(m, r);
    else
        message_start(m, m->slot->plan->steps[m->step].peer, true);
}

/* A message that is bound to the step. NULL: there was no memory, and the run has failed. */
static struct message *message_of(struct run *run, struct slot *s, uint32_t step)
{
    struct message *m = message_take(run);

    if (m && bind_message(run, s, step, m) == 0)
        return m;
    if (m)
        list_prepend(&run->messages, &m->link);
    run_fail(run, -ENOMEM);
    return NULL;
}

void messages_cancel(struct run *run)
{
    struct message *m, *tmp;

    if (run->cancelled)
        return;
    run->cancelled = true;
    list_for_each_safe(m, tmp, &run->under_way, link)
        transfer_cancel(&m->transfer);
    bounce_cancel(run);
}

/* ---- with an agreement */

/* The bytes of all messages of a kind to (from) a node, of tags below `tag`. */
static uint64_t bytes_before(const struct run *run, const struct plan *p, enum step_kind kind,
                             uint32_t node, uint64_t tag)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < p->nsteps; i++) {
        const struct step *s = &p->steps[i];

        if (s->kind == kind && s->peer == node && s->tag < tag)
            bytes += bind_message_bytes(run, p, s);
    }
    return bytes;
}

static uint64_t bytes_with(const struct run *run, const struct plan *p, enum step_kind kind,
                           uint32_t node)
{
    return bytes_before(run, p, kind, node, UINT64_MAX);
}

/* Where what is enclosed for a node begins. */
static uint64_t enclosed_offset(const struct run *run, const struct plan *p, uint32_t node)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < p->nsteps; i++)
        if (p->steps[i].kind == STEP_SEND && p->steps[i].peer < node)
            bytes += bind_message_bytes(run, p, &p->steps[i]);
    return bytes;
}

static int enclosure_reserve(struct enclosure *e, uint64_t bytes)
{
    uint8_t *room;

    if (bytes <= e->room)
        return 0;
    room = realloc(e->bytes, bytes);
    if (!room)
        return -ENOMEM;
    e->bytes = room;
    e->room = bytes;
    return 0;
}

int messages_prepare(struct run *run)
{
    struct enclosure *e = &run->enclosure;
    uint64_t bytes;
    struct slot *s;
    int r;

    e->wanted = run->spec.start == RUN_ENCLOSING && run->units <= 1;
    e->waiting = 0;
    if (!e->wanted || run->units == 0)
        return 0;
    r = unit_plan(run, 0, &s);
    if (r < 0)
        return r;
    bytes = enclosed_offset(run, s->plan, UINT32_MAX);
    /* what is not delivered is under way beside all that the plan has */
    e->wanted = bytes <= UINT32_MAX && bytes + s->planned_bytes <= run->spec.budget_bytes;
    for (uint32_t i = 0; e->wanted && i < s->plan->nsteps; i++)
        e->waiting += s->plan->steps[i].kind == STEP_SEND;
    return e->wanted ? enclosure_reserve(e, bytes) : 0;
}

void messages_forgo(struct run *run)
{
    run->enclosure.wanted = false;
    run->enclosure.waiting = 0;
}

bool messages_may_collect(const struct run *run, const struct step *step)
{
    return run->enclosure.wanted && step->kind == STEP_SEND;
}

const void *run_enclosed(const struct run *run, uint32_t node, uint32_t *ret_bytes)
{
    const struct enclosure *e = &run->enclosure;
    const struct plan *p = run->slots[0].plan;

    if (!e->wanted || e->waiting)
        return NULL;
    *ret_bytes = run->units ? (uint32_t)bytes_with(run, p, STEP_SEND, node) : 0;
    return *ret_bytes ? e->bytes + enclosed_offset(run, p, node) : (const void *)"";
}

static uint8_t *enclosed_at(const struct run *run, const struct plan *p, const struct step *step)
{
    return run->enclosure.bytes + enclosed_offset(run, p, step->peer) +
           bytes_before(run, p, STEP_SEND, step->peer, step->tag);
}

/* Copies between a message's parts and bytes that are one behind the other. */
static void message_copy(const struct message *m, uint8_t *to, const uint8_t *from)
{
    const struct fault_area *before = fault_enter(&m->run->area);

    for (uint32_t i = 0; i < m->transfer.nparts; i++) {
        const struct iovec *part = &m->parts[i];

        if (part->iov_len)
            memcpy(to ? to : part->iov_base, to ? part->iov_base : from, part->iov_len);
        if (to)
            to += part->iov_len;
        else
            from += part->iov_len;
    }
    fault_leave(before);
}

static void message_collect(struct message *m, const struct step *step)
{
    struct run *run = m->run;

    message_copy(m, enclosed_at(run, m->slot->plan, step), NULL);
    run_count(run, m->transfer.bytes);
    run->enclosure.waiting--;
    m->counted = 0;
    message_over(m, 0);
}

static void message_read(struct message *m, const struct step *step)
{
    const uint8_t *letter = m->run->letters[step->peer].bytes;

    message_copy(m, NULL,
                 letter + bytes_before(m->run, m->slot->plan, STEP_RECV, step->peer, step->tag));
    if (!bounce_is_needed(m))
        m->counted = 0;
    run_count(m->run, m->counted);
    message_arrived(m, 0);
}

uint64_t messages_issue(struct run *run, struct slot *s, uint32_t index)
{
    const struct step *step = &s->plan->steps[index];
    struct message *m = message_of(run, s, index);
    uint64_t bytes;

    if (!m)
        return 0;
    s->state[index] = STEP_ISSUED;
    bytes = m->transfer.bytes;
    if (run->held && run->spec.start != RUN_EARLY) {
        message_collect(m, step);
    } else if (step->kind == STEP_RECV && run->letters && run->letters[step->peer].bytes) {
        message_read(m, step);
    } else {
        assert(step->kind == STEP_RECV || !run->letters || !run->letters[step->peer].delivered);
        run_count(run, m->counted);
        if (step->kind == STEP_SEND && bounce_is_needed(m))
            bounce_start(m, true, message_departs);
        else
            message_start(m, step->peer, step->kind == STEP_SEND);
        bytes = s->state[index] == STEP_DONE ? bytes : 0;
    }
    return bytes;
}

/* A message whose step is done sets out from where it was collected. */
static void message_send_enclosed(struct run *run, struct slot *s, uint32_t index)
{
    const struct step *step = &s->plan->steps[index];
    struct message *m = message_of(run, s, index);

    if (!m)
        return;
    m->parts[0] = (struct iovec){ enclosed_at(run, s->plan, step), m->transfer.bytes };
    m->transfer.nparts = 1;
    m->counted = m->transfer.bytes; /* since it was collected */
    m->slot = NULL;
    message_start(m, step->peer, true);
}

static int check_letters(struct run *run, const struct run_letter *letters)
{
    const struct plan *p = NULL;
    struct slot *s;
    int r;

    if (run->units == 1) {
        r = run->opened ? 0 : unit_plan(run, 0, &s);
        if (r < 0)
            return r;
        p = run->slots[0].plan;
    }
    for (uint32_t node = 0; node < run->spec.network->nodes->nnodes; node++) {
        if (!letters[node].bytes)
            continue;
        if (run->units > 1 || letters[node].len != (p ? bytes_with(run, p, STEP_RECV, node) : 0))
            return -EPROTO;
    }
    return 0;
}

void messages_release(struct run *run, const struct run_letter *letters)
{
    struct slot *s = &run->slots[0];
    int r = letters ? check_letters(run, letters) : 0;

    if (r < 0) {
        run_fail(run, r);
        return;
    }
    run->letters = letters;
    for (uint32_t i = 0; run->enclosure.wanted && run->opened && i < s->plan->nsteps; i++) {
        const struct step *step = &s->plan->steps[i];

        if (step->kind != STEP_SEND || s->state[i] != STEP_DONE)
            continue;
        if (letters && letters[step->peer].delivered)
            run_uncount(run, bind_message_bytes(run, s->plan, step));
        else if (!run_stopped(run))
            message_send_enclosed(run, s, i);
    }
    messages_forgo(run);
}
