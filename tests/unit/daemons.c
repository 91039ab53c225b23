#include "tests/unit/daemons.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/plan/price.h"
#include "tests/contract/flaky_device.h"
#include "tests/contract/flaky_gpus.h"
#include "tests/unit/reference.h"
#include "tests/unit/unit.h"

#define UNTOUCHED 0x5a
#define LIMIT     (64ull << 20)
#define TURN_MS   20000

static const uint8_t key[TRANSPORT_KEY_BYTES] = "a communicator's";

struct daemon daemons[NODES_MAX];
uint64_t sequence;
static unsigned gpu_percent;
static uint64_t gpu_bytes_min = TRANSPORT_NO_GPUS;

void daemons_move_gpus(uint64_t bytes_min)
{
    gpu_bytes_min = bytes_min;
}

static void configure_transport(struct daemon *m, struct local_config *config)
{
    config->copy_gpu = gpu_bytes_min == TRANSPORT_NO_GPUS ? NULL : flaky_gpus_copy;
    config->gpu_bytes_min = gpu_bytes_min;
    local_configure(m->transport, config);
}

void daemons_calm(void)
{
    for (uint32_t i = 0; i < NODES_MAX; i++)
        configure_transport(&daemons[i], &(struct local_config){ 0 });
}

void daemons_use_gpus(unsigned percent)
{
    gpu_percent = percent;
}

static void daemon_open(struct daemon *m)
{
    assert_int_equal((m == &daemons[0] || m == &daemons[2] ? &device_host : &device_flaky)
                         ->open(&(struct device_config){ 0 }, &m->device, NULL),
                     0);
    assert_int_equal(transport_local.open(&(struct transport_config){ 0 }, &m->transport, NULL), 0);
    assert_int_equal(staging_new(LIMIT, &m->staging), 0);
    assert_int_equal(staging_reserve(m->staging, LIMIT / 2), 0);
    assert_int_equal(engine_new(m->device, m->transport, m->staging, &m->engine), 0);
    assert_int_equal(device_flaky_gpus.open(&(struct device_config){ 0 }, &m->gpus, NULL), 0);
    engine_add_device(m->engine, m->gpus);
}

static void daemon_close(struct daemon *m)
{
    m->spare = run_free(m->spare);
    engine_free(m->engine);
    staging_free(m->staging);
    transport_local.close(m->transport);
    m->device->ops->close(m->device);
    device_flaky_gpus.close(m->gpus);
}

void links_join(uint32_t i, uint32_t k)
{
    struct transport_peer *a, *b;
    size_t len;
    const void *address;

    assert_int_equal(transport_local.peer_new(daemons[i].transport, &a, NULL), 0);
    assert_int_equal(transport_local.peer_new(daemons[k].transport, &b, NULL), 0);
    address = transport_local.peer_address(b, &len);
    assert_int_equal(transport_local.peer_connect(a, address, len, NULL), 0);
    address = transport_local.peer_address(a, &len);
    assert_int_equal(transport_local.peer_connect(b, address, len, NULL), 0);
    daemons[i].peers[k] = a;
    daemons[k].peers[i] = b;
}

void links_open(void)
{
    for (uint32_t i = 0; i < NODES_MAX; i++) {
        assert_int_equal(
            transport_local.channel_open(daemons[i].transport, key, &daemons[i].channel), 0);
        local_configure(daemons[i].transport, &(struct local_config){ 0 });
        for (uint32_t k = 0; k < i; k++)
            links_join(i, k);
    }
}

void links_close(void)
{
    for (uint32_t i = 0; i < NODES_MAX; i++) {
        for (uint32_t k = 0; k < NODES_MAX; k++)
            if (k != i)
                transport_local.peer_free(daemons[i].peers[k]);
        transport_local.channel_close(daemons[i].channel);
        assert_int_equal(local_pending(daemons[i].transport), 0);
    }
}

int daemons_open(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < NODES_MAX; i++)
        daemon_open(&daemons[i]);
    links_open();
    return 0;
}

int daemons_close(void **state)
{
    (void)state;
    links_close();
    for (uint32_t i = 0; i < NODES_MAX; i++)
        daemon_close(&daemons[i]);
    return 0;
}

/* ---------------------------------------------------------------- operations */

static bool has(const struct operation *o, bool in, uint32_t rank)
{
    const uint32_t flags = collective_get(o->w.d.kind)->flags;

    return !(flags & (in ? COLLECTIVE_IN_AT_ROOT : COLLECTIVE_OUT_AT_ROOT)) || rank == o->w.d.root;
}

