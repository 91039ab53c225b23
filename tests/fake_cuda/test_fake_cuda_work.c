/* The tests' driver at work: kernels, what they may touch, and failures on demand. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/device/cuda_args.h"
#include "shared/kernels.h"
#include "tests/fake_cuda/calls.h"

#define COUNT   1000u
#define BYTES   (COUNT * sizeof(float))
#define SOURCES 200u /* more than the arguments hold */
#define GRANULE (2u << 20)

static CUfunction function(const char *name)
{
    CUmodule module = NULL;
    CUfunction f = NULL;

    WELL(cuModuleLoadData(&module, "any image"));
    WELL(cuModuleGetFunction(&f, module, name));
    return f;
}

static CUresult launch(CUfunction f, CUstream stream, const struct cuda_args *args)
{
    struct cuda_args copy = *args;
    void *parameters[] = { &copy };
    const CUresult r =
        cuLaunchKernel(f, 3, 1, 1, CUDA_KERNEL_THREADS, 1, 1, 0, stream, parameters, NULL);

    memset(&copy, 0xee, sizeof(copy)); /* it has been read by now */
    return r;
}

/* Adds `a` and `b` to `dst`, in the current context. */
static CUresult add(CUdeviceptr dst, CUdeviceptr a, CUdeviceptr b)
{
    const struct cuda_args args = {
        .count = COUNT,
        .nsrc = 2,
        .ndst = 1,
        .ngroups = 1,
        .pointers = { a, b, dst },
        .groups = { { .nsrc = 2 } },
    };
    const CUresult r = launch(function("reduce_sum_f32"), NULL, &args);

    return r == CUDA_SUCCESS ? cuStreamSynchronize(NULL) : r;
}

static void fill(void *bytes, uint32_t count, uint64_t seed)
{
    float *values = bytes;

    for (uint32_t i = 0; i < count; i++)
        values[i] = (float)(unit_random(&seed) % 100000) / 7;
}

/* --- kernels --- */

