/*
 * Peer codec: what daemons say to each other over their control link, bytes <-> validated plain
 * structs. A link is authenticated and encrypted, but another daemon may be of another mind or
 * version: everything is checked here as if it came from a stranger.
 *
 * What is written beside a field holds for what was decoded, and is asked of what is encoded. The
 * strings of every kind: id <= CODEC_ID_MAX, label <= CODEC_NAME_MAX, algorithm <=
 * CODEC_ALGORITHM_MAX bytes, host, address and node as in struct peer_hello; never NULL once
 * decoded. Lists said to ascend do so by rank, without repetition. Ranks, and numbers without a
 * note, are as sent: only comm knows what they may be.
 *
 * Pointers of a decoded message lie in the codec's own memory, until its next decode.
 */
#ifndef PROTO_PEER_CODEC_H
#define PROTO_PEER_CODEC_H

#include "proto/codec.h"
#include "shared/base.h"
#include "shared/collective.h"
#include "shared/error.h"

#define PEER_VERSION_MIN   2u
#define PEER_VERSION_MAX   2u
#define PEER_KEY_BYTES     16u /* of a communicator: its name and secret between daemons */
#define PEER_NODE_BYTES    36u /* of a node's UUID in letters, without the zero */
#define PEER_NONCE_BYTES   32u
#define PEER_PROOF_BYTES   32u
#define PEER_HOST_MAX      64u   /* bytes of a host's name */
#define PEER_ADDRESS_MAX   128u  /* bytes of "host:port", "[v6]:port" */
#define PEER_TRANSPORT_MAX 23u   /* bytes of a transport's name */
#define PEER_SETTINGS_MAX  1023u /* bytes of its settings */
#define PEER_PAYLOAD_MAX   1024u /* bytes of its address */
#define PEER_NODES_MAX     RANKS_MAX
#define PEER_RULES_MAX     256u
#define PEER_TEXT_MAX      127u               /* bytes of what a rank did last */
#define PEER_ENCLOSED_MAX  8192u              /* bytes of payload in an agreement */
#define PEER_MESSAGE_BYTES (8u * 1024 * 1024) /* the longest message, encoded */

enum peer_kind {
    /* the link */
    PEER_HELLO,   /* the first message, from who dials: who I am */
    PEER_WELCOME, /* its answer: who I am, that I know the key, and the version we speak */
    PEER_PROOF,   /* the dialler's: that it knows the key; from here on all is encrypted */
    PEER_PAYLOAD, /* from both: the transport that will carry payload, and where it is met */
    PEER_PING,    /* are you there? */
    PEER_PONG,    /* its answer */
    PEER_BYE,     /* the last message: why the link ends */
    /* rendezvous; a communicator is named by its id until it has a key */
    PEER_JOIN,    /* to the root: a rank is here */
    PEER_REFUSED, /* from the root: a rank cannot join, or, PEER_ALL_RANKS, the group cannot form */
    PEER_WITHDRAW, /* to the root: the ranks here cannot go on; the group cannot form */
    PEER_FORM,     /* from the root: who is where, and by which table all work */
    PEER_READY,    /* to the root: the links stand, the staging is there; or why not */
    PEER_GO,       /* from the root: everyone is ready */
    /* life */
    PEER_AGREE,    /* to every other node: what its ranks ask of an operation */
    PEER_GATHERED, /* the same of several nodes, over a tree of them */
    PEER_SETTLED,  /* to every other node: what an agreed split or persistent operation came to here
                    */
    PEER_FAIL,     /* to every other node: the communicator has failed */
    PEER_LEFT,     /* to every other node: a rank has left in good order */
    PEER_ASK,      /* to a node that is waited for: who is missing? */
    PEER_MISSING,  /* its answer */
    PEER_OFFER,    /* to the destination's node: a send waits */
    PEER_ACCEPT,   /* its answer: the receive is there and agrees, or why not */
};

#define PEER_ALL_RANKS UINT32_MAX

