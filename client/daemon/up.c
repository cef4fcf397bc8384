/* eps_up: a shared daemon and its workers as one process tree, for a shell, mpirun or srun. The caller supervises: it
 * waits in poll(2), asks the kernel which children have ended, and is told by the children themselves when they are
 * ready, as a service manager is (sd_notify(3)). */
#include "client/daemon/observer.h"
#include "client/daemon/spawn.h"
#include "client/eps.h"
#include "client/member.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    CHECK_MS = 100,        /* period of checking the children and should_stop */
    AGAIN_MS = 1000,       /* pause before a lost worker is started again; doubled each time, up to MOST_AGAIN_MS */
    MOST_AGAIN_MS = 60000, /* longest pause; a worker that lives so long begins with AGAIN_MS again */
    WORKER_END_MS = 10000, /* a worker left without a daemon is killed after this time */
    MOST_OPTIONS = 64      /* options of the daemon */
};

/* Slurm and systemd may send SIGTERM to every process of a job. The daemon must not take that and eps up's own request
 * for two; nor may a worker leave then, as the run needs it to finish its step and save. So workers ignore SIGTERM. */
enum { DAEMON_SIGNAL = SIGUSR1, WORKER_SIGNAL = SIGINT };

struct up_child {
    pid_t pid; /* 0: it does not run */
    bool ready;
    bool left; /* it ended as it was told to, and stays away */
    uint64_t began_ms;
    uint64_t again_ms; /* when it starts again */
    uint64_t pause_ms; /* pause before it starts again; 0: it was never lost */
};

struct up {
    const struct eps_up_options *options;
    const struct eps_up_events *events;
    void *user;
    struct device_name device;
    uint32_t n_workers;
    int notify_fd;
    char notify[64];                              /* its name in the environment: "NOTIFY_SOCKET=@..." */
    struct up_child children[1 + EPS_UP_WORKERS]; /* [0]: the daemon; then workers */
    char directory[4096];                         /* where the daemon listens; empty until it does */
    bool said;                                    /* it was reported that all are ready */
    int level;                                    /* level of should_stop that the daemon was told */
};

static uint64_t up_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* A socket in the abstract name space, whose name the kernel chooses. It tells the sender's process id. */
static int open_notify(struct up *up, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t n = sizeof address;
    const int on = 1;

    up->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (up->notify_fd < 0 || bind(up->notify_fd, (struct sockaddr *)&address, sizeof address.sun_family) ||
        setsockopt(up->notify_fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) ||
        getsockname(up->notify_fd, (struct sockaddr *)&address, &n))
        return error_set(err, -errno, "no socket for the daemon to say that it is ready: %s", strerror(errno));
    const size_t n_name = n - offsetof(struct sockaddr_un, sun_path) - 1; /* behind its zero byte */
    snprintf(up->notify, sizeof up->notify, "NOTIFY_SOCKET=@%.*s", (int)n_name, address.sun_path + 1);
    return 0;
}

/* In the child, between fork and exec: only calls that are safe there. In a process session of its own, Ctrl-C reaches
 * the caller alone; the kernel ends the child when the caller is killed. */
static void become(const char *program, char *const *argv, char *const *env, pid_t parent, bool is_worker)
{
    sigset_t none;

    prctl(PR_SET_PDEATHSIG, is_worker ? WORKER_SIGNAL : SIGTERM);
    if (getppid() != parent)
        _exit(1);
    setsid();
    signal(SIGTERM, is_worker ? SIG_IGN : SIG_DFL);
    signal(SIGINT, SIG_DFL); /* a shell's background job ignores it */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    const int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (in >= 0)
        dup2(in, STDIN_FILENO);
    execvpe(program, argv, env);
    _exit(127);
}

/* fork rather than posix_spawn, as the child sets what must hold before exec (become). */
static int up_start(struct up *up, struct up_child *child, char *const *argv, struct error *err)
{
    char program[PATH_MAX];
    const int rc = client_spawn_find(program, up->options->programs, argv[0], err);
    const pid_t parent = getpid();
    char **env = rc ? NULL : client_spawn_environment(up->notify);

    if (rc)
        return rc;
    if (!env)
        return error_memory(err);
    child->pid = fork();
    if (child->pid == 0)
        become(program, argv, env, parent, child != &up->children[0]);
    free(env);
    child->ready = false;
    child->began_ms = up_now_ms();
    if (child->pid > 0)
        return 0;
    child->pid = 0;
    return error_set(err, -errno, "%s did not start: %s", argv[0], strerror(errno));
}

