#include <inttypes.h>

#include "client/ctl/print.h"
#include "client/ctl/columns.h"

const char *text_bytes(char buffer[UNITS_BYTES], uint64_t bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    double value = (double)bytes;
    size_t unit = 0;

    /* 1023.95 would be printed as 1024.0 */
    for (; value >= 1023.95 && unit + 1 < ARRAY_SIZE(units); unit++)
        value /= 1024;
    snprintf(buffer, UNITS_BYTES, value == (double)(uint64_t)value ? "%.0f %s" : "%.1f %s", value,
             units[unit]);
    return buffer;
}

const char *text_age(char buffer[UNITS_BYTES], uint64_t us)
{
    uint64_t s = us / 1000000;

    if (us < 1000)
        snprintf(buffer, UNITS_BYTES, "%" PRIu64 " us", us);
    else if (s < 1)
        snprintf(buffer, UNITS_BYTES, "%" PRIu64 " ms", us / 1000);
    else if (s < 60)
        snprintf(buffer, UNITS_BYTES, "%" PRIu64 ".%" PRIu64 " s", s, us / 100000 % 10);
    else if (s < 3600)
        snprintf(buffer, UNITS_BYTES, "%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
    else if (s < 86400)
        snprintf(buffer, UNITS_BYTES, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s / 60 % 60);
    else
        snprintf(buffer, UNITS_BYTES, "%" PRIu64 " d %" PRIu64 " h", s / 86400, s / 3600 % 24);
    return buffer;
}

static const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

static void print_daemon(const struct status_item *d, FILE *out)
{
    char age[UNITS_BYTES], bytes[UNITS_BYTES];

    fprintf(out, "ruccld %s on %s: pid %u, %s, up %s, %u worker%s, kernels %s\n", d->daemon.version,
            d->daemon.node, d->daemon.pid, d->daemon.state, text_age(age, d->daemon.uptime_us),
            d->daemon.workers, plural(d->daemon.workers), d->daemon.kernels);
    fprintf(out, "%u session%s, %u communicator%s, %u region%s of %s\n", d->daemon.sessions,
            plural(d->daemon.sessions), d->daemon.communicators, plural(d->daemon.communicators),
            d->daemon.regions, plural(d->daemon.regions),
            text_bytes(bytes, d->daemon.region_bytes));
}

static void print_gpus(const struct status *s, FILE *out)
{
    const struct status_item *item = NULL;
    _cleanup_(columns_fini) struct columns table;

    columns_init(&table, "llrrlr");
    columns_add_row(&table, "GPU", "NAME", "MAPPINGS", "BYTES", "STATE", "FAILURES");
    while ((item = status_next(s, STATUS_GPU, item))) {
        char bytes[UNITS_BYTES];

        columns_add(&table, "%s", item->gpu.uuid);
        columns_add(&table, "%s", item->gpu.name);
        columns_add(&table, "%u", item->gpu.mappings);
        columns_add(&table, "%s", text_bytes(bytes, item->gpu.mapped_bytes));
        columns_add(&table, "%s", item->gpu.failed ? "FAILED" : "usable");
        columns_add(&table, "%" PRIu64, item->gpu.failures);
    }
    fputc('\n', out);
    columns_print(&table, "", out);
}

/* How memory of GPUs goes to the others. */
static void print_gpu_memory(const struct status *s, FILE *out)
{
    const struct status_item *peer = status_next(s, STATUS_PEER, NULL);

    if (peer && status_next(s, STATUS_GPU, NULL))
        fprintf(out, "GPU memory: %s\n", peer->peer.gpu_direct ? "direct" : "staged");
}

static void print_peers(const struct status *s, FILE *out)
{
    const struct status_item *item = NULL;
    _cleanup_(columns_fini) struct columns table;

    columns_init(&table, "lllllrr");
    columns_add_row(&table, "PEER", "ADDRESS", "NODE", "STATE", "TRANSPORT", "EXPECTING", "HEARD");
    while ((item = status_next(s, STATUS_PEER, item))) {
        char age[UNITS_BYTES];

        columns_add(&table, "%s", item->peer.host);
        columns_add(&table, "%s", item->peer.address);
        columns_add(&table, "%s", item->peer.node);
        columns_add(&table, "%s", item->peer.state);
        columns_add(&table, "%s", item->peer.transport);
        columns_add(&table, "%u", item->peer.expecting);
        columns_add(&table, "%s", text_age(age, item->peer.heard_age_us));
    }
    fputc('\n', out);
    columns_print(&table, "", out);
    print_gpu_memory(s, out);
}

static void print_sessions(const struct status *s, FILE *out)
{
    const struct status_item *item = NULL;
    _cleanup_(columns_fini) struct columns table;

    columns_init(&table, "rrrlrrrr");
    columns_add_row(&table, "SESSION", "PID", "UID", "NAME", "REGIONS", "BYTES", "IN FLIGHT",
                    "MEMBERS");
    while ((item = status_next(s, STATUS_SESSION, item))) {
        char bytes[UNITS_BYTES];

        columns_add(&table, "%" PRIu64, item->session.session);
        columns_add(&table, "%u", item->session.pid);
        columns_add(&table, "%u", item->session.uid);
        columns_add(&table, "%s", item->session.name);
        columns_add(&table, "%u", item->session.regions);
        columns_add(&table, "%s", text_bytes(bytes, item->session.region_bytes));
        columns_add(&table, "%u", item->session.in_flight);
        columns_add(&table, "%u", item->session.members);
    }
    fputc('\n', out);
    columns_print(&table, "", out);
}

/* Who is on another node has no session here, and calls that only the daemon there knows. */
static void add_call(struct columns *table, const struct status_item *m)
{
    const bool here = m->member.session != 0;
    char session[UNITS_BYTES] = "", sequence[UNITS_BYTES] = "", age[UNITS_BYTES] = "";

    if (here) {
        snprintf(session, sizeof(session), "%" PRIu64, m->member.session);
        snprintf(sequence, sizeof(sequence), "%" PRIu64, m->member.sequence);
        text_age(age, m->member.last_age_us);
    }
    columns_add(table, "%s", session);
    columns_add(table, "%s", sequence);
    columns_add(table, "%s", m->member.last);
    columns_add(table, "%s", age);
}

static void print_members(const struct status *s, const struct status_item *c, FILE *out)
{
    const bool waiting = c->communicator.oldest_kind != COLLECTIVE_NONE;
    const struct status_item *item = NULL;
    _cleanup_(columns_fini) struct columns table;

    columns_init(&table, "rrrrlrl");
    if (!status_next_member(s, c->communicator.communicator, NULL))
        return;
    columns_add_row(&table, "RANK", "PID", "SESSION", "NEXT", "LAST", "AGO", "");
    while ((item = status_next_member(s, c->communicator.communicator, item))) {
        columns_add(&table, "%u", item->member.rank);
        columns_add(&table, "%u", item->member.pid);
        add_call(&table, item);
        columns_add(&table, "%s", !waiting ? "" : item->member.arrived ? "arrived" : "MISSING");
    }
    columns_print(&table, "  ", out);
}

static void print_oldest(const struct status_item *c, FILE *out)
{
    const struct collective *kind = collective_get(c->communicator.oldest_kind);
    char age[UNITS_BYTES];

    fprintf(out, "  oldest unfinished: %s %" PRIu64 ", %s, for %s\n",
            kind ? kind->name : "operation", c->communicator.oldest_sequence,
            c->communicator.oldest_state, text_age(age, c->communicator.oldest_age_us));
    if (*c->communicator.oldest_arrived)
        fprintf(out, "    arrived: %s\n", c->communicator.oldest_arrived);
    if (*c->communicator.oldest_missing)
        fprintf(out, "    missing: %s\n", c->communicator.oldest_missing);
}

static void print_communicator(const struct status *s, const struct status_item *c, FILE *out)
{
    fprintf(out, "\ncommunicator %" PRIu64, c->communicator.communicator);
    if (*c->communicator.label)
        fprintf(out, " \"%s\"", c->communicator.label);
    fprintf(out, ": %s, %u of %u ranks present, %" PRIu64 " operation%s completed\n",
            c->communicator.state, c->communicator.present, c->communicator.nranks,
            c->communicator.sequence, plural(c->communicator.sequence));
    if (*c->communicator.failure)
        fprintf(out, "  failure: %s\n", c->communicator.failure);
    if (c->communicator.oldest_kind != COLLECTIVE_NONE)
        print_oldest(c, out);
    print_members(s, c, out);
}

void print_text(const struct status *s, FILE *out)
{
    const struct status_item *item = NULL;

    while ((item = status_next(s, STATUS_DAEMON, item)))
        print_daemon(item, out);
    if (status_next(s, STATUS_GPU, NULL))
        print_gpus(s, out);
    if (status_next(s, STATUS_PEER, NULL))
        print_peers(s, out);
    if (status_next(s, STATUS_SESSION, NULL))
        print_sessions(s, out);
    item = NULL;
    while ((item = status_next(s, STATUS_COMMUNICATOR, item)))
        print_communicator(s, item, out);
}
