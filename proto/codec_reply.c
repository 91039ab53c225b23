#include <errno.h>

#include "proto/codec_wire.h"
#include "proto/packet.h"

static void decode_completion(struct codec *c, const Ruccl__V1__Completion *m,
                              struct reply_completion *ret)
{
    codec_take_error(c, m->error, &ret->error);
    ret->sequence = m->sequence;
    ret->wait_us = m->wait_us;
    ret->run_us = m->run_us;
    ret->chunks = m->chunks;
    ret->chunk_elements = m->chunk_elements;
    ret->peak_bytes = m->peak_bytes;
    ret->algorithm =
        codec_take_string(c, m->algorithm, CODEC_ALGORITHM_MAX, "completion: algorithm");
    ret->counts = m->counts;
    ret->ncounts = codec_take_ncounts(c, m->n_counts, "completion");
    ret->child_rank = m->child_rank;
    ret->child_nranks = m->child_nranks;
    ret->child_id = codec_take_string(c, m->child_id, CODEC_ID_MAX, "completion: child_id");
    ret->persistent = m->persistent;
}

static const char *take_text(struct codec *c, char *s)
{
    return codec_take_string(c, s, CODEC_TEXT_MAX, "status: a text");
}

static void decode_status_daemon(struct codec *c, const Ruccl__V1__StatusDaemon *m,
                                 struct status_item *ret)
{
    ret->kind = STATUS_DAEMON;
    ret->daemon.version = take_text(c, m->version);
    ret->daemon.node = take_text(c, m->node);
    ret->daemon.pid = m->pid;
    ret->daemon.uptime_us = m->uptime_us;
    ret->daemon.state = take_text(c, m->state);
    ret->daemon.sessions = m->sessions;
    ret->daemon.communicators = m->communicators;
    ret->daemon.regions = m->regions;
    ret->daemon.region_bytes = m->region_bytes;
    ret->daemon.workers = m->workers;
    ret->daemon.kernels = take_text(c, m->kernels);
}

static void decode_status_session(struct codec *c, const Ruccl__V1__StatusSession *m,
                                  struct status_item *ret)
{
    ret->kind = STATUS_SESSION;
    ret->session.session = m->session;
    ret->session.pid = m->pid;
    ret->session.uid = m->uid;
    ret->session.name = take_text(c, m->name);
    ret->session.regions = m->regions;
    ret->session.region_bytes = m->region_bytes;
    ret->session.in_flight = m->in_flight;
    ret->session.members = m->members;
}

static void decode_status_communicator(struct codec *c, const Ruccl__V1__StatusCommunicator *m,
                                       struct status_item *ret)
{
    ret->kind = STATUS_COMMUNICATOR;
    ret->communicator.communicator = m->communicator;
    ret->communicator.label = take_text(c, m->label);
    ret->communicator.state = take_text(c, m->state);
    ret->communicator.nranks = m->nranks;
    ret->communicator.present = m->present;
    ret->communicator.sequence = m->sequence;
    ret->communicator.failure = take_text(c, m->failure);
    ret->communicator.oldest_kind = (enum collective_id)m->oldest_kind;
    ret->communicator.oldest_sequence = m->oldest_sequence;
    ret->communicator.oldest_age_us = m->oldest_age_us;
    ret->communicator.oldest_state = take_text(c, m->oldest_state);
    ret->communicator.oldest_arrived = take_text(c, m->oldest_arrived);
    ret->communicator.oldest_missing = take_text(c, m->oldest_missing);
}

static void decode_status_member(struct codec *c, const Ruccl__V1__StatusMember *m,
                                 struct status_item *ret)
{
    ret->kind = STATUS_MEMBER;
    ret->member.communicator = m->communicator;
    ret->member.rank = m->rank;
    ret->member.session = m->session;
    ret->member.pid = m->pid;
    ret->member.sequence = m->sequence;
    ret->member.last = take_text(c, m->last);
    ret->member.last_age_us = m->last_age_us;
    ret->member.arrived = m->arrived;
}

static void decode_status_peer(struct codec *c, const Ruccl__V1__StatusPeer *m,
                               struct status_item *ret)
{
    ret->kind = STATUS_PEER;
    ret->peer.node = take_text(c, m->node);
    ret->peer.host = take_text(c, m->host);
    ret->peer.address = take_text(c, m->address);
    ret->peer.state = take_text(c, m->state);
    ret->peer.transport = take_text(c, m->transport);
    ret->peer.expecting = m->expecting;
    ret->peer.heard_age_us = m->heard_age_us;
    ret->peer.gpu_direct = m->gpu_direct;
}

