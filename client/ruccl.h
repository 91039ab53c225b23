/*
 * libruccl: collective communication through the node's daemon, ruccld.
 *
 * A process connects to the daemon, joins communicators, and calls collectives on tensors. The
 * daemon maps the tensors' memory and does the work; this library encodes requests and waits. Ranks
 * of one communicator may be on several nodes, each connected to its own node's daemon: no call
 * differs, and the daemons find each other by the communicator's id.
 *
 *     struct ruccl_conn *conn;
 *     struct ruccl_comm comm;
 *     struct ruccl_region *region;
 *
 *     ruccl_connect(NULL, "trainer", &conn);
 *     ruccl_join(conn, id, rank, world_size, NULL, &comm);
 *     ruccl_alloc(conn, 4096, &region);
 *     struct ruccl_tensor t = { .dtype = RUCCL_F32, .naxes = 1, .shape = { 1024 }, .region = region };
 *     ruccl_all_reduce(comm, &t, &t, RUCCL_SUM);
 *
 * RETURN VALUES. int functions return 0, or a negative enum ruccl_code (-RUCCL_RANK_LOST, ...); a
 * few also return RUCCL_PENDING. ruccl_last_error() words the calling thread's last failure.
 * Output arguments come last and are written only on success.
 *
 * THREADS. Every function may be called from any thread. The library has no threads of its own: one
 * thread that waits reads for all. It never ends the process, and prints only under RUCCL_LOG
 * (error, info or debug; to stderr), and once if that has another value. After fork() the child may only call ruccl_close(), which then
 * frees memory and disturbs nobody; any other call there is -RUCCL_FORKED. The parent is unaffected.
 *
 * ORDER. The collectives of one communicator are numbered in the order of the calls that name it,
 * and run in that order; every rank must call them in the same order. A call that fails still takes
 * its number, and the daemon tells every rank what was wrong. send and recv take no number.
 */
#ifndef RUCCL_H
#define RUCCL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- errors */

enum ruccl_code {
    RUCCL_OK = 0,
    RUCCL_INVALID_ARGUMENT = 1,
    RUCCL_INVALID_SHAPE = 2,
    RUCCL_INVALID_ROOT = 3,
    RUCCL_INVALID_OPERATION = 4,    /* mean of integers, bitwise of floats */
    RUCCL_UNSUPPORTED_DTYPE = 5,    /* reducing a type that is only moved */
    RUCCL_UNSUPPORTED_ALGORITHM = 6,
    RUCCL_BUDGET_TOO_SMALL = 7,     /* the text names the least budget that works */
    RUCCL_MISALIGNED = 8,           /* a byte offset that is no multiple of the element width */
    RUCCL_OUT_OF_RANGE = 9,         /* a tensor that ends behind its region */
    RUCCL_OVERLAP = 10,             /* tensors that share bytes in a way that is not "in place" */
    RUCCL_MISMATCH = 11,            /* ranks disagree; nothing was written */
    RUCCL_CAPACITY = 12,            /* all_to_all_v: an output with too few rows */
    RUCCL_UNEXPECTED_COUNTS = 13,   /* all_to_all_v: other counts than the caller expected */
    RUCCL_TIMEOUT = 14,             /* fails the communicator */
    RUCCL_RANK_LOST = 15,           /* a member's process died or disconnected, or the link with the
                                       daemon of its node was lost; likewise */
    RUCCL_RANK_LEFT = 16,           /* a member left while others needed it; likewise */
    RUCCL_ABORTED = 17,             /* a member called ruccl_abort(); likewise */
    RUCCL_DAEMON_LOST = 18,         /* this node's daemon died; the connection is of no more use */
    RUCCL_DAEMON_STOPPING = 19,     /* the daemon was told to stop */
    RUCCL_QUOTA = 20,
    RUCCL_PERMISSION = 21,
    RUCCL_NOT_FOUND = 22,           /* a communicator id that is not, or no longer, good; a GPU */
    RUCCL_DUPLICATE_RANK = 23,
    RUCCL_VERSION = 24,             /* library and daemon share no protocol version */
    RUCCL_PROTOCOL = 25,
    RUCCL_MEMORY_FAULT = 26,        /* a tensor's memory could not be backed with pages */
    RUCCL_NO_MEMORY = 27,
    RUCCL_SYSTEM = 28,              /* a system call failed; the text names it */
    RUCCL_FORKED = 29,
    RUCCL_CLOSED = 30,              /* used after close or leave */
};

