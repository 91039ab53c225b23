/* What device.h promises, asked of every device there is and of the flaky one. */
#include "tests/unit/unit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "shared/cuda.h"
#include "tests/contract/flaky_device.h"

#define KIB        1024ull
#define MIB        (1024 * KIB)
#define SEALED     (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define MEMFD_NAME "ruccl-test-device"

/* ---- Memory that tasks name ---- */

/* What every device that is open has adopted. */
static struct {
    void *base;
    size_t bytes;
} adopted[8];
static unsigned nadopted;

/* Zeros. Until memory_free(); before a device is opened. */
static void *memory_new(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(p, MAP_FAILED);
    assert_true(nadopted < ARRAY_SIZE(adopted));
    adopted[nadopted].base = p;
    adopted[nadopted++].bytes = bytes;
    return p;
}

/* All of it. */
static void memory_free(void)
{
    while (nadopted > 0) {
        nadopted--;
        munmap(adopted[nadopted].base, adopted[nadopted].bytes);
    }
}

/* ---- Devices ---- */

struct kind {
    unsigned n;
    const struct device_ops *ops;
    unsigned nworkers;
};

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

/* The n-th of: every row with one, two and three workers, then the flaky one. */
static bool kind_get(struct kind *k)
{
    unsigned nrows = 0;

    while (device_rows[nrows])
        nrows++;
    while (k->n < 3 * nrows && k->n % 3 == 0 && !kind_exists(device_rows[k->n / 3]))
        k->n += 3;
    k->ops = k->n < 3 * nrows ? device_rows[k->n / 3] : &device_flaky;
    k->nworkers = 1 + k->n % 3;
    return k->n <= 3 * nrows;
}

#define for_each_kind(k) for (struct kind k = { 0 }; kind_get(&k); k.n++)

/* Of those that map files of memory. */
#define for_each_host_kind(k) for_each_kind(k) if (k.ops != &device_cuda)

static struct device *open_kind(const struct kind *k)
{
    struct error e = { 0 };
    struct device *d;

    if (k->ops->open(&(struct device_config){ .nworkers = k->nworkers }, &d, &e) < 0)
        fail_msg("%s: %s", k->ops->name, e.text);
    if (k->ops == &device_flaky)
        flaky_configure(
            d, &(struct flaky_config){ .seed = 1, .busy_percent = 30, .inline_percent = 50 });
    for (unsigned i = 0; i < nadopted; i++)
        assert_int_equal(d->ops->adopt(d, adopted[i].base, adopted[i].bytes), 0);
    return d;
}

static void close_device(struct device *d)
{
    for (unsigned i = 0; i < nadopted; i++)
        d->ops->disown(d, adopted[i].base);
    d->ops->close(d);
}

/* ---- Memory ---- */

static int make_memfd(uint64_t bytes, int seals)
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

/* `bytes`, or as many more as the device makes of them. */
static struct mapping *import_new(struct device *d, uint64_t bytes)
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

/* As import makes it, of memory that it would have refused: the file can be cut short. */
static struct mapping *import_unsealed(struct device *d, uint64_t bytes, int *ret_fd)
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

static unsigned count_mapped(void)
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

static unsigned count_mapped_by(const struct device *d)
{
    struct device_gpu gpu;
    unsigned n = 0;

    if (d->ops != &device_cuda)
        return count_mapped();
    for (uint32_t i = 0; d->ops->gpu(d, i, &gpu); i++)
        n += gpu.mappings;
    return n;
}

static unsigned count_entries(const char *path)
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

struct outcome {
    unsigned ndone;
    int r;
};

static void record_done(struct task *task, int r)
{
    struct outcome *o = task->owner;

    o->ndone++;
    o->r = r;
}

static void wait_once(struct device *d)
{
    struct pollfd p = { .fd = d->ops->fd(d), .events = POLLIN };

    if (!device_wants_turn(d) && poll(&p, 1, 20000) != 1)
        fail_msg("%s: nothing finished within 20 s", d->ops->name);
    device_poll(d);
}

/* Submits, waiting for room where there is none. Return: what submit says in the end. */
static int submit(struct device *d, struct task *t)
{
    int r;

    while ((r = device_submit(d, t)) == DEVICE_BUSY)
        wait_once(d);
    return r;
}

/* Return: how the task ended, by submit() or by done(). */
static int run(struct device *d, struct task *t)
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

