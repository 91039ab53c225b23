#include "client/region.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "client/gpu.h"
#include "client/report.h"
#include "shared/socket_path.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define HUGE_PAGE        (2u << 20)
#define REGION_BYTES_MAX (1ull << 62)

#define POOL_IDLE_MAX   (256u << 20) /* what the pool keeps for later */
#define POOL_STEPS_LOG2 3            /* sizes from one power of two to the next */
#define STAGE_BYTES_MIN (64u << 10)

/* ---------------------------------------------------------------- memory */

/* An address that is `at` huge pages on, so that the kernel can back the memory with them. */
static void *map_aligned(int memfd, size_t bytes)
{
    uint8_t *base, *at;

    if (bytes < HUGE_PAGE)
        return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    base = mmap(NULL, bytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                0);
    if (base == MAP_FAILED)
        return MAP_FAILED;
    at = (uint8_t *)(((uintptr_t)base + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memfd, 0) == MAP_FAILED) {
        munmap(base, bytes + HUGE_PAGE);
        return MAP_FAILED;
    }
    if (at > base)
        munmap(base, (size_t)(at - base));
    if (at + bytes < base + bytes + HUGE_PAGE)
        munmap(at + bytes, (size_t)(base + HUGE_PAGE - at));
    return at;
}

/* Backs the first `bytes` with pages, huge where possible, once and not by faults later. */
static void populate(void *data, uint64_t bytes)
{
    madvise(data, bytes, MADV_POPULATE_WRITE);
    if (bytes >= HUGE_PAGE)
        madvise(data, bytes, MADV_COLLAPSE);
}

static void region_unmap(struct ruccl_region *region)
{
    if (region->mapped)
        munmap(region->data, region->mapped);
    region->data = NULL;
    region->mapped = 0;
}

static void region_destroy(struct ruccl_region *region)
{
    region_unmap(region);
    free(region);
}

void region_free(struct ruccl_region *region)
{
    gpu_allocation_let_go(region->allocation);
    region_destroy(region);
}

static uint64_t page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

struct ruccl_region *region_new_bare(struct ruccl_conn *c, void *data, uint64_t bytes)
{
    struct ruccl_region *region = calloc(1, sizeof(*region));

    if (!region)
        return NULL;
    region->conn = c;
    region->refs = 1;
    region->data = data;
    region->bytes = region->capacity = bytes;
    list_init(&region->link);
    list_init(&region->order);
    return region;
}

static int region_map(struct ruccl_conn *c, int memfd, uint64_t bytes, struct ruccl_region **ret,
                      struct error *e)
{
    const uint64_t page = page_bytes();
    const size_t mapped = (size_t)((bytes + page - 1) & ~(page - 1));
    struct ruccl_region *region = region_new_bare(c, NULL, bytes);
    void *data;

    if (!region)
        return error_set_errno(e, ENOMEM, "region");
    data = map_aligned(memfd, mapped);
    if (data == MAP_FAILED) {
        int err = errno;

        free(region);
        return error_set_errno(e, err, "map a region");
    }
    region->data = data;
    region->mapped = mapped;
    *ret = region;
    return 0;
}

