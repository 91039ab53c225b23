#include "tests/contract/cuda_world.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_MS 60000
#define OBJECTS_MAX 64u

struct device *world, *world_host;
uint8_t world_uuids[2][GPU_UUID_BYTES];
bool world_has_peers;

static struct {
    void *base;
    uint64_t bytes;
} owned[16];
static unsigned nowned;

/* ---- The client process ---- */

enum request_kind { REQUEST_MEMORY, REQUEST_EVENT, REQUEST_RELEASE, REQUEST_FORGET };

struct request {
    enum request_kind kind;
    unsigned gpu;
    uint64_t bytes;
};

static int client_socket;
static pid_t client_pid;

static struct {
    CUcontext contexts[2];
    CUdeviceptr memory[OBJECTS_MAX];
    CUevent events[OBJECTS_MAX];
    CUstream streams[OBJECTS_MAX];
    unsigned nmemory, nevents;
} client;

static void must(CUresult r)
{
    if (r)
        abort();
}

static void serve_memory(const struct request *q, uint8_t *handle)
{
    CUdeviceptr *at = &client.memory[client.nmemory++];
    CUipcMemHandle ipc;

    must(cuMemAlloc_v2(at, q->bytes));
    must(cuIpcGetMemHandle(&ipc, *at));
    memcpy(handle, ipc.reserved, sizeof(ipc.reserved));
}

static void serve_event(uint8_t *handle)
{
    CUevent *event = &client.events[client.nevents];
    CUstream *stream = &client.streams[client.nevents++];
    CUdeviceptr *at = &client.memory[client.nmemory++];
    CUipcEventHandle ipc;

    must(cuMemAlloc_v2(at, 4096));
    must(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
    must(cuEventCreate(event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    fake_cuda_delay_us(*stream, HELD_US);
    must(cuMemsetD8Async(*at, 1, 4096, *stream));
    must(cuEventRecord(*event, *stream));
    must(cuIpcGetEventHandle(&ipc, *event));
    memcpy(handle, ipc.reserved, sizeof(ipc.reserved));
}

static void serve_release(void)
{
    for (unsigned i = 0; i < client.nevents; i++) {
        fake_cuda_delay_us(client.streams[i], 0);
        must(cuStreamSynchronize(client.streams[i]));
    }
}

static void serve_forget(void)
{
    serve_release();
    while (client.nevents > 0) {
        client.nevents--;
        must(cuEventDestroy_v2(client.events[client.nevents]));
        must(cuStreamDestroy_v2(client.streams[client.nevents]));
    }
    while (client.nmemory > 0)
        must(cuMemFree_v2(client.memory[--client.nmemory]));
}

static void serve(int fd)
{
    struct request q;

    must(cuInit(0));
    for (int i = 0; i < 2; i++)
        must(cuDevicePrimaryCtxRetain(&client.contexts[i], i));
    while (read(fd, &q, sizeof(q)) == sizeof(q)) {
        uint8_t handle[GPU_HANDLE_BYTES] = { 0 };

        must(cuCtxSetCurrent(client.contexts[q.gpu]));
        if (q.kind == REQUEST_MEMORY)
            serve_memory(&q, handle);
        else if (q.kind == REQUEST_EVENT)
            serve_event(handle);
        else if (q.kind == REQUEST_RELEASE)
            serve_release();
        else
            serve_forget();
        if (write(fd, handle, sizeof(handle)) != sizeof(handle))
            break;
    }
    _exit(0);
}

static void ask(enum request_kind kind, unsigned gpu, uint64_t bytes, uint8_t *ret)
{
    const struct request q = { kind, gpu, bytes };
    uint8_t handle[GPU_HANDLE_BYTES];

    assert_int_equal(write(client_socket, &q, sizeof(q)), sizeof(q));
    assert_int_equal(read(client_socket, handle, sizeof(handle)), sizeof(handle));
    if (ret)
        memcpy(ret, handle, sizeof(handle));
}

struct memory_handle client_memory(unsigned gpu, uint64_t bytes)
{
    struct memory_handle h = { .kind = MEMORY_CUDA_IPC, .fd = -1, .bytes = bytes };

    memcpy(h.gpu, world_uuids[gpu], sizeof(h.gpu));
    ask(REQUEST_MEMORY, gpu, bytes, h.ipc);
    return h;
}

void client_event(unsigned gpu, uint8_t ret_handle[GPU_HANDLE_BYTES])
{
    ask(REQUEST_EVENT, gpu, 0, ret_handle);
}

void client_release(void)
{
    ask(REQUEST_RELEASE, 0, 0, NULL);
}

void client_forget(void)
{
    ask(REQUEST_FORGET, 0, 0, NULL);
}

/* ---- Life ---- */

void world_start(void)
{
    const char *peers = getenv("FAKE_CUDA_PEERS");
    CUuuid uuid;
    int fds[2];

    world_has_peers = !peers || strcmp(peers, "no") != 0;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    client_pid = fork();
    assert_true(client_pid >= 0);
    if (client_pid == 0) {
        close(fds[0]);
        serve(fds[1]);
    }
    close(fds[1]);
    client_socket = fds[0];

    assert_int_equal(cuInit(0), CUDA_SUCCESS);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cuDeviceGetUuid_v2(&uuid, i), CUDA_SUCCESS);
        memcpy(world_uuids[i], uuid.bytes, GPU_UUID_BYTES);
    }
}

void world_end(void)
{
    close(client_socket);
    waitpid(client_pid, NULL, 0);
}

unsigned world_live(void)
{
    unsigned n = 0;

    for (int i = 0; i < FAKE_CUDA_LIVE_END; i++)
        n += fake_cuda_live(i);
    return n;
}

int world_set_up(void **state)
{
    struct error e = { 0 };

    (void)state;
    assert_int_equal(world_live(), 0);
    if (device_host.open(&(struct device_config){ .nworkers = 1 }, &world_host, &e) < 0 ||
        device_cuda.open(&(struct device_config){ .gpus = "all" }, &world, &e) < 0)
        fail_msg("%s", e.text);
    return 0;
}

int world_tear_down(void **state)
{
    (void)state;
    fake_cuda_fail(NULL, 0, 0);
    fake_cuda_delay_us(FAKE_CUDA_ALL, 0);
    while (nowned > 0) {
        nowned--;
        world->ops->disown(world, owned[nowned].base);
        munmap(owned[nowned].base, owned[nowned].bytes);
    }
    client_forget();
    world->ops->close(world);
    world_host->ops->close(world_host);
    for (int i = 0; i < FAKE_CUDA_LIVE_END; i++)
        if (fake_cuda_live(i))
            fail_msg("%u of kind %d are left", fake_cuda_live(i), i);
    return 0;
}

/* ---- Memory ---- */

int gpu_export(unsigned gpu, uint64_t bytes)
{
    const CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)gpu },
    };
    CUmemGenericAllocationHandle memory;
    int fd;

    assert_int_equal(cuMemCreate(&memory, bytes, &prop, 0), CUDA_SUCCESS);
    assert_int_equal(
        cuMemExportToShareableHandle(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        CUDA_SUCCESS);
    assert_int_equal(cuMemRelease(memory), CUDA_SUCCESS);
    return fd;
}

