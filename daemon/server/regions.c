#include "daemon/server/session_private.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

/* A mapping that regions of one session share: the same file of the same size is mapped once. */
struct memory {
    struct mapping *mapping;
    struct session *session;
    struct list link; // service::lingering, once there are no users
    unsigned users;
    bool known; /* in session::memories; another size of the same file may have come before */
};

struct region {
    struct memory *memory;
};

static void memory_free(struct memory *m)
{
    struct session *s = m->session;
    uint64_t bytes = m->mapping->bytes;

    list_remove(&m->link);
    s->region_bytes -= bytes;
    quota_release(&s->service->quotas, s->uid, QUOTA_REGION_BYTES, bytes);
    mapping_unref(m->mapping);
    free(m);
}

/* Operations hold references of their own, persistent ones for long: charged as long as those. */
static bool memory_is_held(const struct memory *m)
{
    return m->mapping->refs > 1;
}

void service_sweep_regions(struct service *service)
{
    struct memory *m, *tmp;

    list_for_each_safe(m, tmp, &service->lingering, link)
        if (!memory_is_held(m))
            memory_free(m);
}

/* The last region that uses it is gone. */
static void memory_retire(struct session *s, struct memory *m)
{
    if (m->known)
        map_take(&s->memories, m->mapping->ino);
    list_append(&s->service->lingering, &m->link);
    service_sweep_regions(s->service);
}

static int memory_find(struct session *s, int fd, uint64_t bytes, struct memory **ret)
{
    struct memory *m;
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;
    m = map_get(&s->memories, st.st_ino);
    if (!m || m->mapping->dev != st.st_dev || m->mapping->bytes != bytes)
        return -ENOENT;
    m->users++;
    *ret = m;
    return 0;
}

static int memory_import(struct session *s, int fd, uint64_t bytes, struct memory **ret,
                         struct error *e)
{
    struct device *device = s->service->device;
    struct memory *m = calloc(1, sizeof(*m));
    int r;

    if (!m)
        return error_set(e, ERROR_NO_MEMORY, "out of memory");
    r = device_import_memfd(device, fd, bytes, &m->mapping, e);
    if (r < 0) {
        free(m);
        return r;
    }
    m->session = s;
    m->users = 1;
    list_init(&m->link);
    if (!map_get(&s->memories, m->mapping->ino))
        m->known = map_put(&s->memories, m->mapping->ino, m) == 0;
    *ret = m;
    return 0;
}

/* Everything but the quota. */
static int region_add(struct session *s, uint32_t number, int fd, uint64_t bytes, struct error *e)
{
    struct region *region = calloc(1, sizeof(*region));
    int r;

    if (!region || map_reserve(&s->regions, s->regions.count + 1) < 0) {
        free(region);
        return error_set(e, ERROR_NO_MEMORY, "out of memory");
    }
    r = memory_find(s, fd, bytes, &region->memory);
    if (r < 0)
        r = memory_import(s, fd, bytes, &region->memory, e);
    if (r < 0) {
        free(region);
        return r;
    }
    map_put(&s->regions, number, region);
    s->region_bytes += bytes;
    return 0;
}

static int region_open(struct session *s, uint32_t number, int fd, uint64_t bytes, struct error *e)
{
    struct quotas *q = &s->service->quotas;
    int r = quota_charge(q, s->uid, QUOTA_REGIONS, 1, e);

    if (r < 0)
        return r;
    service_sweep_regions(s->service);
    r = quota_charge(q, s->uid, QUOTA_REGION_BYTES, bytes, e);
    if (r == 0) {
        r = region_add(s, number, fd, bytes, e);
        if (r < 0)
            quota_release(q, s->uid, QUOTA_REGION_BYTES, bytes);
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
        quota_release(&s->service->quotas, s->uid, QUOTA_REGION_BYTES, m->mapping->bytes);
    }
    quota_release(&s->service->quotas, s->uid, QUOTA_REGIONS, 1);
    free(region);
}

void session_region_open(struct session *s, const struct request *r, struct packet *p)
{
    struct error e = { 0 };

    if (map_get(&s->regions, r->region_open.region)) {
        session_refuse(s, "region_open: number %u is in use", r->region_open.region);
        return;
    }
    region_open(s, r->region_open.region, p->fds[0], r->region_open.bytes, &e);
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

struct mapping *session_find_region(const struct session *s, uint32_t number)
{
    const struct region *region = map_get(&s->regions, number);

    return region ? region->memory->mapping : NULL;
}

void session_undo_regions(struct session *s)
{
    struct region *region;
    struct memory *m, *tmp;
    size_t place = 0;

    while ((region = map_next(&s->regions, &place)))
        region_free(s, region);
    list_for_each_safe(m, tmp, &s->service->lingering, link)
        if (m->session == s)
            memory_free(m);
    service_sweep_regions(s->service); /* what its members have let go of */
    map_fini(&s->regions);
    map_fini(&s->memories);
}
