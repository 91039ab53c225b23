/*
 * What no library says of GPUs, at the level of packets: refused in words, and the daemon's driver
 * is left with nothing of it. This process is the client, with the tests' driver.
 */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "shared/base.h"
#include "tests/end_to_end/daemon.h"
#include "tests/end_to_end/driver.h"
#include "tests/end_to_end/raw.h"
#include "tests/unit/unit.h"

#define CU(call) assert_int_equal(call, CUDA_SUCCESS)

#define BYTES   65536u
#define GRANULE (2u << 20)

static struct driver driver;
static struct driver_live before;
static struct raw raw;

static int set_up(void **state)
{
    CUcontext context;

    (void)state;
    driver_start(&driver, NULL);
    before = driver_live(&driver);
    raw_open(&raw, driver.harness.socket);
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    raw_close(&raw);
    CU(cuDevicePrimaryCtxRelease_v2(0));
    return driver_stop(&driver);
}

/* The session is served, and holds nothing. */
static void expect_nothing_left(void)
{
    raw_ask_status(&raw);
    assert_int_equal(raw.reply.status_page.items[0].daemon.regions, 0);
    driver_expect_live(&driver, &before);
}

/* ---- memory */

static CUdeviceptr allocate(struct request *ret)
{
    CUipcMemHandle ipc;
    CUdeviceptr ptr;

    CU(cuMemAlloc_v2(&ptr, BYTES));
    CU(cuIpcGetMemHandle(&ipc, ptr));
    *ret = driver_odd_region(&driver, 0, 1);
    ret->region_open.bytes = BYTES;
    memcpy(ret->region_open.ipc, ipc.reserved, sizeof(ret->region_open.ipc));
    return ptr;
}

/* Return: a descriptor of GRANULE bytes. */
static int create(struct request *ret)
{
    const CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
    };
    CUmemGenericAllocationHandle handle;
    int fd;

    CU(cuMemCreate(&handle, GRANULE, &prop, 0));
    CU(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CU(cuMemRelease(handle));
    *ret = driver_odd_region(&driver, 0, 1);
    ret->region_open.bytes = GRANULE;
    ret->region_open.kind = REGION_CUDA_FD;
    return fd;
}

static void close_region(uint32_t number)
{
    struct request r = { .kind = REQUEST_REGION_CLOSE, .region_close.region = number };

    raw_ask(&raw, &r, -1, ERROR_NONE, NULL);
}

TEST(a_handle_that_is_none_is_refused)
{
    struct request r = driver_odd_region(&driver, 1, 1);

    raw_ask(&raw, &r, -1, ERROR_INVALID_ARGUMENT, driver.texts[1]);
    raw_ask(&raw, &r, -1, ERROR_INVALID_ARGUMENT, "cuIpcOpenMemHandle");
    memset(r.region_open.ipc, 0, sizeof(r.region_open.ipc));
    raw_ask(&raw, &r, -1, ERROR_INVALID_ARGUMENT, "cuIpcOpenMemHandle");
    expect_nothing_left();
}

TEST(a_descriptor_that_is_none_of_a_gpu_is_refused)
{
    const int fds[] = { raw_memfd(GRANULE), open("/dev/null", O_RDWR | O_CLOEXEC) };
    struct request r;

    close(create(&r));
    for (unsigned i = 0; i < ARRAY_SIZE(fds); i++) {
        raw_ask(&raw, &r, fds[i], ERROR_INVALID_ARGUMENT, "cuMemImportFromShareableHandle");
        close(fds[i]);
    }
    expect_nothing_left();
}

TEST(a_gpu_that_the_daemon_does_not_have_is_refused)
{
    struct request r;
    CUdeviceptr ptr = allocate(&r);

    memset(r.region_open.gpu, 0x77, sizeof(r.region_open.gpu));
    raw_ask(&raw, &r, -1, ERROR_NOT_FOUND, "GPU-77777777-7777-7777-7777-777777777777");
    raw_ask(&raw, &r, -1, ERROR_NOT_FOUND, driver.texts[1]);
    CU(cuMemFree_v2(ptr));
    expect_nothing_left();
}

