/* The daemon as a service: its socket and lock, its signals, and what it tells the service manager.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/end_to_end/daemon.h"
#include "tests/end_to_end/raw.h"

static const char *const no_arguments[] = { NULL };

/* Another one on the same path; returns how it ends. Its words are in d->log. */
static int start_a_second(const struct daemon *d)
{
    struct daemon second = *d;

    daemon_spawn(&second, no_arguments);
    return daemon_wait(&second, 10000);
}

static void make_comm(struct raw *c, uint32_t nranks, uint32_t joined)
{
    char id[CODEC_ID_MAX + 1];

    raw_new_id(c, id);
    for (uint32_t rank = 0; rank < joined; rank++)
        raw_join(c, rank + 1, id, rank, nranks);
    for (uint32_t rank = 0; rank < joined && joined == nranks; rank++)
        raw_expect_done(c, ERROR_NONE, NULL);
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void the_socket_comes_and_goes_with_the_daemon(void **state)
{
    struct daemon d;
    struct stat st;
    char lock[DAEMON_PATH_BYTES + 8], directory[DAEMON_PATH_BYTES];

    (void)state;
    daemon_init(&d);
    snprintf(directory, sizeof(directory), "%s/made", d.directory);
    snprintf(d.socket, sizeof(d.socket), "%s/made/s", d.directory);
    snprintf(lock, sizeof(lock), "%s.lock", d.socket);
    daemon_start(&d, (const char *const[]){ "--set=socket_mode=0640", NULL });
    assert_int_equal(stat(directory, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0755);
    assert_int_equal(stat(d.socket, &st), 0);
    assert_true(S_ISSOCK(st.st_mode));
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_equal(stat(lock, &st), 0);

    kill(d.pid, SIGTERM);
    assert_int_equal(daemon_wait(&d, 10000), 0);
    assert_int_equal(rmdir(directory), 0); /* empty, then */
    daemon_fini(&d);
}

static void a_second_daemon_is_told_who_serves(void **state)
{
    struct daemon d;
    struct raw c;
    char text[300];

    (void)state;
    daemon_run(&d);
    assert_int_equal(start_a_second(&d), 1);
    snprintf(text, sizeof(text), "another daemon (pid %d) serves %s", d.pid, d.socket);
    assert_true(daemon_logged(&d, text));
    raw_open(&c, d.socket); /* the first never noticed */
    raw_close(&c);
    daemon_stop(&d);
}

static void a_dead_daemons_socket_is_replaced(void **state)
{
    struct daemon d;
    struct raw c;

    (void)state;
    daemon_run(&d);
    kill(d.pid, SIGKILL);
    assert_int_equal(daemon_wait(&d, 10000), 128 + SIGKILL);
    assert_int_equal(access(d.socket, F_OK), 0);
    daemon_start(&d, no_arguments);
    assert_true(daemon_logged(&d, "removed the socket that a dead daemon left"));
    raw_open(&c, d.socket);
    raw_close(&c);
    daemon_stop(&d);
}

static void what_is_not_ours_stays(void **state)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct daemon d;
    int other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)state;
    daemon_init(&d);
    write_text(d.socket, "precious");
    assert_int_equal(start_a_second(&d), 1);
    assert_true(daemon_logged(&d, "is there and is no socket"));
    assert_int_equal(unlink(d.socket), 0);

    strcpy(address.sun_path, d.socket);
    assert_int_equal(bind(other, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(other, 1), 0);
    assert_int_equal(start_a_second(&d), 1);
    assert_true(daemon_logged(&d, "another program serves"));
    assert_int_equal(access(d.socket, F_OK), 0);
    close(other);
    daemon_fini(&d);
}

static void a_bad_option_ends_it_with_a_sentence(void **state)
{
    struct daemon d;

    (void)state;
    daemon_init(&d);
    daemon_spawn(&d, (const char *const[]){ "--set=max_sessions=0", NULL });
    assert_int_equal(daemon_wait(&d, 10000), 2);
    assert_true(daemon_logged(&d, "max_sessions: '0' is not a number from 1 to"));
    daemon_fini(&d);
}

static void a_network_that_cannot_be_ends_it_with_a_sentence(void **state)
{
    static const struct {
        const char *arguments[3], *why;
    } rows[] = {
        { { "--set=listen=0.0.0.0:0" }, "0.0.0.0:0 is no address that others could reach" },
        { { "--set=listen=192.0.2.1:7" }, "192.0.2.1" },
        { { "--set=listen=127.0.0.1:0", "--set=cluster_key=/nonexistent" },
          "cluster key /nonexistent: No such file" },
        { { "--set=listen=127.0.0.1:0", "--set=cluster_key=/dev/null" },
          "cluster key /dev/null: not a regular file" },
        { { "--set=listen=127.0.0.1:0", "--set=transport=carrier" },
          "transport 'carrier' is not in this build; there is: tcp" },
        { { "--set=transport=carrier" },
          "transport 'carrier' is not in this build; there is: tcp" },
        { { "--set=listen=127.0.0.1:0", "--set=tuning=/nonexistent" }, "/nonexistent" },
        { { "--set=tuning=/nonexistent" }, "/nonexistent" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct daemon d;

        daemon_init(&d);
        daemon_spawn(&d, rows[i].arguments);
        assert_int_equal(daemon_wait(&d, 10000), 1);
        assert_true(daemon_logged(&d, rows[i].why));
        daemon_fini(&d);
    }
}

static void a_tuning_file_is_read_without_a_network_too(void **state)
{
    char path[DAEMON_PATH_BYTES], argument[DAEMON_PATH_BYTES + 16];
    int fd = raw_memfd(16384);
    struct request r[2];
    struct daemon d;
    struct raw c;

    (void)state;
    daemon_init(&d);
    snprintf(path, sizeof(path), "%s/tuning", d.directory);
    snprintf(argument, sizeof(argument), "--set=tuning=%s", path);
    write_text(path, "[chunks]\nbytes = lots\n");
    daemon_spawn(&d, (const char *const[]){ argument, NULL });
    assert_int_equal(daemon_wait(&d, 10000), 1);
    assert_true(daemon_logged(&d, "tuning:2: bytes"));

    write_text(path, "[chunks]\nbytes = 4K\n");
    daemon_start(&d, (const char *const[]){ argument, NULL });
    raw_open(&c, d.socket);
    make_comm(&c, 2, 2);
    for (uint32_t i = 0; i < 2; i++) {
        raw_open_region(&c, i + 1, fd, 16384);
        r[i] = raw_sum(i + 1, 1, i, i + 1, 2048);
        r[i].post.in.offset = r[i].post.out.offset = i * 8192;
    }
    for (uint32_t i = 0; i < 2; i++)
        raw_send(&c, &r[i], -1);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(raw_expect_completion(&c, 0)->code, ERROR_NONE);
        assert_int_equal(c.reply.completion.chunk_elements, 1024);
        assert_int_equal(c.reply.completion.chunks, 2);
    }
    close(fd);
    raw_close(&c);
    daemon_stop(&d);
}

/* A connection to where the daemon says that others reach it. */
static int connect_to_network(const struct daemon *d)
{
    struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    char text[4096] = "";
    unsigned port = 0;
    FILE *f = fopen(d->log, "re");
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_non_null(f);
    assert_true(fread(text, 1, sizeof(text) - 1, f) > 0);
    fclose(f);
    assert_non_null(strstr(text, "reach this one at 127.0.0.1:"));
    sscanf(strstr(text, "reach this one at "), "reach this one at 127.0.0.1:%u", &port);
    sa.sin_port = htons((uint16_t)port);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    return fd;
}

static void strangers_on_the_network_are_dropped_and_hurt_nobody(void **state)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: ruccl\r\n\r\n";
    struct daemon d;
    struct raw c;
    char byte;

    (void)state;
    daemon_run(&d, "--set=listen=127.0.0.1:0", "--log-level=info");
    raw_open(&c, d.socket);
    make_comm(&c, 2, 2);
    unsigned fds = daemon_fds(&d);
    int silent = connect_to_network(&d);

    for (unsigned i = 0; i < 20; i++) {
        int fd = connect_to_network(&d);

        assert_int_equal(send(fd, http, sizeof(http), MSG_NOSIGNAL), sizeof(http));
        assert_true(recv(fd, &byte, 1, 0) <= 0);
        close(fd);
    }
    assert_true(daemon_logged(&d, "does not speak as a daemon of ruCCL does"));
    daemon_settle(&d);
    assert_int_equal(daemon_fds(&d), fds + 1);
    make_comm(&c, 1, 0);
    raw_close(&c);
    daemon_stop(&d);
    assert_true(recv(silent, &byte, 1, 0) <= 0);
    close(silent);
}

