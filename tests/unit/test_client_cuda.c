/* libruccl with memory of GPUs: what the daemon is told of it. */
#include "tests/unit/cuda_scene.h"

#include <stdlib.h>
#include <string.h>

#include "client/gpu.h"

static struct cuda_scene scene;

static int start_scene(void **state)
{
    (void)state;
    cuda_scene_start(&scene);
    return 0;
}

static void stop(struct pair *p)
{
    pair_stop(p);
    cuda_scene_stop(&scene);
}

static void expect_error(int r, enum ruccl_code code, const char *text)
{
    assert_int_equal(r, -(int)code);
    if (!strstr(ruccl_last_error()->text, text))
        fail_msg("\"%s\" says nothing of \"%s\"", ruccl_last_error()->text, text);
}

/* ---- what is shared */

TEST(memory_is_known_by_its_whole_allocation)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    const CUdeviceptr ptr = cuda_alloc(&scene, 1, 10000);
    struct ruccl_region *region = cuda_register(&p, ptr + 256, 1000);
    const struct request q = fake_await(p.daemon, REQUEST_REGION_OPEN, 0);
    CUipcMemHandle handle;
    CUcontext ignored;
    CUuuid uuid;

    assert_int_equal(q.region_open.kind, REGION_CUDA_IPC);
    assert_int_equal(q.region_open.bytes, 10000);
    CU(cuDeviceGetUuid_v2(&uuid, 1));
    assert_memory_equal(q.region_open.gpu, &uuid, sizeof(uuid));
    CU(cuCtxPushCurrent_v2(scene.contexts[1]));
    CU(cuIpcGetMemHandle(&handle, ptr));
    CU(cuCtxPopCurrent_v2(&ignored));
    assert_memory_equal(q.region_open.ipc, &handle, sizeof(handle));

    assert_ptr_equal(ruccl_region_data(region), (void *)(uintptr_t)(ptr + 256));
    assert_int_equal(ruccl_region_bytes(region), 1000);
    assert_int_equal(ruccl_region_is_staged(region), 0);
    ruccl_release(region);
    assert_int_equal(p.daemon->regions_closed, 1); /* when it returns, the memory may be freed */
    cuda_free(ptr);
    stop(&p);
}

TEST(memory_of_a_handle_goes_as_a_descriptor)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    const int before = count_fds();
    struct cuda_virtual v;
    struct request q;
    struct ruccl_region *region;

    cuda_virtual_map(&v, 1, true);
    region = cuda_register(&p, v.base + 4096, 100);
    q = fake_await(p.daemon, REQUEST_REGION_OPEN, 0);
    assert_int_equal(q.region_open.kind, REGION_CUDA_FD);
    assert_int_equal(q.region_open.bytes, CUDA_GRANULE);
    assert_int_equal(ruccl_region_is_staged(region), 0);
    ruccl_release(region);
    cuda_virtual_unmap(&v);
    assert_int_equal(count_fds(), before);
    stop(&p);
}

TEST(offsets_are_those_in_the_allocation)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    const CUdeviceptr ptr = cuda_alloc(&scene, 0, 10000);
    struct ruccl_region *region = cuda_register(&p, ptr + 256, 1000);
    struct ruccl_tensor by_region = cuda_tensor(region, 8), by_address = { 0 };
    struct request q;

    by_region.offset = 64;
    by_address = bytes_tensor((void *)(uintptr_t)(ptr + 256 + 96), 8);
    assert_int_equal(ruccl_all_reduce(p.comm, &by_region, &by_address, RUCCL_SUM), 0);
    q = fake_await(p.daemon, REQUEST_POST, 0);
    assert_int_equal(q.post.in.region, 1);
    assert_int_equal(q.post.in.offset, 256 + 64);
    assert_int_equal(q.post.out.region, 1);
    assert_int_equal(q.post.out.offset, 256 + 96);

    by_address.shape[0] = 1000;
    by_region.shape[0] = 1000;
    by_region.offset = 0;
    expect_error(ruccl_all_reduce(p.comm, &by_region, &by_address, RUCCL_SUM), RUCCL_OUT_OF_RANGE,
                 "ends behind its region of 1000 bytes");
    ruccl_release(region);
    cuda_free(ptr);
    stop(&p);
}

