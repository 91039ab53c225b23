#include "tests/end_to_end/driver.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/end_to_end/daemon.h"
#include "tests/end_to_end/raw.h"
#include "tests/unit/unit.h"

#define SETTLE_MS 20000
#define KEPT      40u /* registrations of the daemon's own memory, at most */

/* ---- which GPUs there are */

static void find_gpus(struct driver *d)
{
    unsigned n = 0;
    struct raw c;

    raw_open(&c, d->harness.socket);
    raw_ask_status(&c);
    for (uint32_t i = 0; i < c.reply.status_page.nitems; i++) {
        const struct status_item *item = &c.reply.status_page.items[i];

        if (item->kind != STATUS_GPU)
            continue;
        assert_true(n < DRIVER_GPUS);
        snprintf(d->texts[n], sizeof(d->texts[n]), "%s", item->gpu.uuid);
        assert_true(cuda_uuid_parse(d->texts[n], d->uuids[n]));
        n++;
    }
    assert_int_equal(n, DRIVER_GPUS);
    raw_close(&c);
}

/* ---- life */

void driver_start(struct driver *d, const char *const *options)
{
    *d = (struct driver){ .dir = "/tmp/ruccl-driver-XXXXXX" };
    if (!mkdtemp(d->dir))
        fail_msg("mkdtemp: %s", strerror(errno));
    snprintf(d->control, sizeof(d->control), "%s/control", d->dir);
    snprintf(d->report, sizeof(d->report), "%s/report", d->dir);
    setenv("FAKE_CUDA_CONTROL", d->control, 1); /* the daemon's alone */
    harness_start(&d->harness, options);
    unsetenv("FAKE_CUDA_CONTROL");
    find_gpus(d);
}

int driver_stop(struct driver *d)
{
    const int r = harness_stop(&d->harness);

    unsetenv("FAKE_CUDA_CONTROL");
    if (d->dir[0]) {
        unlink(d->control);
        unlink(d->report);
        rmdir(d->dir);
    }
    *d = (struct driver){ 0 };
    return r;
}

/* ---- words */

void driver_say(const struct driver *d, const char *words)
{
    char part[sizeof(d->control) + 5];
    FILE *f;

    snprintf(part, sizeof(part), "%s.new", d->control);
    f = fopen(part, "we");
    assert_non_null(f);
    fprintf(f, "%s\n", words);
    fclose(f);
    assert_int_equal(rename(part, d->control), 0);
}

struct request driver_odd_region(const struct driver *d, unsigned gpu, uint32_t number)
{
    struct request r = { .kind = REQUEST_REGION_OPEN };

    r.region_open.region = number;
    r.region_open.bytes = 4096;
    r.region_open.kind = REGION_CUDA_IPC;
    memcpy(r.region_open.gpu, d->uuids[gpu], sizeof(r.region_open.gpu));
    memset(r.region_open.ipc, 0xa5, sizeof(r.region_open.ipc));
    return r;
}

/* Has the daemon call its driver. */
static void prod(const struct driver *d)
{
    struct request r = driver_odd_region(d, 0, 1);
    struct raw c;

    raw_open(&c, d->harness.socket);
    raw_send(&c, &r, -1);
    raw_expect(&c, REPLY_DONE);
    raw_close(&c);
}

/* ---- what it holds */

struct driver_live driver_live(const struct driver *d)
{
    struct driver_live live = { 0 };
    char words[sizeof(d->report) + 8], name[32];
    unsigned n;
    FILE *f;

    prod(d); /* what was said before is heard */
    unlink(d->report);
    snprintf(words, sizeof(words), "report:%s", d->report);
    driver_say(d, words);
    prod(d);
    f = fopen(d->report, "re");
    if (!f)
        fail_msg("the daemon's driver reports nothing");
    for (int i = 0; i < FAKE_CUDA_LIVE_END; i++) {
        assert_int_equal(fscanf(f, "%31s %u", name, &n), 2);
        live.n[i] = n;
    }
    fclose(f);
    return live;
}

static int find_more(const struct driver_live *now, const struct driver_live *before)
{
    for (int i = 0; i < FAKE_CUDA_LIVE_END; i++)
        if (now->n[i] > before->n[i] + (i == FAKE_CUDA_REGISTRATIONS ? KEPT : 0))
            return i;
    return -1;
}

void driver_expect_live(const struct driver *d, const struct driver_live *before)
{
    static const char *const names[] = {
#define LIVE_NAME(ID, name) #name,
        FAKE_CUDA_LIVE_LIST(LIVE_NAME)
#undef LIVE_NAME
    };
    const uint64_t deadline = test_now_ms() + SETTLE_MS;
    struct driver_live now = driver_live(d);
    int more;

    while ((more = find_more(&now, before)) >= 0) {
        if (test_now_ms() > deadline)
            fail_msg("the daemon holds %u %s, but held %u before", now.n[more], names[more],
                     before->n[more]);
        test_sleep_ms(5);
        now = driver_live(d);
    }
}