/* Its first three arguments, and then the caller's, which are passed on as they are. */
static int start_daemon(struct up *up, struct error *err)
{
    const struct eps_up_options *o = up->options;
    char *argv[3 + MOST_OPTIONS + 1] = {(char[]){"epsd"}, (char[]){"--listen"}, NULL};
    char name[4096];

    if (o->n_daemon_options > MOST_OPTIONS)
        return error_set(err, -EDOM, "%zu options of epsd: at most %d are passed on", o->n_daemon_options,
                         MOST_OPTIONS);
    if (snprintf(name, sizeof name, "%s", o->name) >= (int)sizeof name)
        return error_set(err, -EDOM, "the daemon's name is too long");
    argv[2] = name;
    for (size_t i = 0; i < o->n_daemon_options; i++)
        memcpy(&argv[3 + i], &o->daemon_options[i], sizeof *argv); /* exec changes none of them */
    return up_start(up, &up->children[0], argv, err);
}

static int up_start_worker(struct up *up, uint32_t i, struct error *err)
{
    struct client_worker_arguments arguments;

    client_worker_arguments(&arguments, up->directory, NULL, up->device, i, up->n_workers, up->options->device_mem);
    return up_start(up, &up->children[i], arguments.argv, err);
}

static void up_note(struct up *up, const struct error *sentence)
{
    if (up->events)
        client_tell(up->events->on_note, up->user, sentence->text);
}

/* Of a child that has ended, whose status somebody else has: the kernel, as SIGCHLD is ignored, or another wait in this
 * process. It is neither an exit's nor a signal's. */
enum { STATUS_UNKNOWN = -1 };

/* "was killed by signal 9 (Killed)" or "ended with status 1". */
static const char *describe_end(char out[80], int status)
{
    if (status == STATUS_UNKNOWN)
        snprintf(out, 80, "ended, and its status is not known (is SIGCHLD ignored?)");
    else if (WIFSIGNALED(status))
        snprintf(out, 80, "was killed by signal %d (%.40s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(out, 80, "ended with status %d", WEXITSTATUS(status));
    return out;
}

/* A worker's end, while the daemon lives. One that was told to leave stays away. One that fails before all have been
 * ready would fail again. Any other starts again after a pause that grows as long as it does not last. */
static int on_worker_ended(struct up *up, uint32_t i, int status, struct error *err)
{
    struct up_child *child = &up->children[i];
    const uint64_t lived_ms = up_now_ms() - child->began_ms;
    struct error sentence;
    char how[80];

    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        child->left = true; /* its lines in the log say so */
        return 0;
    }
    describe_end(how, status);
    if (!up->said)
        return error_set(err, WIFEXITED(status) && WEXITSTATUS(status) == 2 ? -EDOM : -EIO,
                         "worker process %u of %u %s before all were up%s", i, up->n_workers, how,
                         WIFEXITED(status) ? ": its line above says why" : "");
    child->pause_ms = !child->pause_ms || lived_ms >= MOST_AGAIN_MS ? AGAIN_MS
                      : 2 * child->pause_ms < MOST_AGAIN_MS         ? 2 * child->pause_ms
                                                                    : MOST_AGAIN_MS;
    child->again_ms = up_now_ms() + child->pause_ms;
    error_set(&sentence, 0, "worker process %u of %u %s: another one starts in %" PRIu64 " s", i, up->n_workers, how,
              child->pause_ms / 1000);
    up_note(up, &sentence);
    return 0;
}

/* The status of a child that has ended, and true. Who has ended may be no child any more. */
static bool reap(struct up_child *child, int *status)
{
    const pid_t ended = child->pid ? waitpid(child->pid, status, WNOHANG) : 0;

    if (ended == 0 || (ended < 0 && errno != ECHILD))
        return false;
    if (ended < 0)
        *status = STATUS_UNKNOWN;
    child->pid = 0;
    child->ready = false;
    return true;
}

/* One datagram: "READY=1\nSTATUS=...". Only what our own children say counts. */
static bool take_notice(struct up *up)
{
    char text[4096 + 64], room[CMSG_SPACE(sizeof(struct ucred))];
    struct iovec part = {text, sizeof text - 1};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct ucred sender = {0};
    const ssize_t n = recvmsg(up->notify_fd, &header, MSG_CMSG_CLOEXEC);

    if (n < 0)
        return false;
    text[n] = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS)
            memcpy(&sender, CMSG_DATA(c), sizeof sender);
    const char *status = strstr(text, "\nSTATUS=");
    for (uint32_t i = 0; i <= up->n_workers && strncmp(text, "READY=1", 7) == 0; i++) {
        if (up->children[i].pid != sender.pid || !sender.pid)
            continue;
        up->children[i].ready = true;
        if (i == 0 && status)
            snprintf(up->directory, sizeof up->directory, "%.*s", (int)strcspn(status + 8, "\n"), status + 8);
    }
    return true;
}