/* Asks with both, and expects the daemon's number, and offsets in the allocation. */
static void expect_one(struct pair *p, struct ruccl_region *in, struct ruccl_region *out,
                       uint32_t number, uint64_t in_offset, uint64_t out_offset)
{
    const struct ruccl_tensor from = cuda_tensor(in, 8), to = cuda_tensor(out, 8);
    const uint32_t nposts = fake_count(p->daemon, REQUEST_POST);
    struct request q;

    assert_int_equal(ruccl_all_reduce(p->comm, &from, &to, RUCCL_SUM), 0);
    q = fake_await(p->daemon, REQUEST_POST, nposts);
    assert_int_equal(q.post.in.region, number);
    assert_int_equal(q.post.in.offset, in_offset);
    assert_int_equal(q.post.out.region, number);
    assert_int_equal(q.post.out.offset, out_offset);
}

/* The daemon is told once, and once again after the last of them has gone. */
static void try_allocation(struct pair *p, CUdeviceptr ptr, CUdeviceptr alias)
{
    const uint32_t opened = p->daemon->regions_opened, closed = p->daemon->regions_closed;
    struct ruccl_region *a = cuda_register(p, ptr + 256, 1000);
    const uint32_t number = fake_await(p->daemon, REQUEST_REGION_OPEN, opened).region_open.region;
    struct ruccl_region *b = cuda_register(p, alias + 512, 2000);
    struct ruccl_region *c = cuda_register(p, ptr + 256, 1000);

    assert_int_equal(p->daemon->regions_opened, opened + 1);
    expect_one(p, a, b, number, 256, 512);
    ruccl_release(a);
    expect_one(p, c, b, number, 256, 512);
    ruccl_release(c);
    assert_int_equal(p->daemon->regions_closed, closed);
    ruccl_release(b);
    assert_int_equal(p->daemon->regions_closed, closed + 1);
    a = cuda_register(p, ptr, 1000);
    assert_int_equal(p->daemon->regions_opened, opened + 2);
    ruccl_release(a);
}

TEST(regions_in_one_allocation_are_one_to_the_daemon)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    const CUdeviceptr ptr = cuda_alloc(&scene, 0, 10000), other = cuda_alloc(&scene, 0, 10000);
    struct ruccl_region *region = cuda_register(&p, other, 10000);
    struct cuda_virtual v, w;

    try_allocation(&p, ptr, ptr);
    cuda_free(ptr);
    cuda_virtual_map(&v, 1, true);
    cuda_virtual_map(&w, 1, true);
    try_allocation(&p, v.base, v.base);
    try_allocation(&p, w.base, w.base);
    ruccl_release(region);
    assert_int_equal(p.daemon->regions_opened, p.daemon->regions_closed);
    cuda_free(other);
    cuda_virtual_unmap(&v);
    cuda_virtual_unmap(&w);
    stop(&p);
}

/* A handle that is mapped twice is one allocation at two places. */
TEST(memory_that_is_mapped_twice_is_one_to_the_daemon)
{
    const CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
                                     CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    struct pair p = pair_start((struct behaviour){ 0 });
    struct cuda_virtual v;
    CUdeviceptr alias;

    cuda_virtual_map(&v, 1, true);
    CU(cuMemAddressReserve(&alias, CUDA_GRANULE, 0, 0, 0));
    CU(cuMemMap(alias, CUDA_GRANULE, 0, v.handles[0], 0));
    CU(cuMemSetAccess(alias, CUDA_GRANULE, &access, 1));
    try_allocation(&p, v.base, alias);
    CU(cuMemUnmap(alias, CUDA_GRANULE));
    CU(cuMemAddressFree(alias, CUDA_GRANULE));
    cuda_virtual_unmap(&v);
    stop(&p);
}

