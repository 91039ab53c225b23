/* Communicators over several nodes are found by their keys, whatever those are. */
#include "tests/unit/unit.h"

#include <string.h>

#include "daemon/comm/nodes.h"
#include "daemon/comm/talk.h"

#define HERE  "00000000-0000-0000-0000-000000000000"
#define THERE "00000000-0000-0000-0000-000000000001"
#define COMMS 64u

static struct comms comms;
static struct comm groups[COMMS];
static struct seat seats[COMMS][2];

/* Some begin alike, two are the same. */
static void key_of(uint32_t i, uint8_t ret[PEER_KEY_BYTES])
{
    memset(ret, 0, PEER_KEY_BYTES);
    ret[0] = (uint8_t)(i == COMMS - 1 ? 0 : i % 5);
    ret[15] = (uint8_t)(i == COMMS - 1 ? 0 : i);
}

static void make(uint32_t i)
{
    static struct member *const somebody = (struct member *)&comms;
    static const struct peer_node nodes[] = { { HERE, "here", "here:1" },
                                              { THERE, "there", "there:1" } };
    static const uint32_t node_of_rank[] = { 0, 1 }, pids[] = { 7, 8 };
    struct peer_form form = { .nodes = nodes,
                              .nnodes = 2,
                              .node_of_rank = node_of_rank,
                              .pids = pids,
                              .nranks = 2,
                              .chunk_bytes = 4096,
                              .depth = 1 };
    struct error e = { 0 };

    key_of(i, form.key);
    seats[i][0] = (struct seat){ .state = SEAT_TAKEN, .member = somebody };
    groups[i] = (struct comm){ .comms = &comms, .nranks = 2, .seats = seats[i] };
    if (nodes_new(&groups[i], &form, &e) < 0)
        fail_msg("%s", e.text);
}

static const struct comm *find(uint32_t i)
{
    struct peer_message m = { .kind = PEER_ASK };

    key_of(i, m.ask.key);
    return talk_find(&comms, &m);
}

TEST(each_is_found_by_its_key_while_it_is_there)
{
    comms.config.node = HERE;
    for (uint32_t i = 0; i < COMMS - 1; i++)
        make(i);
    for (uint32_t i = 0; i < COMMS - 1; i++)
        assert_ptr_equal(find(i), &groups[i]);
    for (uint32_t i = 0; i < COMMS - 1; i += 2)
        nodes_free(groups[i].nodes);
    for (uint32_t i = 0; i < COMMS - 1; i++)
        assert_ptr_equal(find(i), i % 2 ? &groups[i] : NULL);
    for (uint32_t i = 1; i < COMMS - 1; i += 2)
        nodes_free(groups[i].nodes);
    assert_int_equal(comms.nodes.count, 0);
    map_fini(&comms.nodes);
}

TEST(of_two_that_have_one_key_the_older_is_found)
{
    static const uint32_t orders[2][2] = { { 0, COMMS - 1 }, { COMMS - 1, 0 } };

    for (uint32_t k = 0; k < 2; k++) {
        for (uint32_t i = 0; i < 2; i++)
            make(orders[k][i]);
        assert_ptr_equal(find(0), &groups[orders[k][0]]);
        nodes_free(groups[orders[k][0]].nodes);
        assert_ptr_equal(find(0), &groups[orders[k][1]]);
        nodes_free(groups[orders[k][1]].nodes);
        assert_null(find(0));
    }
    map_fini(&comms.nodes);
}

TEST(a_message_without_a_key_finds_nothing)
{
    const struct peer_message m = { .kind = PEER_GO };

    make(0);
    assert_null(talk_find(&comms, &m));
    nodes_free(groups[0].nodes);
    map_fini(&comms.nodes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_found_by_its_key_while_it_is_there),
        cmocka_unit_test(of_two_that_have_one_key_the_older_is_found),
        cmocka_unit_test(a_message_without_a_key_finds_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
