/* Whoever owes something and does nothing is named and lost: real daemons and clients, workers that fall silent,
 * threads that are stopped. The limit is LIMIT seconds here, in which whoever is honest has done something. */
#include "eps/daemon.h"
#include "proto/wire/session.h"
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/puppet.h"
#include "tests/kit/test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

SUITE_LABELS(slow, own)

enum { LIMIT = 8 };

static const char not_finite[] = "the loss of step 1 is not finite";

/* All scenes are played at a time, each with a daemon of its own, which has the scene's name. */
static struct scene {
    const char *name;
    /* A worker that falls silent, and what the daemon says of it; or */
    enum puppet_fault fault;
    const char *why;
    bool counts;        /* it is silent in the daemon's eyes only: its PONGs count */
    const char *thread; /* of the worker or the daemon, stopped in the middle of a step */
    const char *client; /* what its client is told before it ends; NULL: the job goes on with another worker */
    struct {
        pid_t daemon, puppet, worker, training, held;
        pid_t second; /* the worker that takes its place */
        pid_t drain;  /* eps drain of the puppet, in its share */
    } pid;
} scenes[] = {
    {"assign", PUPPET_NEVER_ASSIGNED, "and the job waits for it to claim its memory", false, NULL, NULL, {0}},
    {"contribute", PUPPET_NEVER_CONTRIBUTES, "and the job waits for its part of the step", false, NULL, NULL, {0}},
    {"release", PUPPET_NEVER_RELEASES, "and its memory in a job waits for it to let go", false, NULL, not_finite, {0}},
    {"assign-counted", PUPPET_NEVER_ASSIGNED, "and the job waits for it to claim its memory", true, NULL, NULL, {0}},
    {"contribute-counted",
     PUPPET_NEVER_CONTRIBUTES,
     "and the job waits for its part of the step",
     true,
     NULL,
     NULL,
     {0}},
    {"drain", PUPPET_NEVER_CONTRIBUTES, "and the job waits for its part of the step", true, NULL, NULL, {0}},
    {"release-counted",
     PUPPET_NEVER_RELEASES,
     "and its memory in a job waits for it to let go",
     true,
     NULL,
     not_finite,
     {0}},
    {"ahead", PUPPET_PULLS_AHEAD, "a pull for a step that is not open", false, NULL, NULL, {0}},
    {"worker", PUPPET_NOWHERE, NULL, false, "compute", NULL, {0}},
    {"daemon", PUPPET_NOWHERE, NULL, false, "optimizer", "the daemon's optimizer thread hangs: nothing done for ", {0}},
};

/* A file of the scene's. */
static const char *file_of(const struct scene *scene, const char *of)
{
    return print("%s.%s", scene->name, of);
}

/* A process that ends with this one, and writes all that comes to a socket into a file, in its order. */
static void start_scribe(const struct scene *scene, struct sockaddr_un *address)
{
    const int to = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    char text[2000];

    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(address->sun_path, sizeof address->sun_path, "%s", processes_path(file_of(scene, "manager")));
    ck_assert_int_eq(bind(to, (const struct sockaddr *)address, sizeof *address), 0);
    const pid_t parent = getpid(), pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        const int file = open(processes_path(file_of(scene, "epsd")), O_WRONLY | O_CREAT | O_APPEND, 0600);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (ssize_t n; getppid() == parent && (n = recv(to, text, sizeof text, 0)) >= 0;)
            if (write(file, text, (size_t)n) != n)
                break;
        _exit(0);
    }
    close(to);
}

/* The daemon's log goes where its service manager listens, which wants signs of life. */
static void meet_manager(const struct sockaddr_un *address, struct notify *notify)
{
    const int log = socket(AF_UNIX, SOCK_DGRAM, 0);

    ck_assert_int_eq(connect(log, (const struct sockaddr *)address, sizeof *address), 0);
    dup2(log, STDERR_FILENO);
    setenv("NOTIFY_SOCKET", address->sun_path, 1);
    setenv("WATCHDOG_USEC", "20000000", 1);
    notify_open(notify);
}

