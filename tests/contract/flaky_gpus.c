#include "tests/contract/flaky_gpus.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/device/memfd.h"
#include "tests/contract/flaky_device.h"

#define PAGE 4096u

/* Its own bugs and its users' end the program, in every build. */
#define must(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            abort();                                                                               \
    } while (0)

struct gpus {
    struct device base;
    struct device *tasks;
    struct list memories; // struct memory
    struct list blocks;   // struct block
    struct list fences;   // struct gpu_fence
    ino_t next_ino;
    int refusal;
    const char *blame;
    int epoll_fd;     /* of the two */
    int event_fd;     /* counts while a fence that was asked for has been settled since */
    struct list link; // all
};

static struct list all = LIST_INIT(all); // gpus::link
static uint64_t copied;

struct memory {
    struct mapping *mapping;
    void *view;
    struct list link; // gpus::memories
};

struct block {
    void *base;
    uint64_t bytes;
    struct list link; // gpus::blocks
};

struct gpu_fence {
    struct fence base;
    uint64_t polls;   /* until it passes */
    int result;       /* 1: passed; 0: not yet; -errno */
    bool asked;       /* since it was last settled */
    struct list link; // gpus::fences
};

static struct gpus *gpus_of(const struct device *device)
{
    return (struct gpus *)(uintptr_t)container_of(device, const struct gpus, base);
}

struct device *flaky_gpus_tasks(struct device *gpus)
{
    return gpus_of(gpus)->tasks;
}

/* ---- memory */

static void protect(const struct task *t, const struct device *own, int how)
{
    for (uint32_t i = 0; i < t->nmappings; i++) {
        const struct mapping *m = t->mappings[i];

        if (m->device == own)
            must(mprotect(m->base, m->bytes, how) == 0);
    }
}

static void enter(void *context, const struct task *t)
{
    protect(t, context, PROT_READ | PROT_WRITE);
}

static void leave(void *context, const struct task *t)
{
    protect(t, context, PROT_NONE);
}

static bool is_within(const void *p, uint64_t bytes, const void *base, uint64_t room)
{
    const uint64_t at = (uintptr_t)p - (uintptr_t)base;

    return at <= room && bytes <= room - at;
}

static bool may_name(const struct gpus *g, const struct task *t, const void *p, uint64_t bytes)
{
    const struct block *b;

    for (uint32_t i = 0; i < t->nmappings; i++)
        if (is_within(p, bytes, t->mappings[i]->base, t->mappings[i]->bytes))
            return true;
    list_for_each(b, &g->blocks, link)
        if (is_within(p, bytes, b->base, b->bytes))
            return true;
    return false;
}

static bool source_is_wide(const struct task *t, uint32_t source)
{
    for (uint32_t i = 0, end = 0; i < t->ngroups; i++) {
        end += t->groups[i].nsrc;
        if (source < end)
            return t->groups[i].wide;
    }
    return t->src_wide;
}

static void check_task(const struct gpus *g, const struct task *t)
{
    const uint64_t width[] = { dtype_get(t->dtype)->width,
                               t->kind == TASK_REDUCE
                                   ? dtype_get(dtype_get(t->dtype)->accumulator)->width
                                   : 0 };

    must(!t->small);
    for (uint32_t i = 0; i < t->nsrc; i++)
        must(may_name(g, t, t->src[i], t->count * width[source_is_wide(t, i)]));
    for (uint32_t i = 0; i < t->ndst; i++)
        must(may_name(g, t, t->dst[i], t->count * width[t->dst_wide]));
}

static void *map_view(int fd, uint64_t bytes)
{
    void *view = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    must(view != MAP_FAILED);
    return view;
}

static int gpus_import(struct device *device, const struct memory_handle *handle,
                       struct mapping **ret, struct error *e)
{
    struct gpus *g = gpus_of(device);
    struct memory *memory = calloc(1, sizeof(*memory));
    int r = memfd_map(device, handle->fd, handle->bytes, ret, e);