static void decode_status_gpu(struct codec *c, const Ruccl__V1__StatusGpu *m,
                              struct status_item *ret)
{
    ret->kind = STATUS_GPU;
    ret->gpu.uuid = take_text(c, m->uuid);
    ret->gpu.name = take_text(c, m->name);
    ret->gpu.mapped_bytes = m->mapped_bytes;
    ret->gpu.mappings = m->mappings;
    ret->gpu.failed = m->failed;
    ret->gpu.failures = m->failures;
}

/* False for an item of a kind that a later version knows: the reader goes without it. */
static bool decode_status_item(struct codec *c, const Ruccl__V1__StatusItem *m,
                               struct status_item *ret)
{
    switch (m->item_case) {
    case RUCCL__V1__STATUS_ITEM__ITEM_DAEMON:
        decode_status_daemon(c, m->daemon, ret);
        return true;
    case RUCCL__V1__STATUS_ITEM__ITEM_SESSION:
        decode_status_session(c, m->session, ret);
        return true;
    case RUCCL__V1__STATUS_ITEM__ITEM_COMMUNICATOR:
        decode_status_communicator(c, m->communicator, ret);
        return true;
    case RUCCL__V1__STATUS_ITEM__ITEM_MEMBER:
        decode_status_member(c, m->member, ret);
        return true;
    case RUCCL__V1__STATUS_ITEM__ITEM_PEER:
        decode_status_peer(c, m->peer, ret);
        return true;
    case RUCCL__V1__STATUS_ITEM__ITEM_GPU:
        decode_status_gpu(c, m->gpu, ret);
        return true;
    default:
        return false;
    }
}

static void decode_status_page(struct codec *c, const Ruccl__V1__StatusPage *m, struct reply *ret)
{
    if (m->n_items > CODEC_STATUS_ITEMS) {
        codec_complain(c, "status_page: %zu items are more than %u", m->n_items,
                       CODEC_STATUS_ITEMS);
        return;
    }

    struct status_item *items = codec_alloc(c, m->n_items * sizeof(*items));
    if (!items)
        return;

    uint32_t nitems = 0;

    for (size_t i = 0; i < m->n_items; i++)
        nitems += decode_status_item(c, m->items[i], &items[nitems]);
    ret->status_page.items = items;
    ret->status_page.nitems = nitems;
    ret->status_page.next_cursor = m->next_cursor;
}

static void decode_body(struct codec *c, const Ruccl__V1__Reply *m, struct reply *ret)
{
    switch (m->body_case) {
    case RUCCL__V1__REPLY__BODY_WELCOME:
        ret->kind = REPLY_WELCOME;
        ret->welcome.version = m->welcome->version;
        ret->welcome.slots = m->welcome->slots;
        ret->welcome.rings = m->welcome->rings;
        ret->welcome.gpus = m->welcome->gpus;
        ret->welcome.slates = m->welcome->slates;
        ret->welcome.spin_us = m->welcome->spin_us;
        ret->welcome.daemon_version =
            codec_take_string(c, m->welcome->daemon_version, CODEC_TEXT_MAX, "welcome: version");
        ret->welcome.node = codec_take_string(c, m->welcome->node, CODEC_TEXT_MAX, "welcome: node");
        ret->welcome.session = m->welcome->session;
        return;
    case RUCCL__V1__REPLY__BODY_DONE:
        ret->kind = REPLY_DONE;
        codec_take_error(c, m->done->error, &ret->done);
        return;
    case RUCCL__V1__REPLY__BODY_ID:
        ret->kind = REPLY_ID;
        ret->id = codec_take_string(c, m->id->id, CODEC_ID_MAX, "id");
        return;
    case RUCCL__V1__REPLY__BODY_COMPLETION:
        ret->kind = REPLY_COMPLETION;
        decode_completion(c, m->completion, &ret->completion);
        return;
    case RUCCL__V1__REPLY__BODY_STATUS_PAGE:
        ret->kind = REPLY_STATUS_PAGE;
        decode_status_page(c, m->status_page, ret);
        return;
    case RUCCL__V1__REPLY__BODY_GOODBYE:
        ret->kind = REPLY_GOODBYE;
        codec_take_error(c, m->goodbye->error, &ret->done);
        return;
    case RUCCL__V1__REPLY__BODY_BELL:
        ret->kind = REPLY_BELL;
        return;
    case RUCCL__V1__REPLY__BODY_PROGRESS:
        ret->kind = REPLY_PROGRESS;
        ret->progress.elements_done = m->progress->elements_done;
        return;
    default:
        codec_complain(c, "reply %llu says nothing known", (unsigned long long)m->serial);
    }
}

