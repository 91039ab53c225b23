#include "client/perf/signals.h"

#include <errno.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

int signals_open(void)
{
    sigset_t set;
    int fd;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGCHLD);
    fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        return -errno;
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN); /* a reader of the table that leaves must not cost the clean-up */
    return fd;
}

int signals_take(int fd)
{
    struct signalfd_siginfo info;
    int stop = 0;

    while (read(fd, &info, sizeof(info)) == sizeof(info))
        if (info.ssi_signo != SIGCHLD && !stop)
            stop = (int)info.ssi_signo;
    return stop;
}

void signals_restore(void)
{
    sigset_t none;

    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}
