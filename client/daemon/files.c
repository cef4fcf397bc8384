/* The mutex is held for the whole of an act. So a file that client_files_remove has returned for is in no use, and may
 * be closed; on a slow disk that call waits as long. Numbers are not used twice: a request for a file that was removed
 * finds none, and never another one's. */
#include "client/daemon/files.h"

#include "proto/base/thread.h"
#include "proto/base/trace.h"
#include "proto/model/file/checkpoint.h"
#include "proto/wire/files.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A job's, and those of the checkpoint under way. */
enum { MOST = MESSAGE_MAX_FILES + CHECKPOINT_MAX_FILES + 1, NOT_SERVED = -1 };

struct client_files {
    pthread_t thread;
    int socket, events, trace_fd; /* events: what others trace; -1 without a trace */
    int trace_rc;                 /* why events are missing from the trace: -errno; 0: none is. The thread's */
    struct segment memory;
    pthread_mutex_t mutex; /* guards the memory and all below; held while a file is used */
    uint32_t next;         /* number; none is used twice */
    struct {
        uint32_t number;
        int fd;
    } served[MOST];
};

bool client_files_are_needed(const struct client_link *link)
{
    return session_peer_uid(link->session) != geteuid();
}

/* ---- the thread ------------------------------------------------------------------------------------------------- */

static int files_find(const struct client_files *files, uint32_t number)
{
    for (int i = 0; i < MOST; i++)
        if (files->served[i].fd != NOT_SERVED && files->served[i].number == number)
            return files->served[i].fd;
    return NOT_SERVED;
}

static int do_act(const struct client_files *files, const struct message *m, uint64_t *size)
{
    const struct file file = file_own(files_find(files, m->file.index));
    char *const memory = files->memory.base;

    if (file.fd < 0)
        return -EBADF;
    switch (m->file.act) {
    case FILE_SIZE:
        return file_size(size, &file, NULL);
    case FILE_READ:
        return file_read(&file, memory + (size_t)m->file.window * FILE_WINDOW, m->file.bytes, m->file.offset, NULL);
    case FILE_WRITE:
        return file_write(&file, memory, m->file.bytes, m->file.offset, NULL);
    case FILE_RESERVE:
        return file_reserve(&file, m->file.offset, NULL);
    case FILE_TRUNCATE:
        return file_truncate(&file, m->file.offset, NULL);
    case FILE_FLUSH:
        return file_flush(&file, NULL);
    }
    return -EINVAL;
}

/* False: the daemon is gone, or is no daemon. */
static bool serve_one(struct client_files *files)
{
    struct message m, done = {.kind = MESSAGE_FILE_DONE};

    if (files_receive(files->socket, &m, NULL) || m.kind != MESSAGE_FILE)
        return false;
    done.sequence = m.sequence;
    pthread_mutex_lock(&files->mutex);
    done.file_done.code = do_act(files, &m, &done.file_done.size);
    pthread_mutex_unlock(&files->mutex);
    return files_send(files->socket, &done, NULL) == 0;
}

/* Whole events, which are appended in one write, as all writers of a trace do. After a write that failed or was cut
 * short, as on a full disk, nothing more is written (proto/base/trace.c). False: nothing has come. */
static bool take_events(struct client_files *files)
{
    char text[TRACE_BYTES];
    const ssize_t n = recv(files->events, text, sizeof text, MSG_DONTWAIT);

    if (n > 0 && files->trace_rc == 0) {
        const ssize_t written = write(files->trace_fd, text, (size_t)n);
        files->trace_rc = written < 0 ? -errno : written < n ? -ENOSPC : 0;
    }
    return n > 0;
}

