/* Files of a member of the group: the daemon gets what is in them and touches none, so a client whose disk hangs, or
 * that is stopped, costs its own job. With real processes of several users; only root can play them. */
#include "eps/daemon.h"
#include "proto/wire/files.h"
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"
#include "tests/kit/users.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

SUITE_LABELS(slow)

enum { LIMIT = 8 }; /* seconds in which whoever is honest has done something */

static char theirs[300], mine[300];

static void make(char *path, const char *name, uid_t uid)
{
    snprintf(path, 300, "%s", processes_path(name));
    ck_assert_int_eq(mkdir(path, 0700) | chown(path, uid, uid), 0);
}

static void setup(void)
{
    users_setup();
    make(theirs, "theirs", USERS_OWNER);
    make(mine, "mine", USERS_MEMBER);
    processes_text("text.txt", 8000);
    processes_config("tiny.json", 1, 2, 16, 32);
}

SUITE_SKIP_UNLESS(users_can(), "only root can play several users")
SUITE_TIMEOUT(120)
SUITE_FIXTURE(setup, processes_remove)

/* ---- the service ------------------------------------------------------------------------------------------------- */

/* The owner's, with a worker of theirs; a process that ends with this one. */
static pid_t start(void)
{
    const char *const worker[] = {"--connect", users_service(), "--device-mem", "256MiB", NULL};
    const struct daemon_options options = {.directory = users_service(),
                                           .shared = true,
                                           .group = users_group(),
                                           .users = users_group(),
                                           .queue = 4,
                                           .most_quiet = LIMIT};
    const int log = open("epsd.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    struct error err = {""};
    const pid_t parent = getpid(), pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(log, STDERR_FILENO);
        log_name("epsd");
        signal(SIGPIPE, SIG_IGN);
        if (getppid() == parent && users_become(USERS_OWNER, true) && daemon_run(&options, &err) == 0)
            _exit(0);
        _exit(1);
    }
    close(log);
    processes_await_workers(users_service(), 0);
    users_start(USERS_OWNER, true, "eps-worker", worker);
    processes_await_workers(users_service(), 1);
    return pid;
}

