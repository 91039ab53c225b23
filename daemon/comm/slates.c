#include "daemon/comm/slates.h"

#include <sys/mman.h>
#include <unistd.h>

#include "daemon/comm/nodes.h"
#include "daemon/comm/op.h"
#include "daemon/device/publish.h"

int slate_open(struct comm *c, struct error *e)
{
    const struct comms_config *config = &c->comms->config;
    const size_t bytes = slate_size(c->nranks);
    void *memory = NULL;
    int r;

    if (c->slate)
        return 0;
    r = config->charge(config->books, c->uid, bytes, e);
    if (r < 0)
        return r;
    r = publish("ruccl-slate", bytes, PUBLISH_WRITABLE, &memory, &c->slate_fd);
    if (r < 0) {
        config->release(config->books, c->uid, bytes);
        return error_set_errno(e, -r, "make a slate");
    }
    c->slate = memory;
    return 0;
}

void slate_free(struct comm *c)
{
    const struct comms_config *config = &c->comms->config;
    const size_t bytes = slate_size(c->nranks);

    if (!c->slate)
        return;
    munmap(c->slate, bytes);
    close(c->slate_fd);
    c->slate = NULL;
    config->release(config->books, c->uid, bytes);
}

bool slate_keeps_step(const struct comm *c, const struct member *m)
{
    const struct op *op;

    if (!c->slate)
        return true;
    list_for_each(op, &c->ops, link) {
        if (op->sequence == m->sequence)
            return true;
        if (op->sequence < m->sequence && op->state == OP_ARRIVING &&
            !op->arrivals[comm_part(c, m->rank)])
            return false;
    }
    return m->sequence > c->newest;
}

bool slate_last_call(const struct member *m, struct last_call *ret)
{
    const struct comm *c = m->comm;
    bool found = false;

    for (uint64_t i = 0; c->slate && i < SLATE_MEETINGS; i++) {
        const struct slate_seat *seat = slate_seat(c->slate, c->nranks, i, m->rank);
        const uint64_t sequence = atomic_load(&seat->sequence);

        if (sequence < (found ? ret->sequence : m->sequence))
            continue;
        found = true;
        *ret = (struct last_call){ .kind = (enum collective_id)atomic_load(&seat->kind),
                                   .sequence = sequence,
                                   .at_us = atomic_load(&seat->at_us) };
    }
    return found;
}

uint64_t slate_ahead(const struct comm *c)
{
    uint64_t met = 0;

    for (uint64_t i = 0; c->slate && i < SLATE_MEETINGS; i++)
        met = MAX(met, slate_last_met(c->slate, c->nranks, i));
    return met > c->reached ? met - c->reached : 0;
}
