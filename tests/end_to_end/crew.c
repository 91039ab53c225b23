#include "tests/end_to_end/crew.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "shared/slate.h"
#include "tests/end_to_end/actors.h"
#include "tests/unit/unit.h"

void crew_check(struct crew_rank *me, bool holds, const char *what)
{
    if (!holds && !me->failure[0])
        snprintf(me->failure, sizeof(me->failure), "%s", what);
}

static void *play_rank(void *arg)
{
    struct crew_rank *me = arg;

    pthread_barrier_wait(me->start);
    me->result = me->play(me);
    if (me->result < 0)
        me->error = *ruccl_last_error();
    return NULL;
}

void crew_start(struct crew *c, struct world *w, crew_play_fn play, void *context)
{
    c->nranks = w->nranks;
    assert_int_equal(pthread_barrier_init(&c->start, NULL, w->nranks), 0);
    for (uint32_t r = 0; r < w->nranks; r++) {
        c->ranks[r] = (struct crew_rank){ .world = w,
                                          .comm = w->comms[r],
                                          .rank = r,
                                          .context = context,
                                          .play = play,
                                          .start = &c->start };
        assert_int_equal(pthread_create(&c->ranks[r].thread, NULL, play_rank, &c->ranks[r]), 0);
    }
}

bool crew_ends(struct crew *c, unsigned within_ms)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += within_ms / 1000;
    until.tv_nsec += within_ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    for (uint32_t r = 0; r < c->nranks; r++)
        if (c->ranks[r].thread && pthread_timedjoin_np(c->ranks[r].thread, NULL, &until) != 0)
            return false;
        else
            c->ranks[r].thread = 0;
    pthread_barrier_destroy(&c->start);
    for (uint32_t r = 0; r < c->nranks; r++)
        if (c->ranks[r].failure[0])
            fail_msg("rank %u: %s", r, c->ranks[r].failure);
    return true;
}

void crew_run(struct crew *c, struct world *w, crew_play_fn play, void *context)
{
    crew_start(c, w, play, context);
    if (!crew_ends(c, HARNESS_PATIENCE_US / 1000))
        fail_msg("not all ranks have ended after %d s", HARNESS_PATIENCE_US / 1000000);
}

void crew_expect_success(const struct crew *c, const char *what)
{
    for (uint32_t r = 0; r < c->nranks; r++)
        if (c->ranks[r].result < 0)
            fail_msg("%s: rank %u: %s: %s", what, r, ruccl_code_name(c->ranks[r].result),
                     c->ranks[r].error.text);
}

void crew_expect_failure(const struct crew *c, enum ruccl_code code, const char *words)
{
    char missing[128];

    for (uint32_t r = 0; r < c->nranks; r++) {
        const struct crew_rank *rank = &c->ranks[r];

        if (rank->result != -(int)code)
            fail_msg("rank %u: %s, not %s: %s", r,
                     rank->result == 0 ? "success" : ruccl_code_name(rank->result),
                     ruccl_code_name((int)code), rank->error.text);
        if (!words_in(rank->error.text, words, missing))
            fail_msg("rank %u: '%s' is not in: %s", r, missing, rank->error.text);
        assert_string_equal(rank->error.text, c->ranks[0].error.text);
    }
}

void crew_join(struct world *w, const struct harness *h, uint32_t nranks,
               const struct ruccl_join_options *options)
{
    struct ruccl_work *works[HARNESS_RANKS];
    char id[RUCCL_ID_BYTES];

    *w = (struct world){ .nranks = nranks, .nconns = nranks };
    for (uint32_t r = 0; r < nranks; r++)
        assert_int_equal(ruccl_connect(h->socket, "rank", &w->conns[r]), 0);
    assert_int_equal(ruccl_new_id(w->conns[0], id), 0);
    for (uint32_t r = 0; r < nranks; r++)
        assert_int_equal(
            ruccl_join_async(w->conns[r], id, r, nranks, options, &w->comms[r], &works[r]), 0);
    for (uint32_t r = 0; r < nranks; r++)
        expect_done(works[r], "join");
}

static const struct slate *find_slate(void)
{
    uintptr_t first = 0;
    char line[512];
    FILE *f = fopen("/proc/self/maps", "re");

    while (f && !first && fgets(line, sizeof(line), f))
        if (!strstr(line, "/memfd:ruccl-slate") || sscanf(line, "%" SCNxPTR "-", &first) != 1)
            first = 0;
    if (f)
        fclose(f);
    return (const struct slate *)first;
}

bool crew_has_slate(void)
{
    return find_slate() != NULL;
}

bool crew_has_met(uint32_t nranks, uint64_t sequence)
{
    const struct slate *s = find_slate();

    return s && slate_last_met(s, nranks, sequence % SLATE_MEETINGS) == sequence;
}
