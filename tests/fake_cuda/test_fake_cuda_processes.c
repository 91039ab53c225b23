/* The tests' driver among processes: what crosses over, and what the environment makes of it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fake_cuda/calls.h"
#include "tests/fake_cuda/other.h"

#define BYTES 5000u
#define LAZY  CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

static struct other start(const char *setting)
{
    const char *settings[] = { setting, NULL };
    struct other other;

    assert_true(other_start(&other, settings, false));
    return other;
}

static uint64_t ask(const struct other *other, enum request what, uint64_t value)
{
    const struct reply reply = other_ask(other, what, value, NULL);

    WELL(reply.r);
    return reply.value;
}

/* The handle of its new allocation or event. */
static struct reply handle_of(const struct other *other, enum request what)
{
    const struct reply reply = other_ask(other, what, BYTES, NULL);

    WELL(reply.r);
    return reply;
}

static CUresult open_memory(CUdeviceptr *ret, const struct reply *reply, unsigned flags)
{
    CUipcMemHandle handle;

    memcpy(&handle, reply->bytes, sizeof(handle));
    return cuIpcOpenMemHandle_v2(ret, handle, flags);
}

static CUevent open_event(const struct reply *reply)
{
    CUipcEventHandle handle;
    CUevent event = NULL;

    memcpy(&handle, reply->bytes, sizeof(handle));
    WELL(cuIpcOpenEventHandle(&event, handle));
    return event;
}

/* --- memory --- */

static void expect_same_memory(struct other *other)
{
    const struct reply handle = handle_of(other, OTHER_ALLOCATE);
    CUdeviceptr ptr, base;
    size_t bytes;

    ask(other, OTHER_WRITE, 7);
    WELL(open_memory(&ptr, &handle, LAZY));
    assert_int_equal(*(uint8_t *)at(ptr), 7);
    WELL(cuMemsetD8Async(ptr, 8, 1, NULL));
    WELL(cuStreamSynchronize(NULL));
    assert_int_equal(ask(other, OTHER_READ, 0), 8);
    WELL(cuMemGetAddressRange_v2(&base, &bytes, ptr + 1));
    assert_true(base == ptr && bytes == BYTES);
    WELL(cuIpcCloseMemHandle(ptr));
}

TEST(memory_is_the_same_in_both)
{
    struct other other = start(NULL);

    expect_same_memory(&other);
    other_kill(&other);
}

TEST(memory_is_the_same_from_another_network_namespace)
{
    struct other other;

    if (!other_start(&other, NULL, true))
        skip();
    expect_same_memory(&other);
    other_kill(&other);
}

