#include "proto/session_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    BACKLOG = 128,
    ACCEPTS = 16,       /* by one event */
    RETRY_MS = 500,     /* after the process ran out of descriptors */
    STALE_S = 60,       /* a directory without a door */
    SPARE_FDS = 32,     /* below the limit no session is begun: nanomsg spins when it cannot accept */
    DIRECTORY_MAX = 128 /* more than an address has room for */
};

struct session_listener {
    uv_poll_t poll;
    uv_timer_t retry;
    int fd, lock;
    gid_t group; /* whose members are let in, or SESSION_NO_GROUP */
    unsigned n_handles;
    uint32_t n_sessions;       /* so far: the id of the last */
    struct session *attaching; /* those that are not open yet */
    char directory[DIRECTORY_MAX];
    uv_loop_t *loop;
    const struct session_events *events;
    void (*on_closed)(void *data);
    void *data;
};

/* mkdir -p, private to the user. */
static int make_directory(const char *path, struct error *err)
{
    char part[PATH_MAX];

    if ((size_t)snprintf(part, sizeof part, "%s", path) >= sizeof part)
        return error_set(err, -ENAMETOOLONG, "%.64s...: too long a path", path);
    for (char *slash = part + 1;; *slash++ = '/') {
        slash = strchrnul(slash, '/');
        char rest = *slash;
        *slash = '\0';
        if (mkdir(part, 0700) < 0 && errno != EEXIST)
            return error_set(err, -errno, "making the directory %s: %s", part, strerror(errno));
        if (!rest)
            return 0;
    }
}

static int check_directory(const char *path, struct error *err)
{
    struct stat info;

    if (stat(path, &info) < 0)
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return error_set(err, -ENOTDIR, "%s is not a directory: a daemon listens in one of its own", path);
    if (info.st_uid != geteuid())
        return error_set(err, -EACCES, "%s belongs to another user: choose a directory of your own", path);
    if (info.st_mode & (S_IWGRP | S_IWOTH))
        return error_set(err, -EACCES, "others may write to %s: take that from them with chmod go-w", path);
    return 0;
}

/* The absolute path, short enough for every address in it. */
static int resolve_directory(char *out, const char *path, struct error *err)
{
    char whole[PATH_MAX];
    char address[PATH_MAX + 64];

    if (!realpath(path, whole))
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    int n = snprintf(address, sizeof address, "ipc://%s/s-%u-%08x", whole, UINT32_MAX, UINT32_MAX);
    if (!channel_address_fits(address))
        return error_set(err, -ENAMETOOLONG,
                         "%s is %zu characters long, %zu too many for the sockets in it: choose a "
                         "shorter path",
                         whole, strlen(whole), (size_t)n - (SESSION_ADDRESS_MAX - 1));
    strcpy(out, whole);
    return 0;
}

/* Holds the lock of a directory for the life of the process: open file description locks end with it, however it ends,
 * and can be asked about without being taken. */
static int take_lock(int *out, const char *directory, struct error *err)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char path[DIRECTORY_MAX + 8];
    struct stat ours, there;

    snprintf(path, sizeof path, "%s/lock", directory);
    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return error_set(err, -errno, "%s: %s", path, strerror(errno));
        if (fcntl(fd, F_OFD_SETLK, &whole) < 0) {
            int rc = errno == EAGAIN || errno == EACCES ? -EADDRINUSE : -errno;
            close(fd);
            return error_set(err, rc,
                             rc == -EADDRINUSE ? "another daemon listens at %s: choose another name, or stop "
                                                 "it with eps stop"
                                               : "locking %s failed",
                             directory);
        }
        if (fstat(fd, &ours) == 0 && stat(path, &there) == 0 && ours.st_ino == there.st_ino) {
            *out = fd;
            return 0;
        }
        close(fd); /* a daemon that was stopping removed the file while we opened it */
    }
}

bool session_is_live(const char *directory)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char path[PATH_MAX];

    if ((size_t)snprintf(path, sizeof path, "%s/lock", directory) >= sizeof path)
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return false;
    int rc = fcntl(fd, F_OFD_GETLK, &whole);
    close(fd);
    return rc == 0 && whole.l_type != F_UNLCK;
}