static uint8_t *bytes_new(size_t n)
{
    uint8_t *p = malloc(n);

    assert_true(p || n == 0);
    if (n)
        memset(p, UNTOUCHED, n);
    return p;
}

/* Numbers whose sums show their order, and stay numbers. */
static void fill(enum dtype_id type, uint8_t *p, uint64_t n)
{
    const size_t width = dtype_get(type)->width;

    for (uint64_t i = 0; i < n; i++) {
        const double number = ((double)any_below(4001) - 2000) / 7;

        reference_store(type, p + i * width,
                        (struct reference_value){ .number = number, .bits = any_below(1u << 30) });
    }
}

/* A rank's memory in two parts: the test's own, or a mapping of its node's, seen from here. */
static void memory_new(struct operation *o, uint32_t rank, size_t in, size_t out)
{
    const struct daemon *m = &daemons[o->nodes->nodes[rank]];

    if (o->at_home || !gpu_percent) {
        o->memory[0][rank] = bytes_new(in);
        o->memory[1][rank] = bytes_new(out);
        return;
    }
    o->maps[rank] = flaky_memory(any_below(100) < gpu_percent ? m->gpus : m->device, in + out);
    o->memory[0][rank] = flaky_view(o->maps[rank]);
    o->memory[1][rank] = o->memory[0][rank] + in;
    memset(o->memory[0][rank], UNTOUCHED, in + out);
}

void operation_fill(struct operation *o)
{
    for (uint32_t r = 0; r < o->w.nranks; r++) {
        const size_t in = o->w.in_count[r] * o->width, out = o->w.out_count[r] * o->width;
        const bool same = o->w.in_place && has(o, true, r) && has(o, false, r);

        memory_new(o, r, same ? MAX(in, out) : in, same ? 0 : out);
        o->in[r] = o->memory[0][r];
        o->out[r] = same ? o->in[r] : o->memory[1][r];
        if (same && o->w.d.kind == COLLECTIVE_ALL_GATHER)
            o->in[r] = o->out[r] + r * in;
        if (same && o->w.d.kind == COLLECTIVE_REDUCE_SCATTER)
            o->out[r] = o->in[r] + r * out;
        o->given[r] = bytes_new(in);
        fill(o->w.d.dtype, o->given[r], o->w.in_count[r]);
        if (in)
            memcpy(o->in[r], o->given[r], in);
    }
}

static void operation_free_memory(struct operation *o)
{
    for (uint32_t r = 0; r < o->w.nranks; r++) {
        if (!o->maps[r]) {
            free(o->memory[0][r]);
            free(o->memory[1][r]);
        }
        o->maps[r] = mapping_unref(o->maps[r]);
        free(o->given[r]);
    }
}

/* ---------------------------------------------------------------- what comes out */

static struct reference_value sum_of_node(const struct operation *o, uint32_t node, uint64_t i)
{
    const enum dtype_id type = o->w.d.dtype;
    const uint32_t n = placement_count(o->nodes, node);
    struct reference_value v[WORLD_RANKS];

    for (uint32_t k = 0; k < n; k++)
        v[k] = reference_load(type, o->given[placement_rank(o->nodes, node, k)] + i * o->width);
    return reference_reduce(type, o->w.d.op, v, n, 0);
}

static void expect_sum(const struct operation *o, uint64_t i, uint8_t *ret)
{
    const uint32_t divisor = o->w.d.op == OPERATOR_MEAN ? o->w.nranks : 0;
    struct reference_value v[NODES_MAX];

    for (uint32_t k = 0; k < o->nodes->nnodes; k++)
        v[k] = sum_of_node(o, k, i);
    reference_store(o->w.d.dtype, ret,
                    reference_reduce(o->w.d.dtype, o->w.d.op, v, o->nodes->nnodes, divisor));
}

/* Element i of rank r's output of an exchange: whose it was, and which. */
static const uint8_t *expect_row(const struct operation *o, uint32_t r, uint64_t i)
{
    uint64_t row;

    assert_true(shape_row_count(&o->w.d.shape, &row));
    for (uint32_t s = 0; s < o->w.nranks; s++) {
        const uint64_t mine = exchange_rows(o->w.exchange, s, r) * row;
        uint64_t before = 0;

        for (uint32_t d = 0; d < r; d++)
            before += exchange_rows(o->w.exchange, s, d) * row;
        if (i < mine)
            return o->given[s] + (before + i) * o->width;
        i -= mine;
    }
    fail_msg("more rows than were sent");
    return NULL;
}

