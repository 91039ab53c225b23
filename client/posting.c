#include "client/posting.h"

#include <string.h>

#include "client/comm.h"
#include "client/region.h"

void posting_init(struct posting *p, struct ruccl_comm comm, const struct call *call)
{
    memset(p, 0, offsetof(struct posting, q.post.rejection)); /* most of it */
    error_clear(&p->q.post.rejection);
    p->call = call;
    p->row = collective_get(call->kind);
    p->attended = comm.attended;
    p->place.stream = comm.stream;
    p->q.kind = REQUEST_POST;
    p->q.post.d.budget = comm.max_chunk_bytes;
}

/* Of a tensor that has no more axes than there may be. */
static void take_shape(const struct ruccl_tensor *t, struct shape *ret)
{
    ret->naxes = t->naxes;
    for (uint32_t i = 0; i < t->naxes; i++)
        ret->axes[i] = t->shape[i];
}

const char *posting_dtype(uint32_t dtype)
{
    const struct dtype *t = dtype_get(dtype);

    return t ? t->name : "an unknown type";
}

static bool is_root(const struct posting *p)
{
    return p->member->rank == p->call->root;
}

static bool in_counts(const struct posting *p)
{
    if (p->call->kind == COLLECTIVE_RECV)
        return false;
    return !(p->row->flags & COLLECTIVE_IN_AT_ROOT) || is_root(p);
}

static bool out_counts(const struct posting *p)
{
    if (p->call->kind == COLLECTIVE_SEND)
        return false;
    return !(p->row->flags & COLLECTIVE_OUT_AT_ROOT) || is_root(p);
}

static int check_axes(const struct posting *p, const char *name, const struct ruccl_tensor *t,
                      struct error *e)
{
    if (t->naxes <= AXES_MAX)
        return 0;
    return error_set(e, ERROR_INVALID_SHAPE, "%s: %s has %u axes, more than %u", p->row->name, name,
                     t->naxes, AXES_MAX);
}

/* Notes the tensors that count here, and what all ranks must agree on: see COLLECTIVE_LIST. */
static int describe(struct posting *p, struct error *e)
{
    const bool by_out = p->call->kind == COLLECTIVE_RECV || p->row->flags & COLLECTIVE_IN_AT_ROOT;
    const struct ruccl_tensor *agreed = by_out ? p->call->out : p->call->in;

    if (!agreed)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s: %s is NULL", p->row->name,
                         by_out ? "out" : "in");
    if (check_axes(p, by_out ? "out" : "in", agreed, e) < 0)
        return -(int)e->code;
    p->q.post.d.dtype = (enum dtype_id)agreed->dtype;
    take_shape(agreed, &p->q.post.d.shape);
    p->in.t = in_counts(p) ? p->call->in : NULL;
    p->out.t = out_counts(p) ? p->call->out : NULL;
    if (p->call->kind == COLLECTIVE_ALL_TO_ALL_V && p->out.t && p->out.t->naxes > 0)
        p->q.post.out_rows = p->out.t->shape[0];
    return 0;
}

/* The agreed shape, but for axis 0: there is `rows`; or of a capacity, anything. */
static bool has_shape(const struct posting *p, const struct ruccl_tensor *t, uint64_t rows)
{
    const struct shape *s = &p->q.post.d.shape;

    if (t->naxes != s->naxes)
        return false;
    for (uint32_t i = 1; i < s->naxes; i++)
        if (t->shape[i] != s->axes[i])
            return false;
    return s->naxes == 0 || t->shape[0] == rows || p->call->kind == COLLECTIVE_ALL_TO_ALL_V;
}

static int refuse_shape(const struct posting *p, const struct operand *o, uint64_t rows,
                        struct error *e)
{
    struct shape s = { 0 }, expected = p->q.post.d.shape;
    struct text is = { 0 }, must_be = { 0 };

    if (check_axes(p, o->name, o->t, e) < 0)
        return -(int)e->code;
    take_shape(o->t, &s);
    if (expected.naxes > 0)
        expected.axes[0] =
            p->call->kind == COLLECTIVE_ALL_TO_ALL_V && s.naxes > 0 ? s.axes[0] : rows;
    text_add_shape(&is, &s);
    text_add_shape(&must_be, &expected);
    return error_set(e, ERROR_INVALID_SHAPE, "%s: %s has shape %s, but it must be %s", p->row->name,
                     o->name, is.s, must_be.s);
}

