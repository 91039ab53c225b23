/* GPUs, their primary contexts, and which one a thread is in. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fake_cuda/fake.h"

#define STACK_MAX 16u

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;

static atomic_int owner; /* the process that called cuInit() */
static struct gpu gpus[GPUS_MAX];
static unsigned ngpus;
static bool peers = true, values = true;
static size_t memory_bytes = 16ull << 30;
static uint64_t last_id = 0x10000;

static __thread CUcontext stack[STACK_MAX];
static __thread unsigned depth;

static CUcontext current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

bool fake_is_ours(void)
{
    const int pid = atomic_load(&owner);

    return pid == 0 || pid == getpid();
}

uint64_t fake_new_id(void)
{
    return last_id += 16;
}

static CUresult context_check(CUcontext context)
{
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context->refs == 0)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return atomic_load(&context->sticky);
}

struct call enter(const char *name, enum need need)
{
    struct call call = { .context = current() };
    bool sticky = false;
    CUresult failure;

    if (!fake_is_ours()) {
        call.r = CUDA_ERROR_NOT_INITIALIZED;
        return call;
    }
    failure = fault_take(name, &sticky);

    pthread_mutex_lock(&fake_lock);
    if (need >= NEED_INIT && atomic_load(&owner) == 0)
        call.r = CUDA_ERROR_NOT_INITIALIZED;
    else if (need == NEED_CONTEXT)
        call.r = context_check(call.context);
    if (call.r == CUDA_SUCCESS && failure != CUDA_SUCCESS) {
        call.r = failure;
        if (sticky && call.context && call.context->refs > 0)
            context_poison(call.context, failure);
    }
    if (call.r != CUDA_SUCCESS)
        pthread_mutex_unlock(&fake_lock);
    return call;
}

void leave(struct call *call)
{
    if (call->r == CUDA_SUCCESS)
        pthread_mutex_unlock(&fake_lock);
}

bool gpus_write_values(void)
{
    return values;
}

void context_poison(CUcontext context, CUresult code)
{
    int well = CUDA_SUCCESS;

    atomic_compare_exchange_strong(&context->sticky, &well, code);
    pthread_rwlock_wrlock(&ranges_lock); /* what waits for a value has looked at it, for good */
    pthread_rwlock_unlock(&ranges_lock);
    pthread_cond_broadcast(&fake_changed);
}

struct gpu *gpu_get(int ordinal)
{
    return ordinal >= 0 && (unsigned)ordinal < ngpus ? &gpus[ordinal] : NULL;
}

struct gpu *gpu_by_number(unsigned number)
{
    for (unsigned i = 0; i < ngpus; i++)
        if (gpus[i].number == number)
            return &gpus[i];
    return NULL;
}

bool gpu_reaches(const struct gpu *gpu, const struct gpu *peer)
{
    return gpu == peer || peers;
}

size_t gpu_memory(void)
{
    return memory_bytes;
}

bool context_is(CUcontext context)
{
    for (unsigned i = 0; i < ngpus; i++)
        if (context == &gpus[i].primary)
            return true;
    return false;
}

unsigned context_count(void)
{
    unsigned n = 0;

    for (unsigned i = 0; i < ngpus; i++)
        n += gpus[i].primary.refs > 0;
    return n;
}

static void gpu_add(unsigned number)
{
    struct gpu *gpu = &gpus[ngpus];

    gpu->number = number;
    gpu->ordinal = (int)ngpus++;
    gpu->primary.gpu = gpu;
}

/* As CUDA does: what is no number of a GPU ends the list. */
static void gpus_add_visible(const char *list, unsigned count)
{
    while (*list) {
        char *end;
        const unsigned long number = strtoul(list, &end, 10);

        if (end == list || number >= count || gpu_by_number((unsigned)number))
            return;
        gpu_add((unsigned)number);
        if (*end != ',')
            return;
        list = end + 1;
    }
}