/* What is freed and made again at the same address is not what it was. */
TEST(an_allocation_made_anew_is_another)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    const CUdeviceptr ptr = cuda_alloc(&scene, 0, 4096);
    struct ruccl_region *stale = cuda_register(&p, ptr, 4096), *fresh;
    CUdeviceptr again;

    cuda_free(ptr);
    again = cuda_alloc(&scene, 0, 4096);
    fresh = cuda_register(&p, again, 4096);
    assert_int_equal(p.daemon->regions_opened, 2);
    ruccl_release(stale);
    ruccl_release(fresh);
    cuda_free(again);
    stop(&p);
}

struct registrar {
    pthread_t thread;
    struct pair *p;
    CUdeviceptr ptr;
    struct ruccl_region *region;
    int r;
};

static void *register_one(void *arg)
{
    struct registrar *s = arg;

    CU(cuCtxSetCurrent(scene.contexts[0]));
    s->r = ruccl_register_cuda(s->p->conn, (void *)(uintptr_t)s->ptr, 64, &s->region);
    return NULL;
}

static void register_at_once(struct pair *p, struct registrar *s, unsigned n, CUdeviceptr ptr)
{
    for (unsigned i = 0; i < n; i++) {
        s[i] = (struct registrar){ .p = p, .ptr = ptr + 64 * i };
        assert_int_equal(pthread_create(&s[i].thread, NULL, register_one, &s[i]), 0);
    }
    for (unsigned i = 0; i < n; i++)
        pthread_join(s[i].thread, NULL);
}

TEST(threads_that_register_one_allocation_tell_of_it_once)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    struct registrar s[4];
    struct cuda_virtual v;

    cuda_virtual_map(&v, 1, true);
    for (uint32_t round = 1; round <= 20; round++) {
        register_at_once(&p, s, ARRAY_SIZE(s), v.base);
        assert_int_equal(p.daemon->regions_opened, round);
        for (unsigned i = 0; i < ARRAY_SIZE(s); i++) {
            assert_int_equal(s[i].r, 0);
            ruccl_release(s[i].region);
        }
        assert_int_equal(p.daemon->regions_closed, round);
    }
    cuda_virtual_unmap(&v);
    stop(&p);
}

TEST(threads_that_are_refused_one_allocation_all_hear_it)
{
    struct pair p = pair_start((struct behaviour){ .deny_regions = true });
    struct registrar s[4];
    struct cuda_virtual v;

    cuda_virtual_map(&v, 1, true);
    register_at_once(&p, s, ARRAY_SIZE(s), v.base);
    for (unsigned i = 0; i < ARRAY_SIZE(s); i++)
        assert_int_equal(s[i].r, -RUCCL_QUOTA);
    cuda_virtual_unmap(&v);
    stop(&p);
}

/* ---- what is not */

static void expect_staged(struct pair *p, CUdeviceptr ptr, uint64_t bytes)
{
    struct ruccl_region *region = cuda_register(p, ptr, bytes);

    assert_int_equal(ruccl_region_is_staged(region), 1);
    assert_ptr_equal(ruccl_region_data(region), (void *)(uintptr_t)ptr);
    assert_int_equal(fake_count(p->daemon, REQUEST_REGION_OPEN), 0);
    ruccl_release(region);
    assert_int_equal(fake_count(p->daemon, REQUEST_REGION_CLOSE), 0);
}

