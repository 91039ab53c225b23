/* The tests' driver in one process: it has to be as strict as the real one, or tests prove little.
 */
#include "tests/fake_cuda/fake_cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fake_cuda/calls.h"

#define GRANULE   (2u << 20)
#define BYTES     4000u
#define BAD_PLACE 0x1000

/* --- GPUs and contexts --- */

TEST(nothing_works_before_init)
{
    CUcontext c;
    CUdeviceptr ptr;
    int n;

    FAILS(cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
    FAILS(cuDevicePrimaryCtxRetain(&c, 0), CUDA_ERROR_NOT_INITIALIZED);
    FAILS(cuMemAlloc_v2(&ptr, 1), CUDA_ERROR_NOT_INITIALIZED);
    FAILS(cuInit(1), CUDA_ERROR_INVALID_VALUE);
    WELL(fake_begin());
    WELL(cuInit(0));
    FAILS(cuMemAlloc_v2(&ptr, 1), CUDA_ERROR_INVALID_CONTEXT);
}

TEST(gpus_are_two_and_told_apart)
{
    CUuuid uuids[2];
    char name[32];
    int n = 0, v = 0;

    WELL(cuDeviceGetCount(&n));
    assert_int_equal(n, 2);
    WELL(cuDeviceGetUuid_v2(&uuids[0], 0));
    WELL(cuDeviceGetUuid_v2(&uuids[1], 1));
    assert_memory_not_equal(&uuids[0], &uuids[1], sizeof(CUuuid));
    WELL(cuDeviceGetName(name, sizeof(name), 1));
    assert_string_equal(name, "Fake GPU 1");
    WELL(cuDeviceCanAccessPeer(&v, 0, 1));
    assert_int_equal(v, 1);
    WELL(cuDeviceCanAccessPeer(&v, 1, 1));
    assert_int_equal(v, 0);
    WELL(cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0));
    assert_int_equal(v, 1);
    FAILS(cuDeviceGet(&v, 2), CUDA_ERROR_INVALID_DEVICE);
    FAILS(cuDeviceGet(&v, -1), CUDA_ERROR_INVALID_DEVICE);
}

static void *call_without_context(void *ret)
{
    CUdeviceptr ptr;

    *(CUresult *)ret = cuMemAlloc_v2(&ptr, 1);
    return NULL;
}

TEST(context_is_the_thread_s_own)
{
    CUcontext c = NULL;
    CUdevice device;
    CUresult r = CUDA_SUCCESS;
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, call_without_context, &r), 0);
    pthread_join(thread, NULL);
    FAILS(r, CUDA_ERROR_INVALID_CONTEXT);

    WELL(cuCtxPushCurrent_v2(contexts[1]));
    WELL(cuCtxGetDevice(&device));
    assert_int_equal(device, 1);
    WELL(cuCtxPopCurrent_v2(&c));
    assert_ptr_equal(c, contexts[1]);
    WELL(cuCtxGetCurrent(&c));
    assert_ptr_equal(c, contexts[0]);
    FAILS(cuCtxSetCurrent((CUcontext)(uintptr_t)BAD_PLACE), CUDA_ERROR_INVALID_CONTEXT);
}