static void expect(const struct operation *o, uint32_t r, uint64_t i, uint8_t *ret)
{
    const uint64_t n = o->w.n;
    const uint8_t *from = NULL;

    switch (o->w.d.kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
        expect_sum(o, i, ret);
        return;
    case COLLECTIVE_REDUCE_SCATTER:
        expect_sum(o, r * n + i, ret);
        return;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_GATHER:
        from = o->given[i / n] + i % n * o->width;
        break;
    case COLLECTIVE_BROADCAST:
        from = o->given[o->w.d.root] + i * o->width;
        break;
    case COLLECTIVE_SCATTER:
        from = o->given[o->w.d.root] + (r * n + i) * o->width;
        break;
    default:
        from = expect_row(o, r, i);
    }
    memcpy(ret, from, o->width);
}

void operation_compare(const struct operation *o)
{
    for (uint32_t r = 0; r < o->w.nranks; r++)
        for (uint64_t i = 0; has(o, false, r) && i < o->w.out_count[r]; i++) {
            uint8_t want[8];

            expect(o, r, i, want);
            if (memcmp(want, o->out[r] + i * o->width, o->width) != 0)
                fail_msg("%s %s of %s %s, %u nodes of %u ranks, n %llu in chunks of %llu and "
                         "pieces of %llu: element %llu of rank %u is wrong",
                         o->algorithm->name, collective_get(o->w.d.kind)->name,
                         operator_name(o->w.d.op), dtype_get(o->w.d.dtype)->name, o->nodes->nnodes,
                         o->w.nranks, (unsigned long long)o->w.n,
                         (unsigned long long)o->chunking.length, (unsigned long long)o->piece,
                         (unsigned long long)i, r);
        }
}

void operation_assert_untouched(const struct operation *o)
{
    for (uint32_t r = 0; r < o->w.nranks; r++)
        for (uint64_t i = 0; !o->w.in_place && i < o->w.out_count[r] * o->width; i++)
            assert_int_equal(o->out[r][i], UNTOUCHED);
}

/* ---------------------------------------------------------------- making one */

static void emit(const struct operation *o, uint32_t node, uint64_t count, struct plan *p)
{
    struct plan_args args = args_of(&o->w, count);

    args.node = node;
    plan_init(p, placement_count(o->nodes, node));
    assert_int_equal(o->algorithm->emit(p, &args), 0);
}

static uint64_t length_of_last(uint64_t n, uint64_t length)
{
    return n % length ? n % length : length;
}

void operation_emit(struct operation *o, uint32_t node)
{
    struct part *p = &o->parts[node];
    const struct chunking *c = &o->chunking;
    const uint64_t last = chunk_count(c, c->chunks - 1);

    emit(o, node, MIN(o->piece, c->n), &p->full);
    emit(o, node, length_of_last(c->length, o->piece), &p->last);
    emit(o, node, length_of_last(last, o->piece), &p->tail);
    p->piece_peak = plan_peak(&p->full, price_wide(o->w.d.op, o->w.d.dtype)) * o->width;
}

static void on_progress(struct run *run, uint64_t chunks)
{
    struct operation *o = run_owner(run);

    if (run == o->parts[0].run) {
        assert_true(chunks > o->progress);
        o->progress = chunks;
    }
}

static void on_done(struct run *run, int r)
{
    struct operation *o = run_owner(run);

    for (uint32_t i = 0; i < o->nodes->nnodes; i++)
        if (o->parts[i].run == run) {
            o->parts[i].ndone++;
            o->parts[i].result = r;
        }
}

/* Where the daemon has what the test sees at `p`. */
static void *seen_by_daemon(const struct operation *o, uint32_t rank, uint8_t *p)
{
    return o->maps[rank] ? (uint8_t *)o->maps[rank]->base + (p - o->memory[0][rank]) : p;
}

static bool is_far(const struct operation *o, uint32_t node, uint32_t rank)
{
    return o->maps[rank] && o->maps[rank]->device == daemons[node].gpus;
}

bool operation_is_far(const struct operation *o, uint32_t node)
{
    for (uint32_t i = 0; i < placement_count(o->nodes, node); i++)
        if (is_far(o, node, placement_rank(o->nodes, node, i)))
            return true;
    return false;
}

