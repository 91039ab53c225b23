/*
 * The part of NVIDIA's driver interface that daemon and client use, found in libcuda.so.1 at run
 * time: neither is built against CUDA, and both run where there is no driver. Names, types and
 * numbers are those of cuda.h 13.0; a test compares them with it where it is installed.
 */
#ifndef SHARED_CUDA_H
#define SHARED_CUDA_H

#include <stddef.h>

#include "shared/base.h"

struct error;

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUuuid_st {
    char bytes[16];
} CUuuid;
typedef struct CUipcMemHandle_st {
    char reserved[64];
} CUipcMemHandle;
typedef struct CUipcEventHandle_st {
    char reserved[64];
} CUipcEventHandle;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_ECC_UNCORRECTABLE = 214,
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
    CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
    CUDA_ERROR_CONTAINED = 226,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
    CUDA_ERROR_LAUNCH_TIMEOUT = 702,
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_ASSERT = 710,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
    CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
    CUDA_ERROR_MISALIGNED_ADDRESS = 716,
    CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
    CUDA_ERROR_INVALID_PC = 718,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_TENSOR_MEMORY_LEAK = 721,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_MPS_CLIENT_TERMINATED = 810,
    CUDA_ERROR_EXTERNAL_DEVICE = 911,
    CUDA_ERROR_UNKNOWN = 999,
};

enum {
    CU_CTX_SCHED_AUTO = 0,
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_EVENT_INTERPROCESS = 4,
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,
    CU_MEMHOSTREGISTER_PORTABLE = 1,
    CU_MEMHOSTREGISTER_DEVICEMAP = 2,
    CU_STREAM_WAIT_VALUE_GEQ = 0,
    CU_STREAM_WAIT_VALUE_EQ = 1,
    CU_STREAM_WRITE_VALUE_DEFAULT = 0, /* behind what was written before, for all who look */
};

enum CUdevice_attribute_enum {
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
    CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS = 122,
};
typedef enum CUdevice_attribute_enum CUdevice_attribute;

enum CUpointer_attribute_enum {
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2, /* unsigned: CU_MEMORYTYPE_* */
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,  /* unsigned: 0 or 1 */
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10, /* unsigned: 0 or 1 */
};
typedef enum CUpointer_attribute_enum CUpointer_attribute;

enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2 };

enum CUmemAllocationType_enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1 };
enum CUmemLocationType_enum { CU_MEM_LOCATION_TYPE_DEVICE = 1 };
enum CUmemAccess_flags_enum { CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };
enum CUmemAllocationHandleType_enum { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1 };
typedef enum CUmemAllocationHandleType_enum CUmemAllocationHandleType;

typedef struct CUmemLocation_st {
    enum CUmemLocationType_enum type;
    int id;
} CUmemLocation;

typedef struct CUmemAccessDesc_st {
    CUmemLocation location;
    enum CUmemAccess_flags_enum flags;
} CUmemAccessDesc;