#define RUCCL_PENDING 1 /* not finished yet; not an error */

struct ruccl_error {
    enum ruccl_code code;
    uint32_t nranks;    /* how many ranks are concerned; `ranks` holds the first 32 */
    uint32_t ranks[32]; /* ascending */
    char text[512];     /* one sentence: what failed, with which argument, and what to do */
};

/* The calling thread's last failure; code RUCCL_OK if there was none. Valid until its next call. */
const struct ruccl_error *ruccl_last_error(void);

/* "rank lost" for RUCCL_RANK_LOST, also for -RUCCL_RANK_LOST. Never NULL. */
const char *ruccl_code_name(int code);

/* The library's version, "0.1.0". */
const char *ruccl_version(void);

/* ---------------------------------------------------------------- connection */

struct ruccl_conn;

/*
 * Connects to the daemon at `socket`, or, if NULL, at $RUCCL_SOCKET, or else at
 * /run/ruccl/ruccld.sock for root and $XDG_RUNTIME_DIR/ruccl/ruccld.sock for others. `name` (may be
 * NULL) is shown by `rucclctl status`. Errors: SYSTEM (nobody listens there), TIMEOUT (a daemon that
 * hangs: it does not answer within 10 s), VERSION, QUOTA.
 */
int ruccl_connect(const char *socket, const char *name, struct ruccl_conn **ret);

/*
 * Closes the connection: unfinished work completes with -RUCCL_CLOSED, communicators count as lost
 * to their other members (leave first to part in good order), regions are released. Region and
 * communicator handles of the connection must not be used afterwards; work handles may, and each is
 * still to be released. NULL is allowed.
 */
void ruccl_close(struct ruccl_conn *conn);

/*
 * For programs with their own loop: a descriptor that is readable when ruccl_dispatch() has something
 * to do, and that call, which never blocks. Return: 0, or -RUCCL_DAEMON_LOST once the daemon is gone
 * (work of the connection has then completed with that error).
 */
int ruccl_fd(struct ruccl_conn *conn);
int ruccl_dispatch(struct ruccl_conn *conn);

/* ---------------------------------------------------------------- memory */

struct ruccl_region;

/*
 * Shared memory that the daemon maps too: tensors in it are never copied. Zeroed, page-aligned.
 * Errors: QUOTA, NO_MEMORY. The memory stays until freed *and* no operation uses it; up to 256 MiB
 * of it are then kept for the connection's next calls, unless a quota wants them back.
 */
int ruccl_alloc(struct ruccl_conn *conn, uint64_t bytes, struct ruccl_region **ret);
void ruccl_free(struct ruccl_region *region);

/*
 * Registers memory the caller made: a memfd of at least `bytes` bytes sealed with F_SEAL_SHRINK and
 * F_SEAL_GROW, open for reading and writing, no hugetlb. The library maps it and keeps no reference
 * to `memfd`, which stays the caller's. Errors: INVALID_ARGUMENT naming the seal or property.
 */
int ruccl_register(struct ruccl_conn *conn, int memfd, uint64_t bytes, struct ruccl_region **ret);
void ruccl_release(struct ruccl_region *region);

/*
 * Registers memory of a GPU, [ptr, ptr + bytes), which the daemon then works on where it is; the
 * CUDA driver is loaded by the first call. The memory stays the caller's, and is to be freed after
 * the release of all regions in its allocation and after the works that use it are done; the
 * daemon knows, and quotas count, the whole allocation, once a connection. It can be shared if it is
 * of cudaMalloc() or cuMemAlloc(), or of one handle of cuMemCreate() that may be exported as a file
 * descriptor. Other memory (of pools, managed, of several handles) is registered too, but STAGED:
 * the library copies it through host memory of its own, as it does plain memory, which
 * RUCCL_LOG=info says.
 * The GPU's primary context is used, the CUDA runtime's, and the thread's current one left alone.
 * Errors: INVALID_ARGUMENT (not a GPU's memory), OUT_OF_RANGE (beyond the allocation), NOT_FOUND (no
 * driver, or a daemon that uses no GPU), QUOTA.
 */