TEST(memory_that_cannot_be_shared_is_staged)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    struct cuda_virtual v;
    CUdeviceptr ptr;

    fake_cuda_exportable(false); /* as of a pool */
    ptr = cuda_alloc(&scene, 0, 4096);
    fake_cuda_exportable(true);
    expect_staged(&p, ptr, 4096);
    cuda_free(ptr);

    fake_cuda_managed(true);
    ptr = cuda_alloc(&scene, 0, 4096);
    fake_cuda_managed(false);
    expect_staged(&p, ptr, 4096);
    cuda_free(ptr);

    cuda_virtual_map(&v, 3, true);
    expect_staged(&p, v.base + 4096, v.bytes - 4096);
    cuda_virtual_unmap(&v);

    cuda_virtual_map(&v, 1, false);
    expect_staged(&p, v.base, v.bytes);
    cuda_virtual_unmap(&v);

    ptr = cuda_alloc(&scene, 0, 4096);
    fake_cuda_fail("cuIpcGetMemHandle", 1, CUDA_ERROR_NOT_SUPPORTED);
    expect_staged(&p, ptr, 4096);
    cuda_free(ptr);
    stop(&p);
}

/* Staged memory, released and freed with it. */
struct staged {
    CUdeviceptr ptr;
    struct ruccl_region *region;
};

static struct staged staged_new(struct pair *p, uint64_t bytes)
{
    struct staged s;

    fake_cuda_exportable(false);
    s.ptr = cuda_alloc(&scene, 0, bytes);
    fake_cuda_exportable(true);
    s.region = cuda_register(p, s.ptr, bytes);
    return s;
}

static void staged_free(struct staged *s)
{
    ruccl_release(s->region);
    cuda_free(s->ptr);
}

TEST(staged_memory_is_copied_behind_the_stream_and_back)
{
    enum { N = 3 << 20 }; /* more than a window */
    struct pair p = pair_start((struct behaviour){ 0 });
    struct staged s = staged_new(&p, 2 * N);
    const struct ruccl_comm comm = ruccl_on_stream(p.comm, scene.stream);
    struct ruccl_tensor in = cuda_tensor(s.region, N), out = in;
    struct request q;

    out.offset = N;
    fake_cuda_delay_us(scene.stream, 50000);
    CU(cuMemsetD8Async(s.ptr, 5, N, scene.stream));
    assert_int_equal(ruccl_all_reduce(comm, &in, &out, RUCCL_SUM), 0);
    fake_cuda_delay_us(scene.stream, 0);
    assert_int_equal(cuda_bytes(s.ptr)[N - 1], 5);
    assert_int_equal(cuda_bytes(s.ptr)[N], 6);
    assert_int_equal(cuda_bytes(s.ptr)[2 * N - 1], 6);
    q = fake_await(p.daemon, REQUEST_POST, 0);
    assert_int_equal(q.post.fence, 0); /* the daemon touches host memory alone */
    assert_int_equal(q.post.signal, 0);
    assert_int_equal(q.post.in.window, 0);

    out.offset = 0;
    assert_int_equal(ruccl_all_reduce(comm, &in, &out, RUCCL_SUM), 0); /* in place */
    assert_int_equal(cuda_bytes(s.ptr)[0], 6);
    assert_int_equal(cuda_bytes(s.ptr)[N], 6);
    q = fake_await(p.daemon, REQUEST_POST, 1);
    assert_int_equal(q.post.in.region, q.post.out.region);

    out.offset = 1;
    expect_error(ruccl_all_reduce(comm, &in, &out, RUCCL_SUM), RUCCL_OVERLAP, "share bytes");
    staged_free(&s);
    stop(&p);
}

