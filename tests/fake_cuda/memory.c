/* Memory: allocations and registered host memory, and what lies where. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fake_cuda/fake.h"

#define PAGE  4096ull
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

pthread_rwlock_t ranges_lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
struct list ranges = LIST_INIT(ranges);

static bool managed;
static int exportable = -1; /* not asked for yet */

void fake_cuda_managed(bool yes)
{
    if (!fake_is_ours())
        return;
    pthread_mutex_lock(&fake_lock);
    managed = yes;
    pthread_mutex_unlock(&fake_lock);
}

void fake_cuda_exportable(bool yes)
{
    if (!fake_is_ours())
        return;
    pthread_mutex_lock(&fake_lock);
    exportable = yes;
    pthread_mutex_unlock(&fake_lock);
}

static bool memory_is_exportable(void)
{
    if (exportable < 0) {
        const char *setting = getenv("FAKE_CUDA_EXPORTABLE");

        exportable = !setting || strcmp(setting, "no") != 0;
    }
    return exportable;
}

uint64_t memfd_round(uint64_t bytes)
{
    return div_up_u64(bytes, PAGE) * PAGE;
}

int memfd_new(const char *what, unsigned number, uint64_t bytes)
{
    char name[64];
    int fd;

    snprintf(name, sizeof(name), FAKE_MEMFD_PREFIX "%s:%u:%" PRIu64, what, number, bytes);
    fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    if (ftruncate(fd, (off_t)memfd_round(bytes)) < 0 || fcntl(fd, F_ADD_SEALS, SEALS) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

bool memfd_is(int fd, const char *what, uint64_t bytes, unsigned *ret_number, uint64_t *ret_ino)
{
    char link[64], name[128] = "", start[64], *end;
    unsigned long number;
    struct stat st;
    int len;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    if (readlink(link, name, sizeof(name) - 1) < 0)
        return false;
    len = snprintf(start, sizeof(start), "/memfd:" FAKE_MEMFD_PREFIX "%s:", what);
    if (strncmp(name, start, (size_t)len) != 0 || fcntl(fd, F_GET_SEALS) != SEALS)
        return false;
    if (fstat(fd, &st) < 0 || (uint64_t)st.st_size != memfd_round(bytes))
        return false;
    number = strtoul(name + len, &end, 10);
    if (*end != ':' || strtoull(end + 1, NULL, 10) != bytes)
        return false;
    *ret_number = (unsigned)number;
    *ret_ino = st.st_ino;
    return true;
}

struct range *range_find(uint64_t address)
{
    struct range *range;

    list_for_each(range, &ranges, link)
        if (address - range->base < range->bytes)
            return range;
    return NULL;
}

void range_add(struct range *range)
{
    pthread_rwlock_wrlock(&ranges_lock);
    list_append(&ranges, &range->link);
    pthread_rwlock_unlock(&ranges_lock);
}

/* A mapping's place stays reserved. */
static void range_unmap(const struct range *range)
{
    void *base = (void *)(uintptr_t)range->base;

    if (range->kind == RANGE_MAPPED)
        mmap(base, range->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0);
    else if (range->kind != RANGE_HOST)
        munmap(base, memfd_round(range->bytes));
}

void range_remove(struct range *range)
{
    pthread_rwlock_wrlock(&ranges_lock);
    list_remove(&range->link);
    range_unmap(range);
    pthread_rwlock_unlock(&ranges_lock);

    if (range->kind == RANGE_ALLOCATION)
        range->gpu->used -= memfd_round(range->bytes);
    if (range->kind == RANGE_MAPPED)
        vmm_unmapped(range);
    share_remove(range->id);
    if (range->fd >= 0)
        close(range->fd);
    free(range);
}

unsigned range_count(enum range_kind kind)
{
    struct range *range;
    unsigned n = 0;

    list_for_each(range, &ranges, link)
        n += range->kind == kind;
    return n;
}

void ranges_end_context(CUcontext context)
{
    struct range *range, *next;

    list_for_each_safe(range, next, &ranges, link)
        if (range->context == context)
            range_remove(range);
}

static bool range_reaches(const struct range *range, CUcontext context, enum touch touch)
{
    switch (range->kind) {
    case RANGE_HOST:
        return range->portable || range->context == context;
    case RANGE_MAPPED:
        return touch == TOUCH_COPY ? range->access != 0
                                   : (range->access & 1u << context->gpu->number) != 0;
    default:
        return touch == TOUCH_COPY || range->context == context || range->gpu == context->gpu ||
               (atomic_load(&context->peers) & 1u << range->gpu->number) != 0;
    }
}

bool ranges_check(CUcontext context, uint64_t address, uint64_t bytes, enum touch touch)
{
    while (bytes > 0) {
        const struct range *range = range_find(address);
        uint64_t here;

        if (!range || !range_reaches(range, context, touch))
            return false;
        here = MIN(range->base + range->bytes - address, bytes);
        address += here;
        bytes -= here;
    }
    return true;
}

CUresult cuMemGetInfo_v2(size_t *ret_free, size_t *ret_total)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);

    if (call.r != CUDA_SUCCESS)
        return call.r;
    *ret_free = gpu_memory() - call.context->gpu->used;
    *ret_total = gpu_memory();
    return CUDA_SUCCESS;
}

