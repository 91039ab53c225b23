#include "daemon/server/session_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

_Static_assert((int)REGION_MEMFD == MEMORY_MEMFD && (int)REGION_CUDA_IPC == MEMORY_CUDA_IPC &&
                   (int)REGION_CUDA_FD == MEMORY_CUDA_FD,
               "kinds of memory are the same on the wire");
_Static_assert(CODEC_GPU_BYTES == GPU_UUID_BYTES && CODEC_HANDLE_BYTES == GPU_HANDLE_BYTES, "");

/*
 * Memory that regions of one session share: the same file of the same size is mapped once. A GPU's
 * is mapped once for all sessions, so what its mapping counts says nothing of this one.
 */
struct memory {
    struct mapping *mapping; /* NULL once the session is over */
    struct session *session;
    struct list link;      // service::lingering, once there are no users
    enum quota_kind quota; /* that it is charged to */
    unsigned users;
    unsigned holds; /* of this session's operations: struct operand */
    bool known;     /* in session::memories; another size of the same file may have come before */
};

struct region {
    struct memory *memory;
};

static uint64_t memory_key(dev_t dev, ino_t ino)
{
    return (uint64_t)dev << 32 ^ ino;
}

/* Nobody is charged for it any more. */
static void memory_discharge(struct memory *m)
{
    struct session *s = m->session;
    uint64_t bytes = m->mapping->bytes;

    s->region_bytes -= bytes;
    quota_release(&s->service->quotas, s->uid, m->quota, bytes);
    m->mapping = mapping_unref(m->mapping);
    m->session = NULL;
}

static void memory_free(struct memory *m)
{
    list_remove(&m->link);
    if (m->mapping)
        memory_discharge(m);
    free(m);
}

/* Operations may hold it for long, persistent ones until they are freed: charged as long. */
void service_sweep_regions(struct service *service)
{
    struct memory *m, *tmp;

    list_for_each_safe(m, tmp, &service->lingering, link)
        if (!m->holds)
            memory_free(m);
}

/* The last region that uses it is gone. */
static void memory_retire(struct session *s, struct memory *m)
{
    if (m->known)
        map_take(&s->memories, memory_key(m->mapping->dev, m->mapping->ino));
    list_append(&s->service->lingering, &m->link);
    service_sweep_regions(s->service);
}

static int memory_find(struct session *s, dev_t dev, ino_t ino, uint64_t bytes, struct memory **ret)
{
    struct memory *m = map_get(&s->memories, memory_key(dev, ino));

    if (!m || m->mapping->dev != dev || m->mapping->ino != ino || m->mapping->bytes != bytes)
        return -ENOENT;
    m->users++;
    *ret = m;
    return 0;
}

static enum quota_kind quota_of(const struct memory_handle *handle)
{
    return handle->kind == MEMORY_MEMFD ? QUOTA_REGION_BYTES : QUOTA_GPU_BYTES;
}

/* Takes the mapping, on success. */
static int memory_new(struct session *s, struct mapping *mapping, enum quota_kind quota,
                      struct memory **ret, struct error *e)
{
    struct memory *m = calloc(1, sizeof(*m));
    uint64_t key = memory_key(mapping->dev, mapping->ino);

    if (!m)
        return error_set(e, ERROR_NO_MEMORY, "out of memory");
    m->mapping = mapping;
    m->session = s;
    m->quota = quota;
    m->users = 1;
    list_init(&m->link);
    if (!map_get(&s->memories, key))
        m->known = map_put(&s->memories, key, m) == 0;
    *ret = m;
    return 0;
}

static int memory_open_host(struct session *s, const struct memory_handle *handle,
                            struct memory **ret, struct error *e)
{
    struct device *device = s->service->device;
    struct mapping *mapping;
    struct stat st;
    int r;

    if (fstat(handle->fd, &st) == 0 &&
        memory_find(s, st.st_dev, st.st_ino, handle->bytes, ret) == 0)
        return 0;
    r = device->ops->import(device, handle, &mapping, e);
    if (r < 0)
        return r;
    r = memory_new(s, mapping, quota_of(handle), ret, e);
    if (r < 0)
        mapping_unref(mapping);
    return r;
}

int service_refuse_gpus(const struct service *service, const char *what, struct error *e)
{
    const char *why = service->no_gpus;

    return error_set(e, ERROR_INVALID_ARGUMENT, "%s of a GPU, but this daemon has no GPU%s%s", what,
                     why ? ": " : "", why ? why : "");
}

