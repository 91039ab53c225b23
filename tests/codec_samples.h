/*
 * One message or more of every kind, with least and greatest values, and what a decoded message
 * says as text. For the codec's tests and the fuzzer's first inputs.
 */
#ifndef TESTS_CODEC_SAMPLES_H
#define TESTS_CODEC_SAMPLES_H

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/codec.h"

#define X16(s)  s s s s s s s s s s s s s s s s
#define NAME_63 X16("abc") "abcdefghijklmno"
#define ID_128  X16("rc1-abcd")
#define TEXT_511                                                                                   \
    X16("rank 3 of pid 12 is lost. ")                                                              \
    "95 more bytes make this text as long as any can be, so that nothing of it may go "            \
    "missing......."

_Static_assert(sizeof(NAME_63) - 1 == CODEC_NAME_MAX, "");
_Static_assert(sizeof(ID_128) - 1 == CODEC_ID_MAX, "");
_Static_assert(sizeof(TEXT_511) == ERROR_TEXT_BYTES, "");

static const uint64_t sample_counts[RANKS_MAX] = { 1, 0, UINT64_MAX, [RANKS_MAX - 1] = 7 };

static inline struct error sample_error(void)
{
    struct error e = { .code = ERROR_RANK_LOST, .nranks = RANKS_MAX, .text = TEXT_511 };

    for (uint32_t i = 0; i < ERROR_RANKS_MAX; i++)
        e.ranks[i] = i * 100;
    return e;
}

static inline struct request_post sample_post_extreme(void)
{
    struct request_post p = {
        .comm = UINT32_MAX,
        .sequence = UINT64_MAX,
        .slot = UINT32_MAX,
        .d = { .kind = COLLECTIVE_ALL_TO_ALL_V,
               .op = OPERATOR_XOR,
               .dtype = DTYPE_PACKED_U32,
               .shape = { .naxes = AXES_MAX },
               .root = UINT32_MAX,
               .budget = BUDGET_NONE },
        .in = { UINT32_MAX, UINT64_MAX, 1ull << 63 },
        .out = { 1, UINT64_MAX, 1 },
        .out_rows = UINT64_MAX,
        .counts = sample_counts,
        .ncounts = RANKS_MAX,
        .peer = UINT32_MAX,
        .tag = UINT32_MAX,
        .color = INT32_MIN,
        .key = INT32_MAX,
        .child = UINT32_MAX,
        .persistent = true,
        .fence = UINT32_MAX,
        .signal = UINT32_MAX,
        .rejection = sample_error(),
    };

    for (uint32_t i = 0; i < AXES_MAX; i++)
        p.d.shape.axes[i] = UINT64_MAX - i;
    return p;
}