static void bind(struct operation *o, uint32_t node, struct mapping *mapping)
{
    struct run_memory *m = run_memory(o->parts[node].run);

    for (uint32_t i = 0; i < placement_count(o->nodes, node); i++) {
        const uint32_t r = placement_rank(o->nodes, node, i);

        m->in[i] = has(o, true, r) ? seen_by_daemon(o, r, o->in[r]) : NULL;
        m->out[i] = has(o, false, r) ? seen_by_daemon(o, r, o->out[r]) : NULL;
    }
    m->nmappings = 0;
    if (mapping)
        m->mappings[m->nmappings++] = mapping;
    for (uint32_t i = 0; i < placement_count(o->nodes, node); i++)
        if (o->maps[placement_rank(o->nodes, node, i)])
            m->mappings[m->nmappings++] = o->maps[placement_rank(o->nodes, node, i)];
}

static void list_contents(const struct operation *o, struct part *p)
{
    const uint32_t width = (uint32_t)o->width;

    if (!o->w.exchange && o->chunking.chunks == 1 && o->piece >= o->chunking.length)
        assert_int_equal(contents_new(&p->tail, o->nodes->nnodes, width,
                                      width * price_wide(o->w.d.op, o->w.d.dtype), &p->contents),
                         0);
}

void operation_prepare(struct operation *o, uint32_t node, enum run_start start,
                       struct mapping *mapping)
{
    struct part *p = &o->parts[node];
    const uint32_t nparts = placement_count(o->nodes, node);

    p->held = start != RUN_AT_ONCE;
    p->network = (struct run_network){ .channel = daemons[node].channel,
                                       .peers = daemons[node].peers,
                                       .nodes = o->nodes,
                                       .node = node,
                                       .sequence = sequence };
    p->run = steal(&daemons[node].spare);
    if (!p->run)
        assert_int_equal(run_new(WORLD_RANKS, DEPTH_MAX, &p->run), 0);
    bind(o, node, mapping);
    list_contents(o, p);
    if (!p->fence && any_below(100) < gpu_percent && !o->at_home)
        p->fence = flaky_gpus_fence(daemons[node].gpus, any_below(3));
    assert_int_equal(run_prepare(p->run,
                                 &(struct run_spec){
                                     .d = &o->w.d,
                                     .nparts = nparts,
                                     .chunking = o->chunking,
                                     .piece_length = o->piece,
                                     .full = &p->full,
                                     .last = &p->last,
                                     .tail = &p->tail,
                                     .contents = p->contents,
                                     .algorithm = o->algorithm,
                                     .exchange = o->w.exchange,
                                     .memory = run_memory(p->run),
                                     .fences = &p->fence,
                                     .nfences = p->fence != NULL,
                                     .depth = o->depth,
                                     .network = &p->network,
                                     .budget_bytes = o->budget,
                                     .start = start,
                                     .progress = on_progress,
                                     .done = on_done,
                                     .owner = o,
                                 }),
                     0);
}

void operation_over(struct operation *o, uint32_t node, int r)
{
    if (r != 0)
        return;
    o->parts[node].ndone++;
    o->parts[node].result = run_result(o->parts[node].run);
}

bool operation_enclose(struct operation *o, uint32_t node, uint32_t to)
{
    uint32_t len = 0;
    const void *bytes = run_enclosed(o->parts[node].run, to, &len);

    if (!bytes)
        return false;
    o->enclosed[node][to] = bytes_new(len + 1ul);
    memcpy(o->enclosed[node][to], bytes, len);
    o->parts[to].letters[node].bytes = o->enclosed[node][to];
    o->parts[to].letters[node].len = len;
    o->parts[node].letters[to].delivered = true;
    return true;
}

/* Only who is held can take a letter. */
static void enclose_some(struct operation *o, uint32_t node)
{
    for (uint32_t to = 0; to < o->nodes->nnodes; to++)
        if (to != node && o->parts[to].held && any_below(3))
            operation_enclose(o, node, to);
}

void operation_submit(struct operation *o, uint32_t node)
{
    operation_over(o, node, engine_submit(daemons[node].engine, o->parts[node].run));
    if (o->parts[node].held)
        enclose_some(o, node);
}

void operation_finish(struct operation *o)
{
    for (uint32_t i = 0; i < o->nodes->nnodes; i++) {
        struct part *p = &o->parts[i];

        assert_int_equal(p->ndone, 1);
        p->fence = fence_unref(p->fence);
        run_free(daemons[i].spare);
        daemons[i].spare = steal(&p->run);
        p->contents = contents_free(p->contents);
        if (!o->w.exchange) {
            plan_fini(&p->full);
            plan_fini(&p->last);
            plan_fini(&p->tail);
        }
        for (uint32_t k = 0; k < NODES_MAX; k++)
            free(o->enclosed[i][k]);
    }
    operation_free_memory(o);
}

/* ---------------------------------------------------------------- time */

