#include "client/perf/scale.h"

#include <sys/resource.h>

#include "client/perf/bench.h"
#include "client/perf/ranks.h"
#include "client/perf/report.h"
#include "client/perf/scale_load.h"
#include "client/perf/scale_table.h"

#define SMALL_BYTES 8u
#define SMALL_CALLS 500u
#define LARGE_BYTES (UINT64_C(16) << 20)
#define LARGE_CALLS 20u

#define SESSION_FDS 2u  /* of a client's */
#define OTHER_FDS   64u /* of a process */

#define SCALE_REFUSED (-1) /* beside the exit statuses: there may not be so many */

/* ---------------------------------------------------------------- how long a call takes */

static struct load load_of(const struct probe_options *o, enum axis_id id, uint64_t n)
{
    struct load load = {
        .nmembers = id == AXIS_RANKS ? (uint32_t)n : 2,
        .ncomms = id == AXIS_COMMUNICATORS ? (uint32_t)n : 1,
        .nidle = id == AXIS_SESSIONS ? (uint32_t)n : 0,
        .bytes = id == AXIS_CHUNKS ? LARGE_BYTES : SMALL_BYTES,
        .budget = RUCCL_NO_BUDGET,
    };
    uint64_t calls = id == AXIS_CHUNKS ? LARGE_CALLS : SMALL_CALLS;

    if (id == AXIS_CHUNKS)
        load.budget = load.nmembers * div_up_u64(LARGE_BYTES / 4, n) * 4;
    if (o->iters != OPTIONS_AUTO)
        calls = o->iters;
    /* Each communicator as often as any other. */
    load.calls = div_up_u64(div_up_u64(calls, LOAD_BATCHES), load.ncomms) * load.ncomms;
    return load;
}

/* The slowest member's, over the batches. */
static double us_per_call(const struct board *b, const struct load *load)
{
    uint64_t times_ns[LOAD_BATCHES] = { 0 };

    for (uint32_t i = 0; i < LOAD_BATCHES; i++)
        for (uint32_t rank = 0; rank < load->nmembers; rank++)
            times_ns[i] = MAX(times_ns[i], board_times(b, rank)[i]);
    return (double)report_median(times_ns, LOAD_BATCHES) / 1e3 / (double)load->calls;
}

/* Of a job that came to `r`. */
static int status_of(const struct ranks *ranks, int r, int signal)
{
    if (r == RANKS_STOPPED)
        return BENCH_SIGNAL + signal;
    if (r == RANKS_ENDED)
        return BENCH_GOOD;
    for (uint32_t rank = 0; ranks->board && rank < ranks->job.nranks; rank++)
        if (ranks->board->ranks[rank].error.code == RUCCL_QUOTA)
            return SCALE_REFUSED; /* stderr says by which quota */
    return BENCH_BAD;
}

static bool has_files_for(const struct load *load)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) < 0 ||
        files.rlim_max >= (rlim_t)load->nidle * SESSION_FDS + OTHER_FDS)
        return true;
    fprintf(stderr, "ruccl-perf: %u sessions need more files than the hard limit of %llu\n",
            load->nidle, (unsigned long long)files.rlim_max);
    return false;
}

static int measure_time(const struct site *site, const struct load *load, double *ret_us)
{
    const struct ranks_job job = { load->nmembers + (load->nidle > 0), LOAD_BATCHES, load_run,
                                   load };
    struct ranks ranks;
    int status, signal = 0;

    if (!has_files_for(load))
        return SCALE_REFUSED;
    status = status_of(&ranks, ranks_play(&ranks, &job, site, &signal), signal);
    if (status == BENCH_GOOD)
        *ret_us = us_per_call(ranks.board, load);
    ranks_stop(&ranks);
    return status;
}

static int scale_time(const struct site *site, const struct probe_options *o, enum axis_id id,
                      struct scale_table *table)
{
    int status = BENCH_GOOD;

