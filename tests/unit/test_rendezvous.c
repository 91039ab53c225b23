/* How communicators come to be and end: ids, joins, splits, pairs, parting. */
#include "tests/unit/unit.h"

#include <stdio.h>
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

static struct {
    uint64_t now;
    struct device *device;
    struct engine *engine;
    struct comms *comms;
    struct person people[PEOPLE];
    char id[COMM_ID_BYTES];
    struct error e;
} w;

static uint64_t clock_now(void)
{
    return w.now;
}

static void note(struct person *p, const struct error *e)
{
    p->error = e ? *e : (struct error){ 0 };
}

static void joined(void *owner, struct member *m, const struct error *e)
{
    struct person *p = owner;

    p->member = m;
    p->joins++;
    note(p, e);
}

static void completed(void *owner, struct member *m, uint64_t serial, const struct completion *c)
{
    struct person *p = owner;

    (void)m;
    (void)serial;
    p->answers++;
    p->child = c->child;
    p->child_number = c->child_number;
    note(p, c->error);
}

static void left(void *owner, struct member *m)
{
    struct person *p = owner;

    p->lefts++;
    if (p->member == m)
        p->member = NULL;
}

static int open_world(void **state)
{
    const struct comm_events events = { joined, completed, left };
    struct comms_config config = { .now = clock_now,
                                   .host = "here",
                                   .node = "node",
                                   .overflow_uid = OVERFLOW,
                                   .id_lifetime_us = LIFETIME,
                                   .chunk_bytes = 1 << 20,
                                   .max_comms = 4 };

    (void)state;
    memset(&w, 0, sizeof(w));
    w.now = 5;
    device_flaky.open(&(struct device_config){ 0 }, &w.device, NULL);
    engine_new(w.device, NULL, NULL, &w.engine);
    config.engine = w.engine;
    return comms_new(&config, &events, &w.comms);
}

static int close_world(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < PEOPLE; i++)
        if (w.people[i].member)
            member_lost(w.people[i].member, "died", w.now);
    if (comms_count(w.comms) != 0)
        return -1;
    comms_free(w.comms);
    engine_free(w.engine);
    w.device->ops->close(w.device);
    return 0;
}

static void new_id(void)
{
    assert_int_equal(comms_id_new(w.comms, UID, w.now, w.id, &w.e), 0);
}

static int join_as(uint32_t person, uid_t uid, uint32_t rank, uint32_t nranks, uint64_t timeout_us,
                   const char *algorithm)
{
    struct request_join request = { .id = w.id,
                                    .rank = rank,
                                    .nranks = nranks,
                                    .label = "job",
                                    .timeout_us = timeout_us,
                                    .algorithm = algorithm };
    struct join join = { &request, &w.people[person], person, uid, (pid_t)(500 + person) };
    struct member *m;
    int r;

    memset(&w.e, 0, sizeof(w.e));
    r = comms_join(w.comms, &join, w.now, &m, &w.e);
    if (r == 0)
        w.people[person].member = m;
    return r;
}

static int join(uint32_t rank, uint32_t nranks)
{
    return join_as(rank, UID, rank, nranks, 2 * SECOND, "");
}

static void form(uint32_t nranks)
{
    new_id();
    for (uint32_t r = 0; r < nranks; r++)
        assert_int_equal(join(r, nranks), 0);
}

static void post(uint32_t person, struct post p)
{
    p.serial = 1;
    p.d.budget = BUDGET_NONE;
    assert_int_equal(member_post(w.people[person].member, &p, w.now), 0);
}

static void post_kind(uint32_t person, enum collective_id kind)
{
    post(person, (struct post){ .d.kind = kind });
}

static void split(uint32_t person, int32_t color, int32_t key)
{
    post(person,
         (struct post){
             .d.kind = COLLECTIVE_SPLIT, .color = color, .key = key, .child_number = 70 + person });
}

