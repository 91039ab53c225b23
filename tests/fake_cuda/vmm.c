/* Memory in three steps: a place, what is to be there, and who may touch it. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fake_cuda/fake.h"

struct physical {
    struct list link; // physicals
    uint64_t id;
    uint64_t bytes;
    struct gpu *gpu;
    unsigned refs; /* of handles */
    unsigned mappings;
    bool imported, shareable;
    int fd;
};

struct reservation {
    struct list link; // reservations
    uint64_t base, bytes;
};

static struct list physicals = LIST_INIT(physicals);
static struct list reservations = LIST_INIT(reservations);

static struct physical *physical_find(CUmemGenericAllocationHandle handle)
{
    struct physical *p;

    list_for_each(p, &physicals, link)
        if (p->id == handle && p->refs > 0)
            return p;
    return NULL;
}

static CUmemGenericAllocationHandle physical_new(struct gpu *gpu, uint64_t bytes, int fd,
                                                 bool shareable, bool imported)
{
    struct physical *p = calloc(1, sizeof(*p));

    if (!p)
        return 0;
    p->id = fake_new_id();
    p->bytes = bytes;
    p->gpu = gpu;
    p->refs = 1;
    p->shareable = shareable;
    p->imported = imported;
    p->fd = fd;
    if (!imported)
        gpu->used += bytes;
    list_append(&physicals, &p->link);
    return p->id;
}

static void physical_drop(struct physical *p)
{
    if (p->refs > 0 || p->mappings > 0)
        return;
    if (!p->imported)
        p->gpu->used -= p->bytes;
    list_remove(&p->link);
    close(p->fd);
    free(p);
}

void vmm_unmapped(struct range *range)
{
    range->physical->mappings--;
    physical_drop(range->physical);
}

static unsigned list_count(const struct list *l)
{
    unsigned n = 0;

    for (const struct list *e = l->next; e != l; e = e->next)
        n++;
    return n;
}

unsigned vmm_handles(void)
{
    return list_count(&physicals);
}

unsigned vmm_reservations(void)
{
    return list_count(&reservations);
}

void vmm_end_gpu(struct gpu *gpu)
{
    struct physical *p, *next_p;
    struct range *range, *next;

    list_for_each(p, &physicals, link)
        p->mappings++; /* none ends under us */
    list_for_each_safe(range, next, &ranges, link)
        if (range->kind == RANGE_MAPPED && range->gpu == gpu)
            range_remove(range);
    list_for_each_safe(p, next_p, &physicals, link) {
        p->mappings--;
        if (p->gpu == gpu)
            p->refs = 0;
        physical_drop(p);
    }
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *ret, size_t bytes,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);
    CUmemGenericAllocationHandle handle;
    struct gpu *gpu;
    int fd;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (flags != 0 || bytes == 0 || bytes % FAKE_GRANULE != 0 ||
        prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    gpu = gpu_get(prop->location.id);
    if (!gpu)
        return CUDA_ERROR_INVALID_DEVICE;
    if (bytes > gpu_memory() - gpu->used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    fd = memfd_new("physical", gpu->number, bytes);
    if (fd < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    handle =
        physical_new(gpu, bytes, fd,
                     prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, false);
    if (handle == 0) {
        close(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ret = handle;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);
    struct physical *p = call.r == CUDA_SUCCESS ? physical_find(handle) : NULL;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    p->refs--;
    physical_drop(p);
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *ret, void *ptr)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);
    const struct range *range = call.r == CUDA_SUCCESS ? range_find((uintptr_t)ptr) : NULL;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (!range || range->kind != RANGE_MAPPED)
        return CUDA_ERROR_INVALID_VALUE;
    range->physical->refs++;
    *ret = range->physical->id;
    return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *ret, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);
    const struct physical *p = call.r == CUDA_SUCCESS ? physical_find(handle) : NULL;
    int fd;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (!p || !p->shareable || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return CUDA_ERROR_UNKNOWN;
    *(int *)ret = fd;
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *ret, void *os_handle,
                                        CUmemAllocationHandleType type)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);
    CUmemGenericAllocationHandle handle;
    struct gpu *gpu;
    struct stat st;
    unsigned number;
    uint64_t ino;
    int fd;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    fd = fcntl((int)(intptr_t)os_handle, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (fstat(fd, &st) < 0 || !memfd_is(fd, "physical", (uint64_t)st.st_size, &number, &ino)) {
        close(fd);
        return CUDA_ERROR_INVALID_VALUE;
    }
    gpu = gpu_by_number(number);
    handle = gpu ? physical_new(gpu, (uint64_t)st.st_size, fd, true, true) : 0;
    if (handle == 0) {
        close(fd);
        return gpu ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_DEVICE;
    }
    *ret = handle;
    return CUDA_SUCCESS;
}