int ruccl_register_cuda(struct ruccl_conn *conn, void *ptr, uint64_t bytes,
                        struct ruccl_region **ret);
/* 1 or 0. */
int ruccl_region_is_staged(const struct ruccl_region *region);

/* Of a GPU's memory: its device pointer, as registered. */
void *ruccl_region_data(const struct ruccl_region *region);
uint64_t ruccl_region_bytes(const struct ruccl_region *region);

/* ---------------------------------------------------------------- tensors */

enum ruccl_dtype {
    RUCCL_F32 = 1, RUCCL_F64 = 2, RUCCL_F16 = 3, RUCCL_BF16 = 4,
    RUCCL_F8E4M3 = 5, RUCCL_F8E5M2 = 6,
    RUCCL_I8 = 7, RUCCL_I16 = 8, RUCCL_I32 = 9, RUCCL_I64 = 10,
    RUCCL_U8 = 11, RUCCL_U16 = 12, RUCCL_U32 = 13, RUCCL_U64 = 14,
    /* moved bit for bit, never reduced: */
    RUCCL_BOOL = 15, RUCCL_C64 = 16, RUCCL_C128 = 17,
    RUCCL_F8E4M3FNUZ = 18, RUCCL_F8E5M2FNUZ = 19, RUCCL_F8E8M0 = 20, RUCCL_F4E2M1X2 = 21,
    RUCCL_PACKED_U8 = 22, RUCCL_PACKED_U32 = 23, /* words of quantised parameters */
};

#define RUCCL_MAX_AXES 8

/*
 * Row-major and contiguous. Bytes are at `offset` in `region`, or, if region is NULL, at `data`:
 * plain memory, which the library copies through shared memory of its own (input when the call is
 * made, output in the call that finds the work done; what is large, in a blocking call and where
 * ruccl_attended() says so, piece by piece meanwhile); or an address in a GPU's memory that the
 * connection has registered. Tensors of one call may be in memory of different kinds.
 */
struct ruccl_tensor {
    enum ruccl_dtype dtype;
    uint32_t naxes;                 /* 0 to 8; 0 is a scalar */
    uint64_t shape[RUCCL_MAX_AXES]; /* elements; 0 is allowed */
    struct ruccl_region *region;
    uint64_t offset; /* bytes from the region's start, a multiple of the element width */
    void *data;
};

/* Bytes of one element; 0 for an unknown type. */
uint32_t ruccl_dtype_bytes(enum ruccl_dtype dtype);
const char *ruccl_dtype_name(enum ruccl_dtype dtype); /* "f32"; NULL for an unknown type */

/* ---------------------------------------------------------------- communicators */

#define RUCCL_ID_BYTES    129 /* an id's text with its terminating zero */
#define RUCCL_MAX_RANKS   4096
#define RUCCL_NO_BUDGET   UINT64_MAX
#define RUCCL_NO_TIMEOUT  0
#define RUCCL_COLOR_NONE  (-1) /* split: take part, get no communicator */

struct ruccl_member;

/*
 * A small value to copy freely: one rank's membership, the byte budget its collectives keep, the
 * stream they take part in, and whether somebody waits for them. Wrapping it in another form never
 * fails and never communicates.
 */
struct ruccl_comm {
    struct ruccl_member *member;
    uint64_t max_chunk_bytes; /* RUCCL_NO_BUDGET: none */
    void *stream;             /* NULL: the legacy default stream of the tensors' GPU */
    uint32_t attended;        /* 0: no; else see ruccl_attended() */
};

