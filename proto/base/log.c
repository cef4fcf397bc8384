/* A line is composed on its thread's stack and written by one call. So lines of threads, and of processes that share
 * the file, do not mix, and there is no lock that a thread stopped in a write could hold. What is lost is counted
 * instead of queued: a queue needs memory, and somebody to empty it when the terminal goes on. If a line was cut off,
 * its newline comes with the next report, so that a reader never takes two lines for one. */
#include "proto/base/log.h"

#include "proto/base/error.h"
#include "proto/base/path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* One per process, like standard error. */
static char program[96] = "eps"; /* short enough for a line's head */
static enum log_level least = LOG_LEVEL_INFO;
static bool in_journal;
static char file_path[PATH_MAX]; /* of log_open; empty: none */
static atomic_uint n_dropped;    /* lines dropped since the last report */
static atomic_bool cut;          /* the last line is incomplete */

/* True if standard error is the stream that the service manager connected to the journal. */
static bool is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat st;

    return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 && fstat(STDERR_FILENO, &st) == 0 &&
           st.st_dev == device && st.st_ino == inode;
}

void log_name(const char *name)
{
    snprintf(program, sizeof program, "%s", name);
    in_journal = is_journal();
}

int log_set_level(const char *text, struct error *err)
{
    static const struct {
        const char *name;
        enum log_level level;
    } levels[] = {{"error", LOG_LEVEL_ERROR}, {"warning", LOG_LEVEL_WARNING}, {"info", LOG_LEVEL_INFO}};

    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (strcmp(text, levels[i].name) == 0) {
            least = levels[i].level;
            return 0;
        }
    return error_set(err, -EDOM, "--log-level %.40s: it is error, warning or info", text);
}

/* ---- A file ---- */

static int take_file(const char *path, struct error *err)
{
    const int fd = path_open(path, O_WRONLY | O_APPEND | O_CREAT | O_NOCTTY, 0640, err);
    int rc = 0;

    if (fd < 0)
        return fd;
    if (dup2(fd, STDERR_FILENO) < 0)
        rc = error_set(err, -errno, "%s", strerror(errno));
    close(fd);
    return rc;
}

int log_open(const char *path, struct error *err)
{
    char here[PATH_MAX] = "", whole[PATH_MAX];
    struct error why;

    if (*path != '/' && !getcwd(here, sizeof here))
        return error_set(err, -errno, "--log %.200s: the working directory: %s", path, strerror(errno));
    if (snprintf(whole, sizeof whole, "%s%s%s", here, *here ? "/" : "", path) >= (int)sizeof whole)
        return error_set(err, -ENAMETOOLONG, "--log %.200s: too long a path", path);
    const int rc = take_file(whole, &why);
    if (rc)
        return error_set(err, rc, "--log %.200s: %s", path, why.text);
    memcpy(file_path, whole, sizeof file_path);
    in_journal = false;
    return 0;
}

void log_reopen(void)
{
    struct error why;
    const int rc = *file_path ? take_file(file_path, &why) : 0;

    if (rc)
        log_warning("the log could not be opened anew, and goes on where it is: %s: %s", file_path, why.text);
    else if (*file_path)
        log_line("the log was opened anew, by SIGHUP");
}

/* ---- Lines ---- */

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
static bool log_put(const char *text, size_t n)
{
    ssize_t written;

    do
        written = write_now(text, n);
    while (written < 0 && errno == EINTR);
    if (written > 0)
        atomic_store(&cut, (size_t)written < n);
    return written == (ssize_t)n;
}

/* What precedes a line's text; its length. */
static int begin_line(char *line, size_t cap, enum log_level level)
{
    const char *word = level == LOG_LEVEL_ERROR ? "error: " : level == LOG_LEVEL_WARNING ? "warning: " : "";
    const time_t now = time(NULL);
    char text[32] = "";
    struct tm local;

    if (in_journal)
        return snprintf(line, cap, "<%d>", (int)level);
    if (!*file_path)
        return snprintf(line, cap, "%s: ", program);
    if (localtime_r(&now, &local))
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S%z ", &local);
    return snprintf(line, cap, "%s%s: %s", text, program, word);
}

/* Reports the number of lost lines before the next line. */
static bool tell_dropped(void)
{
    const unsigned n = atomic_exchange(&n_dropped, 0);
    char head[128], note[256];

    if (n == 0)
        return true;
    begin_line(head, sizeof head, LOG_LEVEL_WARNING);
    const int used =
        snprintf(note, sizeof note, "%s%s%u line%s of the log %s dropped: standard error did not take %s\n",
                 atomic_load(&cut) ? "\n" : "", head, n, n > 1 ? "s" : "", n > 1 ? "were" : "was",
                 n > 1 ? "them" : "it");
    if (log_put(note, (size_t)used))
        return true;
    atomic_fetch_add(&n_dropped, n);
    return false;
}

static void log_write_line(enum log_level level, const char *format, va_list args)
{
    char line[1024];

    if (level > least)
        return;
    const int used = begin_line(line, sizeof line, level);
    const int wanted = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    size_t n = (size_t)used + (size_t)(wanted < 0 ? 0 : wanted);
    if (n > sizeof line - 2)
        n = sizeof line - 2;
    line[n++] = '\n';
    if (!tell_dropped() || !log_put(line, n))
        atomic_fetch_add(&n_dropped, 1);
}

void log_line(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    log_write_line(LOG_LEVEL_INFO, format, args);
    va_end(args);
}

void log_warning(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    log_write_line(LOG_LEVEL_WARNING, format, args);
    va_end(args);
}

void log_error(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    log_write_line(LOG_LEVEL_ERROR, format, args);
    va_end(args);
}
