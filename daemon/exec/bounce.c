#include "daemon/exec/bounce.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/exec/bind.h"

/* Each channel's part begins on such a boundary. */
#define BOUNCE_ALIGN 64u

uint64_t bounce_plan(const struct run *run, struct slot *s)
{
    const struct plan *p = s->plan;
    uint64_t bytes = 0;

    for (uint32_t c = 0; c < p->nchannels; c++)
        s->bounce_at[c] = 0;
    for (uint32_t i = 0; i < p->nsteps; i++) {
        uint64_t *most = &s->bounce_at[p->steps[i].channel];

        if (step_is_message(&p->steps[i]))
            *most = MAX(*most, bind_message_bounced(run, p, &p->steps[i]));
    }
    for (uint32_t c = 0; c < p->nchannels; c++) {
        const uint64_t most = s->bounce_at[c];

        s->bounce_at[c] = bytes;
        bytes += div_up_u64(most, BOUNCE_ALIGN) * BOUNCE_ALIGN;
    }
    return bytes;
}

int bounce_reserve(struct message *m, uint32_t npieces)
{
    struct bounce *b = &m->bounce;
    struct bounce_copy *copies;

    b->ncopies = 0;
    b->bytes = 0;
    if (npieces <= b->room)
        return 0;
    copies = realloc(b->copies, npieces * sizeof(*copies));
    if (!copies)
        return -ENOMEM;
    b->copies = copies;
    b->room = npieces;
    return 0;
}

/* Tensors that lie one behind the other may be memory of different clients: no task has both. */
void *bounce_add(struct message *m, uint32_t tensor, void *far, uint64_t bytes)
{
    const struct slot *s = m->slot;
    struct bounce *b = &m->bounce;
    struct bounce_copy *last = b->ncopies ? &b->copies[b->ncopies - 1] : NULL;
    void *near = s->bounce + s->bounce_at[s->plan->steps[m->step].channel] + b->bytes;

    b->bytes += bytes;
    if (last && last->tensor == tensor && (char *)last->far + last->task.count == far)
        last->task.count += bytes;
    else if (bytes)
        b->copies[b->ncopies++] =
            (struct bounce_copy){ .task.count = bytes, .tensor = tensor, .far = far, .near = near };
    return near;
}

static void bounce_finish(struct message *m)
{
    struct run *run = m->run;
    int r = m->bounce.result;

    if (r == 0 && run_stopped(run))
        r = -ECANCELED;
    run->in_flight--;
    list_remove(&m->link);
    m->bounce.then(m, r);
}

static bool bounce_is_over(const struct message *m)
{
    const struct bounce *b = &m->bounce;

    return b->pending == 0 && (b->submitted == b->ncopies || b->result < 0 || run_stopped(m->run));
}

static void copy_done(struct task *t, int r)
{
    struct message *m = t->owner;
    struct bounce *b = &m->bounce;

    b->pending--;
    b->result = b->result ? b->result : r;
    if (bounce_is_over(m))
        bounce_finish(m);
}

/* Return: 0 or RUN_BUSY. The message may be over. */
static int bounce_submit(struct message *m)
{
    struct bounce *b = &m->bounce;

    while (b->submitted < b->ncopies && b->result == 0 && !run_stopped(m->run)) {
        int r = device_submit(m->run->device, &b->copies[b->submitted].task);

        if (r == DEVICE_BUSY)
            return RUN_BUSY;
        b->submitted++;
        if (r == DEVICE_PENDING)
            b->pending++;
        else
            b->result = r;
    }
    if (bounce_is_over(m))
        bounce_finish(m);
    return 0;
}

void bounce_start(struct message *m, bool out, void (*then)(struct message *m, int r))
{
    struct run *run = m->run;
    struct bounce *b = &m->bounce;

    for (uint32_t i = 0; i < b->ncopies; i++) {
        struct bounce_copy *c = &b->copies[i];

        c->task = (struct task){ .kind = TASK_COPY,
                                 .dtype = DTYPE_U8,
                                 .nsrc = 1,
                                 .ndst = 1,
                                 .src = out ? &c->far : &c->near,
                                 .dst = out ? &c->near : &c->far,
                                 .count = c->task.count,
                                 .ntasks = b->ncopies,
                                 .cancel = &run->cancel,
                                 .mappings = run->area.mappings,
                                 .nmappings = run->area.nmappings,
                                 .done = copy_done,
                                 .owner = m };
    }
    b->submitted = b->pending = 0;
    b->result = 0;
    b->then = then;
    run->in_flight++;
    list_append(&run->bouncing, &m->link);
    bounce_submit(m);
}

int bounce_resume(struct run *run)
{
    struct message *m, *tmp;
    int r = 0;

    list_for_each_safe(m, tmp, &run->bouncing, link)
        if (r == 0 && m->bounce.submitted < m->bounce.ncopies)
            r = bounce_submit(m);
    return r;
}

void bounce_cancel(struct run *run)
{
    struct message *m, *tmp;

    list_for_each_safe(m, tmp, &run->bouncing, link)
        if (bounce_is_over(m))
            bounce_finish(m);
}
