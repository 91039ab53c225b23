#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "client/ctl/ctl.h"
#include "client/ctl/fetch.h"
#include "client/ctl/print.h"
#include "client/ctl/columns.h"
#include "proto/packet.h"

/* ------------------------------------------------ a node with something going on */

static const struct status_item items[] = {
    { .kind = STATUS_DAEMON,
      .daemon = { .version = "0.1.0",
                  .node = "node-1",
                  .state = "serving",
                  .kernels = "x86-64-v3",
                  .pid = 42,
                  .sessions = 2,
                  .communicators = 3,
                  .regions = 1,
                  .workers = 4,
                  .uptime_us = 11520000000,
                  .region_bytes = 1610612736 } },
    { .kind = STATUS_GPU,
      .gpu = { .uuid = "GPU-01234567-89ab-cdef-0123-456789abcdef",
               .name = "NVIDIA H200",
               .mapped_bytes = 3ull << 30,
               .mappings = 2 } },
    { .kind = STATUS_GPU,
      .gpu = { .uuid = "GPU-11111111-89ab-cdef-0123-456789abcdef",
               .name = "NVIDIA L4",
               .failed = true,
               .failures = 17 } },
    { .kind = STATUS_PEER,
      .peer = { .node = "0123",
                .host = "node-2",
                .address = "10.0.0.2:7777",
                .state = "up",
                .transport = "tcp eth0",
                .gpu_direct = true,
                .expecting = 2,
                .heard_age_us = 420000 } },
    { .kind = STATUS_PEER,
      .peer = { .host = "10.0.0.3:7777", .address = "10.0.0.3:7777", .state = "connecting" } },
    { .kind = STATUS_SESSION,
      .session = { .session = 1,
                   .region_bytes = 1610612736,
                   .pid = 4301,
                   .uid = 1000,
                   .regions = 1,
                   .in_flight = 1,
                   .members = 2,
                   .name = "trainer" } },
    { .kind = STATUS_SESSION,
      .session = { .session = 12, .pid = 7, .members = 1, .name = "Zürich" } },
    { .kind = STATUS_COMMUNICATOR,
      .communicator = { .communicator = 7,
                        .sequence = 41,
                        .oldest_sequence = 41,
                        .oldest_age_us = 12345678,
                        .nranks = 3,
                        .present = 3,
                        .oldest_kind = COLLECTIVE_ALL_REDUCE,
                        .label = "train",
                        .state = "ready",
                        .failure = "",
                        .oldest_state = "arriving",
                        .oldest_arrived = "ranks 0, 1",
                        .oldest_missing = "rank 2" } },
    { .kind = STATUS_COMMUNICATOR,
      .communicator = { .communicator = 8,
                        .sequence = 1,
                        .nranks = 2,
                        .present = 1,
                        .state = "failed",
                        .failure = "rank lost: rank 1 (pid 9) died" } },
    { .kind = STATUS_COMMUNICATOR,
      .communicator = { .communicator = 9, .nranks = 4, .present = 1, .state = "joining" } },
    { .kind = STATUS_MEMBER,
      .member = { .communicator = 7,
                  .session = 1,
                  .sequence = 42,
                  .last_age_us = 12345678,
                  .pid = 4301,
                  .last = "all_reduce 41",
                  .arrived = true } },
    { .kind = STATUS_MEMBER,
      .member = { .communicator = 7,
                  .session = 1,
                  .sequence = 42,
                  .last_age_us = 900,
                  .rank = 1,
                  .pid = 4301,
                  .last = "all_reduce 41",
                  .arrived = true } },
    { .kind = STATUS_MEMBER,
      .member = { .communicator = 8,
                  .session = 1,
                  .last_age_us = 61000000,
                  .pid = 4301,
                  .last = "joined" } },
    { .kind = STATUS_MEMBER,
      .member = { .communicator = 7,
                  .session = 12,
                  .sequence = 41,
                  .last_age_us = 12500000,
                  .rank = 2,
                  .pid = 7,
                  .last = "barrier 40" } },
    { .kind = STATUS_MEMBER,
      .member = { .communicator = 9, .rank = 3, .pid = 55, .last = "on node-2" } },
};

