#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/device/cuda.h"

static struct cuda_mapping *cuda_mapping_of(struct mapping *m)
{
    return container_of(m, struct cuda_mapping, base);
}

static uint64_t whole_pages(uint64_t bytes)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    return div_up_u64(bytes, page) * page;
}

/* ---- Memory of clients on GPUs ---- */

static bool is_alive(const struct cuda_mapping *m)
{
    return !m->gpu->failed && m->generation == m->gpu->generation;
}

/* Whether the driver still has it. Handles opened in a context go with it, addresses reserved by
 * the process do not. */
static bool has_driver(const struct cuda_mapping *m)
{
    return m->generation == m->gpu->generation && (!m->gpu->failed || m->kind == MEMORY_CUDA_FD);
}

/* A driver's no to what a client handed over. */
static int refuse(struct cuda_gpu *g, CUresult error, const char *call, const char *pass,
                  struct error *e)
{
    const char *name = cuda_error_name(g->device->api, error);
    int r = cuda_check(g, error, call);

    if (g->failed)
        return error_set(e, ERROR_SYSTEM, "%s failed with %s; try again", g->text, name);
    return error_set(e, r == -ENOMEM ? ERROR_NO_MEMORY : ERROR_INVALID_ARGUMENT,
                     "%s does not take the region's handle: %s says %s; pass %s", g->text, call,
                     name, pass);
}

/* The opened allocation may be said to be no larger than it is. */
static int check_ipc_size(struct cuda_gpu *g, CUdeviceptr at, uint64_t bytes, struct error *e)
{
    CUdeviceptr base;
    size_t size;
    CUresult error = g->device->api->cuMemGetAddressRange_v2(&base, &size, at);

    if (error)
        return refuse(g, error, "cuMemGetAddressRange", "that of memory of cuMemAlloc", e);
    if (at - base > size || bytes > size - (at - base))
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "the region is said to have %" PRIu64
                         " bytes, but its allocation has %" PRIu64,
                         bytes, (uint64_t)(size - (at - base)));
    return 0;
}

static int open_ipc(struct cuda_mapping *m, const struct memory_handle *h, struct error *e)
{
    const struct cuda *api = m->gpu->device->api;
    CUipcMemHandle ipc;
    CUdeviceptr at;
    CUresult error;
    int r;

    memcpy(ipc.reserved, h->ipc, sizeof(ipc.reserved));
    error = api->cuIpcOpenMemHandle_v2(&at, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (error)
        return refuse(m->gpu, error, "cuIpcOpenMemHandle",
                      "that of a live allocation of cuMemAlloc in another process", e);
    r = check_ipc_size(m->gpu, at, h->bytes, e);
    if (r < 0) {
        api->cuIpcCloseMemHandle(at);
        return r;
    }
    m->base.base = (void *)(uintptr_t)at;
    return 0;
}

/* For its own GPU and all that reach it. */
static CUresult allow_access(struct cuda_gpu *g, CUdeviceptr at, uint64_t bytes)
{
    struct cuda_device *d = g->device;
    CUmemAccessDesc desc[CUDA_GPUS_MAX];
    size_t n = 0;

    for (uint32_t i = 0; i < d->ngpus; i++)
        if (d->gpus[i].reach & cuda_bit(g))
            desc[n++] = (CUmemAccessDesc){
                .location = { CU_MEM_LOCATION_TYPE_DEVICE, d->gpus[i].ordinal },
                .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            };
    return d->api->cuMemSetAccess(at, bytes, desc, n);
}

static int map_fd(struct cuda_mapping *m, uint64_t bytes, struct error *e)
{
    static const char pass[] = "a descriptor exported from a whole allocation of cuMemCreate, and "
                               "its size";
    const struct cuda *api = m->gpu->device->api;
    CUdeviceptr at;
    CUresult error;

    error = api->cuMemAddressReserve(&at, bytes, 0, 0, 0);
    if (error)
        return refuse(m->gpu, error, "cuMemAddressReserve", pass, e);
    error = api->cuMemMap(at, bytes, 0, m->handle, 0);
    if (error) {
        api->cuMemAddressFree(at, bytes);
        return refuse(m->gpu, error, "cuMemMap", pass, e);
    }
    error = allow_access(m->gpu, at, bytes);
    if (error) {
        api->cuMemUnmap(at, bytes);
        api->cuMemAddressFree(at, bytes);
        return refuse(m->gpu, error, "cuMemSetAccess", pass, e);
    }
    m->base.base = (void *)(uintptr_t)at;
    return 0;
}

static void let_go(struct cuda_mapping *m)
{
    const struct cuda *api = m->gpu->device->api;
    const CUdeviceptr at = (uintptr_t)m->base.base;

    if (m->kind == MEMORY_CUDA_IPC) {
        api->cuIpcCloseMemHandle(at);
        return;
    }
    api->cuMemUnmap(at, m->base.bytes);
    api->cuMemAddressFree(at, m->base.bytes);
    api->cuMemRelease(m->handle);
}

/*
 * The one of the same allocation, as far as handles tell. Those imported from descriptors are the
 * same for the same allocation or not, as the driver likes; and the descriptors themselves are all
 * of one device file, so that fstat() says nothing of what they are of.
 */
static struct cuda_mapping *find_same(const struct cuda_mapping *new)
{
    struct cuda_mapping *m;

    list_for_each(m, &new->gpu->device->mappings, link) {
        if (m->gpu != new->gpu || m->kind != new->kind || !is_alive(m))
            continue;
        if (m->kind == MEMORY_CUDA_IPC ? memcmp(m->ipc, new->ipc, sizeof(m->ipc)) == 0
                                       : m->handle == new->handle)
            return m;
    }
    return NULL;
}

static int share(struct cuda_mapping *m, uint64_t bytes, struct mapping **ret, struct error *e)
{
    if (bytes > m->base.bytes)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "the region is said to have %" PRIu64
                         " bytes, but its allocation was registered with %" PRIu64
                         "; pass the whole of it",
                         bytes, m->base.bytes);
    *ret = mapping_ref(&m->base);
    return 0;
}

