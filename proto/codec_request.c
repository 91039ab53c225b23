#include <errno.h>

#include "proto/codec_wire.h"

static struct wire_operand take_operand(uint32_t region, uint64_t offset, uint64_t window)
{
    return region ? (struct wire_operand){ region, offset, window } : (struct wire_operand){ 0 };
}

/* What its kind has no use for must not be there. */
static void decode_region_open(struct codec *c, const Ruccl__V1__RegionOpen *m, struct request *ret)
{
    uint32_t kind = m->kind ? m->kind : REGION_MEMFD;

    ret->kind = REQUEST_REGION_OPEN;
    ret->region_open.region = codec_take_id(c, m->region, "region_open: region");
    ret->region_open.bytes = m->bytes;
    if (kind > REGION_CUDA_FD) {
        codec_complain(c, "region_open: memory of kind %u is not known", kind);
        return;
    }
    ret->region_open.kind = (enum region_kind)kind;
    codec_take_bytes(c, m->gpu, kind == REGION_MEMFD ? 0 : CODEC_GPU_BYTES, "region_open: gpu",
                     ret->region_open.gpu);
    codec_take_bytes(c, m->ipc, kind == REGION_CUDA_IPC ? CODEC_HANDLE_BYTES : 0,
                     "region_open: ipc", ret->region_open.ipc);
}

static void decode_fence_open(struct codec *c, const Ruccl__V1__FenceOpen *m, struct request *ret)
{
    ret->kind = REQUEST_FENCE_OPEN;
    ret->fence_open.fence = codec_take_id(c, m->fence, "fence_open: fence");
    codec_take_bytes(c, m->gpu, CODEC_GPU_BYTES, "fence_open: gpu", ret->fence_open.gpu);
    codec_take_bytes(c, m->handle, CODEC_HANDLE_BYTES, "fence_open: handle",
                     ret->fence_open.handle);
}

static void decode_join(struct codec *c, const Ruccl__V1__Join *m, struct request_join *ret)
{
    ret->comm = codec_take_id(c, m->comm, "join: comm");
    ret->id = codec_take_string(c, m->id, CODEC_ID_MAX, "join: id");
    ret->rank = m->rank;
    ret->nranks = m->nranks;
    ret->label = codec_take_string(c, m->label, CODEC_NAME_MAX, "join: label");
    ret->timeout_us = m->timeout_us;
    ret->algorithm = codec_take_string(c, m->algorithm, CODEC_ALGORITHM_MAX, "join: algorithm");
}

static void decode_descriptor(struct codec *c, const Ruccl__V1__Post *m, struct descriptor *ret)
{
    ret->kind = (enum collective_id)m->kind;
    ret->op = (enum operator_id)m->op;
    ret->dtype = (enum dtype_id)m->dtype;
    ret->root = m->root;
    ret->budget = m->budget;
    codec_take_shape(c, m->axes, m->n_axes, "post", &ret->shape);
}

static void decode_post(struct codec *c, const Ruccl__V1__Post *m, struct request_post *ret)
{
    ret->comm = codec_take_id(c, m->comm, "post: comm");
    ret->sequence = m->sequence;
    ret->slot = m->slot;
    decode_descriptor(c, m, &ret->d);
    ret->in = take_operand(m->in_region, m->in_offset, m->in_window);
    ret->out = take_operand(m->out_region, m->out_offset, m->out_window);
    ret->out_rows = m->out_rows;
    ret->counts = m->counts;
    ret->ncounts = codec_take_ncounts(c, m->n_counts, "post");
    ret->peer = m->peer;
    ret->tag = m->tag;
    ret->color = m->color;
    ret->key = m->key;
    ret->child = m->child;
    ret->persistent = m->persistent;
    ret->fence = m->fence;
    ret->signal = m->signal;
    codec_take_error(c, m->rejection, &ret->rejection);
}