int codec_decode_reply(struct codec *c, const void *bytes, size_t len, struct reply *ret,
                       struct error *e)
{
    const Ruccl__V1__Reply *m = codec_unpack(c, &ruccl__v1__reply__descriptor, bytes, len, 0, e);
    struct reply reply = { 0 };

    if (!m)
        return c->result;
    reply.serial = m->serial;
    decode_body(c, m, &reply);
    if (c->result < 0)
        return c->result;
    *ret = reply;
    return 0;
}

static int encode_welcome(const struct reply *r, Ruccl__V1__Reply *m, void *buffer)
{
    Ruccl__V1__Welcome body = RUCCL__V1__WELCOME__INIT;
    bool fits = true;

    body.version = r->welcome.version;
    body.daemon_version = codec_give_string(r->welcome.daemon_version, CODEC_TEXT_MAX, &fits);
    body.node = codec_give_string(r->welcome.node, CODEC_TEXT_MAX, &fits);
    body.session = r->welcome.session;
    body.slots = r->welcome.slots;
    body.rings = r->welcome.rings;
    body.gpus = r->welcome.gpus;
    body.slates = r->welcome.slates;
    body.spin_us = r->welcome.spin_us;
    m->body_case = RUCCL__V1__REPLY__BODY_WELCOME;
    m->welcome = &body;
    return codec_pack(&m->base, fits, buffer);
}

static int encode_done(const struct reply *r, Ruccl__V1__Reply *m, void *buffer)
{
    Ruccl__V1__Done body = RUCCL__V1__DONE__INIT;
    Ruccl__V1__Error error = RUCCL__V1__ERROR__INIT;

    body.error = codec_give_error(&r->done, &error);
    m->body_case = RUCCL__V1__REPLY__BODY_DONE;
    m->done = &body;
    return codec_pack(&m->base, true, buffer);
}

static int encode_id(const struct reply *r, Ruccl__V1__Reply *m, void *buffer)
{
    Ruccl__V1__Id body = RUCCL__V1__ID__INIT;
    bool fits = true;

    body.id = codec_give_string(r->id, CODEC_ID_MAX, &fits);
    m->body_case = RUCCL__V1__REPLY__BODY_ID;
    m->id = &body;
    return codec_pack(&m->base, fits, buffer);
}

static int encode_completion(const struct reply_completion *completion, Ruccl__V1__Reply *m,
                             void *buffer)
{
    Ruccl__V1__Completion body = RUCCL__V1__COMPLETION__INIT;
    Ruccl__V1__Error error = RUCCL__V1__ERROR__INIT;
    bool fits = true;

    body.error = codec_give_error(&completion->error, &error);
    body.sequence = completion->sequence;
    body.wait_case = RUCCL__V1__COMPLETION__WAIT_WAIT_US;
    body.wait_us = completion->wait_us;
    body.run_case = RUCCL__V1__COMPLETION__RUN_RUN_US;
    body.run_us = completion->run_us;
    body.chunks = completion->chunks;
    body.chunk_elements = completion->chunk_elements;
    body.peak_bytes = completion->peak_bytes;
    body.algorithm = codec_give_string(completion->algorithm, CODEC_ALGORITHM_MAX, &fits);
    body.n_counts = codec_give_ncounts(completion->ncounts, &fits);
    body.counts = (uint64_t *)completion->counts;
    body.child_rank = completion->child_rank;
    body.child_nranks = completion->child_nranks;
    body.child_id = codec_give_string(completion->child_id, CODEC_ID_MAX, &fits);
    body.persistent = completion->persistent;
    m->body_case = RUCCL__V1__REPLY__BODY_COMPLETION;
    m->completion = &body;
    return codec_pack(&m->base, fits, buffer);
}

static int encode_goodbye(const struct reply *r, Ruccl__V1__Reply *m, void *buffer)
{
    Ruccl__V1__Goodbye body = RUCCL__V1__GOODBYE__INIT;
    Ruccl__V1__Error error = RUCCL__V1__ERROR__INIT;

    body.error = codec_give_error(&r->done, &error);
    m->body_case = RUCCL__V1__REPLY__BODY_GOODBYE;
    m->goodbye = &body;
    return codec_pack(&m->base, true, buffer);
}

