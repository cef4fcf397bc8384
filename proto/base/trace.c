/* The kernel's O_APPEND is all that orders writers: no lock, and no memory that processes share. It suffices as long as
 * a write has whole events. So an event begins only where EVENT_BYTES are free, which bounds its names and figures.
 *
 * After a write that was cut short, a track writes nothing more: trace_finish ends the file before the first
 * incomplete event, so all that followed would be lost with it. A socket takes all of a write or nothing, and its
 * track goes on. */
#include "proto/base/trace.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { EVENT_BYTES = 512, NAME_BYTES = 80, MAX_ARGS = 6 }; /* maximum; keys are short */

static const char begin_of_array[] = "[\n";
static const char begin_of_event[] = "{\"ph\":\""; /* nothing else in the file looks like it */
static const char end_of_event[] = "},\n";

uint64_t trace_clock(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- text ------------------------------------------------------------------------------------------------------- */

static void trace_put(struct trace *t, const char *text)
{
    const size_t n = strlen(text);

    assert(n <= NAME_BYTES && n <= TRACE_BYTES - t->n);
    memcpy(t->text + t->n, text, n);
    t->n += n;
}

static void put_number(struct trace *t, uint64_t value)
{
    char digits[24] = "";
    size_t at = sizeof digits - 1;

    do
        digits[--at] = (char)('0' + value % 10);
    while (value /= 10);
    trace_put(t, digits + at);
}

/* Prints nanoseconds in the format's microseconds: "1234.005". */
static void put_time(struct trace *t, const char *key, uint64_t ns)
{
    const unsigned rest = (unsigned)(ns % 1000);
    const char fraction[] = {'.', (char)('0' + rest / 100), (char)('0' + rest / 10 % 10), (char)('0' + rest % 10), 0};

    trace_put(t, key);
    put_number(t, ns / 1000);
    trace_put(t, fraction);
}

/* Begins an event with the fields that all events have, and makes room for it. */
static void put_event(struct trace *t, const char *phase)
{
    if (t->n + EVENT_BYTES > TRACE_BYTES)
        trace_flush(t);
    trace_put(t, begin_of_event);
    trace_put(t, phase);
    trace_put(t, "\",\"pid\":");
    put_number(t, (uint64_t)t->pid);
    trace_put(t, ",\"tid\":");
    put_number(t, (uint64_t)t->tid);
}

static void trace_put_name(struct trace *t, const char *what, const char *where)
{
    trace_put(t, ",\"name\":\"");
    trace_put(t, what);
    if (where) {
        trace_put(t, " ");
        trace_put(t, where);
    }
    trace_put(t, "\"");
}

static void put_metadata(struct trace *t, const char *kind, const char *name)
{
    put_event(t, "M");
    trace_put_name(t, kind, NULL);
    trace_put(t, ",\"args\":{\"name\":\"");
    trace_put(t, name);
    trace_put(t, "\"}");
    trace_put(t, end_of_event);
}

/* ---- a track ---------------------------------------------------------------------------------------------------- */

void trace_open(struct trace *t, int fd, const char *process, const char *thread)
{
    int type;
    socklen_t size = sizeof type;

    *t = (struct trace){.fd = fd, .pid = getpid(), .tid = gettid()};
    t->is_socket = getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
    put_metadata(t, "process_name", process);
    put_metadata(t, "thread_name", thread);
}

/* Whether a socket waits is said at each call: whoever else holds it could change it. */
static ssize_t trace_write_text(const struct trace *t)
{
    return t->is_socket ? send(t->fd, t->text, t->n, MSG_DONTWAIT | MSG_NOSIGNAL) : write(t->fd, t->text, t->n);
}

/* A partial write leaves an incomplete event, which trace_finish finds. */
void trace_flush(struct trace *t)
{
    if (t->rc == 0 && t->n > 0) {
        const ssize_t written = trace_write_text(t);
        if (written < 0 && t->is_socket && errno == EAGAIN)
            t->n_dropped++;
        else if (written < 0)
            t->rc = -errno;
        else if ((size_t)written < t->n)
            t->rc = -ENOSPC;
    }
    t->n = 0;
}

int trace_close(struct trace *t)
{
    trace_flush(t);
    const int rc = t->rc ? t->rc : t->n_dropped ? -ENOBUFS : 0;
    *t = (struct trace){0};
    return rc;
}

void trace_end(struct trace *t, uint64_t since, const char *what, const char *where, const struct trace_arg *args)
{
    const uint64_t now = trace_clock();

    put_event(t, "X");
    put_time(t, ",\"ts\":", since);
    put_time(t, ",\"dur\":", now - since);
    trace_put_name(t, what, where);
    for (int i = 0; args && args[i].key; i++) {
        assert(i < MAX_ARGS);
        trace_put(t, i == 0 ? ",\"args\":{\"" : ",\"");
        trace_put(t, args[i].key);
        trace_put(t, "\":");
        put_number(t, args[i].value);
    }
    if (args && args->key)
        trace_put(t, "}");
    trace_put(t, end_of_event);
}

/* ---- the file --------------------------------------------------------------------------------------------------- */

int trace_create(int *fd, const char *path, struct error *err)
{
    *fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (*fd < 0 && errno == EEXIST)
        return error_set(err, -EEXIST, "--trace %s is there already: name a new file, or remove that one", path);
    if (*fd < 0)
        return error_set(err, -errno, "--trace %s: %s", path, strerror(errno));
    const ssize_t written = write(*fd, begin_of_array, strlen(begin_of_array));
    if (written == (ssize_t)strlen(begin_of_array))
        return 0;
    const int rc = written < 0 ? -errno : -ENOSPC;
    close(*fd);
    unlink(path);
    *fd = -1;
    return error_set(err, rc, "--trace %s: %s", path, strerror(-rc));
}

bool trace_is_file(int fd)
{
    const int flags = fcntl(fd, F_GETFL);
    struct stat st;

    return flags >= 0 && (flags & O_APPEND) && (flags & O_ACCMODE) != O_RDONLY && fstat(fd, &st) == 0 &&
           S_ISREG(st.st_mode);
}

/* True if a line (n, without its newline) is one whole event. The next event's beginning follows a cut-off one. */
static bool is_event(const char *line, size_t n)
{
    const size_t n_begin = strlen(begin_of_event);

    return n > n_begin + 2 && memcmp(line, begin_of_event, n_begin) == 0 &&
           memcmp(line + n - 2, end_of_event, 2) == 0 && !memmem(line + n_begin, n - n_begin, begin_of_event, n_begin);
}

/* Bytes before the first line that is not a whole event. */
static size_t count_whole(const char *text, size_t size)
{
    size_t whole = strlen(begin_of_array);

    while (whole < size) {
        const char *end = memchr(text + whole, '\n', size - whole);
        if (!end || !is_event(text + whole, (size_t)(end - text) - whole))
            break;
        whole = (size_t)(end - text) + 1;
    }
    return whole;
}

int trace_finish(int fd)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;
    const size_t size = (size_t)st.st_size;
    if (size < strlen(begin_of_array))
        return -ENODATA;
    void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return -errno;
    const size_t whole = count_whole(map, size);
    munmap(map, size);
    if (whole < size && ftruncate(fd, (off_t)whole) < 0)
        return -errno;
    /* Replaces the last comma, as a full disk has no room for more. Without O_APPEND, as Linux would ignore the
     * offset. */
    const bool empty = whole == strlen(begin_of_array);
    const char *end = empty ? "]" : "\n]";
    if (fcntl(fd, F_SETFL, 0) < 0 || pwrite(fd, end, strlen(end), (off_t)(whole - strlen(end))) < 0)
        return -errno;
    return whole < size ? -ENODATA : 0;
}