static const char expected_text[] =
    "ruccld 0.1.0 on node-1: pid 42, serving, up 3 h 12 min, 4 workers, kernels x86-64-v3\n"
    "2 sessions, 3 communicators, 1 region of 1.5 GiB\n"
    "\n"
    "GPU                                       NAME         MAPPINGS  BYTES  STATE   FAILURES\n"
    "GPU-01234567-89ab-cdef-0123-456789abcdef  NVIDIA H200         2  3 GiB  usable         0\n"
    "GPU-11111111-89ab-cdef-0123-456789abcdef  NVIDIA L4           0    0 B  FAILED        17\n"
    "\n"
    "PEER           ADDRESS        NODE  STATE       TRANSPORT  EXPECTING   HEARD\n"
    "node-2         10.0.0.2:7777  0123  up          tcp eth0           2  420 ms\n"
    "10.0.0.3:7777  10.0.0.3:7777        connecting                     0    0 us\n"
    "GPU memory: direct\n"
    "\n"
    "SESSION   PID   UID  NAME     REGIONS    BYTES  IN FLIGHT  MEMBERS\n"
    "      1  4301  1000  trainer        1  1.5 GiB          1        2\n"
    "     12     7     0  Zürich         0      0 B          0        1\n"
    "\n"
    "communicator 7 \"train\": ready, 3 of 3 ranks present, 41 operations completed\n"
    "  oldest unfinished: all_reduce 41, arriving, for 12.3 s\n"
    "    arrived: ranks 0, 1\n"
    "    missing: rank 2\n"
    "  RANK   PID  SESSION  NEXT  LAST              AGO\n"
    "     0  4301        1    42  all_reduce 41  12.3 s  arrived\n"
    "     1  4301        1    42  all_reduce 41  900 us  arrived\n"
    "     2     7       12    41  barrier 40     12.5 s  MISSING\n"
    "\n"
    "communicator 8: failed, 1 of 2 ranks present, 1 operation completed\n"
    "  failure: rank lost: rank 1 (pid 9) died\n"
    "  RANK   PID  SESSION  NEXT  LAST          AGO\n"
    "     0  4301        1     0  joined  1 min 1 s\n"
    "\n"
    "communicator 9: joining, 1 of 4 ranks present, 0 operations completed\n"
    "  RANK  PID  SESSION  NEXT  LAST       AGO\n"
    "     3   55                 on node-2\n";

static void fill(struct status *s)
{
    for (size_t i = 0; i < ARRAY_SIZE(items); i++)
        assert_int_equal(status_add(s, &items[i]), 0);
}

static char *text_of(const struct status *s)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    print_text(s, f);
    fclose(f);
    return text;
}

static json_t *json_of(const struct status *s)
{
    char *text = NULL;
    size_t len;
    struct error e = { 0 };
    FILE *f = open_memstream(&text, &len);

    assert_int_equal(print_json(s, f, &e), 0);
    fclose(f);

    json_t *root = json_loads(text, 0, NULL);

    assert_non_null(root);
    free(text);
    return root;
}

/* ------------------------------------------------ printing */

static void test_text_shows_a_node_at_one_glance(void **state)
{
    struct status s = { 0 };

    (void)state;
    fill(&s);

    char *text = text_of(&s);

    assert_string_equal(text, expected_text);
    free(text);
    status_fini(&s);
}

static void test_text_of_an_idle_daemon_is_its_two_lines(void **state)
{
    struct status s = { 0 };
    struct status_item idle = items[0];

    (void)state;
    idle.daemon.sessions = idle.daemon.communicators = idle.daemon.regions = 0;
    idle.daemon.region_bytes = 0;
    assert_int_equal(status_add(&s, &idle), 0);

    char *text = text_of(&s);

    assert_string_equal(text, "ruccld 0.1.0 on node-1: pid 42, serving, up 3 h 12 min, 4 workers, "
                              "kernels x86-64-v3\n"
                              "0 sessions, 0 communicators, 0 regions of 0 B\n");
    free(text);
    status_fini(&s);
}

static const char *json_text_at(json_t *array, size_t i, const char *key)
{
    return json_string_value(json_object_get(json_array_get(array, i), key));
}

static json_int_t json_number_at(json_t *array, size_t i, const char *key)
{
    return json_integer_value(json_object_get(json_array_get(array, i), key));
}