static void decode_body(struct codec *c, const Ruccl__V1__Request *m, struct request *ret)
{
    switch (m->body_case) {
    case RUCCL__V1__REQUEST__BODY_HELLO:
        ret->kind = REQUEST_HELLO;
        ret->hello.version_min = m->hello->version_min;
        ret->hello.version_max = m->hello->version_max;
        ret->hello.name = codec_take_string(c, m->hello->name, CODEC_NAME_MAX, "hello: name");
        return;
    case RUCCL__V1__REQUEST__BODY_REGION_OPEN:
        decode_region_open(c, m->region_open, ret);
        return;
    case RUCCL__V1__REQUEST__BODY_REGION_CLOSE:
        ret->kind = REQUEST_REGION_CLOSE;
        ret->region_close.region =
            codec_take_id(c, m->region_close->region, "region_close: region");
        return;
    case RUCCL__V1__REQUEST__BODY_ID_NEW:
        ret->kind = REQUEST_ID_NEW;
        return;
    case RUCCL__V1__REQUEST__BODY_ID_DROP:
        ret->kind = REQUEST_ID_DROP;
        ret->id_drop.id = codec_take_string(c, m->id_drop->id, CODEC_ID_MAX, "id_drop: id");
        return;
    case RUCCL__V1__REQUEST__BODY_JOIN:
        ret->kind = REQUEST_JOIN;
        decode_join(c, m->join, &ret->join);
        return;
    case RUCCL__V1__REQUEST__BODY_LEAVE:
        ret->kind = REQUEST_LEAVE;
        ret->leave.comm = codec_take_id(c, m->leave->comm, "leave: comm");
        return;
    case RUCCL__V1__REQUEST__BODY_ABORT:
        ret->kind = REQUEST_ABORT;
        ret->abort.comm = codec_take_id(c, m->abort->comm, "abort: comm");
        ret->abort.text = codec_take_string(c, m->abort->text, CODEC_TEXT_MAX, "abort: text");
        return;
    case RUCCL__V1__REQUEST__BODY_EXPECT:
        ret->kind = REQUEST_EXPECT;
        ret->expect.comm = codec_take_id(c, m->expect->comm, "expect: comm");
        ret->expect.counts = m->expect->counts;
        ret->expect.ncounts = codec_take_ncounts(c, m->expect->n_counts, "expect");
        return;
    case RUCCL__V1__REQUEST__BODY_POST:
        ret->kind = REQUEST_POST;
        decode_post(c, m->post, &ret->post);
        return;
    case RUCCL__V1__REQUEST__BODY_STATUS:
        ret->kind = REQUEST_STATUS;
        ret->status.cursor = m->status->cursor;
        return;
    case RUCCL__V1__REQUEST__BODY_RINGS_OPEN:
        ret->kind = REQUEST_RINGS_OPEN;
        return;
    case RUCCL__V1__REQUEST__BODY_BELL:
        ret->kind = REQUEST_BELL;
        return;
    case RUCCL__V1__REQUEST__BODY_START:
        ret->kind = REQUEST_START;
        ret->start.comm = codec_take_id(c, m->start->comm, "start: comm");
        ret->start.sequence = m->start->sequence;
        ret->start.slot = m->start->slot;
        ret->start.persistent = codec_take_id(c, m->start->persistent, "start: persistent");
        ret->start.fence = m->start->fence;
        ret->start.signal = m->start->signal;
        return;
    case RUCCL__V1__REQUEST__BODY_PERSISTENT_CLOSE:
        ret->kind = REQUEST_PERSISTENT_CLOSE;
        ret->persistent_close.comm =
            codec_take_id(c, m->persistent_close->comm, "persistent_close: comm");
        ret->persistent_close.persistent =
            codec_take_id(c, m->persistent_close->persistent, "persistent_close: persistent");
        return;
    case RUCCL__V1__REQUEST__BODY_STAGED:
        ret->kind = REQUEST_STAGED;
        ret->staged.comm = codec_take_id(c, m->staged->comm, "staged: comm");
        ret->staged.slot = m->staged->slot;
        ret->staged.in_ready = m->staged->in_ready;
        ret->staged.out_taken = m->staged->out_taken;
        return;
    case RUCCL__V1__REQUEST__BODY_FENCE_OPEN:
        decode_fence_open(c, m->fence_open, ret);
        return;
    case RUCCL__V1__REQUEST__BODY_FENCE_CLOSE:
        ret->kind = REQUEST_FENCE_CLOSE;
        ret->fence_close.fence = codec_take_id(c, m->fence_close->fence, "fence_close: fence");
        return;
    case RUCCL__V1__REQUEST__BODY_SIGNALS_OPEN:
        ret->kind = REQUEST_SIGNALS_OPEN;
        return;
    case RUCCL__V1__REQUEST__BODY_SLATE_OPEN:
        ret->kind = REQUEST_SLATE_OPEN;
        ret->slate_open.comm = codec_take_id(c, m->slate_open->comm, "slate_open: comm");
        return;
    default:
        codec_complain(c, "request %llu asks for nothing known", (unsigned long long)m->serial);
    }
}