static void a_reload_changes_quotas_and_says_so(void **state)
{
    struct request r = { .kind = REQUEST_REGION_OPEN };
    char config[DAEMON_PATH_BYTES];
    struct daemon d;
    struct raw c;
    int fd = raw_memfd(4096);

    (void)state;
    daemon_init(&d);
    snprintf(config, sizeof(config), "%s/conf", d.directory);
    write_text(config, "[limits]\nmax_regions = 1\n");
    daemon_start(&d, (const char *const[]){ "--config", config, NULL });
    raw_open(&c, d.socket);
    raw_open_region(&c, 1, fd, 4096);
    r.region_open.region = 2;
    r.region_open.bytes = 4096;
    raw_ask(&c, &r, fd, ERROR_QUOTA, "max_regions");

    write_text(config, "[limits]\nmax_regions = 2\n[daemon]\nworkers = 1\n");
    kill(d.pid, SIGHUP);
    daemon_wait_notice(&d, "RELOADING=1");
    daemon_wait_notice(&d, "READY=1");
    raw_ask(&c, &r, fd, ERROR_NONE, NULL);
    assert_true(daemon_logged(&d, "'workers' counts from the next start on"));

    write_text(config, "[limits]\nmax_regions = lots\n");
    kill(d.pid, SIGHUP);
    daemon_wait_notice(&d, "RELOADING=1");
    daemon_wait_notice(&d, "READY=1");
    assert_true(daemon_logged(&d, "the configuration stays as it was"));
    r.region_open.region = 3;
    raw_ask(&c, &r, fd, ERROR_QUOTA, "may have 2");
    close(fd);
    raw_close(&c);
    daemon_stop(&d);
}

