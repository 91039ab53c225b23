/* Devices of every kind, memory for them, and tasks. */
#include "tests/contract/device_world.h"

#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shared/cuda.h"

/* ---- Memory that tasks name ---- */

/* What every device that is open has adopted. */
static struct {
    void *base;
    size_t bytes;
} adopted[8];
static unsigned nadopted;

void *memory_new(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(p, MAP_FAILED);
    assert_true(nadopted < ARRAY_SIZE(adopted));
    adopted[nadopted].base = p;
    adopted[nadopted++].bytes = bytes;
    return p;
}

void memory_free(void)
{
    while (nadopted > 0) {
        nadopted--;
        munmap(adopted[nadopted].base, adopted[nadopted].bytes);
    }
}

/* ---- Devices ---- */

/* Whether this machine has such a device. */
static bool kind_exists(const struct device_ops *ops)
{
    static const struct device_ops *said;
    struct error e = { 0 };
    struct device *d;
    int r = ops->open(&(struct device_config){ .nworkers = 1 }, &d, &e);

    if (r == -ERROR_NOT_FOUND) {
        if (said != ops)
            print_message("%s: not here: %s\n", ops->name, e.text);
        said = ops;
        return false;
    }
    if (r < 0)
        fail_msg("%s: %s", ops->name, e.text);
    d->ops->close(d);
    return true;
}

bool kind_get(struct kind *k)
{
    unsigned nrows = 0;

    while (device_rows[nrows])
        nrows++;
    while (k->n < 3 * nrows && k->n % 3 == 0 && !kind_exists(device_rows[k->n / 3]))
        k->n += 3;
    k->ops = k->n < 3 * nrows ? device_rows[k->n / 3] : &device_flaky;
    k->nworkers = 1 + k->n % 3;
    k->spin_us = k->n % 2 ? 200 : 0;
    return k->n <= 3 * nrows;
}

struct device *open_kind(const struct kind *k)
{
    struct error e = { 0 };
    struct device *d;

    if (k->ops->open(&(struct device_config){ .nworkers = k->nworkers, .spin_us = k->spin_us }, &d,
                     &e) < 0)
        fail_msg("%s: %s", k->ops->name, e.text);
    if (k->ops == &device_flaky)
        flaky_configure(
            d, &(struct flaky_config){ .seed = 1, .busy_percent = 30, .inline_percent = 50 });
    for (unsigned i = 0; i < nadopted; i++)
        assert_int_equal(d->ops->adopt(d, adopted[i].base, adopted[i].bytes), 0);
    return d;
}

void close_device(struct device *d)
{
    for (unsigned i = 0; i < nadopted; i++)
        d->ops->disown(d, adopted[i].base);
    d->ops->close(d);
}

/* ---- Memory ---- */

int make_memfd(uint64_t bytes, int seals)
{
    int fd = memfd_create(MEMFD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    if (seals)
        assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void make_host_memory(uint64_t bytes, struct memory_handle *ret)
{
    *ret = (struct memory_handle){ .kind = MEMORY_MEMFD,
                                   .fd = make_memfd(bytes, SEALED),
                                   .bytes = bytes };
}

/* On the first GPU. */
static void make_cuda_memory(uint64_t bytes, struct memory_handle *ret)
{
    const CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
    };
    CUmemGenericAllocationHandle memory;
    const struct cuda *cuda;
    CUuuid uuid;

    *ret = (struct memory_handle){ .kind = MEMORY_CUDA_FD };
    ret->bytes = div_up_u64(bytes, 2 * MIB) * 2 * MIB;
    assert_int_equal(cuda_load(&cuda, NULL), 0);
    assert_int_equal(cuda->cuDeviceGetUuid_v2(&uuid, 0), CUDA_SUCCESS);
    memcpy(ret->gpu, uuid.bytes, sizeof(ret->gpu));
    assert_int_equal(cuda->cuMemCreate(&memory, ret->bytes, &prop, 0), CUDA_SUCCESS);
    assert_int_equal(cuda->cuMemExportToShareableHandle(
                         &ret->fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                     CUDA_SUCCESS);
    assert_int_equal(cuda->cuMemRelease(memory), CUDA_SUCCESS);
}

struct mapping *import_new(struct device *d, uint64_t bytes)
{
    struct memory_handle handle;
    struct mapping *m = NULL;
    struct error e = { 0 };

    if (d->ops == &device_cuda)
        make_cuda_memory(bytes, &handle);
    else
        make_host_memory(bytes, &handle);
    if (d->ops->import(d, &handle, &m, &e) < 0)
        fail_msg("%s: %s", d->ops->name, e.text);
    close(handle.fd);
    return m;
}

struct mapping *import_unsealed(struct device *d, uint64_t bytes, int *ret_fd)
{
    struct mapping *m = calloc(1, sizeof(*m));
    int fd = make_memfd(bytes, 0);

    assert_non_null(m);
    m->device = d;
    m->refs = 1;
    m->bytes = bytes;
    m->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(m->base, MAP_FAILED);
    *ret_fd = fd;
    return m;
}

unsigned count_mapped(void)
{
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned n = 0;

    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        n += strstr(line, MEMFD_NAME) != NULL;
    fclose(f);
    return n;
}

unsigned count_mapped_by(const struct device *d)
{
    struct device_gpu gpu;
    unsigned n = 0;

    if (d->ops != &device_cuda)
        return count_mapped();
    for (uint32_t i = 0; d->ops->gpu(d, i, &gpu); i++)
        n += gpu.mappings;
    return n;
}

unsigned count_entries(const char *path)
{
    DIR *dir = opendir(path);
    unsigned n = 0;

    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* ---- Tasks ---- */

void record_done(struct task *task, int r)
{
    struct outcome *o = task->owner;

    o->ndone++;
    o->r = r;
}

void wait_once(struct device *d)
{
    struct pollfd p = { .fd = d->ops->fd(d), .events = POLLIN };

    if (!device_wants_turn(d) && poll(&p, 1, 20000) != 1)
        fail_msg("%s: nothing finished within 20 s", d->ops->name);
    device_poll(d);
}

int submit(struct device *d, struct task *t)
{
    int r;

    while ((r = device_submit(d, t)) == DEVICE_BUSY)
        wait_once(d);
    return r;
}

int run(struct device *d, struct task *t)
{
    struct outcome o = { 0 };
    int r;

    t->done = record_done;
    t->owner = &o;
    r = submit(d, t);
    if (r != DEVICE_PENDING) {
        assert_int_equal(o.ndone, 0);
        return r;
    }
    while (o.ndone == 0)
        wait_once(d);
    assert_int_equal(o.ndone, 1);
    return o.r;
}

struct task copy_task(void **src, void **dst, uint32_t ndst, uint64_t count)
{
    return (struct task){ .kind = TASK_COPY,
                          .dtype = DTYPE_U8,
                          .nsrc = 1,
                          .ndst = ndst,
                          .src = src,
                          .dst = dst,
                          .count = count };
}

struct task sum_task(enum dtype_id type, void **src, uint32_t nsrc, void **dst, uint32_t ndst,
                     uint64_t count)
{
    return (struct task){ .kind = TASK_REDUCE,
                          .dtype = type,
                          .op = OPERATOR_SUM,
                          .nsrc = nsrc,
                          .ndst = ndst,
                          .src = src,
                          .dst = dst,
                          .count = count };
}

void fill(void *p, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)p)[i] = (uint8_t)(unit_random(&seed) >> 56);
}
