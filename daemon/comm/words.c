/* What errors and status say of ranks and their operations. */
#include "daemon/comm/slates.h"

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

struct last_call last_call(const struct member *m)
{
    struct last_call last = m->posted;

    slate_last_call(m, &last);
    return last;
}

void text_add_last_call(struct text *t, const struct last_call *last)
{
    const struct collective *row = collective_get(last->kind);

    text_add(t, "%s", row ? row->name : last->sequence ? "unknown operation" : "joined");
    if (last->sequence)
        text_add(t, " %llu", (unsigned long long)last->sequence);
}

void text_add_last(struct text *t, const struct member *m, uint64_t now)
{
    const struct last_call last = last_call(m);

    text_add_last_call(t, &last);
    text_add(t, ", %.1f s ago", (double)(now - MIN(last.at_us, now)) / 1e6);
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
