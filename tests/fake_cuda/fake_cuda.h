/*
 * A libcuda.so.1 for tests, without a GPU: what shared/cuda.h lists, on host memory and threads.
 * Programs that direct it link `fake_cuda_lib`; others find it by LD_LIBRARY_PATH.
 *
 * Device memory is a memfd mapped here, streams are threads, kernels are the host's. It is stricter
 * than the driver where that finds mistakes:
 *   - cuMemcpyAsync() and kernels touch device memory and registered host memory alone; anything
 *     else is CUDA_ERROR_ILLEGAL_ADDRESS, which is sticky. Only cuMemcpyHtoD/DtoH take pageable
 *     memory, and are done with it on return.
 *   - freeing, closing, unregistering do not wait for queued work: that finds nothing there then.
 *   - kernels touch another GPU's memory only with peer access (cuCtxEnablePeerAccess(), access of
 *     cuMemSetAccess(), or an import into the kernel's own context).
 *   - cuIpcGetMemHandle() takes the start of an allocation alone.
 *   - a record that a process left pending when it died, or when its context was poisoned, stays
 * so.
 *   - cuDevicePrimaryCtxReset_v2(), and the last release, take everything of the context along, and
 *     the memory of cuMemCreate() on that GPU. Its calls return CUDA_ERROR_CONTEXT_IS_DESTROYED
 *     before it is retained again; the handle is the same one.
 *   - in a forked child nothing works (CUDA_ERROR_NOT_INITIALIZED).
 *
 * Environment, read by cuInit() unless it says otherwise:
 *   FAKE_CUDA_DEVICES     GPUs of the machine, 0 to 8; 2. Their UUIDs are the same everywhere.
 *   CUDA_VISIBLE_DEVICES  which of them there are here, by their numbers in the machine, as "1,0"
 *   FAKE_CUDA_PEERS       "no": no GPU reaches another's memory
 *   FAKE_CUDA_VALUES      "no": no stream writes values (cuStreamWriteValue32_v2())
 *   FAKE_CUDA_MEMORY      bytes of a GPU; 16 GiB
 *   FAKE_CUDA_EXPORTABLE  "no": as fake_cuda_exportable(false)
 *   FAKE_CUDA_DELAY_US    as fake_cuda_delay_us(FAKE_CUDA_ALL, ...)
 *   FAKE_CUDA_FAIL        failures, in words separated by blanks; see below
 *   FAKE_CUDA_CONTROL     a file with more of them. It is read again at every call that finds it
 *                         changed; all that came from it before is forgotten then. Rename a
 * complete file to this name. Words: NAME:NTH:CODE         the NTH call of NAME from now on returns
 * CODE and does nothing; NTH 0: all do. A sticky code poisons the current context besides;
 * CODE,sticky makes any code do so. NAME "kernel": the NTH kernel that runs, on its stream.
 *   poison:ORDINAL:CODE   poisons a GPU's context at once (FAKE_CUDA_CONTROL and fake_cuda_fail())
 *   delay:US              as fake_cuda_delay_us(FAKE_CUDA_ALL, US)
 *   report:PATH           writes the numbers of fake_cuda_live() there, "name number" a line
 */
#ifndef TESTS_FAKE_CUDA_FAKE_CUDA_H
#define TESTS_FAKE_CUDA_FAKE_CUDA_H

#include "shared/cuda.h"

#define FAKE_CUDA_API __attribute__((visibility("default")))

/* For who links it; what goes by cuda_load() finds the same library. */
#define FAKE_PROTOTYPE(name, arguments) FAKE_CUDA_API CUresult name arguments;
CUDA_LIST(FAKE_PROTOTYPE)
#undef FAKE_PROTOTYPE

/* X(ID, name): what a process holds. */
#define FAKE_CUDA_LIVE_LIST(X)                                                                     \
    X(CONTEXTS, contexts)           /* retained ones, each once */                                 \
    X(ALLOCATIONS, allocations)     /* of cuMemAlloc_v2() */                                       \
    X(IMPORTS, imports)             /* of cuIpcOpenMemHandle_v2(), each once */                    \
    X(HANDLES, handles)             /* of cuMemCreate() or imported, released ones while mapped */ \
    X(MAPPINGS, mappings)           /* of cuMemMap() */                                            \
    X(RESERVATIONS, reservations)   /* of cuMemAddressReserve() */                                 \
    X(REGISTRATIONS, registrations) /* of cuMemHostRegister_v2() */                                \
    X(STREAMS, streams)                                                                            \
    X(EVENTS, events) /* imported ones too */                                                      \
    X(MODULES, modules)

enum fake_cuda_live {
#define FAKE_CUDA_LIVE_ENUM(ID, name) FAKE_CUDA_##ID,
    FAKE_CUDA_LIVE_LIST(FAKE_CUDA_LIVE_ENUM)
#undef FAKE_CUDA_LIVE_ENUM
        FAKE_CUDA_LIVE_END
};

FAKE_CUDA_API unsigned fake_cuda_live(enum fake_cuda_live what);

/* Whether allocations from now on can be handed over, as those of memory pools cannot. */
FAKE_CUDA_API void fake_cuda_exportable(bool exportable);

/* Whether allocations from now on say that they are managed memory. */
FAKE_CUDA_API void fake_cuda_managed(bool managed);

/* As the word "name:nth:code"; replaces nothing. fake_cuda_fail(NULL, 0, 0) forgets them all. */
FAKE_CUDA_API void fake_cuda_fail(const char *name, unsigned nth, CUresult code);

/*
 * Whatever a stream does from now on takes at least as long; what it is at has to, too. Lower it,
 * and what waits goes on. For one stream, or all of this process: the longer one counts.
 */
#define FAKE_CUDA_ALL ((CUstream)(intptr_t)-1)
FAKE_CUDA_API void fake_cuda_delay_us(CUstream stream, uint64_t us);

/* Kernels that have run to the end in this process. */
FAKE_CUDA_API uint64_t fake_cuda_kernels(void);

#endif
