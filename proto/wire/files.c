/* Answers come in the order of requests, so a count says which request an answer is to. One request at most is ahead
 * of the one that is waited for: it fills the window that will be read next. Any act but reading takes the first
 * window, so it waits until nothing is under way.
 *
 * What the client could not do, as on a full disk, fails that request alone. Any other failure is final (rc): an
 * answer may never come, or be another request's. */
#include "proto/wire/files.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TICK_MS = 50 }; /* until a client that was given up is noticed */

struct files {
    struct file_server server;
    int socket, trace; /* trace: -1 without, or once it is taken */
    struct segment memory;
    unsigned n_holders;
    bool abandoned; /* __atomic */
    int rc;         /* once anything has failed but what the client was asked to do: */
    struct error why;
    uint64_t n_sent, n_done; /* requests and answers */
    struct {
        uint64_t request; /* number of the request that fills it; 0: it is not filled */
        struct message m; /* that request */
        int code;         /* its answer, once it is among n_done */
    } windows[FILES_WINDOWS];
    unsigned last; /* the window that was taken last */
};

/* ---- packets ---------------------------------------------------------------------------------------------------- */

int files_send(int fd, const struct message *m, struct error *err)
{
    uint8_t bytes[MESSAGE_MAX_BYTES];
    const size_t n = message_encode(bytes, sizeof bytes, m);
    ssize_t sent;

    do
        sent = send(fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT); /* at most two packets are under way */
    while (sent < 0 && errno == EINTR);
    return sent >= 0 ? 0 : error_set(err, -EPIPE, "it has closed their socket");
}