static void told_to_stop_it_says_goodbye(void **state)
{
    struct daemon d;
    struct raw c;

    (void)state;
    daemon_run(&d);
    raw_open(&c, d.socket);
    kill(d.pid, SIGTERM);
    daemon_wait_notice(&d, "STOPPING=1");
    raw_expect_goodbye(&c, ERROR_DAEMON_STOPPING, "told to stop");
    assert_int_equal(daemon_wait(&d, 10000), 0);
    raw_close(&c);
    daemon_fini(&d);
}

static void draining_lets_what_has_begun_finish(void **state)
{
    struct daemon d;
    struct raw c;

    (void)state;
    daemon_run(&d);
    raw_open(&c, d.socket);
    make_comm(&c, 2, 2);
    raw_barrier(&c, 1, 1, 0);
    raw_ask_status(&c); /* the daemon has it */
    kill(d.pid, SIGTERM);
    daemon_wait_notice(&d, "STOPPING=1");
    raw_send(&c, &(struct request){ .kind = REQUEST_ID_NEW }, -1);
    raw_expect_done(&c, ERROR_DAEMON_STOPPING, NULL);
    raw_barrier(&c, 2, 1, 1);
    for (int i = 0; i < 2; i++)
        assert_int_equal(raw_expect(&c, REPLY_COMPLETION)->completion.error.code, ERROR_NONE);
    raw_expect_goodbye(&c, ERROR_DAEMON_STOPPING, NULL);
    assert_int_equal(daemon_wait(&d, 10000), 0);
    raw_close(&c);
    daemon_fini(&d);
}