/* A send or recv of nothing: what is matched, not what is moved. */
static void pair(uint32_t person, enum collective_id kind, uint32_t peer, uint32_t tag,
                 enum dtype_id dtype)
{
    post(person, (struct post){ .d = { .kind = kind, .dtype = dtype, .shape = { 1, { 0 } } },
                                .peer = peer,
                                .tag = tag });
}

/* ---- ids */

TEST(an_id_is_printable_and_short_and_never_the_same)
{
    char other[COMM_ID_BYTES];

    new_id();
    assert_int_equal(strncmp(w.id, "rc1-", 4), 0);
    assert_int_equal(strcspn(w.id, "@"), 4 + 26);
    assert_string_equal(strchr(w.id, '@'), "@node");
    comms_id_new(w.comms, UID, w.now, other, &w.e);
    assert_string_not_equal(w.id, other);
}

TEST(an_unjoined_id_lapses)
{
    new_id();
    assert_int_equal(comms_deadline(w.comms), w.now + LIFETIME);
    w.now += LIFETIME;
    comms_tick(w.comms, w.now);
    assert_int_equal(comms_deadline(w.comms), TIME_NEVER);
    assert_int_equal(join(0, 1), -ERROR_NOT_FOUND);
}

TEST(without_a_network_another_nodes_id_is_answered_with_advice)
{
    snprintf(w.id, sizeof(w.id), "rc1-abcdefghijklmnopqrstuvwxyz@10.0.0.1:7777");
    assert_int_equal(join(0, 2), -ERROR_NOT_FOUND);
    assert_non_null(strstr(w.e.text, "the daemon at 10.0.0.1:7777"));
    assert_non_null(strstr(w.e.text, "'listen' is not set"));
}

TEST(a_dropped_id_is_gone_and_only_its_owner_drops_it)
{
    new_id();
    assert_int_equal(comms_id_drop(w.comms, UID + 1, w.id, NULL), -ERROR_NOT_FOUND);
    assert_int_equal(comms_id_drop(w.comms, UID, w.id, NULL), 0);
    assert_int_equal(comms_id_drop(w.comms, UID, w.id, NULL), -ERROR_NOT_FOUND);
    assert_int_equal(join(0, 1), -ERROR_NOT_FOUND);
}

TEST(ids_count_towards_the_quota)
{
    for (int i = 0; i < 4; i++)
        new_id();
    assert_int_equal(comms_id_new(w.comms, UID, w.now, w.id, &w.e), -ERROR_QUOTA);
    assert_non_null(strstr(w.e.text, "max_communicators"));
    assert_int_equal(comms_id_new(w.comms, UID + 1, w.now, w.id, NULL), 0);
    comms_set_max(w.comms, 5);
    new_id();
    assert_int_equal(comms_id_new(w.comms, UID, w.now, w.id, NULL), -ERROR_QUOTA);
}

/* ---- joins */

TEST(the_last_rank_completes_the_group)
{
    new_id();
    assert_int_equal(join(1, 2), 0);
    assert_int_equal(w.people[1].joins, 0);
    assert_int_equal(join(0, 2), 0);
    assert_int_equal(w.people[0].joins, 1);
    assert_int_equal(w.people[1].joins, 1);
    assert_int_equal(w.people[1].error.code, 0);
    assert_int_equal(member_rank(w.people[1].member), 1);
    assert_int_equal(member_nranks(w.people[1].member), 2);
}

TEST(a_stranger_may_not_join)
{
    new_id();
    assert_int_equal(join_as(0, UID + 1, 0, 1, 0, ""), -ERROR_PERMISSION);
    assert_int_equal(join(0, 1), 0);
}

TEST(the_overflow_uid_matches_nobody)
{
    assert_int_equal(comms_id_new(w.comms, OVERFLOW, w.now, w.id, NULL), 0);
    assert_int_equal(join_as(0, OVERFLOW, 0, 1, 0, ""), -ERROR_PERMISSION);
}

