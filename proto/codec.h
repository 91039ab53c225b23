/*
 * Codec: bytes <-> validated plain structs. All distrust of the outside lives here: what comes out
 * of a decode has enums, lengths and counts within the limits written beside the fields below, so
 * that nobody behind it need ask again. What only the receiver can know (is this region open?) is
 * the receiver's to check.
 *
 * Strings and arrays of a decoded struct lie in the codec's own memory, until its next decode.
 */
#ifndef PROTO_CODEC_H
#define PROTO_CODEC_H

#include "shared/collective.h"
#include "shared/error.h"

#define CODEC_VERSION_MIN 3u
#define CODEC_VERSION_MAX 3u

#define CODEC_NAME_MAX      63u  /* bytes of a client's or communicator's name, without the zero */
#define CODEC_ID_MAX        128u /* bytes of a communicator id */
#define CODEC_ALGORITHM_MAX 23u
#define CODEC_STATUS_ITEMS  32u /* items of one page */
#define CODEC_GPU_BYTES     16u /* of a GPU's UUID */
#define CODEC_HANDLE_BYTES  64u /* of a handle for other processes: to memory, to an event */

enum request_kind {
    REQUEST_HELLO,
    REQUEST_REGION_OPEN,
    REQUEST_REGION_CLOSE,
    REQUEST_ID_NEW,
    REQUEST_ID_DROP,
    REQUEST_JOIN,
    REQUEST_LEAVE,
    REQUEST_ABORT,
    REQUEST_EXPECT,
    REQUEST_POST,
    REQUEST_STATUS,
    REQUEST_RINGS_OPEN,
    REQUEST_BELL,
    REQUEST_START,
    REQUEST_PERSISTENT_CLOSE,
    REQUEST_STAGED,
    REQUEST_FENCE_OPEN,
    REQUEST_FENCE_CLOSE,
    REQUEST_SIGNALS_OPEN,
    REQUEST_SLATE_OPEN,
};

enum region_kind {
    REGION_MEMFD = 1, /* comes with a descriptor */
    REGION_CUDA_IPC = 2,
    REGION_CUDA_FD = 3, /* comes with a descriptor */
};

struct request_join {
    uint32_t comm; /* not 0 */
    const char *id;
    uint32_t rank, nranks; /* as sent; comm checks them */
    const char *label;
    uint64_t timeout_us;
    const char *algorithm; /* "" for none */
};

struct wire_operand {
    uint32_t region; /* 0: none */
    uint64_t offset;
    uint64_t window; /* elements; 0: none */
};

struct request_post {
    uint32_t comm;
    uint64_t sequence;
    uint32_t slot;
    struct descriptor d; /* kind, op, dtype as sent, perhaps unknown: descriptor_check() judges them
                          * (in the operation's slot); naxes <= AXES_MAX; nranks is left 0 */
    struct wire_operand in, out;
    uint64_t out_rows;
    const uint64_t *counts;
    uint32_t ncounts; /* <= RANKS_MAX */
    uint32_t peer, tag;
    int32_t color, key;
    uint32_t child;
    bool persistent;
    uint32_t fence, signal; /* 0: none */
    struct error rejection; /* code ERROR_NONE: none */
};

struct request {
    enum request_kind kind;
    uint64_t serial;
    union {
        struct {
            uint32_t version_min, version_max;
            const char *name; /* printable; others are replaced by '?' */
        } hello;
        struct {
            uint32_t region; /* not 0 */
            uint64_t bytes;
            enum region_kind kind;           /* encoded, 0 is REGION_MEMFD */
            uint8_t gpu[CODEC_GPU_BYTES];    /* not of REGION_MEMFD */
            uint8_t ipc[CODEC_HANDLE_BYTES]; /* of REGION_CUDA_IPC */
        } region_open;
        struct {
            uint32_t region;
        } region_close;
        struct {
            const char *id;
        } id_drop;
        struct request_join join;
        struct {
            uint32_t comm;
        } leave;
        struct {
            uint32_t comm;
            const char *text; /* < ERROR_TEXT_BYTES bytes */
        } abort;
        struct {
            uint32_t comm;
            const uint64_t *counts;
            uint32_t ncounts; /* <= RANKS_MAX */
        } expect;
        struct request_post post;
        struct {
            uint64_t cursor;
        } status;
        struct {
            uint32_t comm, slot, persistent; /* comm and persistent not 0 */
            uint64_t sequence;
            uint32_t fence, signal; /* 0: none */
        } start;
        struct {
            uint32_t comm, persistent; /* not 0 */
        } persistent_close;
        struct {
            uint32_t comm, slot;
            uint64_t in_ready, out_taken;
        } staged;
        struct {
            uint32_t fence; /* not 0 */
            uint8_t gpu[CODEC_GPU_BYTES];
            uint8_t handle[CODEC_HANDLE_BYTES];
        } fence_open;
        struct {
            uint32_t fence; /* not 0 */
        } fence_close;
        struct {
            uint32_t comm; /* not 0 */
        } slate_open;
    };
};