/* The sockets in the directory, and nothing else: those that a killed daemon left, or ours at the end. */
static void remove_sockets(const char *directory)
{
    char path[DIRECTORY_MAX + NAME_MAX + 2];
    struct stat info;
    DIR *dir = opendir(directory);

    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (lstat(path, &info) == 0 && S_ISSOCK(info.st_mode))
            unlink(path);
    }
    if (dir)
        closedir(dir);
}

void session_remove_stale(const char *directory)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char door[PATH_MAX], lock[PATH_MAX];
    struct stat info;

    snprintf(door, sizeof door, "%.4000s/door", directory);
    snprintf(lock, sizeof lock, "%.4000s/lock", directory);
    if (lstat(door, &info) < 0 && (lstat(directory, &info) < 0 || time(NULL) - info.st_mtime < STALE_S))
        return;
    int fd = open(lock, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT)
        rmdir(directory);
    if (fd < 0)
        return;
    if (fcntl(fd, F_OFD_SETLK, &whole) == 0) {
        remove_sockets(directory);
        unlink(lock);
        rmdir(directory);
    }
    close(fd);
}

/* Bound beside its name and renamed once it listens, so that nobody meets a door without a daemon behind it. */
static int bind_door(int *out, const char *directory, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[DIRECTORY_MAX + 8];
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return error_set(err, -errno, "no socket: %s", strerror(errno));
    snprintf(path, sizeof path, "%s/door", directory);
    snprintf(address.sun_path, sizeof address.sun_path, "%.100s/door~", directory); /* it fits: resolve_directory */
    if (bind(fd, (const struct sockaddr *)&address, sizeof address) < 0 || listen(fd, BACKLOG) < 0 ||
        rename(address.sun_path, path) < 0) {
        int rc = -errno;
        close(fd);
        return error_set(err, rc, "listening at %s: %s", path, strerror(-rc));
    }
    *out = fd;
    return 0;
}

static bool too_many(int fd)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)fd + SPARE_FDS > limit.rlim_cur;
}

/* Why the peer is not let in; NULL: it is. */
static const char *turn_away(const struct session_listener *listener, int fd, const struct door_peer *peer)
{
    if (too_many(fd))
        return "the daemon has no descriptors left for another session";
    if (peer->uid == geteuid() || peer->uid == 0)
        return NULL;
    if (listener->group == SESSION_NO_GROUP)
        return "the daemon belongs to another user";
    return door_peer_is_member(fd, listener->group) ? NULL : "the daemon serves a group that you are not a member of";
}

static void admit(struct session_listener *listener, int fd)
{
    struct session *s;
    struct door_peer peer = {.uid = (uid_t)-1};
    char address[DIRECTORY_MAX + 64];
    uint32_t nonce;

    door_peer(&peer, fd);
    const char *why = turn_away(listener, fd, &peer);
    if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce)
        nonce = (uint32_t)uv_hrtime();
    snprintf(address, sizeof address, "ipc://%s/s-%u-%08x", listener->directory, ++listener->n_sessions, nonce);
    int rc = session_accept(&s, listener->loop, fd, listener->n_sessions, address, listener->events, listener->data);
    if (rc < 0) {
        log_line("turned away at the door, pid %d: %s", (int)peer.pid, strerror(-rc));
        return;
    }
    s->group = listener->group;
    session_enlist(s, &listener->attaching);
    if (why) {
        log_line("turned away at the door, pid %d of user %u: %s", (int)peer.pid, (unsigned)peer.uid, why);
        session_refuse(s, why);
    }
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
    struct session_listener *listener = poll->data;
    int fd = 0;

    (void)status, (void)events;
    for (unsigned i = 0; i < ACCEPTS && listener->fd >= 0; i++) {
        fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            break;
        admit(listener, fd);
    }
    if (fd < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        log_line("the door: %s", strerror(errno));
        uv_poll_stop(&listener->poll); /* who waits at the door would wake the loop for ever */
    }
}

static void on_retry(uv_timer_t *timer)
{
    struct session_listener *listener = timer->data;

    uv_poll_start(&listener->poll, UV_READABLE, on_connection);
}