static void what_does_not_finish_in_time_is_failed(void **state)
{
    struct daemon d;
    struct raw c;
    uint64_t start;

    (void)state;
    daemon_run(&d, "--set=drain_timeout=300ms", "--log-level=info");
    raw_open(&c, d.socket);
    make_comm(&c, 2, 2);
    assert_true(daemon_logged(&d, " of 2 ranks: forming -> ready"));
    assert_false(daemon_logged(&d, "''")); /* it has no label */
    raw_barrier(&c, 1, 1, 0);
    raw_ask_status(&c); /* the daemon has it */
    start = test_now_ms();
    kill(d.pid, SIGTERM);
    assert_int_equal(raw_expect(&c, REPLY_COMPLETION)->completion.error.code,
                     ERROR_DAEMON_STOPPING);
    assert_in_range(test_now_ms() - start, 250, 5000);
    assert_true(daemon_logged(&d, ": 1 operation was not finished in time"));
    raw_expect_goodbye(&c, ERROR_DAEMON_STOPPING, NULL);
    assert_int_equal(daemon_wait(&d, 10000), 0);
    raw_close(&c);
    daemon_fini(&d);
}

static void told_twice_it_stops_at_once(void **state)
{
    struct daemon d;
    struct raw c;

    (void)state;
    daemon_run(&d, "--set=drain_timeout=1h");
    raw_open(&c, d.socket);
    make_comm(&c, 2, 1); /* for ever unfinished */
    raw_ask_status(&c);  /* the daemon has it */
    kill(d.pid, SIGTERM);
    daemon_wait_notice(&d, "STOPPING=1");
    kill(d.pid, SIGTERM);
    assert_int_equal(daemon_wait(&d, 10000), 1);
    assert_int_equal(access(d.socket, F_OK), -1);
    raw_close(&c);
    daemon_fini(&d);
}

static void the_watchdog_is_fed(void **state)
{
    struct daemon d;

    (void)state;
    setenv("WATCHDOG_USEC", "200000", 1);
    daemon_run(&d);
    unsetenv("WATCHDOG_USEC");
    daemon_wait_notice(&d, "WATCHDOG=1");
    daemon_wait_notice(&d, "WATCHDOG=1");
    daemon_stop(&d);
}

static void without_descriptors_it_turns_away_and_lives(void **state)
{
    struct rlimit few = { 24, 24 };
    struct daemon d;
    struct raw c[40];
    size_t n = 0, served = 0;

    (void)state;
    daemon_run(&d);
    assert_int_equal(prlimit(d.pid, RLIMIT_NOFILE, &few, NULL), 0);
    for (; n < ARRAY_SIZE(c); n++) {
        int pidfd = raw_pidfd(getpid());

        raw_connect(&c[n], d.socket);
        raw_hello(&c[n], CODEC_VERSION_MIN, CODEC_VERSION_MAX, pidfd);
        close(pidfd);
        if (!raw_receive(&c[n]) || c[n].reply.kind != REPLY_WELCOME)
            break;
        c[n].cells = packet_take_fd(&c[n].in, 0);
        served++;
    }
    assert_in_range(served, 2, 12);
    for (size_t i = 0; i <= n; i++)
        raw_close(&c[i]);
    raw_open(&c[0], d.socket); /* it has rested by then */
    raw_close(&c[0]);
    daemon_stop(&d);
}

static const char *find_activator(void)
{
    static const char *const paths[] = { "/usr/bin/systemd-socket-activate",
                                         "/lib/systemd/systemd-socket-activate" };

    for (size_t i = 0; i < ARRAY_SIZE(paths); i++)
        if (access(paths[i], X_OK) == 0)
            return paths[i];
    return NULL;
}

#define ACCEPTS 0x10000 /* of /proc/net/unix: somebody listens */

