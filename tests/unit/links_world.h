/*
 * A world of daemons' links in one loop, over real sockets: each daemon a struct comms, which notes
 * what it is told, and a transport that moves nothing. Functions fail the test where they fail.
 */
#ifndef TESTS_UNIT_LINKS_WORLD_H
#define TESTS_UNIT_LINKS_WORLD_H

#include "tests/unit/unit.h"

#include <uv.h>

#include "daemon/server/link_crypt.h"
#include "daemon/server/links.h"

#define MS           1000u
#define PATIENCE_MS  20000u /* for what must come */
#define PEER_TIMEOUT (300 * MS)
#define DAEMONS_MAX  4u

struct fake_peer {
    struct transport_peer base;
    bool connected;
    void (*failed)(void *owner, int err);
    void *owner;
    char address[32];
};

extern struct fake {
    unsigned made, alive;
    const char *settings;
    struct fake_peer *last;
} fake;

/* What stands where comm does: it notes what it is told. */
struct comms {
    struct links *links;
    char node[37];
    unsigned up, lost;
    struct link *last_up, *last_lost;
    struct error why;
    uint64_t messages, next; /* asks that came, each numbered one above the one before */
    bool in_order;
    uint64_t big_bytes;
    bool had_peer; /* when it was lost */
    bool reopens;  /* a lost link, at once */
    struct link *reopened;
};

extern uv_loop_t loop;
extern struct comms daemons[DAEMONS_MAX];
extern const char *const nodes[DAEMONS_MAX]; /* their names, ascending */
extern struct link_key key, other_key, no_key;
extern const struct links_events events;

/* A test in a world of its own, in whose wake nothing may be left. */
#define LINK_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int set_up(void **state);
int tear_down(void **state);
/* Of a group of tests. */
int keys_read(void **state);

/* Daemon i, on 127.0.0.1 and with the key unless that is changed. */
struct links_config plain_config(unsigned i);
struct comms *start_with(unsigned i, const struct links_config *config);
struct comms *start(unsigned i);
void stop(struct comms *c);

/* Sets *ret_late when the time is over. */
void limit_start(bool *ret_late, unsigned ms);
void limit_stop(void);
void run_for(unsigned ms);

/* Runs the loop until something is so. */
#define run_until(condition)                                                                       \
    do {                                                                                           \
        bool late_;                                                                                \
                                                                                                   \
        limit_start(&late_, PATIENCE_MS);                                                          \
        while (!(condition) && !late_)                                                             \
            uv_run(&loop, UV_RUN_ONCE);                                                            \
        limit_stop();                                                                              \
        if (late_)                                                                                 \
            fail_msg("never: %s", #condition);                                                     \
    } while (0)

struct link *open_link(struct comms *c, const char *address, const char *node, bool dial);
struct link *dial(struct comms *from, const struct comms *to);
/* n asks, numbered from `first` on. */
void send_asks(struct link *l, uint64_t first, uint64_t n);
/* Half a megabyte. */
const struct peer_message *big_message(void);

void says(const struct error *e, const char *what);
/* The link is lost, for that reason, and let go of. */
void lost_because(struct comms *c, struct link *l, const char *what);
bool have_v6(void);

#endif