int memfd_new(uint64_t bytes, int *ret, struct error *e)
{
    const uint64_t page = page_bytes();
    int fd = memfd_create("ruccl", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return error_set_errno(e, errno, "memfd_create");
    if (ftruncate(fd, (off_t)((bytes + page - 1) & ~(page - 1))) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        error_set_errno(e, errno, "size and seal a memfd");
        close(fd);
        return -(int)e->code;
    }
    *ret = fd;
    return 0;
}

/* ---------------------------------------------------------------- what the daemon knows */

int region_open(struct ruccl_conn *c, struct request *q, int fd, uint32_t *ret_number,
                struct error *e)
{
    *ret_number = ++c->last_region;
    q->kind = REQUEST_REGION_OPEN;
    q->region_open.region = *ret_number;
    return conn_ask(c, q, fd, CONN_NO_DEADLINE, NULL, e);
}

static int region_open_memfd(struct ruccl_region *region, int memfd, struct error *e)
{
    struct request q = { .region_open = { .bytes = region->capacity, .kind = REGION_MEMFD } };

    return region_open(region->conn, &q, memfd, &region->number, e);
}

/* Of a GPU's memory not before the daemon has let go of it, unless it hangs: then its owner may
 * free it. */
static void region_close(struct ruccl_region *region)
{
    struct request q = { .kind = REQUEST_REGION_CLOSE, .region_close.region = region->number };
    struct error ignored = { 0 };

    if (region->gpu && gpu_allocation_let_go(region->allocation))
        conn_ask(region->conn, &q, -1, conn_deadline(DAEMON_ANSWERS_US), NULL, &ignored);
    else if (!region->gpu && region->number)
        conn_tell(region->conn, &q);
    region_destroy(region);
}

/* Without the lock: making and backing memory takes its time. */
static int region_make(struct ruccl_conn *c, uint64_t capacity, uint64_t used, int *ret_memfd,
                       struct ruccl_region **ret, struct error *e)
{
    int memfd = -1, r;

    r = memfd_new(capacity, &memfd, e);
    if (r < 0)
        return r;
    r = region_map(c, memfd, capacity, ret, e);
    if (r < 0) {
        close(memfd);
        return r;
    }
    populate((*ret)->data, used);
    *ret_memfd = memfd;
    return 0;
}

/* Fresh memory, the first `used` bytes backed, known to the daemon. */
static int region_new(struct ruccl_conn *c, uint64_t capacity, uint64_t used,
                      struct ruccl_region **ret, struct error *e)
{
    struct ruccl_region *region;
    int memfd = -1, r;

    pthread_mutex_unlock(&c->lock);
    r = region_make(c, capacity, used, &memfd, &region, e);
    pthread_mutex_lock(&c->lock);
    if (r < 0)
        return r;
    r = region_open_memfd(region, memfd, e);
    close(memfd);
    if (r < 0) {
        region_free(region);
        return r;
    }
    region->pooled = true;
    *ret = region;
    return 0;
}

/* ---------------------------------------------------------------- the pool */

/*
 * The sizes that are made: whole pages, eight steps from one power of two to the next, so that a
 * slightly larger tensor finds the same region and less than an eighth lies fallow.
 */
static uint64_t pool_capacity(uint64_t bytes)
{
    uint64_t step = MAX((1ull << (63 - __builtin_clzll(bytes))) >> POOL_STEPS_LOG2, page_bytes());

    return (bytes + step - 1) / step * step;
}

static struct list *pool_shelf(struct ruccl_conn *c, uint64_t capacity)
{
    const int log2 = 63 - __builtin_clzll(capacity);
    const uint64_t step = capacity >> (log2 - POOL_STEPS_LOG2);

    return &c->idle_by_size[((uint64_t)log2 << POOL_STEPS_LOG2 ^ step) % CONN_BUCKETS];
}

static void pool_put(struct ruccl_conn *c, struct ruccl_region *region)
{
    c->idle_bytes += region->capacity;
    if (region->lost) { /* the first to be trimmed, and never found */
        list_prepend(&c->idle, &region->order);
        return;
    }
    list_append(&c->idle, &region->order);
    /* The one used last is the one most likely to be in a cache. */
    list_prepend(pool_shelf(c, region->capacity), &region->link);
}

static struct ruccl_region *pool_take(struct ruccl_conn *c, struct ruccl_region *region)
{
    list_remove(&region->link);
    list_remove(&region->order);
    c->idle_bytes -= region->capacity;
    region->refs = 1;
    return region;
}

static struct ruccl_region *pool_find(struct ruccl_conn *c, uint64_t capacity)
{
    struct ruccl_region *region;

    list_for_each(region, pool_shelf(c, capacity), link)
        if (region->capacity == capacity)
            return pool_take(c, region);
    return NULL;
}

/* Gives back what has been idle longest. */
static void pool_trim(struct ruccl_conn *c, uint64_t keep_bytes)
{
    while (!list_empty(&c->idle)) {
        struct ruccl_region *region = list_first(&c->idle, struct ruccl_region, order);

        if (c->idle_bytes <= keep_bytes && !region->lost)
            return;
        region_close(pool_take(c, region));
    }
}

static int pool_make(struct ruccl_conn *c, uint64_t capacity, uint64_t used,
                     struct ruccl_region **ret, struct error *e)
{
    struct error first = { 0 };
    int r;

    r = region_new(c, capacity, used, ret, &first);
    if (first.code == ERROR_QUOTA && c->idle_bytes > 0) {
        pool_trim(c, 0);
        return region_new(c, capacity, used, ret, e);
    }
    if (r < 0)
        *e = first;
    return r;
}

static int pool_get(struct ruccl_conn *c, uint64_t bytes, uint64_t bytes_min,
                    struct ruccl_region **ret, struct error *e)
{
    const uint64_t capacity = pool_capacity(MAX(bytes, bytes_min));
    struct ruccl_region *region;
    int r;

    r = conn_check(c, e);
    if (r < 0)
        return r;
    region = pool_find(c, capacity);
    pool_trim(c, POOL_IDLE_MAX);
    if (!region)
        r = pool_make(c, capacity, bytes, &region, e);
    if (r < 0)
        return r;
    region->bytes = bytes;
    *ret = region;
    return 0;
}

int stage_get(struct ruccl_conn *c, uint64_t bytes, struct ruccl_region **ret, struct error *e)
{
    int r;

    if (bytes > REGION_BYTES_MAX)
        return error_set_errno(e, ENOMEM, "stage plain memory");
    r = pool_get(c, bytes, STAGE_BYTES_MIN, ret, e);
    if (r == 0)
        (*ret)->dirty = MAX((*ret)->dirty, bytes);
    return r;
}

/* From the pool, zeroed: what an earlier use has written is not for the next one to see. */
static int region_get(struct ruccl_conn *c, uint64_t bytes, struct ruccl_region **ret,
                      struct error *e)
{
    struct ruccl_region *region;
    int r;

    r = pool_get(c, bytes, 1, &region, e);
    if (r < 0)
        return r;
    pthread_mutex_unlock(&c->lock);
    memset(region->data, 0, MIN(region->dirty, bytes));
    pthread_mutex_lock(&c->lock);
    region->dirty = MAX(region->dirty, bytes);
    r = conn_check(c, e); /* it may have ended meanwhile, and its pool with it */
    if (r < 0) {
        region_free(region);
        return r;
    }
    *ret = region;
    return 0;
}

struct ruccl_region *region_hold(struct ruccl_region *region)
{
    if (!region->pooled)
        return NULL;
    region->refs++;
    return region;
}

void region_let_go(struct ruccl_region *region)
{
    if (!region || --region->refs > 0)
        return;
    if (region->conn->end.code)
        region_free(region);
    else
        pool_put(region->conn, region);
}

void region_mark_lost(struct ruccl_region *region)
{
    if (region)
        region->lost = true;
}

/* ---------------------------------------------------------------- the caller's regions */

static struct list *bucket_of(const struct ruccl_conn *c, const struct ruccl_region *region)
{
    return (struct list *)&c->regions[((uintptr_t)region >> 6) % CONN_BUCKETS];
}

bool region_is_live(const struct ruccl_conn *c, const struct ruccl_region *region)
{
    const struct list *bucket = bucket_of(c, region);

    for (const struct list *it = bucket->next; it != bucket; it = it->next)
        if (it == &region->link)
            return true;
    return false;
}

void region_publish(struct ruccl_region *region)
{
    list_append(bucket_of(region->conn, region), &region->link);
}

/* A work that a thread is about to post may hold one: the memory goes, the rest follows it. */
static void region_abandon(struct ruccl_region *region)
{
    list_remove(&region->link);
    list_remove(&region->order);
    region_unmap(region);
    if (--region->refs == 0)
        region_free(region);
}

void regions_free_all(struct ruccl_conn *c)
{
    struct ruccl_region *region, *tmp;

    while (!list_empty(&c->idle))
        region_free(pool_take(c, list_first(&c->idle, struct ruccl_region, order)));
    for (uint32_t i = 0; i < CONN_BUCKETS; i++)
        list_for_each_safe(region, tmp, &c->regions[i], link)
            region_abandon(region);
}

int region_check_new(const struct ruccl_conn *c, uint64_t bytes, const void *ret, const char *what)
{
    if (!c || !ret)
        return report_new(ERROR_INVALID_ARGUMENT, "%s: %s is NULL", what, c ? "ret" : "conn");
    if (bytes == 0 || bytes > REGION_BYTES_MAX)
        return report_new(ERROR_INVALID_ARGUMENT, "%s: a region cannot have %llu bytes", what,
                          (unsigned long long)bytes);
    return 0;
}

int ruccl_alloc(struct ruccl_conn *c, uint64_t bytes, struct ruccl_region **ret)
{
    struct ruccl_region *region;
    struct error e = { 0 };
    int r;

    r = region_check_new(c, bytes, ret, "alloc");
    if (r == 0)
        r = conn_enter(c);
    if (r < 0)
        return r;
    r = region_get(c, bytes, &region, &e);
    if (r == 0)
        region_publish(region);
    conn_exit(c);
    if (r < 0)
        return report_error(&e);
    *ret = region;
    return 0;
}

static int check_memfd(int memfd, uint64_t bytes, struct error *e)
{
    const int needed = F_SEAL_SHRINK | F_SEAL_GROW;
    int seals = fcntl(memfd, F_GET_SEALS), mode = fcntl(memfd, F_GETFL);
    struct statfs filesystem;
    struct stat status;

    if (fstat(memfd, &status) < 0 || fstatfs(memfd, &filesystem) < 0 || mode < 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "register: %d is not an open descriptor",
                         memfd);
    if (filesystem.f_type == HUGETLBFS_MAGIC)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "register: the memfd is of hugetlb pages; make it without MFD_HUGETLB");
    if (seals < 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "register: descriptor %d is not a memfd",
                         memfd);
    if ((seals & needed) != needed)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "register: the memfd lacks the seal %s; add it with F_ADD_SEALS",
                         seals & F_SEAL_SHRINK ? "F_SEAL_GROW" : "F_SEAL_SHRINK");
    if ((mode & O_ACCMODE) != O_RDWR)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "register: the memfd is not open for reading and writing");
    if ((uint64_t)status.st_size < bytes)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "register: the memfd has %lld bytes, fewer than %llu",
                         (long long)status.st_size, (unsigned long long)bytes);
    return 0;
}