static struct task copy_task(void **src, void **dst, uint32_t ndst, uint64_t count)
{
    return (struct task){ .kind = TASK_COPY,
                          .dtype = DTYPE_U8,
                          .nsrc = 1,
                          .ndst = ndst,
                          .src = src,
                          .dst = dst,
                          .count = count };
}

static struct task sum_task(enum dtype_id type, void **src, uint32_t nsrc, void **dst,
                            uint32_t ndst, uint64_t count)
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

static void fill(void *p, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)p)[i] = (uint8_t)(unit_random(&seed) >> 56);
}

/* ---- Claims: memory ---- */

static void assert_rejected(struct device *d, int fd, uint64_t bytes, const char *says)
{
    unsigned mapped = count_mapped();
    struct mapping *m = NULL;
    struct error e = { 0 };

    assert_true(fd >= 0);
    assert_int_equal(device_import_memfd(d, fd, bytes, &m, &e), -ERROR_INVALID_ARGUMENT);
    assert_int_equal(e.code, ERROR_INVALID_ARGUMENT);
    assert_null(m);
    assert_int_equal(count_mapped(), mapped);
    if (!strstr(e.text, says))
        fail_msg("\"%s\" does not say \"%s\"", e.text, says);
    close(fd);
}

static int read_only_memfd(void)
{
    int fd = make_memfd(4096, SEALED), reader;
    char path[64];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    reader = open(path, O_RDONLY | O_CLOEXEC);
    close(fd);
    return reader;
}

static int pipe_end(void)
{
    int fds[2];

    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    close(fds[1]);
    return fds[0];
}

static int regular_file(void)
{
    return open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
}

TEST(import_refuses_what_could_hurt_and_says_how_to_fix_it)
{
    for_each_host_kind(k)
    {
        struct device *d = open_kind(&k);
        int huge = memfd_create(MEMFD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);

        assert_rejected(d, pipe_end(), 4096, "not a file");
        assert_rejected(d, open("/dev/null", O_RDWR | O_CLOEXEC), 4096, "not a file");
        assert_rejected(d, regular_file(), 4096, "not memory on tmpfs");
        if (huge >= 0)
            assert_rejected(d, huge, 4096, "without MFD_HUGETLB");
        assert_rejected(d, read_only_memfd(), 4096, "reading and writing");
        assert_rejected(d, make_memfd(4096, 0), 4096, "F_SEAL_SHRINK | F_SEAL_GROW");
        assert_rejected(d, make_memfd(4096, F_SEAL_SHRINK), 4096, "F_SEAL_GROW");
        assert_rejected(d, make_memfd(4096, F_SEAL_GROW), 4096, "F_SEAL_SHRINK");
        assert_rejected(d, make_memfd(4096, SEALED | F_SEAL_WRITE), 4096, "against writing");
        assert_rejected(d, make_memfd(4096, SEALED | F_SEAL_FUTURE_WRITE), 4096, "against writing");
        assert_rejected(d, make_memfd(4096, SEALED), 0, "no bytes");
        assert_rejected(d, make_memfd(4096, SEALED), 4097, "its memory has 4096");
        assert_rejected(d, make_memfd(4096, SEALED), UINT64_MAX, "its memory has 4096");
        close_device(d);
    }
}

TEST(import_shares_the_clients_bytes_and_tells_one_memory_from_another)
{
    for_each_host_kind(k)
    {
        struct device *d = open_kind(&k);
        int fd = make_memfd(4096, SEALED);
        struct mapping *a, *b, *other = import_new(d, 1);

        assert_int_equal(pwrite(fd, "x", 1, 4095), 1);
        assert_int_equal(device_import_memfd(d, fd, 4096, &a, NULL), 0);
        assert_int_equal(device_import_memfd(d, fd, 100, &b, NULL), 0);
        close(fd);
        assert_int_equal(((char *)a->base)[4095], 'x');
        assert_int_equal(a->bytes, 4096);
        assert_int_equal(b->bytes, 100);
        assert_false(a->fault);
        assert_ptr_equal(a->device, d);
        assert_true(a->dev == b->dev && a->ino == b->ino);
        assert_false(a->dev == other->dev && a->ino == other->ino);
        mapping_unref(a);
        mapping_unref(b);
        mapping_unref(other);
        close_device(d);
    }
}