TEST(impossible_ranks_and_sizes_are_refused)
{
    new_id();
    assert_int_equal(join(0, 0), -ERROR_INVALID_ARGUMENT);
    assert_int_equal(join(2, 2), -ERROR_INVALID_ARGUMENT);
    assert_int_equal(join_as(0, UID, UINT32_MAX, UINT32_MAX, 0, ""), -ERROR_INVALID_ARGUMENT);
    assert_int_equal(join(0, RANKS_MAX + 1), -ERROR_INVALID_ARGUMENT);
    assert_int_equal(join_as(0, UID, 0, 1, 0, "magic"), -ERROR_UNSUPPORTED_ALGORITHM);
    assert_int_equal(join(0, 1), 0);
}

TEST(a_duplicate_rank_is_refused_and_the_group_does_not_notice)
{
    new_id();
    join(0, 2);
    assert_int_equal(join_as(3, UID, 0, 2, 2 * SECOND, ""), -ERROR_DUPLICATE_RANK);
    assert_non_null(strstr(w.e.text, "pid 500"));
    assert_int_equal(join(1, 2), 0);
    assert_int_equal(w.people[0].error.code, 0);
    assert_int_equal(join_as(3, UID, 1, 2, 2 * SECOND, ""), -ERROR_DUPLICATE_RANK);
}

static void expect_join_mismatch(uint32_t nranks, uint64_t timeout_us, const char *algorithm,
                                 const char *word)
{
    new_id();
    join(0, 3);
    assert_int_equal(join_as(1, UID, 1, nranks, timeout_us, algorithm), -ERROR_MISMATCH);
    assert_non_null(strstr(w.e.text, word));
    assert_int_equal(w.people[0].error.code, ERROR_MISMATCH);
    assert_string_equal(w.people[0].error.text, w.e.text);
    assert_int_equal(join(2, 3), -ERROR_MISMATCH);
    member_leave(w.people[0].member, w.now);
    assert_int_equal(comms_count(w.comms), 0);
}

TEST(ranks_that_mean_another_group_fail_it_for_all)
{
    expect_join_mismatch(4, 2 * SECOND, "", "world size 4");
    expect_join_mismatch(3, 3 * SECOND, "", "timeout");
    expect_join_mismatch(3, 2 * SECOND, "hierarchical", "algorithm");
}

TEST(a_join_times_out_naming_who_is_missing)
{
    new_id();
    join(1, 4);
    w.now += SECOND;
    comms_tick(w.comms, w.now);
    join(2, 4);
    assert_int_equal(w.people[1].joins, 0);
    w.now += SECOND;
    comms_tick(w.comms, w.now);
    for (uint32_t r = 1; r <= 2; r++) {
        assert_int_equal(w.people[r].error.code, ERROR_TIMEOUT);
        assert_non_null(strstr(w.people[r].error.text, "missing: ranks 0, 3"));
        assert_int_equal(w.people[r].error.nranks, 2);
    }
    assert_int_equal(join(0, 4), -ERROR_TIMEOUT);
}

TEST(a_timeout_of_none_never_comes)
{
    new_id();
    join_as(0, UID, 0, 2, 0, "");
    assert_int_equal(comms_deadline(w.comms), 5 + LIFETIME); /* the id's, gone by now */
    w.now += 100 * LIFETIME;
    comms_tick(w.comms, w.now);
    assert_int_equal(comms_deadline(w.comms), TIME_NEVER);
    assert_int_equal(w.people[0].joins, 0);
}

TEST(an_endless_timeout_does_not_wrap)
{
    new_id();
    join_as(0, UID, 0, 2, UINT64_MAX - 1, "");
    w.now += 100 * LIFETIME;
    comms_tick(w.comms, w.now);
    assert_int_equal(w.people[0].joins, 0);
}

