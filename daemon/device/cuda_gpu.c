#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/device/cuda.h"

static const char *const operator_names[OPERATOR_END] = {
#define OPERATOR_NAME(ID, name, number) [number] = #name,
    OPERATOR_LIST(OPERATOR_NAME)
#undef OPERATOR_NAME
};

/* ---- Errors ---- */

static int errno_of(CUresult error)
{
    switch (error) {
    case CUDA_SUCCESS:
        return 0;
    case CUDA_ERROR_OUT_OF_MEMORY:
        return -ENOMEM;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_INVALID_CONTEXT:
        return -EINVAL;
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_NOT_PERMITTED:
        return -EOPNOTSUPP;
    default:
        return -EIO;
    }
}

static void remember(struct cuda_gpu *g, CUresult error, const char *call)
{
    g->error = error;
    g->error_call = call;
    g->error_lost = false;
    g->error_round = g->device->round;
}

void cuda_gpu_fail(struct cuda_gpu *g, CUresult error, const char *call)
{
    struct cuda_mapping *m;

    if (g->failed)
        return;
    remember(g, error, call);
    g->error_lost = g->failed = true;
    g->unrevived = false;
    g->failures++;
    list_for_each(m, &g->device->mappings, link)
        if (m->gpu == g)
            atomic_store_explicit(&m->base.fault, true, memory_order_relaxed);
    cuda_watch_wake(g->device);
}

int cuda_check(struct cuda_gpu *g, CUresult error, const char *call)
{
    if (cuda_error_is_sticky(error))
        cuda_gpu_fail(g, error, call);
    return errno_of(error);
}

int cuda_check_work(struct cuda_gpu *g, CUresult error, const char *call)
{
    if (!error)
        return 0;
    remember(g, error, call);
    cuda_check(g, error, call);
    return -EIO;
}

/* What the driver has against a GPU that is being started. */
static int refuse(const struct cuda_gpu *g, CUresult error, const char *call, struct error *e)
{
    return error_set(e, error == CUDA_ERROR_OUT_OF_MEMORY ? ERROR_NO_MEMORY : ERROR_SYSTEM,
                     "%s: %s fails with %s", g->text, call, cuda_error_name(g->device->api, error));
}

/* ---- Kernels ---- */

static bool is_reduced(const struct dtype *type, enum operator_id op)
{
    const bool bits = op == OPERATOR_AND || op == OPERATOR_OR || op == OPERATOR_XOR;

    if (op == OPERATOR_MEAN || !operator_names[op])
        return false;
    return bits ? dtype_is_integer(type) : type->class != DTYPE_CLASS_OPAQUE;
}

static int find_reductions(struct cuda_gpu *g, enum dtype_id id, struct error *e)
{
    const struct cuda *api = g->device->api;
    const struct dtype *type = dtype_get(id);
    char name[64];
    CUresult error;

    for (unsigned op = 1; type && op < OPERATOR_END; op++) {
        if (!is_reduced(type, op))
            continue;
        snprintf(name, sizeof(name), "reduce_%s_%s", operator_names[op], type->name);
        error = api->cuModuleGetFunction(&g->reduce[id][op], g->module, name);
        if (error)
            return refuse(g, error, name, e);
    }
    g->reduce[id][OPERATOR_MEAN] = g->reduce[id][OPERATOR_SUM];
    return 0;
}

/* A driver takes the text of a build without nvcc for source, and dislikes it in many ways. */
static bool image_is_binary(void)
{
    static const unsigned char start[] = { 0x50, 0xed, 0x55, 0xba };

    return cuda_kernels_image_bytes > sizeof(start) &&
           memcmp(cuda_kernels_image, start, sizeof(start)) == 0;
}

