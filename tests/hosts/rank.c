/*
 * One rank: connects to the daemon at $RUCCL_SOCKET, reads commands, and answers each with a line:
 *
 *     ok KEY=VALUE ...               a collective's digest, peak, chunks, algorithm; an id; a size
 *     error code=NAME ranks=R,R,... wrote=0|1 text=...
 *     wrong ...                      what may never be: bytes around the output written, say
 *
 * At the end of its input it leaves without a word, as a rank that dies does.
 *
 *     rank [GPU]        the number of the GPU whose memory tensors are in, of the tests' driver:
 *                       their bytes are looked at as they are
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base.h"
#include "shared/cuda.h"
#include "shared/error.h"
#include "tests/end_to_end/reference.h"
#include "tests/hosts/command.h"

#define COMMS_MAX 16

static struct ruccl_conn *conn;

static struct {
    const struct cuda *api; /* NULL: tensors are in memory of the host */
    CUstream receive;
} gpu;

/* ---- answers */

static void spell_code(const struct ruccl_error *e, char ret[64])
{
    snprintf(ret, 64, "%s", ruccl_code_name((int)e->code));
    for (char *at = ret; *at; at++)
        if (*at == ' ')
            *at = '-';
}

static void answer_error(const struct ruccl_error *e, bool wrote)
{
    char code[64];

    spell_code(e, code);
    printf("error code=%s ranks=", code);
    for (uint32_t i = 0; i < e->nranks && i < ARRAY_SIZE(e->ranks); i++)
        printf("%s%u", i ? "," : "", e->ranks[i]);
    printf(" wrote=%d text=%s\n", wrote, e->text);
}

static void answer_call(int r)
{
    if (r < 0)
        answer_error(ruccl_last_error(), false);
    else
        printf("ok\n");
}

/* ---- communicators */

static struct {
    bool used;
    char name[COMMAND_NAME_MAX + 1];
    struct ruccl_comm comm;
} comms[COMMS_MAX];

static struct ruccl_comm *find_comm(const char *name)
{
    for (int i = 0; i < COMMS_MAX; i++)
        if (comms[i].used && !strcmp(comms[i].name, name))
            return &comms[i].comm;
    return NULL;
}

/* Keeps the communicator under a name that no other has. */
static void keep_comm(const char *name, struct ruccl_comm comm)
{
    for (int i = 0; i < COMMS_MAX; i++)
        if (!comms[i].used) {
            comms[i].used = true;
            comms[i].comm = comm;
            snprintf(comms[i].name, sizeof(comms[i].name), "%s", name);
            return;
        }
    printf("wrong more than %d communicators\n", COMMS_MAX);
    exit(2);
}

static void drop_comm(const char *name)
{
    for (int i = 0; i < COMMS_MAX; i++)
        if (comms[i].used && !strcmp(comms[i].name, name)) {
            comms[i].used = false;
            return;
        }
}

static void new_id(void)
{
    char id[RUCCL_ID_BYTES];

    if (ruccl_new_id(conn, id) < 0)
        answer_error(ruccl_last_error(), false);
    else
        printf("ok id=%s\n", id);
}

static void join(const struct command *c)
{
    const struct ruccl_join_options options = { .label = "hosts",
                                                .timeout_us = c->timeout_s * 1000000,
                                                .algorithm = c->algorithm };
    struct ruccl_comm comm;
    int r = ruccl_join(conn, c->id, (uint32_t)c->rank, (uint32_t)c->nranks, &options, &comm);

    if (r == 0)
        keep_comm(c->comm, comm);
    answer_call(r);
}

static void split(const struct command *c, struct ruccl_comm comm)
{
    struct ruccl_comm child;

    if (ruccl_split(comm, (int32_t)c->color, (int32_t)c->key, &child) < 0) {
        answer_error(ruccl_last_error(), false);
    } else if (!child.member) {
        printf("ok nranks=0\n");
    } else {
        keep_comm(c->into, child);
        printf("ok nranks=%u rank=%u\n", ruccl_world_size(child), ruccl_rank(child));
    }
}

static void leave(const struct command *c, struct ruccl_comm comm)
{
    int r = ruccl_leave(comm);

    drop_comm(c->comm);
    answer_call(r);
}

/* ---- collectives */

/* Of one command: its tensors, and what the input was. */
struct stage {
    const struct command *command;
    struct scene scene;
    struct ruccl_comm comm;
    uint32_t rank;
    uint64_t in_bytes;
    struct slab in, out;
    uint8_t *given;
};

static void *take(uint64_t bytes)
{
    void *memory = calloc(1, bytes);

    if (!memory)
        abort();
    return memory;
}

static void must(CUresult result, const char *call)
{
    if (!result)
        return;
    printf("wrong %s: %s\n", call, cuda_error_name(gpu.api, result));
    exit(2);
}