/* Once, when all are there. */
static void say_ready(struct up *up)
{
    for (uint32_t i = 0; i <= up->n_workers; i++)
        if (!up->children[i].ready && !up->children[i].left)
            return;
    if (!up->said && up->events && up->events->on_up)
        up->events->on_up(up->user, up->directory, up->n_workers);
    up->said = true;
}

/* None is started again once a stop was asked for. */
static int tend_workers(struct up *up, struct error *err)
{
    int rc = 0, status;

    for (uint32_t i = 1; !rc && i <= up->n_workers; i++) {
        struct up_child *child = &up->children[i];
        if (reap(child, &status))
            rc = on_worker_ended(up, i, status, err);
        if (!rc && !child->pid && !child->left && up->level == 0 && up_now_ms() >= child->again_ms)
            rc = up_start_worker(up, i, err);
    }
    return rc;
}

/* The daemon saves at the first signal, and ends at once at the second. */
static void pass_stop_on(struct up *up)
{
    const int wanted = up->events && up->events->should_stop ? up->events->should_stop(up->user) : 0;

    for (; up->level < wanted && up->children[0].pid; up->level++)
        kill(up->children[0].pid, DAEMON_SIGNAL);
}

/* Until the daemon ends: 0, or -errno with a sentence. */
static int supervise(struct up *up, struct error *err)
{
    struct pollfd notified = {.fd = up->notify_fd, .events = POLLIN};
    char how[80];
    int status;

    for (;;) {
        poll(&notified, 1, CHECK_MS);
        while (take_notice(up))
            ;
        if (reap(&up->children[0], &status))
            break;
        pass_stop_on(up);
        const int rc = up->directory[0] ? tend_workers(up, err) : 0;
        if (rc)
            return rc;
        say_ready(up);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    describe_end(how, status);
    return error_set(err, WIFEXITED(status) && WEXITSTATUS(status) == 2 ? -EDOM : -EIO, "the daemon (epsd) %s%s", how,
                     WIFEXITED(status) ? ": its lines above say why" : "");
}

/* Ends whoever is left: the daemon if a worker could not be had, the workers if the daemon is gone. */
static void end_all(struct up *up)
{
    const uint64_t began_ms = up_now_ms();
    bool left = true, killed = false;
    int status;

    for (uint32_t i = 0; i <= up->n_workers; i++)
        if (up->children[i].pid)
            kill(up->children[i].pid, i == 0 ? DAEMON_SIGNAL : WORKER_SIGNAL);
    while (left) {
        left = false;
        for (uint32_t i = 0; i <= up->n_workers; i++) {
            reap(&up->children[i], &status);
            left |= up->children[i].pid != 0;
        }
        const bool late =
            !up->children[0].pid && up_now_ms() - began_ms >= WORKER_END_MS; /* the daemon may be saving */
        for (uint32_t i = 1; late && !killed && i <= up->n_workers; i++)
            if (up->children[i].pid)
                kill(up->children[i].pid, SIGKILL);
        killed |= late;
        pass_stop_on(up);
        if (left)
            poll(NULL, 0, CHECK_MS);
    }
}

struct eps_up_options eps_up_defaults(void)
{
    return (struct eps_up_options){.workers = 1};
}

/* Before anything runs: -EDOM is a mistake of the caller. */
static int up_check(const struct eps_up_options *o, struct device_name *device, struct error *err)
{
    int rc;

    if (!o->name || !*o->name)
        return error_set(err, -EDOM, "the daemon needs a name");
    if (o->workers == 0 || o->workers > EPS_UP_WORKERS)
        return error_set(err, -EDOM, "workers %u: from 1 to %d", o->workers, EPS_UP_WORKERS);
    rc = o->device ? device_name_parse(device, "device", o->device, err) : 0;
    if (!rc && device->indexed && o->workers > 1)
        return error_set(err, -EDOM, "device %s is one device, and %u workers need one each: write only cuda",
                         o->device, o->workers);
    return rc;
}

int eps_up(const struct eps_up_options *options, const struct eps_up_events *events, void *user,
           struct eps_error *error)
{
    struct device_name device = {0};
    struct error err = {""};
    int rc = up_check(options, &device, &err);
    struct up *up = rc ? NULL : calloc(1, sizeof *up);

    if (!rc && !up)
        rc = error_memory(&err);
    if (rc)
        return client_report(error, &err, rc);
    *up = (struct up){.options = options,
                      .events = events,
                      .user = user,
                      .device = device,
                      .notify_fd = -1,
                      .n_workers = options->workers};
    rc = open_notify(up, &err);
    if (!rc)
        rc = start_daemon(up, &err);
    if (!rc)
        rc = supervise(up, &err);
    end_all(up);
    if (up->notify_fd >= 0)
        close(up->notify_fd);
    free(up);
    return client_report(error, &err, rc);
}
