/* Modules, which take any image, and the launch of what they hold. */
#include <stdlib.h>
#include <string.h>

#include "tests/fake_cuda/fake.h"

struct function {
    struct list link; // module::functions
    uint64_t id;
    struct twin twin;
};

struct module {
    struct list link; // modules
    struct list functions;
    uint64_t id;
    CUcontext context;
};

static struct list modules = LIST_INIT(modules);
static atomic_uint_fast64_t kernels;

uint64_t fake_cuda_kernels(void)
{
    return atomic_load(&kernels);
}

unsigned module_count(void)
{
    const struct module *module;
    unsigned n = 0;

    list_for_each(module, &modules, link)
        n++;
    return n;
}

static struct module *module_find(CUmodule handle)
{
    struct module *module;

    list_for_each(module, &modules, link)
        if (module->id == (uintptr_t)handle)
            return module;
    return NULL;
}

static const struct function *function_find(CUfunction handle, CUcontext *ret_context)
{
    const struct module *module;
    const struct function *f;

    list_for_each(module, &modules, link)
        list_for_each(f, &module->functions, link)
            if (f->id == (uintptr_t)handle) {
                *ret_context = module->context;
                return f;
            }
    return NULL;
}

static void module_free(struct module *module)
{
    struct function *f, *next;

    list_for_each_safe(f, next, &module->functions, link)
        free(f);
    list_remove(&module->link);
    free(module);
}

void modules_end_context(CUcontext context)
{
    struct module *module, *next;

    list_for_each_safe(module, next, &modules, link)
        if (module->context == context)
            module_free(module);
}

CUresult cuModuleLoadData(CUmodule *ret, const void *image)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    struct module *module;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (!image)
        return CUDA_ERROR_INVALID_VALUE;
    module = calloc(1, sizeof(*module));
    if (!module)
        return CUDA_ERROR_OUT_OF_MEMORY;
    module->id = fake_new_id();
    module->context = call.context;
    list_init(&module->functions);
    list_append(&modules, &module->link);
    *ret = (CUmodule)(uintptr_t)module->id;
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule handle)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    struct module *module;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    module = module_find(handle);
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    module_free(module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *ret, CUmodule handle, const char *name)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    struct module *module;
    struct function *f;
    struct twin twin;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    module = module_find(handle);
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!twin_find(name, &twin))
        return CUDA_ERROR_NOT_FOUND;
    f = calloc(1, sizeof(*f));
    if (!f)
        return CUDA_ERROR_OUT_OF_MEMORY;
    f->id = fake_new_id();
    f->twin = twin;
    list_append(&module->functions, &f->link);
    *ret = (CUfunction)(uintptr_t)f->id;
    return CUDA_SUCCESS;
}

static CUresult kernel_run(struct stream *stream, struct op *op)
{
    bool sticky;
    CUresult r = fault_take("kernel", &sticky);

    if (r == CUDA_SUCCESS)
        r = twin_run(&op->twin, stream->context, &op->args);
    if (r == CUDA_SUCCESS)
        atomic_fetch_add(&kernels, 1);
    return r;
}

CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream_handle, void **parameters, void **extra)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    const struct function *f;
    CUcontext context = NULL;
    struct stream *stream;
    struct op *op;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    f = function_find(handle, &context);
    stream = stream_find(call.context, stream_handle);
    if (!f || !stream || stream->context != context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (grid_x == 0 || grid_x > INT32_MAX || grid_y != 1 || grid_z != 1 || block_y != 1 ||
        block_z != 1 || block_x != CUDA_KERNEL_THREADS || shared_bytes > 48u << 10 || !parameters ||
        !parameters[0] || extra)
        return CUDA_ERROR_INVALID_VALUE;
    op = op_new(kernel_run);
    if (op) {
        op->twin = f->twin;
        memcpy(&op->args, parameters[0], sizeof(op->args));
    }
    return stream_push(stream, op);
}
