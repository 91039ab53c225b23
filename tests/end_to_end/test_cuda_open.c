/* What the daemon's driver does not open: whoever wants it is told, and may ask again. */
#include <stdio.h>

#include "shared/base.h"
#include "tests/end_to_end/driver.h"
#include "tests/end_to_end/gpu_part.h"
#include "tests/unit/unit.h"

#define BYTES 65536u

static struct driver driver;
static struct stage *stage;

static void raise_curtain(void)
{
    driver_start(&driver, NULL);
    stage = stage_open(&driver.harness);
}

static int drop_curtain(void **state)
{
    (void)state;
    stage = stage_close(stage);
    return driver_stop(&driver);
}

/* Whenever it was told. */
static void expect(const struct part *part, uint32_t report, enum ruccl_code code,
                   const char *words)
{
    stage_expect(part, report, code, words, part->reports[report].at_us);
}

/* ---- memory */

/* Registers both kinds of memory, and tells how that went. */
static void play_opener(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_region *regions[2];
    CUdeviceptr ptrs[2];

    part_enter_gpu(me, 0);
    part_cu(me, cuMemAlloc_v2(&ptrs[0], BYTES), "cuMemAlloc");
    ptrs[1] = part_create(me, 0);
    for (uint32_t turn = 1;; turn++) {
        part_wait(me, turn);
        if (atomic_load(&me->cue) == UINT32_MAX)
            break;
        me->nreports = 0;
        for (int i = 0; i < 2; i++) {
            part_report(me,
                        ruccl_register_cuda(conn, (void *)(uintptr_t)ptrs[i], BYTES, &regions[i]));
            if (me->reports[i].result == 0)
                ruccl_release(regions[i]);
        }
        part_reach(me, turn);
    }
    ruccl_close(conn);
}

TEST(memory_that_the_daemon_cannot_open_is_refused_and_leaves_nothing)
{
    static const struct {
        const char *words;
        unsigned which; /* allocated or created */
        enum ruccl_code code;
        const char *text;
    } rows[] = {
        { "cuIpcOpenMemHandle_v2:1:2", 0, RUCCL_NO_MEMORY,
          "cuIpcOpenMemHandle|CUDA_ERROR_OUT_OF_MEMORY" },
        { "cuIpcOpenMemHandle_v2:1:1", 0, RUCCL_INVALID_ARGUMENT,
          "cuIpcOpenMemHandle|CUDA_ERROR_INVALID_VALUE" },
        { "cuIpcOpenMemHandle_v2:1:999", 0, RUCCL_INVALID_ARGUMENT, "CUDA_ERROR_UNKNOWN" },
        { "cuIpcOpenMemHandle_v2:1:700", 0, RUCCL_SYSTEM, "CUDA_ERROR_ILLEGAL_ADDRESS|try again" },
        { "cuMemGetAddressRange_v2:1:500", 0, RUCCL_INVALID_ARGUMENT, "cuMemGetAddressRange" },
        { "cuMemImportFromShareableHandle:1:1", 1, RUCCL_INVALID_ARGUMENT,
          "cuMemImportFromShareableHandle" },
        { "cuMemAddressReserve:1:2", 1, RUCCL_NO_MEMORY, "cuMemAddressReserve" },
        { "cuMemMap:1:2", 1, RUCCL_NO_MEMORY, "cuMemMap" },
        { "cuMemSetAccess:1:999", 1, RUCCL_INVALID_ARGUMENT, "cuMemSetAccess" },
        { "cuMemSetAccess:1:719", 1, RUCCL_SYSTEM, "CUDA_ERROR_LAUNCH_FAILED|try again" },
    };
    struct driver_live before;
    struct part *opener;
    char words[256];

    raise_curtain();
    before = driver_live(&driver);
    opener = stage_add(stage, 0, play_opener);
    for (uint32_t i = 0; i < ARRAY_SIZE(rows); i++) {
        snprintf(words, sizeof(words), "%s|%s", driver.texts[0], rows[i].text);
        driver_say(&driver, rows[i].words);
        stage_cue(opener, 2 * i + 1);
        stage_await(opener, 2 * i + 1);
        expect(opener, rows[i].which, rows[i].code, words);
        expect(opener, !rows[i].which, RUCCL_OK, NULL);
        driver_expect_live(&driver, &before);
        stage_cue(opener, 2 * i + 2);
        stage_await(opener, 2 * i + 2);
        expect(opener, 0, RUCCL_OK, NULL);
        expect(opener, 1, RUCCL_OK, NULL);
        driver_expect_live(&driver, &before);
    }
    stage_cue(opener, UINT32_MAX);
    stage_expect_nothing_left(stage, &driver.harness);
    driver_expect_live(&driver, &before);
}

/* ---- calls */

/* Its first calls, alone: of a GPU, and of that and the host. */
static void play_beginner(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = part_join(s, me, conn, 0, 0, 1, NULL);
    struct ruccl_region *regions[] = { part_region(me, conn, 0, BYTES),
                                       part_region(me, conn, PART_ON_HOST, BYTES) };
    const struct ruccl_tensor in = vector_of(regions[0], 5003);

    comm = ruccl_on_stream(comm, part_stream(me));
    for (uint32_t turn = 0; turn < 4; turn++) {
        const struct ruccl_tensor out = vector_of(regions[turn / 2], 5003);

        part_wait(me, turn + 1);
        part_report(me, ruccl_all_reduce(comm, &in, &out, RUCCL_SUM));
        part_reach(me, turn + 1);
    }
    part_drop_region(me, regions[0], 0);
    part_drop_region(me, regions[1], PART_ON_HOST);
    part_ok(me, ruccl_leave(comm), "leave");
    ruccl_close(conn);
}

TEST(what_a_call_needs_for_the_first_time_may_fail_once)
{
    static const struct {
        const char *words;
        enum ruccl_code code;
        const char *text;
    } turns[] = {
        { "cuIpcOpenEventHandle:1:2", RUCCL_NO_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY" },
        { "", RUCCL_OK, "" },
        { "cuMemHostRegister_v2:1:2", RUCCL_SYSTEM,
          "cuMemHostRegister failed with CUDA_ERROR_OUT_OF_MEMORY" },
        { "", RUCCL_OK, "" },
    };
    struct driver_live before;
    struct part *beginner;
    char words[256];

    raise_curtain();
    before = driver_live(&driver);
    beginner = stage_add(stage, 0, play_beginner);
    for (uint32_t i = 0; i < ARRAY_SIZE(turns); i++) {
        snprintf(words, sizeof(words), "%s|%s", driver.texts[0], turns[i].text);
        driver_say(&driver, turns[i].words);
        stage_cue(beginner, i + 1);
        stage_await(beginner, i + 1);
        expect(beginner, i, turns[i].code, words);
    }
    stage_expect_nothing_left(stage, &driver.harness);
    driver_expect_live(&driver, &before);
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_teardown(name, drop_curtain)
    const struct CMUnitTest tests[] = {
        CLAIM(memory_that_the_daemon_cannot_open_is_refused_and_leaves_nothing),
        CLAIM(what_a_call_needs_for_the_first_time_may_fail_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