TEST(a_death_while_forming_is_told_by_name)
{
    new_id();
    join(0, 3);
    join(1, 3);
    member_lost(w.people[1].member, "died", w.now);
    w.people[1].member = NULL;
    assert_int_equal(w.people[0].error.code, ERROR_RANK_LOST);
    assert_non_null(strstr(w.people[0].error.text, "rank 1 (pid 501 on here) died"));
    assert_int_equal(w.people[1].joins, 0);
}

TEST(leaving_while_forming_is_told_too)
{
    new_id();
    join(0, 2);
    member_leave(w.people[0].member, w.now);
    assert_int_equal(w.people[0].lefts, 1);
    assert_int_equal(comms_count(w.comms), 0);
}

/* ---- the end */

TEST(all_leave_in_good_order_and_nothing_is_left)
{
    form(3);
    for (uint32_t r = 0; r < 3; r++) {
        member_leave(w.people[r].member, w.now);
        assert_int_equal(w.people[r].lefts, 1);
    }
    assert_int_equal(comms_count(w.comms), 0);
    assert_int_equal(join(0, 3), -ERROR_NOT_FOUND);
}

TEST(who_calls_after_a_leave_is_told_who_left)
{
    form(3);
    member_leave(w.people[1].member, w.now);
    post_kind(0, COLLECTIVE_BARRIER);
    assert_int_equal(w.people[0].error.code, ERROR_RANK_LEFT);
    assert_int_equal(w.people[0].error.ranks[0], 1);
    post_kind(2, COLLECTIVE_BARRIER);
    assert_string_equal(w.people[2].error.text, w.people[0].error.text);
}

TEST(the_first_failure_is_sticky)
{
    form(2);
    member_abort(w.people[0].member, "first", w.now);
    member_abort(w.people[1].member, "second", w.now);
    for (uint32_t r = 0; r < 2; r++) {
        post_kind(r, COLLECTIVE_BARRIER);
        assert_int_equal(w.people[r].error.code, ERROR_ABORTED);
        assert_non_null(strstr(w.people[r].error.text, "aborted by rank 0: first"));
    }
    assert_int_equal(comms_unfinished(w.comms), 0);
}

TEST(a_death_among_idle_ranks_fails_the_next_call_at_once)
{
    form(2);
    member_lost(w.people[0].member, "disconnected", w.now);
    w.people[0].member = NULL;
    post_kind(1, COLLECTIVE_BARRIER);
    assert_int_equal(w.people[1].error.code, ERROR_RANK_LOST);
    assert_non_null(strstr(w.people[1].error.text, "disconnected"));
}

TEST(a_timeout_names_who_arrived_and_what_the_others_did_last)
{
    form(3);
    for (uint32_t r = 0; r < 3; r++)
        post_kind(r, COLLECTIVE_BARRIER);
    post_kind(0, COLLECTIVE_BARRIER);
    w.now += 2 * SECOND;
    comms_tick(w.comms, w.now);
    assert_int_equal(w.people[0].error.code, ERROR_TIMEOUT);
    assert_non_null(strstr(w.people[0].error.text, "barrier 2 of 'job'"));
    assert_non_null(strstr(w.people[0].error.text, "rank 0 arrived, ranks 1, 2 did not"));
    assert_non_null(strstr(w.people[0].error.text, "rank 1 (pid 501 on here) last: barrier 1"));
}

TEST(an_idle_communicator_never_times_out)
{
    form(2);
    w.now += 1000 * LIFETIME;
    comms_tick(w.comms, w.now);
    for (uint32_t r = 0; r < 2; r++)
        post_kind(r, COLLECTIVE_BARRIER);
    assert_int_equal(w.people[0].error.code, 0);
    assert_int_equal(w.people[0].answers, 1);
}