TEST(context_ends_with_its_last_release)
{
    CUdeviceptr ptr = allocate(1), other;

    WELL(cuDevicePrimaryCtxRetain(&contexts[0], 0));
    WELL(cuDevicePrimaryCtxRelease_v2(0));
    WELL(cuMemGetAddressRange_v2(NULL, NULL, ptr));
    WELL(cuDevicePrimaryCtxRelease_v2(0));
    assert_int_equal(fake_cuda_live(FAKE_CUDA_ALLOCATIONS), 0);
    FAILS(cuMemAlloc_v2(&other, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    FAILS(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
}

TEST(errors_have_names)
{
    const char *name = NULL;

    WELL(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &name));
    assert_string_equal(name, "CUDA_ERROR_ILLEGAL_ADDRESS");
    FAILS(cuGetErrorName(12345, &name), CUDA_ERROR_INVALID_VALUE);
}

TEST(library_is_found_by_its_name)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

    assert_non_null(library);
#define IS_THERE(name, arguments) assert_non_null(dlsym(library, #name));
    CUDA_LIST(IS_THERE)
#undef IS_THERE
    dlclose(library);
}

TEST(every_function_is_one_of_the_driver)
{
    void *driver = dlopen(CUDA_STUB, RTLD_NOW | RTLD_LOCAL);

    if (!driver)
        skip();
#define IS_THERE(name, arguments) assert_non_null(dlsym(driver, #name));
    CUDA_LIST(IS_THERE)
#undef IS_THERE
    dlclose(driver);
}

/* --- memory --- */

TEST(allocation_is_found_by_any_address_in_it)
{
    CUdeviceptr ptr = allocate(BYTES), base = 0;
    size_t bytes = 0, left, total;
    unsigned type = 0, flag = 9;
    int ordinal = -1;

    WELL(cuMemGetAddressRange_v2(&base, &bytes, ptr + BYTES - 1));
    assert_true(base == ptr && bytes == BYTES);
    FAILS(cuMemGetAddressRange_v2(&base, &bytes, ptr + BYTES), CUDA_ERROR_NOT_FOUND);
    WELL(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr + 1));
    assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
    WELL(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr));
    assert_int_equal(ordinal, 0);
    WELL(cuPointerGetAttribute(&flag, CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr));
    assert_int_equal(flag, 0);
    WELL(cuPointerGetAttribute(&flag, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, ptr));
    assert_int_equal(flag, 1);
    WELL(cuMemGetInfo_v2(&left, &total));
    assert_int_equal(total - left, 4096);
    FAILS(cuMemFree_v2(ptr + 1), CUDA_ERROR_INVALID_VALUE);
    WELL(cuMemFree_v2(ptr));
    FAILS(cuMemFree_v2(ptr), CUDA_ERROR_INVALID_VALUE);
    WELL(cuMemGetInfo_v2(&left, &total));
    assert_int_equal(total, left);
    FAILS(cuMemAlloc_v2(&ptr, total + 1), CUDA_ERROR_OUT_OF_MEMORY);
    FAILS(cuMemAlloc_v2(&ptr, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST(allocation_may_be_of_a_pool_or_managed)
{
    CUipcMemHandle handle;
    CUdeviceptr pool, managed, ours;
    unsigned flag = 9;

    fake_cuda_exportable(false);
    pool = allocate(1);
    fake_cuda_exportable(true);
    fake_cuda_managed(true);
    managed = allocate(1);
    ours = allocate(1);
    WELL(cuPointerGetAttribute(&flag, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, pool));
    assert_int_equal(flag, 0);
    FAILS(cuIpcGetMemHandle(&handle, pool), CUDA_ERROR_INVALID_VALUE);
    WELL(cuPointerGetAttribute(&flag, CU_POINTER_ATTRIBUTE_IS_MANAGED, managed));
    assert_int_equal(flag, 1);
    WELL(cuIpcGetMemHandle(&handle, ours));
    FAILS(cuIpcOpenMemHandle_v2(&ours, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
          CUDA_ERROR_INVALID_CONTEXT);
}

TEST(host_memory_is_registered_once)
{
    char *host = pages(8192);
    CUdeviceptr ptr = 0;
    unsigned type = 0;

    FAILS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)host),
          CUDA_ERROR_INVALID_VALUE);
    WELL(cuMemHostRegister_v2(host, 8192, CU_MEMHOSTREGISTER_PORTABLE));
    FAILS(cuMemHostRegister_v2(host + 4096, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    WELL(cuMemHostGetDevicePointer_v2(&ptr, host + 1, 0));
    assert_true(ptr == (uintptr_t)host + 1);
    WELL(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)host));
    assert_int_equal(type, CU_MEMORYTYPE_HOST);
    FAILS(cuMemHostUnregister(host + 4096), CUDA_ERROR_INVALID_VALUE);
    WELL(cuMemHostUnregister(host));
    FAILS(cuMemHostUnregister(host), CUDA_ERROR_INVALID_VALUE);
    munmap(host, 8192);
    FAILS(cuMemHostRegister_v2(host, 8192, 0), CUDA_ERROR_INVALID_VALUE);
}

static const CUmemAllocationProp shareable = {
    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    .location = { CU_MEM_LOCATION_TYPE_DEVICE, 1 },
};

