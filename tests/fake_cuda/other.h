/* Another process that uses the tests' driver, one request at a time. */
#ifndef TESTS_FAKE_CUDA_OTHER_H
#define TESTS_FAKE_CUDA_OTHER_H

#include <sys/types.h>

#include "tests/fake_cuda/fake_cuda.h"

enum request {
    OTHER_UUID,     /* of GPU `value`, into bytes */
    OTHER_ALLOCATE, /* `value` bytes, on the first GPU; its handle into bytes */
    OTHER_FREE,     /* the allocation */
    OTHER_WRITE,    /* `value` into its first byte */
    OTHER_READ,     /* that byte into value */
    OTHER_OPEN,     /* the memory that bytes are the handle of, into value */
    OTHER_EVENT,    /* a new one; its handle into bytes */
    OTHER_HOLD,     /* its streams, if `value`; or lets go of them */
    OTHER_RECORD,   /* the event */
    OTHER_QUERY,    /* the event */
    OTHER_CREATE,   /* memory by cuMemCreate(); the descriptor's number into value */
};

struct reply {
    CUresult r;
    uint64_t value;
    char bytes[64];
};

struct other {
    pid_t pid;
    int socket;
};

/* Where the program may be started to be one: does not return then. Call it first in main(). */
void other_serve(int argc, char **argv);

/* `settings`: "NAME=value" of its environment, NULL at the end. `away`: in a network namespace of
 * its own; false where that is not allowed. */
bool other_start(struct other *other, const char *const *settings, bool away);
struct reply other_ask(const struct other *other, enum request what, uint64_t value,
                       const void *bytes);
/* At once, with whatever it holds. */
void other_kill(struct other *other);

#endif