struct ruccl_join_options {
    const char *label;       /* shown by rucclctl and in errors; NULL: none; at most 63 bytes */
    uint64_t timeout_us;     /* per operation, from its first rank's arrival on the node;
                                RUCCL_NO_TIMEOUT: none. Kept by the daemon: one that hangs keeps
                                its ranks waiting until it goes on or is killed */
    const char *algorithm;   /* force one by name: "hierarchical" on one node; "direct", "pairwise",
                                "halving-doubling", "tree" or "ring" between nodes. NULL or "auto":
                                the cheapest that fits */
};
/* What a NULL options argument means: no label, 300 s, auto. */
#define RUCCL_JOIN_OPTIONS_INIT { NULL, 300000000, NULL }

struct ruccl_work;

/*
 * A fresh communicator id, "rc1-...@...", to be handed to every rank by whatever means (an
 * environment variable, a file). It is good for one communicator and lapses if nobody has joined
 * within ten minutes. ruccl_drop_id() gives an unused one back at once. What follows the @ is the
 * daemon's address where it listens to other nodes, whose ranks may then join too, else its node's
 * UUID. The daemon that made it need not be that of a member.
 * Errors: QUOTA; NOT_FOUND (drop: it is in use, or has lapsed); TIMEOUT (a daemon that hangs, as
 * in ruccl_connect()).
 */
int ruccl_new_id(struct ruccl_conn *conn, char ret_id[RUCCL_ID_BYTES]);
int ruccl_drop_id(struct ruccl_conn *conn, const char *id);

/*
 * Joins as `rank` of `world_size`; returns when all ranks have joined. World size, timeout and
 * algorithm must be the same for every rank. The timeout runs from the first rank's join,
 * and is the daemon's to keep, as those of operations are.
 * Several ranks of one thread: join_async for each, then wait.
 * Errors: NOT_FOUND (also where the daemon that made the id cannot be asked), DUPLICATE_RANK,
 * MISMATCH, TIMEOUT (naming who is missing), PERMISSION, QUOTA; RANK_LOST where a daemon goes
 * meanwhile.
 */
int ruccl_join(struct ruccl_conn *conn, const char *id, uint32_t rank, uint32_t world_size,
               const struct ruccl_join_options *options, struct ruccl_comm *ret);
/* The communicator may be used once the work is done; if that failed, leave it all the same. */
int ruccl_join_async(struct ruccl_conn *conn, const char *id, uint32_t rank, uint32_t world_size,
                     const struct ruccl_join_options *options, struct ruccl_comm *ret_comm,
                     struct ruccl_work **ret_work);

/*
 * Collective: ranks of the same color form a new communicator, ordered by (key, old rank).
 * RUCCL_COLOR_NONE takes part and gets a communicator whose member is NULL.
 */
int ruccl_split(struct ruccl_comm comm, int32_t color, int32_t key, struct ruccl_comm *ret);
int ruccl_split_async(struct ruccl_comm comm, int32_t color, int32_t key,
                      struct ruccl_comm *ret_comm, struct ruccl_work **ret_work);

/*
 * Leaves: own unfinished work is waited for, then the member is gone. Others' operations that still
 * need this rank fail at once with RANK_LEFT. The value, and every copy of it, must not be used again.
 */
int ruccl_leave(struct ruccl_comm comm);

/* Fails the communicator for every rank with ABORTED and `text`. Errors: TIMEOUT, as new_id. */
int ruccl_abort(struct ruccl_comm comm, const char *text);

uint32_t ruccl_rank(struct ruccl_comm comm);
uint32_t ruccl_world_size(struct ruccl_comm comm);
const char *ruccl_id(struct ruccl_comm comm); /* valid until left */

/* The same communicator under a budget of `max_chunk_bytes` for tensor messages in flight. */
struct ruccl_comm ruccl_bounded(struct ruccl_comm comm, uint64_t max_chunk_bytes);
/* The communicator as it was before any budget. */
struct ruccl_comm ruccl_unbounded(struct ruccl_comm comm);
uint64_t ruccl_max_chunk_bytes(struct ruccl_comm comm);

