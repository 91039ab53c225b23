/*
 * shared/cuda.h against NVIDIA's: numbers, sizes, places, signatures. Ours is included in a
 * function, where its names hide those of the same name around it.
 */
#include <cuda.h>
#include <stdio.h>
#include <string.h>

#include "shared/base.h"
#include "tests/unit/unit.h"

/* clang-format off */
#define CONSTANTS(X)                                                                               \
    X(CUDA_SUCCESS)                                                                                \
    X(CUDA_ERROR_INVALID_VALUE)                                                                    \
    X(CUDA_ERROR_OUT_OF_MEMORY)                                                                    \
    X(CUDA_ERROR_NOT_INITIALIZED)                                                                  \
    X(CUDA_ERROR_DEINITIALIZED)                                                                    \
    X(CUDA_ERROR_NO_DEVICE)                                                                        \
    X(CUDA_ERROR_INVALID_DEVICE)                                                                   \
    X(CUDA_ERROR_INVALID_IMAGE)                                                                    \
    X(CUDA_ERROR_INVALID_CONTEXT)                                                                  \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU)                                                                \
    X(CUDA_ERROR_ECC_UNCORRECTABLE)                                                                \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)                                                          \
    X(CUDA_ERROR_NVLINK_UNCORRECTABLE)                                                             \
    X(CUDA_ERROR_CONTAINED)                                                                        \
    X(CUDA_ERROR_INVALID_HANDLE)                                                                   \
    X(CUDA_ERROR_NOT_FOUND)                                                                        \
    X(CUDA_ERROR_NOT_READY)                                                                        \
    X(CUDA_ERROR_ILLEGAL_ADDRESS)                                                                  \
    X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)                                                          \
    X(CUDA_ERROR_LAUNCH_TIMEOUT)                                                                   \
    X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)                                                      \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED)                                                             \
    X(CUDA_ERROR_ASSERT)                                                                           \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)                                                   \
    X(CUDA_ERROR_HARDWARE_STACK_ERROR)                                                             \
    X(CUDA_ERROR_ILLEGAL_INSTRUCTION)                                                              \
    X(CUDA_ERROR_MISALIGNED_ADDRESS)                                                               \
    X(CUDA_ERROR_INVALID_ADDRESS_SPACE)                                                            \
    X(CUDA_ERROR_INVALID_PC)                                                                       \
    X(CUDA_ERROR_LAUNCH_FAILED)                                                                    \
    X(CUDA_ERROR_TENSOR_MEMORY_LEAK)                                                               \
    X(CUDA_ERROR_NOT_PERMITTED)                                                                    \
    X(CUDA_ERROR_NOT_SUPPORTED)                                                                    \
    X(CUDA_ERROR_MPS_CLIENT_TERMINATED)                                                            \
    X(CUDA_ERROR_EXTERNAL_DEVICE)                                                                  \
    X(CUDA_ERROR_UNKNOWN)                                                                          \
    X(CU_CTX_SCHED_AUTO)                                                                           \
    X(CU_STREAM_NON_BLOCKING)                                                                      \
    X(CU_EVENT_DISABLE_TIMING)                                                                     \
    X(CU_EVENT_INTERPROCESS)                                                                       \
    X(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)                                                          \
    X(CU_MEMHOSTREGISTER_PORTABLE)                                                                 \
    X(CU_MEMHOSTREGISTER_DEVICEMAP)                                                                \
    X(CU_STREAM_WAIT_VALUE_GEQ)                                                                    \
    X(CU_STREAM_WAIT_VALUE_EQ)                                                                     \
    X(CU_STREAM_WRITE_VALUE_DEFAULT)                                                               \
    X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)                                                    \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)                                                \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)                                                \
    X(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)                                                      \
    X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)                             \
    X(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)                                           \
    X(CU_POINTER_ATTRIBUTE_MEMORY_TYPE)                                                            \
    X(CU_POINTER_ATTRIBUTE_IS_MANAGED)                                                             \
    X(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)                                                         \
    X(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)                                             \
    X(CU_MEMORYTYPE_HOST)                                                                          \
    X(CU_MEMORYTYPE_DEVICE)                                                                        \
    X(CU_MEM_ALLOCATION_TYPE_PINNED)                                                               \
    X(CU_MEM_LOCATION_TYPE_DEVICE)                                                                 \
    X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE)                                                          \
    X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)

