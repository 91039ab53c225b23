/* NCCL, found at run time, by the few of its functions that an all-reduce takes. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "shared/base.h"
#include "tests/end_to_end/gpus.h"
#include "tests/gpu/measure.h"

typedef struct ncclComm *ncclComm_t;

enum { NCCL_SUM = 0, NCCL_FLOAT32 = 7 };

#define PEER_LIST(X)                                                                               \
    X(ncclCommInitAll, (ncclComm_t * ret, int n, const int *devices))                              \
    X(ncclCommDestroy, (ncclComm_t comm))                                                          \
    X(ncclGroupStart, (void))                                                                      \
    X(ncclGroupEnd, (void))                                                                        \
    X(ncclAllReduce, (const void *in, void *out, size_t count, int dtype, int op, ncclComm_t comm, \
                      CUstream stream))

static struct {
    const char *(*ncclGetErrorString)(int error);
    const char *(*ncclGetLastError)(ncclComm_t comm); /* NULL: an old one has none */
#define PEER_MEMBER(name, arguments) int(*name) arguments;
    PEER_LIST(PEER_MEMBER)
#undef PEER_MEMBER
} nccl;

struct peer_rank {
    ncclComm_t comm;
    CUstream stream;
    CUdeviceptr in, out;
};

/* Return: whether there is one that has them all. */
static bool find(struct board *b)
{
    bool found = true;
    void *library;

    if (gpus_are_fake()) {
        snprintf(b->peer, sizeof(b->peer), "NCCL takes no driver but NVIDIA's");
        return false;
    }
    library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(b->peer, sizeof(b->peer), "no libnccl.so.2");
        return false;
    }
#define PEER_FIND(name, arguments)                                                                 \
    *(void **)&nccl.name = dlsym(library, #name);                                                  \
    found = found && nccl.name;
    PEER_LIST(PEER_FIND)
    PEER_FIND(ncclGetErrorString, )
#undef PEER_FIND
    *(void **)&nccl.ncclGetLastError = dlsym(library, "ncclGetLastError");
    if (!found)
        snprintf(b->peer, sizeof(b->peer), "libnccl.so.2 lacks a function");
    return found;
}

static const char *why(int error)
{
    const char *last = nccl.ncclGetLastError ? nccl.ncclGetLastError(NULL) : NULL;

    return last && *last ? last : nccl.ncclGetErrorString(error);
}

static int call_all(struct peer_rank *ranks, uint32_t n, uint64_t bytes)
{
    int r = nccl.ncclGroupStart();

    for (uint32_t i = 0; i < n && r == 0; i++)
        r = nccl.ncclAllReduce((void *)(uintptr_t)ranks[i].in, (void *)(uintptr_t)ranks[i].out,
                               bytes / sizeof(float), NCCL_FLOAT32, NCCL_SUM, ranks[i].comm,
                               ranks[i].stream);
    return nccl.ncclGroupEnd() || r;
}

static int time_size(struct board *b, struct peer_rank *ranks, uint32_t size)
{
    const uint32_t calls = measure_calls(b->bytes[size]);
    uint64_t ns[MEASURE_CALLS];

    for (uint32_t call = 0; call <= calls; call++) { /* the first warms up */
        const uint64_t start = measure_now_ns();
        int r = call_all(ranks, b->nranks, b->bytes[size]);

        if (r)
            return r;
        for (uint32_t i = 0; i < b->nranks; i++) {
            gpus_enter(i);
            CU(cuStreamSynchronize(ranks[i].stream));
        }
        if (call)
            ns[call - 1] = measure_now_ns() - start;
    }
    b->peer_ns[size] = measure_median(ns, calls);
    return 0;
}

void measure_peer(struct board *b)
{
    struct peer_rank ranks[MEASURE_RANKS] = { 0 };
    ncclComm_t comms[MEASURE_RANKS];
    int devices[MEASURE_RANKS], r;

    if (!find(b))
        return;
    for (uint32_t i = 0; i < b->nranks; i++)
        devices[i] = (int)(i % gpus.count);
    r = nccl.ncclCommInitAll(comms, (int)b->nranks, devices);
    if (r) {
        snprintf(b->peer, sizeof(b->peer), "NCCL refuses %u ranks on %u GPU%s: %s", b->nranks,
                 gpus.count, gpus.count == 1 ? "" : "s", why(r));
        b->peer[strcspn(b->peer, "\n")] = '\0';
        return;
    }
    for (uint32_t i = 0; i < b->nranks; i++) {
        gpus_enter(i);
        ranks[i].comm = comms[i];
        ranks[i].in = gpus_allocate(b->bytes[b->nsizes - 1]);
        ranks[i].out = gpus_allocate(b->bytes[b->nsizes - 1]);
        CU(cuStreamCreate(&ranks[i].stream, CU_STREAM_NON_BLOCKING));
    }
    for (uint32_t size = 0; size < b->nsizes && r == 0; size++)
        r = time_size(b, ranks, size);
    if (r)
        snprintf(b->peer, sizeof(b->peer), "NCCL fails: %s", why(r));
    for (uint32_t i = 0; i < b->nranks; i++)
        nccl.ncclCommDestroy(comms[i]);
}