/*
 * The same communicator on a CUstream or cudaStream_t, for calls with tensors in a GPU's memory; it
 * means nothing to others. Such a call begins after what the stream holds when it is made, and what
 * is put into the stream after it sees the result: of an asynchronous call too, without waiting for
 * the work. (Of a staged region it does once the work was found done.) The stream may be ahead of
 * the work: it may have gone on, with the result, while the work is still found pending. Tensors of
 * one call on several GPUs need a stream that is named.
 * The stream must live until the work is done. Calls that need each other, as the send and the
 * receive of an exchange, take a stream each: in one stream, the second would wait for the first.
 * So it would in one queue of the GPU, which streams share where a process has more of them than
 * CUDA_DEVICE_MAX_CONNECTIONS, 8 unless the environment says up to 32: that is one more reason to let
 * one process be one rank.
 * Where the daemon dies, a stream that waits for it goes on in the next test, wait, dispatch or close
 * of the connection, with undefined outputs: ask the work before the stream.
 */
struct ruccl_comm ruccl_on_stream(struct ruccl_comm comm, void *stream);

/*
 * The same communicator for callers who wait for a work right after its call, but want to look up
 * meanwhile: at a clock, or for signals. As in the blocking calls, large tensors in plain memory pass
 * through a short stage, piece by piece, instead of being copied whole when the call is made: in
 * ruccl_work_wait(), and a little in each ruccl_work_test(). The other ranks wait for what has not
 * been copied, so that such a work is waited for until it is done. Released before, it aborts its
 * communicator. And small calls, as the blocking ones, are carried out at once among ranks of one
 * node, without the daemon, where all come at about the same time: the work is done then when the
 * call returns, which takes up to 0.2 ms (`spin` in ruccld.conf(5)). Nothing else differs.
 */
struct ruccl_comm ruccl_attended(struct ruccl_comm comm);

/* ---------------------------------------------------------------- work */

struct ruccl_progress {
    uint64_t elements_done, elements_total;
    uint64_t chunks_done, chunks_total;      /* all_to_all_v: rounds */
    uint64_t rows_sent, rows_to_send;        /* all_to_all_v only */
    uint64_t rows_received, rows_to_receive; /* all_to_all_v only */
};

struct ruccl_stats {
    uint64_t sequence;       /* the operation's number in its communicator; 0 for send and recv */
    uint64_t wait_us;        /* this rank's arrival until agreement of all */
    uint64_t run_us;         /* agreement until the last byte was written */
    uint64_t chunks;
    uint64_t chunk_elements; /* elements (rows for all_to_all_v) of a full chunk */
    uint64_t peak_bytes;     /* most tensor bytes in flight on this node outside inputs and outputs;
                                <= budget */
    char algorithm[24];      /* as in ruccl_join_options, or "slate": without the daemon */
};

/* RUCCL_PENDING while unfinished, else the outcome: 0 or the failure's negative code. */
int ruccl_work_test(struct ruccl_work *work);
/* As test, waiting at most timeout_us (negative: without limit). */
int ruccl_work_wait(struct ruccl_work *work, int64_t timeout_us);
/* At any time; a cheap read of shared memory, no message. */
int ruccl_work_progress(struct ruccl_work *work, struct ruccl_progress *ret);
/* Once done. */
int ruccl_work_stats(struct ruccl_work *work, struct ruccl_stats *ret);
/* all_to_all_v, once done: rows received from each rank, ret[world size]. */
int ruccl_work_receive_counts(struct ruccl_work *work, uint64_t *ret);
/*
 * Lets go. An unfinished operation goes on; its memory is kept until it is done. Output in plain
 * memory is written by test and wait only, so that of a work released before is lost, and the memory
 * may be freed. (Of ruccl_attended(): one on large plain memory does not go on.) NULL is allowed.
 */
void ruccl_work_release(struct ruccl_work *work);

/* ---------------------------------------------------------------- collectives */

enum ruccl_op {
    RUCCL_SUM = 1, RUCCL_PRODUCT = 2, RUCCL_MIN = 3, RUCCL_MAX = 4,
    RUCCL_MEAN = 5,                              /* floating types */
    RUCCL_AND = 6, RUCCL_OR = 7, RUCCL_XOR = 8,  /* integers */
};