/* Who is at an end of a link. Until it is proven, it is what a stranger says. */
struct peer_hello {
    uint32_t version_min, version_max; /* as sent */
    const char *node;                  /* PEER_NODE_BYTES */
    uint64_t instance;                 /* random, of a daemon's start */
    uint32_t ciphers;                  /* as sent: a set of those that it has */
    uint8_t nonce[PEER_NONCE_BYTES];
    const char *host;    /* <= PEER_HOST_MAX */
    const char *address; /* where others reach it; <= PEER_ADDRESS_MAX */
};

/* A node of a communicator. */
struct peer_node {
    const char *node; /* PEER_NODE_BYTES */
    const char *host;
    const char *address; /* of its listener */
};

/* What a rank asks for in an operation. */
struct peer_part {
    uint32_t rank;
    struct descriptor d; /* kind, op, dtype as sent, perhaps unknown; naxes <= AXES_MAX; nranks 0 */
    bool makes_persistent;
    uint32_t starts;               /* the persistent operation that it starts; 0: none */
    const struct error *rejection; /* NULL: none */
};

/* A rank's rows of an exchange. */
struct peer_rows {
    uint32_t rank;
    const uint64_t *counts; /* [ncounts] by destination */
    uint32_t ncounts;       /* <= RANKS_MAX */
    const uint64_t *expected;
    uint32_t nexpected; /* 0: none, else <= RANKS_MAX */
    uint64_t out_rows;
};

struct peer_color {
    uint32_t rank;
    int32_t color, key;
};

/* From so many bytes of a rank's block on, this algorithm (tuning). */
struct peer_rule {
    enum collective_id kind; /* as sent, perhaps unknown */
    uint64_t min_bytes;
    const char *algorithm;
};

struct peer_agree {
    uint8_t key[PEER_KEY_BYTES];
    uint64_t sequence;
    uint64_t plan; /* digest of the plan that follows, as this node sees it; 0: none */
    /* Elements of the longest piece that passes through all windows of this node, a power of two;
     * 0: it has none. */
    uint64_t piece;
    /* One that stands for all ranks of the node, or one for each, ascending. */
    const struct peer_part *parts;
    uint32_t nparts; /* 1 .. RANKS_MAX */
    /* What only this node can see against it: overlapping tensors, lost memory. NULL: nothing. */
    const struct error *verdict;
    const struct peer_rows *rows; /* the exchanges: one for each rank, ascending */
    uint32_t nrows;
    const struct peer_color *colors; /* split: likewise */
    uint32_t ncolors;
    /* The payload of all messages to the receiver, ascending by tag. */
    bool enclosed;
    const void *payload;
    uint32_t payload_bytes; /* <= PEER_ENCLOSED_MAX; 0 unless enclosed */
};

struct peer_form {
    const char *id;
    uint8_t key[PEER_KEY_BYTES];
    uint32_t uid; /* of the creator */
    const char *label, *algorithm;
    uint64_t timeout_us;
    const struct peer_node *nodes;
    uint32_t nnodes; /* 1 .. PEER_NODES_MAX; ordered by lowest rank, which each has */
    /* by rank */
    const uint32_t *node_of_rank; /* [nranks], each below nnodes */
    const uint32_t *pids;         /* [nranks] */
    uint32_t nranks;              /* 1 .. RANKS_MAX */
    /* the table (daemon/plan/table.h) */
    uint64_t chunk_bytes;                                                  /* > 0 */
    uint32_t depth;                                                        /* > 0 */
    double latency_us, message_us, link_bytes_per_us, memory_bytes_per_us; /* finite, > 0 */
    const struct peer_rule *rules;
    uint32_t nrules; /* <= PEER_RULES_MAX */
    uint32_t tree_above;
};

struct peer_rank {
    uint32_t rank, pid;
    const char *last; /* what it did last: "all_reduce 6, 2.1 s ago" */
};