static int import_ipc(struct cuda_mapping *m, const struct memory_handle *h, struct mapping **ret,
                      struct error *e)
{
    struct cuda_mapping *same;

    memcpy(m->ipc, h->ipc, sizeof(m->ipc));
    same = find_same(m);
    return same ? share(same, h->bytes, ret, e) : open_ipc(m, h, e);
}

static int import_fd(struct cuda_mapping *m, const struct memory_handle *h, struct mapping **ret,
                     struct error *e)
{
    const struct cuda *api = m->gpu->device->api;
    struct cuda_mapping *same;
    CUresult error;
    int r;

    error = api->cuMemImportFromShareableHandle(&m->handle, (void *)(intptr_t)h->fd,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (error)
        return refuse(m->gpu, error, "cuMemImportFromShareableHandle",
                      "a descriptor of cuMemExportToShareableHandle", e);
    same = find_same(m);
    r = same ? share(same, h->bytes, ret, e) : map_fd(m, h->bytes, e);
    if (r < 0 || same)
        api->cuMemRelease(m->handle);
    return r;
}

/* What fails and is made anew with a GPU has to be memory of it. */
static int check_gpu(const struct cuda_mapping *m, struct error *e)
{
    struct cuda_gpu *g = m->gpu;
    int ordinal = -1;
    CUresult error = g->device->api->cuPointerGetAttribute(
        &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (uintptr_t)m->base.base);

    if (error)
        return refuse(g, error, "cuPointerGetAttribute", "that of memory of a GPU", e);
    if (ordinal != g->ordinal)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "the region is said to be memory of %s, but is another GPU's", g->text);
    return 0;
}

/* Return: as device_ops::import; *ret_shared is another mapping that it is already. */
static int import(struct cuda_mapping *m, const struct memory_handle *h,
                  struct mapping **ret_shared, struct error *e)
{
    int r = (h->kind == MEMORY_CUDA_IPC ? import_ipc : import_fd)(m, h, ret_shared, e);

    if (r < 0 || *ret_shared)
        return r;
    r = check_gpu(m, e);
    if (r < 0)
        let_go(m);
    return r;
}