/* Sample i, of increasing i from 0; false behind the last. */
static inline bool sample_request(uint32_t i, struct request *ret)
{
    struct request r = { .serial = UINT64_MAX - i };

    switch (i) {
    case 0:
        r.kind = REQUEST_HELLO;
        r.serial = 0;
        break;
    case 1:
        r.kind = REQUEST_HELLO;
        r.hello.version_min = 1;
        r.hello.version_max = UINT32_MAX;
        r.hello.name = NAME_63;
        break;
    case 2:
        r.kind = REQUEST_REGION_OPEN;
        r.region_open.region = UINT32_MAX;
        r.region_open.bytes = UINT64_MAX;
        r.region_open.kind = REGION_MEMFD;
        break;
    case 3:
        r.kind = REQUEST_REGION_CLOSE;
        r.region_close.region = 1;
        break;
    case 4:
        r.kind = REQUEST_ID_NEW;
        break;
    case 5:
        r.kind = REQUEST_ID_DROP;
        r.id_drop.id = ID_128;
        break;
    case 6:
        r.kind = REQUEST_JOIN;
        r.join = (struct request_join){ .comm = 1 };
        break;
    case 7:
        r.kind = REQUEST_JOIN;
        r.join = (struct request_join){ .comm = UINT32_MAX,
                                        .id = ID_128,
                                        .rank = UINT32_MAX,
                                        .nranks = UINT32_MAX,
                                        .label = NAME_63,
                                        .timeout_us = UINT64_MAX,
                                        .algorithm = "halving-doubling-------" };
        break;
    case 8:
        r.kind = REQUEST_LEAVE;
        r.leave.comm = UINT32_MAX;
        break;
    case 9:
        r.kind = REQUEST_ABORT;
        r.abort.comm = 3;
        r.abort.text = TEXT_511;
        break;
    case 10:
        r.kind = REQUEST_EXPECT;
        r.expect.comm = 3;
        r.expect.counts = sample_counts;
        r.expect.ncounts = RANKS_MAX;
        break;
    case 11:
        r.kind = REQUEST_POST;
        r.post = (struct request_post){ .comm = 1 };
        break;
    case 12:
        r.kind = REQUEST_POST;
        r.post = (struct request_post){ .comm = 1,
                                        .sequence = 300,
                                        .slot = 7,
                                        .d = { .kind = COLLECTIVE_ALL_REDUCE,
                                               .op = OPERATOR_SUM,
                                               .dtype = DTYPE_BF16,
                                               .shape = { 2, { 1000, 4096 } },
                                               .budget = 1 << 20 },
                                        .in = { 1, 4096 },
                                        .out = { 2, 8192 } };
        break;
    case 13:
        r.kind = REQUEST_POST;
        r.post = sample_post_extreme();
        break;
    case 14:
        r.kind = REQUEST_STATUS;
        r.status.cursor = UINT64_MAX;
        break;
    case 15:
        r.kind = REQUEST_RINGS_OPEN;
        break;
    case 16:
        r.kind = REQUEST_BELL;
        break;
    case 17:
        r.kind = REQUEST_START;
        r.start.comm = r.start.slot = r.start.persistent = UINT32_MAX;
        r.start.fence = r.start.signal = UINT32_MAX;
        r.start.sequence = UINT64_MAX;
        break;
    case 18:
        r.kind = REQUEST_PERSISTENT_CLOSE;
        r.persistent_close.comm = UINT32_MAX;
        r.persistent_close.persistent = 1;
        break;
    case 19:
        r.kind = REQUEST_STAGED;
        r.staged.comm = r.staged.slot = UINT32_MAX;
        r.staged.in_ready = UINT64_MAX;
        r.staged.out_taken = 1;
        break;
    case 20:
        r.kind = REQUEST_REGION_OPEN;
        r.region_open.region = 1;
        r.region_open.bytes = 1;
        r.region_open.kind = REGION_CUDA_IPC;
        memset(r.region_open.gpu, 0xff, CODEC_GPU_BYTES);
        memset(r.region_open.ipc, 1, CODEC_HANDLE_BYTES);
        break;
    case 21:
        r.kind = REQUEST_REGION_OPEN;
        r.region_open.region = 1;
        r.region_open.kind = REGION_CUDA_FD;
        r.region_open.gpu[15] = 7;
        break;
    case 22:
        r.kind = REQUEST_FENCE_OPEN;
        r.fence_open.fence = UINT32_MAX;
        memset(r.fence_open.gpu, 0xff, CODEC_GPU_BYTES);
        r.fence_open.handle[63] = 1;
        break;
    case 23:
        r.kind = REQUEST_FENCE_CLOSE;
        r.fence_close.fence = UINT32_MAX;
        break;
    case 24:
        r.kind = REQUEST_SIGNALS_OPEN;
        break;
    case 25:
        r.kind = REQUEST_SLATE_OPEN;
        r.slate_open.comm = UINT32_MAX;
        break;
    default:
        return false;
    }
    *ret = r;
    return true;
}