int codec_decode_request(struct codec *c, const void *bytes, size_t len, struct request *ret,
                         struct error *e)
{
    const Ruccl__V1__Request *m =
        codec_unpack(c, &ruccl__v1__request__descriptor, bytes, len, 0, e);
    struct request request = { 0 };

    if (!m)
        return c->result;
    request.serial = m->serial;
    decode_body(c, m, &request);
    if (c->result < 0)
        return c->result;
    *ret = request;
    return 0;
}

static int encode_hello(const struct request *r, Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__Hello body = RUCCL__V1__HELLO__INIT;
    bool fits = true;

    body.version_min = r->hello.version_min;
    body.version_max = r->hello.version_max;
    body.name = codec_give_string(r->hello.name, CODEC_NAME_MAX, &fits);
    m->body_case = RUCCL__V1__REQUEST__BODY_HELLO;
    m->hello = &body;
    return codec_pack(&m->base, fits, buffer);
}

static ProtobufCBinaryData give_bytes(const uint8_t *bytes, size_t n)
{
    return (ProtobufCBinaryData){ n, (uint8_t *)bytes };
}

static int encode_region_open(const struct request *r, Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__RegionOpen body = RUCCL__V1__REGION_OPEN__INIT;

    body.region = r->region_open.region;
    body.bytes = r->region_open.bytes;
    body.kind = r->region_open.kind;
    if (r->region_open.kind > REGION_MEMFD)
        body.gpu = give_bytes(r->region_open.gpu, CODEC_GPU_BYTES);
    if (r->region_open.kind == REGION_CUDA_IPC)
        body.ipc = give_bytes(r->region_open.ipc, CODEC_HANDLE_BYTES);
    m->body_case = RUCCL__V1__REQUEST__BODY_REGION_OPEN;
    m->region_open = &body;
    return codec_pack(&m->base, true, buffer);
}

static int encode_region_close(const struct request *r, Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__RegionClose body = RUCCL__V1__REGION_CLOSE__INIT;

    body.region = r->region_close.region;
    m->body_case = RUCCL__V1__REQUEST__BODY_REGION_CLOSE;
    m->region_close = &body;
    return codec_pack(&m->base, true, buffer);
}

static int encode_id_new(Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__IdNew body = RUCCL__V1__ID_NEW__INIT;

    m->body_case = RUCCL__V1__REQUEST__BODY_ID_NEW;
    m->id_new = &body;
    return codec_pack(&m->base, true, buffer);
}

static int encode_id_drop(const struct request *r, Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__IdDrop body = RUCCL__V1__ID_DROP__INIT;
    bool fits = true;

    body.id = codec_give_string(r->id_drop.id, CODEC_ID_MAX, &fits);
    m->body_case = RUCCL__V1__REQUEST__BODY_ID_DROP;
    m->id_drop = &body;
    return codec_pack(&m->base, fits, buffer);
}

static int encode_join(const struct request_join *join, Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__Join body = RUCCL__V1__JOIN__INIT;
    bool fits = true;

    body.comm = join->comm;
    body.id = codec_give_string(join->id, CODEC_ID_MAX, &fits);
    body.rank = join->rank;
    body.nranks = join->nranks;
    body.label = codec_give_string(join->label, CODEC_NAME_MAX, &fits);
    body.timeout_us = join->timeout_us;
    body.algorithm = codec_give_string(join->algorithm, CODEC_ALGORITHM_MAX, &fits);
    m->body_case = RUCCL__V1__REQUEST__BODY_JOIN;
    m->join = &body;
    return codec_pack(&m->base, fits, buffer);
}

static int encode_leave(const struct request *r, Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__Leave body = RUCCL__V1__LEAVE__INIT;

    body.comm = r->leave.comm;
    m->body_case = RUCCL__V1__REQUEST__BODY_LEAVE;
    m->leave = &body;
    return codec_pack(&m->base, true, buffer);
}

