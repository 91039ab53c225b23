#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/server/links.h"
#include "daemon/server/session_private.h"
#include "shared/cuda.h"

#define ARENA_BYTES (64u << 10) /* of strings; what does not fit comes with the next page */

/*
 * Items are numbered in the order they are met: the daemon, its GPUs, its peers, sessions,
 * communicators. A page is a window of that; what changes between two pages may be seen twice, or
 * not at all.
 */
struct page {
    uint64_t first; /* the number of items[0] */
    uint64_t met;
    bool full; /* there is more */
    uint32_t nitems;
    struct status_item items[CODEC_STATUS_ITEMS];
    size_t used;
    char arena[ARENA_BYTES];
};

/* Where the strings of an item are: they must outlive the call that shows it. */
static size_t item_strings(struct status_item *i, const char **ret[6])
{
    size_t n = 0;

    switch (i->kind) {
    case STATUS_DAEMON:
        ret[n++] = &i->daemon.version;
        ret[n++] = &i->daemon.node;
        ret[n++] = &i->daemon.state;
        ret[n++] = &i->daemon.kernels;
        break;
    case STATUS_SESSION:
        ret[n++] = &i->session.name;
        break;
    case STATUS_COMMUNICATOR:
        ret[n++] = &i->communicator.label;
        ret[n++] = &i->communicator.state;
        ret[n++] = &i->communicator.failure;
        ret[n++] = &i->communicator.oldest_state;
        ret[n++] = &i->communicator.oldest_arrived;
        ret[n++] = &i->communicator.oldest_missing;
        break;
    case STATUS_MEMBER:
        ret[n++] = &i->member.last;
        break;
    case STATUS_PEER:
        ret[n++] = &i->peer.node;
        ret[n++] = &i->peer.host;
        ret[n++] = &i->peer.address;
        ret[n++] = &i->peer.state;
        ret[n++] = &i->peer.transport;
        break;
    case STATUS_GPU:
        ret[n++] = &i->gpu.uuid;
        ret[n++] = &i->gpu.name;
        break;
    }
    return n;
}

static bool page_copy_string(struct page *page, const char **s)
{
    size_t bytes;

    if (!*s)
        return true;
    bytes = strlen(*s) + 1;
    if (bytes > sizeof(page->arena) - page->used)
        return false;
    *s = memcpy(page->arena + page->used, *s, bytes);
    page->used += bytes;
    return true;
}

static void page_add(void *context, const struct status_item *item)
{
    struct page *page = context;
    struct status_item *copy = &page->items[page->nitems];
    const char **strings[6];

    if (page->met++ < page->first || page->full)
        return;
    if (page->nitems == CODEC_STATUS_ITEMS) {
        page->full = true;
        return;
    }
    *copy = *item;
    for (size_t i = 0, n = item_strings(copy, strings); i < n; i++)
        if (!page_copy_string(page, strings[i])) {
            page->full = true;
            return;
        }
    page->nitems++;
}

static void page_add_daemon(struct page *page, const struct service *service)
{
    struct status_item item = { .kind = STATUS_DAEMON };
    uint64_t workers = service->config->workers;

    item.daemon.version = PROJECT_VERSION;
    item.daemon.node = service->config->node;
    item.daemon.state = service->state;
    item.daemon.kernels = service->kernels;
    item.daemon.pid = (uint32_t)getpid();
    item.daemon.sessions = service->nsessions;
    item.daemon.communicators = comms_count(service->comms);
    item.daemon.regions = (uint32_t)service->quotas.held[QUOTA_REGIONS];
    item.daemon.region_bytes =
        service->quotas.held[QUOTA_REGION_BYTES] + service->quotas.held[QUOTA_GPU_BYTES];
    item.daemon.workers = (uint32_t)(workers ? workers : (uint64_t)sysconf(_SC_NPROCESSORS_ONLN));
    item.daemon.uptime_us = service_now() - service->started_us;
    page_add(page, &item);
}

static void page_add_gpus(struct page *page, const struct device *gpus)
{
    struct status_item item = { .kind = STATUS_GPU };
    char uuid[CUDA_UUID_TEXT];
    struct device_gpu g;

    for (uint32_t i = 0; gpus && gpus->ops->gpu(gpus, i, &g); i++) {
        cuda_uuid_text(g.uuid, uuid);
        item.gpu.uuid = uuid;
        item.gpu.name = g.name;
        item.gpu.mapped_bytes = g.mapped_bytes;
        item.gpu.mappings = g.mappings;
        item.gpu.failed = g.failed;
        item.gpu.failures = g.failures;
        page_add(page, &item);
    }
}

static void page_add_session(struct page *page, const struct session *s)
{
    struct status_item item = { .kind = STATUS_SESSION };

    item.session.session = s->number;
    item.session.pid = (uint32_t)s->pid;
    item.session.uid = s->uid;
    item.session.name = s->name;
    item.session.regions = (uint32_t)s->regions.count;
    item.session.region_bytes = s->region_bytes;
    item.session.in_flight = s->in_flight;
    item.session.members = (uint32_t)s->members.count;
    page_add(page, &item);
}

/* root and the daemon's own user see everything, others what is theirs, the overflow uid itself. */
static void page_fill(struct page *page, const struct session *viewer)
{
    const struct service *service = viewer->service;
    bool all = viewer->uid == 0 || viewer->uid == geteuid();
    const struct session *s;

    page_add_daemon(page, service);
    page_add_gpus(page, service->gpus);
    if (service->links)
        links_status(service->links, service_now(), page_add, page);
    list_for_each(s, &service->sessions, link)
        if (s->state == SESSION_SERVED &&
            (all || s == viewer || (s->uid == viewer->uid && s->uid != service->overflow_uid)))
            page_add_session(page, s);
    comms_status(service->comms, all ? 0 : viewer->uid, service_now(), page_add, page);
}

void session_status(struct session *s, const struct request *r, struct packet *p)
{
    struct reply reply = { .kind = REPLY_STATUS_PAGE, .serial = r->serial };
    struct page *page = calloc(1, sizeof(*page));
    struct error e = { 0 };

    (void)p;
    if (!page) {
        error_set(&e, ERROR_NO_MEMORY, "out of memory");
        session_reply_done(s, r->serial, &e);
        return;
    }
    page->first = r->status.cursor;
    page_fill(page, s);

    reply.status_page.items = page->items;
    do {
        reply.status_page.nitems = page->nitems;
        reply.status_page.next_cursor = page->full ? page->first + page->nitems : 0;
        page->full = true;
        page->nitems /= 2; /* for the next try: one item always fits */
    } while (session_reply(s, &reply, -1) == -EMSGSIZE);
    free(page);
}