/* A process that ends with this one. */
static pid_t start_daemon(const struct scene *scene)
{
    struct daemon_options options = {.queue = 1, .most_quiet = LIMIT, .most_late = scene->counts ? LIMIT : 0};
    const bool managed = scene->thread && strcmp(scene->thread, "optimizer") == 0;
    struct sockaddr_un manager;
    struct notify notify;
    char directory[300];
    struct error err = {""};

    if (managed)
        start_scribe(scene, &manager);
    const pid_t parent = getpid(), pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(0);
    dup2(open(processes_path(file_of(scene, "epsd")), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
    if (managed) {
        meet_manager(&manager, &notify);
        options.notify = &notify;
    }
    log_name("epsd");
    signal(SIGPIPE, SIG_IGN);
    options.directory = directory;
    if (session_directory(directory, sizeof directory, scene->name, &err) || daemon_run(&options, &err))
        _exit(1);
    _exit(0);
}

static pid_t start_training_of(const char *model, const struct scene *scene, const char *out, const char *steps)
{
    const char *command =
        print("exec %s/eps train --connect %s --model %s --data tiny.txt --batch 4 --eval-every 0 --steps %s --out %s "
              ">said",
              BIN_DIR, scene->name, model, steps, out);

    return processes_start("/bin/bash", (const char *const[]){"-c", command, NULL},
                           processes_path(file_of(scene, "client")));
}

static pid_t start_training(const struct scene *scene, const char *out, const char *steps)
{
    return start_training_of("tiny.json", scene, out, steps);
}

static void setup(void)
{
    processes_setup();
    processes_config("tiny.json", 2, 2, 16, 32);
    processes_text("tiny.txt", 8000);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE(setup, processes_remove)

/* The thread of this name that made the others of it, its team; 0: there is none. */
static pid_t find(pid_t pid, const char *name)
{
    char path[300], comm[64];
    pid_t first = 0;

    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    ck_assert_ptr_nonnull(tasks);
    for (struct dirent *entry = readdir(tasks); entry; entry = readdir(tasks)) {
        const pid_t thread = (pid_t)atoi(entry->d_name);
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/comm", (int)pid, entry->d_name);
        FILE *file = thread ? fopen(path, "r") : NULL;
        const bool is_it = file && fgets(comm, sizeof comm, file) && strncmp(comm, name, strlen(name)) == 0;
        if (file)
            fclose(file);
        if (is_it && (first == 0 || thread < first))
            first = thread;
    }
    closedir(tasks);
    return first;
}

static bool waits(pid_t pid, pid_t thread)
{
    char path[100], text[64] = "";

    snprintf(path, sizeof path, "/proc/%d/task/%d/syscall", (int)pid, (int)thread);
    FILE *file = fopen(path, "r");
    if (file && !fgets(text, sizeof text, file))
        text[0] = 0;
    if (file)
        fclose(file);
    return strtol(text, NULL, 10) == SYS_futex;
}

/* Stops the thread where it waits for something to do: elsewhere it might hold what the process's other threads need,
 * which who hangs in earnest does not. False: it must not be traced here. */
static bool hold(pid_t pid, pid_t thread)
{
    if (ptrace(PTRACE_SEIZE, thread, NULL, NULL))
        return false;
    for (;;) {
        if (ptrace(PTRACE_INTERRUPT, thread, NULL, NULL))
            return false;
        ck_assert_int_eq(waitpid(thread, NULL, __WALL), thread);
        if (waits(pid, thread))
            return true;
        ck_assert_int_eq(ptrace(PTRACE_CONT, thread, NULL, NULL), 0);
        poll(NULL, 0, 1);
    }
}

/* Its process ends; it is not gone before it is seen off. */
static void see_off(pid_t thread)
{
    int status = 0;

    while (waitpid(thread, &status, __WALL) == thread && WIFSTOPPED(status))
        ;
}

static bool has_steps(void *path)
{
    char *text = access(path, R_OK) == 0 ? processes_read(path) : NULL;
    const bool yes = text && strstr(text, "\"step\": 3") != NULL;

    free(text);
    return yes;
}

struct search {
    const struct scene *scene;
    uint32_t id; /* of the puppet, once it has its share */
};

static void compare(void *user, const struct eps_worker *worker)
{
    struct search *search = user;

    if ((pid_t)worker->pid == search->scene->pid.puppet && strcmp(worker->phase, "forward") == 0)
        search->id = worker->id;
}

static bool has_share(void *context)
{
    struct search *search = context;
    struct eps_error error;
    struct eps_observer *look;

    ck_assert_int_eq(eps_observer_open(&look, search->scene->name, NULL, NULL, &error), 0);
    ck_assert_int_eq(eps_observer_workers(look, compare, search, &error), 0);
    eps_observer_close(look);
    return search->id != 0;
}

static pid_t start_drain(const struct scene *scene)
{
    struct search search = {.scene = scene};

    ck_assert(processes_until(has_share, &search));
    return processes_start("eps", (const char *const[]){"drain", print("%u", search.id), scene->name, NULL}, NULL);
}

static void begin(struct scene *scene)
{
    const char *const worker[] = {"--connect", scene->name, "--device-mem", "256MiB", NULL};

    scene->pid.daemon = start_daemon(scene);
    processes_await_workers(scene->name, 0);
    if (!scene->thread)
        scene->pid.puppet = (scene->counts ? puppet_start_counting : puppet_start)(scene->name, scene->fault);
    processes_await_workers(scene->name, !scene->thread);
    scene->pid.worker = processes_start("eps-worker", worker, processes_path(file_of(scene, "worker")));
    processes_await_workers(scene->name, 1 + !scene->thread);
    scene->pid.training = start_training(scene, file_of(scene, "one"), scene->thread ? "1000000" : "2");
    if (strcmp(scene->name, "drain") == 0)
        scene->pid.drain = start_drain(scene);
    if (!scene->thread)
        return;
    char path[300];
    snprintf(path, sizeof path, "%s", processes_path(print("%s.one/metrics.jsonl", scene->name)));
    ck_assert(processes_until(has_steps, path));
    const pid_t pid = strcmp(scene->name, "worker") == 0 ? scene->pid.worker : scene->pid.daemon,
                thread = find(pid, scene->thread);
    ck_assert_int_gt(thread, 0);
    if (hold(pid, thread))
        scene->pid.held = thread;
    else
        fprintf(stderr, "test_watch: no thread is held: %s\n", strerror(errno));
}

/* The step that it left undone is done by the worker beside it, or by the next one, and the run goes on. */
static void go_on(struct scene *scene)
{
    const char *const worker[] = {"--connect", scene->name, "--device-mem", "256MiB", NULL};
    char log[300];

    snprintf(log, sizeof log, "%s", processes_path(file_of(scene, "epsd")));
    if (!scene->thread) {
        processes_await_text(log, " without it"); /* the others begin, or go on */
        ck_assert_msg(processes_wait(scene->pid.training) == 0, "%s", scene->name);
        return;
    }
    processes_await_text(log, "the job waits for another worker");
    scene->pid.second = processes_start("eps-worker", worker, processes_path(file_of(scene, "second")));
    processes_await_text(log, " joins after ");
    ck_assert_int_eq(kill(scene->pid.training, SIGKILL), 0);
    ck_assert_int_eq(processes_wait(scene->pid.training), 128 + SIGKILL);
}

/* The exit status is this one; else tells what the process and its daemon had to say. */
static void expect_end(const struct scene *scene, pid_t pid, int status)
{
    const int is = processes_wait(pid);
    char *client = processes_read(processes_path(file_of(scene, "client")));
    char *daemon = processes_read(processes_path(file_of(scene, "epsd")));

    ck_assert_msg(is == status, "%s: status %d\n%s\n%s", scene->name, is, client, daemon);
    free(client);
    free(daemon);
}

/* The next job goes on, when it has waited for what the first has not given back. */
static void end(struct scene *scene)
{
    struct eps_error error = {""};
    const bool lives = strcmp(scene->name, "daemon") != 0;

    if (scene->thread && !scene->pid.held)
        return;
    if (scene->client) {
        ck_assert_msg(processes_wait(scene->pid.training) == 1, "%s", scene->name);
        expect_file(file_of(scene, "client"), scene->client);
    } else {
        go_on(scene);
    }
    if (scene->thread) {
        see_off(scene->pid.held);
        if (!lives) { /* it waits for the next daemon */
            processes_await_text(processes_path(file_of(scene, "worker")), "waiting for the next one there");
            kill(scene->pid.worker, SIGTERM);
        }
        ck_assert_msg(processes_wait(scene->pid.worker) == lives, "%s", scene->name);
        expect_file(file_of(scene, lives ? "worker" : "epsd"),
                    lives ? "refused: it hangs: nothing done for " : "the optimizer thread hangs: nothing done for ");
        expect_file(file_of(scene, lives ? "epsd" : "client"), "hangs: nothing done for ");
    } else {
        expect_end(scene, start_training(scene, file_of(scene, "two"), "2"), 0);
        ck_assert_msg(processes_wait(scene->pid.puppet) == PUPPET_REFUSED, "%s", scene->name);
        expect_file(file_of(scene, "epsd"), " refused: ", scene->why,
                    scene->counts ? "it hangs: nothing finished for " : " refused: ");
    }
    if (lives)
        ck_assert_msg(eps_stop(scene->name, &error) == 0, "%s: %s", scene->name, error.text);
    ck_assert_msg(processes_wait(scene->pid.daemon) == !lives, "%s", scene->name);
    if (!scene->thread)
        ck_assert_msg(processes_wait(scene->pid.worker) == 0, "%s", scene->name);
    if (scene->pid.drain)
        ck_assert_int_eq(processes_wait(scene->pid.drain), 0);
    if (scene->pid.second)
        ck_assert_msg(processes_wait(scene->pid.second) == 0, "%s", scene->name);
}

/* The service manager is told that a daemon lives, until it finds that its optimizer thread hangs. */
static void check_told(const struct scene *scene)
{
    char *told = processes_read(processes_path(file_of(scene, "epsd")));
    const char *first = strstr(told, "WATCHDOG=1\n"), *hangs = strstr(told, "the optimizer thread hangs");

    ck_assert_msg(first && hangs && first < hangs && !strstr(hangs, "WATCHDOG=1"), "%s", told);
    free(told);
}

/* A daemon whose disk takes nothing while its file is there (kit/preload/slow_disk.c). Nothing can be lost but time, so
 * that is said, and no more. */
static struct scene slow = {.name = "disk"};

static void begin_slow(void)
{
    const char *const worker[] = {"--connect", slow.name, "--device-mem", "256MiB", NULL};

    outputs_write(".", file_of(&slow, "held"), "");
    setenv("SLOW_DISK", processes_path(file_of(&slow, "held")), 1);
    slow.pid.daemon = start_daemon(&slow);
    unsetenv("SLOW_DISK");
    processes_await_workers(slow.name, 0);
    slow.pid.worker = processes_start("eps-worker", worker, processes_path(file_of(&slow, "worker")));
    processes_await_workers(slow.name, 1);
    slow.pid.training = start_training(&slow, file_of(&slow, "one"), "2");
}

static void expect_trouble(void *why, const struct eps_status *status)
{
    ck_assert_holds(status->trouble, why);
}

static void end_slow(void)
{
    static char why[] = "step 2 is being saved, but the disk has taken nothing for ";
    struct eps_error error = {""};

    processes_await_text(processes_path(file_of(&slow, "epsd")), why);
    ck_assert_int_eq(eps_status(slow.name, expect_trouble, why, &error), 0);
    ck_assert_int_eq(unlink(processes_path(file_of(&slow, "held"))), 0);
    ck_assert_int_eq(processes_wait(slow.pid.training), 0);
    expect_file(file_of(&slow, "epsd"), "step 2 saved\n");
    ck_assert_int_eq(eps_stop(slow.name, &error), 0);
    ck_assert_int_eq(processes_wait(slow.pid.daemon), 0);
    ck_assert_int_eq(processes_wait(slow.pid.worker), 0);
}

/* Daemons whose thread does not come back from a file of weights while theirs is there. The job ends, and the thread
 * keeps its memory; the next job gets another thread. */
static struct {
    struct scene scene;
    bool interrupted; /* the client, before that is found */
} loads[] = {{{.name = "load"}, false}, {{.name = "interrupt"}, true}};

static const char made[] = "made/step-1";

static void make_weights(void)
{
    ck_assert_int_eq(processes_eps("train --model tiny.json --data tiny.txt --batch 4 --steps 1 --out made"), 0);
}

static bool is_there(void *path)
{
    return access(path, F_OK) == 0;
}

static void begin_load(struct scene *scene, bool interrupted)
{
    char met[300];
    const char *const worker[] = {"--connect", scene->name, "--device-mem", "256MiB", NULL};

    outputs_write(".", file_of(scene, "held"), "");
    setenv("SLOW_READ", processes_path(file_of(scene, "held")), 1);
    scene->pid.daemon = start_daemon(scene);
    unsetenv("SLOW_READ");
    processes_await_workers(scene->name, 0);
    scene->pid.worker = processes_start("eps-worker", worker, processes_path(file_of(scene, "worker")));
    processes_await_workers(scene->name, 1);
    scene->pid.training = start_training_of(made, scene, file_of(scene, "one"), "1");
    snprintf(met, sizeof met, "%s", processes_path(file_of(scene, "held.met")));
    ck_assert(processes_until(is_there, met)); /* its thread waits */
    if (interrupted)
        ck_assert_int_eq(kill(scene->pid.training, SIGINT), 0);
}

static uint64_t host_bytes(const struct scene *scene)
{
    ck_assert_int_eq(processes_eps("mem %s --json", scene->name), 0);
    json_t *mem = processes_answer(processes_path("out"));
    const uint64_t bytes = (uint64_t)json_integer_value(json_object_get(json_object_get(mem, "host"), "current"));

    json_decref(mem);
    return bytes;
}

/* A job that was interrupted reads no more than what it was at. */
static void end_load(struct scene *scene, bool interrupted)
{
    char log[300];
    struct eps_error error = {""};

    snprintf(log, sizeof log, "%s", processes_path(file_of(scene, "epsd")));
    if (interrupted) {
        ck_assert_int_eq(processes_wait(scene->pid.training), 130);
    } else {
        processes_await_text(log, "loading the job hangs: nothing read for ");
        ck_assert_int_eq(processes_wait(scene->pid.training), 1);
        expect_file(file_of(scene, "client"), "loading the job hangs: nothing read for ");
    }
    processes_await_text(log, "job 1 is set aside");
    ck_assert_uint_gt(host_bytes(scene), 0);
    ck_assert_int_eq(processes_wait(start_training(scene, file_of(scene, "two"), "2")), 0);
    if (!interrupted) { /* else the daemon ends with a thread that hangs */
        ck_assert_int_eq(unlink(processes_path(file_of(scene, "held"))), 0);
        processes_await_text(log, "job 1, set aside, has given its memory back");
        ck_assert_uint_eq(host_bytes(scene), 0);
        ck_assert_int_eq(processes_wait(start_training_of(made, scene, file_of(scene, "three"), "1")), 0);
    }
    ck_assert_msg(eps_stop(scene->name, &error) == 0, "%s: %s", scene->name, error.text);
    ck_assert_int_eq(processes_wait(scene->pid.daemon), 0);
    ck_assert_int_eq(processes_wait(scene->pid.worker), 0);
}

TEST(whoever_owes_something_and_does_nothing_is_named_and_lost)
{
    make_weights();
    for (int i = 0; i < COUNT(scenes); i++)
        begin(&scenes[i]);
    begin_slow();
    for (int i = 0; i < COUNT(loads); i++)
        begin_load(&loads[i].scene, loads[i].interrupted);
    for (int i = 0; i < COUNT(scenes); i++)
        end(&scenes[i]);
    end_slow();
    for (int i = 0; i < COUNT(loads); i++)
        end_load(&loads[i].scene, loads[i].interrupted);
    if (scenes[COUNT(scenes) - 1].pid.held)
        check_told(&scenes[COUNT(scenes) - 1]);
}
