/*
 * Processes as ranks: forked before anything is connected, directed through shared memory. The
 * director is the test; it never connects. Every wait has a deadline, on both sides.
 */
#ifndef TESTS_END_TO_END_ACTORS_H
#define TESTS_END_TO_END_ACTORS_H

#include <stdatomic.h>

#include "tests/end_to_end/harness.h"

#define ACTORS_MAX        16
#define STAGE_IDS_MAX     128
#define STAGE_REPORTS     8
#define STAGE_PATIENCE_MS 20000 /* nothing that works takes longer */

/* How long a failure may take to be told, on a machine that has other things to do: it is far from
 * what would end the waiting otherwise. */
#define STAGE_PROMPT_US 5000000

int64_t stage_now_us(void);

/* A call's outcome, as its caller saw it. */
struct report {
    int result;
    int64_t at_us;
    struct ruccl_error error;
};

/* One actor, in memory that it shares with the director. */
struct part {
    uint32_t number, rank;        /* in the order of adding; as the director says */
    pid_t pid, child;             /* child: a process of the actor's own; 0: none */
    _Atomic uint32_t at, cue;     /* how far the actor has come, and may go */
    _Atomic uint64_t done, total; /* of the operation it watches, as it has told */
    uint32_t nreports;
    struct report reports[STAGE_REPORTS];
    char failure[512]; /* why it gave up */
    bool dismissed;    /* reaped */
};

struct stage {
    char socket[64];
    struct harness_usage before; /* what the daemon held when the stage was opened */
    unsigned shm_names;          /* and how many names of ours there were */
    struct part *bystanders[2];
    uint32_t nparts;
    struct part parts[ACTORS_MAX];
    struct {
        _Atomic bool ready;
        char text[RUCCL_ID_BYTES];
    } ids[STAGE_IDS_MAX];
};

typedef void (*role_fn)(struct stage *stage, struct part *me);

/* ---- for the director */

struct stage *stage_open(const struct harness *h);
/* Ends whoever still lives. Returns NULL; NULL is allowed. */
struct stage *stage_close(struct stage *stage);

struct part *stage_add(struct stage *stage, uint32_t rank, role_fn play);
/* A part that nobody plays yet, and whoever plays one next; what it held is cleared. */
struct part *stage_reserve(struct stage *stage, uint32_t rank);
void stage_play(struct stage *stage, struct part *part, role_fn play);

/* Lets it go on, waits for it; fails if it gives up or takes too long. */
void stage_cue(struct part *part, uint32_t cue);
void stage_await(struct part *part, uint32_t at);
void stage_cue_all(struct stage *stage, uint32_t cue);
void stage_await_all(struct stage *stage, uint32_t at);

/* Kills it, or the process that it left, and waits for the end. */
void stage_kill(struct part *part);
void stage_kill_child(struct part *part);
/* Stops a process that the director has started; it stands still when this returns. */
void stage_freeze(pid_t pid);
/* Waits until it ends by itself, without having given up. */
void stage_dismiss(struct part *part);
void stage_dismiss_all(struct stage *stage);

/* Waits for everybody's end; then the daemon holds no more than before, and nothing has a name. */
void stage_expect_nothing_left(struct stage *stage, const struct harness *h);

/* Two more, who compute by themselves until they are dismissed and notice nothing. */
void stage_add_bystanders(struct stage *stage);
void stage_dismiss_bystanders(struct stage *stage);

/* That the actor's call failed so, with `words` (separated by '|') in its text, and not later than
 * promptly after `since_us`. */
void stage_expect(const struct part *part, uint32_t report, enum ruccl_code code, const char *words,
                  int64_t since_us);

/* Whether all of `words` are in `text`; else *ret_missing is the first that is not. */
bool words_in(const char *text, const char *words, char ret_missing[128]);

/* ---- for the actors */

void part_reach(struct part *me, uint32_t at);
void part_wait(struct part *me, uint32_t cue);
/* Notes a call's outcome, at this moment. */
void part_report(struct part *me, int result);
/* Gives up, unless it holds. */
void part_check(struct part *me, bool holds, const char *what);
/* Gives up if a call failed. */
void part_ok(struct part *me, int result, const char *what);

struct ruccl_conn *part_connect(const struct stage *stage, struct part *me);
/* Joins by the stage's id number `id`, which rank 0 makes. */
struct ruccl_comm part_join(struct stage *stage, struct part *me, struct ruccl_conn *conn,
                            uint32_t id, uint32_t rank, uint32_t nranks,
                            const struct ruccl_join_options *options);
const char *part_id(struct stage *stage, struct part *me, struct ruccl_conn *conn, uint32_t id,
                    bool maker);

struct ruccl_region *part_alloc(struct part *me, struct ruccl_conn *conn, uint64_t bytes);
/* All of `region`, summed over the ranks: gives up if the sum is not right. */
void part_compute(struct part *me, struct ruccl_comm comm, struct ruccl_region *region,
                  int32_t round);
/* Waits for it, and tells meanwhile how far it is: part::done. Return: the outcome. */
int part_watch(struct part *me, struct ruccl_work *work);

/* The first `count` elements. */
struct ruccl_tensor vector_of(struct ruccl_region *region, uint64_t count);

#endif