/* A full page of items of every kind, as large as a page can be. */
static inline const struct status_item *sample_status_items(void)
{
    static struct status_item items[CODEC_STATUS_ITEMS];

    for (uint32_t i = 0; i < CODEC_STATUS_ITEMS; i++)
        items[i] = (struct status_item){ .kind = STATUS_COMMUNICATOR,
                                         .communicator = { .communicator = UINT64_MAX,
                                                           .label = TEXT_511,
                                                           .state = "ready",
                                                           .nranks = UINT32_MAX,
                                                           .present = 1,
                                                           .sequence = UINT64_MAX,
                                                           .oldest_kind = COLLECTIVE_SPLIT,
                                                           .oldest_sequence = UINT64_MAX,
                                                           .oldest_age_us = UINT64_MAX,
                                                           .oldest_state = "arriving",
                                                           .oldest_arrived = TEXT_511,
                                                           .oldest_missing = TEXT_511 } };
    items[0] = (struct status_item){ .kind = STATUS_DAEMON,
                                     .daemon = { .version = "0.1.0",
                                                 .node = "node-1",
                                                 .pid = UINT32_MAX,
                                                 .uptime_us = UINT64_MAX,
                                                 .state = "serving",
                                                 .sessions = 1,
                                                 .communicators = 2,
                                                 .regions = 3,
                                                 .region_bytes = UINT64_MAX,
                                                 .workers = 4,
                                                 .kernels = "v4" } };
    items[1] = (struct status_item){ .kind = STATUS_SESSION,
                                     .session = { .session = UINT64_MAX,
                                                  .pid = 1,
                                                  .uid = UINT32_MAX,
                                                  .name = NAME_63,
                                                  .regions = 5,
                                                  .region_bytes = 6,
                                                  .in_flight = 7,
                                                  .members = 8 } };
    items[2] = (struct status_item){ .kind = STATUS_MEMBER,
                                     .member = { .communicator = 1,
                                                 .rank = UINT32_MAX,
                                                 .session = UINT64_MAX,
                                                 .pid = 9,
                                                 .sequence = UINT64_MAX,
                                                 .last = "all_reduce 7",
                                                 .last_age_us = UINT64_MAX,
                                                 .arrived = true } };
    items[3] = (struct status_item){ .kind = STATUS_MEMBER };
    items[4] = (struct status_item){ .kind = STATUS_PEER,
                                     .peer = { .node = "01234567-89ab-cdef-0123-456789abcdef",
                                               .host = "node-2",
                                               .address = "[fd00::2]:7777",
                                               .state = "up",
                                               .transport = "tcp eth0",
                                               .expecting = UINT32_MAX,
                                               .heard_age_us = UINT64_MAX,
                                               .gpu_direct = true } };
    items[5] = (struct status_item){ .kind = STATUS_GPU,
                                     .gpu = { .uuid = "GPU-01234567-89ab-cdef-0123-456789abcdef",
                                              .name = "NVIDIA H200",
                                              .mapped_bytes = UINT64_MAX,
                                              .mappings = UINT32_MAX,
                                              .failed = true,
                                              .failures = UINT64_MAX } };
    return items;
}

static inline bool sample_reply(uint32_t i, struct reply *ret)
{
    struct reply r = { .serial = i };

    switch (i) {
    case 0:
        r.kind = REPLY_WELCOME;
        break;
    case 1:
        r.kind = REPLY_WELCOME;
        r.welcome.version = UINT32_MAX;
        r.welcome.slots = UINT32_MAX;
        r.welcome.daemon_version = "0.1.0";
        r.welcome.node = TEXT_511;
        r.welcome.session = UINT64_MAX;
        r.welcome.rings = true;
        r.welcome.gpus = r.welcome.slates = true;
        r.welcome.spin_us = UINT32_MAX;
        break;
    case 2:
        r.kind = REPLY_DONE;
        break;
    case 3:
        r.kind = REPLY_DONE;
        r.done = sample_error();
        break;
    case 4:
        r.kind = REPLY_ID;
        r.id = ID_128;
        break;
    case 5:
        r.kind = REPLY_COMPLETION;
        break;
    case 6:
        r.kind = REPLY_COMPLETION;
        r.completion = (struct reply_completion){ .error = sample_error(),
                                                  .sequence = UINT64_MAX,
                                                  .wait_us = UINT64_MAX,
                                                  .run_us = UINT64_MAX,
                                                  .chunks = UINT64_MAX,
                                                  .chunk_elements = UINT64_MAX,
                                                  .peak_bytes = UINT64_MAX,
                                                  .algorithm = "hierarchical",
                                                  .counts = sample_counts,
                                                  .ncounts = RANKS_MAX,
                                                  .child_rank = UINT32_MAX,
                                                  .child_nranks = UINT32_MAX,
                                                  .persistent = UINT32_MAX,
                                                  .child_id = ID_128 };
        break;
    case 7:
        r.kind = REPLY_STATUS_PAGE;
        break;
    case 8:
        r.kind = REPLY_STATUS_PAGE;
        r.status_page.items = sample_status_items();
        r.status_page.nitems = CODEC_STATUS_ITEMS;
        r.status_page.next_cursor = UINT64_MAX;
        break;
    case 9:
        r.kind = REPLY_GOODBYE;
        r.done = (struct error){ .code = ERROR_DAEMON_STOPPING, .text = "the daemon stops" };
        break;
    case 10:
        r.kind = REPLY_BELL;
        break;
    case 11:
        r.kind = REPLY_PROGRESS;
        r.progress.elements_done = UINT64_MAX;
        break;
    default:
        return false;
    }
    *ret = r;
    return true;
}

