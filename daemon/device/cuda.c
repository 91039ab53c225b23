#include "daemon/device/cuda.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- Which GPUs ---- */

struct choice {
    int count; /* of the machine */
    bool taken[CUDA_GPUS_MAX];
};

static int count_gpus(const struct cuda *api, int *ret, struct error *e)
{
    CUresult error = api->cuDeviceGetCount(ret);

    if (error)
        return error_set(e, ERROR_SYSTEM, "cuDeviceGetCount fails with %s",
                         cuda_error_name(api, error));
    if (*ret == 0)
        return error_set(e, ERROR_NOT_FOUND, "the CUDA driver finds no GPU");
    *ret = MIN(*ret, (int)CUDA_GPUS_MAX);
    return 0;
}

static int uuid_of(const struct cuda *api, int ordinal, uint8_t ret[GPU_UUID_BYTES])
{
    CUdevice device;
    CUuuid uuid;

    if (api->cuDeviceGet(&device, ordinal) || api->cuDeviceGetUuid_v2(&uuid, device))
        return -EIO;
    memcpy(ret, uuid.bytes, GPU_UUID_BYTES);
    return 0;
}

/* Takes the GPU called `name`. */
static int choose_one(const struct cuda *api, const char *name, struct choice *c, struct error *e)
{
    uint8_t wanted[GPU_UUID_BYTES], uuid[GPU_UUID_BYTES];
    char text[CUDA_UUID_TEXT];
    struct text has = { 0 };

    if (!cuda_uuid_parse(name, wanted))
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "`gpus` has \"%s\"; a GPU is named by its UUID, as nvidia-smi -L shows it",
                         name);
    for (int i = 0; i < c->count; i++) {
        if (uuid_of(api, i, uuid) < 0)
            continue;
        if (memcmp(uuid, wanted, sizeof(uuid)) == 0) {
            c->taken[i] = true;
            return 0;
        }
        cuda_uuid_text(uuid, text);
        text_add(&has, "%s%s", has.len ? ", " : "", text);
    }
    return error_set(e, ERROR_INVALID_ARGUMENT,
                     "`gpus` names %s, which this machine does not have; it has %s", name, has.s);
}

static int choose(const struct cuda *api, const char *gpus, struct choice *c, struct error *e)
{
    char *list, *rest, *name;
    int r = 0;

    if (!gpus || strcmp(gpus, "all") == 0) {
        memset(c->taken, true, sizeof(c->taken));
        return 0;
    }
    list = strdup(gpus);
    if (!list)
        return error_set_errno(e, ENOMEM, "reading `gpus`");
    for (name = strtok_r(list, ", ", &rest); name && r == 0; name = strtok_r(NULL, ", ", &rest))
        r = choose_one(api, name, c, e);
    free(list);
    return r;
}

/* ---- Life ---- */

static void cuda_close(struct device *device)
{
    struct cuda_device *d = cuda_of(device);

    cuda_works_free(d);
    cuda_hosts_free(d);
    for (uint32_t i = 0; i < d->ngpus; i++)
        cuda_gpu_stop(&d->gpus[i]);
    cuda_watch_close(d);
    free(d);
}

static int open_gpus(struct cuda_device *d, const struct choice *c, struct error *e)
{
    CUdevice ordinal;
    int r;

    for (int i = 0; i < c->count; i++) {
        if (!c->taken[i])
            continue;
        if (d->api->cuDeviceGet(&ordinal, i))
            return error_set(e, ERROR_SYSTEM, "CUDA device %d is not to be had", i);
        r = cuda_gpu_init(&d->gpus[d->ngpus], d, d->ngpus, ordinal, e);
        if (r < 0)
            return r;
        r = cuda_gpu_start(&d->gpus[d->ngpus++], e);
        if (r < 0)
            return r;
    }
    if (d->ngpus == 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "`gpus` names no GPU");
    for (uint32_t i = 0; i < d->ngpus; i++)
        cuda_gpu_meet_peers(&d->gpus[i]);
    return 0;
}