TEST(a_stopping_daemon_forms_nothing_new_and_finishes_what_runs)
{
    char other[COMM_ID_BYTES];

    form(2);
    comms_stop(w.comms);
    assert_int_equal(comms_id_new(w.comms, UID, w.now, other, NULL), -ERROR_DAEMON_STOPPING);
    assert_int_equal(join_as(3, UID, 0, 2, 0, ""), -ERROR_DAEMON_STOPPING);
    post_kind(0, COLLECTIVE_BARRIER);
    assert_int_equal(comms_unfinished(w.comms), 1);
    post_kind(1, COLLECTIVE_BARRIER);
    assert_int_equal(w.people[0].error.code, 0);
    split(0, 0, 0);
    split(1, 0, 0);
    assert_int_equal(w.people[1].error.code, ERROR_DAEMON_STOPPING);
    assert_int_equal(comms_unfinished(w.comms), 0);
}

/* ---- splits */

TEST(a_split_orders_by_key_then_rank)
{
    form(4);
    split(0, 7, 1);
    split(1, 7, 0);
    split(2, RANKS_MAX, 0);
    split(3, 7, 0);
    const uint32_t ranks[] = { 2, 0, 0, 1 }, sizes[] = { 3, 3, 1, 3 };

    for (uint32_t r = 0; r < 4; r++) {
        assert_non_null(w.people[r].child);
        assert_int_equal(w.people[r].child_number, 70 + r);
        assert_int_equal(member_rank(w.people[r].child), ranks[r]);
        assert_int_equal(member_nranks(w.people[r].child), sizes[r]);
    }
    assert_string_equal(member_id(w.people[0].child), member_id(w.people[3].child));
    assert_string_not_equal(member_id(w.people[0].child), member_id(w.people[2].child));
    for (uint32_t r = 0; r < 4; r++)
        member_lost(w.people[r].child, "died", w.now);
}

TEST(a_negative_color_gets_nothing)
{
    form(2);
    split(0, -1, 0);
    split(1, 0, 0);
    assert_null(w.people[0].child);
    assert_int_equal(w.people[0].error.code, 0);
    assert_int_equal(member_nranks(w.people[1].child), 1);
    member_lost(w.people[1].child, "died", w.now);
}

TEST(a_split_over_the_quota_fails_for_all_and_leaves_nothing)
{
    form(5);
    for (uint32_t r = 0; r < 5; r++)
        split(r, (int32_t)r, 0);
    for (uint32_t r = 0; r < 5; r++) {
        assert_int_equal(w.people[r].error.code, ERROR_QUOTA);
        assert_null(w.people[r].child);
    }
    assert_int_equal(comms_count(w.comms), 1);
    for (uint32_t r = 0; r < 5; r++)
        post_kind(r, COLLECTIVE_BARRIER);
    assert_int_equal(w.people[4].error.code, 0);
}

TEST(a_child_outlives_its_parent)
{
    form(2);
    split(0, 0, 0);
    split(1, 0, 0);
    for (uint32_t r = 0; r < 2; r++) {
        struct member *child = w.people[r].child;

        member_leave(w.people[r].member, w.now);
        w.people[r].member = child;
    }
    assert_int_equal(comms_count(w.comms), 1);
    for (uint32_t r = 0; r < 2; r++)
        post_kind(r, COLLECTIVE_BARRIER);
    assert_int_equal(w.people[1].error.code, 0);
}

/* ---- pairs */

TEST(pairs_match_by_peer_and_tag_in_order)
{
    form(3);
    pair(0, COLLECTIVE_SEND, 1, 5, DTYPE_F32);
    pair(1, COLLECTIVE_RECV, 0, 6, DTYPE_F32);
    pair(1, COLLECTIVE_RECV, 2, 5, DTYPE_F32);
    assert_int_equal(comms_unfinished(w.comms), 3);
    pair(1, COLLECTIVE_RECV, 0, 5, DTYPE_F32);
    assert_int_equal(w.people[0].answers, 1);
    assert_int_equal(w.people[1].answers, 1);
    pair(2, COLLECTIVE_SEND, 1, 5, DTYPE_F32);
    pair(0, COLLECTIVE_SEND, 1, 6, DTYPE_F32);
    assert_int_equal(w.people[1].answers, 3);
    assert_int_equal(comms_unfinished(w.comms), 0);
}