static void open_gpu(int ordinal)
{
    struct error e = { 0 };
    CUcontext context;

    if (cuda_load(&gpu.api, &e) < 0) {
        printf("wrong %s\n", e.text);
        exit(2);
    }
    must(gpu.api->cuDevicePrimaryCtxRetain(&context, ordinal), "cuDevicePrimaryCtxRetain");
    must(gpu.api->cuCtxSetCurrent(context), "cuCtxSetCurrent");
    must(gpu.api->cuStreamCreate(&gpu.receive, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

static int take_slab_on_gpu(struct slab *s, uint64_t bytes)
{
    CUdeviceptr ptr;
    int r;

    must(gpu.api->cuMemAlloc_v2(&ptr, bytes), "cuMemAlloc");
    r = ruccl_register_cuda(conn, (void *)(uintptr_t)ptr, bytes, &s->region);
    if (r < 0)
        gpu.api->cuMemFree_v2(ptr);
    else
        s->bytes = (uint8_t *)(uintptr_t)ptr;
    return r;
}

static int take_slab(struct slab *s, uint64_t bytes, bool plain)
{
    if (gpu.api && !plain)
        return take_slab_on_gpu(s, bytes);
    if (plain) {
        s->bytes = take(bytes);
        return 0;
    }

    int r = ruccl_alloc(conn, bytes, &s->region);
    if (r == 0)
        s->bytes = ruccl_region_data(s->region);
    return r;
}

static void give_slab(struct slab *s)
{
    if (!s->region) {
        free(s->bytes);
    } else if (gpu.api) {
        ruccl_release(s->region);
        must(gpu.api->cuMemFree_v2((uintptr_t)s->bytes), "cuMemFree");
    } else {
        ruccl_free(s->region);
    }
}

/* Return: 0 or -code; stage_fini() in either case. */
static int stage_init(struct stage *st, const struct command *c, struct ruccl_comm comm)
{
    int r;

    *st = (struct stage){
        .command = c,
        .scene = scene_of(&c->trial, c->dtype, ruccl_world_size(comm)),
        .comm = comm,
        .rank = ruccl_rank(comm),
    };
    st->scene.ring_receive = gpu.receive;
    st->in_bytes = command_input_bytes(c, &st->scene, st->rank);

    const struct span used = scene_used_span(&st->scene, st->rank);

    r = take_slab(&st->in, st->in_bytes + 8, c->plain);
    if (r < 0)
        return r;
    r = take_slab(&st->out, used.at + used.bytes + TENSORS_GUARD, c->plain);
    if (r < 0)
        return r;
    st->given = take(st->in_bytes + 8);
    command_fill_input(c, &st->scene, st->rank, st->given);
    memcpy(st->in.bytes, st->given, st->in_bytes);
    scene_prepare(&st->scene, st->rank, st->given, st->out.bytes);
    return 0;
}

static void stage_fini(struct stage *st)
{
    give_slab(&st->in);
    give_slab(&st->out);
    free(st->given);
}

/* NULL, or what may never be. */
static const char *find_wrong(const struct stage *st, bool done)
{
    const struct scene *s = &st->scene;

    if (!scene_kept_guards(s, st->rank, st->out.bytes))
        return "bytes around the output were written";
    if (memcmp(st->in.bytes, st->given, st->in_bytes))
        return "the input has changed";
    if (done && !scene_writes(s, st->rank) &&
        !scene_kept_output(s, st->rank, st->given, st->out.bytes))
        return "an output that only the root has was written";
    return NULL;
}

static const char *find_wrong_counts(const struct stage *st, struct ruccl_work *work)
{
    uint64_t counts[REFERENCE_RANKS];

    if (st->command->trial.kind != TRIAL_ALL_TO_ALL_V)
        return NULL;
    if (ruccl_work_receive_counts(work, counts) < 0)
        return "no receive counts";
    for (uint32_t r = 0; r < st->scene.nranks; r++)
        if (counts[r] != scene_pair_rows(&st->scene, r, st->rank))
            return "wrong receive counts";
    return NULL;
}

static void answer_done(struct stage *st, const struct ruccl_stats *stats)
{
    const struct span out = scene_out_span(&st->scene, st->rank);

    if (scene_writes(&st->scene, st->rank))
        printf("ok digest=%016" PRIx64,
               command_digest(&st->scene, st->out.bytes + out.at, out.bytes));
    else
        printf("ok digest=-");
    printf(" peak=%" PRIu64 " chunks=%" PRIu64 " algorithm=%s\n", stats->peak_bytes, stats->chunks,
           stats->algorithm);
}

/* The works of one call, or the one of a start. Return: how many, or -code. */
static int call(const struct stage *st, struct ruccl_persistent *persistent,
                struct ruccl_work **ret)
{
    if (!persistent)
        return scene_call(&st->scene, st->rank, st->comm, &st->in, &st->out, ret);

    int r = ruccl_start(persistent, ret);
    return r < 0 ? r : 1;
}

/* What a command came to. */
struct outcome {
    struct ruccl_error failure; /* code RUCCL_OK: none */
    struct ruccl_stats stats;   /* of the last call; peak_bytes is the most of all */
    const char *wrong;          /* NULL: nothing */
};

static void note(struct outcome *o, int r)
{
    if (r < 0 && o->failure.code == RUCCL_OK)
        o->failure = *ruccl_last_error();
}

/* Waits for a work and releases it. */
static void finish_call(struct stage *st, struct ruccl_work *work, struct outcome *o)
{
    const uint64_t peak = o->stats.peak_bytes;

    note(o, ruccl_work_wait(work, -1));
    if (o->failure.code == RUCCL_OK) {
        note(o, ruccl_work_stats(work, &o->stats));
        o->stats.peak_bytes = MAX(peak, o->stats.peak_bytes);
        if (!o->wrong)
            o->wrong = find_wrong_counts(st, work);
    }
    ruccl_work_release(work);
}

/* One call after the other, of which there is no more to know. */
static void call_blocking(struct stage *st, struct outcome *o)
{
    for (uint64_t i = 0; i < st->command->times && o->failure.code == RUCCL_OK; i++)
        note(o, scene_call_blocking(&st->scene, st->rank, st->comm, &st->in, &st->out));
    o->wrong = find_wrong(st, o->failure.code == RUCCL_OK);
}

/* Calls as often as it is told, then waits for all. */
static void call_and_wait(struct stage *st, struct ruccl_persistent *persistent, struct outcome *o)
{
    const uint64_t times = st->command->times;
    struct ruccl_work **works = take(times * SCENE_WORKS_MAX * sizeof(*works));
    uint64_t nworks = 0;

    for (uint64_t i = 0; i < times && o->failure.code == RUCCL_OK; i++) {
        int r = call(st, persistent, works + nworks);

        note(o, r);
        nworks += r > 0 ? (uint64_t)r : 0;
    }
    for (uint64_t i = 0; i < nworks; i++)
        finish_call(st, works[i], o);
    free(works);
    if (!o->wrong)
        o->wrong = find_wrong(st, o->failure.code == RUCCL_OK);
}

static void collective(const struct command *c, struct ruccl_comm comm)
{
    struct ruccl_persistent *persistent = NULL;
    struct outcome o = { 0 };
    struct stage st;
    int r = stage_init(&st, c, comm);

    if (r == 0 && c->persistent)
        r = scene_init_persistent(&st.scene, st.rank, comm, &st.in, &st.out, &persistent);
    note(&o, r);
    if (r == 0 && c->blocking)
        call_blocking(&st, &o);
    else if (r == 0)
        call_and_wait(&st, persistent, &o);
    if (o.wrong)
        printf("wrong %s\n", o.wrong);
    else if (o.failure.code != RUCCL_OK)
        answer_error(&o.failure,
                     r == 0 && !scene_kept_output(&st.scene, st.rank, st.given, st.out.bytes));
    else
        answer_done(&st, &o.stats);
    ruccl_persistent_release(persistent);
    stage_fini(&st);
}

static void barrier(struct ruccl_comm comm)
{
    answer_call(ruccl_barrier(comm));
}

/* ---- commands */

static void execute_in_comm(const struct command *c, struct ruccl_comm comm)
{
    if (c->is_collective)
        collective(c, comm);
    else if (!strcmp(c->verb, "barrier"))
        barrier(comm);
    else if (!strcmp(c->verb, "split"))
        split(c, comm);
    else if (!strcmp(c->verb, "leave"))
        leave(c, comm);
    else if (!strcmp(c->verb, "abort"))
        answer_call(ruccl_abort(comm, "the test says so"));
    else
        printf("wrong no such command: %s\n", c->verb);
}

static void execute(const struct command *c)
{
    const struct ruccl_comm *comm = find_comm(c->comm);

    if (!strcmp(c->verb, "new_id"))
        new_id();
    else if (!strcmp(c->verb, "join"))
        join(c);
    else if (comm)
        execute_in_comm(c, *comm);
    else
        printf("wrong no communicator '%s'\n", c->comm);
}

int main(int argc, char **argv)
{
    char *line = NULL;
    size_t room = 0;

    if (argc > 1)
        open_gpu(atoi(argv[1]));
    if (ruccl_connect(NULL, "rank", &conn) < 0)
        answer_error(ruccl_last_error(), false);
    else
        printf("ok\n");
    fflush(stdout);

    while (conn && getline(&line, &room, stdin) > 0) {
        struct command c;
        const char *odd = command_parse(line, &c);

        if (odd)
            printf("wrong word in a command: %s\n", odd);
        else
            execute(&c);
        fflush(stdout);
    }
    free(line);
    ruccl_close(conn);
    return 0;
}