/*
 * An asynchronous call returns once its request is on the way. While as much work of the connection
 * is unfinished as the daemon allows (max_in_flight, 4096 by default), the next call waits.
 *
 * n is the elements of `in`, R the world size. A tensor that only the root uses may be NULL elsewhere.
 * In place: all_reduce, reduce, broadcast with out = in; all_gather with in = out + rank * n;
 * reduce_scatter with out = in + rank * n / R. No other overlap is allowed.
 * Before agreement of all ranks nothing is written; a failure after it leaves outputs undefined.
 */

/* Shapes: out = in = any, also no axes. */
int ruccl_all_reduce(struct ruccl_comm comm, const struct ruccl_tensor *in,
                     const struct ruccl_tensor *out, enum ruccl_op op);
int ruccl_all_reduce_async(struct ruccl_comm comm, const struct ruccl_tensor *in,
                           const struct ruccl_tensor *out, enum ruccl_op op,
                           struct ruccl_work **ret);
/* Shapes: in [a, ...]; out [R*a, ...], rank 0's block first. */
int ruccl_all_gather(struct ruccl_comm comm, const struct ruccl_tensor *in,
                     const struct ruccl_tensor *out);
int ruccl_all_gather_async(struct ruccl_comm comm, const struct ruccl_tensor *in,
                           const struct ruccl_tensor *out, struct ruccl_work **ret);
/* Shapes: in [R*a, ...]; out [a, ...], this rank's block of the reduction. */
int ruccl_reduce_scatter(struct ruccl_comm comm, const struct ruccl_tensor *in,
                         const struct ruccl_tensor *out, enum ruccl_op op);
int ruccl_reduce_scatter_async(struct ruccl_comm comm, const struct ruccl_tensor *in,
                               const struct ruccl_tensor *out, enum ruccl_op op,
                               struct ruccl_work **ret);
/* Shapes: out = in = any. `in` counts at the root only. */
int ruccl_broadcast(struct ruccl_comm comm, const struct ruccl_tensor *in,
                    const struct ruccl_tensor *out, uint32_t root);
int ruccl_broadcast_async(struct ruccl_comm comm, const struct ruccl_tensor *in,
                          const struct ruccl_tensor *out, uint32_t root, struct ruccl_work **ret);
/* Shapes: out = in = any. `out` counts at the root only. */
int ruccl_reduce(struct ruccl_comm comm, const struct ruccl_tensor *in,
                 const struct ruccl_tensor *out, enum ruccl_op op, uint32_t root);
int ruccl_reduce_async(struct ruccl_comm comm, const struct ruccl_tensor *in,
                       const struct ruccl_tensor *out, enum ruccl_op op, uint32_t root,
                       struct ruccl_work **ret);
/* Shapes: in [a, ...]; out [R*a, ...] at the root only. */
int ruccl_gather(struct ruccl_comm comm, const struct ruccl_tensor *in,
                 const struct ruccl_tensor *out, uint32_t root);
int ruccl_gather_async(struct ruccl_comm comm, const struct ruccl_tensor *in,
                       const struct ruccl_tensor *out, uint32_t root, struct ruccl_work **ret);
/* Shapes: in [R*a, ...] at the root only; out [a, ...]. */
int ruccl_scatter(struct ruccl_comm comm, const struct ruccl_tensor *in,
                  const struct ruccl_tensor *out, uint32_t root);
int ruccl_scatter_async(struct ruccl_comm comm, const struct ruccl_tensor *in,
                        const struct ruccl_tensor *out, uint32_t root, struct ruccl_work **ret);
/* Shapes: in [R*a, ...], block d for rank d; out [R*a, ...], block s from rank s. */
int ruccl_all_to_all(struct ruccl_comm comm, const struct ruccl_tensor *in,
                     const struct ruccl_tensor *out);
int ruccl_all_to_all_async(struct ruccl_comm comm, const struct ruccl_tensor *in,
                           const struct ruccl_tensor *out, struct ruccl_work **ret);
/*
 * Shapes: in [sum(send_counts), ...], rows grouped by destination; out [capacity, ...], rows by
 * ascending source. send_counts[R] in rows. expected_counts[R] may be NULL; where given, other counts
 * are UNEXPECTED_COUNTS on every rank before data moves. ret_counts[R] (may be NULL): rows received.
 */