TEST(a_rank_may_send_to_itself)
{
    form(1);
    pair(0, COLLECTIVE_SEND, 0, 0, DTYPE_U8);
    pair(0, COLLECTIVE_RECV, 0, 0, DTYPE_U8);
    assert_int_equal(w.people[0].answers, 2);
    assert_int_equal(w.people[0].error.code, 0);
}

TEST(a_pair_that_disagrees_fails_for_both_and_for_nobody_else)
{
    form(2);
    pair(0, COLLECTIVE_SEND, 1, 0, DTYPE_F32);
    pair(1, COLLECTIVE_RECV, 0, 0, DTYPE_F64);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(w.people[r].error.code, ERROR_MISMATCH);
        post_kind(r, COLLECTIVE_BARRIER);
    }
    assert_int_equal(w.people[1].error.code, 0);
}

TEST(a_peer_out_of_range_fails_the_caller_at_once)
{
    form(2);
    pair(0, COLLECTIVE_SEND, 2, 0, DTYPE_F32);
    assert_int_equal(w.people[0].error.code, ERROR_INVALID_ARGUMENT);
    assert_int_equal(comms_unfinished(w.comms), 0);
}

TEST(a_pair_takes_no_sequence_number)
{
    form(1);
    pair(0, COLLECTIVE_SEND, 0, 0, DTYPE_U8);
    assert_int_equal(member_sequence(w.people[0].member), 1);
    post_kind(0, COLLECTIVE_BARRIER);
    assert_int_equal(member_sequence(w.people[0].member), 2);
}

TEST(an_unmatched_pair_times_out)
{
    form(2);
    pair(0, COLLECTIVE_SEND, 1, 9, DTYPE_F32);
    w.now += 2 * SECOND;
    comms_tick(w.comms, w.now);
    assert_int_equal(w.people[0].error.code, ERROR_TIMEOUT);
    assert_non_null(strstr(w.people[0].error.text, "rank 0 arrived, rank 1 did not"));
}

TEST(an_unmatched_pair_with_itself_says_which_half_is_missing)
{
    static const struct {
        enum collective_id kind;
        const char *why;
    } rows[] = {
        { COLLECTIVE_SEND,
          "send of 'job': timeout after 2 s; no recv with tag 9 at rank 1 (itself)" },
        { COLLECTIVE_RECV,
          "recv of 'job': timeout after 2 s; no send with tag 9 at rank 1 (itself)" },
    };

    for (size_t i = 0; i < 2; i++) {
        form(2);
        pair(1, rows[i].kind, 1, 9, DTYPE_F32);
        w.now += 2 * SECOND;
        comms_tick(w.comms, w.now);
        assert_int_equal(w.people[1].error.code, ERROR_TIMEOUT);
        assert_string_equal(w.people[1].error.text, rows[i].why);
        assert_int_equal(w.people[1].error.nranks, 1);
        assert_int_equal(w.people[1].error.ranks[0], 1);
        for (uint32_t r = 0; r < 2; r++)
            member_leave(w.people[r].member, w.now);
    }
}

TEST(a_send_to_a_rank_that_left_fails)
{
    form(3);
    member_leave(w.people[1].member, w.now);
    pair(0, COLLECTIVE_SEND, 2, 0, DTYPE_F32);
    pair(2, COLLECTIVE_RECV, 0, 0, DTYPE_F32);
    assert_int_equal(w.people[2].error.code, 0);
    pair(0, COLLECTIVE_SEND, 1, 0, DTYPE_F32);
    assert_int_equal(w.people[0].error.code, ERROR_RANK_LEFT);
}

/* ---- odd requests */