static int encode_bell(Ruccl__V1__Reply *m, void *buffer)
{
    Ruccl__V1__Bell body = RUCCL__V1__BELL__INIT;

    m->body_case = RUCCL__V1__REPLY__BODY_BELL;
    m->bell = &body;
    return codec_pack(&m->base, true, buffer);
}

static int encode_progress(const struct reply *r, Ruccl__V1__Reply *m, void *buffer)
{
    Ruccl__V1__Progress body = RUCCL__V1__PROGRESS__INIT;

    body.elements_done = r->progress.elements_done;
    m->body_case = RUCCL__V1__REPLY__BODY_PROGRESS;
    m->progress = &body;
    return codec_pack(&m->base, true, buffer);
}

/* One item and its body, on the stack for as long as the page is packed. */
struct given_item {
    Ruccl__V1__StatusItem item;
    union {
        Ruccl__V1__StatusDaemon daemon;
        Ruccl__V1__StatusSession session;
        Ruccl__V1__StatusCommunicator communicator;
        Ruccl__V1__StatusMember member;
        Ruccl__V1__StatusPeer peer;
        Ruccl__V1__StatusGpu gpu;
    };
};

static char *give_text(const char *s, bool *fits)
{
    return codec_give_string(s, CODEC_TEXT_MAX, fits);
}

static void give_status_daemon(const struct status_item *s, struct given_item *g, bool *fits)
{
    ruccl__v1__status_daemon__init(&g->daemon);
    g->item.item_case = RUCCL__V1__STATUS_ITEM__ITEM_DAEMON;
    g->item.daemon = &g->daemon;
    g->daemon.version = give_text(s->daemon.version, fits);
    g->daemon.node = give_text(s->daemon.node, fits);
    g->daemon.pid = s->daemon.pid;
    g->daemon.uptime_us = s->daemon.uptime_us;
    g->daemon.state = give_text(s->daemon.state, fits);
    g->daemon.sessions = s->daemon.sessions;
    g->daemon.communicators = s->daemon.communicators;
    g->daemon.regions = s->daemon.regions;
    g->daemon.region_bytes = s->daemon.region_bytes;
    g->daemon.workers = s->daemon.workers;
    g->daemon.kernels = give_text(s->daemon.kernels, fits);
}

static void give_status_session(const struct status_item *s, struct given_item *g, bool *fits)
{
    ruccl__v1__status_session__init(&g->session);
    g->item.item_case = RUCCL__V1__STATUS_ITEM__ITEM_SESSION;
    g->item.session = &g->session;
    g->session.session = s->session.session;
    g->session.pid = s->session.pid;
    g->session.uid = s->session.uid;
    g->session.name = give_text(s->session.name, fits);
    g->session.regions = s->session.regions;
    g->session.region_bytes = s->session.region_bytes;
    g->session.in_flight = s->session.in_flight;
    g->session.members = s->session.members;
}

static void give_status_communicator(const struct status_item *s, struct given_item *g, bool *fits)
{
    ruccl__v1__status_communicator__init(&g->communicator);
    g->item.item_case = RUCCL__V1__STATUS_ITEM__ITEM_COMMUNICATOR;
    g->item.communicator = &g->communicator;
    g->communicator.communicator = s->communicator.communicator;
    g->communicator.label = give_text(s->communicator.label, fits);
    g->communicator.state = give_text(s->communicator.state, fits);
    g->communicator.nranks = s->communicator.nranks;
    g->communicator.present = s->communicator.present;
    g->communicator.sequence = s->communicator.sequence;
    g->communicator.failure = give_text(s->communicator.failure, fits);
    g->communicator.oldest_kind = s->communicator.oldest_kind;
    g->communicator.oldest_sequence = s->communicator.oldest_sequence;
    g->communicator.oldest_age_us = s->communicator.oldest_age_us;
    g->communicator.oldest_state = give_text(s->communicator.oldest_state, fits);
    g->communicator.oldest_arrived = give_text(s->communicator.oldest_arrived, fits);
    g->communicator.oldest_missing = give_text(s->communicator.oldest_missing, fits);
}