static int start(struct session_listener *listener, const char *directory, struct error *err)
{
    const bool was_there = access(directory, F_OK) == 0;
    int rc = make_directory(directory, err);

    if (rc == 0)
        rc = check_directory(directory, err);
    if (rc == 0)
        rc = resolve_directory(listener->directory, directory, err);
    if (rc == -ENAMETOOLONG && !was_there)
        rmdir(directory); /* known only now, as links are resolved; if it was not even made, nothing happens */
    if (rc == 0)
        rc = take_lock(&listener->lock, listener->directory, err);
    if (rc < 0)
        return rc;
    remove_sockets(listener->directory);
    rc = bind_door(&listener->fd, listener->directory, err);
    if (rc < 0)
        return rc;
    rc = uv_poll_init(listener->loop, &listener->poll, listener->fd);
    if (rc < 0)
        return error_set(err, rc, "watching the door of %s: %s", directory, uv_strerror(rc));
    return 0;
}

/* Where the directory was removed under us, another daemon may live at its name by now. */
static void remove_files(struct session_listener *listener)
{
    char path[DIRECTORY_MAX + 8];
    struct stat ours, there;

    if (listener->lock < 0)
        return;
    snprintf(path, sizeof path, "%s/lock", listener->directory);
    if (fstat(listener->lock, &ours) == 0 && stat(path, &there) == 0 && ours.st_dev == there.st_dev &&
        ours.st_ino == there.st_ino) {
        remove_sockets(listener->directory);
        unlink(path);
        rmdir(listener->directory); /* if it is empty */
    }
    close(listener->lock);
    listener->lock = -1;
}

int session_listen(struct session_listener **out, uv_loop_t *loop, const char *directory,
                   const struct session_events *events, void *data, struct error *err)
{
    struct session_listener *listener = calloc(1, sizeof *listener);
    int rc;

    *out = NULL;
    if (!listener)
        return error_set(err, -ENOMEM, "out of memory");
    listener->loop = loop;
    listener->events = events;
    listener->data = data;
    listener->fd = listener->lock = -1;
    listener->group = SESSION_NO_GROUP;
    rc = start(listener, directory, err);
    if (rc < 0) {
        if (listener->fd >= 0)
            close(listener->fd);
        remove_files(listener);
        free(listener);
        return rc;
    }
    uv_timer_init(loop, &listener->retry);
    listener->poll.data = listener->retry.data = listener;
    listener->n_handles = 2;
    uv_poll_start(&listener->poll, UV_READABLE, on_connection);
    uv_timer_start(&listener->retry, on_retry, RETRY_MS, RETRY_MS);
    *out = listener;
    return 0;
}

/* Every directory above lets members pass? They would be told of a daemon they cannot reach. */
static int check_way(const char *directory, gid_t group, struct error *err)
{
    char part[DIRECTORY_MAX];
    struct stat info;

    snprintf(part, sizeof part, "%s", directory);
    for (char *slash = strrchr(part, '/'); slash && slash > part; slash = strrchr(part, '/')) {
        *slash = '\0';
        if (stat(part, &info) < 0)
            return error_set(err, -errno, "%s: %s", part, strerror(errno));
        if (!(info.st_mode & S_IXOTH) && !(info.st_mode & S_IXGRP && info.st_gid == group))
            return error_set(err, -EDOM,
                             "members of the group cannot reach %s, since %s is closed to them: listen at a directory "
                             "elsewhere, or open that one with chmod o+x",
                             directory, part);
    }
    return 0;
}

int session_admit_group(struct session_listener *listener, gid_t group, struct error *err)
{
    const char *directory = listener->directory;
    char door[DIRECTORY_MAX + 8];
    int rc = check_way(directory, group, err);

    if (rc < 0)
        return rc;
    snprintf(door, sizeof door, "%s/door", directory);
    if (chown(door, (uid_t)-1, group) || chmod(door, 0660) || chown(directory, (uid_t)-1, group) ||
        chmod(directory, 0710))
        return error_set(err, -errno, "%s could not be given to the group: %s", directory, strerror(errno));
    listener->group = group;
    return 0;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct session_listener *listener = handle->data;

    if (--listener->n_handles > 0)
        return;
    if (listener->on_closed)
        listener->on_closed(listener->data);
    free(listener);
}

void session_unlisten(struct session_listener *listener, void (*on_closed)(void *data))
{
    listener->on_closed = on_closed;
    for (struct session *s = listener->attaching; s; s = listener->attaching) {
        session_unlist(s);
        session_refuse(s, "the daemon is stopping");
    }
    remove_files(listener);
    uv_close((uv_handle_t *)&listener->poll, on_handle_closed);
    uv_close((uv_handle_t *)&listener->retry, on_handle_closed);
    close(listener->fd);
    listener->fd = -1;
}