int ruccl_all_to_all_v(struct ruccl_comm comm, const struct ruccl_tensor *in,
                       const uint64_t *send_counts, const struct ruccl_tensor *out,
                       const uint64_t *expected_counts, uint64_t *ret_counts);
int ruccl_all_to_all_v_async(struct ruccl_comm comm, const struct ruccl_tensor *in,
                             const uint64_t *send_counts, const struct ruccl_tensor *out,
                             const uint64_t *expected_counts, struct ruccl_work **ret);
/* Returns when every rank has called it. */
int ruccl_barrier(struct ruccl_comm comm);
int ruccl_barrier_async(struct ruccl_comm comm, struct ruccl_work **ret);
/*
 * Point to point, matched by (source, destination, tag) in the order of the calls; dtype and shape of
 * the pair must be equal. Several may be started together with the asynchronous forms. A budget cuts
 * what is sent; on the receiving side it means nothing.
 */
int ruccl_send(struct ruccl_comm comm, const struct ruccl_tensor *in, uint32_t to, uint32_t tag);
int ruccl_send_async(struct ruccl_comm comm, const struct ruccl_tensor *in, uint32_t to,
                     uint32_t tag, struct ruccl_work **ret);
int ruccl_recv(struct ruccl_comm comm, const struct ruccl_tensor *out, uint32_t from, uint32_t tag);
int ruccl_recv_async(struct ruccl_comm comm, const struct ruccl_tensor *out, uint32_t from,
                     uint32_t tag, struct ruccl_work **ret);

/* ---------------------------------------------------------------- persistent operations */

/*
 * A collective that is said once and started as often as one likes: what is checked, agreed on and
 * planned is checked, agreed on and planned when it is made. For loops that repeat a call on the
 * same tensors.
 */
struct ruccl_persistent;

/*
 * Collective: every rank makes the same one, and all or none get it; arguments and errors are those
 * of the call itself, and nothing is moved. Tensors must be in regions, which the daemon keeps mapped
 * until the operation has been released, even if they are freed before; not in staged ones. Starts
 * are in the stream of `comm`. QUOTA: more than 1024 of one communicator. To be released before the
 * communicator is left, or after.
 */
int ruccl_all_reduce_init(struct ruccl_comm comm, const struct ruccl_tensor *in,
                          const struct ruccl_tensor *out, enum ruccl_op op,
                          struct ruccl_persistent **ret);
int ruccl_all_gather_init(struct ruccl_comm comm, const struct ruccl_tensor *in,
                          const struct ruccl_tensor *out, struct ruccl_persistent **ret);
int ruccl_reduce_scatter_init(struct ruccl_comm comm, const struct ruccl_tensor *in,
                              const struct ruccl_tensor *out, enum ruccl_op op,
                              struct ruccl_persistent **ret);
int ruccl_broadcast_init(struct ruccl_comm comm, const struct ruccl_tensor *in,
                         const struct ruccl_tensor *out, uint32_t root,
                         struct ruccl_persistent **ret);
int ruccl_reduce_init(struct ruccl_comm comm, const struct ruccl_tensor *in,
                      const struct ruccl_tensor *out, enum ruccl_op op, uint32_t root,
                      struct ruccl_persistent **ret);
int ruccl_gather_init(struct ruccl_comm comm, const struct ruccl_tensor *in,
                      const struct ruccl_tensor *out, uint32_t root, struct ruccl_persistent **ret);
int ruccl_scatter_init(struct ruccl_comm comm, const struct ruccl_tensor *in,
                       const struct ruccl_tensor *out, uint32_t root,
                       struct ruccl_persistent **ret);

/*
 * Collective: a call like any other, with a sequence number of its own, in order with the others;
 * MISMATCH where ranks start different ones, or call something else. Wait for the work as for any.
 */
int ruccl_start(struct ruccl_persistent *persistent, struct ruccl_work **ret);

/* Lets go; starts that are unfinished go on. Not collective. NULL is allowed. */
void ruccl_persistent_release(struct ruccl_persistent *persistent);

#ifdef __cplusplus
}
#endif
#endif