/* Only a capacity: that it suffices is for the daemon to say, who knows what comes. */
static int measure_capacity(const struct posting *p, struct operand *o, struct error *e)
{
    struct shape s;

    take_shape(o->t, &s);
    if (!shape_count(&s, &o->bytes) ||
        !mul_u64(o->bytes, dtype_get(p->q.post.d.dtype)->width, &o->bytes) || o->bytes > INT64_MAX)
        return error_set(e, ERROR_INVALID_SHAPE, "%s: %s has more bytes than fit in 63 bits",
                         p->row->name, o->name);
    return 0;
}

/* The daemon knows how large the region was made, which may be more than was asked for. */
static int check_region(const struct posting *p, const struct operand *o, struct error *e)
{
    uint64_t end;

    if (!region_is_live(p->conn, o->region))
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "%s: the region of %s is not a live one of this connection", p->row->name,
                         o->name);
    if (!add_u64(o->offset, o->bytes, &end) || end > o->region->bytes)
        return error_set(e, ERROR_OUT_OF_RANGE,
                         "%s: %sput of %llu bytes at offset %llu ends behind its region of %llu "
                         "bytes",
                         p->row->name, o->name, (unsigned long long)o->bytes,
                         (unsigned long long)o->offset, (unsigned long long)o->region->bytes);
    return 0;
}

/* Memory without a region: the host's, or what is registered of a GPU's. */
static int find_region(const struct posting *p, struct operand *o, struct error *e)
{
    const uintptr_t address = (uintptr_t)o->t->data;

    if (!address)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s: %s has neither region nor data",
                         p->row->name, o->name);
    o->region = gpu_find_region(p->conn, address);
    if (o->region)
        o->offset = address - (uintptr_t)o->region->data;
    else if (gpu_has_memory(address))
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "%s: %s is in memory of a GPU, at %p, that is not registered with this "
                         "connection; register it with ruccl_register_cuda()",
                         p->row->name, o->name, o->t->data);
    return 0;
}

/* Where the operand's bytes are: in a live region, or somewhere at least. */
static int check_memory(const struct posting *p, struct operand *o, struct error *e)
{
    int r = 0;

    o->region = o->t->region;
    o->offset = o->t->offset;
    if (!o->region && o->bytes > 0)
        r = find_region(p, o, e);
    if (r == 0 && o->region)
        r = check_region(p, o, e);
    if (r < 0)
        return r;
    o->copied = o->bytes > 0 && (!o->region || o->region->staged);
    if (o->copied && p->call->ret_persistent)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "%s: %s of a persistent operation must be in a region%s", p->row->name,
                         o->name, o->region ? " that is not staged" : "");
    o->address = o->region ? (uintptr_t)o->region->data + o->offset : (uintptr_t)o->t->data;
    return 0;
}

static int check_operand(const struct posting *p, struct operand *o,
                         const struct tensor_extent *expected, struct error *e)
{
    const uint32_t agreed = p->q.post.d.dtype;
    int r = 0;

    if (!o->t)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s: %s is NULL", p->row->name, o->name);
    if (o->t->dtype != agreed)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s: %s is of %s, the other tensor of %s",
                         p->row->name, o->name, posting_dtype(o->t->dtype), posting_dtype(agreed));
    if (!has_shape(p, o->t, expected->rows))
        return refuse_shape(p, o, expected->rows, e);
    o->bytes = expected->bytes;
    if (p->call->kind == COLLECTIVE_ALL_TO_ALL_V)
        r = measure_capacity(p, o, e);
    return r < 0 ? r : check_memory(p, o, e);
}

static int check_counts(const struct posting *p, const char *name, const uint64_t *counts,
                        struct error *e)
{
    /* A caller's negative number arrives here as a huge one. */
    for (uint32_t i = 0; i < p->member->nranks; i++)
        if (counts[i] > INT64_MAX)
            return error_set(e, ERROR_INVALID_ARGUMENT, "%s: %s[%u] is negative: %lld",
                             p->row->name, name, i, (long long)counts[i]);
    return 0;
}

static int check_rows(const struct posting *p, struct error *e)
{
    const uint64_t *counts = p->call->send_counts;
    uint64_t rows = p->q.post.d.shape.axes[0], sum = 0;
    int r;

    if (!counts)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s: send_counts is NULL", p->row->name);
    r = check_counts(p, "send_counts", counts, e);
    if (r == 0 && p->call->expected_counts)
        r = check_counts(p, "expected_counts", p->call->expected_counts, e);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < p->member->nranks; i++)
        if (!add_u64(sum, counts[i], &sum))
            return error_set(e, ERROR_INVALID_ARGUMENT,
                             "%s: the sum of send_counts does not fit in 64 bits", p->row->name);
    if (sum != rows)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "%s: send_counts add up to %llu rows, but in has %llu", p->row->name,
                         (unsigned long long)sum, (unsigned long long)rows);
    return 0;
}