#define TYPES(X)                                                                                   \
    X(CUresult)                                                                                    \
    X(CUdevice)                                                                                    \
    X(CUdeviceptr)                                                                                 \
    X(CUmemGenericAllocationHandle)                                                                \
    X(CUcontext)                                                                                   \
    X(CUuuid)                                                                                      \
    X(CUipcMemHandle)                                                                              \
    X(CUipcEventHandle)                                                                            \
    X(CUdevice_attribute)                                                                          \
    X(CUpointer_attribute)                                                                         \
    X(CUmemAllocationHandleType)                                                                   \
    X(CUmemLocation)                                                                               \
    X(CUmemAccessDesc)                                                                             \
    X(CUmemAllocationProp)

#define MEMBERS(X)                                                                                 \
    X(CUuuid, bytes)                                                                               \
    X(CUipcMemHandle, reserved)                                                                    \
    X(CUipcEventHandle, reserved)                                                                  \
    X(CUmemLocation, type)                                                                         \
    X(CUmemLocation, id)                                                                           \
    X(CUmemAccessDesc, location)                                                                   \
    X(CUmemAccessDesc, flags)                                                                      \
    X(CUmemAllocationProp, type)                                                                   \
    X(CUmemAllocationProp, requestedHandleTypes)                                                   \
    X(CUmemAllocationProp, location)                                                               \
    X(CUmemAllocationProp, win32HandleMetaData)                                                    \
    X(CUmemAllocationProp, allocFlags)
/* clang-format on */

#define CONSTANT_ROW(name) { #name, name },
#define SIZE_ROW(type)     { #type, sizeof(type) },
#define MEMBER_ROW(type, member)                                                                   \
    { #type "." #member, offsetof(type, member) * 1000 + sizeof(((type *)NULL)->member) },
#define FACTS                                                                                      \
    {                                                                                              \
        CONSTANTS(CONSTANT_ROW) TYPES(SIZE_ROW) MEMBERS(MEMBER_ROW)                                \
    }

struct fact {
    const char *name;
    long long number;
};

static const struct fact theirs[] = FACTS;

#undef CU_MEMHOSTREGISTER_PORTABLE
#undef CU_MEMHOSTREGISTER_DEVICEMAP
#pragma GCC diagnostic ignored "-Wshadow"

static const struct fact *facts_of_ours(void)
{
#include "shared/cuda.h"
    static const struct fact ours[] = FACTS;

    _Static_assert(ARRAY_SIZE(ours) == ARRAY_SIZE(theirs), "the same list");
    return ours;
}

/* In the names of their types. */
#define SIGNATURE_IS_THEIRS(name, arguments)                                                       \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&name), CUresult(*) arguments), #name);
CUDA_LIST(SIGNATURE_IS_THEIRS)

TEST(numbers_sizes_and_places_are_theirs)
{
    const struct fact *ours = facts_of_ours();

    for (size_t i = 0; i < ARRAY_SIZE(theirs); i++)
        if (ours[i].number != theirs[i].number)
            fail_msg("%s is %lld, not %lld", ours[i].name, theirs[i].number, ours[i].number);
}

static bool is_compared(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(theirs); i++)
        if (strcmp(theirs[i].name, name) == 0)
            return true;
    return false;
}

/* Where a line of ours says "NAME = number". */
TEST(no_number_is_left_out)
{
    char line[256], name[128];
    unsigned n = 0;
    FILE *f = fopen(CUDA_HEADER, "re");

    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        const char *start = strstr(line, "CU");
        int number;

        if (!start || sscanf(start, "%127[A-Z0-9a-z_] = %d", name, &number) != 2)
            continue;
        n++;
        if (!is_compared(name))
            fail_msg("%s is not compared", name);
    }
    fclose(f);
    assert_true(n > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_sizes_and_places_are_theirs),
        cmocka_unit_test(no_number_is_left_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
