#include "daemon/device/fault.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>

static unsigned installed;
static struct sigaction previous;
_Thread_local const struct fault_area *volatile fault_current;

static struct mapping *fault_mapping(uintptr_t address)
{
    for (const struct fault_area *area = fault_current; area; area = area->next)
        for (uint32_t i = 0; i < area->nmappings; i++)
            if (address - (uintptr_t)area->mappings[i]->base < area->mappings[i]->bytes)
                return area->mappings[i];
    return NULL;
}

/*
 * Two threads may fault on one mapping and both replace it: what it held is lost either way.
 * `fault` comes first, so that nobody finds the zeros and takes them for the client's bytes.
 */
static bool fault_repair(uintptr_t address)
{
    struct mapping *m = fault_mapping(address);

    if (!m)
        return false;
    atomic_store(&m->fault, true);
    return mmap(m->base, m->bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
}

/* Runs in a signal handler: nothing below may take a lock or allocate. */
static void fault_handle(int sig, siginfo_t *info, void *context)
{
    int err = errno;

    /* a positive code comes from the kernel: somebody's kill() has no address */
    if (info->si_code > 0 && fault_repair((uintptr_t)info->si_addr)) {
        errno = err;
        return;
    }
    if (previous.sa_flags & SA_SIGINFO)
        previous.sa_sigaction(sig, info, context);
    else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
        previous.sa_handler(sig);
    else
        sigaction(sig, &previous, NULL); /* the instruction runs again and meets it */
    errno = err;
}

int fault_install(void)
{
    struct sigaction action = { .sa_sigaction = fault_handle, .sa_flags = SA_SIGINFO | SA_RESTART };

    if (installed == 0) {
        sigemptyset(&action.sa_mask);
        if (sigaction(SIGBUS, &action, &previous) < 0)
            return -errno;
    }
    installed++;
    return 0;
}

void fault_uninstall(void)
{
    struct sigaction now;

    if (--installed > 0)
        return;
    /* whoever came after us may chain to us: leave theirs in place */
    if (sigaction(SIGBUS, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) &&
        now.sa_sigaction == fault_handle)
        sigaction(SIGBUS, &previous, NULL);
}