TEST(large_memory_lies_on_a_huge_page_boundary_and_goes_away_whole)
{
    for_each_host_kind(k)
    {
        struct device *d = open_kind(&k);
        static const uint64_t sizes[] = { 2 * MIB, 2 * MIB + 1, 5 * MIB + 4097, 64 * MIB };

        for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
            struct mapping *m = import_new(d, sizes[i]);

            assert_int_equal((uintptr_t)m->base % (2 * MIB), 0);
            ((char *)m->base)[sizes[i] - 1] = 1;
            mapping_unref(m);
        }
        assert_int_equal(count_mapped(), 0);
        close_device(d);
    }
}

TEST(memory_is_mapped_until_the_last_reference_goes)
{
    for_each_kind(k)
    {
        struct device *d = open_kind(&k);
        struct mapping *m = import_new(d, 4096);

        assert_ptr_equal(mapping_ref(m), m);
        assert_int_equal(count_mapped_by(d), 1);
        assert_null(mapping_unref(m));
        assert_int_equal(count_mapped_by(d), 1);
        assert_null(mapping_unref(m));
        assert_int_equal(count_mapped_by(d), 0);
        assert_null(mapping_unref(NULL));
        close_device(d);
    }
}

/* ---- Claims: work ---- */

/* What of a task is whose work, and which stores are used, hangs on the size of the whole. */
static const uint64_t operation_sizes[] = { 0, 10, MIB };

static const uint64_t counts[] = { 0, 1, 3, 64, 257, 4099, 300007, 2 * MIB + 1 };

TEST(a_copy_reaches_every_destination_and_nothing_else)
{
    const size_t room = 3 * MIB;
    uint8_t *from = memory_new(room), *to = memory_new(3 * room);

    fill(from, room, 1);
    for_each_kind(k)
    {
        struct device *d = open_kind(&k);

        for (unsigned i = 0; i < 2 * ARRAY_SIZE(counts); i++) {
            const uint64_t count = counts[i / 2];
            void *src = from + i, *dst[] = { to + 1, to + room + 7, to + 2 * room, src };
            struct task t = copy_task(&src, dst, 4, count);

            t.small = i % 2;
            t.ntasks = operation_sizes[i % 3];
            memset(to, 0x55, 3 * room);
            assert_int_equal(run(d, &t), 0);
            for (unsigned j = 0; j < 3; j++) {
                assert_memory_equal(dst[j], src, count);
                assert_int_equal(((uint8_t *)dst[j])[count], 0x55);
            }
            assert_int_equal(to[0], 0x55);
        }
        close_device(d);
    }
    memory_free();
}

/* Sums of f32 depend on order in their last bits: equal bits mean the one order. */
static void check_sums(struct device *d, float *const *in, float *const *out, uint64_t count,
                       bool small)
{
    void *src[3] = { in[0], in[1], in[2] }, *dst[2] = { out[0], out[1] };
    struct task t = sum_task(DTYPE_F32, src, 3, dst, 2, count);

    t.small = small;
    t.ntasks = operation_sizes[count % 3];
    out[0][count] = out[1][count] = 0.5f;
    assert_int_equal(run(d, &t), 0);
    for (uint64_t i = 0; i < count; i++) {
        float want = (in[0][i] + in[1][i]) + in[2][i];

        if (out[0][i] != want || out[1][i] != want)
            fail_msg("%s: element %llu of %llu", d->ops->name, (unsigned long long)i,
                     (unsigned long long)count);
    }
    assert_true(out[0][count] == 0.5f && out[1][count] == 0.5f);
}

TEST(a_sum_has_the_same_bits_for_any_number_of_workers)
{
    const size_t room = 3 * MIB;
    float *buffers[5];
    uint64_t seed = 3;

    for (unsigned i = 0; i < 5; i++) {
        buffers[i] = memory_new(room * sizeof(float));
        for (size_t j = 0; j < room; j++)
            buffers[i][j] = (float)(int32_t)unit_random(&seed) * 0x1p-20f;
    }
    for_each_kind(k)
    {
        struct device *d = open_kind(&k);

        for (unsigned i = 0; i < 2 * ARRAY_SIZE(counts); i++)
            check_sums(d, buffers, buffers + 3, counts[i / 2], i % 2);
        close_device(d);
    }
    memory_free();
}