    must(memory != NULL);
    if (r < 0) {
        free(memory);
        return r;
    }
    memory->mapping = *ret;
    memory->view = map_view(handle->fd, handle->bytes);
    must(mprotect((*ret)->base, (*ret)->bytes, PROT_NONE) == 0);
    list_append(&g->memories, &memory->link);
    (*ret)->dev = 0;
    (*ret)->ino = ++g->next_ino;
    return 0;
}

struct mapping *flaky_memory(struct device *device, uint64_t bytes)
{
    const uint64_t whole = div_up_u64(MAX(bytes, 1), PAGE) * PAGE;
    int fd = memfd_create("flaky-gpus", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct mapping *m;

    must(fd >= 0 && ftruncate(fd, (off_t)whole) == 0);
    must(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    must(device_import_memfd(device, fd, whole, &m, NULL) == 0);
    close(fd);
    return m;
}

static struct memory *memory_of(const struct mapping *m)
{
    struct memory *memory;

    list_for_each(memory, &gpus_of(m->device)->memories, link)
        if (memory->mapping == m)
            return memory;
    return NULL;
}

void *flaky_view(const struct mapping *m)
{
    return m->device->ops == &device_flaky_gpus ? memory_of(m)->view : m->base;
}

/* NULL: it is not of GPUs. */
static void *view_of(const void *p, uint64_t bytes)
{
    const struct gpus *g;
    const struct memory *m;

    list_for_each(g, &all, link)
        list_for_each(m, &g->memories, link)
            if (is_within(p, bytes, m->mapping->base, m->mapping->bytes))
                return (char *)m->view + ((const char *)p - (const char *)m->mapping->base);
    return NULL;
}

void flaky_gpus_copy(void *to, const void *from, uint64_t bytes)
{
    void *view_to = view_of(to, bytes), *view_from = view_of(from, bytes);

    must(!view_to != !view_from);
    memcpy(view_to ? view_to : to, view_from ? view_from : from, bytes);
    copied += bytes;
}

uint64_t flaky_gpus_copied(void)
{
    return copied;
}

/* Memory that a held task still touches must not go away. */
static void gpus_unmap(struct mapping *m)
{
    struct memory *memory = memory_of(m);

    must(!flaky_touches(gpus_of(m->device)->tasks, m));
    list_remove(&memory->link);
    munmap(memory->view, m->bytes);
    free(memory);
    memfd_unmap(m);
}

static int gpus_adopt(struct device *device, void *base, uint64_t bytes)
{
    struct gpus *g = gpus_of(device);
    struct block *b;

    if (g->refusal)
        return g->refusal;
    list_for_each(b, &g->blocks, link)
        must(b->base != base);
    b = calloc(1, sizeof(*b));
    must(b && (uintptr_t)base % PAGE == 0 && bytes % PAGE == 0);
    b->base = base;
    b->bytes = bytes;
    list_append(&g->blocks, &b->link);
    return 0;
}

static void gpus_disown(struct device *device, void *base)
{
    struct block *b;

    list_for_each(b, &gpus_of(device)->blocks, link)
        if (b->base == base) {
            list_remove(&b->link);
            free(b);
            return;
        }
    abort();
}

uint32_t flaky_gpus_adopted(const struct device *gpus)
{
    const struct block *b;
    uint32_t n = 0;

    list_for_each(b, &gpus_of(gpus)->blocks, link)
        n++;
    return n;
}

void flaky_gpus_refuse_adoption(struct device *gpus, int r)
{
    gpus_of(gpus)->refusal = r;
}

/* ---- fences */

static void set_event(const struct gpus *g, bool on)
{
    uint64_t n = 1;

    must(on ? write(g->event_fd, &n, sizeof(n)) == sizeof(n)
            : read(g->event_fd, &n, sizeof(n)) == sizeof(n) || errno == EAGAIN);
}

struct fence *flaky_gpus_fence(struct device *gpus, uint64_t polls)
{
    struct gpu_fence *f = calloc(1, sizeof(*f));

    must(f != NULL);
    f->base = (struct fence){ .device = gpus, .refs = 1 };
    f->polls = polls;
    f->result = polls == 0;
    list_append(&gpus_of(gpus)->fences, &f->link);
    return &f->base;
}

void flaky_gpus_settle(struct fence *fence, int r)
{
    struct gpu_fence *f = container_of(fence, struct gpu_fence, base);

    f->result = r < 0 ? r : 1;
    if (f->asked)
        set_event(gpus_of(fence->device), true);
    f->asked = false;
}

static int gpus_fence_import(struct device *device, const uint8_t gpu[GPU_UUID_BYTES],
                             const uint8_t handle[GPU_HANDLE_BYTES], struct fence **ret,
                             struct error *e)
{
    (void)gpu, (void)handle, (void)e;
    *ret = flaky_gpus_fence(device, 1);
    return 0;
}

static int gpus_fence_passed(struct fence *fence)
{
    struct gpu_fence *f = container_of(fence, struct gpu_fence, base);

    f->asked = f->result == 0;
    return f->result;
}

static void gpus_fence_free(struct fence *fence)
{
    struct gpu_fence *f = container_of(fence, struct gpu_fence, base);

    list_remove(&f->link);
    free(f);
}

/* ---- */

void flaky_gpus_blame(struct device *gpus, const char *text)
{
    gpus_of(gpus)->blame = text;
}

static void gpus_explain(const struct device *device, struct text *t)
{
    if (gpus_of(device)->blame)
        text_add(t, "%s", gpus_of(device)->blame);
}

static bool gpus_gpu(const struct device *device, uint32_t index, struct device_gpu *ret)
{
    (void)device, (void)index, (void)ret;
    return false;
}

static int gpus_submit(struct device *device, struct task *task)
{
    const struct gpus *g = gpus_of(device);

    check_task(g, task);
    return device_submit(g->tasks, task);
}

static void gpus_poll(struct device *device)
{
    struct gpus *g = gpus_of(device);
    struct gpu_fence *f;

    set_event(g, false);
    list_for_each(f, &g->fences, link)
        if (f->asked && !f->result && f->polls != FENCE_NEVER && --f->polls == 0)
            f->result = 1;
    device_poll(g->tasks);
}

/* Of fences that pass by being polled for. */
static bool gpus_wants_turn(const struct device *device)
{
    const struct gpu_fence *f;

    list_for_each(f, &gpus_of(device)->fences, link)
        if (f->asked && f->polls != FENCE_NEVER)
            return true;
    return false;
}

static int gpus_fd(const struct device *device)
{
    return gpus_of(device)->epoll_fd;
}

static void watch_fd(const struct gpus *g, int fd)
{
    struct epoll_event event = { .events = EPOLLIN };

    must(epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0);
}

static int gpus_open(const struct device_config *config, struct device **ret, struct error *e)
{
    struct gpus *g = calloc(1, sizeof(*g));

    must(g != NULL);
    g->base.ops = &device_flaky_gpus;
    list_init(&g->memories);
    list_init(&g->blocks);
    list_init(&g->fences);
    must(device_flaky.open(config, &g->tasks, e) == 0);
    flaky_set_watch(g->tasks, &(struct flaky_watch){ enter, leave, g });
    g->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    g->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    must(g->event_fd >= 0 && g->epoll_fd >= 0);
    watch_fd(g, g->event_fd);
    watch_fd(g, device_flaky.fd(g->tasks));
    list_append(&all, &g->link);
    *ret = &g->base;
    return 0;
}

static void gpus_close(struct device *device)
{
    struct gpus *g = gpus_of(device);

    must(list_empty(&g->memories) && list_empty(&g->blocks) && list_empty(&g->fences));
    list_remove(&g->link);
    close(g->epoll_fd);
    close(g->event_fd);
    device_flaky.close(g->tasks);
    free(g);
}

const struct device_ops device_flaky_gpus = {
    .name = "flaky-gpus",
    .open = gpus_open,
    .close = gpus_close,
    .import = gpus_import,
    .unmap = gpus_unmap,
    .adopt = gpus_adopt,
    .disown = gpus_disown,
    .fence_import = gpus_fence_import,
    .fence_passed = gpus_fence_passed,
    .fence_free = gpus_fence_free,
    .explain = gpus_explain,
    .gpu = gpus_gpu,
    .submit = gpus_submit,
    .poll = gpus_poll,
    .wants_turn = gpus_wants_turn,
    .fd = gpus_fd,
};