static void test_json_holds_everything_under_its_communicator(void **state)
{
    struct status s = { 0 };

    (void)state;
    fill(&s);

    json_t *root = json_of(&s);
    json_t *daemon = json_object_get(root, "daemon");
    json_t *sessions = json_object_get(root, "sessions");
    json_t *communicators = json_object_get(root, "communicators");

    json_t *gpus = json_object_get(root, "gpus");

    assert_int_equal(json_object_size(root), 5);
    assert_int_equal(json_array_size(gpus), 2);
    assert_string_equal(json_text_at(gpus, 0, "uuid"), items[1].gpu.uuid);
    assert_string_equal(json_text_at(gpus, 1, "name"), "NVIDIA L4");
    assert_int_equal(json_number_at(gpus, 0, "mapped_bytes"), 3ull << 30);
    assert_int_equal(json_number_at(gpus, 0, "mappings"), 2);
    assert_true(json_is_false(json_object_get(json_array_get(gpus, 0), "failed")));
    assert_true(json_is_true(json_object_get(json_array_get(gpus, 1), "failed")));
    assert_int_equal(json_number_at(gpus, 1, "failures"), 17);
    assert_string_equal(json_string_value(json_object_get(daemon, "node")), "node-1");
    assert_int_equal(json_integer_value(json_object_get(daemon, "uptime_us")), 11520000000);
    json_t *peers = json_object_get(root, "peers");

    assert_int_equal(json_array_size(peers), 2);
    assert_string_equal(json_text_at(peers, 0, "host"), "node-2");
    assert_string_equal(json_text_at(peers, 0, "transport"), "tcp eth0");
    assert_string_equal(json_text_at(peers, 0, "gpu_memory"), "direct");
    assert_string_equal(json_text_at(peers, 1, "gpu_memory"), "staged");
    assert_string_equal(json_text_at(peers, 1, "node"), "");
    assert_int_equal(json_number_at(peers, 0, "heard_age_us"), 420000);
    assert_int_equal(json_array_size(sessions), 2);
    assert_string_equal(json_text_at(sessions, 1, "name"), "Zürich");
    assert_int_equal(json_number_at(sessions, 0, "region_bytes"), 1610612736);
    assert_int_equal(json_array_size(communicators), 3);

    json_t *waiting = json_array_get(communicators, 0), *failed = json_array_get(communicators, 1);
    json_t *oldest = json_object_get(waiting, "oldest");
    json_t *members = json_object_get(waiting, "members");

    assert_true(json_is_null(json_object_get(waiting, "failure")));
    assert_string_equal(json_string_value(json_object_get(oldest, "kind")), "all_reduce");
    assert_string_equal(json_string_value(json_object_get(oldest, "missing")), "rank 2");
    assert_int_equal(json_array_size(members), 3);
    assert_int_equal(json_number_at(members, 2, "session"), 12);
    assert_string_equal(json_text_at(members, 2, "last"), "barrier 40");
    assert_true(json_is_false(json_object_get(json_array_get(members, 2), "arrived")));
    assert_true(json_is_null(json_object_get(failed, "oldest")));
    assert_string_equal(json_text_at(communicators, 1, "failure"),
                        "rank lost: rank 1 (pid 9) died");
    assert_int_equal(json_array_size(json_object_get(json_array_get(communicators, 2), "members")),
                     1);
    json_decref(root);
    status_fini(&s);
}

static void test_json_of_nothing_is_still_an_object(void **state)
{
    struct status s = { 0 };
    json_t *root = json_of(&s);

    (void)state;
    assert_true(json_is_null(json_object_get(root, "daemon")));
    assert_int_equal(json_array_size(json_object_get(root, "sessions")), 0);
    json_decref(root);
}

static void test_json_keeps_the_size_of_numbers_beyond_its_own(void **state)
{
    struct status s = { 0 };
    struct status_item huge = { .kind = STATUS_SESSION, .session = { .session = UINT64_MAX } };

    (void)state;
    assert_int_equal(status_add(&s, &huge), 0);

    json_t *root = json_of(&s);
    json_t *session = json_array_get(json_object_get(root, "sessions"), 0);

    assert_true(json_number_value(json_object_get(session, "session")) > 1.8e19);
    json_decref(root);
    status_fini(&s);
}