TEST(staged_output_of_a_failure_is_left_alone)
{
    struct pair p = pair_start((struct behaviour){ .hold_posts = true });
    struct staged s = staged_new(&p, 64);
    struct ruccl_tensor t = cuda_tensor(s.region, 64);
    struct ruccl_work *work;
    struct request q;

    memset(cuda_bytes(s.ptr), 9, 64);
    assert_int_equal(ruccl_all_reduce_async(p.comm, &t, &t, RUCCL_SUM, &work), 0);
    q = fake_await(p.daemon, REQUEST_POST, 0);
    fake_find_region(p.daemon, q.post.out.region)->data[0] = 77;
    fake_complete(p.daemon, &q, ERROR_MISMATCH, "other shapes");
    expect_error(ruccl_work_wait(work, -1), RUCCL_MISMATCH, "other shapes");
    assert_int_equal(cuda_bytes(s.ptr)[0], 9);
    ruccl_work_release(work);
    staged_free(&s);
    stop(&p);
}

TEST(copies_that_fail_are_told)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    struct staged s = staged_new(&p, 64);
    struct ruccl_tensor t = cuda_tensor(s.region, 64);

    fake_cuda_fail("cuMemcpyDtoHAsync_v2", 1, CUDA_ERROR_UNKNOWN);
    expect_error(ruccl_all_reduce(p.comm, &t, &t, RUCCL_SUM), RUCCL_SYSTEM,
                 "cuMemcpyDtoHAsync: CUDA_ERROR_UNKNOWN (999)");
    assert_int_equal(fake_await(p.daemon, REQUEST_POST, 0).post.rejection.code, ERROR_SYSTEM);
    fake_cuda_fail("cuMemcpyHtoDAsync_v2", 1, CUDA_ERROR_UNKNOWN);
    expect_error(ruccl_all_reduce(p.comm, &t, &t, RUCCL_SUM), RUCCL_SYSTEM, "cuMemcpyHtoDAsync");
    assert_int_equal(ruccl_all_reduce(p.comm, &t, &t, RUCCL_SUM), 0);
    staged_free(&s);
    stop(&p);
}

/* ---- mistakes */

TEST(registering_says_what_is_wrong)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    const CUdeviceptr ptr = cuda_alloc(&scene, 0, 4096);
    void *at = (void *)(uintptr_t)ptr;
    struct ruccl_region *region = NULL;
    struct cuda_virtual v;
    static uint8_t host[16];

    expect_error(ruccl_register_cuda(NULL, at, 1, &region), RUCCL_INVALID_ARGUMENT, "conn is NULL");
    expect_error(ruccl_register_cuda(p.conn, at, 1, NULL), RUCCL_INVALID_ARGUMENT, "ret is NULL");
    expect_error(ruccl_register_cuda(p.conn, at, 0, &region), RUCCL_INVALID_ARGUMENT, "0 bytes");
    expect_error(ruccl_register_cuda(p.conn, NULL, 1, &region), RUCCL_INVALID_ARGUMENT,
                 "no address of a GPU's memory");
    expect_error(ruccl_register_cuda(p.conn, host, 16, &region), RUCCL_INVALID_ARGUMENT,
                 "no address of a GPU's memory");
    expect_error(ruccl_register_cuda(p.conn, (uint8_t *)at + 96, 4096, &region), RUCCL_OUT_OF_RANGE,
                 "end 96 bytes behind their allocation");

    cuda_virtual_map(&v, 2, true);
    expect_error(ruccl_register_cuda(p.conn, (void *)(uintptr_t)v.base, v.bytes + 1, &region),
                 RUCCL_OUT_OF_RANGE, "end 1 bytes behind their allocation");
    cuda_virtual_unmap(&v);

    fake_cuda_fail("cuMemGetAddressRange_v2", 1, CUDA_ERROR_UNKNOWN);
    expect_error(ruccl_register_cuda(p.conn, at, 1, &region), RUCCL_SYSTEM,
                 "cuMemGetAddressRange: CUDA_ERROR_UNKNOWN (999)");
    assert_null(region);
    assert_int_equal(fake_count(p.daemon, REQUEST_REGION_OPEN), 0);
    cuda_free(ptr);
    stop(&p);
}

