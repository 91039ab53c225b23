/* What the tests of clusters call, and expect. */
#ifndef TESTS_UNIT_CLUSTER_CALLS_H
#define TESTS_UNIT_CLUSTER_CALLS_H

#include "tests/unit/cluster.h"

/* Where ranks are. */
extern const uint32_t split_evenly[8], pairs[8], alone[8], odd[8], singles[4];

/* Rank of the collectives that have one. */
#define ROOT 1u

/* What guests wait longer for a group to form than its timeout, and more. */
#define FORMING_TIME 2000000u

/* A rank of four joins. */
int join_one(uint32_t rank, uint32_t node, struct error *e);
void expect_joined(uint32_t nranks);
/* Every rank hears that the group cannot form, and why. */
void expect_refused(uint32_t nranks, enum error_code code, const char *part);
void leave_all(uint32_t nranks);

/* Inputs are values, of as many elements for every rank; outputs are 0x5a. */
int32_t value(uint32_t rank, uint64_t i);
int32_t sum(uint32_t nranks, uint64_t i);
void fill(uint32_t nranks, uint64_t count);

/* Of blocks of n i32. */
struct post describe(uint32_t rank, uint32_t nranks, enum collective_id kind, uint64_t n,
                     uint64_t budget);
void post_all(uint32_t nranks, enum collective_id kind, uint64_t n, uint64_t budget);
void expect_moved(uint32_t nranks, enum collective_id kind, uint64_t n);

/* All have heard of it in the same words. `text` NULL: in any. */
void expect_all_told(uint32_t nranks, enum error_code code, const char *text);
/* The communicator goes on. */
void expect_works(uint32_t nranks);

#endif