bool posting_is_in_place(const struct posting *p)
{
    const struct operand *in = &p->in, *out = &p->out;
    const uint64_t rank = p->member->rank;

    switch (p->call->kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_BROADCAST:
        return in->address == out->address;
    case COLLECTIVE_ALL_GATHER:
        return in->address == out->address + rank * in->bytes;
    case COLLECTIVE_REDUCE_SCATTER:
        return out->address == in->address + rank * out->bytes;
    default:
        return false;
    }
}

bool posting_overlaps(const struct posting *p)
{
    const struct operand *in = &p->in, *out = &p->out;

    return MAX(in->address, out->address) <
               MIN(in->address + in->bytes, out->address + out->bytes) &&
           !posting_is_in_place(p);
}

/* Where the daemon works on both where they are, it sees it, and between ranks too. */
static int check_overlap(const struct posting *p, struct error *e)
{
    const struct operand *in = &p->in, *out = &p->out;

    if ((!in->copied && !out->copied) || !posting_overlaps(p))
        return 0;
    return error_set(e, ERROR_OVERLAP,
                     "%s: in and out share bytes in a way that is not \"in place\"", p->row->name);
}

static struct gpu *gpu_of(const struct operand *o)
{
    return o->t && o->region ? o->region->gpu : NULL;
}

/* The GPU in whose stream the call takes part, if it does in any. */
static int find_stream(struct posting *p, struct error *e)
{
    struct gpu *in = gpu_of(&p->in), *out = gpu_of(&p->out);
    struct gpu_place *at = &p->place;

    at->gpu = in ? in : out;
    if (!at->gpu)
        return 0;
    if (!at->stream && in && out && in != out)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "%s: in and out are on different GPUs; say in which stream, with "
                         "ruccl_on_stream()",
                         p->row->name);
    p->fenced = (in && !p->in.region->staged) || (out && !p->out.region->staged);
    return at->stream ? gpu_of_stream(at->stream, &at->gpu, e) : 0;
}

static int check_tensors(struct posting *p, struct error *e)
{
    struct tensor_extent in, out;
    int r;

    r = describe(p, e);
    if (r < 0)
        return r;
    if (descriptor_measure(&p->q.post.d, &in, &out, NULL) < 0) {
        /* The daemon says so to every rank, in its own words; there is no memory to speak of. */
        p->in.t = p->out.t = NULL;
        return 0;
    }
    if (in_counts(p))
        r = check_operand(p, &p->in, &in, e);
    if (r == 0 && out_counts(p))
        r = check_operand(p, &p->out, &out, e);
    if (r == 0 && p->call->kind == COLLECTIVE_ALL_TO_ALL_V)
        r = check_rows(p, e);
    if (r == 0)
        r = check_overlap(p, e);
    if (r == 0)
        r = find_stream(p, e);
    return r;
}

void posting_reject(struct posting *p)
{
    p->in = (struct operand){ .name = "in" };
    p->out = (struct operand){ .name = "out" };
    p->q.post.in = p->q.post.out = (struct wire_operand){ 0 };
    p->place = (struct gpu_place){ 0 };
    p->fenced = false;
}

void posting_prepare(struct posting *p)
{
    const struct call *call = p->call;

    p->in.name = "in";
    p->out.name = "out";
    p->q.post.comm = p->member->number;
    p->q.post.d.kind = call->kind;
    p->q.post.d.op = (enum operator_id)call->op;
    p->q.post.d.root = call->root;
    p->q.post.d.nranks = p->member->nranks;
    p->q.post.peer = call->peer;
    p->q.post.tag = call->tag;
    p->q.post.color = call->color;
    p->q.post.key = call->key;
    p->q.post.child = call->child ? call->child->number : 0;
    p->q.post.persistent = call->ret_persistent;
    p->q.post.counts = call->send_counts;
    p->q.post.ncounts = call->send_counts ? p->member->nranks : 0;
    if (p->row->shape != SHAPE_NONE && check_tensors(p, &p->q.post.rejection) < 0)
        posting_reject(p);
}