TEST(a_daemon_may_have_no_gpus_or_no_room)
{
    struct pair p = pair_start((struct behaviour){ .no_gpus = true });
    const CUdeviceptr ptr = cuda_alloc(&scene, 0, 4096);
    void *at = (void *)(uintptr_t)ptr;
    struct ruccl_region *region;

    expect_error(ruccl_register_cuda(p.conn, at, 1, &region), RUCCL_NOT_FOUND, "uses no GPU");
    pair_stop(&p);
    p = pair_start((struct behaviour){ .deny_regions = true });
    expect_error(ruccl_register_cuda(p.conn, at, 1, &region), RUCCL_QUOTA, "no more regions");
    fake_die(p.daemon);
    expect_error(ruccl_register_cuda(p.conn, at, 1, &region), RUCCL_DAEMON_LOST, p.daemon->path);
    cuda_free(ptr);
    stop(&p);
}

TEST(memory_that_is_not_registered_is_not_touched)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    const CUdeviceptr ptr = cuda_alloc(&scene, 0, 4096), other = cuda_alloc(&scene, 0, 4096);
    struct ruccl_region *region = cuda_register(&p, ptr, 4096);
    struct ruccl_tensor known = cuda_tensor(region, 8);
    struct ruccl_tensor unknown = bytes_tensor((void *)(uintptr_t)other, 8);

    expect_error(ruccl_all_reduce(p.comm, &unknown, &known, RUCCL_SUM), RUCCL_INVALID_ARGUMENT,
                 "in is in memory of a GPU");
    expect_error(ruccl_all_reduce(p.comm, &known, &unknown, RUCCL_SUM), RUCCL_INVALID_ARGUMENT,
                 "register it with ruccl_register_cuda()");
    ruccl_release(region);
    expect_error(ruccl_all_reduce(p.comm, &known, &known, RUCCL_SUM), RUCCL_INVALID_ARGUMENT,
                 "not a live one");
    cuda_free(ptr);
    cuda_free(other);
    stop(&p);
}

TEST(tensors_of_two_gpus_need_a_stream_that_is_named)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    const CUdeviceptr a = cuda_alloc(&scene, 0, 64), b = cuda_alloc(&scene, 1, 64);
    struct ruccl_region *ra = cuda_register(&p, a, 64), *rb = cuda_register(&p, b, 64);
    struct ruccl_tensor ta = cuda_tensor(ra, 64), tb = cuda_tensor(rb, 64);
    CUuuid uuid;

    expect_error(ruccl_all_reduce(p.comm, &tb, &ta, RUCCL_SUM), RUCCL_INVALID_ARGUMENT,
                 "different GPUs");
    assert_int_equal(ruccl_all_reduce(ruccl_on_stream(p.comm, scene.stream), &tb, &ta, RUCCL_SUM),
                     0);
    CU(cuDeviceGetUuid_v2(&uuid, 0)); /* the stream's */
    assert_memory_equal(fake_await(p.daemon, REQUEST_FENCE_OPEN, 0).fence_open.gpu, &uuid,
                        sizeof(uuid));
    assert_int_equal(ruccl_all_reduce(p.comm, &tb, &tb, RUCCL_SUM), 0);
    CU(cuDeviceGetUuid_v2(&uuid, 1));
    assert_memory_equal(fake_await(p.daemon, REQUEST_FENCE_OPEN, 1).fence_open.gpu, &uuid,
                        sizeof(uuid));
    /* not of the tensor's GPU, but its calls may be in the stream */
    assert_int_equal(ruccl_all_reduce(ruccl_on_stream(p.comm, scene.stream), &tb, &tb, RUCCL_SUM),
                     0);
    assert_int_equal(fake_count(p.daemon, REQUEST_FENCE_OPEN), 2);
    expect_error(ruccl_all_reduce(ruccl_on_stream(p.comm, (void *)1234567), &ta, &ta, RUCCL_SUM),
                 RUCCL_SYSTEM, "cuStreamGetCtx");
    ruccl_release(ra);
    ruccl_release(rb);
    CU(cuMemFree_v2(a));
    CU(cuMemFree_v2(b));
    stop(&p);
}

