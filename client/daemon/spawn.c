/* The exit that is seen first need not be the cause: workers end with their daemon, and a daemon tells a moment later
 * of a worker that it gave up. So an exit is held back (patience_ms) until another one, or LOST, may have come; then
 * the first in `children` is blamed, the daemon before its workers.
 *
 * Each wait of the link asks check_children, so replacing a worker takes several rounds: in one its handle is closed,
 * in a later one, once libuv has let go of it, its place is used again. */
#include "client/daemon/spawn.h"

#include "client/daemon/observer.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    FOLLOW_BYTES = 48,
    ATTACH_MS = 60000,
    WORKERS_MS = 60000,
    RETRY_MS = 10,
    TERM_MS = 5000,
    LOST_MS = 10000,
    GRACE_MS = 1000,
    FIRST_MS = 200, /* from a worker's end to that of the daemon with which it ended, which may be known later */
    KILL_MS = 10000
};

static void on_exit_of(uv_process_t *process, int64_t status, int signal)
{
    struct client_child *child = process->data;

    child->ended = true;
    child->status = status;
    child->signal = signal;
    child->ended_ms = uv_now(process->loop);
}

/* The handle is libuv's until now; before that, its place in `children` must stay as it is. */
static void on_child_closed(uv_handle_t *handle)
{
    struct client_child *child = handle->data;
    child->running = false;
}

/* The last line that this child wrote into the log, without the program's name; the process id in it tells workers
 * apart. Empty if there is none. */
static void last_words(char *out, size_t cap, const struct client_spawn *spawn, const struct client_child *child)
{
    char text[4096], *line, *rest = text;
    const int log_fd = spawn->options.log_fd;
    const off_t size = lseek(log_fd, 0, SEEK_END), start = spawn->log_start;
    const off_t first = size - start > (off_t)sizeof text - 1 ? size - (off_t)sizeof text + 1 : start;
    const ssize_t n = pread(log_fd, text, sizeof text - 1, first);
    char names[2][64];

    snprintf(names[0], sizeof names[0], "%s: ", child->name);
    snprintf(names[1], sizeof names[1], "%s[%d]: ", child->name, (int)child->process.pid);
    out[0] = 0;
    text[n > 0 ? n : 0] = 0;
    while ((line = strsep(&rest, "\n"))) {
        for (int i = 0; i < 2; i++)
            if (strncmp(line, names[i], strlen(names[i])) == 0)
                snprintf(out, cap, "%s", line + strlen(names[i]));
        if (strncmp(line, "libgomp: ", 9) == 0) /* libgomp prints it and exits */
            snprintf(out, cap, "%s", line + 9);
    }
}

/* Finds a program installed with libeps. The loader knows a library's path; a program may have been called by a bare
 * name. */
static bool find_installed(char out[PATH_MAX], const char *name)
{
    static const char here;
    char self[PATH_MAX];
    Dl_info info;

    return dladdr(&here, &info) && info.dli_fname && *info.dli_fname == '/' && realpath(info.dli_fname, self) &&
           snprintf(out, PATH_MAX, "%s/" EPS_PROGRAMS_FROM_LIBRARY "/%s", dirname(self), name) < PATH_MAX &&
           access(out, X_OK) == 0;
}

/* Beside the program that runs; then where libeps's programs are, as the caller may be another program; else PATH, at
 * exec. */
int client_spawn_find(char out[PATH_MAX], const char *programs, const char *name, struct error *err)
{
    char self[PATH_MAX];

    if (programs) {
        if (snprintf(out, PATH_MAX, "%s/%s", programs, name) < PATH_MAX && access(out, X_OK) == 0)
            return 0;
        return error_set(err, -ENOENT, "%s is not in %s", name, programs);
    }
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    if (n > 0 && snprintf(out, PATH_MAX, "%s/%s", dirname(self), name) < PATH_MAX && access(out, X_OK) == 0)
        return 0;
    if (find_installed(out, name))
        return 0;
    snprintf(out, PATH_MAX, "%s", name);
    return 0;
}