static CUresult allocate(CUcontext context, size_t bytes, CUdeviceptr *ret)
{
    struct gpu *gpu = context->gpu;
    struct range *range;
    void *base;

    if (memfd_round(bytes) > gpu_memory() - gpu->used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range = calloc(1, sizeof(*range));
    if (!range)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range->fd = memfd_new("memory", gpu->number, bytes);
    base = range->fd < 0
               ? MAP_FAILED
               : mmap(NULL, memfd_round(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, range->fd, 0);
    if (base == MAP_FAILED) {
        if (range->fd >= 0)
            close(range->fd);
        free(range);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }

    gpu->used += memfd_round(bytes);
    range->kind = RANGE_ALLOCATION;
    range->base = (uintptr_t)base;
    range->bytes = bytes;
    range->gpu = gpu;
    range->context = context;
    range->exportable = memory_is_exportable();
    range->managed = managed;
    range_add(range);
    *ret = range->base;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *ret, size_t bytes)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);

    if (call.r != CUDA_SUCCESS)
        return call.r;
    return bytes == 0 ? CUDA_ERROR_INVALID_VALUE : allocate(call.context, bytes, ret);
}

CUresult cuMemFree_v2(CUdeviceptr ptr)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    struct range *range;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (ptr == 0)
        return CUDA_SUCCESS;
    range = range_find(ptr);
    if (!range || range->kind != RANGE_ALLOCATION || range->base != ptr)
        return CUDA_ERROR_INVALID_VALUE;
    range_remove(range);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *ret_base, size_t *ret_bytes, CUdeviceptr ptr)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    const struct range *range;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    range = range_find(ptr);
    if (!range || range->kind == RANGE_HOST)
        return CUDA_ERROR_NOT_FOUND;
    if (ret_base)
        *ret_base = range->base;
    if (ret_bytes)
        *ret_bytes = range->bytes;
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *ret, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    const struct range *range;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    range = range_find(ptr);
    if (!range)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)ret = range->kind == RANGE_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)ret = range->managed;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)ret = range->gpu->ordinal;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)ret = range->exportable;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* Host memory */

static bool host_is_mapped(uint64_t address, uint64_t bytes)
{
    const uint64_t start = address - address % PAGE,
                   pages = div_up_u64(address + bytes - start, PAGE);
    unsigned char *seen = malloc(pages);
    const bool mapped = seen && mincore((void *)(uintptr_t)start, pages * PAGE, seen) == 0;

    free(seen);
    return mapped;
}

static bool ranges_overlap(uint64_t address, uint64_t bytes)
{
    struct range *range;

    list_for_each(range, &ranges, link)
        if (address < range->base + range->bytes && range->base < address + bytes)
            return true;
    return false;
}

CUresult cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned flags)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    const uint64_t address = (uintptr_t)ptr;
    struct range *range;
    uint64_t end;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (flags & ~(unsigned)(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP) ||
        bytes == 0 || !add_u64(address, bytes, &end) || !host_is_mapped(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (ranges_overlap(address, bytes))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    range = calloc(1, sizeof(*range));
    if (!range)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range->kind = RANGE_HOST;
    range->base = address;
    range->bytes = bytes;
    range->gpu = call.context->gpu;
    range->context = call.context;
    range->portable = (flags & CU_MEMHOSTREGISTER_PORTABLE) != 0;
    range->fd = -1;
    range_add(range);
    return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *ptr)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    struct range *range;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    range = range_find((uintptr_t)ptr);
    if (!range || range->kind != RANGE_HOST || range->base != (uintptr_t)ptr)
        return CUDA_ERROR_INVALID_VALUE;
    range_remove(range);
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *ret, void *ptr, unsigned flags)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    const struct range *range;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    range = range_find((uintptr_t)ptr);
    if (flags != 0 || !range || range->kind != RANGE_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    *ret = (uintptr_t)ptr;
    return CUDA_SUCCESS;
}
