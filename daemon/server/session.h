/*
 * Sessions: one connected client, its regions and memberships, and what its death undoes. Loop
 * thread only.
 *
 * A session never ends inside a call: it is doomed there, and ended by the next sessions_turn(),
 * which is never called from within comm. What it is told in between is dropped.
 */
#ifndef DAEMON_SERVER_SESSION_H
#define DAEMON_SERVER_SESSION_H

#include "daemon/server/service.h"

/* The answers of comm, for comms_new(): every owner there is a session. */
extern const struct comm_events session_events;

/* A new connection; takes the socket, also on failure. Whom it refuses it tells. */
void session_open(struct service *service, int socket);

/* Ends what is doomed or overdue. Return: when the next session is overdue; TIME_NEVER if none. */
uint64_t sessions_turn(struct service *service, uint64_t now);

/* Looks once for requests in the rings of those who sent some, or were answered, lately, and lets
 * others run where it finds none. */
void sessions_look(struct service *service);
/* Rings all who have been answered and sleep. Before the loop waits or lets others run. */
void sessions_ring(struct service *service);
/* Whether there are such sessions: the loop must look again and not sleep. */
bool sessions_are_awake(const struct service *service);

/* Lets go of the memory of closed regions that no operation holds any more. */
void service_sweep_regions(struct service *service);

/* Dooms every session, with `cause` in its goodbye. */
void sessions_doom_all(struct service *service, const struct error *cause);

#endif