/* True of what a service manager told the caller alone. */
static bool is_from_manager(const char *variable)
{
    static const char *const names[] = {"NOTIFY_SOCKET=", "WATCHDOG_USEC=", "WATCHDOG_PID="};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(variable, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

/* The strings are borrowed, only the list is made anew. Without the bound libgomp's threads spin for long between
 * parallel loops, and take the time of other processes on these cores. */
char **client_spawn_environment(char *notify)
{
    static char bound[] = "GOMP_SPINCOUNT=2000";
    const bool bounded = getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY");
    size_t n = 0, n_kept = 0;

    while (environ[n])
        n++;
    char **env = malloc((n + 3) * sizeof *env);
    if (!env)
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (!is_from_manager(environ[i]))
            env[n_kept++] = environ[i];
    if (notify)
        env[n_kept++] = notify;
    if (!bounded)
        env[n_kept++] = bound;
    env[n_kept] = NULL;
    return env;
}

/* What a program reads that hears nothing, and writes that nobody does. Containers may lack the device. */
static int open_nowhere(void)
{
    const int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    return fd >= 0 ? fd : memfd_create("eps-nowhere", MFD_CLOEXEC);
}

/* A process session of its own (UV_PROCESS_DETACHED): Ctrl-C reaches this process alone, which stops the others in
 * order. */
static int start_child(struct client_spawn *spawn, unsigned i, const char *name, char **args, struct error *err)
{
    struct client_child *child = &spawn->children[i];
    char program[PATH_MAX];
    const int nowhere = open_nowhere();
    uv_stdio_container_t stdio[] = {{.flags = UV_INHERIT_FD, .data.fd = nowhere},
                                    {.flags = UV_INHERIT_FD, .data.fd = nowhere},
                                    {.flags = UV_INHERIT_FD, .data.fd = spawn->options.log_fd}};
    uv_process_options_t options = {.file = program,
                                    .args = args,
                                    .flags = UV_PROCESS_DETACHED,
                                    .stdio_count = 3,
                                    .stdio = stdio,
                                    .exit_cb = on_exit_of};
    int rc = nowhere < 0 ? error_set(err, -errno, "%s did not start: %s", name, strerror(errno))
                         : client_spawn_find(program, spawn->options.programs, name, err);

    if (rc) {
        if (nowhere >= 0)
            close(nowhere);
        return rc;
    }
    *child = (struct client_child){.name = name, .running = true};
    child->process.data = child;
    if (spawn->n_children <= i)
        spawn->n_children = i + 1;
    options.env = client_spawn_environment(NULL);
    rc = uv_spawn(&spawn->link->loop, &child->process, &options);
    free(options.env);
    close(nowhere);
    if (rc) {
        child->ended = true; /* its handle must still be closed */
        return error_set(err, rc, "%s did not start: %s (looked for beside this program and in PATH)", name,
                         uv_strerror(rc));
    }
    return 0;
}

/* Retries until the daemon has opened its listener. */
static int spawn_attach(struct client_spawn *spawn, struct error *err)
{
    const uint64_t until = spawn->link->awake_ms + ATTACH_MS;

    for (;;) {
        int rc = client_link_open(spawn->link, spawn->directory, ROLE_CLIENT, err);
        if (rc != -ENOENT && rc != -ECONNREFUSED)
            return rc;
        if (spawn->link->awake_ms >= until)
            return error_set(err, -ETIMEDOUT, "epsd did not open its listener at %s within %d s", spawn->directory,
                             ATTACH_MS / 1000);
        rc = client_link_pause(spawn->link, RETRY_MS, err);
        if (rc)
            return rc;
    }
}

/* All of them, before the first job, which is planned for those that are attached. */
static int await_workers(struct client_spawn *spawn, struct error *err)
{
    const uint32_t n_workers = spawn->options.n_workers;
    uint32_t n;
    const int rc = client_await_workers(&n, spawn->link, n_workers, WORKERS_MS, err);

    if (rc == -ETIMEDOUT)
        error_set(err, rc, "only %u of %u eps-workers attached within %d s", n, n_workers, WORKERS_MS / 1000);
    return rc;
}

/* The process whose end is the child's, too. */
static void follow_me(char out[FOLLOW_BYTES])
{
    snprintf(out, FOLLOW_BYTES, "--private=%d", (int)getpid());
}

void client_worker_arguments(struct client_worker_arguments *out, char *directory, char *follow,
                             struct device_name device, uint32_t i, uint32_t n, uint64_t device_mem)
{
    static char program[] = "eps-worker", connect[] = "--connect", named[] = "--device", shared[] = "--share",
                capped[] = "--device-mem";
    char **to = out->argv;

    if (n > 1 && device.kind != DEVICE_CPU)
        device.index = i - 1, device.indexed = true;
    device_name_print(out->device, &device);
    snprintf(out->share, sizeof out->share, "%u", n);
    snprintf(out->device_mem, sizeof out->device_mem, "%" PRIu64 "B", device_mem);
    *to++ = program;
    if (follow)
        *to++ = follow;
    *to++ = connect, *to++ = directory;
    *to++ = named, *to++ = out->device;
    *to++ = shared, *to++ = out->share;
    if (device_mem)
        *to++ = capped, *to++ = out->device_mem;
    *to = NULL;
}

/* Worker i is child i, from 1. */
static int spawn_start_worker(struct client_spawn *spawn, unsigned i, struct error *err)
{
    struct client_worker_arguments arguments;
    char follow[FOLLOW_BYTES];

    follow_me(follow);
    client_worker_arguments(&arguments, spawn->directory, follow, spawn->options.device, i, spawn->options.n_workers,
                            spawn->options.device_mem);
    return start_child(spawn, i, "eps-worker", arguments.argv, err);
}

/* A daemon whose job has failed needs no worker. */
static bool may_replace(const struct client_spawn *spawn, unsigned i)
{
    return i > 0 && spawn->replaces && !spawn->link->failed && spawn->link->session &&
           spawn->n_replaced < CLIENT_SPAWN_AGAIN;
}

/* One that was killed or told to end is replaced at once. One that ended with an error is replaced if the daemon goes
 * on without it: whether it does, the daemon says a little later. */
static bool is_replaced(const struct client_child *child)
{
    return child->lost || child->signal || child->status == 0;
}

/* How long a child's end is not reported: what it ends with, or what replaces it, may be known later. A worker that
 * ends with its daemon is not the cause. */
static uint64_t patience_ms(const struct client_spawn *spawn, unsigned i)
{
    const bool has_daemon = i > 0 && !spawn->children[0].ended;

    if (may_replace(spawn, i) || (has_daemon && !spawn->link->session)) /* the daemon has ended, or will */
        return LOST_MS;
    return has_daemon ? FIRST_MS : 0;
}

/* Once libuv has let go of the old one. */
static int spawn_replace(struct client_spawn *spawn, unsigned i, struct error *err)
{
    uv_handle_t *handle = (uv_handle_t *)&spawn->children[i].process;

    if (!uv_is_closing(handle))
        uv_close(handle, on_child_closed);
    if (spawn->children[i].running)
        return 0;
    spawn->n_replaced++;
    return spawn_start_worker(spawn, i, err);
}

static int check_children(void *data, struct error *err)
{
    struct client_spawn *spawn = data;

    for (unsigned i = 0; i < spawn->n_children && !spawn->ending; i++) {
        const struct client_child *child = &spawn->children[i];
        char words[300];
        if (!child->ended)
            continue;
        if (may_replace(spawn, i) && is_replaced(child)) {
            const int rc = spawn_replace(spawn, i, err);
            if (rc)
                return rc;
            continue;
        }
        if (uv_now(&spawn->link->loop) - child->ended_ms < patience_ms(spawn, i))
            continue;
        spawn->lost_worker = i > 0 && is_replaced(child);
        last_words(words, sizeof words, spawn, child);
        const char *role = i == 0 ? "daemon" : "worker";
        if (child->why.text[0])
            return error_set(err, -EIO, "the %s (%s) was lost: %s", role, child->name, child->why.text);
        if (child->signal)
            return error_set(err, -EIO, "the %s (%s) was killed by signal %d (%s)", role, child->name, child->signal,
                             strsignal(child->signal));
        return error_set(err, -EIO, "the %s (%s) ended with status %" PRId64 "%s%s", role, child->name, child->status,
                         words[0] ? ": " : "", words);
    }
    return 0;
}

/* Asked once a run has failed: the events of both ends may still be on their way. */
bool client_spawn_lost_worker(struct client_spawn *spawn)
{
    uv_loop_t *loop = &spawn->link->loop;
    struct error ignored;

    if (spawn->ending)
        return spawn->lost_worker;
    uv_update_time(loop);
    const uint64_t until = uv_now(loop) + GRACE_MS;
    while (check_children(spawn, &ignored) == 0 && uv_now(loop) < until)
        uv_run(loop, UV_RUN_ONCE);
    while (spawn->lost_worker && uv_now(loop) < until) { /* workers end with their daemon, maybe before it is known */
        uv_run(loop, UV_RUN_ONCE);
        spawn->lost_worker = !spawn->children[0].ended;
    }
    return spawn->lost_worker;
}

/* The daemon first: workers would not find it. */
static int start_all(struct client_spawn *spawn, struct error *err)
{
    char follow[FOLLOW_BYTES];
    char *daemon_args[] = {"epsd", follow, "--listen", spawn->directory, NULL};

    follow_me(follow);
    int rc = start_child(spawn, 0, "epsd", daemon_args, err);
    if (!rc)
        rc = spawn_attach(spawn, err);
    for (unsigned i = 1; !rc && i <= spawn->options.n_workers; i++)
        rc = spawn_start_worker(spawn, i, err);
    return rc ? rc : await_workers(spawn, err);
}

/* A process that the daemon has given up, as it hangs or is stopped, may live on: it ends now, to be replaced. */
static void spawn_on_lost(void *data, const struct message *m)
{
    struct client_spawn *spawn = data;

    if (m->lost.step > spawn->lost_step)
        spawn->n_replaced = 0;
    spawn->lost_step = m->lost.step;
    for (unsigned i = 1; i < spawn->n_children && spawn->replaces; i++) {
        struct client_child *child = &spawn->children[i];
        if ((uint32_t)child->process.pid != m->lost.pid)
            continue;
        child->lost = true;
        if (!child->ended) {
            child->why = m->lost.error;
            uv_process_kill(&child->process, SIGKILL);
        }
    }
}

int client_spawn_start(struct client_spawn *spawn, struct client_link *link, const struct client_spawn_options *options,
                       struct error *err)
{
    char name[64];

    *spawn = (struct client_spawn){.link = link, .options = *options, .log_start = lseek(options->log_fd, 0, SEEK_END)};
    snprintf(name, sizeof name, "run-%d-%06" PRIx64, (int)getpid(), uv_hrtime() & 0xFFFFFF);
    int rc = session_directory(spawn->directory, sizeof spawn->directory, name, err);
    if (rc) {
        spawn->directory[0] = 0;
        return rc;
    }
    link->watches[0] = (struct client_watch){.ask = check_children, .data = spawn};
    link->on_lost = spawn_on_lost;
    link->lost_data = spawn;
    rc = start_all(spawn, err);
    if (rc == -EIO)
        client_spawn_lost_worker(spawn); /* while that can be told */
    if (rc)
        client_spawn_stop(spawn);
    return rc;
}

static bool any_left(struct client_spawn *spawn)
{
    bool left = false;

    for (unsigned i = 0; i < spawn->n_children; i++) {
        uv_handle_t *handle = (uv_handle_t *)&spawn->children[i].process;
        if (spawn->children[i].ended && !uv_is_closing(handle))
            uv_close(handle, on_child_closed);
        left |= spawn->children[i].running;
    }
    return left;
}

static void signal_all(struct client_spawn *spawn, int signal)
{
    for (unsigned i = 0; i < spawn->n_children; i++) {
        if (!spawn->children[i].ended)
            uv_process_kill(&spawn->children[i].process, signal);
    }
}

/* Removes what a killed daemon leaves: the listening socket, the lock, and the directory of the sessions' sockets. */
static void spawn_remove_directory(const char *directory)
{
    DIR *dir = opendir(directory);
    const struct dirent *entry;
    char path[PATH_MAX];

    while (dir && (entry = readdir(dir))) {
        const bool is_entry = strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
        if (is_entry && unlinkat(dirfd(dir), entry->d_name, 0) < 0 && errno == EISDIR &&
            (size_t)snprintf(path, sizeof path, "%s/%s", directory, entry->d_name) < sizeof path)
            spawn_remove_directory(path);
    }
    if (dir)
        closedir(dir);
    rmdir(directory);
}

/* First the session's end, which a daemon takes as its own; then SIGTERM, then SIGKILL, to whoever is left. */
void client_spawn_stop(struct client_spawn *spawn)
{
    uint64_t begin;
    int signalled = 0;

    if (!spawn->link || spawn->ending)
        return;
    /* A daemon that never had a session cannot notice the end of one. */
    const uint64_t term_ms = spawn->link->attached || spawn->link->end[0] ? TERM_MS : 0;
    spawn->ending = true;
    spawn->link->watches[0] = (struct client_watch){0};
    spawn->link->on_lost = NULL;
    client_link_close(spawn->link);
    uv_update_time(&spawn->link->loop);
    begin = uv_now(&spawn->link->loop);
    while (any_left(spawn)) {
        const uint64_t waited = uv_now(&spawn->link->loop) - begin;
        const int due = waited >= KILL_MS ? SIGKILL : waited >= term_ms ? SIGTERM : 0;
        if (due != signalled)
            signal_all(spawn, due);
        signalled = due;
        uv_run(&spawn->link->loop, UV_RUN_ONCE);
    }
    if (spawn->n_children > 0)
        spawn_remove_directory(spawn->directory);
}