static void gpus_find(void)
{
    const char *devices = getenv("FAKE_CUDA_DEVICES"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    const char *reach = getenv("FAKE_CUDA_PEERS"), *memory = getenv("FAKE_CUDA_MEMORY");
    const char *write = getenv("FAKE_CUDA_VALUES");
    const unsigned long asked = devices ? strtoul(devices, NULL, 10) : 2;
    const unsigned count = (unsigned)MIN(asked, GPUS_MAX);

    peers = !reach || (strcmp(reach, "no") != 0 && strcmp(reach, "0") != 0);
    values = !write || strcmp(write, "no") != 0;
    if (memory)
        memory_bytes = strtoull(memory, NULL, 10);
    if (visible)
        gpus_add_visible(visible, count);
    for (unsigned i = 0; !visible && i < count; i++)
        gpu_add(i);
}

CUresult cuInit(unsigned flags)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_NOTHING);

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (atomic_load(&owner) == 0)
        gpus_find();
    if (ngpus == 0)
        return CUDA_ERROR_NO_DEVICE;
    atomic_store(&owner, getpid());
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *ret)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);

    if (call.r != CUDA_SUCCESS)
        return call.r;
    *ret = (int)ngpus;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *ret, int ordinal)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (!gpu_get(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *ret = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *ret, int len, CUdevice device)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);
    const struct gpu *gpu = call.r == CUDA_SUCCESS ? gpu_get(device) : NULL;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (!gpu)
        return CUDA_ERROR_INVALID_DEVICE;
    if (len <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(ret, (size_t)len, "Fake GPU %u", gpu->number);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *ret, CUdevice device)
{
    static const char start[16] = "\xfa\x4e\xc0\xda fake cuda";
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);
    const struct gpu *gpu = call.r == CUDA_SUCCESS ? gpu_get(device) : NULL;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (!gpu)
        return CUDA_ERROR_INVALID_DEVICE;
    memcpy(ret->bytes, start, sizeof(start));
    ret->bytes[15] = (char)(gpu->number + 1);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *ret, CUdevice_attribute attribute, CUdevice device)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (!gpu_get(device))
        return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *ret = 16;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *ret = 9;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *ret = 0;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        *ret = 1;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
        *ret = values;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuDeviceCanAccessPeer(int *ret, CUdevice device, CUdevice peer)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (!gpu_get(device) || !gpu_get(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *ret = device != peer && peers;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ret, CUdevice device)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);
    struct gpu *gpu = call.r == CUDA_SUCCESS ? gpu_get(device) : NULL;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (!gpu)
        return CUDA_ERROR_INVALID_DEVICE;
    while (gpu->primary.ending)
        pthread_cond_wait(&fake_changed, &fake_lock);
    gpu->primary.refs++;
    *ret = &gpu->primary;
    return CUDA_SUCCESS;
}

static void context_end(CUcontext context)
{
    context->refs = 0;
    context->ending = true;
    streams_end_context(context);
    events_end_context(context);
    modules_end_context(context);
    ranges_end_context(context);
    vmm_end_gpu(context->gpu);
    atomic_store(&context->sticky, CUDA_SUCCESS);
    atomic_store(&context->peers, 0);
    for (unsigned i = 0; i < ngpus; i++)
        atomic_fetch_and(&gpus[i].primary.peers, ~(1u << context->gpu->number));
    context->ending = false;
    pthread_cond_broadcast(&fake_changed);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);
    struct gpu *gpu = call.r == CUDA_SUCCESS ? gpu_get(device) : NULL;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (!gpu)
        return CUDA_ERROR_INVALID_DEVICE;
    if (gpu->primary.refs == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (gpu->primary.refs > 1)
        gpu->primary.refs--;
    else
        context_end(&gpu->primary);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);
    struct gpu *gpu = call.r == CUDA_SUCCESS ? gpu_get(device) : NULL;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (!gpu)
        return CUDA_ERROR_INVALID_DEVICE;
    while (gpu->primary.ending)
        pthread_cond_wait(&fake_changed, &fake_lock);
    if (gpu->primary.refs > 0)
        context_end(&gpu->primary);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *ret)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);

    if (call.r != CUDA_SUCCESS)
        return call.r;
    *ret = call.context;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (!context) {
        depth -= depth > 0;
        return CUDA_SUCCESS;
    }
    if (!context_is(context) || context->refs == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth = MAX(depth, 1);
    stack[depth - 1] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (!context_is(context) || context->refs == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth == STACK_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *ret)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_INIT);

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (ret)
        *ret = call.context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *ret)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);

    if (call.r != CUDA_SUCCESS)
        return call.r;
    *ret = call.context->gpu->ordinal;
    return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    unsigned bit;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!context_is(peer) || peer->refs == 0 || peer == call.context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!gpu_reaches(call.context->gpu, peer->gpu))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    bit = 1u << peer->gpu->number;
    if (atomic_fetch_or(&call.context->peers, bit) & bit)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    return CUDA_SUCCESS;
}
