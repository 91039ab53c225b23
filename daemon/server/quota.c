#include "daemon/server/quota.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

struct account {
    uint64_t held[QUOTA_KINDS];
};

struct quota_row {
    const char *key, *what;
    size_t offset;
};

static const struct quota_row rows[QUOTA_KINDS] = {
    [QUOTA_SESSIONS] = { "max_sessions", "connections", offsetof(struct config, max_sessions) },
    [QUOTA_STRANGERS] = { "max_strangers", "connections that have not said hello",
                          offsetof(struct config, max_strangers) },
    [QUOTA_REGIONS] = { "max_regions", "regions", offsetof(struct config, max_regions) },
    [QUOTA_REGION_BYTES] = { "max_region_bytes", "bytes of regions",
                             offsetof(struct config, max_region_bytes) },
    [QUOTA_GPU_BYTES] = { "max_gpu_bytes", "bytes of GPUs' regions",
                          offsetof(struct config, max_gpu_bytes) },
    [QUOTA_FDS] = { "max_fds", "file descriptors", offsetof(struct config, max_fds) },
};

static uint64_t limit_of(const struct quotas *q, enum quota_kind kind)
{
    uint64_t limit = *(const uint64_t *)((const char *)q->config + rows[kind].offset);

    if (kind == QUOTA_REGION_BYTES && !limit)
        limit = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (kind == QUOTA_GPU_BYTES && !limit)
        limit = UINT64_MAX;
    return limit;
}

static struct account *account_get(struct quotas *q, uid_t uid)
{
    struct account *a = map_get(&q->accounts, uid);

    if (a)
        return a;
    a = calloc(1, sizeof(*a));
    if (a && map_put(&q->accounts, uid, a) < 0) {
        free(a);
        a = NULL;
    }
    return a;
}

static void account_drop_empty(struct quotas *q, uid_t uid, const struct account *a)
{
    for (int kind = 0; kind < QUOTA_KINDS; kind++)
        if (a->held[kind])
            return;
    free(map_take(&q->accounts, uid));
}

int quota_charge(struct quotas *q, uid_t uid, enum quota_kind kind, uint64_t amount,
                 struct error *e)
{
    struct account *a = account_get(q, uid);
    uint64_t limit = limit_of(q, kind);

    if (!a)
        return error_set(e, ERROR_NO_MEMORY, "out of memory");
    if (amount > limit || a->held[kind] > limit - amount) {
        error_set(e, ERROR_QUOTA,
                  "uid %u holds %" PRIu64 " %s and asks for %" PRIu64 " more, but may have %" PRIu64
                  " (%s in the daemon's configuration)",
                  uid, a->held[kind], rows[kind].what, amount, limit, rows[kind].key);
        account_drop_empty(q, uid, a);
        return -ERROR_QUOTA;
    }
    a->held[kind] += amount;
    q->held[kind] += amount;
    return 0;
}

void quota_release(struct quotas *q, uid_t uid, enum quota_kind kind, uint64_t amount)
{
    struct account *a = map_get(&q->accounts, uid);

    assert(a && a->held[kind] >= amount);
    a->held[kind] -= amount;
    q->held[kind] -= amount;
    account_drop_empty(q, uid, a);
}

int quota_charge_memory(void *quotas, uid_t uid, uint64_t bytes, struct error *e)
{
    int r = quota_charge(quotas, uid, QUOTA_FDS, 1, e);

    if (r < 0)
        return r;
    r = quota_charge(quotas, uid, QUOTA_REGION_BYTES, bytes, e);
    if (r < 0)
        quota_release(quotas, uid, QUOTA_FDS, 1);
    return r;
}

void quota_release_memory(void *quotas, uid_t uid, uint64_t bytes)
{
    quota_release(quotas, uid, QUOTA_FDS, 1);
    quota_release(quotas, uid, QUOTA_REGION_BYTES, bytes);
}

void quotas_fini(struct quotas *q)
{
    assert(!q->accounts.count);
    map_fini(&q->accounts);
}