TEST(memory_in_steps_wants_every_step)
{
    const CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, 1 },
                                     CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUmemGenericAllocationHandle handle, again, other;
    CUdeviceptr place, base;
    unsigned flag;
    size_t bytes;
    int fd = -1;

    FAILS(cuMemCreate(&handle, GRANULE + 1, &shareable, 0), CUDA_ERROR_INVALID_VALUE);
    WELL(cuMemCreate(&handle, GRANULE, &shareable, 0));
    WELL(cuMemAddressReserve(&place, 2 * GRANULE, 0, 0, 0));
    FAILS(cuMemSetAccess(place, GRANULE, &access, 1), CUDA_ERROR_INVALID_VALUE);
    WELL(cuMemMap(place + GRANULE, GRANULE, 0, handle, 0));
    FAILS(cuMemMap(place + GRANULE, GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemMap(place + 2 * GRANULE, GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    WELL(cuMemSetAccess(place + GRANULE, GRANULE, &access, 1));
    memset(at(place + GRANULE), 7, GRANULE);

    WELL(cuMemGetAddressRange_v2(&base, &bytes, place + GRANULE + 5));
    assert_true(base == place + GRANULE && bytes == GRANULE);
    WELL(cuPointerGetAttribute(&flag, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, base));
    assert_int_equal(flag, 0);
    WELL(cuMemRetainAllocationHandle(&again, at(base + 5)));
    assert_true(again == handle);

    WELL(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    WELL(cuMemImportFromShareableHandle(&other, at((uintptr_t)fd),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    WELL(cuMemMap(place, GRANULE, 0, other, 0));
    WELL(cuMemSetAccess(place, 2 * GRANULE, &access, 1));
    assert_int_equal(*(char *)at(place), 7);
    close(fd);

    FAILS(cuMemAddressFree(place, 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    WELL(cuMemRelease(handle));
    WELL(cuMemRelease(handle));
    FAILS(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(fake_cuda_live(FAKE_CUDA_HANDLES), 2);
    WELL(cuMemUnmap(place, 2 * GRANULE));
    assert_int_equal(fake_cuda_live(FAKE_CUDA_HANDLES), 1);
    WELL(cuMemRelease(other));
    WELL(cuMemAddressFree(place, 2 * GRANULE));
    assert_int_equal(fake_cuda_live(FAKE_CUDA_RESERVATIONS), 0);
}

TEST(descriptor_of_anything_else_is_refused)
{
    const int fd = memfd_create("other", MFD_CLOEXEC);
    CUmemGenericAllocationHandle handle;

    FAILS(cuMemImportFromShareableHandle(&handle, at((uintptr_t)fd),
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          CUDA_ERROR_INVALID_VALUE);
    close(fd);
    FAILS(cuMemImportFromShareableHandle(&handle, at((uintptr_t)fd),
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          CUDA_ERROR_INVALID_VALUE);
}

/* --- streams and events --- */

TEST(stream_works_in_order_and_behind_the_caller)
{
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr a = allocate(BYTES), b = allocate(BYTES);
    unsigned char host[BYTES];

    fake_cuda_delay_us(stream, HELD_US);
    WELL(cuMemsetD8Async(a, 5, BYTES, stream));
    WELL(cuMemcpyAsync(b, a, BYTES, stream));
    WELL(cuMemsetD8Async(a, 6, BYTES, stream));
    FAILS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    assert_int_equal(*(char *)at(b), 0);
    fake_cuda_delay_us(stream, 0);
    WELL(cuMemcpyDtoHAsync_v2(host, b, BYTES, stream));
    assert_int_equal(host[BYTES - 1], 5);
    WELL(cuStreamQuery(stream));
    memset(host, 9, BYTES);
    WELL(cuMemcpyHtoDAsync_v2(a, host, BYTES, stream));
    memset(host, 1, BYTES);
    WELL(cuStreamSynchronize(stream));
    assert_int_equal(*(char *)at(a), 9);
    WELL(cuStreamDestroy_v2(stream));
    FAILS(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
}

TEST(destroyed_stream_ends_its_work)
{
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
    CUdeviceptr a = allocate(BYTES);

    fake_cuda_delay_us(FAKE_CUDA_ALL, HELD_US);
    WELL(cuMemsetD8Async(a, 5, BYTES, stream));
    WELL(cuEventRecord(event, stream));
    WELL(cuStreamDestroy_v2(stream));
    assert_int_equal(fake_cuda_live(FAKE_CUDA_STREAMS), 0);
    fake_cuda_delay_us(FAKE_CUDA_ALL, 0);
    WELL(event_await(event));
    assert_int_equal(*(char *)at(a), 5);
}

TEST(legacy_stream_waits_for_blocking_ones_and_they_for_it)
{
    CUstream blocking = new_stream(0), other = new_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr a = allocate(1), b = allocate(1), c = allocate(1);

    fake_cuda_delay_us(blocking, HELD_US);
    WELL(cuMemsetD8Async(a, 1, 1, blocking));
    WELL(cuMemcpyAsync(b, a, 1, NULL));
    WELL(cuMemsetD8Async(c, 1, 1, other));
    WELL(cuStreamSynchronize(other));
    FAILS(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    fake_cuda_delay_us(blocking, 0);
    WELL(cuStreamSynchronize(NULL));
    assert_int_equal(*(char *)at(b), 1);

    fake_cuda_delay_us(NULL, HELD_US);
    WELL(cuMemsetD8Async(a, 2, 1, NULL));
    WELL(cuMemcpyAsync(b, a, 1, blocking));
    FAILS(cuStreamQuery(blocking), CUDA_ERROR_NOT_READY);
    fake_cuda_delay_us(NULL, 0);
    WELL(cuStreamSynchronize(blocking));
    assert_int_equal(*(char *)at(b), 2);
}

TEST(event_without_a_record_has_been_reached)
{
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING);

    WELL(cuEventQuery(event));
    fake_cuda_delay_us(stream, HELD_US);
    WELL(cuEventRecord(event, stream));
    FAILS(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    fake_cuda_delay_us(stream, 0);
    WELL(event_await(event));
}

TEST(event_is_its_last_record)
{
    CUstream one = new_stream(CU_STREAM_NON_BLOCKING), two = new_stream(CU_STREAM_NON_BLOCKING);
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING);

    fake_cuda_delay_us(one, HELD_US);
    WELL(cuEventRecord(event, one));
    WELL(cuEventRecord(event, two));
    WELL(event_await(event));
    FAILS(cuStreamQuery(one), CUDA_ERROR_NOT_READY);
    fake_cuda_delay_us(one, 0);
}

TEST(event_belongs_to_a_context)
{
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
    CUstream stream, first = new_stream(0);
    CUcontext c = NULL;

    WELL(cuCtxSetCurrent(contexts[1]));
    stream = new_stream(0);
    FAILS(cuEventRecord(event, stream), CUDA_ERROR_INVALID_HANDLE);
    WELL(cuStreamGetCtx(first, &c));
    assert_ptr_equal(c, contexts[0]);
    WELL(cuStreamGetCtx(NULL, &c));
    assert_ptr_equal(c, contexts[1]);
    FAILS(cuEventCreate(&event, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
    WELL(cuEventDestroy_v2(event));
    FAILS(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
}

TEST(value_is_waited_for_around_the_end_of_numbers)
{
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    _Atomic uint32_t *cell = pages(4096);

    FAILS(cuStreamWaitValue32_v2(stream, (uintptr_t)cell, 1, CU_STREAM_WAIT_VALUE_GEQ),
          CUDA_ERROR_INVALID_VALUE);
    WELL(cuMemHostRegister_v2((void *)cell, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
    atomic_store(cell, UINT32_MAX);
    WELL(cuStreamWaitValue32_v2(stream, (uintptr_t)cell, 1, CU_STREAM_WAIT_VALUE_GEQ));
    FAILS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    atomic_store(cell, 2);
    WELL(cuStreamSynchronize(stream));
    WELL(cuStreamWaitValue32_v2(stream, (uintptr_t)cell, UINT32_MAX, CU_STREAM_WAIT_VALUE_GEQ));
    WELL(cuStreamSynchronize(stream));
    WELL(cuStreamWaitValue32_v2(stream, (uintptr_t)cell, 1, CU_STREAM_WAIT_VALUE_EQ));
    FAILS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    WELL(cuMemHostUnregister((void *)cell));
    FAILS(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    munmap((void *)cell, 4096);
}

TEST(value_is_written_in_the_order_of_the_stream)
{
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING), waiter = new_stream(0);
    CUdeviceptr a = allocate(BYTES);
    _Atomic uint32_t *cell = pages(4096);

    FAILS(cuStreamWriteValue32_v2(stream, (uintptr_t)cell, 3, CU_STREAM_WRITE_VALUE_DEFAULT),
          CUDA_ERROR_INVALID_VALUE);
    WELL(cuMemHostRegister_v2((void *)cell, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
    FAILS(cuStreamWriteValue32_v2(stream, (uintptr_t)cell + 2, 3, CU_STREAM_WRITE_VALUE_DEFAULT),
          CUDA_ERROR_INVALID_VALUE);
    FAILS(cuStreamWriteValue32_v2(stream, (uintptr_t)cell, 3, 1), CUDA_ERROR_INVALID_VALUE);
    fake_cuda_delay_us(stream, HELD_US);
    WELL(cuStreamWaitValue32_v2(waiter, (uintptr_t)cell, 3, CU_STREAM_WAIT_VALUE_EQ));
    WELL(cuMemsetD8Async(a, 7, BYTES, stream));
    WELL(cuStreamWriteValue32_v2(stream, (uintptr_t)cell, 3, CU_STREAM_WRITE_VALUE_DEFAULT));
    FAILS(cuStreamQuery(waiter), CUDA_ERROR_NOT_READY);
    assert_int_equal(*cell, 0);
    fake_cuda_delay_us(stream, 0);
    WELL(cuStreamSynchronize(waiter));
    assert_int_equal(*cell, 3);
    assert_int_equal(((char *)at(a))[BYTES - 1], 7);
    WELL(cuMemHostUnregister((void *)cell));
    munmap((void *)cell, 4096);
}

TEST(value_is_not_written_behind_a_failure_nor_into_what_is_gone)
{
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    _Atomic uint32_t *cell = pages(8192), *other = cell + 1024;

    WELL(cuMemHostRegister_v2((void *)cell, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
    fake_cuda_delay_us(stream, HELD_US);
    WELL(cuMemsetD8Async(BAD_PLACE, 7, 1, stream));
    WELL(cuStreamWriteValue32_v2(stream, (uintptr_t)cell, 3, CU_STREAM_WRITE_VALUE_DEFAULT));
    fake_cuda_delay_us(stream, 0);
    FAILS(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);

    WELL(cuCtxSetCurrent(contexts[1]));
    stream = new_stream(CU_STREAM_NON_BLOCKING);
    WELL(cuMemHostRegister_v2((void *)other, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
    fake_cuda_delay_us(stream, HELD_US);
    WELL(cuStreamWriteValue32_v2(stream, (uintptr_t)other, 3, CU_STREAM_WRITE_VALUE_DEFAULT));
    WELL(cuMemHostUnregister((void *)other));
    fake_cuda_delay_us(stream, 0);
    FAILS(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(*cell, 0);
    assert_int_equal(*other, 0);
    munmap((void *)cell, 8192);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_works_before_init),
        cmocka_unit_test_setup_teardown(gpus_are_two_and_told_apart, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(context_is_the_thread_s_own, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(context_ends_with_its_last_release, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(errors_have_names, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(library_is_found_by_its_name, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(every_function_is_one_of_the_driver, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(allocation_is_found_by_any_address_in_it, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(allocation_may_be_of_a_pool_or_managed, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(host_memory_is_registered_once, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(memory_in_steps_wants_every_step, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(descriptor_of_anything_else_is_refused, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(stream_works_in_order_and_behind_the_caller, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(destroyed_stream_ends_its_work, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(legacy_stream_waits_for_blocking_ones_and_they_for_it,
                                        fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(event_without_a_record_has_been_reached, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(event_is_its_last_record, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(event_belongs_to_a_context, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(value_is_waited_for_around_the_end_of_numbers, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(value_is_written_in_the_order_of_the_stream, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(value_is_not_written_behind_a_failure_nor_into_what_is_gone,
                                        fake_set_up, fake_tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