/* ---- with other memory */

TEST(plain_and_gpu_memory_go_together)
{
    enum { N = 5 << 20 }; /* a window would do for the plain one alone */
    struct pair p = pair_start((struct behaviour){ 0 });
    const CUdeviceptr ptr = cuda_alloc(&scene, 0, N);
    struct ruccl_region *region = cuda_register(&p, ptr, N);
    uint8_t *memory = calloc(1, N);
    struct ruccl_tensor on_gpu = cuda_tensor(region, N), plain = bytes_tensor(memory, N);
    struct request q;

    assert_int_equal(ruccl_all_reduce(p.comm, &on_gpu, &plain, RUCCL_SUM), 0);
    assert_int_equal(ruccl_all_reduce(p.comm, &plain, &on_gpu, RUCCL_SUM), 0);
    for (uint32_t i = 0; i < 2; i++) {
        q = fake_await(p.daemon, REQUEST_POST, i);
        assert_int_not_equal(q.post.fence, 0);
        assert_int_equal(q.post.in.window, 0);
        assert_int_equal(q.post.out.window, 0);
        assert_int_equal((i ? q.post.out : q.post.in).region, 1);
        assert_int_not_equal((i ? q.post.in : q.post.out).region, 1);
    }
    free(memory);
    ruccl_release(region);
    cuda_free(ptr);
    stop(&p);
}

TEST(forms_of_a_communicator_keep_its_stream)
{
    const struct ruccl_comm comm = { NULL, RUCCL_NO_BUDGET, NULL };
    struct ruccl_comm on = ruccl_on_stream(comm, scene.stream);

    assert_ptr_equal(on.stream, scene.stream);
    on = ruccl_bounded(on, 100);
    assert_ptr_equal(on.stream, scene.stream);
    on = ruccl_on_stream(on, scene.stream);
    assert_int_equal(ruccl_max_chunk_bytes(on), 100);
    assert_ptr_equal(ruccl_unbounded(on).stream, scene.stream);
    assert_null(ruccl_on_stream(on, NULL).stream);
    cuda_scene_stop(&scene);
}

TEST(signals_go_round_and_leave_out_none)
{
    assert_int_equal(gpu_next_signal(0), 1);
    assert_int_equal(gpu_next_signal(1), 2);
    assert_int_equal(gpu_next_signal(UINT32_MAX), 1);
    cuda_scene_stop(&scene);
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_setup(name, start_scene)
    const struct CMUnitTest tests[] = {
        CLAIM(memory_is_known_by_its_whole_allocation),
        CLAIM(memory_of_a_handle_goes_as_a_descriptor),
        CLAIM(offsets_are_those_in_the_allocation),
        CLAIM(regions_in_one_allocation_are_one_to_the_daemon),
        CLAIM(memory_that_is_mapped_twice_is_one_to_the_daemon),
        CLAIM(an_allocation_made_anew_is_another),
        CLAIM(threads_that_register_one_allocation_tell_of_it_once),
        CLAIM(threads_that_are_refused_one_allocation_all_hear_it),
        CLAIM(memory_that_cannot_be_shared_is_staged),
        CLAIM(staged_memory_is_copied_behind_the_stream_and_back),
        CLAIM(staged_output_of_a_failure_is_left_alone),
        CLAIM(copies_that_fail_are_told),
        CLAIM(registering_says_what_is_wrong),
        CLAIM(a_daemon_may_have_no_gpus_or_no_room),
        CLAIM(memory_that_is_not_registered_is_not_touched),
        CLAIM(tensors_of_two_gpus_need_a_stream_that_is_named),
        CLAIM(plain_and_gpu_memory_go_together),
        CLAIM(forms_of_a_communicator_keep_its_stream),
        CLAIM(signals_go_round_and_leave_out_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