static void test_bytes_and_ages_are_told_in_units(void **state)
{
    char buffer[UNITS_BYTES];

    (void)state;
    assert_string_equal(text_bytes(buffer, 0), "0 B");
    assert_string_equal(text_bytes(buffer, 1023), "1023 B");
    assert_string_equal(text_bytes(buffer, 1024), "1 KiB");
    assert_string_equal(text_bytes(buffer, 1536), "1.5 KiB");
    assert_string_equal(text_bytes(buffer, 1048575), "1.0 MiB");
    assert_string_equal(text_bytes(buffer, UINT64_MAX), "16 EiB");
    assert_string_equal(text_age(buffer, 0), "0 us");
    assert_string_equal(text_age(buffer, 999), "999 us");
    assert_string_equal(text_age(buffer, 1000), "1 ms");
    assert_string_equal(text_age(buffer, 999999), "999 ms");
    assert_string_equal(text_age(buffer, 1000000), "1.0 s");
    assert_string_equal(text_age(buffer, 59999999), "59.9 s");
    assert_string_equal(text_age(buffer, 60000000), "1 min 0 s");
    assert_string_equal(text_age(buffer, 3600000000), "1 h 0 min");
    assert_string_equal(text_age(buffer, 90000000000), "1 d 1 h");
    assert_string_equal(text_age(buffer, UINT64_MAX), "213503982 d 8 h");
}

/* ------------------------------------------------ a daemon that follows a script */

struct fake {
    char directory[32], path[64];
    int listener;
    pthread_t thread;
    const struct reply *script;
    size_t nscript;
    struct request heard[8]; /* strings in them are gone */
    uint32_t nfds[8];
    bool silent; /* keeps the connection and says nothing when the script is over */
};

static void *fake_run(void *data)
{
    struct fake *f = data;
    struct packet *packet = malloc(sizeof(*packet));
    struct codec *codec = NULL;
    uint8_t *bytes = malloc(PACKET_BYTES_MAX);
    int socket = accept(f->listener, NULL, NULL);

    codec_new(&codec);
    for (size_t i = 0; i < f->nscript; i++) {
        struct reply reply = f->script[i];

        if (packet_recv(socket, packet) != 0 ||
            codec_decode_request(codec, packet->bytes, packet->len, &f->heard[i], NULL) < 0)
            break;
        f->nfds[i] = packet->nfds;
        packet_close_fds(packet);
        reply.serial += f->heard[i].serial;

        int len = codec_encode_reply(&reply, bytes);

        packet_send(socket, bytes, (uint32_t)len, reply.kind == REPLY_WELCOME ? STDERR_FILENO : -1);
    }
    if (f->silent) {
        struct pollfd gone = { .fd = socket, .events = POLLRDHUP };

        poll(&gone, 1, 5000);
    }
    close(socket);
    codec_free(codec);
    free(packet);
    free(bytes);
    return NULL;
}

static void fake_start(struct fake *f, const struct reply *script, size_t nscript)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    strcpy(f->directory, "/tmp/ruccl-test-XXXXXX");
    assert_non_null(mkdtemp(f->directory));
    snprintf(f->path, sizeof(f->path), "%s/ruccld.sock", f->directory);
    strcpy(address.sun_path, f->path);
    f->script = script;
    f->nscript = nscript;
    f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(f->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(f->listener, 1), 0);
    assert_int_equal(pthread_create(&f->thread, NULL, fake_run, f), 0);
}

static void fake_stop(struct fake *f)
{
    pthread_join(f->thread, NULL);
    close(f->listener);
    unlink(f->path);
    rmdir(f->directory);
}

#define WELCOME                                                                                    \
    {                                                                                              \
        .kind = REPLY_WELCOME, .welcome = {.version = CODEC_VERSION_MAX, .slots = 16 }             \
    }
#define PAGE(first, n, next)                                                                       \
    {                                                                                              \
        .kind = REPLY_STATUS_PAGE, .status_page = { &items[first], n, next }                       \
    }

static const struct reply good_script[] = { WELCOME, PAGE(0, 4, 1000), PAGE(4, 1, 3),
                                            PAGE(5, ARRAY_SIZE(items) - 5, 0) };

/* ------------------------------------------------ fetching */