TEST(a_sum_may_be_taken_in_place_and_divided)
{
    enum { N = 200003 };
    uint16_t *a = memory_new(N * sizeof(*a)), *b = memory_new(N * sizeof(*b));

    for_each_kind(k)
    {
        struct device *d = open_kind(&k);
        void *both[2] = { a, b };
        struct task t = sum_task(DTYPE_BF16, both, 2, both, 2, N);

        for (unsigned i = 0; i < N; i++) {
            a[i] = 0x4040;                  /* 3 */
            b[i] = i % 2 ? 0x40a0 : 0xc040; /* 5, -3 */
        }
        t.divisor = 2;
        assert_int_equal(run(d, &t), 0);
        for (unsigned i = 0; i < N; i++)
            assert_true(a[i] == (i % 2 ? 0x4080 : 0) && b[i] == a[i]);
        close_device(d);
    }
    memory_free();
}

TEST(accumulators_pass_from_task_to_task)
{
    enum { N = 70001 };
    uint16_t *in = memory_new(N * sizeof(*in)), *out = memory_new(N * sizeof(*out));
    float *partial = memory_new(N * sizeof(*partial));

    for_each_kind(k)
    {
        struct device *d = open_kind(&k);
        void *src = in, *mid = partial, *dst = out;
        struct task first = sum_task(DTYPE_BF16, (void *[]){ src, src }, 2, &mid, 1, N);
        struct task last = sum_task(DTYPE_BF16, (void *[]){ mid, mid }, 2, &dst, 1, N);

        for (unsigned i = 0; i < N; i++)
            in[i] = 0x3f81; /* 1 + 2^-7 */
        first.dst_wide = true;
        last.src_wide = true;
        assert_int_equal(run(d, &first), 0);
        assert_int_equal(run(d, &last), 0);
        for (unsigned i = 0; i < N; i++)
            assert_true(partial[i] == 2 + 0x1p-6f && out[i] == 0x4081);
        close_device(d);
    }
    memory_free();
}

/* (1 + 2^-7 twice, as elements) and 1 + 2^-6 as an accumulator: other trees round otherwise. */
TEST(elements_and_accumulators_meet_in_groups)
{
    enum { N = 70001 };
    uint16_t *a = memory_new(N * sizeof(*a)), *b = memory_new(N * sizeof(*b));
    uint16_t *out = memory_new(N * sizeof(*out));
    float *partial = memory_new(N * sizeof(*partial));
    static const struct source_group groups[] = { { 2, false }, { 1, true } };

    for_each_kind(k)
    {
        struct device *d = open_kind(&k);
        void *src[] = { a, b, partial }, *dst = out;
        struct task t = sum_task(DTYPE_BF16, src, 3, &dst, 1, N);

        for (unsigned i = 0; i < N; i++) {
            a[i] = 0x3f81;
            b[i] = i % 2 ? 0x3f81 : 0xbf80; /* -1 */
            partial[i] = 1 + 0x1p-6f;
        }
        t.groups = groups;
        t.ngroups = 2;
        assert_int_equal(run(d, &t), 0);
        for (unsigned i = 0; i < N; i++)
            assert_int_equal(out[i], i % 2 ? 0x4042 : 0x3f83);
        close_device(d);
    }
    memory_free();
}

/* Each done() submits the next, as an engine does. */
struct chain {
    struct device *device;
    struct task task;
    unsigned ndone;
};

#define CHAIN_TASKS 300u

static void chain_done(struct task *t, int r)
{
    struct chain *c = t->owner;

    assert_int_equal(r, 0);
    if (++c->ndone < CHAIN_TASKS)
        assert_int_equal(device_submit(c->device, t), DEVICE_PENDING);
}

TEST(done_may_submit_the_next_task)
{
    enum { BYTES = 1000 };
    uint8_t *from = memory_new(2 * BYTES), *to = from + BYTES;

    for_each_kind(k)
    {
        void *src = from, *dst = to;
        struct chain c = { .task = copy_task(&src, &dst, 1, BYTES) };

        c.device = open_kind(&k);
        c.task.done = chain_done;
        c.task.owner = &c;
        assert_int_equal(device_submit(c.device, &c.task), DEVICE_PENDING);
        while (c.ndone < CHAIN_TASKS)
            wait_once(c.device);
        close_device(c.device);
    }
    memory_free();
}

