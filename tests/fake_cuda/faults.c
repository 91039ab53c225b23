/* Failures on demand, and what the process holds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fake_cuda/fake.h"

#define WORD_MAX    300u
#define CONTROL_MAX 65536u

struct fault {
    struct list link; // faults
    char name[64];
    unsigned left; /* calls until it strikes */
    bool every, sticky, from_file;
    CUresult code;
};

static pthread_mutex_t fault_lock = PTHREAD_MUTEX_INITIALIZER;
static struct list faults = LIST_INIT(faults);
static bool started;
static struct timespec control_time;
static off_t control_size = -1;
static ino_t control_ino;

static void fault_free(struct fault *f)
{
    list_remove(&f->link);
    free(f);
}

static void fault_forget(bool from_file_only)
{
    struct fault *f, *next;

    list_for_each_safe(f, next, &faults, link)
        if (!from_file_only || f->from_file)
            fault_free(f);
}

static void fault_add(const char *name, unsigned nth, CUresult code, bool sticky, bool from_file)
{
    struct fault *f = calloc(1, sizeof(*f));

    if (!f)
        return;
    snprintf(f->name, sizeof(f->name), "%s", name);
    f->left = nth;
    f->every = nth == 0;
    f->code = code;
    f->sticky = sticky || cuda_error_is_sticky(code);
    f->from_file = from_file;
    list_append(&faults, &f->link);
}

/* Words that are no fault are carried out at once, under fake_lock. */

static unsigned live(enum fake_cuda_live what)
{
    switch (what) {
    case FAKE_CUDA_CONTEXTS:
        return context_count();
    case FAKE_CUDA_ALLOCATIONS:
        return range_count(RANGE_ALLOCATION);
    case FAKE_CUDA_IMPORTS:
        return range_count(RANGE_IMPORT);
    case FAKE_CUDA_HANDLES:
        return vmm_handles();
    case FAKE_CUDA_MAPPINGS:
        return range_count(RANGE_MAPPED);
    case FAKE_CUDA_RESERVATIONS:
        return vmm_reservations();
    case FAKE_CUDA_REGISTRATIONS:
        return range_count(RANGE_HOST);
    case FAKE_CUDA_STREAMS:
        return stream_count();
    case FAKE_CUDA_EVENTS:
        return event_count();
    case FAKE_CUDA_MODULES:
        return module_count();
    default:
        return 0;
    }
}

unsigned fake_cuda_live(enum fake_cuda_live what)
{
    unsigned n;

    if (!fake_is_ours())
        return 0;
    pthread_mutex_lock(&fake_lock);
    n = live(what);
    pthread_mutex_unlock(&fake_lock);
    return n;
}

/* Whole at once, for who waits for it. */
static void report(const char *path)
{
    static const char *const names[] = {
#define LIVE_NAME(ID, name) #name,
        FAKE_CUDA_LIVE_LIST(LIVE_NAME)
#undef LIVE_NAME
    };
    char part[WORD_MAX + 8];
    FILE *f;

    snprintf(part, sizeof(part), "%s.part", path);
    f = fopen(part, "we");
    if (!f)
        return;
    for (unsigned i = 0; i < FAKE_CUDA_LIVE_END; i++)
        fprintf(f, "%s %u\n", names[i], fake_cuda_live(i));
    fprintf(f, "kernels %llu\n", (unsigned long long)fake_cuda_kernels());
    fclose(f);
    rename(part, path);
}

static void poison(unsigned ordinal, CUresult code)
{
    struct gpu *gpu;

    pthread_mutex_lock(&fake_lock);
    gpu = gpu_get((int)ordinal);
    if (gpu && gpu->primary.refs > 0)
        context_poison(&gpu->primary, code);
    pthread_mutex_unlock(&fake_lock);
}

static void act_on(char *word, bool from_file)
{
    char *name = word, *rest = strchr(word, ':'), *end;
    unsigned long nth;

    if (!rest)
        return;
    *rest++ = '\0';
    if (strcmp(name, "report") == 0) {
        report(rest);
        return;
    }
    nth = strtoul(rest, &end, 10);
    if (strcmp(name, "delay") == 0)
        delay_set_all(nth);
    else if (*end == ':' && strcmp(name, "poison") == 0)
        poison((unsigned)nth, atoi(end + 1));
    else if (*end == ':')
        fault_add(name, (unsigned)nth, atoi(end + 1), strstr(end, ",sticky") != NULL, from_file);
}

static void act_on_all(char *text, bool from_file)
{
    char *rest = NULL;

    for (char *word = strtok_r(text, " \t\n;", &rest); word; word = strtok_r(NULL, " \t\n;", &rest))
        act_on(word, from_file);
}

static void environment_read(void)
{
    const char *delay = getenv("FAKE_CUDA_DELAY_US"), *fail = getenv("FAKE_CUDA_FAIL");
    char *text = fail ? strdup(fail) : NULL;

    if (delay)
        delay_set_all(strtoull(delay, NULL, 10));
    if (text)
        act_on_all(text, false);
    free(text);
}