static int encode_abort(const struct request *r, Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__Abort body = RUCCL__V1__ABORT__INIT;
    bool fits = true;

    body.comm = r->abort.comm;
    body.text = codec_give_string(r->abort.text, CODEC_TEXT_MAX, &fits);
    m->body_case = RUCCL__V1__REQUEST__BODY_ABORT;
    m->abort = &body;
    return codec_pack(&m->base, fits, buffer);
}

static int encode_expect(const struct request *r, Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__Expect body = RUCCL__V1__EXPECT__INIT;
    bool fits = true;

    body.comm = r->expect.comm;
    body.n_counts = codec_give_ncounts(r->expect.ncounts, &fits);
    body.counts = (uint64_t *)r->expect.counts;
    m->body_case = RUCCL__V1__REQUEST__BODY_EXPECT;
    m->expect = &body;
    return codec_pack(&m->base, fits, buffer);
}

static void give_descriptor(const struct descriptor *d, Ruccl__V1__Post *body, bool *fits)
{
    body->kind = d->kind;
    body->op = d->op;
    body->dtype = d->dtype;
    body->n_axes = d->shape.naxes;
    body->axes = (uint64_t *)d->shape.axes;
    body->root = d->root;
    body->budget = d->budget;
    if (d->shape.naxes > AXES_MAX)
        *fits = false;
}

static int encode_post(const struct request_post *post, Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__Post body = RUCCL__V1__POST__INIT;
    Ruccl__V1__Error rejection = RUCCL__V1__ERROR__INIT;
    bool fits = true;

    body.comm = post->comm;
    body.sequence = post->sequence;
    body.slot = post->slot;
    give_descriptor(&post->d, &body, &fits);
    body.in_region = post->in.region;
    body.in_offset = post->in.offset;
    body.in_window = post->in.window;
    body.out_region = post->out.region;
    body.out_offset = post->out.offset;
    body.out_window = post->out.window;
    body.out_rows = post->out_rows;
    body.n_counts = codec_give_ncounts(post->ncounts, &fits);
    body.counts = (uint64_t *)post->counts;
    body.peer = post->peer;
    body.tag = post->tag;
    body.color = post->color;
    body.key = post->key;
    body.child = post->child;
    body.persistent = post->persistent;
    body.fence = post->fence;
    body.signal = post->signal;
    body.rejection = codec_give_error(&post->rejection, &rejection);
    m->body_case = RUCCL__V1__REQUEST__BODY_POST;
    m->post = &body;
    return codec_pack(&m->base, fits, buffer);
}

static int encode_status(const struct request *r, Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__Status body = RUCCL__V1__STATUS__INIT;

    body.cursor = r->status.cursor;
    m->body_case = RUCCL__V1__REQUEST__BODY_STATUS;
    m->status = &body;
    return codec_pack(&m->base, true, buffer);
}

static int encode_rings_open(Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__RingsOpen body = RUCCL__V1__RINGS_OPEN__INIT;

    m->body_case = RUCCL__V1__REQUEST__BODY_RINGS_OPEN;
    m->rings_open = &body;
    return codec_pack(&m->base, true, buffer);
}

static int encode_bell(Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__Bell body = RUCCL__V1__BELL__INIT;

    m->body_case = RUCCL__V1__REQUEST__BODY_BELL;
    m->bell = &body;
    return codec_pack(&m->base, true, buffer);
}

static int encode_start(const struct request *r, Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__Start body = RUCCL__V1__START__INIT;

    body.comm = r->start.comm;
    body.sequence = r->start.sequence;
    body.slot = r->start.slot;
    body.persistent = r->start.persistent;
    body.fence = r->start.fence;
    body.signal = r->start.signal;
    m->body_case = RUCCL__V1__REQUEST__BODY_START;
    m->start = &body;
    return codec_pack(&m->base, true, buffer);
}

static int encode_persistent_close(const struct request *r, Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__PersistentClose body = RUCCL__V1__PERSISTENT_CLOSE__INIT;

    body.comm = r->persistent_close.comm;
    body.persistent = r->persistent_close.persistent;
    m->body_case = RUCCL__V1__REQUEST__BODY_PERSISTENT_CLOSE;
    m->persistent_close = &body;
    return codec_pack(&m->base, true, buffer);
}

