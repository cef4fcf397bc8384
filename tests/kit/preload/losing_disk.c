/* A disk that takes writes and loses them: while the file $LOSING_DISK is there, whose content is the end of a path,
 * what the preloaded program wrote to a file of such a path is in the system's cache alone. It reads back as it was
 * written, until the system forgets it; then its last byte is what the disk has, another one. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool is_lost(int fd)
{
    const char *held = getenv("LOSING_DISK");
    char link[40], path[500] = "", end[100] = "";
    FILE *file = held ? fopen(held, "r") : NULL;

    if (!file)
        return false;
    const bool any = fscanf(file, "%99s", end) == 1;
    fclose(file);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    return any && n > (ssize_t)strlen(end) && strcmp(path + n - strlen(end), end) == 0;
}

int posix_fadvise(int fd, off_t offset, off_t n, int advice)
{
    struct stat st;
    char byte;

    if (advice == POSIX_FADV_DONTNEED && is_lost(fd) && fstat(fd, &st) == 0 && st.st_size > 0) {
        char path[40];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        const int disk = open(path, O_RDWR | O_CLOEXEC);
        if (disk >= 0 && syscall(SYS_pread64, disk, &byte, 1, st.st_size - 1) == 1) {
            byte = (char)~byte;
            syscall(SYS_pwrite64, disk, &byte, 1, st.st_size - 1);
        }
        close(disk);
    }
    return (int)syscall(SYS_fadvise64, fd, offset, n, advice);
}