    for (uint64_t n = 0; status == BENCH_GOOD && (n = probe_next_n(o, table->axis, n));) {
        const struct load load = load_of(o, id, n);
        struct scale_row row = { .n = n };

        status = measure_time(site, &load, &row.value);
        if (status == BENCH_GOOD && scale_table_add(table, &row) < 0)
            return BENCH_BAD;
    }
    return status;
}

/* ---------------------------------------------------------------- what the daemon holds */

/* The board has the first so many. */
static int print_memory(const struct probe_options *o, const struct board *b,
                        struct scale_table *table)
{
    const uint64_t *results = board_times(b, 0);
    uint64_t n = 0;

    for (uint64_t i = 0; i < b->niters; i++, results += 2) {
        n = probe_next_n(o, table->axis, n);
        if (scale_table_add(table,
                            &(struct scale_row){ n, (double)results[0], (double)results[1] }) < 0)
            return BENCH_BAD;
    }
    return BENCH_GOOD;
}

static int scale_memory_at(const struct site *site, const struct probe_options *o, enum axis_id id,
                           struct scale_table *table)
{
    const struct memory_load load = { id, site->daemon->pid, o };
    const struct ranks_job job = { 1, 2 * MEMORY_POINTS_MAX, memory_load_run, &load };
    struct ranks ranks;
    int status, signal = 0;

    status = status_of(&ranks, ranks_play(&ranks, &job, site, &signal), signal);
    if ((status == BENCH_GOOD || status == SCALE_REFUSED) &&
        print_memory(o, ranks.board, table) != BENCH_GOOD)
        status = BENCH_BAD;
    ranks_stop(&ranks);
    return status;
}

/* Of a fresh daemon: what one has held before, it fills again without growing. */
static int scale_memory(int signal_fd, const struct probe_options *o, enum axis_id id,
                        struct scale_table *table)
{
    struct own_daemon daemon = OWN_DAEMON_INIT;
    int status = BENCH_BAD;

    if (own_daemon_start(&daemon) == 0)
        status = scale_memory_at(&(struct site){ daemon.socket, &daemon, signal_fd }, o, id, table);
    own_daemon_stop(&daemon);
    return status;
}

/* ---------------------------------------------------------------- the command */

/* `title`: what to print above the first row of all; "" once that has been printed. */
static int scale_axis(const struct site *site, const struct probe_options *o, enum axis_id id,
                      char *title)
{
    const struct axis *axis = axis_get(id);
    struct scale_table table;
    int status;

    if (axis->memory && !site->daemon) {
        fprintf(stderr, "ruccl-perf: %s is skipped: it is measured of a private daemon only\n",
                axis->name);
        return BENCH_GOOD;
    }
    scale_table_init(&table, stdout, axis, title, o->json);
    status = axis->memory ? scale_memory(site->signal_fd, o, id, &table)
                          : scale_time(site, o, id, &table);
    if (table.nrows)
        *title = '\0';
    if (status == SCALE_REFUSED) {
        fprintf(stderr, "ruccl-perf: the rest of %s is skipped\n", axis->name);
        status = BENCH_GOOD;
    }
    return status == BENCH_GOOD && scale_table_end(&table) < 0 ? BENCH_BAD : status;
}

static int scale_at(const struct site *site, const void *options)
{
    const struct probe_options *o = options;
    int status = BENCH_GOOD;
    char title[512];

    snprintf(title, sizeof(title),
             "# ruccl-perf scale: all_reduce, 2 ranks unless said otherwise, %s daemon\n"
             "# of 8 B, or 16 MiB where n counts chunks; median over %u batches of calls, one\n"
             "# after the other; exponent: p of growth with n^p since the row above\n",
             site_daemon(site), LOAD_BATCHES);
    for (uint32_t id = 0; status == BENCH_GOOD && id < AXES; id++)
        if (o->axes & 1u << id)
            status = scale_axis(site, o, (enum axis_id)id, title);
    return status;
}

int scale_run(int argc, char **argv)
{
    struct probe_options o;
    int status;

    return probe_take_arguments(argc, argv, &o, &status) ? site_run(o.socket, scale_at, &o)
                                                         : status;
}
