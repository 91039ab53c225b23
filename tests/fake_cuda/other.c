#include "tests/fake_cuda/other.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fake_cuda/calls.h"

#define ROLE "--other"

struct message {
    enum request what;
    uint64_t value;
    char bytes[64];
};

static CUdeviceptr ptr;
static CUevent event;

static CUresult answer_create(struct reply *reply)
{
    const CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
    };
    CUmemGenericAllocationHandle handle = 0;
    int fd = -1;
    CUresult r = cuMemCreate(&handle, 2u << 20, &prop, 0);

    if (r == CUDA_SUCCESS)
        r = cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (r == CUDA_SUCCESS && pwrite(fd, "x", 1, 0) != 1)
        r = CUDA_ERROR_UNKNOWN;
    reply->value = (uint64_t)fd;
    return r;
}

static CUresult answer_open(const struct message *m, struct reply *reply)
{
    CUipcMemHandle handle;
    CUdeviceptr opened = 0;
    CUresult r;

    memcpy(&handle, m->bytes, sizeof(handle));
    r = cuIpcOpenMemHandle_v2(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    reply->value = opened;
    return r;
}

static CUresult answer(const struct message *m, struct reply *reply)
{
    CUresult r;

    switch (m->what) {
    case OTHER_UUID:
        return cuDeviceGetUuid_v2((CUuuid *)reply->bytes, (CUdevice)m->value);
    case OTHER_ALLOCATE:
        r = cuMemAlloc_v2(&ptr, m->value);
        return r == CUDA_SUCCESS ? cuIpcGetMemHandle((CUipcMemHandle *)reply->bytes, ptr) : r;
    case OTHER_FREE:
        return cuMemFree_v2(ptr);
    case OTHER_WRITE:
        *(uint8_t *)at(ptr) = (uint8_t)m->value;
        return CUDA_SUCCESS;
    case OTHER_READ:
        reply->value = *(uint8_t *)at(ptr);
        return CUDA_SUCCESS;
    case OTHER_OPEN:
        return answer_open(m, reply);
    case OTHER_EVENT:
        r = cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
        return r == CUDA_SUCCESS ? cuIpcGetEventHandle((CUipcEventHandle *)reply->bytes, event) : r;
    case OTHER_HOLD:
        fake_cuda_delay_us(FAKE_CUDA_ALL, m->value ? HELD_US : 0);
        return CUDA_SUCCESS;
    case OTHER_RECORD:
        return cuEventRecord(event, NULL);
    case OTHER_QUERY:
        return cuEventQuery(event);
    case OTHER_CREATE:
        return answer_create(reply);
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult begin(void)
{
    CUcontext context = NULL;
    CUresult r = cuInit(0);

    if (r == CUDA_SUCCESS)
        r = cuDevicePrimaryCtxRetain(&context, 0);
    return r == CUDA_SUCCESS ? cuCtxSetCurrent(context) : r;
}

void other_serve(int argc, char **argv)
{
    struct message m;
    int socket;
    CUresult r;

    if (argc != 3 || strcmp(argv[1], ROLE) != 0)
        return;
    socket = atoi(argv[2]);
    r = begin();
    while (recv(socket, &m, sizeof(m), 0) == sizeof(m)) {
        struct reply reply = { .r = r };

        if (r == CUDA_SUCCESS)
            reply.r = answer(&m, &reply);
        if (send(socket, &reply, sizeof(reply), MSG_NOSIGNAL) != sizeof(reply))
            break;
    }
    _exit(0);
}

static void become_other(const char *const *settings, bool away, int socket)
{
    char number[16];

    snprintf(number, sizeof(number), "%d", socket);
    for (; settings && *settings; settings++)
        putenv((char *)(uintptr_t)*settings);
    if (away && unshare(CLONE_NEWNET) < 0)
        _exit(1);
    execl("/proc/self/exe", "other", ROLE, number, NULL);
    _exit(1);
}

bool other_start(struct other *other, const char *const *settings, bool away)
{
    int ends[2], none;

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    none = dup(ends[1]); /* without the flag */
    other->pid = fork();
    assert_true(other->pid >= 0);
    if (other->pid == 0)
        become_other(settings, away, none);
    close(none);
    close(ends[1]);
    other->socket = ends[0];
    if (other_ask(other, OTHER_UUID, 0, NULL).r != CUDA_ERROR_UNKNOWN)
        return true;
    other_kill(other);
    return false;
}

struct reply other_ask(const struct other *other, enum request what, uint64_t value,
                       const void *bytes)
{
    struct message m = { .what = what, .value = value };
    struct reply reply;

    if (bytes)
        memcpy(m.bytes, bytes, sizeof(m.bytes));
    if (send(other->socket, &m, sizeof(m), MSG_NOSIGNAL) != sizeof(m) ||
        recv(other->socket, &reply, sizeof(reply), 0) != sizeof(reply))
        return (struct reply){ .r = CUDA_ERROR_UNKNOWN };
    return reply;
}

void other_kill(struct other *other)
{
    kill(other->pid, SIGKILL);
    waitpid(other->pid, NULL, 0);
    close(other->socket);
}