static int region_register(struct ruccl_conn *c, int memfd, uint64_t bytes,
                           struct ruccl_region **ret, struct error *e)
{
    struct ruccl_region *region;
    int r;

    r = check_memfd(memfd, bytes, e);
    if (r == 0)
        r = region_map(c, memfd, bytes, &region, e);
    if (r < 0)
        return r;
    r = region_open_memfd(region, memfd, e);
    if (r < 0) {
        region_free(region);
        return r;
    }
    region_publish(region);
    *ret = region;
    return 0;
}

int ruccl_register(struct ruccl_conn *c, int memfd, uint64_t bytes, struct ruccl_region **ret)
{
    struct error e = { 0 };
    int r;

    r = region_check_new(c, bytes, ret, "register");
    if (r == 0)
        r = conn_enter(c);
    if (r < 0)
        return r;
    r = region_register(c, memfd, bytes, ret, &e);
    conn_exit(c);
    return r < 0 ? report_error(&e) : 0;
}

/* The daemon keeps a mapping of its own for as long as operations use it. */
void ruccl_release(struct ruccl_region *region)
{
    struct ruccl_conn *c;

    if (!region || conn_enter(region->conn) < 0)
        return;
    c = region->conn;
    list_remove(&region->link);
    list_remove(&region->order);
    if (region->pooled)
        region_let_go(region);
    else
        region_close(region);
    pool_trim(c, POOL_IDLE_MAX);
    conn_exit(c);
}

/* Whoever made the memory, the caller needs it no more. */
void ruccl_free(struct ruccl_region *region)
{
    ruccl_release(region);
}

void *ruccl_region_data(const struct ruccl_region *region)
{
    return region ? region->data : NULL;
}

uint64_t ruccl_region_bytes(const struct ruccl_region *region)
{
    return region ? region->bytes : 0;
}
