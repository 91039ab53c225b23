/*
 * Remotes: what another node has said of an operation, checked and copied. For comm's own files.
 */
#ifndef DAEMON_COMM_REMOTE_H
#define DAEMON_COMM_REMOTE_H

#include "daemon/comm/agreement.h"
#include "daemon/comm/group.h"
#include "proto/peer_codec.h"

struct nodes;

struct remote {
    uint64_t plan; /* digest; 0: none */
    uint64_t piece;
    struct peer_part *parts; /* one for all ranks of the node, or one for each */
    uint32_t nparts;
    const struct error *verdict; /* NULL: none */
    struct peer_rows *rows;      /* [ranks of the node] or NULL: all_to_all_v */
    struct peer_color *colors;   /* likewise: split */
    const void *payload;         /* NULL: nothing was enclosed */
    uint32_t payload_bytes;
};

/*
 * Of what `node` has sent. Return: 0; -ERROR_PROTOCOL worded in `e`, it has no right to say this or
 * it makes no sense; or -ERROR_NO_MEMORY.
 */
int remote_new(const struct nodes *n, uint32_t node, const struct peer_agree *agree,
               struct remote **ret, struct error *e);
/* Returns NULL; NULL is allowed. */
struct remote *remote_free(struct remote *r);

/* What the node's i-th rank asks. */
static inline const struct peer_part *remote_part(const struct remote *r, uint32_t i)
{
    return &r->parts[r->nparts == 1 ? 0 : i];
}

struct view remote_view(const struct remote *r, uint32_t rank, uint32_t i);

#endif
