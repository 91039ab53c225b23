#include "daemon/device/publish.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* One that cannot be written by; without /proc the seals alone have to do. */
static int reader_of(int fd)
{
    char path[64];
    int reader;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    reader = open(path, O_RDONLY | O_CLOEXEC);
    if (reader < 0)
        return fd;
    close(fd);
    return reader;
}

int publish(const char *name, size_t bytes, enum publish_access access, void **ret, int *ret_fd)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL |
                      (access == PUBLISH_READABLE ? F_SEAL_FUTURE_WRITE : 0);
    const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *memory;

    if (fd < 0)
        return -errno;
    memory = ftruncate(fd, (off_t)bytes) < 0
                 ? MAP_FAILED
                 : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED || fcntl(fd, F_ADD_SEALS, seals) < 0) {
        const int r = -errno;

        if (memory != MAP_FAILED)
            munmap(memory, bytes);
        close(fd);
        return r;
    }
    *ret = memory;
    *ret_fd = access == PUBLISH_READABLE ? reader_of(fd) : fd;
    return 0;
}