TEST(kernel_names_are_those_of_the_host_s_kernels)
{
    CUmodule module = NULL;
    CUfunction f;
    char name[64];

    WELL(cuModuleLoadData(&module, "any image"));
    for (uint32_t d = 1; d < DTYPE_END; d++)
        for (uint32_t o = 1; o < OPERATOR_END; o++) {
            const bool there = o != OPERATOR_MEAN && kernel_row_plain.reduce[d][o];

            snprintf(name, sizeof(name), "reduce_%s_%s", operator_name(o), dtype_get(d)->name);
            FAILS(cuModuleGetFunction(&f, module, name),
                  there ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
        }
    FAILS(cuModuleGetFunction(&f, module, "reduce_sum"), CUDA_ERROR_NOT_FOUND);
    FAILS(cuModuleGetFunction(&f, module, "reduce_sum_"), CUDA_ERROR_NOT_FOUND);
    FAILS(cuModuleGetFunction(&f, module, "fill"), CUDA_ERROR_NOT_FOUND);
    WELL(cuModuleGetFunction(&f, module, "copy"));
    WELL(cuModuleUnload(module));
    FAILS(launch(f, NULL, &(struct cuda_args){ .count = 1 }), CUDA_ERROR_INVALID_HANDLE);
}

/* A NaN's sign and payload are not the kernels' to choose. */
static void make_nans_alike(void *halves, size_t n)
{
    uint16_t *h = halves;

    for (size_t i = 0; i < n; i++)
        if ((h[i] & 0x7fff) > 0x7c00)
            h[i] = 0x7e00;
}

TEST(kernel_gives_the_host_s_bits_in_groups_too)
{
    static uint8_t expected[BYTES];
    CUdeviceptr in = allocate(5 * BYTES), out = allocate(2 * BYTES);
    struct cuda_args args = {
        .first = 3,
        .count = COUNT - 5,
        .nsrc = 5,
        .ndst = 2,
        .divisor = 5,
        .ngroups = 2,
        .pointers = { in, in + BYTES, in + 2 * BYTES, in + 3 * BYTES, in + 4 * BYTES, out,
                      out + BYTES },
        .groups = { { .nsrc = 2, .wide = 1 }, { .nsrc = 3 } },
    };
    const struct source_group groups[] = { { .nsrc = 2, .wide = true }, { .nsrc = 3 } };
    const void *src[5];
    void *dst[1] = { expected };

    fill(at(in), 5 * COUNT, 7);
    for (int i = 0; i < 5; i++)
        src[i] = at(args.pointers[i]);
    kernel_row_plain.reduce[DTYPE_F16][OPERATOR_SUM](&(struct kernel_args){ .src = src,
                                                                            .dst = dst,
                                                                            .nsrc = 5,
                                                                            .ndst = 1,
                                                                            .first = 3,
                                                                            .count = COUNT - 5,
                                                                            .divisor = 5,
                                                                            .groups = groups,
                                                                            .ngroups = 2 });

    WELL(launch(function("reduce_sum_f16"), NULL, &args));
    WELL(cuStreamSynchronize(NULL));
    make_nans_alike(expected, COUNT);
    make_nans_alike(at(out), 4 * COUNT);
    assert_memory_equal(at(out), expected, BYTES);
    assert_memory_equal(at(out + BYTES), expected, BYTES);
}

TEST(kernel_takes_its_pointers_from_a_table)
{
    CUdeviceptr in = allocate(BYTES), out = allocate(BYTES), table = allocate(8 * (SOURCES + 1));
    CUdeviceptr groups = allocate(SOURCES * sizeof(struct cuda_group));
    struct cuda_args args = { .count = COUNT,
                              .nsrc = SOURCES,
                              .ndst = 1,
                              .ngroups = SOURCES,
                              .pointer_table = at(table),
                              .group_table = at(groups) };

    for (uint32_t i = 0; i < COUNT; i++)
        ((uint64_t *)at(in))[i / 2] = 0x0000000100000001; /* of i32 */
    for (uint32_t i = 0; i < SOURCES; i++) {
        ((uint64_t *)at(table))[i] = in;
        ((struct cuda_group *)at(groups))[i].nsrc = 1;
    }
    ((uint64_t *)at(table))[SOURCES] = out;
    WELL(launch(function("reduce_sum_i32"), NULL, &args));
    WELL(cuStreamSynchronize(NULL));
    assert_int_equal(((int32_t *)at(out))[COUNT - 1], SOURCES);
    assert_int_equal(fake_cuda_live(FAKE_CUDA_MODULES), 1);

    args.pointer_table = NULL; /* they do not fit in there */
    WELL(launch(function("reduce_sum_i32"), NULL, &args));
    FAILS(cuStreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(copy_goes_to_every_destination)
{
    CUdeviceptr in = allocate(BYTES), out = allocate(2 * BYTES);
    const struct cuda_args args = {
        .first = 1, .count = BYTES - 1, .nsrc = 1, .ndst = 2, .pointers = { in, out, out + BYTES }
    };
    const uint64_t before = fake_cuda_kernels();

    memset(at(in), 5, BYTES);
    WELL(launch(function("copy"), NULL, &args));
    WELL(cuStreamSynchronize(NULL));
    assert_int_equal(*(char *)at(out), 0);
    assert_memory_equal(at(out + 1), at(in + 1), BYTES - 1);
    assert_memory_equal(at(out + BYTES + 1), at(in + 1), BYTES - 1);
    assert_int_equal(fake_cuda_kernels(), before + 1);
}

TEST(launch_is_of_one_shape_and_one_context)
{
    const struct cuda_args args = { .count = 0, .nsrc = 1, .ndst = 1 };
    void *parameters[] = { (void *)&args };
    CUfunction f = function("copy");
    CUstream stream;

    FAILS(cuLaunchKernel(f, 0, 1, 1, CUDA_KERNEL_THREADS, 1, 1, 0, NULL, parameters, NULL),
          CUDA_ERROR_INVALID_VALUE);
    FAILS(cuLaunchKernel(f, 1, 1, 1, CUDA_KERNEL_THREADS, 1, 1, 0, NULL, NULL, NULL),
          CUDA_ERROR_INVALID_VALUE);
    WELL(cuCtxSetCurrent(contexts[1]));
    WELL(cuStreamCreate(&stream, 0));
    FAILS(launch(f, stream, &args), CUDA_ERROR_INVALID_HANDLE);
    FAILS(launch(f, NULL, &args), CUDA_ERROR_INVALID_HANDLE);
}

/* --- what may be touched --- */

TEST(kernel_outside_an_allocation_poisons_its_context)
{
    CUdeviceptr a = allocate(BYTES), b = allocate(BYTES - 1), other;

    WELL(add(a, a, a));
    FAILS(add(a, a, b), CUDA_ERROR_ILLEGAL_ADDRESS);
    FAILS(cuMemAlloc_v2(&other, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    FAILS(cuMemFree_v2(a), CUDA_ERROR_ILLEGAL_ADDRESS);

    WELL(cuCtxSetCurrent(contexts[1])); /* which is well */
    other = allocate(BYTES);
    WELL(add(other, other, other));

    WELL(cuDevicePrimaryCtxReset_v2(0));
    WELL(cuDevicePrimaryCtxRetain(&contexts[0], 0));
    WELL(cuCtxSetCurrent(contexts[0]));
    assert_int_equal(fake_cuda_live(FAKE_CUDA_ALLOCATIONS), 1);
    a = allocate(BYTES);
    WELL(add(a, a, a));
}

TEST(kernel_wants_its_elements_aligned)
{
    CUdeviceptr a = allocate(2 * BYTES);

    FAILS(add(a, a, a + 2), CUDA_ERROR_MISALIGNED_ADDRESS);
}

TEST(freed_memory_is_not_there_for_what_waits)
{
    CUdeviceptr a = allocate(BYTES);

    fake_cuda_delay_us(FAKE_CUDA_ALL, HELD_US);
    WELL(cuMemsetD8Async(a, 1, BYTES, NULL));
    WELL(cuMemFree_v2(a));
    fake_cuda_delay_us(FAKE_CUDA_ALL, 0);
    FAILS(cuStreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(host_memory_has_to_be_registered_for_the_context)
{
    void *host = pages(BYTES), *portable = pages(BYTES);
    CUdeviceptr a = allocate(BYTES);

    WELL(cuMemHostRegister_v2(host, BYTES, CU_MEMHOSTREGISTER_DEVICEMAP));
    WELL(cuMemHostRegister_v2(portable, BYTES,
                              CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE));
    fill(host, COUNT, 3);
    WELL(add((uintptr_t)portable, (uintptr_t)host, a));
    assert_memory_equal(host, portable, BYTES);
    WELL(cuCtxSetCurrent(contexts[1]));
    a = allocate(BYTES);
    WELL(add(a, a, (uintptr_t)portable));
    FAILS(add(a, a, (uintptr_t)host), CUDA_ERROR_ILLEGAL_ADDRESS);
    WELL(cuCtxSetCurrent(contexts[0]));
    WELL(cuMemHostUnregister(host));
    WELL(cuMemcpyAsync((uintptr_t)portable, (uintptr_t)host, 1, NULL));
    FAILS(cuStreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    WELL(cuDevicePrimaryCtxReset_v2(0));
    munmap(host, BYTES);
    munmap(portable, BYTES);
}

TEST(other_gpu_is_reached_by_copies_and_once_enabled_by_kernels)
{
    CUdeviceptr near = allocate(BYTES), far;

    WELL(cuCtxSetCurrent(contexts[1]));
    far = allocate(BYTES);
    WELL(cuCtxSetCurrent(contexts[0]));
    fill(at(far), COUNT, 9);
    WELL(cuMemcpyAsync(near, far, BYTES, NULL));
    WELL(cuStreamSynchronize(NULL));
    assert_memory_equal(at(near), at(far), BYTES);

    FAILS(cuCtxEnablePeerAccess(contexts[0], 0), CUDA_ERROR_INVALID_CONTEXT);
    WELL(cuCtxEnablePeerAccess(contexts[1], 0));
    FAILS(cuCtxEnablePeerAccess(contexts[1], 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    WELL(add(near, near, far));
    WELL(cuCtxSetCurrent(contexts[1])); /* not the other way */
    FAILS(add(far, far, near), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(mapped_memory_is_touched_by_whom_it_says)
{
    const CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                       .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
    const CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, 1 },
                                     CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUmemGenericAllocationHandle handle;
    CUdeviceptr place;

    WELL(cuMemCreate(&handle, GRANULE, &prop, 0));
    WELL(cuMemAddressReserve(&place, 2 * GRANULE, 0, 0, 0));
    WELL(cuMemMap(place, GRANULE, 0, handle, 0));
    WELL(cuMemMap(place + GRANULE, GRANULE, 0, handle, 0));
    WELL(cuMemSetAccess(place, 2 * GRANULE, &access, 1));
    WELL(cuMemsetD8Async(place + GRANULE - 8, 3, 16, NULL)); /* of both */
    WELL(cuStreamSynchronize(NULL));
    assert_int_equal(*(char *)at(place), 3);
    WELL(cuCtxSetCurrent(contexts[1]));
    WELL(add(place, place, place));
    WELL(cuCtxSetCurrent(contexts[0]));
    FAILS(add(place, place, place), CUDA_ERROR_ILLEGAL_ADDRESS);
    WELL(cuDevicePrimaryCtxReset_v2(0));
    assert_int_equal(fake_cuda_live(FAKE_CUDA_MAPPINGS), 0);
    WELL(cuMemAddressFree(place, 2 * GRANULE));
}

/* --- failures on demand --- */

TEST(failure_strikes_the_nth_call_once)
{
    CUdeviceptr a;

    fake_cuda_fail("cuMemAlloc_v2", 2, CUDA_ERROR_OUT_OF_MEMORY);
    a = allocate(1);
    FAILS(cuMemAlloc_v2(&a, 1), CUDA_ERROR_OUT_OF_MEMORY);
    a = allocate(1);
    fake_cuda_fail("cuMemAlloc_v2", 0, CUDA_ERROR_UNKNOWN);
    FAILS(cuMemAlloc_v2(&a, 1), CUDA_ERROR_UNKNOWN);
    FAILS(cuMemAlloc_v2(&a, 1), CUDA_ERROR_UNKNOWN);
    fake_cuda_fail(NULL, 0, 0);
    a = allocate(1);
}

TEST(failure_that_is_sticky_poisons)
{
    CUdeviceptr a = allocate(BYTES), b;

    fake_cuda_fail("cuLaunchKernel", 1, CUDA_ERROR_LAUNCH_FAILED);
    FAILS(add(a, a, a), CUDA_ERROR_LAUNCH_FAILED);
    FAILS(cuMemAlloc_v2(&b, 1), CUDA_ERROR_LAUNCH_FAILED);
}

TEST(failure_of_a_kernel_shows_later_and_leaves_events_pending)
{
    CUevent before = new_event(CU_EVENT_DISABLE_TIMING), after = new_event(CU_EVENT_DISABLE_TIMING);
    CUdeviceptr a = allocate(BYTES);
    const struct cuda_args args = { .count = 8, .nsrc = 1, .ndst = 1, .pointers = { a, a + 8 } };
    CUfunction f = function("copy");

    fake_cuda_fail("kernel", 2, CUDA_ERROR_ECC_UNCORRECTABLE);
    fake_cuda_delay_us(NULL, HELD_US);
    WELL(cuEventRecord(before, NULL));
    WELL(launch(f, NULL, &args));
    WELL(launch(f, NULL, &args));
    WELL(cuEventRecord(after, NULL));
    FAILS(cuEventQuery(after), CUDA_ERROR_NOT_READY);
    fake_cuda_delay_us(NULL, 0);
    FAILS(event_await(after), CUDA_ERROR_ECC_UNCORRECTABLE);
    FAILS(cuEventQuery(before), CUDA_ERROR_ECC_UNCORRECTABLE);
}

TEST(poison_comes_at_once)
{
    CUdeviceptr a;

    fake_cuda_fail("poison", 1, CUDA_ERROR_ILLEGAL_INSTRUCTION);
    a = allocate(1);
    WELL(cuCtxSetCurrent(contexts[1]));
    FAILS(cuMemAlloc_v2(&a, 1), CUDA_ERROR_ILLEGAL_INSTRUCTION);
}

TEST(reset_ends_what_waits_for_ever)
{
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr cell = allocate(4);

    WELL(cuStreamWaitValue32_v2(stream, cell, 1, CU_STREAM_WAIT_VALUE_EQ));
    fake_cuda_delay_us(NULL, HELD_US);
    WELL(cuMemsetD8Async(cell, 0, 4, NULL));
    WELL(cuDevicePrimaryCtxReset_v2(0));
    WELL(cuDevicePrimaryCtxRetain(&contexts[0], 0));
    FAILS(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
    WELL(cuStreamQuery(NULL));
}

/* The file that FAKE_CUDA_CONTROL names, new each time. */
static void control(const char *words)
{
    char part[128];
    FILE *f;

    snprintf(part, sizeof(part), "%s.new", getenv("FAKE_CUDA_CONTROL"));
    f = fopen(part, "we");
    assert_non_null(f);
    fputs(words, f);
    fclose(f);
    assert_int_equal(rename(part, getenv("FAKE_CUDA_CONTROL")), 0);
}

TEST(control_file_is_read_again_when_it_changes)
{
    char words[256], line[64] = "", path[128];
    CUdeviceptr a;
    FILE *f;

    control("cuMemAlloc_v2:2:2");
    a = allocate(1);
    FAILS(cuMemAlloc_v2(&a, 1), CUDA_ERROR_OUT_OF_MEMORY);
    a = allocate(1);
    control("cuMemAlloc_v2:0:1\ncuMemFree_v2:1:999,sticky");
    FAILS(cuMemAlloc_v2(&a, 1), CUDA_ERROR_INVALID_VALUE);
    snprintf(path, sizeof(path), "%s.report", getenv("FAKE_CUDA_CONTROL"));
    snprintf(words, sizeof(words), "report:%s poison:0:719", path);
    control(words);
    FAILS(cuMemFree_v2(a), CUDA_ERROR_LAUNCH_FAILED);
    f = fopen(path, "re");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof(line), f));
    assert_string_equal(line, "contexts 2\n");
    assert_non_null(fgets(line, sizeof(line), f));
    assert_string_equal(line, "allocations 2\n");
    fclose(f);
    unlink(path);
    control("");
    WELL(cuDevicePrimaryCtxReset_v2(0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(kernel_names_are_those_of_the_host_s_kernels, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(kernel_gives_the_host_s_bits_in_groups_too, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(kernel_takes_its_pointers_from_a_table, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(copy_goes_to_every_destination, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(launch_is_of_one_shape_and_one_context, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(kernel_outside_an_allocation_poisons_its_context,
                                        fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(kernel_wants_its_elements_aligned, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(freed_memory_is_not_there_for_what_waits, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(host_memory_has_to_be_registered_for_the_context,
                                        fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(other_gpu_is_reached_by_copies_and_once_enabled_by_kernels,
                                        fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(mapped_memory_is_touched_by_whom_it_says, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(failure_strikes_the_nth_call_once, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(failure_that_is_sticky_poisons, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(failure_of_a_kernel_shows_later_and_leaves_events_pending,
                                        fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(poison_comes_at_once, fake_set_up, fake_tear_down),
        cmocka_unit_test_setup_teardown(reset_ends_what_waits_for_ever, fake_set_up,
                                        fake_tear_down),
        cmocka_unit_test_setup_teardown(control_file_is_read_again_when_it_changes, fake_set_up,
                                        fake_tear_down),
    };
    char control_path[] = "/tmp/fake_cuda-XXXXXX";
    const int fd = mkstemp(control_path);
    int r = 1;

    if (fd < 0)
        return 1;
    close(fd);
    setenv("FAKE_CUDA_CONTROL", control_path, 1);
    if (fake_begin() == CUDA_SUCCESS)
        r = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(control_path);
    return r;
}
