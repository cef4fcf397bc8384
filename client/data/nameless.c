#include "client/data/nameless.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int client_nameless_open(const char *what, struct error *err)
{
    const char *places[] = {getenv("TMPDIR"), "/var/tmp"};

    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int fd = places[i] && *places[i] ? open(places[i], O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : -1;
        if (fd >= 0)
            return fd;
    }
    int fd = memfd_create("eps-nameless", MFD_CLOEXEC);
    return fd >= 0 ? fd : error_set(err, -errno, "no temporary file for %s: %s", what, strerror(errno));
}
