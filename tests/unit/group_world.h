/*
 * A daemon's groups, with a session of one membership for each person; people do as the test says,
 * and note what they are told. Functions fail the test where they fail.
 */
#ifndef TESTS_UNIT_GROUP_WORLD_H
#define TESTS_UNIT_GROUP_WORLD_H

#include "tests/unit/unit.h"

#include <string.h>

#include "daemon/comm/comm.h"
#include "tests/contract/flaky_device.h"

#define PEOPLE   8u
#define UID      1000u
#define OVERFLOW 65534u
#define SECOND   1000000u
#define LIFETIME (600u * SECOND)

/* One session with one membership, and what it was told last. */
struct person {
    struct member *member;
    int joins, lefts, answers;
    struct error error; /* of the last answer */
    struct member *child;
    uint32_t child_number;
};

extern struct group_world {
    uint64_t now;
    struct device *device;
    struct engine *engine;
    struct comms *comms;
    struct person people[PEOPLE];
    char id[COMM_ID_BYTES];
    struct error e;
} w;

/* A test in a world of its own. */
#define GROUP_TEST(claim) cmocka_unit_test_setup_teardown(claim, open_world, close_world)
int open_world(void **state);
int close_world(void **state);

/* Into w.id. */
void new_id(void);
/* Return: as comms_join(), its error in w.e. */
int join_as(uint32_t person, uid_t uid, uint32_t rank, uint32_t nranks, uint64_t timeout_us,
            const char *algorithm);
/* Person `rank` as that rank, with a timeout of two seconds. */
int join(uint32_t rank, uint32_t nranks);
/* A new group of them all. */
void form(uint32_t nranks);

void post(uint32_t person, struct post p);
void post_kind(uint32_t person, enum collective_id kind);
void split(uint32_t person, int32_t color, int32_t key);
/* A send or recv of nothing: what is matched, not what is moved. */
void pair(uint32_t person, enum collective_id kind, uint32_t peer, uint32_t tag,
          enum dtype_id dtype);

#endif