/* Only the device knows which allocation a handle stands for. */
static int memory_open_gpu(struct session *s, const struct memory_handle *handle,
                           struct memory **ret, struct error *e)
{
    struct device *gpus = s->service->gpus;
    struct mapping *mapping;
    int r;

    if (!gpus)
        return service_refuse_gpus(s->service, "the region is memory", e);
    r = gpus->ops->import(gpus, handle, &mapping, e);
    if (r < 0)
        return r;
    if (mapping->bytes != handle->bytes)
        r = error_set(e, ERROR_INVALID_ARGUMENT,
                      "the region is said to have %" PRIu64
                      " bytes, but its allocation has %" PRIu64,
                      handle->bytes, mapping->bytes);
    else if (memory_find(s, mapping->dev, mapping->ino, mapping->bytes, ret) == 0)
        mapping_unref(mapping);
    else
        r = memory_new(s, mapping, quota_of(handle), ret, e);
    if (r < 0)
        mapping_unref(mapping);
    return r;
}

/* Everything but the quota. */
static int region_add(struct session *s, uint32_t number, const struct memory_handle *handle,
                      struct error *e)
{
    struct region *region = calloc(1, sizeof(*region));
    int r;

    if (!region || map_reserve(&s->regions, s->regions.count + 1) < 0) {
        free(region);
        return error_set(e, ERROR_NO_MEMORY, "out of memory");
    }
    if (handle->kind == MEMORY_MEMFD)
        r = memory_open_host(s, handle, &region->memory, e);
    else
        r = memory_open_gpu(s, handle, &region->memory, e);
    if (r < 0) {
        free(region);
        return r;
    }
    map_put(&s->regions, number, region);
    s->region_bytes += handle->bytes;
    return 0;
}

static int region_open(struct session *s, uint32_t number, const struct memory_handle *handle,
                       struct error *e)
{
    struct quotas *q = &s->service->quotas;
    int r = quota_charge(q, s->uid, QUOTA_REGIONS, 1, e);

    if (r < 0)
        return r;
    service_sweep_regions(s->service);
    r = quota_charge(q, s->uid, quota_of(handle), handle->bytes, e);
    if (r == 0) {
        r = region_add(s, number, handle, e);
        if (r < 0)
            quota_release(q, s->uid, quota_of(handle), handle->bytes);
    }
    if (r < 0)
        quota_release(q, s->uid, QUOTA_REGIONS, 1);
    return r;
}

static void region_free(struct session *s, struct region *region)
{
    struct memory *m = region->memory;

    if (--m->users == 0) {
        memory_retire(s, m);
    } else {
        s->region_bytes -= m->mapping->bytes;
        quota_release(&s->service->quotas, s->uid, m->quota, m->mapping->bytes);
    }
    quota_release(&s->service->quotas, s->uid, QUOTA_REGIONS, 1);
    free(region);
}

void session_region_open(struct session *s, const struct request *r, struct packet *p)
{
    struct memory_handle handle = {
        .kind = (enum memory_kind)r->region_open.kind,
        .fd = p->nfds ? p->fds[0] : -1,
        .bytes = r->region_open.bytes,
    };
    struct error e = { 0 };

    if (map_get(&s->regions, r->region_open.region)) {
        session_refuse(s, "region_open: number %u is in use", r->region_open.region);
        return;
    }
    memcpy(handle.gpu, r->region_open.gpu, sizeof(handle.gpu));
    memcpy(handle.ipc, r->region_open.ipc, sizeof(handle.ipc));
    region_open(s, r->region_open.region, &handle, &e);
    session_reply_done(s, r->serial, &e);
}

void session_region_close(struct session *s, const struct request *r, struct packet *p)
{
    struct region *region = map_take(&s->regions, r->region_close.region);
    struct error e = { 0 };

    (void)p;
    if (region)
        region_free(s, region);
    else
        error_set(&e, ERROR_NOT_FOUND, "region %u is not open", r->region_close.region);
    session_reply_done(s, r->serial, &e);
}

bool session_find_region(const struct session *s, uint32_t number, struct operand *ret)
{
    const struct region *region = map_get(&s->regions, number);

    if (!region)
        return false;
    ret->mapping = region->memory->mapping;
    ret->holds = &region->memory->holds;
    return true;
}

void session_undo_regions(struct session *s)
{
    struct region *region;
    struct memory *m;
    size_t place = 0;

    while ((region = map_next(&s->regions, &place)))
        region_free(s, region);
    list_for_each(m, &s->service->lingering, link)
        if (m->session == s)
            memory_discharge(m);
    service_sweep_regions(s->service); /* what its members have let go of, too */
    map_fini(&s->regions);
    map_fini(&s->memories);
}