TEST(more_bytes_than_an_allocation_has_are_refused)
{
    static const uint64_t wrong[] = { BYTES + 1, 1ull << 40, UINT64_MAX };
    struct request r;
    CUdeviceptr ptr = allocate(&r);

    for (unsigned i = 0; i < ARRAY_SIZE(wrong); i++) {
        r.region_open.bytes = wrong[i];
        raw_send(&raw, &r, -1);
        assert_int_not_equal(raw_expect(&raw, REPLY_DONE)->done.code, ERROR_NONE);
        expect_nothing_left();
    }
    r.region_open.bytes = BYTES + 1;
    raw_ask(&raw, &r, -1, ERROR_INVALID_ARGUMENT, "its allocation has 65536");
    r.region_open.bytes = 0;
    raw_ask(&raw, &r, -1, ERROR_INVALID_ARGUMENT, "no bytes");
    r.region_open.bytes = BYTES;
    raw_ask(&raw, &r, -1, ERROR_NONE, NULL);
    close_region(1);
    CU(cuMemFree_v2(ptr));
    expect_nothing_left();
}

TEST(a_descriptor_of_another_size_is_refused)
{
    static const uint64_t wrong[] = { 2ull * GRANULE, 1ull << 40, UINT64_MAX, GRANULE + 1, 1 };
    struct request r;
    const int fd = create(&r);

    for (unsigned i = 0; i < ARRAY_SIZE(wrong); i++) {
        r.region_open.bytes = wrong[i];
        raw_send(&raw, &r, fd);
        assert_int_not_equal(raw_expect(&raw, REPLY_DONE)->done.code, ERROR_NONE);
        expect_nothing_left();
    }
    r.region_open.bytes = GRANULE;
    raw_ask(&raw, &r, fd, ERROR_NONE, NULL);
    close_region(1);
    close(fd);
    expect_nothing_left();
}

TEST(memory_that_is_said_to_be_of_another_gpu_is_refused)
{
    struct request by_handle, by_fd;
    const CUdeviceptr ptr = allocate(&by_handle);
    const int fd = create(&by_fd);

    memcpy(by_handle.region_open.gpu, driver.uuids[1], sizeof(by_handle.region_open.gpu));
    raw_ask(&raw, &by_handle, -1, ERROR_INVALID_ARGUMENT, "is another GPU's");
    memcpy(by_fd.region_open.gpu, driver.uuids[1], sizeof(by_fd.region_open.gpu));
    raw_ask(&raw, &by_fd, fd, ERROR_INVALID_ARGUMENT, "is another GPU's");
    CU(cuMemFree_v2(ptr));
    close(fd);
    expect_nothing_left();
}

TEST(memory_that_is_gone_is_refused)
{
    struct request r;

    CU(cuMemFree_v2(allocate(&r)));
    raw_ask(&raw, &r, -1, ERROR_INVALID_ARGUMENT, "cuIpcOpenMemHandle");
    expect_nothing_left();
}

/* ---- calls */

/* Alone, the sum is its own. */
static struct request sum_alone(uint32_t region, uint64_t sequence)
{
    return raw_sum(1, sequence, 0, region, BYTES / 4);
}

static void join_alone(void)
{
    char id[CODEC_ID_MAX + 1];

    raw_new_id(&raw, id);
    raw_join(&raw, 1, id, 0, 1);
    raw_expect_done(&raw, ERROR_NONE, NULL);
}

static void expect_refused(struct request *r, enum error_code code)
{
    raw_send(&raw, r, -1);
    assert_int_equal(raw_expect_completion(&raw, 0)->code, code);
}

TEST(tensors_that_leave_their_allocation_are_refused)
{
    struct request open, r;
    CUdeviceptr ptr = allocate(&open);

    join_alone();
    raw_ask(&raw, &open, -1, ERROR_NONE, NULL);
    r = sum_alone(1, 1);
    r.post.in.offset = r.post.out.offset = 4;
    expect_refused(&r, ERROR_OUT_OF_RANGE);
    r = sum_alone(1, 2);
    r.post.in.offset = r.post.out.offset = UINT64_MAX - 3;
    expect_refused(&r, ERROR_OUT_OF_RANGE);
    r = sum_alone(1, 3);
    r.post.d.shape.axes[0] = 1;
    r.post.in.offset = r.post.out.offset = 2;
    expect_refused(&r, ERROR_MISALIGNED);
    r = sum_alone(1, 4);
    raw_send(&raw, &r, -1);
    raw_expect_success(&raw, 0);
    close_region(1);
    CU(cuMemFree_v2(ptr));
    expect_nothing_left();
}