static int encode_staged(const struct request *r, Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__Staged body = RUCCL__V1__STAGED__INIT;

    body.comm = r->staged.comm;
    body.slot = r->staged.slot;
    body.in_ready = r->staged.in_ready;
    body.out_taken = r->staged.out_taken;
    m->body_case = RUCCL__V1__REQUEST__BODY_STAGED;
    m->staged = &body;
    return codec_pack(&m->base, true, buffer);
}

static int encode_fence_open(const struct request *r, Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__FenceOpen body = RUCCL__V1__FENCE_OPEN__INIT;

    body.fence = r->fence_open.fence;
    body.gpu = give_bytes(r->fence_open.gpu, CODEC_GPU_BYTES);
    body.handle = give_bytes(r->fence_open.handle, CODEC_HANDLE_BYTES);
    m->body_case = RUCCL__V1__REQUEST__BODY_FENCE_OPEN;
    m->fence_open = &body;
    return codec_pack(&m->base, true, buffer);
}

static int encode_fence_close(const struct request *r, Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__FenceClose body = RUCCL__V1__FENCE_CLOSE__INIT;

    body.fence = r->fence_close.fence;
    m->body_case = RUCCL__V1__REQUEST__BODY_FENCE_CLOSE;
    m->fence_close = &body;
    return codec_pack(&m->base, true, buffer);
}

static int encode_signals_open(Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__SignalsOpen body = RUCCL__V1__SIGNALS_OPEN__INIT;

    m->body_case = RUCCL__V1__REQUEST__BODY_SIGNALS_OPEN;
    m->signals_open = &body;
    return codec_pack(&m->base, true, buffer);
}

static int encode_slate_open(const struct request *r, Ruccl__V1__Request *m, void *buffer)
{
    Ruccl__V1__SlateOpen body = RUCCL__V1__SLATE_OPEN__INIT;

    body.comm = r->slate_open.comm;
    m->body_case = RUCCL__V1__REQUEST__BODY_SLATE_OPEN;
    m->slate_open = &body;
    return codec_pack(&m->base, true, buffer);
}

int codec_encode_request(const struct request *r, void *buffer)
{
    Ruccl__V1__Request m = RUCCL__V1__REQUEST__INIT;

    m.serial = r->serial;
    switch (r->kind) {
    case REQUEST_HELLO:
        return encode_hello(r, &m, buffer);
    case REQUEST_REGION_OPEN:
        return encode_region_open(r, &m, buffer);
    case REQUEST_REGION_CLOSE:
        return encode_region_close(r, &m, buffer);
    case REQUEST_ID_NEW:
        return encode_id_new(&m, buffer);
    case REQUEST_ID_DROP:
        return encode_id_drop(r, &m, buffer);
    case REQUEST_JOIN:
        return encode_join(&r->join, &m, buffer);
    case REQUEST_LEAVE:
        return encode_leave(r, &m, buffer);
    case REQUEST_ABORT:
        return encode_abort(r, &m, buffer);
    case REQUEST_EXPECT:
        return encode_expect(r, &m, buffer);
    case REQUEST_POST:
        return encode_post(&r->post, &m, buffer);
    case REQUEST_STATUS:
        return encode_status(r, &m, buffer);
    case REQUEST_RINGS_OPEN:
        return encode_rings_open(&m, buffer);
    case REQUEST_BELL:
        return encode_bell(&m, buffer);
    case REQUEST_START:
        return encode_start(r, &m, buffer);
    case REQUEST_PERSISTENT_CLOSE:
        return encode_persistent_close(r, &m, buffer);
    case REQUEST_STAGED:
        return encode_staged(r, &m, buffer);
    case REQUEST_FENCE_OPEN:
        return encode_fence_open(r, &m, buffer);
    case REQUEST_FENCE_CLOSE:
        return encode_fence_close(r, &m, buffer);
    case REQUEST_SIGNALS_OPEN:
        return encode_signals_open(&m, buffer);
    case REQUEST_SLATE_OPEN:
        return encode_slate_open(r, &m, buffer);
    }
    return -EINVAL;
}
