/*
 * What the sessions share: everything behind the sockets, and the sessions themselves. The server
 * makes it and owns it; it does nothing by itself.
 */
#ifndef DAEMON_SERVER_SERVICE_H
#define DAEMON_SERVER_SERVICE_H

#include <uv.h>

#include "daemon/comm/comm.h"
#include "daemon/config.h"
#include "daemon/server/quota.h"
#include "proto/packet.h"
#include "proto/repeat.h"

struct service {
    uv_loop_t *loop;
    struct config *config;
    struct comms *comms;
    struct links *links; /* NULL: this daemon serves its own node alone */
    struct device *device;
    struct device *gpus; /* NULL: none */
    const char *no_gpus; /* why, for people; may be NULL */
    const char *kernels; /* what the device computes with, for people */
    const char *state;   /* "serving", "draining"; for people */
    uid_t overflow_uid;  /* whoever has it is nobody in particular */
    uint64_t started_us;

    struct codec *codec;
    struct reply_repeats replies;  /* that were sent to anybody */
    struct packet in;              /* the datagram being handled */
    struct packet taken;           /* the request being handled that came by a ring */
    uint8_t out[PACKET_BYTES_MAX]; /* the reply being sent */

    struct quotas quotas;
    struct list sessions;  // struct session::link, in the order they came
    struct list timed;     // struct session::timed_link: those with a deadline
    struct list doomed;    // struct session::doomed_link: to be ended by sessions_turn()
    struct list lingering; // struct memory without a region, that operations may still hold
    struct list awake;     // struct session::awake_link: whose rings are looked at unasked
    struct list owed;      // struct session::owed_link: who is to be rung in this turn
    struct list belfries;  // struct belfry
    uint32_t nsessions;    /* that have said hello and still hold anything */
    uint64_t next_session;
};

static inline uint64_t service_now(void)
{
    return uv_hrtime() / 1000;
}

#endif
