#include "daemon/exec/engine.h"

#include <errno.h>
#include <stdlib.h>

/* What one run may do on the loop thread in one turn: some hundred microseconds at the most. */
#define TURN_BYTES (1024u * 1024)

struct engine {
    struct device *device;
    struct list runs; /* struct run; whose turn is next comes first */
    uint32_t nruns;
    bool wants_turn;
    bool works;
};

int engine_new(struct device *device, struct engine **ret)
{
    struct engine *e = calloc(1, sizeof(*e));

    if (!e)
        return -ENOMEM;
    e->device = device;
    list_init(&e->runs);
    *ret = e;
    return 0;
}

struct engine *engine_free(struct engine *e)
{
    free(e);
    return NULL;
}

static void engine_add(struct engine *e, struct run *run)
{
    list_append(&e->runs, run_link(run));
    e->nruns++;
}

static void engine_remove(struct engine *e, struct run *run)
{
    list_remove(run_link(run));
    e->nruns--;
}

/* Return: 0, the run has ended; or ENGINE_PENDING. */
static int engine_issue(struct engine *e, struct run *run)
{
    uint64_t allowance = TURN_BYTES;
    int r = run_issue(run, e->device, &allowance);

    if (r == 0)
        return 0;
    if (r == RUN_MORE)
        e->wants_turn = true;
    return ENGINE_PENDING;
}

int engine_submit(struct engine *e, struct run *run)
{
    int r = engine_issue(e, run);

    e->works = r == ENGINE_PENDING;
    if (r == ENGINE_PENDING)
        engine_add(e, run);
    return r;
}

int engine_resume(struct engine *e, struct run *run)
{
    int r = engine_issue(e, run);

    if (r == 0)
        engine_remove(e, run);
    return r;
}

int engine_cancel(struct engine *e, struct run *run)
{
    run_cancel(run);
    if (!run_ended(run))
        return ENGINE_PENDING;
    engine_remove(e, run);
    return 0;
}

int engine_poll(struct engine *e)
{
    device_poll(e->device);

    /* done() may submit, cancel and free any run, so each is taken out before its turn. */
    e->wants_turn = false;
    for (uint32_t n = e->nruns; n > 0 && !list_empty(&e->runs); n--) {
        struct run *run = run_of_link(e->runs.next);

        engine_remove(e, run);
        if (engine_issue(e, run) == ENGINE_PENDING)
            engine_add(e, run);
        else
            run_finish(run);
    }
    return engine_wants_turn(e) ? ENGINE_PENDING : 0;
}

bool engine_wants_turn(const struct engine *e)
{
    return e->wants_turn || device_wants_turn(e->device);
}

bool engine_works(const struct engine *e)
{
    return e->works;
}

int engine_fd(const struct engine *e)
{
    return e->device->ops->fd(e->device);
}
