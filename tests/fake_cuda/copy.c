/* What streams do to bytes by themselves: copies, fills, and values that are waited for. */
#include <stdlib.h>
#include <string.h>

#include "tests/fake_cuda/fake.h"

static void *at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* Sources that are a copy of the op's own, and destinations that the caller waits for, are right.
 */
enum copy_flags { COPY_SRC_OWN = 1, COPY_DST_OWN = 2 };

static CUresult copy_run(struct stream *stream, struct op *op)
{
    bool fine;

    pthread_rwlock_rdlock(&ranges_lock);
    fine =
        (op->flags & COPY_SRC_OWN ||
         ranges_check(stream->context, op->src, op->bytes, TOUCH_COPY)) &&
        (op->flags & COPY_DST_OWN || ranges_check(stream->context, op->dst, op->bytes, TOUCH_COPY));
    if (fine)
        memmove(at(op->dst), at(op->src), op->bytes);
    pthread_rwlock_unlock(&ranges_lock);
    return fine ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static struct op *copy_new(uint64_t dst, uint64_t src, size_t bytes)
{
    struct op *op = op_new(copy_run);

    if (op) {
        op->dst = dst;
        op->src = src;
        op->bytes = bytes;
    }
    return op;
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream handle)
{
    struct stream *stream = NULL;
    _cleanup_(leave) struct call call = enter_stream(__func__, handle, &stream);

    if (call.r != CUDA_SUCCESS)
        return call.r;
    return bytes == 0 ? CUDA_SUCCESS : stream_push(stream, copy_new(dst, src, bytes));
}

/* Pageable memory is read before the call returns. */
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream handle)
{
    struct stream *stream = NULL;
    _cleanup_(leave) struct call call = enter_stream(__func__, handle, &stream);
    struct op *op;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (bytes == 0)
        return CUDA_SUCCESS;
    op = copy_new(dst, (uintptr_t)src, bytes);
    if (op && !ranges_check(stream->context, op->src, bytes, TOUCH_COPY)) {
        op->owned = malloc(bytes);
        if (!op->owned) {
            free(op);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        memcpy(op->owned, src, bytes);
        op->src = (uintptr_t)op->owned;
        op->flags = COPY_SRC_OWN;
    }
    return stream_push(stream, op);
}

/* Pageable memory is written before the call returns. */
CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream handle)
{
    struct stream *stream = NULL;
    _cleanup_(leave) struct call call = enter_stream(__func__, handle, &stream);
    struct op *op;
    bool pageable;
    CUresult r;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (bytes == 0)
        return CUDA_SUCCESS;
    pageable = !ranges_check(stream->context, (uintptr_t)dst, bytes, TOUCH_COPY);
    op = copy_new((uintptr_t)dst, src, bytes);
    if (op && pageable)
        op->flags = COPY_DST_OWN;
    r = stream_push(stream, op);
    return r == CUDA_SUCCESS && pageable ? stream_wait(stream) : r;
}

static CUresult fill_run(struct stream *stream, struct op *op)
{
    bool fine;

    pthread_rwlock_rdlock(&ranges_lock);
    fine = ranges_check(stream->context, op->dst, op->bytes, TOUCH_COPY);
    if (fine)
        memset(at(op->dst), (int)op->value, op->bytes);
    pthread_rwlock_unlock(&ranges_lock);
    return fine ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream handle)
{
    struct stream *stream = NULL;
    _cleanup_(leave) struct call call = enter_stream(__func__, handle, &stream);
    struct op *op;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (bytes == 0)
        return CUDA_SUCCESS;
    op = op_new(fill_run);
    if (op) {
        op->dst = dst;
        op->value = value;
        op->bytes = bytes;
    }
    return stream_push(stream, op);
}

static bool value_is_there(const struct op *op)
{
    const _Atomic uint32_t *cell = at(op->src);
    const uint32_t value = atomic_load_explicit(cell, memory_order_acquire);

    return op->flags == CU_STREAM_WAIT_VALUE_EQ ? value == op->value
                                                : (int32_t)(value - op->value) >= 0;
}

static CUresult value_run(struct stream *stream, struct op *op)
{
    unsigned pauses = 0;
    bool fine, there;

    do {
        pthread_rwlock_rdlock(&ranges_lock);
        there = stream_gives_up(stream);
        fine = there || ranges_check(stream->context, op->src, sizeof(uint32_t), TOUCH_KERNEL);
        there = there || (fine && value_is_there(op));
        pthread_rwlock_unlock(&ranges_lock);
    } while (fine && !there && stream_pause(stream, &pauses));
    return fine ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

CUresult cuStreamWaitValue32_v2(CUstream handle, CUdeviceptr address, unsigned value,
                                unsigned flags)
{
    struct stream *stream = NULL;
    _cleanup_(leave) struct call call = enter_stream(__func__, handle, &stream);
    struct op *op;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if ((flags != CU_STREAM_WAIT_VALUE_GEQ && flags != CU_STREAM_WAIT_VALUE_EQ) ||
        address % sizeof(uint32_t) != 0 ||
        !ranges_check(stream->context, address, sizeof(uint32_t), TOUCH_KERNEL))
        return CUDA_ERROR_INVALID_VALUE;
    op = op_new(value_run);
    if (op) {
        op->src = address;
        op->value = value;
        op->flags = flags;
    }
    return stream_push(stream, op);
}

/* Nothing of a poisoned context is seen any more. */
static CUresult write_run(struct stream *stream, struct op *op)
{
    bool fine, over;

    pthread_rwlock_rdlock(&ranges_lock);
    over = stream_gives_up(stream);
    fine = over || ranges_check(stream->context, op->dst, sizeof(uint32_t), TOUCH_KERNEL);
    if (fine && !over)
        atomic_store_explicit((_Atomic uint32_t *)at(op->dst), op->value, memory_order_release);
    pthread_rwlock_unlock(&ranges_lock);
    return fine ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

CUresult cuStreamWriteValue32_v2(CUstream handle, CUdeviceptr address, unsigned value,
                                 unsigned flags)
{
    struct stream *stream = NULL;
    _cleanup_(leave) struct call call = enter_stream(__func__, handle, &stream);
    struct op *op;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (!gpus_write_values())
        return CUDA_ERROR_NOT_SUPPORTED;
    if (flags != CU_STREAM_WRITE_VALUE_DEFAULT || address % sizeof(uint32_t) != 0 ||
        !ranges_check(stream->context, address, sizeof(uint32_t), TOUCH_KERNEL))
        return CUDA_ERROR_INVALID_VALUE;
    op = op_new(write_run);
    if (op) {
        op->dst = address;
        op->value = value;
    }
    return stream_push(stream, op);
}