static bool is_listened_at(const char *path)
{
    char line[512], name[256];
    unsigned flags;
    bool found = false;
    FILE *f = fopen("/proc/net/unix", "re");

    assert_non_null(f);
    while (!found && fgets(line, sizeof(line), f))
        found = sscanf(line, "%*s %*x %*x %x %*x %*x %*u %255s", &flags, name) == 2 &&
                flags & ACCEPTS && strcmp(name, path) == 0;
    fclose(f);
    return found;
}

static void await_listener(const char *path)
{
    const uint64_t end = test_now_ms() + 10000;

    while (!is_listened_at(path)) {
        if (test_now_ms() > end)
            fail_msg("nobody listens at %s", path);
        test_sleep_ms(5);
    }
}

static void a_service_managers_socket_is_taken_and_left(void **state)
{
    const char *activator = find_activator();
    struct daemon d;
    struct raw c;

    (void)state;
    if (!activator)
        skip();
    daemon_init(&d);
    d.pid = fork();
    if (d.pid == 0) {
        if (!freopen(d.log, "a", stderr))
            _exit(127);
        execl(activator, activator, "--seqpacket", "-l", d.socket, getenv("RUCCLD"), NULL);
        _exit(127);
    }
    await_listener(d.socket);
    raw_open(&c, d.socket);
    kill(d.pid, SIGTERM);
    raw_expect_goodbye(&c, ERROR_DAEMON_STOPPING, NULL);
    assert_int_equal(daemon_wait(&d, 10000), 0);
    assert_int_equal(access(d.socket, F_OK), 0);
    raw_close(&c);
    daemon_fini(&d);
}

/* The daemon, at a socket of ours. */
static _Noreturn void serve_socket(const struct daemon *d, int listener)
{
    char pid[16];

    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    setenv("LISTEN_PID", pid, 1);
    setenv("LISTEN_FDS", "1", 1);
    if (!freopen(d->log, "a", stderr) || dup2(listener, 3) < 0 || fcntl(3, F_SETFD, 0) < 0)
        _exit(127);
    execl(getenv("RUCCLD"), getenv("RUCCLD"), NULL);
    _exit(127);
}

static void clients_see_whose_the_socket_has_become(void **state)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct ucred peer = { 0 };
    struct daemon d;
    struct raw c;
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    (void)state;
    daemon_init(&d);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", d.socket);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(listener, 8), 0);
    d.pid = fork();
    if (d.pid == 0)
        serve_socket(&d, listener);
    close(listener);
    raw_open(&c, d.socket);
    raw_close(&c);
    raw_open(&c, d.socket); /* it has had its first client */
    assert_int_equal(
        getsockopt(c.socket, SOL_SOCKET, SO_PEERCRED, &peer, &(socklen_t){ sizeof(peer) }), 0);
    assert_int_equal(peer.pid, d.pid);
    raw_close(&c);
    daemon_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        daemon_test(the_socket_comes_and_goes_with_the_daemon),
        daemon_test(a_second_daemon_is_told_who_serves),
        daemon_test(a_dead_daemons_socket_is_replaced),
        daemon_test(what_is_not_ours_stays),
        daemon_test(a_bad_option_ends_it_with_a_sentence),
        daemon_test(a_network_that_cannot_be_ends_it_with_a_sentence),
        daemon_test(a_tuning_file_is_read_without_a_network_too),
        daemon_test(strangers_on_the_network_are_dropped_and_hurt_nobody),
        daemon_test(a_reload_changes_quotas_and_says_so),
        daemon_test(told_to_stop_it_says_goodbye),
        daemon_test(draining_lets_what_has_begun_finish),
        daemon_test(what_does_not_finish_in_time_is_failed),
        daemon_test(told_twice_it_stops_at_once),
        daemon_test(the_watchdog_is_fed),
        daemon_test(without_descriptors_it_turns_away_and_lives),
        daemon_test(a_service_managers_socket_is_taken_and_left),
        daemon_test(clients_see_whose_the_socket_has_become),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