static int cuda_open(const struct device_config *config, struct device **ret, struct error *e)
{
    struct choice c = { 0 };
    const struct cuda *api;
    struct cuda_device *d;
    int r;

    r = cuda_load(&api, e);
    if (r < 0)
        return r;
    r = count_gpus(api, &c.count, e);
    if (r < 0)
        return r;
    r = choose(api, config->gpus, &c, e);
    if (r < 0)
        return r;

    d = calloc(1, sizeof(*d) + (size_t)c.count * sizeof(d->gpus[0]));
    if (!d)
        return error_set_errno(e, ENOMEM, "opening the GPUs");
    d->base.ops = &device_cuda;
    d->api = api;
    d->round = 1;
    d->timer_fd = -1;
    list_init(&d->mappings);
    list_init(&d->adopted);
    list_init(&d->hosts);
    list_init(&d->idle);
    list_init(&d->running);

    r = open_gpus(d, &c, e);
    if (r == 0) {
        r = cuda_watch_open(d);
        if (r == 0)
            r = cuda_works_new(d);
        if (r < 0)
            r = error_set_errno(e, -r, "opening the GPUs");
    }
    if (r < 0) {
        cuda_close(&d->base);
        return r;
    }
    *ret = &d->base;
    return 0;
}

/* ---- What people are told ---- */

static void explain_gpu(const struct cuda_gpu *g, struct text *t)
{
    const char *error = cuda_error_name(g->device->api, g->error);

    if (t->len)
        text_add(t, "; ");
    if (!g->error_lost)
        text_add(t, "%s: %s failed with %s", g->text, g->error_call, error);
    else if (g->failed)
        text_add(t, "%s failed with %s and is not usable yet; register its memory again later",
                 g->text, error);
    else
        text_add(t, "%s failed with %s; its context was rebuilt; register its memory again",
                 g->text, error);
}

/* Of late: what failed together last. */
static void cuda_explain(const struct device *device, struct text *t)
{
    const struct cuda_device *d = container_of(device, const struct cuda_device, base);
    uint64_t round = 0;

    for (uint32_t i = 0; i < d->ngpus; i++)
        round = MAX(round, d->gpus[i].error_round);
    for (uint32_t i = 0; round && i < d->ngpus; i++)
        if (d->gpus[i].error_round == round)
            explain_gpu(&d->gpus[i], t);
}

static bool cuda_gpu(const struct device *device, uint32_t index, struct device_gpu *ret)
{
    const struct cuda_device *d = container_of(device, const struct cuda_device, base);
    const struct cuda_gpu *g = &d->gpus[index];

    if (index >= d->ngpus)
        return false;
    *ret = (struct device_gpu){ .mapped_bytes = g->mapped_bytes,
                                .mappings = g->nmappings,
                                .failed = g->failed,
                                .failures = g->failures };
    memcpy(ret->uuid, g->uuid, sizeof(ret->uuid));
    memcpy(ret->name, g->name, sizeof(ret->name));
    return true;
}

static bool cuda_wants_turn(const struct device *device)
{
    return container_of(device, const struct cuda_device, base)->turning;
}

static int cuda_fd(const struct device *device)
{
    return container_of(device, const struct cuda_device, base)->timer_fd;
}

const struct device_ops device_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .import = cuda_import,
    .unmap = cuda_unmap,
    .adopt = cuda_adopt,
    .disown = cuda_disown,
    .fence_import = cuda_fence_import,
    .fence_passed = cuda_fence_passed,
    .fence_free = cuda_fence_free,
    .explain = cuda_explain,
    .gpu = cuda_gpu,
    .submit = cuda_submit,
    .poll = cuda_poll,
    .wants_turn = cuda_wants_turn,
    .fd = cuda_fd,
};
