#include "daemon/device/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES (2ull << 20)

/* Is it plain memory? A file on disk could stall a worker, a huge page could be missing. */
static int memfd_check_kind(int fd, const struct stat *st, struct error *e)
{
    struct statfs fs;

    if (!S_ISREG(st->st_mode))
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "the region's descriptor is not a file; pass one from memfd_create()");
    if (fstatfs(fd, &fs) < 0)
        return error_set_errno(e, errno, "fstatfs of the region");
    if (fs.f_type != TMPFS_MAGIC)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "the region's descriptor is not memory on tmpfs; pass one from "
                         "memfd_create(), without MFD_HUGETLB");
    return 0;
}

/* May we write, and will it keep its size whatever the client does? */
static int memfd_check_access(int fd, struct error *e)
{
    const int keeps_size = F_SEAL_SHRINK | F_SEAL_GROW;
    const int keeps_bytes = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;
    int flags, seals;

    flags = fcntl(fd, F_GETFL);
    if (flags < 0)
        return error_set_errno(e, errno, "fcntl(F_GETFL) of the region");
    if ((flags & O_ACCMODE) != O_RDWR)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "the region's descriptor is not open for reading and writing; pass the "
                         "one that memfd_create() gave");

    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & keeps_size) != keeps_size)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "the region can still change its size; create it with MFD_ALLOW_SEALING "
                         "and add F_SEAL_SHRINK | F_SEAL_GROW");
    if (seals & keeps_bytes)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "the region is sealed against writing; leave out F_SEAL_WRITE and "
                         "F_SEAL_FUTURE_WRITE");
    return 0;
}

static int memfd_check_size(const struct stat *st, uint64_t bytes, struct error *e)
{
    if (bytes == 0)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "the region has no bytes; register at least one");
    if (bytes > (uint64_t)st->st_size)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "the region is said to have %" PRIu64 " bytes, but its memory has %" PRIu64
                         "; ftruncate() it before sealing",
                         bytes, (uint64_t)st->st_size);
    return 0;
}

/* mmap() alone promises no more than a page: reserve too much, keep the aligned part. */
static void *memfd_reserve_aligned(uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), head;
    uint8_t *start;

    bytes = div_up_u64(bytes, page) * page;
    start = mmap(NULL, bytes + HUGE_PAGE_BYTES, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return MAP_FAILED;

    head = -(uintptr_t)start % HUGE_PAGE_BYTES;
    if (head)
        munmap(start, head);
    munmap(start + head + bytes, HUGE_PAGE_BYTES - head);
    return start + head;
}

static void *memfd_map_bytes(int fd, uint64_t bytes)
{
    void *place = NULL, *base;
    int flags = MAP_SHARED;

    if (bytes >= HUGE_PAGE_BYTES) {
        place = memfd_reserve_aligned(bytes);
        if (place == MAP_FAILED)
            return MAP_FAILED;
        flags |= MAP_FIXED;
    }

    base = mmap(place, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (base == MAP_FAILED && place) {
        int err = errno;

        munmap(place, bytes);
        errno = err;
    }
    return base;
}

int memfd_map(struct device *device, int fd, uint64_t bytes, struct mapping **ret, struct error *e)
{
    struct mapping *m;
    struct stat st;
    void *base;
    int r;

    if (fstat(fd, &st) < 0)
        return error_set_errno(e, errno, "fstat of the region");
    r = memfd_check_kind(fd, &st, e);
    if (r < 0)
        return r;
    r = memfd_check_access(fd, e);
    if (r < 0)
        return r;
    r = memfd_check_size(&st, bytes, e);
    if (r < 0)
        return r;

    m = malloc(sizeof(*m));
    if (!m)
        return error_set_errno(e, ENOMEM, "mapping the region");

    base = memfd_map_bytes(fd, bytes);
    if (base == MAP_FAILED) {
        r = error_set_errno(e, errno, "mmap of the region");
        free(m);
        return r;
    }

    *m = (struct mapping){
        .device = device,
        .refs = 1,
        .base = base,
        .bytes = bytes,
        .dev = st.st_dev,
        .ino = st.st_ino,
    };
    *ret = m;
    return 0;
}

void memfd_unmap(struct mapping *m)
{
    munmap(m->base, m->bytes);
    free(m);
}