TEST(without_room_submit_says_busy_and_later_takes_it)
{
    enum { MANY = 2000 };
    uint8_t *from = memory_new(2 * MANY), *to = from + MANY;
    static void *src[MANY], *dst[MANY];
    static struct task tasks[MANY];

    for_each_kind(k)
    {
        struct device *d = open_kind(&k);
        struct outcome o = { 0 };
        unsigned ntaken = 0;
        int r = DEVICE_PENDING;

        while (ntaken < MANY) {
            src[ntaken] = &from[ntaken];
            dst[ntaken] = &to[ntaken];
            tasks[ntaken] = copy_task(&src[ntaken], &dst[ntaken], 1, 1);
            tasks[ntaken].done = record_done;
            tasks[ntaken].owner = &o;
            r = device_submit(d, &tasks[ntaken]);
            if (r != DEVICE_PENDING)
                break;
            ntaken++;
        }
        assert_int_equal(r, DEVICE_BUSY);
        assert_true(ntaken >= 1);
        assert_int_equal(o.ndone, 0);
        while (o.ndone < ntaken)
            wait_once(d);
        assert_int_equal(device_submit(d, &tasks[ntaken]), DEVICE_PENDING);
        while (o.ndone <= ntaken)
            wait_once(d);
        assert_int_equal(o.r, 0);
        close_device(d);
    }
    memory_free();
}

TEST(a_cancelled_task_ends_and_touches_nothing_afterwards)
{
    const size_t bytes = 32 * MIB;
    uint8_t *from = memory_new(bytes), *to = memory_new(bytes);

    memset(from, 1, bytes);
    memset(to, 2, bytes);
    for_each_kind(k)
    {
        struct device *d = open_kind(&k);
        void *src = from, *dst = to;
        atomic_bool cancel = true;
        struct outcome o = { 0 };
        struct task t = copy_task(&src, &dst, 1, bytes);

        t.cancel = &cancel;
        assert_int_equal(run(d, &t), -ECANCELED);
        t.small = true;
        assert_int_equal(run(d, &t), -ECANCELED);
        t.small = false;

        atomic_store(&cancel, false);
        t.done = record_done;
        t.owner = &o;
        assert_int_equal(submit(d, &t), DEVICE_PENDING);
        atomic_store(&cancel, true);
        while (o.ndone == 0)
            wait_once(d);
        assert_true(o.r == -ECANCELED || o.r == 0);
        memset(to, 2, bytes);
        usleep(2000);
        for (size_t i = 0; i < bytes; i += 4096)
            assert_int_equal(to[i], 2);
        close_device(d);
    }
    memory_free();
}

/* ---- Claims: faults ---- */

TEST(memory_cut_short_fails_its_tasks_and_hurts_nobody)
{
    const uint64_t bytes = 16 * MIB;

    for_each_host_kind(k) for (unsigned small = 0; small < 2; small++) for (unsigned keep = 0;
                                                                            keep < 2; keep++)
    {
        struct device *d = open_kind(&k);
        struct mapping *good = import_new(d, bytes), *bad, *both[2];
        void *src = good->base, *dst;
        struct task t = copy_task(&src, &dst, 1, bytes);
        int fd;

        bad = import_unsealed(d, bytes, &fd);
        dst = bad->base;
        both[0] = good;
        both[1] = bad;
        t.mappings = both;
        t.nmappings = 2;
        t.small = small;
        fill(good->base, bytes, 5);
        assert_int_equal(run(d, &t), 0);

        assert_int_equal(ftruncate(fd, (off_t)(keep ? bytes / 2 : 0)), 0);
        assert_int_equal(run(d, &t), -EFAULT);
        assert_true(bad->fault);
        assert_false(good->fault);
        assert_int_equal(run(d, &t), -EFAULT);

        t.nmappings = 1;
        dst = (uint8_t *)good->base + bytes / 2;
        t.count = bytes / 2;
        assert_int_equal(run(d, &t), 0);
        assert_memory_equal(dst, good->base, bytes / 2);

        mapping_unref(bad);
        mapping_unref(good);
        close(fd);
        assert_int_equal(count_mapped(), 0);
        close_device(d);
    }
}

TEST(a_punched_hole_reads_as_zeros)
{
    for_each_host_kind(k)
    {
        struct device *d = open_kind(&k);
        int fd = make_memfd(MIB, SEALED);
        struct mapping *m;
        void *src, *dst = malloc(MIB);
        struct task t = copy_task(&src, &dst, 1, MIB);

        assert_non_null(dst);
        assert_int_equal(device_import_memfd(d, fd, MIB, &m, NULL), 0);
        src = m->base;
        t.mappings = &m;
        t.nmappings = 1;
        memset(src, 7, MIB);
        assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, MIB), 0);
        assert_int_equal(run(d, &t), 0);
        for (unsigned i = 0; i < MIB; i += 512)
            assert_int_equal(((uint8_t *)dst)[i], 0);
        assert_false(m->fault);
        mapping_unref(m);
        free(dst);
        close(fd);
        close_device(d);
    }
}