TEST(an_unknown_kind_is_a_rejection_in_its_slot)
{
    form(2);
    post_kind(0, (enum collective_id)99);
    post_kind(1, COLLECTIVE_BARRIER);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(w.people[r].error.code, ERROR_INVALID_ARGUMENT);
        assert_int_equal(w.people[r].error.ranks[0], 0);
        post_kind(r, COLLECTIVE_BARRIER);
    }
    assert_int_equal(w.people[0].error.code, 0);
    assert_int_equal(w.people[1].error.code, 0);
}

TEST(a_tensor_that_is_missing_is_a_rejection)
{
    form(1);
    post(0, (struct post){ .d = { .kind = COLLECTIVE_ALL_REDUCE,
                                  .op = OPERATOR_SUM,
                                  .dtype = DTYPE_F32,
                                  .shape = { 1, { 3 } } } });
    assert_int_equal(w.people[0].error.code, ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(w.people[0].error.text, "needs an input tensor of 12 bytes"));
}

TEST(fifty_communicators_in_quick_succession)
{
    for (int i = 0; i < 50; i++) {
        form(PEOPLE);
        for (uint32_t r = 0; r < PEOPLE; r++)
            post_kind(r, COLLECTIVE_BARRIER);
        for (uint32_t r = 0; r < PEOPLE; r++) {
            assert_int_equal(w.people[r].error.code, 0);
            member_leave(w.people[r].member, w.now);
        }
    }
    assert_int_equal(comms_count(w.comms), 0);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, open_world, close_world)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(an_id_is_printable_and_short_and_never_the_same),
        CASE(an_unjoined_id_lapses),
        CASE(without_a_network_another_nodes_id_is_answered_with_advice),
        CASE(a_dropped_id_is_gone_and_only_its_owner_drops_it),
        CASE(ids_count_towards_the_quota),
        CASE(the_last_rank_completes_the_group),
        CASE(a_stranger_may_not_join),
        CASE(the_overflow_uid_matches_nobody),
        CASE(impossible_ranks_and_sizes_are_refused),
        CASE(a_duplicate_rank_is_refused_and_the_group_does_not_notice),
        CASE(ranks_that_mean_another_group_fail_it_for_all),
        CASE(a_join_times_out_naming_who_is_missing),
        CASE(a_timeout_of_none_never_comes),
        CASE(an_endless_timeout_does_not_wrap),
        CASE(a_death_while_forming_is_told_by_name),
        CASE(leaving_while_forming_is_told_too),
        CASE(all_leave_in_good_order_and_nothing_is_left),
        CASE(who_calls_after_a_leave_is_told_who_left),
        CASE(the_first_failure_is_sticky),
        CASE(a_death_among_idle_ranks_fails_the_next_call_at_once),
        CASE(a_timeout_names_who_arrived_and_what_the_others_did_last),
        CASE(an_idle_communicator_never_times_out),
        CASE(a_stopping_daemon_forms_nothing_new_and_finishes_what_runs),
        CASE(a_split_orders_by_key_then_rank),
        CASE(a_negative_color_gets_nothing),
        CASE(a_split_over_the_quota_fails_for_all_and_leaves_nothing),
        CASE(a_child_outlives_its_parent),
        CASE(pairs_match_by_peer_and_tag_in_order),
        CASE(a_rank_may_send_to_itself),
        CASE(a_pair_that_disagrees_fails_for_both_and_for_nobody_else),
        CASE(a_peer_out_of_range_fails_the_caller_at_once),
        CASE(a_pair_takes_no_sequence_number),
        CASE(an_unmatched_pair_times_out),
        CASE(an_unmatched_pair_with_itself_says_which_half_is_missing),
        CASE(a_send_to_a_rank_that_left_fails),
        CASE(an_unknown_kind_is_a_rejection_in_its_slot),
        CASE(a_tensor_that_is_missing_is_a_rejection),
        CASE(fifty_communicators_in_quick_succession),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