/* A packet that is longer than any message is cut off, which its length tells. */
int files_receive(int fd, struct message *m, struct error *err)
{
    uint8_t bytes[MESSAGE_MAX_BYTES];
    const char *why;
    ssize_t n;

    do
        n = recv(fd, bytes, sizeof bytes, 0);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return error_set(err, -EPIPE, "it has closed their socket");
    if (message_decode(m, bytes, (size_t)n, &why))
        return error_set(err, -EPROTO, "it sent what is no message: %s", why);
    return 0;
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

static bool is_abandoned(const struct files *files)
{
    return __atomic_load_n(&files->abandoned, __ATOMIC_RELAXED);
}

/* Every later call fails likewise. */
static int files_fail(struct files *files, int rc, const struct error *why, struct error *err)
{
    if (!files->rc) {
        files->rc = rc;
        error_set(&files->why, rc, "the client that serves the job's files has failed: %.400s", why->text);
    }
    return error_set(err, files->rc, "%s", files->why.text);
}

static int check_alive(struct files *files, struct error *err)
{
    if (is_abandoned(files))
        return error_set(err, -ECANCELED, "nobody waits for its client any more");
    return files->rc ? error_set(err, files->rc, "%s", files->why.text) : 0;
}

static int files_await(struct files *files, struct error *err)
{
    struct pollfd p = {.fd = files->socket, .events = POLLIN};

    while (poll(&p, 1, TICK_MS) <= 0)
        if (is_abandoned(files))
            return check_alive(files, err);
    return 0;
}

/* The answer to the oldest request that has none. */
static int files_take_answer(struct files *files, struct message *m, struct error *err)
{
    struct error why = {""};
    int rc = check_alive(files, err);

    if (!rc)
        rc = files_await(files, err);
    if (rc)
        return rc;
    rc = files_receive(files->socket, m, &why);
    if (!rc && (m->kind != MESSAGE_FILE_DONE || m->sequence != files->n_done + 1))
        rc = error_set(&why, -EPROTO, "it sent %s %ju where the answer to request %ju was due", message_name(m->kind),
                       (uintmax_t)m->sequence, (uintmax_t)files->n_done + 1);
    if (rc)
        return files_fail(files, rc, &why, err);
    files->n_done++;
    for (unsigned i = 0; i < FILES_WINDOWS; i++)
        if (files->windows[i].request == files->n_done)
            files->windows[i].code = m->file_done.code;
    return 0;
}

static int files_request(struct files *files, struct message *m, struct error *err)
{
    struct error why = {""};
    int rc = check_alive(files, err);

    if (rc)
        return rc;
    m->kind = MESSAGE_FILE;
    m->sequence = files->n_sent + 1;
    rc = files_send(files->socket, m, &why);
    if (rc)
        return files_fail(files, rc, &why, err);
    files->n_sent++;
    return 0;
}

static bool files_is_same(const struct message *a, const struct message *b)
{
    return a->file.index == b->file.index && a->file.offset == b->file.offset && a->file.bytes == b->file.bytes;
}

static struct message files_read_of(uint32_t index, uint64_t offset, size_t n)
{
    return (struct message){.file = {.act = FILE_READ, .index = index, .offset = offset, .bytes = n}};
}

static int files_fill(struct files *files, unsigned window, const struct message *read, struct error *err)
{
    struct message m = *read;

    m.file.window = window;
    const int rc = files_request(files, &m, err);
    files->windows[window].request = rc ? 0 : m.sequence;
    files->windows[window].m = m;
    return rc;
}

/* m: the last answer that came, if any did. */
static int await_request(struct files *files, uint64_t number, struct message *m, struct error *err)
{
    int rc = 0;

    while (!rc && files->n_done < number)
        rc = files_take_answer(files, m, err);
    return rc;
}

/* What is handed out stays as it is until the next call: reading ahead fills the other window. */
static int window(struct file_server *server, const void **out, uint32_t index, uint64_t offset, size_t n, size_t ahead,
                  struct error *err)
{
    struct files *files = (struct files *)server;
    const struct message wanted = files_read_of(index, offset, n), next = files_read_of(index, offset + n, ahead);
    const unsigned at = 1 - files->last;
    struct message m;
    int rc = check_alive(files, err);

    assert(n > 0 && n <= FILE_WINDOW && ahead <= FILE_WINDOW);
    if (!rc && (!files->windows[at].request || !files_is_same(&files->windows[at].m, &wanted)))
        rc = files_fill(files, at, &wanted, err);
    if (!rc)
        rc = await_request(files, files->windows[at].request, &m, err);
    const int code = rc ? 0 : files->windows[at].code;
    files->windows[at].request = 0;
    files->last = at;
    if (!rc && code)
        return error_set(err, code, "cannot be read: %s", strerror(-code));
    if (!rc && ahead)
        rc = files_fill(files, 1 - at, &next, err);
    *out = (const char *)files->memory.base + (size_t)at * FILE_WINDOW;
    return rc;
}

static const char *files_name_of(enum file_act act)
{
    switch (act) {
    case FILE_SIZE:
        return "cannot be looked at";
    case FILE_READ:
        return "cannot be read";
    case FILE_WRITE:
        return "cannot be written";
    case FILE_RESERVE:
        return "no room for it";
    case FILE_TRUNCATE:
        return "could not be emptied";
    case FILE_FLUSH:
        return "cannot be flushed to the disk";
    }
    return "?";
}

static int files_act(struct file_server *server, enum file_act what, uint32_t index, uint64_t offset, const void *bytes,
                     size_t n, uint64_t *size, struct error *err)
{
    struct files *files = (struct files *)server;
    struct message m = {.file = {.act = what, .index = index, .offset = offset, .bytes = n}};

    assert(what != FILE_READ && n <= FILE_WINDOW);
    int rc = await_request(files, files->n_sent, &m, err); /* what was read ahead is not needed */
    m = (struct message){.file = {.act = what, .index = index, .offset = offset, .bytes = n}};
    files->windows[0].request = files->windows[1].request = 0;
    if (!rc && n > 0)
        memcpy(files->memory.base, bytes, n);
    if (!rc)
        rc = files_request(files, &m, err);
    if (!rc)
        rc = await_request(files, m.sequence, &m, err);
    if (!rc && m.file_done.code)
        return error_set(err, m.file_done.code, "%s: %s", files_name_of(what), strerror(-m.file_done.code));
    if (!rc && size)
        *size = m.file_done.size;
    return rc;
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

static int make_pair(int *ours, int *theirs, struct error *err)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return error_set(err, -errno, "no pair of sockets: %s", strerror(errno));
    *ours = pair[0], *theirs = pair[1];
    return 0;
}

/* theirs: descriptors for the client, which the caller sends and closes. */
int files_open(struct files **out, int theirs[FILES_SENT + 1], bool trace, struct error *err)
{
    struct files *files = calloc(1, sizeof *files);

    *out = NULL;
    if (!files)
        return error_memory(err);
    *files = (struct files){.server = {window, files_act}, .socket = -1, .trace = -1, .n_holders = 1};
    int rc = segment_create(&files->memory, "eps-files", FILES_BYTES, SEGMENT_READ_WRITE, err);
    if (!rc)
        rc = make_pair(&files->socket, &theirs[0], err);
    if (!rc && trace && (rc = make_pair(&files->trace, &theirs[FILES_SENT], err)))
        close(theirs[0]);
    if (rc) {
        files_release(files);
        return rc;
    }
    theirs[1] = files->memory.fd; /* the mapping stays */
    files->memory.fd = -1;
    *out = files;
    return 0;
}

int files_take_trace(struct files *files)
{
    const int fd = files->trace;

    files->trace = -1;
    return fd;
}

struct files *files_hold(struct files *files)
{
    files->n_holders++;
    return files;
}

void files_release(struct files *files)
{
    if (!files || --files->n_holders > 0)
        return;
    if (files->socket >= 0)
        close(files->socket);
    if (files->trace >= 0)
        close(files->trace);
    segment_close(&files->memory);
    free(files);
}

void files_abandon(struct files *files)
{
    if (files)
        __atomic_store_n(&files->abandoned, true, __ATOMIC_RELAXED);
}

struct file_server *files_server(struct files *files)
{
    return &files->server;
}

const void *files_memory(const struct files *files)
{
    return files->memory.base;
}