static void mapping_add(struct cuda_device *d, struct cuda_mapping *m)
{
    struct cuda_gpu *g = m->gpu;

    m->base.device = &d->base;
    m->base.refs = 1;
    m->base.dev = CUDA_DEV;
    m->base.ino = (ino_t)++d->allocations;
    m->generation = g->generation;
    list_append(&d->mappings, &m->link);
    g->mapped_bytes += m->base.bytes;
    g->nmappings++;
}

int cuda_import(struct device *device, const struct memory_handle *handle, struct mapping **ret,
                struct error *e)
{
    struct cuda_device *d = cuda_of(device);
    struct cuda_mapping *m;
    struct mapping *shared = NULL;
    struct cuda_gpu *g;
    int r;

    if (handle->kind != MEMORY_CUDA_IPC && handle->kind != MEMORY_CUDA_FD)
        return error_set(e, ERROR_INVALID_ARGUMENT, "the region is not memory of a GPU");
    if (handle->bytes == 0)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "the region has no bytes; register at least one");
    r = cuda_gpu_wanted(d, handle->gpu, "the region", &g, e);
    if (r < 0)
        return r;
    if (cuda_gpu_enter(g))
        return error_set(e, ERROR_SYSTEM, "%s cannot be used", g->text);
    m = calloc(1, sizeof(*m));
    if (!m)
        return error_set_errno(e, ENOMEM, "mapping the region");

    m->gpu = g;
    m->kind = handle->kind;
    m->base.bytes = handle->bytes;
    r = import(m, handle, &shared, e);
    if (r < 0 || shared)
        free(m);
    else
        mapping_add(d, m);
    if (r == 0)
        *ret = shared ? shared : &m->base;
    return r;
}

void cuda_unmap(struct mapping *mapping)
{
    struct cuda_mapping *m = cuda_mapping_of(mapping);
    struct cuda_gpu *g = m->gpu;

    if (has_driver(m) && cuda_gpu_enter(g) == CUDA_SUCCESS)
        let_go(m);
    g->mapped_bytes -= m->base.bytes;
    g->nmappings--;
    list_remove(&m->link);
    free(m);
}

/* ---- Memory of the host ---- */

static struct cuda_host *host_of_link(struct list *link)
{
    return container_of(link, struct cuda_host, link);
}

static struct cuda_host *host_add(struct list *l, void *base, uint64_t bytes)
{
    struct cuda_host *h = calloc(1, sizeof(*h));

    if (!h)
        return NULL;
    h->base = base;
    h->bytes = bytes;
    list_append(l, &h->link);
    return h;
}

static void host_unregister(struct cuda_host *h)
{
    struct cuda_gpu *g = h->registrar;

    if (g && cuda_gpu_enter(g) == CUDA_SUCCESS)
        g->device->api->cuMemHostUnregister(h->base);
    h->registrar = NULL;
}

static void host_remove(struct cuda_host *h)
{
    host_unregister(h);
    if (h->mapping)
        h->mapping->before_unmap = NULL;
    list_remove(&h->link);
    free(h);
}

static void forget_mapping(struct mapping *m, void *owner)
{
    (void)m;
    host_remove(owner);
}

