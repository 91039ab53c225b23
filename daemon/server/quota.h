/*
 * Quotas: what each uid holds of what is limited per uid, and the sentence that says no. Accounts
 * exist while something is held. Loop thread only.
 */
#ifndef DAEMON_SERVER_QUOTA_H
#define DAEMON_SERVER_QUOTA_H

#include <sys/types.h>

#include "daemon/config.h"
#include "shared/map.h"

enum quota_kind {
    QUOTA_SESSIONS,
    QUOTA_STRANGERS,
    QUOTA_REGIONS,
    QUOTA_REGION_BYTES,
    QUOTA_GPU_BYTES,
    QUOTA_FDS,
    QUOTA_KINDS,
};

struct quotas {
    const struct config *config; /* the limits; read anew at every charge */
    struct map accounts;
    uint64_t held[QUOTA_KINDS]; /* by all uids together */
};

/* Return: 0, or -ERROR_QUOTA naming the limit, its key and what is held; nothing is charged then.
 */
int quota_charge(struct quotas *q, uid_t uid, enum quota_kind kind, uint64_t amount,
                 struct error *e);
void quota_release(struct quotas *q, uid_t uid, enum quota_kind kind, uint64_t amount);
/* Memory with a descriptor that users share: both or nothing. For struct comms_config. */
int quota_charge_memory(void *quotas, uid_t uid, uint64_t bytes, struct error *e);
void quota_release_memory(void *quotas, uid_t uid, uint64_t bytes);
void quotas_fini(struct quotas *q);

#endif
