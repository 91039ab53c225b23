/* What errors and status say of ranks and their operations. */
#include "daemon/comm/group.h"

void text_add_operation(struct text *t, const struct comm *c, enum collective_id kind,
                        uint64_t sequence)
{
    const struct collective *row = collective_get(kind);

    text_add(t, "%s", row ? row->name : "operation");
    if (sequence)
        text_add(t, " %llu", (unsigned long long)sequence);
    if (c->label[0])
        text_add(t, " of '%s'", c->label);
}

void text_add_label(struct text *t, const struct comm *c)
{
    if (c->label[0])
        text_add(t, "'%s': ", c->label);
}

void text_add_rank(struct text *t, uint32_t rank, pid_t pid, const char *host)
{
    text_add(t, "rank %u (pid %d on %s)", rank, (int)pid, host);
}

void text_add_last_call(struct text *t, const struct member *m)
{
    const struct collective *row = collective_get(m->last_kind);

    text_add(t, "%s", row ? row->name : m->last_sequence ? "unknown operation" : "joined");
    if (m->last_sequence)
        text_add(t, " %llu", (unsigned long long)m->last_sequence);
}

void text_add_last(struct text *t, const struct member *m, uint64_t now)
{
    text_add_last_call(t, m);
    text_add(t, ", %.1f s ago", (double)(now - m->last_us) / 1e6);
}

void gone_error(const struct member *m, enum error_code code, const char *what, uint64_t now,
                struct error *ret)
{
    struct text t = { 0 };

    text_add_label(&t, m->comm);
    text_add_rank(&t, m->rank, m->pid, m->comm->comms->config.host);
    text_add(&t, " %s; last: ", what);
    text_add_last(&t, m, now);
    error_set(ret, code, "%s", t.s);
    error_add_rank(ret, m->rank);
}