static inline void say_string(FILE *f, const char *name, const char *s)
{
    fprintf(f, " %s=\"%s\"", name, s ? s : "");
}

static inline void say_counts(FILE *f, const uint64_t *counts, uint32_t ncounts)
{
    fprintf(f, " counts=[%u:", ncounts);
    for (uint32_t i = 0; i < ncounts; i++)
        fprintf(f, " %" PRIu64, counts[i]);
    fprintf(f, "]");
}

static inline void say_error(FILE *f, const struct error *e)
{
    if (e->code == ERROR_NONE)
        return;
    fprintf(f, " error=%d nranks=%u:", e->code, e->nranks);
    for (uint32_t i = 0; i < MIN(e->nranks, ERROR_RANKS_MAX); i++)
        fprintf(f, " %u", e->ranks[i]);
    say_string(f, "text", e->text);
}

static inline void say_bytes(FILE *f, const char *name, const void *bytes, size_t n)
{
    fprintf(f, " %s=", name);
    for (size_t i = 0; i < n; i++)
        fprintf(f, "%02x", ((const uint8_t *)bytes)[i]);
}

static inline void say_post(FILE *f, const struct request_post *p)
{
    fprintf(f, "post comm=%u sequence=%" PRIu64 " slot=%u kind=%u op=%u dtype=%u root=%u", p->comm,
            p->sequence, p->slot, p->d.kind, p->d.op, p->d.dtype, p->d.root);
    fprintf(f, " budget=%" PRIu64 " nranks=%u axes=", p->d.budget, p->d.nranks);
    for (uint32_t i = 0; i < p->d.shape.naxes; i++)
        fprintf(f, " %" PRIu64, p->d.shape.axes[i]);
    fprintf(f, " in=%u+%" PRIu64 " out=%u+%" PRIu64, p->in.region, p->in.offset, p->out.region,
            p->out.offset);
    fprintf(f, " windows=%" PRIu64 ",%" PRIu64 " persistent=%d", p->in.window, p->out.window,
            p->persistent);
    fprintf(f, " out_rows=%" PRIu64 " peer=%u tag=%u color=%d key=%d child=%u", p->out_rows,
            p->peer, p->tag, p->color, p->key, p->child);
    fprintf(f, " fence=%u signal=%u", p->fence, p->signal);
    say_counts(f, p->counts, p->ncounts);
    say_error(f, &p->rejection);
}