static void control_read(const char *path)
{
    char *text = calloc(1, CONTROL_MAX);
    FILE *f = fopen(path, "re");

    fault_forget(true);
    if (f && text && fread(text, 1, CONTROL_MAX - 1, f) > 0)
        act_on_all(text, true);
    if (f)
        fclose(f);
    free(text);
}

static void control_look(void)
{
    const char *path = getenv("FAKE_CUDA_CONTROL");
    struct stat st;

    if (!path || stat(path, &st) < 0)
        return;
    if (st.st_size == control_size && st.st_ino == control_ino &&
        st.st_mtim.tv_sec == control_time.tv_sec && st.st_mtim.tv_nsec == control_time.tv_nsec)
        return;
    control_size = st.st_size;
    control_ino = st.st_ino;
    control_time = st.st_mtim;
    control_read(path);
}

CUresult fault_take(const char *name, bool *ret_sticky)
{
    struct fault *f, *next;
    CUresult r = CUDA_SUCCESS;

    pthread_mutex_lock(&fault_lock);
    if (!started)
        environment_read();
    started = true;
    control_look();
    list_for_each_safe(f, next, &faults, link) {
        if (strcmp(f->name, name) != 0 || (!f->every && --f->left > 0))
            continue;
        if (r == CUDA_SUCCESS) {
            r = f->code;
            *ret_sticky = f->sticky;
        }
        if (!f->every)
            fault_free(f);
    }
    pthread_mutex_unlock(&fault_lock);
    return r;
}

void fake_cuda_fail(const char *name, unsigned nth, CUresult code)
{
    if (!fake_is_ours())
        return;
    if (name && strcmp(name, "poison") == 0) {
        poison(nth, code);
        return;
    }
    pthread_mutex_lock(&fault_lock);
    if (name)
        fault_add(name, nth, code, false, false);
    else
        fault_forget(false);
    pthread_mutex_unlock(&fault_lock);
}

CUresult cuGetErrorName(CUresult error, const char **ret)
{
    static const struct {
        CUresult code;
        const char *name;
    } names[] = {
#define ERROR_ROW(name) { CUDA_##name, "CUDA_" #name }
        ERROR_ROW(SUCCESS),
        ERROR_ROW(ERROR_INVALID_VALUE),
        ERROR_ROW(ERROR_OUT_OF_MEMORY),
        ERROR_ROW(ERROR_NOT_INITIALIZED),
        ERROR_ROW(ERROR_DEINITIALIZED),
        ERROR_ROW(ERROR_NO_DEVICE),
        ERROR_ROW(ERROR_INVALID_DEVICE),
        ERROR_ROW(ERROR_INVALID_IMAGE),
        ERROR_ROW(ERROR_INVALID_CONTEXT),
        ERROR_ROW(ERROR_NO_BINARY_FOR_GPU),
        ERROR_ROW(ERROR_ECC_UNCORRECTABLE),
        ERROR_ROW(ERROR_PEER_ACCESS_UNSUPPORTED),
        ERROR_ROW(ERROR_NVLINK_UNCORRECTABLE),
        ERROR_ROW(ERROR_CONTAINED),
        ERROR_ROW(ERROR_INVALID_HANDLE),
        ERROR_ROW(ERROR_NOT_FOUND),
        ERROR_ROW(ERROR_NOT_READY),
        ERROR_ROW(ERROR_ILLEGAL_ADDRESS),
        ERROR_ROW(ERROR_LAUNCH_OUT_OF_RESOURCES),
        ERROR_ROW(ERROR_LAUNCH_TIMEOUT),
        ERROR_ROW(ERROR_PEER_ACCESS_ALREADY_ENABLED),
        ERROR_ROW(ERROR_CONTEXT_IS_DESTROYED),
        ERROR_ROW(ERROR_ASSERT),
        ERROR_ROW(ERROR_HOST_MEMORY_ALREADY_REGISTERED),
        ERROR_ROW(ERROR_HARDWARE_STACK_ERROR),
        ERROR_ROW(ERROR_ILLEGAL_INSTRUCTION),
        ERROR_ROW(ERROR_MISALIGNED_ADDRESS),
        ERROR_ROW(ERROR_INVALID_ADDRESS_SPACE),
        ERROR_ROW(ERROR_INVALID_PC),
        ERROR_ROW(ERROR_LAUNCH_FAILED),
        ERROR_ROW(ERROR_TENSOR_MEMORY_LEAK),
        ERROR_ROW(ERROR_NOT_PERMITTED),
        ERROR_ROW(ERROR_NOT_SUPPORTED),
        ERROR_ROW(ERROR_MPS_CLIENT_TERMINATED),
        ERROR_ROW(ERROR_EXTERNAL_DEVICE),
        ERROR_ROW(ERROR_UNKNOWN),
#undef ERROR_ROW
    };

    *ret = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (names[i].code == error)
            *ret = names[i].name;
    return *ret ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