struct peer_message {
    enum peer_kind kind;
    union {
        struct peer_hello hello;
        struct {
            struct peer_hello hello;
            uint32_t version; /* the one that is spoken, as sent */
            uint8_t proof[PEER_PROOF_BYTES];
        } welcome;
        struct {
            uint8_t proof[PEER_PROOF_BYTES];
        } proof;
        struct {
            const char *transport; /* <= PEER_TRANSPORT_MAX */
            const char *settings;  /* <= PEER_SETTINGS_MAX */
            const void *address;
            uint32_t address_bytes; /* <= PEER_PAYLOAD_MAX */
        } payload;
        struct {
            struct error error; /* code ERROR_NONE: in good order */
        } bye;
        struct {
            const char *id;
            uint32_t rank, nranks, uid, pid;
            const char *label, *algorithm;
            uint64_t timeout_us;
        } join;
        struct {
            const char *id;
            uint32_t rank;      /* or PEER_ALL_RANKS */
            struct error error; /* code not ERROR_NONE */
        } refused;
        struct {
            const char *id;
            struct error error; /* code not ERROR_NONE */
        } withdraw;
        struct peer_form form;
        struct {
            const char *id;
            struct error error; /* code ERROR_NONE: ready */
        } ready;
        struct {
            const char *id;
        } go;
        struct peer_agree agree;
        struct {
            uint8_t key[PEER_KEY_BYTES];
            uint64_t sequence;
            struct error error; /* code ERROR_NONE: well */
        } settled;
        struct {
            uint8_t key[PEER_KEY_BYTES];
            struct error error; /* code not ERROR_NONE */
        } fail;
        struct {
            uint8_t key[PEER_KEY_BYTES];
            uint32_t rank;
            uint64_t sequence; /* of the first operation that it has no part in */
        } left;
        struct {
            uint8_t key[PEER_KEY_BYTES];
            uint64_t sequence;
            /* Ascending by their first parts' ranks. Of this key and sequence, and nothing
             * enclosed: when encoded, that is not looked at. */
            const struct peer_agree *agrees;
            uint32_t nagrees; /* 1 .. PEER_NODES_MAX */
        } gathered;
        struct {
            uint8_t key[PEER_KEY_BYTES];
            uint64_t sequence;
        } ask;
        struct {
            uint8_t key[PEER_KEY_BYTES];
            uint64_t sequence;
            const struct peer_rank *ranks; /* ascending */
            uint32_t nranks;               /* <= RANKS_MAX */
        } missing;
        struct {
            uint8_t key[PEER_KEY_BYTES];
            uint64_t number; /* of the offer, counted by its sender from 1 */
            uint32_t destination, tag;
            struct peer_part part; /* part.rank: the source */
        } offer;
        struct {
            uint8_t key[PEER_KEY_BYTES];
            uint64_t number;    /* not 0 */
            struct error error; /* code ERROR_NONE: agreed */
        } accept;
    };
};

/*
 * Memory to decode into. It grows with the message: by at most 256 times its encoded length, and
 * at most 16 MiB more than three times that length. What one decode took goes at the next.
 */
struct peer_codec;
int peer_codec_new(struct peer_codec **ret);
struct peer_codec *peer_codec_free(struct peer_codec *c);
DEFINE_CLEANUP(struct peer_codec *, peer_codec_free)

/* Return: 0, or -EPROTO worded in `e` (ERROR_PROTOCOL); or -ENOMEM, likewise (ERROR_NO_MEMORY). */
int peer_codec_decode(struct peer_codec *c, const void *bytes, size_t len, struct peer_message *ret,
                      struct error *e);

/*
 * Encodes into the codec's own memory, until its next encode. Strings may be NULL for "".
 * Return: the length, -EMSGSIZE if it is over PEER_MESSAGE_BYTES or a field over its limit,
 * -ENOMEM.
 */
int64_t peer_codec_encode(struct peer_codec *c, const struct peer_message *m, const void **ret);
/*
 * The PEER_AGREE that was encoded last, and nothing since, once more and with this one's payload,
 * in the same memory: the rest of it is not looked at. Return: likewise; -EINVAL, there is none.
 */
int64_t peer_codec_encode_payload(struct peer_codec *c, const struct peer_agree *agree,
                                  const void **ret);

#endif