static sigjmp_buf before_fault;

static void jump_back(int sig)
{
    siglongjmp(before_fault, sig);
}

static bool read_faults(const volatile char *p)
{
    if (sigsetjmp(before_fault, 1))
        return true;
    (void)*p;
    return false;
}

TEST(a_fault_of_others_goes_to_the_handler_that_was_there_before)
{
    for_each_kind(k)
    {
        struct sigaction mine = { .sa_handler = jump_back }, before, after;
        int fd = make_memfd(4096, 0);
        char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        struct device *d;

        assert_int_equal(ftruncate(fd, 0), 0);
        sigaction(SIGBUS, &mine, &before);
        d = open_kind(&k);
        assert_true(read_faults(p));
        close_device(d);
        sigaction(SIGBUS, &before, &after);
        assert_ptr_equal(after.sa_handler, jump_back);
        munmap(p, 4096);
        close(fd);
    }
}

/* ---- Claims: leaving ---- */

/* A thread that has been joined is seen there a moment longer. */
static void await_threads(unsigned most)
{
    for (unsigned ms = 0; count_entries("/proc/self/task") > most; ms++) {
        assert_true(ms < 20000);
        usleep(1000);
    }
}

TEST(close_leaves_no_thread_and_no_descriptor)
{
    for_each_kind(k) /* which has been open before: drivers keep something for the next time */
    {
        const unsigned nthreads = count_entries("/proc/self/task");
        unsigned nfds = count_entries("/proc/self/fd");
        struct device *d = open_kind(&k);
        struct mapping *m = import_new(d, 4 * MIB);
        void *src = m->base, *dst = (uint8_t *)m->base + 2 * MIB;
        struct task t = copy_task(&src, &dst, 1, 2 * MIB);

        t.mappings = &m;
        t.nmappings = 1;
        assert_int_equal(run(d, &t), 0);
        mapping_unref(m);
        close_device(d);
        await_threads(nthreads);
        assert_int_equal(count_entries("/proc/self/fd"), nfds);
    }
}

static long cpu_us(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 + u.ru_utime.tv_usec +
           u.ru_stime.tv_usec;
}

static bool is_idle(void)
{
    const long before = cpu_us();

    usleep(50000);
    return cpu_us() - before < 10000;
}

/* Workers that did not get the CPU may still be about to go to sleep. */
TEST(an_idle_device_uses_no_cpu)
{
    void *src = memory_new(MIB), *dst = memory_new(MIB);

    for_each_kind(k)
    {
        struct device *d = open_kind(&k);
        struct task t = copy_task(&src, &dst, 1, MIB);

        assert_int_equal(run(d, &t), 0);
        usleep(2000);
        assert_true(is_idle() || is_idle() || is_idle());
        close_device(d);
    }
    memory_free();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(import_refuses_what_could_hurt_and_says_how_to_fix_it),
        cmocka_unit_test(import_shares_the_clients_bytes_and_tells_one_memory_from_another),
        cmocka_unit_test(large_memory_lies_on_a_huge_page_boundary_and_goes_away_whole),
        cmocka_unit_test(memory_is_mapped_until_the_last_reference_goes),
        cmocka_unit_test(a_copy_reaches_every_destination_and_nothing_else),
        cmocka_unit_test(a_sum_has_the_same_bits_for_any_number_of_workers),
        cmocka_unit_test(a_sum_may_be_taken_in_place_and_divided),
        cmocka_unit_test(accumulators_pass_from_task_to_task),
        cmocka_unit_test(elements_and_accumulators_meet_in_groups),
        cmocka_unit_test(done_may_submit_the_next_task),
        cmocka_unit_test(without_room_submit_says_busy_and_later_takes_it),
        cmocka_unit_test(a_cancelled_task_ends_and_touches_nothing_afterwards),
        cmocka_unit_test(memory_cut_short_fails_its_tasks_and_hurts_nobody),
        cmocka_unit_test(a_punched_hole_reads_as_zeros),
        cmocka_unit_test(a_fault_of_others_goes_to_the_handler_that_was_there_before),
        cmocka_unit_test(close_leaves_no_thread_and_no_descriptor),
        cmocka_unit_test(an_idle_device_uses_no_cpu),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
