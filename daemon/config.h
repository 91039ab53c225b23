/*
 * What the operator may set. One table of options (config.c) is the configuration file's syntax,
 * the command line's, the printed manual and the defaults. Knows nothing of what the options are
 * for.
 */
#ifndef DAEMON_CONFIG_H
#define DAEMON_CONFIG_H

#include <stdio.h>

#include "daemon/log/log.h"
#include "shared/cuda.h"
#include "shared/error.h"

#define CONFIG_FILE          "/etc/ruccl/ruccld.conf"
#define CONFIG_PATH_BYTES    108u /* with the zero: as much as a Unix socket's address holds */
#define CONFIG_NODE_BYTES    37u
#define CONFIG_FILE_BYTES    160u /* with the zero: a line of the file holds no more */
#define CONFIG_TEXT_BYTES    64u
#define CONFIG_ADDRESS_BYTES 98u /* with the zero: what an id has room for */
#define CONFIG_GPUS_BYTES    (64u * CUDA_UUID_TEXT) /* with the zero, in the place of a comma */

struct config {
    char socket[CONFIG_PATH_BYTES]; /* never empty once parsed */
    uint64_t socket_mode;
    char node[CONFIG_NODE_BYTES]; /* a UUID in its 36 characters; never empty once parsed */
    uint64_t workers;             /* 0: the device chooses */
    uint64_t priority;            /* a negated nice value */
    uint64_t chunk_bytes;
    char gpus[CONFIG_GPUS_BYTES]; /* "all", "none", or UUIDs separated by commas */
    uint64_t rings;               /* 0 or 1 */
    uint64_t slates;              /* 0 or 1 */
    uint64_t spin_us;
    uint64_t drain_timeout_us;
    uint64_t id_lifetime_us;
    uint64_t hello_timeout_us;

    /* other nodes; `listen` empty: none */
    char listen[CONFIG_ADDRESS_BYTES]; /* "host:port", "[v6]:port" */
    char advertise[CONFIG_ADDRESS_BYTES];
    char cluster_key[CONFIG_FILE_BYTES]; /* a path */
    uint64_t peer_timeout_us;
    uint64_t connect_timeout_us;
    uint64_t max_peer_strangers;
    char transport[CONFIG_TEXT_BYTES]; /* "auto", or a transport's name */
    char devices[CONFIG_TEXT_BYTES];
    char ports[CONFIG_TEXT_BYTES];  /* "41000-41100" */
    char tuning[CONFIG_FILE_BYTES]; /* a path */
    uint64_t max_staging;

    uint64_t log_level;  /* enum log_level */
    uint64_t log_target; /* enum log_target */

    /* limits of one uid, but for the last */
    uint64_t max_sessions;
    uint64_t max_strangers;
    uint64_t max_regions;
    uint64_t max_region_bytes;
    uint64_t max_gpu_bytes;
    uint64_t max_fds;
    uint64_t max_communicators;
    uint64_t max_in_flight; /* of one session */
};

/* What to do after config_parse() */
#define CONFIG_RUN     0
#define CONFIG_PRINTED 1 /* --help, --version or --print-config was answered: leave, in peace */

/*
 * Defaults, then the file, then the command line. The strings of argv are used, not kept.
 * Return: a condition, or -code with `e` naming file, line, key and what is allowed.
 */
int config_parse(int argc, char *const *argv, struct config *ret, struct error *e);

/*
 * Parses again and takes over into `config` what may change while running; warns in the log of what
 * differs and may not. On failure `config` is unchanged. Return: 0, or -code worded in `e`.
 */
int config_reload(int argc, char *const *argv, struct config *config, struct error *e);

/* Every option with its sentence, commented out at its default: the example file. */
void config_print(FILE *out);

#endif