/* It has lost no thread and set no job aside. */
static void stop(pid_t daemon)
{
    ck_assert_uint_eq(processes_count("epsd.log", "aside"), 0);
    ck_assert_int_eq(eps_stop(users_service(), NULL), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

static unsigned count_threads(pid_t pid)
{
    char path[64];
    unsigned n = 0;

    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    ck_assert_ptr_nonnull(tasks);
    while (readdir(tasks))
        n++;
    closedir(tasks);
    return n;
}

/* None of the daemon's descriptors is a file in the member's directory. */
static void check_touches_nothing(pid_t daemon)
{
    char path[400], target[400];

    snprintf(path, sizeof path, "/proc/%d/fd", (int)daemon);
    DIR *fds = opendir(path);
    ck_assert_ptr_nonnull(fds);
    for (struct dirent *entry = readdir(fds); entry; entry = readdir(fds)) {
        snprintf(path, sizeof path, "/proc/%d/fd/%.20s", (int)daemon, entry->d_name);
        const ssize_t n = readlink(path, target, sizeof target - 1);
        target[n > 0 ? n : 0] = 0;
        ck_assert_msg(strncmp(target, mine, strlen(mine)) != 0, "%s", target);
    }
    closedir(fds);
}

static pid_t start_training(uid_t uid, const char *out, const char *model, const char *steps, const char *option,
                            const char *value)
{
    const char *const argv[] = {"train",
                                "--model",
                                processes_path(model),
                                "--data",
                                processes_path("text.txt"),
                                "--out",
                                out,
                                "--steps",
                                steps,
                                "--batch",
                                "2",
                                "--eval-every",
                                "0",
                                "--connect",
                                users_service(),
                                option,
                                value,
                                NULL};

    return users_start(uid, true, "eps", argv);
}

/* The owner's, which has waited for its turn or has it at once. */
static void owner_trains(const char *name)
{
    char out[400];

    snprintf(out, sizeof out, "%s/%s", theirs, name);
    ck_assert_msg(processes_wait(start_training(USERS_OWNER, out, "tiny.json", "2", NULL, NULL)) == 0, "%s",
                  processes_read(users_log()));
}

/* Root ends it, as the owner may. */
static void end_job(uint32_t job, unsigned times)
{
    const struct message m = {.kind = MESSAGE_STOP, .stop.job = job};
    struct client_link viewer;
    struct message status;

    driver_look(&viewer, users_service());
    for (unsigned i = 0; i < times; i++)
        client_link_send(&viewer, &m);
    driver_status(&viewer, &status);
    client_link_free(&viewer);
}

/* ---- a member's client that does not answer ---------------------------------------------------------------------- */

static struct driver driver;

/* As the member, in a process of its own. */
static pid_t start_member(void (*act)(int told), int told)
{
    const pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        ck_assert(users_become(USERS_MEMBER, true));
        act(told);
        _exit(0);
    }
    return pid;
}

static void end_member(pid_t pid)
{
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    processes_wait(pid);
}

/* It resumes a run, and no byte of it comes. */
static void load_silently(int told)
{
    struct error err = {""};

    (void)told;
    driver_try(&driver, users_service(),
               &(struct driver_options){.files = true, .mute = true, .resume = mine, .step = 1}, &err);
}

/* The owner ends it, or the daemon does after LIMIT seconds. */
TEST_EACH(a_load_that_its_client_does_not_serve_costs_that_job, 2)
{
    const bool is_ended = _i == 0;
    const pid_t daemon = start();
    const unsigned n_threads = count_threads(daemon);

    processes_write("mine/model.safetensors", "", 0), processes_write("mine/optimizer.safetensors", "", 0);
    ck_assert_int_eq(chmod(processes_path("mine/model.safetensors"), 0644), 0);
    ck_assert_int_eq(chmod(processes_path("mine/optimizer.safetensors"), 0644), 0);
    const pid_t client = start_member(load_silently, -1);
    processes_await_state(users_service(), "loading");
    check_touches_nothing(daemon);
    if (is_ended)
        end_job(1, 1);
    owner_trains("next");
    ck_assert_uint_eq(processes_count("epsd.log", "loading the job hangs: nothing read for "), !is_ended);
    ck_assert_uint_eq(count_threads(daemon), n_threads);
    end_member(client);
    stop(daemon);
}

/* Its own job's weights, to read. */
static void look(int told)
{
    struct error err;
    struct message m;
    int fd;

    driver_open(&driver, users_service(), &(struct driver_options){.files = true});
    driver_train(&driver, 1);
    driver_await_done(&driver, 1);
    client_link_send(&driver.link, &(struct message){.kind = MESSAGE_MAP});
    ck_assert_int_eq(client_link_expect(&driver.link, MESSAGE_MAPPED, &m, &fd, &err), 0);
    ck_assert(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
    ck_assert(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EPERM);
    ck_assert(pwrite(fd, "x", 1, 0) < 0 && errno == EPERM);
    const int again = open(print("/proc/self/fd/%d", fd), O_RDWR | O_CLOEXEC);
    ck_assert(again >= 0 && pwrite(again, "x", 1, 0) < 0 && errno == EPERM);
    ck_assert_int_eq(write(told, "x", 1), 1);
    pause();
}

TEST(a_member_reads_its_own_jobs_weights_and_writes_none)
{
    const pid_t daemon = start();
    int told[2];
    char byte;

    ck_assert_int_eq(pipe2(told, O_CLOEXEC), 0);
    const pid_t client = start_member(look, told[1]);
    close(told[1]);
    ck_assert_int_eq(read(told[0], &byte, 1), 1);
    close(told[0]);
    check_touches_nothing(daemon);
    end_member(client);
    stop(daemon);
}

static void save_silently(int told)
{
    struct message m = {0};

    driver_open(&driver, users_service(), &(struct driver_options){.files = true, .mute = true});
    driver_train(&driver, 1);
    driver_ask_save(&driver, 1);
    driver_next(&driver.link, &m);
    ck_assert(m.kind == MESSAGE_OUTPUT && m.output.what == OUTPUT_OPEN);
    m = (struct message){.kind = MESSAGE_OUTPUT_DONE, .output_done = {.id = m.output.id, .n_files = 4}};
    client_link_send(&driver.link, &m);
    ck_assert_int_eq(write(told, "x", 1), 1);
    raise(SIGSTOP);
}

static bool is_saving(void *context)
{
    struct client_link viewer;
    struct message status;

    (void)context;
    driver_look(&viewer, users_service());
    driver_status(&viewer, &status);
    client_link_free(&viewer);
    return status.status_reply.saving;
}

/* The owner ends its job, or the daemon. */
TEST_EACH(a_save_that_its_client_does_not_serve_costs_that_job, 2)
{
    const pid_t daemon = start();
    int told[2];
    char byte;

    ck_assert_int_eq(pipe2(told, O_CLOEXEC), 0);
    const pid_t client = start_member(save_silently, told[1]);
    ck_assert_int_eq(read(told[0], &byte, 1), 1);
    ck_assert(processes_until(is_saving, NULL));
    check_touches_nothing(daemon);
    if (_i == 0) {
        end_job(1, 2);
        owner_trains("next");
        stop(daemon);
    } else {
        ck_assert_int_eq(kill(daemon, SIGTERM), 0);
        ck_assert_int_eq(kill(daemon, SIGINT), 0);
        ck_assert_int_eq(processes_wait(daemon), 0);
    }
    end_member(client);
}

/* It answers what nobody asked. */
static void load_wrongly(int told)
{
    const struct message ping = {.kind = MESSAGE_PING, .sequence = 1};
    struct message m = {.kind = MESSAGE_JOB, .job = {.goal = {.batch = 1, .seq = 8, .n_parts = 1}, .n_files = 1}};
    struct error err = {""};
    struct message reply;

    (void)told;
    driver_attach(&driver.link, users_service(), ROLE_CLIENT);
    driver_open_mute(&driver);
    ck_assert_int_eq(files_send(driver.mute_socket, &ping, &err), 0);
    m.job.config_bytes = (uint32_t)strlen(driver_config);
    client_link_send(&driver.link, &m);
    ck_assert_int_eq(client_link_expect(&driver.link, MESSAGE_JOB_OPENED, &reply, NULL, &err), -EPROTO);
    ck_assert_holds(err.text, "client that serves the job's files", "PING 1");
}

TEST(a_client_that_serves_its_files_wrongly_is_told_so)
{
    const pid_t daemon = start();

    ck_assert_int_eq(processes_wait(start_member(load_wrongly, -1)), 0);
    owner_trains("next");
    stop(daemon);
}

/* ---- the bits ---------------------------------------------------------------------------------------------------- */

#define EPS(uid, ...) run_eps(uid, (const char *const[]){__VA_ARGS__, NULL})

/* What it said; owned. */
static char *run_eps(uid_t uid, const char *const *argv)
{
    ck_assert_msg(users_run(uid, true, "eps", argv) == 0, "%s: %s", argv[0], processes_read(users_log()));
    return processes_read(users_log());
}

struct said {
    char *loss, *text;
};

/* What a run of this user's says and leaves. */
static struct said play(pid_t daemon, uid_t uid, const char *directory)
{
    const char *const service = users_service(), *const data = processes_path("text.txt");
    char out[400], trace[400];
    struct said said;

    snprintf(out, sizeof out, "%s/run", directory);
    snprintf(trace, sizeof trace, "%s/trace.json", directory);
    ck_assert_msg(processes_wait(start_training(uid, out, "wide.json", "2", "--trace", trace)) == 0, "%s",
                  processes_read(users_log()));
    check_touches_nothing(daemon);
    free(EPS(uid, "train", "--resume", out, "--steps", "3", "--connect", service));
    said.loss = EPS(uid, "eval", "--model", out, "--data", data, "--seq", "32", "--json", "--connect", service);
    said.text = EPS(uid, "generate", "--model", out, "--prompt", "abc", "--tokens", "8", "--temperature", "0",
                    "--connect", service);
    *strstr(said.text, "eps generate: ") = 0; /* its speed */
    return said;
}

/* Its tensors are longer than a window. */
TEST(a_members_run_has_the_bits_of_the_owners)
{
    const pid_t daemon = start();
    char run[2][400];

    processes_config("wide.json", 1, 2, 640, 32);
    const struct said owners = play(daemon, USERS_OWNER, theirs), members = play(daemon, USERS_MEMBER, mine);
    snprintf(run[0], sizeof run[0], "%s/run", theirs);
    snprintf(run[1], sizeof run[1], "%s/run", mine);
    outputs_check_same_latest(run[0], run[1]);
    ck_assert_int_eq(processes_count(processes_path("mine/trace.json"), "\"optimizer\""),
                     processes_count(processes_path("theirs/trace.json"), "\"optimizer\""));
    ck_assert_str_eq(strchr(members.loss, '{'), strchr(owners.loss, '{')); /* behind what a slow machine is told */
    ck_assert_str_eq(members.text, owners.text);
    free(owners.loss), free(owners.text);
    free(members.loss), free(members.text);
    stop(daemon);
}

/* The client flushes the files, and lets the system forget them; what the daemon then reads of them is not what it
 * wrote. */
TEST_IF(a_members_checkpoint_that_the_disk_loses_is_not_put_in_place,
        !SANITIZED) /* which wants to be preloaded first */
{
    const pid_t daemon = start();
    char out[400];

    snprintf(out, sizeof out, "%s/run", mine);
    outputs_write(".", "losing", "step-4.partial/optimizer.safetensors");
    setenv("LOSING_DISK", processes_path("losing"), 1);
    setenv("LD_PRELOAD", BIN_DIR "/liblosing_disk.so", 1);
    const pid_t client = start_training(USERS_MEMBER, out, "tiny.json", "4", "--save-every", "2");
    unsetenv("LD_PRELOAD");
    ck_assert_int_eq(processes_wait(client), 1);
    users_check_log("the last checkpoint, step-4, could not be written: optimizer.safetensors is not what was written",
                    ": the disk has lost what it took");
    ck_assert_str_eq(outputs_names(out), "latest metrics.jsonl step-2 ");
    outputs_check_whole(out, 2);
    stop(daemon);
}

/* A run whose client dies is exported while nobody has it, taken over, and saved. */
TEST(a_members_live_model_is_exported_and_its_run_taken_over)
{
    const pid_t daemon = start();
    char out[400], metrics[440], live[400];

    snprintf(out, sizeof out, "%s/run", mine);
    snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", out);
    snprintf(live, sizeof live, "%s/live", mine);
    const pid_t client = start_training(USERS_MEMBER, out, "tiny.json", "1000000", "--save-every", "900000");
    processes_await_text(metrics, "\"step\": 2");
    end_member(client);
    processes_await_state(users_service(), "detached");
    json_t *memory = expect_json(print("eps mem %s --json", users_service()), 0); /* with the two windows */
    ck_assert_double_ge(json_number_at(memory, "host.current"), FILES_BYTES);
    ck_assert_double_eq(json_number_at(memory, "host.current"), json_number_at(memory, "host.planned"));
    json_decref(memory);
    free(EPS(USERS_MEMBER, "export", "--connect", users_service(), "--out", live));
    check_touches_nothing(daemon);
    free(EPS(USERS_MEMBER, "eval", "--model", live, "--data", processes_path("text.txt"), "--device-mem", "256MiB"));
    const pid_t heir = users_start(USERS_MEMBER, true, "eps",
                                   (const char *const[]){"train", "--attach", users_service(), "--out", out, NULL});
    processes_await_text(users_log(), "took over job 1 of ");
    stop(daemon); /* which the heir has saved for */
    ck_assert_int_gt(processes_wait(heir), 0);
    free(EPS(USERS_MEMBER, "verify", out));
}