static struct mapping *import(struct device *d, const struct memory_handle *h)
{
    struct error e = { 0 };
    struct mapping *m;

    if (d->ops->import(d, h, &m, &e) < 0)
        fail_msg("%s", e.text);
    close(h->fd);
    return m;
}

struct mapping *gpu_memory(unsigned gpu, uint64_t bytes)
{
    struct memory_handle h = { .kind = MEMORY_CUDA_FD,
                               .bytes = div_up_u64(bytes, 2 * MIB) * 2 * MIB };

    h.fd = gpu_export(gpu, h.bytes);
    memcpy(h.gpu, world_uuids[gpu], sizeof(h.gpu));
    return import(world, &h);
}

struct mapping *host_memory(uint64_t bytes)
{
    struct memory_handle h = { .kind = MEMORY_MEMFD, .bytes = bytes };

    h.fd = memfd_create("ruccl-test-cuda", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(h.fd, (off_t)bytes), 0);
    assert_int_equal(fcntl(h.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    return import(world_host, &h);
}

void *own_memory(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(p, MAP_FAILED);
    assert_true(nowned < ARRAY_SIZE(owned));
    assert_int_equal(world->ops->adopt(world, p, bytes), 0);
    owned[nowned].base = p;
    owned[nowned++].bytes = bytes;
    return p;
}

/* ---- Tasks ---- */

struct task sum_of(enum dtype_id type, void **src, uint32_t nsrc, void **dst, uint32_t ndst,
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

struct task copy_of(void **src, void **dst, uint32_t ndst, uint64_t bytes)
{
    return (struct task){ .kind = TASK_COPY,
                          .dtype = DTYPE_U8,
                          .nsrc = 1,
                          .ndst = ndst,
                          .src = src,
                          .dst = dst,
                          .count = bytes };
}

static void count_done(struct task *t, int r)
{
    struct outcome *o = t->owner;

    o->ndone++;
    o->r = r;
}

int begin(struct task *t, struct outcome *o)
{
    t->done = count_done;
    t->owner = o;
    return device_submit(world, t);
}

void turn(void)
{
    struct pollfd p = { .fd = world->ops->fd(world), .events = POLLIN };

    if (!device_wants_turn(world) && poll(&p, 1, PATIENCE_MS) != 1)
        fail_msg("nothing happened for long");
    device_poll(world);
}

void wait_for(const struct outcome *o, unsigned n)
{
    while (o->ndone < n)
        turn();
    assert_int_equal(o->ndone, n);
}

int run(struct task *t)
{
    struct outcome o = { 0 };
    int r = begin(t, &o);

    if (r != DEVICE_PENDING)
        return r;
    wait_for(&o, 1);
    return o.r;
}
