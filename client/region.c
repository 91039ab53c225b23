#include "client/region.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "client/report.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define HUGE_PAGE (2u << 20)

#define STAGE_BYTES_MIN (64u << 10)
#define STAGE_IDLE_MAX  (256u << 20) /* what the pool keeps for later */

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

static struct ruccl_region *region_free(struct ruccl_region *region)
{
    munmap(region->data, region->mapped);
    free(region);
    return NULL;
}

static int region_map(struct ruccl_conn *c, int memfd, uint64_t bytes, struct ruccl_region **ret,
                      struct error *e)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct ruccl_region *region = calloc(1, sizeof(*region));

    if (!region)
        return error_set_errno(e, ENOMEM, "region");
    region->conn = c;
    region->bytes = bytes;
    region->mapped = (size_t)((bytes + page - 1) & ~(page - 1));
    list_init(&region->link);
    region->data = map_aligned(memfd, region->mapped);
    if (region->data == MAP_FAILED) {
        int err = errno;

        free(region);
        return error_set_errno(e, err, "map a region");
    }
    *ret = region;
    return 0;
}

int memfd_new(uint64_t bytes, int *ret, struct error *e)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
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

static int region_open(struct ruccl_region *region, int memfd, struct error *e)
{
    struct ruccl_conn *c = region->conn;
    struct request q = { .kind = REQUEST_REGION_OPEN, .region_open.bytes = region->bytes };

    region->number = ++c->last_region;
    q.region_open.region = region->number;
    return conn_ask(c, &q, memfd, CONN_NO_DEADLINE, NULL, e);
}

static void region_close(struct ruccl_region *region)
{
    struct request q = { .kind = REQUEST_REGION_CLOSE, .region_close.region = region->number };

    conn_tell(region->conn, &q);
    region_free(region);
}

/* Without the lock: making and backing memory takes its time. */
static int region_make(struct ruccl_conn *c, uint64_t bytes, uint64_t used, int *ret_memfd,
                       struct ruccl_region **ret, struct error *e)
{
    int memfd = -1, r;

    r = memfd_new(bytes, &memfd, e);
    if (r < 0)
        return r;
    r = region_map(c, memfd, bytes, ret, e);
    if (r < 0) {
        close(memfd);
        return r;
    }
    populate((*ret)->data, used);
    *ret_memfd = memfd;
    return 0;
}

/* Fresh memory, the first `used` bytes backed, known to the daemon. */
static int region_new(struct ruccl_conn *c, uint64_t bytes, uint64_t used,
                      struct ruccl_region **ret, struct error *e)
{
    struct ruccl_region *region;
    int memfd = -1, r;

    r = conn_check(c, e);
    if (r < 0)
        return r;
    pthread_mutex_unlock(&c->lock);
    r = region_make(c, bytes, used, &memfd, &region, e);
    pthread_mutex_lock(&c->lock);
    if (r < 0)
        return r;
    r = region_open(region, memfd, e);
    close(memfd);
    if (r < 0) {
        region_free(region);
        return r;
    }
    *ret = region;
    return 0;
}

/* ---------------------------------------------------------------- the staging pool */

/* Powers of two, so that a slightly larger tensor finds the same region. */
static uint64_t stage_class(uint64_t bytes)
{
    uint64_t class = STAGE_BYTES_MIN;

    while (class < bytes)
        class *= 2;
    return class;
}

static struct ruccl_region *stage_take(struct ruccl_conn *c, struct ruccl_region *stage)
{
    list_remove(&stage->link);
    c->idle_bytes -= stage->bytes;
    return stage;
}

static void stage_trim(struct ruccl_conn *c, uint64_t keep_bytes)
{
    while (c->idle_bytes > keep_bytes)
        region_close(stage_take(c, list_first(&c->idle, struct ruccl_region, link)));
}

static struct ruccl_region *stage_find(struct ruccl_conn *c, uint64_t bytes)
{
    struct ruccl_region *stage;

    list_for_each (stage, &c->idle, link)
        if (stage->bytes == bytes)
            return stage;
    return NULL;
}

int stage_get(struct ruccl_conn *c, uint64_t bytes, struct ruccl_region **ret, struct error *e)
{
    uint64_t class = bytes <= 1ull << 62 ? stage_class(bytes) : bytes;
    struct ruccl_region *stage = stage_find(c, class);
    struct error first = { 0 };
    int r;

    if (stage) {
        *ret = stage_take(c, stage);
        stage_trim(c, STAGE_IDLE_MAX);
        return 0;
    }
    stage_trim(c, STAGE_IDLE_MAX);
    r = region_new(c, class, bytes, ret, &first);
    if (r == 0)
        return 0;
    if (first.code == ERROR_QUOTA && c->idle_bytes > 0) {
        stage_trim(c, 0);
        return region_new(c, class, bytes, ret, e);
    }
    *e = first;
    return r;
}

void stage_put(struct ruccl_conn *c, struct ruccl_region *stage)
{
    if (!stage)
        return;
    if (c->end.code) {
        region_free(stage);
        return;
    }
    c->idle_bytes += stage->bytes;
    list_append(&c->idle, &stage->link);
}

/* ---------------------------------------------------------------- the user's regions */

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

void regions_free_all(struct ruccl_conn *c)
{
    struct ruccl_region *region, *tmp;

    list_for_each_safe (region, tmp, &c->idle, link)
        region_free(stage_take(c, region));
    for (uint32_t i = 0; i < CONN_BUCKETS; i++)
        list_for_each_safe (region, tmp, &c->regions[i], link) {
            list_remove(&region->link);
            region_free(region);
        }
}

static int check_new_region(const struct ruccl_conn *c, uint64_t bytes, const void *ret,
                            const char *what)
{
    if (!c || !ret)
        return report_new(ERROR_INVALID_ARGUMENT, "%s: %s is NULL", what, c ? "ret" : "conn");
    if (bytes == 0 || bytes > 1ull << 62)
        return report_new(ERROR_INVALID_ARGUMENT, "%s: a region cannot have %llu bytes", what,
                          (unsigned long long)bytes);
    return 0;
}

int ruccl_alloc(struct ruccl_conn *c, uint64_t bytes, struct ruccl_region **ret)
{
    struct ruccl_region *region;
    struct error e = { 0 };
    int r;

    r = check_new_region(c, bytes, ret, "alloc");
    if (r == 0)
        r = conn_enter(c);
    if (r < 0)
        return r;
    r = region_new(c, bytes, bytes, &region, &e);
    if (r == 0)
        list_append(bucket_of(c, region), &region->link);
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
    r = region_open(region, memfd, e);
    if (r < 0) {
        region_free(region);
        return r;
    }
    list_append(bucket_of(c, region), &region->link);
    *ret = region;
    return 0;
}

int ruccl_register(struct ruccl_conn *c, int memfd, uint64_t bytes, struct ruccl_region **ret)
{
    struct error e = { 0 };
    int r;

    r = check_new_region(c, bytes, ret, "register");
    if (r == 0)
        r = conn_enter(c);
    if (r < 0)
        return r;
    r = region_register(c, memfd, bytes, ret, &e);
    conn_exit(c);
    return r < 0 ? report_error(&e) : 0;
}

void ruccl_release(struct ruccl_region *region)
{
    struct ruccl_conn *c;

    if (!region || conn_enter(region->conn) < 0)
        return;
    c = region->conn;
    list_remove(&region->link);
    region_close(region);
    conn_exit(c);
}

/* Both kinds end alike: the daemon keeps its own mapping for as long as operations use it. */
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