static int load_kernels(struct cuda_gpu *g, struct error *e)
{
    const struct cuda *api = g->device->api;
    CUresult error;
    int r;

    error = api->cuModuleLoadData(&g->module, cuda_kernels_image);
    if (error && error != CUDA_ERROR_OUT_OF_MEMORY && !image_is_binary())
        return error_set(e, ERROR_NOT_FOUND,
                         "%s cannot be used: this ruccld was built without the CUDA toolkit's nvcc",
                         g->text);
    if (error == CUDA_ERROR_INVALID_IMAGE)
        return error_set(e, ERROR_SYSTEM,
                         "%s cannot be used: its driver is too old for what nvcc made of this "
                         "ruccld's kernels; CUDA 12.4 has the first that reads it",
                         g->text);
    if (error == CUDA_ERROR_NO_BINARY_FOR_GPU)
        return error_set(e, ERROR_SYSTEM,
                         "%s (%s) is of a kind that this ruccld was not built for; name the others "
                         "in `gpus`",
                         g->text, g->name);
    if (error)
        return refuse(g, error, "cuModuleLoadData", e);

    error = api->cuModuleGetFunction(&g->copy, g->module, "copy");
    if (error)
        return refuse(g, error, "copy", e);
    for (unsigned id = 1; id < DTYPE_END; id++) {
        r = find_reductions(g, id, e);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- Life ---- */

int cuda_gpu_init(struct cuda_gpu *g, struct cuda_device *d, uint32_t index, CUdevice ordinal,
                  struct error *e)
{
    const struct cuda *api = d->api;
    int nprocessors = 0, unified = 0, values = 0;
    CUuuid uuid;
    CUresult error;

    *g = (struct cuda_gpu){ .device = d, .index = index, .ordinal = ordinal };
    error = api->cuDeviceGetUuid_v2(&uuid, ordinal);
    if (error)
        return error_set(e, ERROR_SYSTEM, "CUDA device %d: cuDeviceGetUuid fails with %s", ordinal,
                         cuda_error_name(api, error));
    memcpy(g->uuid, uuid.bytes, sizeof(g->uuid));
    cuda_uuid_text(g->uuid, g->text);

    error = api->cuDeviceGetName(g->name, sizeof(g->name), ordinal);
    if (!error)
        error = api->cuDeviceGetAttribute(&nprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                          ordinal);
    if (!error)
        error =
            api->cuDeviceGetAttribute(&unified, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, ordinal);
    if (error)
        return refuse(g, error, "asking for its properties", e);
    if (!unified)
        return error_set(e, ERROR_SYSTEM,
                         "%s (%s) has no unified addressing; name the others in "
                         "`gpus`",
                         g->text, g->name);
    g->nprocessors = (unsigned)MAX(nprocessors, 1);
    /* those of 32 bits have no attribute of their own */
    error = api->cuDeviceGetAttribute(&values, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
                                      ordinal);
    g->signals = !error && values;
    return 0;
}

int cuda_gpu_start(struct cuda_gpu *g, struct error *e)
{
    const struct cuda *api = g->device->api;
    CUresult error;

    error = api->cuDevicePrimaryCtxRetain(&g->context, g->ordinal);
    if (error) {
        g->context = NULL;
        return refuse(g, error, "cuDevicePrimaryCtxRetain", e);
    }
    error = cuda_gpu_enter(g);
    if (error)
        return refuse(g, error, "cuCtxSetCurrent", e);

    for (unsigned i = 0; i < CUDA_LANES; i++) {
        error = api->cuStreamCreate(&g->lanes[i], CU_STREAM_NON_BLOCKING);
        if (error)
            return refuse(g, error, "cuStreamCreate", e);
    }
    g->reach = cuda_bit(g);
    return load_kernels(g, e);
}

void cuda_gpu_stop(struct cuda_gpu *g)
{
    const struct cuda *api = g->device->api;

    if (!g->context)
        return;
    if (!g->failed && cuda_gpu_enter(g) == CUDA_SUCCESS) {
        for (unsigned i = 0; i < CUDA_LANES && g->lanes[i]; i++)
            api->cuStreamDestroy_v2(g->lanes[i]);
        if (g->module)
            api->cuModuleUnload(g->module);
    }
    memset(g->lanes, 0, sizeof(g->lanes));
    g->module = NULL;
    g->context = NULL;
    api->cuCtxSetCurrent(NULL);
    api->cuDevicePrimaryCtxRelease_v2(g->ordinal);
}

static void open_way(struct cuda_gpu *from, struct cuda_gpu *to)
{
    const struct cuda *api = from->device->api;
    CUresult error;
    int can = 0;

    from->reach &= ~cuda_bit(to);
    if (api->cuDeviceCanAccessPeer(&can, from->ordinal, to->ordinal) || !can)
        return;
    if (cuda_gpu_enter(from))
        return;
    error = api->cuCtxEnablePeerAccess(to->context, 0);
    if (!error || error == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
        from->reach |= cuda_bit(to);
}

void cuda_gpu_meet_peers(struct cuda_gpu *g)
{
    struct cuda_device *d = g->device;

    for (uint32_t i = 0; i < d->ngpus; i++) {
        struct cuda_gpu *other = &d->gpus[i];

        if (other == g || !other->context || other->failed)
            continue;
        open_way(g, other);
        open_way(other, g);
    }
}

bool cuda_gpu_revive(struct cuda_gpu *g)
{
    const struct cuda *api = g->device->api;

    if (!g->failed)
        return true;
    if (cuda_works_touch(g->device, g))
        return false;

    if (g->context) {
        cuda_memory_forget(g);
        api->cuDevicePrimaryCtxReset_v2(g->ordinal);
        cuda_gpu_stop(g);
    }
    g->generation++;
    g->lanes_taken = 0;
    if (cuda_gpu_start(g, NULL) < 0) {
        cuda_gpu_stop(g);
        g->unrevived = true;
        return false;
    }
    g->failed = g->unrevived = false;
    cuda_gpu_meet_peers(g);
    return true;
}

/* ---- By name ---- */

static struct cuda_gpu *gpu_find(struct cuda_device *d, const uint8_t uuid[GPU_UUID_BYTES])
{
    for (uint32_t i = 0; i < d->ngpus; i++)
        if (memcmp(d->gpus[i].uuid, uuid, GPU_UUID_BYTES) == 0)
            return &d->gpus[i];
    return NULL;
}

int cuda_gpu_wanted(struct cuda_device *d, const uint8_t uuid[GPU_UUID_BYTES], const char *what,
                    struct cuda_gpu **ret, struct error *e)
{
    struct cuda_gpu *g = gpu_find(d, uuid);
    struct text has = { 0 };
    char name[CUDA_UUID_TEXT];

    if (!g) {
        cuda_uuid_text(uuid, name);
        for (uint32_t i = 0; i < d->ngpus; i++)
            text_add(&has, "%s%s", i ? ", " : "", d->gpus[i].text);
        return error_set(e, ERROR_NOT_FOUND,
                         "%s is of %s, which the daemon does not use; it uses "
                         "%s",
                         what, name, has.s);
    }
    if (!cuda_gpu_revive(g))
        return error_set(e, ERROR_SYSTEM, "%s failed with %s and cannot be used yet; try again",
                         g->text, cuda_error_name(d->api, g->error));
    *ret = g;
    return 0;
}