static int count_fds(void)
{
    int n = 0;

    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void test_fetch_greets_and_follows_the_cursor_to_the_end(void **state)
{
    struct fake f = { 0 };
    struct status s = { 0 };
    struct error e = { 0 };
    int before = count_fds();

    (void)state;
    fake_start(&f, good_script, ARRAY_SIZE(good_script));
    assert_int_equal(fetch_status(f.path, 5000000, &s, &e), 0);
    fake_stop(&f);

    assert_int_equal(f.heard[0].kind, REQUEST_HELLO);
    assert_int_equal(f.heard[0].hello.version_min, CODEC_VERSION_MIN);
    assert_int_equal(f.heard[0].hello.version_max, CODEC_VERSION_MAX);
    assert_int_equal(f.nfds[0], 1);
    assert_int_equal(f.heard[1].status.cursor, 0);
    assert_int_equal(f.heard[2].status.cursor, 1000);
    assert_int_equal(f.heard[3].status.cursor, 3);
    assert_int_equal(f.nfds[1], 0);

    char *text = text_of(&s);

    assert_string_equal(text, expected_text);
    free(text);
    status_fini(&s);
    assert_int_equal(count_fds(), before);
}

static void assert_fetch_fails(const struct reply *script, size_t nscript, bool silent,
                               const char *complaint)
{
    struct fake f = { .silent = silent };
    struct status s = { 0 };
    struct error e = { 0 };
    int before = count_fds();

    fake_start(&f, script, nscript);

    int r = fetch_status(f.path, silent ? 50000 : 5000000, &s, &e);

    fake_stop(&f);
    status_fini(&s);
    assert_true(r < 0);
    assert_int_equal(r, -(int)e.code);
    if (!strstr(e.text, complaint))
        fail_msg("'%s' does not say '%s'", e.text, complaint);
    assert_non_null(strstr(e.text, f.path));
    assert_int_equal(count_fds(), before);
}

static void test_fetch_passes_on_what_the_daemon_refuses(void **state)
{
    const struct reply refusal = { .kind = REPLY_DONE,
                                   .done = { .code = ERROR_QUOTA, .text = "too many sessions" } };
    const struct reply stopping[] = {
        WELCOME,
        { .kind = REPLY_GOODBYE, .done = { .code = ERROR_DAEMON_STOPPING, .text = "stops" } }
    };

    (void)state;
    assert_fetch_fails(&refusal, 1, false, ": too many sessions");
    assert_fetch_fails(stopping, 2, false, ": stops");
}

static void test_fetch_ends_where_the_daemon_goes(void **state)
{
    (void)state;
    assert_fetch_fails(NULL, 0, false, "no daemon answers at ");
    assert_fetch_fails(good_script, 2, false, "no daemon answers at ");
}

static void test_fetch_does_not_wait_for_ever(void **state)
{
    (void)state;
    assert_fetch_fails(NULL, 0, true, "does not answer within 0.05 s");
    assert_fetch_fails(good_script, 3, true, "does not answer within 0.05 s");
}

static void test_fetch_refuses_answers_to_something_else(void **state)
{
    const struct reply wrong_kind[] = { { .kind = REPLY_ID } };
    const struct reply wrong_serial[] = { { .kind = REPLY_WELCOME, .serial = 1 } };

    (void)state;
    assert_fetch_fails(wrong_kind, 1, false, "an answer to something else");
    assert_fetch_fails(wrong_serial, 1, false, "an answer to something else");
}

/* ------------------------------------------------ the program */

struct ran {
    int status;
    char *out, *err;
};

static struct ran run(const char *a, const char *b, const char *c, const char *d)
{
    char *argv[] = { (char *)"rucclctl", (char *)a, (char *)b, (char *)c, (char *)d, NULL };
    struct ran ran = { 0 };
    size_t len;
    int argc = 0;
    FILE *out = open_memstream(&ran.out, &len), *err = open_memstream(&ran.err, &len);

    while (argv[argc])
        argc++;
    ran.status = ctl_run(argc, argv, out, err);
    fclose(out);
    fclose(err);
    return ran;
}

static void ran_fini(struct ran *ran)
{
    free(ran->out);
    free(ran->err);
}

static void assert_usage(const char *a, const char *b, const char *c, const char *complaint)
{
    struct ran ran = run(a, b, c, NULL);

    assert_int_equal(ran.status, CTL_USAGE);
    assert_string_equal(ran.out, "");
    if (!strstr(ran.err, complaint) || !strstr(ran.err, "; see rucclctl --help\n"))
        fail_msg("'%s' does not say '%s'", ran.err, complaint);
    ran_fini(&ran);
}

static void test_unknown_arguments_are_named(void **state)
{
    (void)state;
    assert_usage(NULL, NULL, NULL, "a command is missing");
    assert_usage("--json", NULL, NULL, "a command is missing");
    assert_usage("stats", NULL, NULL, "unknown command stats");
    assert_usage("status", "--jsn", NULL, "unknown argument --jsn");
    assert_usage("status", "-x", NULL, "unknown argument -x");
    assert_usage("status", "more", NULL, "unknown argument more");
    assert_usage("status", "--json=yes", NULL, "unknown argument --json=yes");
    assert_usage("status", "--json", "--socket", "a value is missing behind --socket");
}

static void test_help_and_version_need_no_daemon(void **state)
{
    struct ran ran = run("--help", NULL, NULL, NULL);

    (void)state;
    assert_int_equal(ran.status, 0);
    assert_non_null(strstr(ran.out, "Usage: rucclctl status"));
    ran_fini(&ran);
    ran = run("status", "--help", NULL, NULL);
    assert_int_equal(ran.status, 0);
    ran_fini(&ran);
    ran = run("--version", NULL, NULL, NULL);
    assert_int_equal(ran.status, 0);
    assert_string_equal(ran.out, "rucclctl " PROJECT_VERSION "\n");
    ran_fini(&ran);
}

static void test_no_daemon_is_worded(void **state)
{
    char long_path[256];
    struct ran ran = run("status", "--socket", "/nonexistent/ruccld.sock", NULL);

    (void)state;
    assert_int_equal(ran.status, CTL_FAILED);
    assert_string_equal(ran.out, "");
    assert_string_equal(ran.err, "rucclctl: no daemon answers at /nonexistent/ruccld.sock: "
                                 "No such file or directory\n");
    ran_fini(&ran);

    memset(long_path, 'a', sizeof(long_path) - 1);
    long_path[sizeof(long_path) - 1] = 0;
    ran = run("status", "--socket", long_path, NULL);
    assert_int_equal(ran.status, CTL_FAILED);
    assert_non_null(strstr(ran.err, "File name too long"));
    ran_fini(&ran);
}

static void test_status_prints_what_the_daemon_told(void **state)
{
    struct fake f = { 0 };

    (void)state;
    fake_start(&f, good_script, ARRAY_SIZE(good_script));

    struct ran ran = run("status", "--socket", f.path, NULL);

    fake_stop(&f);
    assert_int_equal(ran.status, 0);
    assert_string_equal(ran.out, expected_text);
    assert_string_equal(ran.err, "");
    ran_fini(&ran);
}

static void test_status_as_json_finds_the_socket_in_the_environment(void **state)
{
    struct fake f = { 0 };

    (void)state;
    fake_start(&f, good_script, ARRAY_SIZE(good_script));
    setenv("RUCCL_SOCKET", f.path, 1);

    struct ran ran = run("--json", "status", NULL, NULL);

    unsetenv("RUCCL_SOCKET");
    fake_stop(&f);
    assert_int_equal(ran.status, 0);

    json_t *root = json_loads(ran.out, 0, NULL);

    assert_int_equal(json_array_size(json_object_get(root, "communicators")), 3);
    json_decref(root);
    ran_fini(&ran);
}

static void test_output_that_cannot_be_written_is_a_failure(void **state)
{
    char *argv[] = { (char *)"rucclctl", (char *)"--help", NULL };
    FILE *full = fopen("/dev/full", "w"), *err = fopen("/dev/null", "w");

    (void)state;
    assert_int_equal(ctl_run(2, argv, full, err), CTL_FAILED);
    fclose(full);
    fclose(err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_shows_a_node_at_one_glance),
        cmocka_unit_test(test_text_of_an_idle_daemon_is_its_two_lines),
        cmocka_unit_test(test_json_holds_everything_under_its_communicator),
        cmocka_unit_test(test_json_of_nothing_is_still_an_object),
        cmocka_unit_test(test_json_keeps_the_size_of_numbers_beyond_its_own),
        cmocka_unit_test(test_bytes_and_ages_are_told_in_units),
        cmocka_unit_test(test_fetch_greets_and_follows_the_cursor_to_the_end),
        cmocka_unit_test(test_fetch_passes_on_what_the_daemon_refuses),
        cmocka_unit_test(test_fetch_ends_where_the_daemon_goes),
        cmocka_unit_test(test_fetch_does_not_wait_for_ever),
        cmocka_unit_test(test_fetch_refuses_answers_to_something_else),
        cmocka_unit_test(test_unknown_arguments_are_named),
        cmocka_unit_test(test_help_and_version_need_no_daemon),
        cmocka_unit_test(test_no_daemon_is_worded),
        cmocka_unit_test(test_status_prints_what_the_daemon_told),
        cmocka_unit_test(test_status_as_json_finds_the_socket_in_the_environment),
        cmocka_unit_test(test_output_that_cannot_be_written_is_a_failure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
