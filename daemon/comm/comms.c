/* All communicators of this node together. */
#include "daemon/comm/comm.h"

#include <assert.h>
#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/group.h"
#include "daemon/comm/op.h"
#include "daemon/comm/rendezvous.h"

/* An id has to hold it. */
#define ADDRESS_MAX (CODEC_ID_MAX - RENDEZVOUS_ID_BYTES)

int comms_new(const struct comms_config *config, const struct comm_events *events,
              struct comms **ret)
{
    struct comms *comms;

    if (config->link_ops && strlen(config->address) > ADDRESS_MAX)
        return -EINVAL;
    if (sodium_init() < 0)
        return -ENOSYS;
    comms = calloc(1, sizeof(*comms));
    if (!comms)
        return -ENOMEM;
    comms->config = *config;
    if (config->table)
        comms->table = *config->table;
    else
        table_init(&comms->table, config->chunk_bytes);
    comms->config.table = NULL; /* it was the caller's */
    comms->events = *events;
    comms->deadline = TIME_NEVER;
    list_init(&comms->comms);
    list_init(&comms->tickets);
    *ret = comms;
    return 0;
}

struct comms *comms_free(struct comms *comms)
{
    if (!comms)
        return NULL;
    assert(list_empty(&comms->comms));
    rendezvous_tick(comms, TIME_NEVER);
    map_fini(&comms->nodes);
    free(comms);
    return NULL;
}

uint64_t comms_deadline(const struct comms *comms)
{
    return comms->deadline;
}

void comms_note_deadline(struct comms *comms, uint64_t at)
{
    comms->deadline = MIN(comms->deadline, at);
}

bool comms_same_uid(const struct comms *comms, uid_t a, uid_t b)
{
    return a == b && a != comms->config.overflow_uid;
}

/* Fails the communicator if one of its operations is overdue; else notes when that may be. */
static void tick_ops(struct comm *c, struct list *ops, uint64_t now)
{
    struct op *op;

    list_for_each(op, ops, link) {
        if (op->deadline_us <= now && op_is_overdue(op, now)) {
            struct error e = { 0 };

            op_timeout_error(op, now, &e);
            comm_fail(c, &e, now);
            return;
        }
        comms_note_deadline(c->comms, op->deadline_us);
        if (op->sequence && op->state == OP_ARRIVING)
            return; /* those behind it arrived later */
    }
}

void comms_tick(struct comms *comms, uint64_t now)
{
    struct comm *c, *tmp;

    if (now < comms->deadline)
        return;
    comms->deadline = TIME_NEVER;
    comms_note_deadline(comms, rendezvous_tick(comms, now));
    list_for_each_safe(c, tmp, &comms->comms, link) {
        comm_hold(c);
        if (c->forming_deadline_us <= now)
            rendezvous_expire(c, now);
        else
            comms_note_deadline(comms, c->forming_deadline_us);
        tick_ops(c, &c->ops, now);
        tick_ops(c, &c->pairs, now);
        comm_drop(c);
    }
}

void comms_set_max(struct comms *comms, uint32_t max_comms)
{
    comms->config.max_comms = max_comms;
}

void comms_stop(struct comms *comms)
{
    comms->stopping = true;
}

uint32_t comms_unfinished(const struct comms *comms)
{
    const struct comm *c;
    uint32_t n = 0;

    list_for_each(c, &comms->comms, link)
        n += c->nops + (c->state == COMM_FORMING);
    return n;
}

void comms_fail_all(struct comms *comms, const struct error *cause, uint64_t now)
{
    struct comm *c, *tmp;

    list_for_each_safe(c, tmp, &comms->comms, link) {
        comm_hold(c);
        comm_fail(c, cause, now);
        comm_drop(c);
    }
}

uint32_t comms_count(const struct comms *comms)
{
    return comms->ncomms;
}