/* Every field that a request of its kind has. */
static inline void say_request(FILE *f, const struct request *r)
{
    fprintf(f, "%" PRIu64 " ", r->serial);
    switch (r->kind) {
    case REQUEST_HELLO:
        fprintf(f, "hello %u-%u", r->hello.version_min, r->hello.version_max);
        say_string(f, "name", r->hello.name);
        break;
    case REQUEST_REGION_OPEN:
        fprintf(f, "region_open %u %" PRIu64 " kind=%u", r->region_open.region,
                r->region_open.bytes, r->region_open.kind);
        say_bytes(f, "gpu", r->region_open.gpu, CODEC_GPU_BYTES);
        say_bytes(f, "ipc", r->region_open.ipc, CODEC_HANDLE_BYTES);
        break;
    case REQUEST_REGION_CLOSE:
        fprintf(f, "region_close %u", r->region_close.region);
        break;
    case REQUEST_ID_NEW:
        fprintf(f, "id_new");
        break;
    case REQUEST_ID_DROP:
        fprintf(f, "id_drop");
        say_string(f, "id", r->id_drop.id);
        break;
    case REQUEST_JOIN:
        fprintf(f, "join %u rank %u of %u, %" PRIu64, r->join.comm, r->join.rank, r->join.nranks,
                r->join.timeout_us);
        say_string(f, "id", r->join.id);
        say_string(f, "label", r->join.label);
        say_string(f, "algorithm", r->join.algorithm);
        break;
    case REQUEST_LEAVE:
        fprintf(f, "leave %u", r->leave.comm);
        break;
    case REQUEST_ABORT:
        fprintf(f, "abort %u", r->abort.comm);
        say_string(f, "text", r->abort.text);
        break;
    case REQUEST_EXPECT:
        fprintf(f, "expect %u", r->expect.comm);
        say_counts(f, r->expect.counts, r->expect.ncounts);
        break;
    case REQUEST_POST:
        say_post(f, &r->post);
        break;
    case REQUEST_STATUS:
        fprintf(f, "status %" PRIu64, r->status.cursor);
        break;
    case REQUEST_RINGS_OPEN:
        fprintf(f, "rings_open");
        break;
    case REQUEST_BELL:
        fprintf(f, "bell");
        break;
    case REQUEST_START:
        fprintf(f, "start %u sequence=%" PRIu64 " slot=%u persistent=%u", r->start.comm,
                r->start.sequence, r->start.slot, r->start.persistent);
        fprintf(f, " fence=%u signal=%u", r->start.fence, r->start.signal);
        break;
    case REQUEST_PERSISTENT_CLOSE:
        fprintf(f, "persistent_close %u %u", r->persistent_close.comm,
                r->persistent_close.persistent);
        break;
    case REQUEST_STAGED:
        fprintf(f, "staged %u slot=%u %" PRIu64 " %" PRIu64, r->staged.comm, r->staged.slot,
                r->staged.in_ready, r->staged.out_taken);
        break;
    case REQUEST_FENCE_OPEN:
        fprintf(f, "fence_open %u", r->fence_open.fence);
        say_bytes(f, "gpu", r->fence_open.gpu, CODEC_GPU_BYTES);
        say_bytes(f, "handle", r->fence_open.handle, CODEC_HANDLE_BYTES);
        break;
    case REQUEST_FENCE_CLOSE:
        fprintf(f, "fence_close %u", r->fence_close.fence);
        break;
    case REQUEST_SIGNALS_OPEN:
        fprintf(f, "signals_open");
        break;
    case REQUEST_SLATE_OPEN:
        fprintf(f, "slate_open %u", r->slate_open.comm);
        break;
    }
}

