/* What an operator sees of the communicators. */
#include <stdlib.h>

#include "daemon/comm/forming.h"
#include "daemon/comm/nodes.h"
#include "daemon/comm/op.h"
#include "daemon/comm/slates.h"

static const struct op *oldest_op(const struct comm *c)
{
    const struct op *a = list_empty(&c->ops) ? NULL : list_first(&c->ops, struct op, link);
    const struct op *b = list_empty(&c->pairs) ? NULL : list_first(&c->pairs, struct op, link);

    return !a || (b && b->first_us < a->first_us) ? b : a;
}

static void ranks_text(const struct op *op, bool arrived, struct text *ret)
{
    uint32_t *ranks = malloc(MAX(op->comm->nranks, 2) * sizeof(*ranks));
    uint32_t n = ranks ? op_ranks(op, arrived, ranks) : 0;

    if (n)
        text_add_ranks(ret, ranks, n);
    free(ranks);
}

static bool has_arrived(const struct op *op, uint32_t rank)
{
    if (op->sequence)
        return op->arrivals[comm_part(op->comm, rank)] != NULL;
    return (rank == op->source && op->arrivals[0]) || (rank == op->destination && op->arrivals[1]);
}

static void emit_comm(const struct comm *c, uint64_t now,
                      void (*emit)(void *context, const struct status_item *item), void *context)
{
    const struct op *op = oldest_op(c);
    struct text arrived = { 0 }, missing = { 0 };
    struct status_item item = {
        .kind = STATUS_COMMUNICATOR,
        .communicator = { .communicator = c->number,
                          .sequence = c->completed + slate_ahead(c),
                          .nranks = c->nranks,
                          .present = c->ntaken + c->nremote,
                          .label = c->label,
                          .state = comm_state_name(c->state),
                          .failure = c->failure.text },
    };

    if (op) {
        ranks_text(op, true, &arrived);
        ranks_text(op, false, &missing);
        item.communicator.oldest_kind = op_kind(op);
        item.communicator.oldest_sequence = op->sequence;
        item.communicator.oldest_age_us = now - op->first_us;
        item.communicator.oldest_state = op_state_name(op->state);
        item.communicator.oldest_arrived = arrived.s;
        item.communicator.oldest_missing = missing.s;
    }
    emit(context, &item);
}

static void emit_member(const struct member *m, uint64_t now,
                        void (*emit)(void *context, const struct status_item *item), void *context)
{
    const struct op *op = oldest_op(m->comm);
    const struct last_call did = last_call(m);
    struct text last = { 0 };
    struct status_item item = {
        .kind = STATUS_MEMBER,
        .member = { .communicator = m->comm->number,
                    .session = m->session,
                    .sequence = MAX(m->sequence, did.sequence + 1),
                    .last_age_us = now - MIN(did.at_us, now),
                    .rank = m->rank,
                    .pid = (uint32_t)m->pid,
                    .arrived = op && has_arrived(op, m->rank) },
    };

    text_add_last_call(&last, &did);
    item.member.last = last.s;
    emit(context, &item);
}

/* Of a rank of another node is known where it is, and whether its node has spoken. */
static void emit_remote(const struct comm *c, uint32_t rank,
                        void (*emit)(void *context, const struct status_item *item), void *context)
{
    const uint32_t node = c->seats[rank].node;
    const struct op *op = oldest_op(c);
    struct text where = { 0 };
    struct status_item item = {
        .kind = STATUS_MEMBER,
        .member = { .communicator = c->number, .rank = rank, .pid = (uint32_t)c->seats[rank].pid }
    };

    text_add(&where, "on %s", forming_host(c, rank));
    item.member.last = where.s;
    item.member.arrived = op && op_is_wide(op) && op->remotes[node];
    emit(context, &item);
}

void comms_status(const struct comms *comms, uid_t uid, uint64_t now,
                  void (*emit)(void *context, const struct status_item *item), void *context)
{
    const struct comm *c;

    list_for_each(c, &comms->comms, link) {
        if (uid != 0 && !comms_same_uid(comms, uid, c->uid))
            continue;
        emit_comm(c, now, emit, context);
        for (uint32_t r = 0; r < c->nranks; r++) {
            if (c->seats[r].member)
                emit_member(c->seats[r].member, now, emit, context);
            else if (c->seats[r].state == SEAT_REMOTE && (c->nodes || c->forming))
                emit_remote(c, r, emit, context);
        }
    }
}