/* ---- order */

static struct request fence(uint32_t number)
{
    struct request r = { .kind = REQUEST_FENCE_OPEN, .fence_open.fence = number };

    memcpy(r.fence_open.gpu, driver.uuids[0], sizeof(r.fence_open.gpu));
    return r;
}

TEST(an_event_that_is_none_is_refused)
{
    struct request r = fence(1), memory;
    CUdeviceptr ptr = allocate(&memory);

    memset(r.fence_open.handle, 0x5a, sizeof(r.fence_open.handle));
    raw_ask(&raw, &r, -1, ERROR_INVALID_ARGUMENT, "CU_EVENT_INTERPROCESS");
    memcpy(r.fence_open.handle, memory.region_open.ipc, sizeof(r.fence_open.handle));
    raw_ask(&raw, &r, -1, ERROR_INVALID_ARGUMENT, "CU_EVENT_INTERPROCESS");
    r.fence_open.gpu[0] ^= 1;
    raw_ask(&raw, &r, -1, ERROR_NOT_FOUND, "does not use");
    CU(cuMemFree_v2(ptr));
    expect_nothing_left();
}

static CUevent open_fence(uint32_t number)
{
    struct request r = fence(number);
    CUipcEventHandle handle;
    CUevent event;

    CU(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    CU(cuIpcGetEventHandle(&handle, event));
    memcpy(r.fence_open.handle, handle.reserved, sizeof(r.fence_open.handle));
    raw_ask(&raw, &r, -1, ERROR_NONE, NULL);
    return event;
}

static void close_fence(uint32_t number)
{
    struct request r = { .kind = REQUEST_FENCE_CLOSE, .fence_close.fence = number };

    raw_ask(&raw, &r, -1, ERROR_NONE, NULL);
}

TEST(an_event_that_was_never_recorded_or_is_gone_holds_nobody_up)
{
    struct request r;

    join_alone();
    for (uint32_t n = 1; n <= 2; n++) {
        CUevent event = open_fence(n);

        if (n == 2)
            CU(cuEventDestroy_v2(event));
        r = (struct request){ .kind = REQUEST_POST };
        r.post.comm = 1;
        r.post.sequence = n;
        r.post.fence = n;
        r.post.d.kind = COLLECTIVE_BARRIER;
        r.post.d.budget = BUDGET_NONE;
        raw_send(&raw, &r, -1);
        raw_expect_success(&raw, 0);
        close_fence(n);
        if (n == 1)
            CU(cuEventDestroy_v2(event));
    }
    expect_nothing_left();
}

TEST(a_signal_without_memory_for_it_ends_the_session_and_frees_all_it_had)
{
    struct request open, r;
    CUdeviceptr ptr = allocate(&open);
    CUevent event;

    join_alone();
    raw_ask(&raw, &open, -1, ERROR_NONE, NULL);
    event = open_fence(1);
    r = sum_alone(1, 1);
    r.post.fence = 1;
    r.post.signal = 1;
    raw_send(&raw, &r, -1);
    raw_expect_goodbye(&raw, ERROR_PROTOCOL, "no memory for signals");
    raw_close(&raw);
    raw_open(&raw, driver.harness.socket);
    CU(cuEventDestroy_v2(event));
    CU(cuMemFree_v2(ptr));
    expect_nothing_left();
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CLAIM(a_handle_that_is_none_is_refused),
        CLAIM(a_descriptor_that_is_none_of_a_gpu_is_refused),
        CLAIM(a_gpu_that_the_daemon_does_not_have_is_refused),
        CLAIM(more_bytes_than_an_allocation_has_are_refused),
        CLAIM(a_descriptor_of_another_size_is_refused),
        CLAIM(memory_that_is_said_to_be_of_another_gpu_is_refused),
        CLAIM(memory_that_is_gone_is_refused),
        CLAIM(tensors_that_leave_their_allocation_are_refused),
        CLAIM(an_event_that_is_none_is_refused),
        CLAIM(an_event_that_was_never_recorded_or_is_gone_holds_nobody_up),
        CLAIM(a_signal_without_memory_for_it_ends_the_session_and_frees_all_it_had),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
