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
    const struct contents *c = run->spec.contents;
    struct enclosure *e = &run->enclosure;
    uint64_t bytes;
    struct slot *s;
    int r;

    assert(!c || run->units <= 1);
    e->wanted = run->spec.start == RUN_ENCLOSING && (c || run->units == 0);
    e->waiting = 0;
    if (!e->wanted || run->units == 0)
        return 0;
    r = unit_plan(run, 0, &s);
    if (r < 0)
        return r;
    bytes = c->leaves_at[run->spec.network->nodes->nnodes];
    /* what is not delivered is under way beside all that the plan has */
    e->wanted = bytes <= UINT32_MAX && bytes + s->planned_bytes <= run->spec.budget_bytes;
    if (!e->wanted)
        return 0;
    e->waiting = c->nsends;
    return enclosure_reserve(e, bytes);
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
    const struct contents *c = run->spec.contents;
    const struct enclosure *e = &run->enclosure;

    if (!e->wanted || e->waiting)
        return NULL;
    *ret_bytes = run->units ? (uint32_t)(c->leaves_at[node + 1] - c->leaves_at[node]) : 0;
    return *ret_bytes ? e->bytes + c->leaves_at[node] : (const void *)"";
}

/* The step of a message that went, or came, in a letter. */
static void letter_done(struct run *run, struct slot *s, uint32_t step)
{
    if (fault_found(&run->area))
        run_fail(run, -EFAULT);
    else
        run_step_done(run, s, step);
}

static void message_collect(struct run *run, struct slot *s, uint32_t step)
{
    const struct contents *c = run->spec.contents;

    bind_copy(run, s, step, run->enclosure.bytes + c->at[step], NULL);
    run_count(run, c->bytes[step]);
    run->enclosure.waiting--;
    letter_done(run, s, step);
}

/* What bounces is copied on from where it bounces. */
static void message_read_far(struct run *run, struct slot *s, uint32_t step, const uint8_t *letter)
{
    struct message *m = message_of(run, s, step);
    const struct fault_area *before;

    if (!m)
        return;
    before = fault_enter(&run->area);
    for (uint32_t i = 0; i < m->transfer.nparts; letter += m->parts[i++].iov_len)
        if (m->parts[i].iov_len)
            memcpy(m->parts[i].iov_base, letter, m->parts[i].iov_len);
    fault_leave(before);
    if (!bounce_is_needed(m))
        m->counted = 0;
    run_count(run, m->counted);
    message_arrived(m, 0);
}

static void message_read(struct run *run, struct slot *s, uint32_t step)
{
    const uint8_t *letter = (const uint8_t *)run->letters[s->plan->steps[step].peer].bytes +
                            run->spec.contents->at[step];

    if (run->bounces) {
        message_read_far(run, s, step, letter);
    } else {
        bind_copy(run, s, step, NULL, letter);
        letter_done(run, s, step);
    }
}

/* Return: the bytes that were moved at once. */
static uint64_t message_set_out(struct run *run, struct slot *s, uint32_t index)
{
    const struct step *step = &s->plan->steps[index];
    struct message *m = message_of(run, s, index);
    uint64_t bytes;

    if (!m)
        return 0;
    assert(step->kind == STEP_RECV || !run->letters || !run->letters[step->peer].delivered);
    bytes = m->transfer.bytes;
    run_count(run, m->counted);
    if (step->kind == STEP_SEND && bounce_is_needed(m))
        bounce_start(m, true, message_departs);
    else
        message_start(m, step->peer, step->kind == STEP_SEND);
    return s->state[index] == STEP_DONE ? bytes : 0;
}

uint64_t messages_issue(struct run *run, struct slot *s, uint32_t index)
{
    const struct step *step = &s->plan->steps[index];

    s->state[index] = STEP_ISSUED;
    if (run->held && run->spec.start != RUN_EARLY)
        message_collect(run, s, index);
    else if (step->kind == STEP_RECV && run->letters && run->letters[step->peer].bytes)
        message_read(run, s, index);
    else
        return message_set_out(run, s, index);
    /* in a letter */
    return run->spec.contents->bytes[index];
}

/* A message whose step is done sets out from where it was collected. */
static void message_send_enclosed(struct run *run, struct slot *s, uint32_t index)
{
    struct message *m = message_of(run, s, index);

    if (!m)
        return;
    m->parts[0] =
        (struct iovec){ run->enclosure.bytes + run->spec.contents->at[index], m->transfer.bytes };
    m->transfer.nparts = 1;
    m->counted = m->transfer.bytes; /* since it was collected */
    m->slot = NULL;
    message_start(m, s->plan->steps[index].peer, true);
}

/* Whether all that came is as long as the plan has it. */
static bool letters_fit(const struct run *run, const struct run_letter *letters)
{
    const struct contents *c = run->spec.contents;

    for (uint32_t node = 0; node < run->spec.network->nodes->nnodes; node++)
        if (letters[node].bytes &&
            (run->units ? !c || letters[node].len != c->comes[node] : letters[node].len != 0))
            return false;
    return true;
}

void messages_release(struct run *run, const struct run_letter *letters)
{
    struct slot *s = &run->slots[0];

    if (letters && !letters_fit(run, letters)) {
        run_fail(run, -EPROTO);
        return;
    }
    run->letters = letters;
    for (uint32_t i = 0; run->enclosure.wanted && run->opened && i < s->plan->nsteps; i++) {
        const struct step *step = &s->plan->steps[i];

        if (step->kind != STEP_SEND || s->state[i] != STEP_DONE)
            continue;
        if (letters && letters[step->peer].delivered)
            run_uncount(run, run->spec.contents->bytes[i]);
        else if (!run_stopped(run))
            message_send_enclosed(run, s, i);
    }
    messages_forgo(run);
}
