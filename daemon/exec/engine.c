#include "daemon/exec/engine.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/device/fault.h"

/* What one run may do on the loop thread in one turn: some hundred microseconds at the most. */
#define TURN_BYTES (1024u * 1024)

struct engine {
    struct run_means means;
    struct transport *transport; /* NULL: none */
    struct list runs;            /* struct run; whose turn is next comes first */
    uint32_t nruns;
    struct fault_area touched; /* by the transport: leads the areas of runs with messages */
    bool wants_turn;
    bool works;
};

int engine_new(struct device *device, struct transport *transport, struct staging *staging,
               struct engine **ret)
{
    struct engine *e = calloc(1, sizeof(*e));
    int r;

    if (!e)
        return -ENOMEM;
    r = fault_install();
    if (r < 0) {
        free(e);
        return r;
    }
    e->means = (struct run_means){ .device = device, .staging = staging };
    e->transport = transport;
    list_init(&e->runs);
    *ret = e;
    return 0;
}

void engine_add_device(struct engine *e, struct device *gpus)
{
    assert(!e->means.gpus && list_empty(&e->runs));
    e->means.gpus = gpus;
}

struct engine *engine_free(struct engine *e)
{
    if (!e)
        return NULL;
    fault_uninstall();
    free(e);
    return NULL;
}

/* ---- the memory of runs with messages */

static void engine_watch(struct engine *e, struct run *run)
{
    struct fault_area *area = run_area(run);

    if (!area)
        return;
    area->next = e->touched.next;
    e->touched.next = area;
}

static void engine_unwatch(struct engine *e, struct run *run)
{
    const struct fault_area *area = run_area(run);
    struct fault_area *before = &e->touched;

    while (area && before->next != area)
        before = before->next;
    if (area)
        before->next = area->next;
}

/* ---- runs */

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
    int r = run_issue(run, &e->means, &allowance);

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
    if (r == ENGINE_PENDING) {
        engine_add(e, run);
        engine_watch(e, run);
    }
    return r;
}

/* A run that is over is nobody's any more. */
static void engine_let_go(struct engine *e, struct run *run)
{
    engine_remove(e, run);
    engine_unwatch(e, run);
}

int engine_release(struct engine *e, struct run *run, const struct run_letter *letters)
{
    run_release(run, letters);
    return engine_resume(e, run);
}

int engine_resume(struct engine *e, struct run *run)
{
    int r = engine_issue(e, run);

    if (r == 0)
        engine_let_go(e, run);
    return r;
}

int engine_cancel(struct engine *e, struct run *run)
{
    run_cancel(run);
    if (!run_ended(run))
        return ENGINE_PENDING;
    engine_let_go(e, run);
    return 0;
}

static void engine_poll_transport(struct engine *e)
{
    const struct fault_area *before;

    if (!e->transport)
        return;
    before = fault_enter(&e->touched);
    e->transport->ops->poll(e->transport);
    fault_leave(before);
}

int engine_poll(struct engine *e)
{
    device_poll(e->means.device);
    if (e->means.gpus)
        device_poll(e->means.gpus);
    engine_poll_transport(e);

    /* done() may submit, cancel and free any run, so each is taken out before its turn. */
    e->wants_turn = e->means.stirred = false;
    for (uint32_t n = e->nruns; n > 0 && !list_empty(&e->runs); n--) {
        struct run *run = run_of_link(e->runs.next);

        engine_remove(e, run);
        if (engine_issue(e, run) == ENGINE_PENDING) {
            engine_add(e, run);
        } else {
            engine_unwatch(e, run);
            run_finish(run);
        }
    }
    return engine_wants_turn(e) ? ENGINE_PENDING : 0;
}

bool engine_wants_turn(const struct engine *e)
{
    return e->wants_turn || e->means.stirred || device_wants_turn(e->means.device) ||
           (e->means.gpus && device_wants_turn(e->means.gpus)) ||
           (e->transport && e->transport->ops->wants_turn(e->transport));
}

bool engine_is_busy(const struct engine *e)
{
    return e->nruns > 0 || engine_wants_turn(e);
}

bool engine_works(const struct engine *e)
{
    return e->works;
}

int engine_fd(const struct engine *e)
{
    return e->means.device->ops->fd(e->means.device);
}

int engine_gpu_fd(const struct engine *e)
{
    return e->means.gpus ? e->means.gpus->ops->fd(e->means.gpus) : -1;
}

int engine_transport_fd(const struct engine *e)
{
    return e->transport ? e->transport->ops->fd(e->transport) : -1;
}

const struct device *engine_gpus(const struct engine *e)
{
    return e->means.gpus;
}