typedef struct CUmemAllocationProp_st {
    enum CUmemAllocationType_enum type;
    enum CUmemAllocationHandleType_enum requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType;
        unsigned char gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;

/*
 * X(name as the library exports it, arguments); all return a CUresult. cuEventQuery,
 * cuStreamQuery: CUDA_ERROR_NOT_READY is an answer, not an error.
 */
#define CUDA_LIST(X)                                                                               \
    X(cuInit, (unsigned flags))                                                                    \
    X(cuGetErrorName, (CUresult error, const char **ret))                                          \
    X(cuDeviceGetCount, (int *ret))                                                                \
    X(cuDeviceGet, (CUdevice *ret, int ordinal))                                                   \
    X(cuDeviceGetName, (char *ret, int len, CUdevice device))                                      \
    X(cuDeviceGetUuid_v2, (CUuuid *ret, CUdevice device))                                          \
    X(cuDeviceGetAttribute, (int *ret, CUdevice_attribute attribute, CUdevice device))             \
    X(cuDeviceCanAccessPeer, (int *ret, CUdevice device, CUdevice peer))                           \
    X(cuDevicePrimaryCtxRetain, (CUcontext *ret, CUdevice device))                                 \
    X(cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                             \
    X(cuDevicePrimaryCtxReset_v2, (CUdevice device))                                               \
    X(cuCtxGetCurrent, (CUcontext *ret))                                                           \
    X(cuCtxSetCurrent, (CUcontext context))                                                        \
    X(cuCtxPushCurrent_v2, (CUcontext context))                                                    \
    X(cuCtxPopCurrent_v2, (CUcontext *ret))                                                        \
    X(cuCtxGetDevice, (CUdevice *ret))                                                             \
    X(cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags))                                     \
    X(cuMemGetInfo_v2, (size_t *ret_free, size_t *ret_total))                                      \
    X(cuMemAlloc_v2, (CUdeviceptr *ret, size_t bytes))                                             \
    X(cuMemFree_v2, (CUdeviceptr ptr))                                                             \
    X(cuMemGetAddressRange_v2, (CUdeviceptr *ret_base, size_t *ret_bytes, CUdeviceptr ptr))        \
    X(cuMemHostRegister_v2, (void *ptr, size_t bytes, unsigned flags))                             \
    X(cuMemHostUnregister, (void *ptr))                                                            \
    X(cuMemHostGetDevicePointer_v2, (CUdeviceptr *ret, void *ptr, unsigned flags))                 \
    X(cuMemcpyAsync, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream))            \
    X(cuMemcpyHtoDAsync_v2, (CUdeviceptr dst, const void *src, size_t bytes, CUstream stream))     \
    X(cuMemcpyDtoHAsync_v2, (void *dst, CUdeviceptr src, size_t bytes, CUstream stream))           \
    X(cuMemsetD8Async, (CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream))      \
    X(cuPointerGetAttribute, (void *ret, CUpointer_attribute attribute, CUdeviceptr ptr))          \
    X(cuIpcGetMemHandle, (CUipcMemHandle *ret, CUdeviceptr ptr))                                   \
    X(cuIpcOpenMemHandle_v2, (CUdeviceptr *ret, CUipcMemHandle handle, unsigned flags))            \
    X(cuIpcCloseMemHandle, (CUdeviceptr ptr))                                                      \
    X(cuIpcGetEventHandle, (CUipcEventHandle *ret, CUevent event))                                 \
    X(cuIpcOpenEventHandle, (CUevent *ret, CUipcEventHandle handle))                               \
    X(cuMemCreate, (CUmemGenericAllocationHandle *ret, size_t bytes,                               \
                    const CUmemAllocationProp *prop, unsigned long long flags))                    \
    X(cuMemRelease, (CUmemGenericAllocationHandle handle))                                         \
    X(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle *ret, void *ptr))                 \
    X(cuMemExportToShareableHandle, (void *ret, CUmemGenericAllocationHandle handle,               \
                                     CUmemAllocationHandleType type, unsigned long long flags))    \
    X(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle *ret, void *os_handle,         \
                                       CUmemAllocationHandleType type))                            \
    X(cuMemAddressReserve, (CUdeviceptr *ret, size_t bytes, size_t alignment, CUdeviceptr at,      \
                            unsigned long long flags))                                             \
    X(cuMemAddressFree, (CUdeviceptr ptr, size_t bytes))                                           \
    X(cuMemMap, (CUdeviceptr ptr, size_t bytes, size_t offset,                                     \
                 CUmemGenericAllocationHandle handle, unsigned long long flags))                   \
    X(cuMemUnmap, (CUdeviceptr ptr, size_t bytes))                                                 \
    X(cuMemSetAccess, (CUdeviceptr ptr, size_t bytes, const CUmemAccessDesc *desc, size_t count))  \
    X(cuStreamCreate, (CUstream *ret, unsigned flags))                                             \
    X(cuStreamDestroy_v2, (CUstream stream))                                                       \
    X(cuStreamQuery, (CUstream stream))                                                            \
    X(cuStreamSynchronize, (CUstream stream))                                                      \
    X(cuStreamWaitValue32_v2, (CUstream stream, CUdeviceptr at, unsigned value, unsigned flags))   \
    X(cuStreamWriteValue32_v2, (CUstream stream, CUdeviceptr at, unsigned value, unsigned flags))  \
    X(cuStreamGetCtx, (CUstream stream, CUcontext *ret))                                           \
    X(cuEventCreate, (CUevent *ret, unsigned flags))                                               \
    X(cuEventDestroy_v2, (CUevent event))                                                          \
    X(cuEventRecord, (CUevent event, CUstream stream))                                             \
    X(cuEventQuery, (CUevent event))                                                               \
    X(cuModuleLoadData, (CUmodule *ret, const void *image))                                        \
    X(cuModuleUnload, (CUmodule module))                                                           \
    X(cuModuleGetFunction, (CUfunction *ret, CUmodule module, const char *name))                   \
    X(cuLaunchKernel,                                                                              \
      (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,   \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,                 \
       void **parameters, void **extra))

struct cuda {
#define CUDA_MEMBER(name, arguments) CUresult(*name) arguments;
    CUDA_LIST(CUDA_MEMBER)
#undef CUDA_MEMBER
};

/*
 * The driver, loaded and initialised once a process; it stays. Not for several threads at once.
 * Return: 0, or -ERROR_NOT_FOUND (no driver, or one without a GPU), -ERROR_SYSTEM (one that lacks a
 * function or does not start), worded in `e`; then the next call tries again.
 */
int cuda_load(const struct cuda **ret, struct error *e);

/* "CUDA_ERROR_ILLEGAL_ADDRESS"; never NULL. */
const char *cuda_error_name(const struct cuda *cuda, CUresult error);

/* Whether a context that has once returned it is of no more use (cuda.h, at each of them). */
bool cuda_error_is_sticky(CUresult error);

#define CUDA_UUID_TEXT 41 /* "GPU-01234567-89ab-cdef-0123-456789abcdef" */
void cuda_uuid_text(const uint8_t uuid[16], char ret[CUDA_UUID_TEXT]);
/* Return: whether it was one. */
bool cuda_uuid_parse(const char *text, uint8_t ret[16]);

#endif