int cuda_host_register(struct cuda_gpu *g, struct cuda_host *h)
{
    const struct cuda *api = g->device->api;
    CUresult error;

    if (h->registrar && h->registrar->failed)
        cuda_gpu_revive(h->registrar);
    if (h->registrar)
        return h->registrar->failed ? DEVICE_BUSY : 0;

    error = cuda_gpu_enter(g);
    if (error)
        return cuda_check_work(g, error, "cuCtxSetCurrent");
    error = api->cuMemHostRegister_v2(h->base, whole_pages(h->bytes),
                                      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (error)
        return cuda_check_work(g, error, "cuMemHostRegister");
    error = api->cuMemHostGetDevicePointer_v2(&h->address, h->base, 0);
    if (error) {
        api->cuMemHostUnregister(h->base);
        return cuda_check_work(g, error, "cuMemHostGetDevicePointer");
    }
    h->registrar = g;
    return 0;
}

struct cuda_host *cuda_host_of(struct cuda_device *d, struct mapping *m)
{
    struct cuda_host *h;

    if (m->before_unmap == forget_mapping)
        return m->before_unmap_owner;
    h = host_add(&d->hosts, m->base, m->bytes);
    if (!h)
        return NULL;
    h->mapping = m;
    m->before_unmap = forget_mapping;
    m->before_unmap_owner = h;
    return h;
}

int cuda_adopt(struct device *device, void *base, uint64_t bytes)
{
    return host_add(&cuda_of(device)->adopted, base, bytes) ? 0 : -ENOMEM;
}

void cuda_disown(struct device *device, void *base)
{
    struct cuda_host *h;

    list_for_each(h, &cuda_of(device)->adopted, link)
        if (h->base == base) {
            host_remove(h);
            return;
        }
}

struct cuda_host *cuda_host_new(struct cuda_device *d, uint64_t bytes)
{
    struct cuda_host *h;
    void *base;

    bytes = whole_pages(bytes);
    base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    h = host_add(&d->hosts, base, bytes);
    if (!h)
        munmap(base, bytes);
    return h;
}

struct cuda_host *cuda_host_free(struct cuda_host *h)
{
    void *base;
    uint64_t bytes;

    if (!h)
        return NULL;
    base = h->base;
    bytes = h->bytes;
    host_remove(h);
    munmap(base, bytes);
    return NULL;
}

void cuda_hosts_free(struct cuda_device *d)
{
    while (!list_empty(&d->hosts))
        host_remove(host_of_link(d->hosts.next));
    while (!list_empty(&d->adopted))
        host_remove(host_of_link(d->adopted.next));
}

static void forget_hosts(struct list *l, const struct cuda_gpu *g)
{
    struct cuda_host *h;

    list_for_each(h, l, link)
        if (h->registrar == g)
            host_unregister(h);
}

void cuda_memory_forget(struct cuda_gpu *g)
{
    struct cuda_device *d = g->device;
    struct cuda_mapping *m;

    forget_hosts(&d->adopted, g);
    forget_hosts(&d->hosts, g);
    list_for_each(m, &d->mappings, link)
        if (m->gpu == g && has_driver(m))
            let_go(m);
}

/* ---- Addresses ---- */

/* Whether all of [p, p + bytes) lies in [base, base + room); where. */
static bool is_within(const void *base, uint64_t room, const void *p, uint64_t bytes,
                      uint64_t *ret_offset)
{
    const uint64_t offset = (uintptr_t)p - (uintptr_t)base; /* below base: larger than any room */

    if (offset > room || bytes > room - offset)
        return false;
    *ret_offset = offset;
    return true;
}

static int place_in_mapping(struct cuda_device *d, struct mapping *m, const void *p,
                            uint64_t offset, struct cuda_place *ret)
{
    if (m->device == &d->base) {
        *ret =
            (struct cuda_place){ .address = (uintptr_t)p, .gpu = cuda_mapping_of(m)->gpu->index };
        return 0;
    }
    *ret = (struct cuda_place){ .gpu = CUDA_ON_HOST, .host = cuda_host_of(d, m), .offset = offset };
    return ret->host ? 0 : -ENOMEM;
}

int cuda_locate(struct cuda_device *d, const struct task *t, const void *p, uint64_t bytes,
                uint32_t *hint, struct cuda_place *ret)
{
    struct cuda_host *h;
    uint64_t offset;

    for (uint32_t i = 0; i < t->nmappings; i++) {
        const uint32_t at = (uint32_t)(((uint64_t)*hint + i) % t->nmappings);
        struct mapping *m = t->mappings[at];

        if (is_within(m->base, m->bytes, p, bytes, &offset)) {
            *hint = at + 1;
            return place_in_mapping(d, m, p, offset, ret);
        }
    }
    list_for_each(h, &d->adopted, link)
        if (is_within(h->base, h->bytes, p, bytes, &offset)) {
            *ret = (struct cuda_place){ .gpu = CUDA_ON_HOST, .host = h, .offset = offset };
            return 0;
        }
    return -EINVAL;
}
