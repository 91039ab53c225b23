#include "tests/end_to_end/gpu_row.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NUMBER_DEVICE 0x67707531u /* of what comes by number */
#define FILE_DEVICE   0x67707532u /* of what comes by descriptor */

struct gpu_row {
    struct device base;
    struct device *host;  /* does the work */
    struct list memories; // struct gpu_memory::link
};

struct gpu_memory {
    struct mapping mapping;
    struct list link;
};

struct gpu_fence {
    struct fence base;
    int fd;
};

static struct gpu_row *row_of(const struct device *device)
{
    return container_of(device, struct gpu_row, base);
}

static int row_open(const struct device_config *config, struct device **ret, struct error *e)
{
    struct gpu_row *g = calloc(1, sizeof(*g));
    int r;

    if (!g)
        return error_set_errno(e, ENOMEM, "opening the GPU");
    r = device_host.open(config, &g->host, e);
    if (r < 0) {
        free(g);
        return r;
    }
    g->base.ops = &device_gpu_row;
    list_init(&g->memories);
    *ret = &g->base;
    return 0;
}

static void row_close(struct device *device)
{
    struct gpu_row *g = row_of(device);

    if (!list_empty(&g->memories))
        abort();
    g->host->ops->close(g->host);
    free(g);
}

static int check_gpu(const uint8_t gpu[GPU_UUID_BYTES], struct error *e)
{
    uint8_t uuid[GPU_UUID_BYTES];

    gpu_row_uuid(uuid);
    if (memcmp(uuid, gpu, sizeof(uuid)))
        return error_set(e, ERROR_INVALID_ARGUMENT, "the daemon has no such GPU");
    return 0;
}

static void identify(const struct memory_handle *handle, struct mapping *ret)
{
    struct stat st = { 0 };
    uint64_t words[2];

    if (handle->kind == MEMORY_CUDA_IPC) {
        memcpy(words, handle->ipc, sizeof(words));
        ret->dev = NUMBER_DEVICE;
        ret->ino = words[0];
        ret->bytes = words[1];
    } else {
        fstat(handle->fd, &st);
        ret->dev = FILE_DEVICE;
        ret->ino = st.st_ino;
        ret->bytes = (uint64_t)st.st_size;
    }
}

static struct mapping *find(const struct gpu_row *g, const struct mapping *like)
{
    struct gpu_memory *m;

    list_for_each(m, &g->memories, link)
        if (m->mapping.dev == like->dev && m->mapping.ino == like->ino)
            return &m->mapping;
    return NULL;
}

static int row_import(struct device *device, const struct memory_handle *handle,
                      struct mapping **ret, struct error *e)
{
    struct mapping like = { .device = device, .refs = 1 };
    struct gpu_row *g = row_of(device);
    struct gpu_memory *m;

    if (handle->kind == MEMORY_MEMFD)
        return error_set(e, ERROR_INVALID_ARGUMENT, "the region is not memory of a GPU");
    if (check_gpu(handle->gpu, e) < 0)
        return -ERROR_INVALID_ARGUMENT;
    identify(handle, &like);
    *ret = mapping_ref(find(g, &like));
    if (*ret)
        return 0;
    like.base = mmap(NULL, like.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    m = like.base == MAP_FAILED ? NULL : calloc(1, sizeof(*m));
    if (!m)
        return error_set_errno(e, ENOMEM, "mapping the allocation");
    m->mapping = like;
    list_append(&g->memories, &m->link);
    *ret = &m->mapping;
    return 0;
}

static void row_unmap(struct mapping *mapping)
{
    struct gpu_memory *m = container_of(mapping, struct gpu_memory, mapping);

    list_remove(&m->link);
    munmap(mapping->base, mapping->bytes);
    free(m);
}

static int row_adopt(struct device *device, void *base, uint64_t bytes)
{
    (void)device, (void)base, (void)bytes;
    return 0;
}

static void row_disown(struct device *device, void *base)
{
    (void)device, (void)base;
}

static int row_fence_import(struct device *device, const uint8_t gpu[GPU_UUID_BYTES],
                            const uint8_t handle[GPU_HANDLE_BYTES], struct fence **ret,
                            struct error *e)
{
    struct gpu_fence *f;

    (void)handle;
    if (check_gpu(gpu, e) < 0)
        return -ERROR_INVALID_ARGUMENT;
    f = calloc(1, sizeof(*f));
    if (!f)
        return error_set_errno(e, ENOMEM, "opening the fence");
    f->base = (struct fence){ .device = device, .refs = 1 };
    f->fd = eventfd(0, EFD_CLOEXEC);
    *ret = &f->base;
    return 0;
}

static int row_fence_passed(struct fence *fence)
{
    (void)fence;
    return 1;
}

static void row_fence_free(struct fence *fence)
{
    struct gpu_fence *f = container_of(fence, struct gpu_fence, base);

    close(f->fd);
    free(f);
}

static void row_explain(const struct device *device, struct text *t)
{
    (void)device, (void)t;
}

static bool row_gpu(const struct device *device, uint32_t index, struct device_gpu *ret)
{
    const struct gpu_row *g = row_of(device);
    const struct gpu_memory *m;

    if (index > 0)
        return false;
    *ret = (struct device_gpu){ .name = GPU_ROW_NAME, .failures = 3 };
    gpu_row_uuid(ret->uuid);
    list_for_each(m, &g->memories, link) {
        ret->mappings++;
        ret->mapped_bytes += m->mapping.bytes;
    }
    return true;
}

static int row_submit(struct device *device, struct task *task)
{
    return device_submit(row_of(device)->host, task);
}

static void row_poll(struct device *device)
{
    device_poll(row_of(device)->host);
}

static bool row_wants_turn(const struct device *device)
{
    return device_wants_turn(row_of(device)->host);
}

static int row_fd(const struct device *device)
{
    const struct device *host = row_of(device)->host;

    return host->ops->fd(host);
}

const struct device_ops device_gpu_row = {
    .name = "gpu_row",
    .open = row_open,
    .close = row_close,
    .import = row_import,
    .unmap = row_unmap,
    .adopt = row_adopt,
    .disown = row_disown,
    .fence_import = row_fence_import,
    .fence_passed = row_fence_passed,
    .fence_free = row_fence_free,
    .explain = row_explain,
    .gpu = row_gpu,
    .submit = row_submit,
    .poll = row_poll,
    .wants_turn = row_wants_turn,
    .fd = row_fd,
};