enum reply_kind {
    REPLY_WELCOME,
    REPLY_DONE,
    REPLY_ID,
    REPLY_COMPLETION,
    REPLY_STATUS_PAGE,
    REPLY_GOODBYE,
    REPLY_BELL,
    REPLY_PROGRESS,
};

struct reply_completion {
    uint64_t sequence, wait_us, run_us, chunks, chunk_elements, peak_bytes;
    const char *algorithm;
    const uint64_t *counts;
    uint32_t ncounts; /* <= RANKS_MAX */
    uint32_t child_rank, child_nranks;
    const char *child_id;
    uint32_t persistent; /* 0: none was made */
    struct error error;  /* code ERROR_NONE: success */
};

enum status_kind {
    STATUS_DAEMON,
    STATUS_SESSION,
    STATUS_COMMUNICATOR,
    STATUS_MEMBER,
    STATUS_PEER,
    STATUS_GPU,
};

/* Fields as in client.proto. Strings are never NULL once decoded. */
struct status_item {
    enum status_kind kind;
    union {
        struct {
            const char *version, *node, *state, *kernels;
            uint32_t pid, sessions, communicators, regions, workers;
            uint64_t uptime_us, region_bytes;
        } daemon;
        struct {
            uint64_t session, region_bytes;
            uint32_t pid, uid, regions, in_flight, members;
            const char *name;
        } session;
        struct {
            uint64_t communicator, sequence, oldest_sequence, oldest_age_us;
            uint32_t nranks, present;
            enum collective_id oldest_kind;
            const char *label, *state, *failure, *oldest_state, *oldest_arrived, *oldest_missing;
        } communicator;
        struct {
            uint64_t communicator, session, sequence, last_age_us;
            uint32_t rank, pid;
            const char *last;
            bool arrived;
        } member;
        struct {
            const char *node, *host, *address, *state, *transport;
            uint32_t expecting;
            uint64_t heard_age_us;
            bool gpu_direct;
        } peer;
        struct {
            const char *uuid, *name;
            uint64_t mapped_bytes, failures;
            uint32_t mappings;
            bool failed;
        } gpu;
    };
};

struct reply {
    enum reply_kind kind;
    uint64_t serial;
    union {
        struct {
            uint32_t version, slots, spin_us;
            bool rings, gpus, slates;
            const char *daemon_version, *node;
            uint64_t session;
        } welcome;
        struct error done; /* also of goodbye */
        const char *id;
        struct reply_completion completion;
        struct {
            const struct status_item *items;
            uint32_t nitems; /* <= CODEC_STATUS_ITEMS */
            uint64_t next_cursor;
        } status_page;
        struct {
            uint64_t elements_done;
        } progress;
    };
};

/* Memory to decode into: a fixed budget, so that no input can make a decode allocate more. */
struct codec;
int codec_new(struct codec **ret);
struct codec *codec_free(struct codec *c);
DEFINE_CLEANUP(struct codec *, codec_free)

/*
 * Return: 0, or -EPROTO with the reason worded in `e` (ERROR_PROTOCOL): unparsable bytes, no body,
 * a string or count over its limit, an id of 0 where one must not be, a kind of memory that has no
 * name, a UUID or handle of another length.
 */
int codec_decode_request(struct codec *c, const void *bytes, size_t len, struct request *ret,
                         struct error *e);
int codec_decode_reply(struct codec *c, const void *bytes, size_t len, struct reply *ret,
                       struct error *e);

/*
 * Encodes into `buffer` of PACKET_BYTES_MAX bytes; strings may be NULL for "".
 * Return: the length, or -EMSGSIZE if it does not fit.
 */
int codec_encode_request(const struct request *r, void *buffer);
int codec_encode_reply(const struct reply *r, void *buffer);

#endif