static inline void say_status_item(FILE *f, const struct status_item *s)
{
    switch (s->kind) {
    case STATUS_DAEMON:
        fprintf(f, "\ndaemon pid=%u sessions=%u communicators=%u regions=%u workers=%u",
                s->daemon.pid, s->daemon.sessions, s->daemon.communicators, s->daemon.regions,
                s->daemon.workers);
        fprintf(f, " uptime=%" PRIu64 " bytes=%" PRIu64, s->daemon.uptime_us,
                s->daemon.region_bytes);
        say_string(f, "version", s->daemon.version);
        say_string(f, "node", s->daemon.node);
        say_string(f, "state", s->daemon.state);
        say_string(f, "kernels", s->daemon.kernels);
        break;
    case STATUS_SESSION:
        fprintf(f, "\nsession %" PRIu64 " bytes=%" PRIu64, s->session.session,
                s->session.region_bytes);
        fprintf(f, " pid=%u uid=%u regions=%u in_flight=%u members=%u", s->session.pid,
                s->session.uid, s->session.regions, s->session.in_flight, s->session.members);
        say_string(f, "name", s->session.name);
        break;
    case STATUS_COMMUNICATOR:
        fprintf(f, "\ncommunicator %" PRIu64 " sequence=%" PRIu64, s->communicator.communicator,
                s->communicator.sequence);
        fprintf(f, " oldest=%u,%" PRIu64 ",%" PRIu64 " nranks=%u present=%u",
                s->communicator.oldest_kind, s->communicator.oldest_sequence,
                s->communicator.oldest_age_us, s->communicator.nranks, s->communicator.present);
        say_string(f, "label", s->communicator.label);
        say_string(f, "state", s->communicator.state);
        say_string(f, "failure", s->communicator.failure);
        say_string(f, "oldest_state", s->communicator.oldest_state);
        say_string(f, "oldest_arrived", s->communicator.oldest_arrived);
        say_string(f, "oldest_missing", s->communicator.oldest_missing);
        break;
    case STATUS_MEMBER:
        fprintf(f, "\nmember %" PRIu64 " session=%" PRIu64 " sequence=%" PRIu64 " age=%" PRIu64,
                s->member.communicator, s->member.session, s->member.sequence,
                s->member.last_age_us);
        fprintf(f, " rank=%u pid=%u arrived=%d", s->member.rank, s->member.pid, s->member.arrived);
        say_string(f, "last", s->member.last);
        break;
    case STATUS_PEER:
        fprintf(f, "\npeer expecting=%u age=%" PRIu64, s->peer.expecting, s->peer.heard_age_us);
        fprintf(f, " direct=%d", s->peer.gpu_direct);
        say_string(f, "node", s->peer.node);
        say_string(f, "host", s->peer.host);
        say_string(f, "address", s->peer.address);
        say_string(f, "state", s->peer.state);
        say_string(f, "transport", s->peer.transport);
        break;
    case STATUS_GPU:
        fprintf(f, "\ngpu bytes=%" PRIu64 " mappings=%u", s->gpu.mapped_bytes, s->gpu.mappings);
        fprintf(f, " failed=%d failures=%" PRIu64, s->gpu.failed, s->gpu.failures);
        say_string(f, "uuid", s->gpu.uuid);
        say_string(f, "name", s->gpu.name);
        break;
    }
}

/* Every field that a reply of its kind has. */
static inline void say_reply(FILE *f, const struct reply *r)
{
    const struct reply_completion *c = &r->completion;

    fprintf(f, "%" PRIu64 " ", r->serial);
    switch (r->kind) {
    case REPLY_WELCOME:
        fprintf(f, "welcome %u slots=%u session=%" PRIu64, r->welcome.version, r->welcome.slots,
                r->welcome.session);
        fprintf(f, " rings=%d spin=%u gpus=%d slates=%d", r->welcome.rings,
                r->welcome.spin_us, r->welcome.gpus, r->welcome.slates);
        say_string(f, "version", r->welcome.daemon_version);
        say_string(f, "node", r->welcome.node);
        break;
    case REPLY_DONE:
        fprintf(f, "done");
        say_error(f, &r->done);
        break;
    case REPLY_ID:
        say_string(f, "id", r->id);
        break;
    case REPLY_COMPLETION:
        fprintf(f, "completion %" PRIu64 " wait=%" PRIu64 " run=%" PRIu64, c->sequence, c->wait_us,
                c->run_us);
        fprintf(f, " chunks=%" PRIu64 " of %" PRIu64 " peak=%" PRIu64, c->chunks, c->chunk_elements,
                c->peak_bytes);
        fprintf(f, " child=%u of %u persistent=%u", c->child_rank, c->child_nranks, c->persistent);
        say_string(f, "algorithm", c->algorithm);
        say_string(f, "child_id", c->child_id);
        say_counts(f, c->counts, c->ncounts);
        say_error(f, &c->error);
        break;
    case REPLY_STATUS_PAGE:
        fprintf(f, "status_page next=%" PRIu64, r->status_page.next_cursor);
        for (uint32_t i = 0; i < r->status_page.nitems; i++)
            say_status_item(f, &r->status_page.items[i]);
        break;
    case REPLY_GOODBYE:
        fprintf(f, "goodbye");
        say_error(f, &r->done);
        break;
    case REPLY_BELL:
        fprintf(f, "bell");
        break;
    case REPLY_PROGRESS:
        fprintf(f, "progress %" PRIu64, r->progress.elements_done);
        break;
    }
}

/* To be freed. */
static inline char *text_of_request(const struct request *r)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    say_request(f, r);
    fclose(f);
    return text;
}

/* Likewise. */
static inline char *text_of_reply(const struct reply *r)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    say_reply(f, r);
    fclose(f);
    return text;
}

#endif