static void *files_run(void *data)
{
    struct client_files *files = data;
    struct pollfd polls[] = {{.fd = files->socket, .events = POLLIN}, {.fd = files->events, .events = POLLIN}};
    bool serves = true;

    while (serves) {
        if (poll(polls, 2, -1) < 0)
            continue;
        if (polls[0].revents)
            serves = serve_one(files);
        if (polls[1].revents && !take_events(files) && polls[1].revents & (POLLHUP | POLLERR))
            polls[1].fd = -1; /* nobody has the other end */
    }
    while (files->events >= 0 && take_events(files))
        ;
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

static void files_close_all(struct client_files *files)
{
    segment_close(&files->memory);
    if (files->socket >= 0)
        close(files->socket);
    if (files->events >= 0)
        close(files->events);
    pthread_mutex_destroy(&files->mutex);
    free(files);
}

static void close_theirs(const int *theirs, int trace_fd)
{
    for (int i = 0; i < FILES_SENT + (trace_fd >= 0); i++)
        close(theirs[i]);
}

int client_files_start(struct client_files **out, const int *theirs, int trace_fd, struct error *err)
{
    struct client_files *files = malloc(sizeof *files);
    int rc;

    *out = NULL;
    if (!files) {
        close_theirs(theirs, trace_fd);
        return error_memory(err);
    }
    *files = (struct client_files){.socket = theirs[0],
                                   .events = trace_fd >= 0 ? theirs[FILES_SENT] : -1,
                                   .trace_fd = trace_fd};
    pthread_mutex_init(&files->mutex, NULL);
    for (int i = 0; i < MOST; i++)
        files->served[i].fd = NOT_SERVED;
    rc = segment_attach(&files->memory, theirs[1], FILES_BYTES, SEGMENT_READ_WRITE, err);
    if (!rc && (rc = thread_begin(&files->thread, files_run, files)))
        error_set(err, rc, "no thread that serves files: %s", strerror(-rc));
    if (rc)
        files_close_all(files);
    else
        *out = files;
    return rc;
}

int client_files_open(struct client_files **out, struct client_link *link, int trace_fd, struct error *err)
{
    struct message m = {.kind = MESSAGE_FILES, .files.trace = trace_fd >= 0};
    int fds[CLIENT_MAIL_FDS];
    unsigned n_fds = 0;

    *out = NULL;
    client_link_send(link, &m);
    const int rc = client_link_expect_fds(link, MESSAGE_FILES, &m, fds, &n_fds, err);
    if (rc)
        return rc;
    if (n_fds == FILES_SENT + (trace_fd >= 0))
        return client_files_start(out, fds, trace_fd, err);
    for (unsigned i = 0; i < n_fds; i++)
        close(fds[i]);
    return error_set(err, -EPROTO, "the daemon sent %u descriptors for files", n_fds);
}

int client_files_close(struct client_files *files)
{
    if (!files)
        return 0;
    shutdown(files->socket, SHUT_RDWR);
    pthread_join(files->thread, NULL);
    const int rc = files->trace_rc;
    files_close_all(files);
    return rc;
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

int client_files_add(uint32_t *first, struct client_files *files, const int *fds, uint32_t n, struct error *err)
{
    uint32_t added = 0;

    pthread_mutex_lock(&files->mutex);
    *first = files->next;
    for (int i = 0; i < MOST && added < n; i++) {
        if (files->served[i].fd != NOT_SERVED)
            continue;
        files->served[i].number = files->next++;
        files->served[i].fd = fds[added++];
    }
    pthread_mutex_unlock(&files->mutex);
    if (added == n)
        return 0;
    client_files_remove(files, *first, added);
    return error_set(err, -E2BIG, "more than %d files at once", MOST);
}

void client_files_remove(struct client_files *files, uint32_t first, uint32_t n)
{
    pthread_mutex_lock(&files->mutex);
    for (int i = 0; i < MOST; i++)
        if (files->served[i].fd != NOT_SERVED && files->served[i].number - first < n)
            files->served[i].fd = NOT_SERVED;
    pthread_mutex_unlock(&files->mutex);
}

void client_files_put_config(struct client_files *files, const void *text, size_t n)
{
    assert(n <= MESSAGE_MAX_CONFIG_BYTES);
    pthread_mutex_lock(&files->mutex); /* the thread uses the memory after it, which the daemon alone sees to */
    memcpy(files->memory.base, text, n);
    pthread_mutex_unlock(&files->mutex);
}