/* A place at a multiple of `alignment`. */
static void *place_reserve(uint64_t bytes, uint64_t alignment)
{
    const uint64_t whole = bytes + alignment;
    char *at = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint64_t before;

    if (at == MAP_FAILED)
        return NULL;
    before = (alignment - (uintptr_t)at % alignment) % alignment;
    if (before > 0)
        munmap(at, before);
    munmap(at + before + bytes, whole - before - bytes);
    return at + before;
}

CUresult cuMemAddressReserve(CUdeviceptr *ret, size_t bytes, size_t alignment, CUdeviceptr at,
                             unsigned long long flags)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);
    const uint64_t step = MAX(alignment, FAKE_GRANULE);
    struct reservation *place;
    void *base;

    (void)at; /* a wish */
    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (flags != 0 || bytes == 0 || bytes % FAKE_GRANULE != 0 || (step & (step - 1)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    place = calloc(1, sizeof(*place));
    base = place ? place_reserve(bytes, step) : NULL;
    if (!base) {
        free(place);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    place->base = (uintptr_t)base;
    place->bytes = bytes;
    list_append(&reservations, &place->link);
    *ret = place->base;
    return CUDA_SUCCESS;
}

/* Mappings that touch the interval; `*ret_bytes` of them lie in it as a whole. */
static unsigned mappings_in(uint64_t base, uint64_t bytes, uint64_t *ret_bytes)
{
    struct range *range;
    unsigned n = 0;

    *ret_bytes = 0;
    list_for_each(range, &ranges, link) {
        if (range->base >= base + bytes || base >= range->base + range->bytes)
            continue;
        n++;
        if (range->kind == RANGE_MAPPED && range->base >= base &&
            range->base + range->bytes <= base + bytes)
            *ret_bytes += range->bytes;
    }
    return n;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t bytes)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);
    struct reservation *place;
    uint64_t mapped;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    list_for_each(place, &reservations, link)
        if (place->base == ptr && place->bytes == bytes && mappings_in(ptr, bytes, &mapped) == 0) {
            munmap((void *)(uintptr_t)ptr, bytes);
            list_remove(&place->link);
            free(place);
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

static bool place_is_reserved(uint64_t base, uint64_t bytes)
{
    const struct reservation *place;

    list_for_each(place, &reservations, link)
        if (base - place->base < place->bytes && bytes <= place->base + place->bytes - base)
            return true;
    return false;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);
    struct physical *p = call.r == CUDA_SUCCESS ? physical_find(handle) : NULL;
    struct range *range;
    uint64_t mapped;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (!p || flags != 0 || offset != 0 || bytes == 0 || bytes % FAKE_GRANULE != 0 ||
        bytes > p->bytes || ptr % FAKE_GRANULE != 0 || !place_is_reserved(ptr, bytes) ||
        mappings_in(ptr, bytes, &mapped) > 0)
        return CUDA_ERROR_INVALID_VALUE;
    range = calloc(1, sizeof(*range));
    if (!range || mmap((void *)(uintptr_t)ptr, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, p->fd,
                       0) == MAP_FAILED) {
        free(range);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    p->mappings++;
    range->kind = RANGE_MAPPED;
    range->base = ptr;
    range->bytes = bytes;
    range->gpu = p->gpu;
    range->physical = p;
    range->fd = -1;
    range_add(range);
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t bytes)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);
    struct range *range, *next;
    uint64_t mapped;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (bytes == 0 || mappings_in(ptr, bytes, &mapped) == 0 || mapped != bytes)
        return CUDA_ERROR_INVALID_VALUE;
    list_for_each_safe(range, next, &ranges, link)
        if (range->base - ptr < bytes)
            range_remove(range);
    return CUDA_SUCCESS;
}

/* The bits of those that `desc` names. */
static CUresult access_read(const CUmemAccessDesc *desc, size_t count, const struct gpu *owner,
                            unsigned *ret)
{
    *ret = 0;
    for (size_t i = 0; i < count; i++) {
        const struct gpu *gpu = gpu_get(desc[i].location.id);

        if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || !gpu)
            return CUDA_ERROR_INVALID_DEVICE;
        if (desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
        if (!gpu_reaches(gpu, owner))
            return CUDA_ERROR_NOT_SUPPORTED;
        *ret |= 1u << gpu->number;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t bytes, const CUmemAccessDesc *desc, size_t count)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);
    struct range *range;
    uint64_t mapped;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (bytes == 0 || count == 0 || mappings_in(ptr, bytes, &mapped) == 0 || mapped != bytes)
        return CUDA_ERROR_INVALID_VALUE;
    list_for_each(range, &ranges, link) {
        unsigned access;
        CUresult r;

        if (range->base - ptr >= bytes)
            continue;
        r = access_read(desc, count, range->gpu, &access);
        if (r != CUDA_SUCCESS)
            return r;
        if (mprotect((void *)(uintptr_t)range->base, range->bytes, PROT_READ | PROT_WRITE) < 0)
            return CUDA_ERROR_UNKNOWN;
        pthread_rwlock_wrlock(&ranges_lock);
        range->access |= access;
        pthread_rwlock_unlock(&ranges_lock);
    }
    return CUDA_SUCCESS;
}
