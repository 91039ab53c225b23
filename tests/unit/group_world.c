#include "tests/unit/group_world.h"

struct group_world w;

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

int open_world(void **state)
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

int close_world(void **state)
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

void new_id(void)
{
    assert_int_equal(comms_id_new(w.comms, UID, w.now, w.id, &w.e), 0);
}

int join_as(uint32_t person, uid_t uid, uint32_t rank, uint32_t nranks, uint64_t timeout_us,
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

int join(uint32_t rank, uint32_t nranks)
{
    return join_as(rank, UID, rank, nranks, 2 * SECOND, "");
}

void form(uint32_t nranks)
{
    new_id();
    for (uint32_t r = 0; r < nranks; r++)
        assert_int_equal(join(r, nranks), 0);
}

void post(uint32_t person, struct post p)
{
    p.serial = 1;
    p.d.budget = BUDGET_NONE;
    assert_int_equal(member_post(w.people[person].member, &p, w.now), 0);
}

void post_kind(uint32_t person, enum collective_id kind)
{
    post(person, (struct post){ .d.kind = kind });
}

void split(uint32_t person, int32_t color, int32_t key)
{
    post(person,
         (struct post){
             .d.kind = COLLECTIVE_SPLIT, .color = color, .key = key, .child_number = 70 + person });
}

void pair(uint32_t person, enum collective_id kind, uint32_t peer, uint32_t tag,
          enum dtype_id dtype)
{
    post(person, (struct post){ .d = { .kind = kind, .dtype = dtype, .shape = { 1, { 0 } } },
                                .peer = peer,
                                .tag = tag });
}