static void give_status_member(const struct status_item *s, struct given_item *g, bool *fits)
{
    ruccl__v1__status_member__init(&g->member);
    g->item.item_case = RUCCL__V1__STATUS_ITEM__ITEM_MEMBER;
    g->item.member = &g->member;
    g->member.communicator = s->member.communicator;
    g->member.rank = s->member.rank;
    g->member.session = s->member.session;
    g->member.pid = s->member.pid;
    g->member.sequence = s->member.sequence;
    g->member.last = give_text(s->member.last, fits);
    g->member.last_age_us = s->member.last_age_us;
    g->member.arrived = s->member.arrived;
}

static void give_status_peer(const struct status_item *s, struct given_item *g, bool *fits)
{
    ruccl__v1__status_peer__init(&g->peer);
    g->item.item_case = RUCCL__V1__STATUS_ITEM__ITEM_PEER;
    g->item.peer = &g->peer;
    g->peer.node = give_text(s->peer.node, fits);
    g->peer.host = give_text(s->peer.host, fits);
    g->peer.address = give_text(s->peer.address, fits);
    g->peer.state = give_text(s->peer.state, fits);
    g->peer.transport = give_text(s->peer.transport, fits);
    g->peer.expecting = s->peer.expecting;
    g->peer.heard_age_us = s->peer.heard_age_us;
    g->peer.gpu_direct = s->peer.gpu_direct;
}

static void give_status_gpu(const struct status_item *s, struct given_item *g, bool *fits)
{
    ruccl__v1__status_gpu__init(&g->gpu);
    g->item.item_case = RUCCL__V1__STATUS_ITEM__ITEM_GPU;
    g->item.gpu = &g->gpu;
    g->gpu.uuid = give_text(s->gpu.uuid, fits);
    g->gpu.name = give_text(s->gpu.name, fits);
    g->gpu.mapped_bytes = s->gpu.mapped_bytes;
    g->gpu.mappings = s->gpu.mappings;
    g->gpu.failed = s->gpu.failed;
    g->gpu.failures = s->gpu.failures;
}

static void give_status_item(const struct status_item *s, struct given_item *g, bool *fits)
{
    ruccl__v1__status_item__init(&g->item);
    switch (s->kind) {
    case STATUS_DAEMON:
        give_status_daemon(s, g, fits);
        return;
    case STATUS_SESSION:
        give_status_session(s, g, fits);
        return;
    case STATUS_COMMUNICATOR:
        give_status_communicator(s, g, fits);
        return;
    case STATUS_MEMBER:
        give_status_member(s, g, fits);
        return;
    case STATUS_PEER:
        give_status_peer(s, g, fits);
        return;
    case STATUS_GPU:
        give_status_gpu(s, g, fits);
        return;
    }
}

static int encode_status_page(const struct reply *r, Ruccl__V1__Reply *m, void *buffer)
{
    Ruccl__V1__StatusPage body = RUCCL__V1__STATUS_PAGE__INIT;
    Ruccl__V1__StatusItem *items[CODEC_STATUS_ITEMS];
    struct given_item given[CODEC_STATUS_ITEMS];
    bool fits = true;

    if (r->status_page.nitems > CODEC_STATUS_ITEMS)
        return -EMSGSIZE;
    for (uint32_t i = 0; i < r->status_page.nitems; i++) {
        give_status_item(&r->status_page.items[i], &given[i], &fits);
        items[i] = &given[i].item;
    }
    body.n_items = r->status_page.nitems;
    body.items = items;
    body.next_cursor = r->status_page.next_cursor;
    m->body_case = RUCCL__V1__REPLY__BODY_STATUS_PAGE;
    m->status_page = &body;
    if (protobuf_c_message_get_packed_size(&m->base) > PACKET_BYTES_MAX)
        fits = false;
    return codec_pack(&m->base, fits, buffer);
}

int codec_encode_reply(const struct reply *r, void *buffer)
{
    Ruccl__V1__Reply m = RUCCL__V1__REPLY__INIT;

    m.serial = r->serial;
    switch (r->kind) {
    case REPLY_WELCOME:
        return encode_welcome(r, &m, buffer);
    case REPLY_DONE:
        return encode_done(r, &m, buffer);
    case REPLY_ID:
        return encode_id(r, &m, buffer);
    case REPLY_COMPLETION:
        return encode_completion(&r->completion, &m, buffer);
    case REPLY_STATUS_PAGE:
        return encode_status_page(r, &m, buffer);
    case REPLY_GOODBYE:
        return encode_goodbye(r, &m, buffer);
    case REPLY_BELL:
        return encode_bell(&m, buffer);
    case REPLY_PROGRESS:
        return encode_progress(r, &m, buffer);
    }
    return -EINVAL;
}