/* Waits for a descriptor when nobody has anything to do: nothing spins, and nothing sleeps for
 * ever.
 */
static void wait_for_some(uint32_t nnodes)
{
    struct pollfd fds[3 * NODES_MAX];

    for (uint32_t i = 0; i < nnodes; i++) {
        fds[3 * i] = (struct pollfd){ engine_fd(daemons[i].engine), POLLIN, 0 };
        fds[3 * i + 1] = (struct pollfd){ engine_transport_fd(daemons[i].engine), POLLIN, 0 };
        fds[3 * i + 2] = (struct pollfd){ engine_gpu_fd(daemons[i].engine), POLLIN, 0 };
        if (engine_wants_turn(daemons[i].engine))
            return;
    }
    if (poll(fds, 3 * nnodes, TURN_MS) <= 0)
        fail_msg("nothing has anything to do, and it is not over");
}

void daemons_turn(uint32_t nnodes)
{
    wait_for_some(nnodes);
    engine_poll(daemons[any_below(nnodes)].engine);
}

bool operation_any_held(const struct operation *o)
{
    for (uint32_t i = 0; i < o->nodes->nnodes; i++)
        if (o->parts[i].held && !o->parts[i].ndone)
            return true;
    return false;
}

bool operation_is_over(const struct operation *o)
{
    for (uint32_t i = 0; i < o->nodes->nnodes; i++)
        if (!o->parts[i].ndone)
            return false;
    return true;
}

void operation_release(struct operation *o, uint32_t node)
{
    struct part *p = &o->parts[node];

    p->held = false;
    operation_over(o, node, engine_release(daemons[node].engine, p->run, p->letters));
}

void operation_release_some(struct operation *o, uint32_t odds)
{
    for (uint32_t i = 0; i < o->nodes->nnodes; i++)
        if (o->parts[i].held && !o->parts[i].ndone && any_below(odds) == 0)
            operation_release(o, i);
}

void operation_run(struct operation *o)
{
    uint32_t n = 0;

    while (!operation_is_over(o)) {
        operation_release_some(o, n++ < 40 ? 5 : 1);
        if (operation_any_held(o))
            engine_poll(daemons[any_below(o->nodes->nnodes)].engine);
        else if (!operation_is_over(o))
            daemons_turn(o->nodes->nnodes);
        assert_true(n < POLLS_MAX);
    }
}

static void configure_devices(struct daemon *m, const struct flaky_config *config)
{
    if (m->device->ops == &device_flaky)
        flaky_configure(m->device, config);
    flaky_configure(flaky_gpus_tasks(m->gpus), config);
}

static void configure_device(struct daemon *m, unsigned busy_percent, unsigned inline_percent)
{
    configure_devices(m, &(struct flaky_config){ .seed = 1 + any_below(1000),
                                                 .busy_percent = busy_percent,
                                                 .inline_percent = inline_percent });
}

void daemons_fail_task(uint32_t node, uint64_t task, int err)
{
    configure_devices(&daemons[node], &(struct flaky_config){ .seed = 1 + any_below(1000),
                                                              .busy_percent = any_below(2) * 30,
                                                              .fail_task = task,
                                                              .fail_errno = err });
}

void daemons_any_weather(void)
{
    for (uint32_t i = 0; i < NODES_MAX; i++) {
        configure_device(&daemons[i], any_below(2) * 30, any_below(3) * 50);
        configure_transport(&daemons[i],
                            &(struct local_config){ .seed = any_below(1000),
                                                    .delayed = any_below(4),
                                                    .inline_percent = any_below(3) * 50,
                                                    .eager_bytes = any_below(2) * 1000 });
    }
}

void daemons_honest_devices(void)
{
    for (uint32_t i = 0; i < NODES_MAX; i++)
        configure_device(&daemons[i], 0, 100);
}

void operation_start(struct operation *o, bool all_held)
{
    /* nobody starts early what others may enclose */
    static const enum run_start enclosed[] = { RUN_HELD, RUN_ENCLOSING, RUN_AT_ONCE };
    static const enum run_start early[] = { RUN_HELD, RUN_EARLY, RUN_AT_ONCE };
    const enum run_start *ways = all_held || any_below(2) ? enclosed : early;

    sequence++;
    for (uint32_t i = 0; i < o->nodes->nnodes; i++) {
        const enum run_start how = ways[any_below(all_held ? 2 : 3)];

        if (!o->w.exchange)
            operation_emit(o, i);
        operation_prepare(o, i, how, NULL);
    }
    for (uint32_t i = 0; i < o->nodes->nnodes; i++)
        operation_submit(o, i);
}