TEST(memory_opened_again_is_counted_for_each_context)
{
    struct other other = start(NULL);
    const struct reply handle = handle_of(&other, OTHER_ALLOCATE);
    CUdeviceptr one, same, different;

    WELL(open_memory(&one, &handle, LAZY));
    WELL(open_memory(&same, &handle, LAZY));
    assert_true(one == same);
    WELL(cuCtxSetCurrent(contexts[1]));
    WELL(open_memory(&different, &handle, LAZY));
    assert_true(different != one);
    assert_int_equal(fake_cuda_live(FAKE_CUDA_IMPORTS), 2);
    WELL(cuIpcCloseMemHandle(one));
    WELL(cuMemGetAddressRange_v2(NULL, NULL, one));
    WELL(cuIpcCloseMemHandle(one));
    FAILS(cuIpcCloseMemHandle(one), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(fake_cuda_live(FAKE_CUDA_IMPORTS), 1);
    other_kill(&other);
}

TEST(memory_stays_where_it_was_opened)
{
    struct other other = start(NULL);
    struct reply handle = handle_of(&other, OTHER_ALLOCATE);
    CUdeviceptr ptr, again;

    WELL(open_memory(&ptr, &handle, LAZY));
    ask(&other, OTHER_FREE, 0);
    FAILS(open_memory(&again, &handle, LAZY), CUDA_ERROR_INVALID_HANDLE);
    handle = handle_of(&other, OTHER_ALLOCATE);
    other_kill(&other);
    FAILS(open_memory(&again, &handle, LAZY), CUDA_ERROR_INVALID_HANDLE);
    WELL(cuMemsetD8Async(ptr, 8, BYTES, NULL));
    WELL(cuStreamSynchronize(NULL));
}

TEST(handle_that_was_changed_is_refused)
{
    struct other other = start(NULL);
    const struct reply handle = handle_of(&other, OTHER_ALLOCATE),
                       event = handle_of(&other, OTHER_EVENT);
    CUdeviceptr ptr;

    for (unsigned byte = 0; byte < 56; byte++) {
        struct reply changed = handle;

        if (byte >= 8 && byte < 32)
            continue; /* descriptor and token: one of the two ways to it is enough */
        changed.bytes[byte] ^= 1;
        assert_int_not_equal(open_memory(&ptr, &changed, LAZY), CUDA_SUCCESS);
    }
    FAILS(open_memory(&ptr, &event, LAZY), CUDA_ERROR_INVALID_HANDLE);
    FAILS(open_memory(&ptr, &handle, 0), CUDA_ERROR_INVALID_VALUE);
    other_kill(&other);
}

TEST(memory_of_a_gpu_that_is_not_visible_is_refused)
{
    struct other other = start("CUDA_VISIBLE_DEVICES=1");
    CUipcMemHandle handle;
    CUdeviceptr ptr;

    WELL(cuMemAlloc_v2(&ptr, 1));
    WELL(cuIpcGetMemHandle(&handle, ptr));
    FAILS(other_ask(&other, OTHER_OPEN, 0, &handle).r, CUDA_ERROR_INVALID_DEVICE);
    WELL(cuCtxSetCurrent(contexts[1]));
    WELL(cuMemAlloc_v2(&ptr, 1));
    WELL(cuIpcGetMemHandle(&handle, ptr));
    WELL(other_ask(&other, OTHER_OPEN, 0, &handle).r);
    other_kill(&other);
}

TEST(memory_of_a_gpu_out_of_reach_is_refused)
{
    struct other other = start("FAKE_CUDA_PEERS=no");
    CUipcMemHandle handle;
    CUdeviceptr ptr;

    WELL(cuCtxSetCurrent(contexts[1]));
    WELL(cuMemAlloc_v2(&ptr, 1));
    WELL(cuIpcGetMemHandle(&handle, ptr));
    FAILS(other_ask(&other, OTHER_OPEN, 0, &handle).r, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    other_kill(&other);
}

TEST(memory_crosses_as_a_descriptor)
{
    const CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
                                     CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    struct other other = start(NULL);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr place;
    char path[64];
    int fd;

    /* as it would be passed over a socket */
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", other.pid, (int)ask(&other, OTHER_CREATE, 0));
    fd = open(path, O_RDWR | O_CLOEXEC);
    WELL(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    WELL(cuMemAddressReserve(&place, 2u << 20, 0, 0, 0));
    WELL(cuMemMap(place, 2u << 20, 0, handle, 0));
    WELL(cuMemSetAccess(place, 2u << 20, &access, 1));
    WELL(cuMemRelease(handle));
    assert_int_equal(*(char *)at(place), 'x');
    WELL(cuMemUnmap(place, 2u << 20));
    WELL(cuMemAddressFree(place, 2u << 20));
    other_kill(&other);
}

/* --- events --- */

TEST(event_is_the_same_in_both)
{
    struct other other = start(NULL);
    struct reply handle = handle_of(&other, OTHER_EVENT);
    CUevent event = open_event(&handle);

    WELL(cuEventQuery(event)); /* not recorded yet */
    ask(&other, OTHER_HOLD, 1);
    ask(&other, OTHER_RECORD, 0);
    FAILS(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    ask(&other, OTHER_HOLD, 0);
    WELL(event_await(event));

    fake_cuda_delay_us(FAKE_CUDA_ALL, HELD_US);
    WELL(cuEventRecord(event, NULL));
    FAILS(other_ask(&other, OTHER_QUERY, 0, NULL).r, CUDA_ERROR_NOT_READY);
    fake_cuda_delay_us(FAKE_CUDA_ALL, 0);
    WELL(event_await(event));
    ask(&other, OTHER_QUERY, 0);
    other_kill(&other);
}

TEST(event_whose_recorder_died_stays_pending)
{
    struct other other = start(NULL);
    struct reply handle = handle_of(&other, OTHER_EVENT);
    CUevent event = open_event(&handle);

    ask(&other, OTHER_HOLD, 1);
    ask(&other, OTHER_RECORD, 0);
    other_kill(&other);
    FAILS(cuEventQuery(event), CUDA_ERROR_NOT_READY);
}

TEST(event_is_exported_if_it_was_made_for_that)
{
    CUevent plain = new_event(CU_EVENT_DISABLE_TIMING);
    CUevent ours = new_event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS), again;
    CUipcEventHandle handle;

    FAILS(cuIpcGetEventHandle(&handle, plain), CUDA_ERROR_INVALID_HANDLE);
    WELL(cuIpcGetEventHandle(&handle, ours));
    FAILS(cuIpcOpenEventHandle(&again, handle), CUDA_ERROR_INVALID_CONTEXT);
    memset(&handle, 0x5a, sizeof(handle));
    FAILS(cuIpcOpenEventHandle(&again, handle), CUDA_ERROR_INVALID_HANDLE);
}

/* --- environment --- */

TEST(numbers_differ_between_processes_and_uuids_do_not)
{
    struct other other = start("CUDA_VISIBLE_DEVICES=1,0,7,0");
    CUuuid uuid;

    for (int i = 0; i < 2; i++) {
        const struct reply reply = other_ask(&other, OTHER_UUID, (uint64_t)i, NULL);

        WELL(reply.r);
        WELL(cuDeviceGetUuid_v2(&uuid, 1 - i));
        assert_memory_equal(&uuid, reply.bytes, sizeof(uuid));
    }
    FAILS(other_ask(&other, OTHER_UUID, 2, NULL).r, CUDA_ERROR_INVALID_DEVICE);
    other_kill(&other);
}

static void expect_answer(const char *setting, enum request what, uint64_t value, CUresult r)
{
    struct other other = start(setting);

    FAILS(other_ask(&other, what, value, NULL).r, r);
    other_kill(&other);
}

TEST(environment_says_what_there_is)
{
    expect_answer("FAKE_CUDA_DEVICES=0", OTHER_QUERY, 0, CUDA_ERROR_NO_DEVICE);
    expect_answer("CUDA_VISIBLE_DEVICES=", OTHER_QUERY, 0, CUDA_ERROR_NO_DEVICE);
    expect_answer("FAKE_CUDA_DEVICES=8", OTHER_UUID, 7, CUDA_SUCCESS);
    expect_answer("FAKE_CUDA_MEMORY=8192", OTHER_ALLOCATE, 8193, CUDA_ERROR_OUT_OF_MEMORY);
    expect_answer("FAKE_CUDA_MEMORY=8192", OTHER_ALLOCATE, 8192, CUDA_SUCCESS);
    expect_answer("FAKE_CUDA_EXPORTABLE=no", OTHER_ALLOCATE, 1, CUDA_ERROR_INVALID_VALUE);
    expect_answer("FAKE_CUDA_FAIL=cuMemFree_v2:1:2 cuMemAlloc_v2:1:719", OTHER_ALLOCATE, 1,
                  CUDA_ERROR_LAUNCH_FAILED);
}

TEST(environment_delays_whatever_streams_do)
{
    struct other other = start("FAKE_CUDA_DELAY_US=3600000000");

    handle_of(&other, OTHER_EVENT);
    ask(&other, OTHER_RECORD, 0);
    FAILS(other_ask(&other, OTHER_QUERY, 0, NULL).r, CUDA_ERROR_NOT_READY);
    ask(&other, OTHER_HOLD, 0);
    other_kill(&other);
}

/* --- fork --- */

static int calls_of_child(CUstream busy)
{
    CUdeviceptr ptr;
    CUcontext context;

    return cuMemAlloc_v2(&ptr, 1) != CUDA_ERROR_NOT_INITIALIZED ||
           cuCtxGetCurrent(&context) != CUDA_ERROR_NOT_INITIALIZED ||
           cuStreamSynchronize(busy) != CUDA_ERROR_NOT_INITIALIZED ||
           cuInit(0) != CUDA_ERROR_NOT_INITIALIZED || fake_cuda_live(FAKE_CUDA_STREAMS) != 0;
}

TEST(forked_child_gets_nothing_and_ends)
{
    CUstream busy = new_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr ptr = allocate(BYTES);
    int status = 0;
    pid_t pid;

    fake_cuda_delay_us(busy, HELD_US);
    WELL(cuMemsetD8Async(ptr, 1, BYTES, busy));
    pid = fork();
    if (pid == 0)
        exit(calls_of_child(busy));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    fake_cuda_delay_us(busy, 0);
    WELL(cuStreamSynchronize(busy));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(memory_is_the_same_in_both, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(memory_is_the_same_from_another_network_namespace,
                                        fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(memory_opened_again_is_counted_for_each_context,
                                        fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(memory_stays_where_it_was_opened, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(handle_that_was_changed_is_refused, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(memory_of_a_gpu_that_is_not_visible_is_refused, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(memory_of_a_gpu_out_of_reach_is_refused, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(memory_crosses_as_a_descriptor, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(event_is_the_same_in_both, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(event_whose_recorder_died_stays_pending, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(event_is_exported_if_it_was_made_for_that, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(numbers_differ_between_processes_and_uuids_do_not,
                                        fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(environment_says_what_there_is, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(environment_delays_whatever_streams_do, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(forked_child_gets_nothing_and_ends, fake_set_up,
                                        fake_tear_down),
    };

    other_serve(argc, argv);
    return fake_begin() == CUDA_SUCCESS ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
