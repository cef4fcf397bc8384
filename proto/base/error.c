#include "proto/base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* One per process, like standard error. */
static const char *program = "eps";
static atomic_uint n_dropped; /* log lines dropped since the last report */
static atomic_bool cut;       /* the last line is incomplete */

int error_set(struct error *err, int code, const char *format, ...)
{
    va_list args;

    if (err) {
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        for (char *c = err->text; *c; c++) /* a quoted file name may hold any bytes */
            if ((unsigned char)*c < ' ' || *c == 0x7F)
                *c = '?';
    }
    return code;
}

void error_prefix(struct error *err, const char *what)
{
    char whole[ERROR_TEXT_BYTES];

    if (!err)
        return;
    snprintf(whole, sizeof whole, "%.200s: %.300s", what, err->text);
    memcpy(err->text, whole, sizeof whole);
}

void error_append(struct error *err, const char *format, ...)
{
    char more[ERROR_TEXT_BYTES - 300];
    va_list args;

    if (!err)
        return;
    va_start(args, format);
    const int wanted = vsnprintf(more, sizeof more, format, args);
    va_end(args);
    const size_t n = wanted < (int)sizeof more ? (size_t)wanted : sizeof more - 1, used = strlen(err->text);
    const size_t at = used + n < sizeof err->text ? used : sizeof err->text - n - 1;
    memcpy(err->text + at, more, n + 1);
}

void log_name(const char *name)
{
    program = name;
}

/* Writes without blocking: returns n, less, or -1. Only descriptors that can stall need a special way. A socket has
 * one. A pipe or terminal is opened again, as O_NONBLOCK would affect its other users. If the system refuses that
 * (another user owns it), poll reports free space, which another writer may take meanwhile. */
static ssize_t write_now(const char *text, size_t n)
{
    struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
    struct stat st;
    ssize_t written = -1;

    if (fstat(STDERR_FILENO, &st) < 0)
        return -1;
    if (S_ISSOCK(st.st_mode))
        return send(STDERR_FILENO, text, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (!S_ISFIFO(st.st_mode) && !S_ISCHR(st.st_mode))
        return write(STDERR_FILENO, text, n);
    const int own = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (own >= 0) {
        written = write(own, text, n);
        close(own);
    } else if (poll(&room, 1, 0) == 1) {
        written = write(STDERR_FILENO, text, n);
    }
    return written;
}

/* False if all or part of the text was lost. */
static bool put(const char *text, size_t n)
{
    ssize_t written;

    do
        written = write_now(text, n);
    while (written < 0 && errno == EINTR);
    if (written > 0)
        atomic_store(&cut, (size_t)written < n);
    return written == (ssize_t)n;
}

/* Reports the number of lost lines before the next line. */
static bool tell_dropped(void)
{
    const unsigned n = atomic_exchange(&n_dropped, 0);
    char note[160];

    if (n == 0)
        return true;
    const int used =
        snprintf(note, sizeof note, "%s%s: %u line%s of the log %s dropped: standard error did not take %s\n",
                 atomic_load(&cut) ? "\n" : "", program, n, n > 1 ? "s" : "", n > 1 ? "were" : "was",
                 n > 1 ? "them" : "it");
    if (put(note, (size_t)used))
        return true;
    atomic_fetch_add(&n_dropped, n);
    return false;
}

void log_line(const char *format, ...)
{
    char line[1024];
    va_list args;
    int used = snprintf(line, sizeof line, "%s: ", program);

    va_start(args, format);
    int wanted = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    va_end(args);
    size_t n = (size_t)used + (size_t)(wanted < 0 ? 0 : wanted);
    if (n > sizeof line - 2)
        n = sizeof line - 2;
    line[n++] = '\n';
    if (!tell_dropped() || !put(line, n))
        atomic_fetch_add(&n_dropped, 1);
}
