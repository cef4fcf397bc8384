/* A daemon that stays: what its service manager hears, its log through a rotation, and many observers. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

SUITE_TIMEOUT(120)

static void setup(void)
{
    processes_setup();
    processes_config("tiny.json", 2, 2, 16, 32);
    processes_text("tiny.txt", 8000);
}

SUITE_FIXTURE(setup, processes_remove)

static void stop(pid_t daemon)
{
    struct eps_error error;

    ck_assert_msg(eps_stop("lab", &error) == 0, "%s", error.text);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

/* ---- The service manager ---- */

static int listen_as_manager(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s", processes_path("manager"));
    setenv("NOTIFY_SOCKET", address.sun_path, 1);
    setenv("WATCHDOG_USEC", "20000000", 1);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void expect_told(int fd, const char *lines)
{
    char said[600] = "";

    ck_assert_int_gt(recv(fd, said, sizeof said - 1, 0), 0);
    ck_assert_str_eq(said, lines);
}

/* The manager's word is for the command that it started: a daemon of that run is none of its services. */
TEST(the_manager_hears_nothing_of_a_private_daemon)
{
    const int fd = listen_as_manager();
    char said[600];

    processes_config("model.json", 1, 3, 24, 16);
    processes_text("data.txt", 4000);
    ck_assert_int_eq(processes_eps("train --model model.json --data data.txt --steps 2 --out private"), 0);
    ck_assert(recv(fd, said, sizeof said, MSG_DONTWAIT) < 0 && errno == EAGAIN);
    close(fd);
}

/* The daemon restarts itself once, to set up its threads: it is the same process for the manager. */
TEST(the_manager_hears_of_a_daemon_when_it_listens_and_each_second)
{
    static const char *const argv[] = {"--listen", "lab", NULL};
    const int fd = listen_as_manager();
    const pid_t daemon = processes_start("epsd", argv, processes_path("log"));

    expect_told(fd, print("READY=1\nSTATUS=%s\n", processes_path(PROCESSES_RUNTIME "/eps/lab")));
    ck_assert_int_eq(access(processes_path(PROCESSES_RUNTIME "/eps/lab/listener"), F_OK), 0);
    expect_told(fd, "WATCHDOG=1\n");
    expect_told(fd, "WATCHDOG=1\n");
    close(fd); /* nobody listens any more: it goes on, and says so once */
    processes_await_text(processes_path("log"), "the service manager is not told of this process");
    stop(daemon);
    ck_assert_uint_eq(processes_count(processes_path("log"), "the service manager"), 1);
}

TEST(the_manager_hears_of_a_worker_when_it_is_attached)
{
    const pid_t daemon = processes_daemon("lab", 0, NULL);
    const int fd = listen_as_manager();
    const pid_t worker = processes_worker("lab", "64MiB", NULL);

    expect_told(fd, "READY=1\nSTATUS=cpu\n");
    ck_assert_uint_eq(processes_workers("lab"), 1);
    stop(daemon);
    ck_assert_int_eq(processes_wait(worker), 0);
    close(fd);
}

/* ---- The log ---- */

TEST(hangup_opens_the_log_anew_and_ends_nothing)
{
    const char *const argv[] = {"--listen", "lab", "--log", processes_path("log"), NULL};
    const pid_t daemon = processes_start("epsd", argv, processes_path("stderr"));
    struct stat st;

    processes_await_text(processes_path("log"), " epsd: listening at ");
    ck_assert_int_eq(rename(processes_path("log"), processes_path("log.1")), 0);
    ck_assert_int_eq(kill(daemon, SIGHUP), 0);
    processes_await_text(processes_path("log"), " epsd: the log was opened anew");
    stop(daemon);
    expect_file("log", " epsd: stopping: ");
    expect_absent("log.1", "stopping", "anew");
    ck_assert(stat(processes_path("stderr"), &st) == 0 && st.st_size == 0);
}

TEST(hangup_without_a_file_ends_nothing)
{
    static const char *const argv[] = {"--listen", "lab", NULL};
    const pid_t daemon = processes_start("epsd", argv, processes_path("log"));

    processes_await_workers("lab", 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(kill(daemon, SIGHUP), 0);
    ck_assert_uint_eq(processes_workers("lab"), 0);
    stop(daemon);
    expect_absent("log", "SIGHUP", "anew");
}

static const struct refusal wrongs[] = {
    {"epsd --listen lab --log nowhere/log", 1, "epsd: --log nowhere/log: No such file", NULL},
    {"epsd --listen lab --log-level loud", 2, "epsd: --log-level loud: it is error, warning or info", NULL},
    {"eps-worker --log-level 7", 2, "eps-worker: --log-level 7: it is error, warning or info", NULL},
};

TEST_EACH(a_log_that_cannot_be_is_refused, COUNT(wrongs))
{
    expect_refusal(&wrongs[_i]);
}

/* ---- Observers ---- */

enum { VIEWERS = 100, WARM = 5, ROUNDS = 60, CYCLES = 300 };

static void on_memory(void *user, const struct eps_memory *side)
{
    (void)user, (void)side;
}

static void on_worker(void *user, const struct eps_worker *worker)
{
    (void)worker;
    ++*(unsigned *)user;
}

/* Each asks all that eps top asks; the step of the job that the last one saw. */
static uint64_t look_round(struct eps_observer *const *looks)
{
    struct eps_status status = {0};
    const struct eps_unit *units;
    struct eps_recent recent;
    struct eps_error error;

    for (unsigned i = 0; i < VIEWERS; i++) {
        unsigned n_workers = 0;
        size_t n;
        ck_assert_msg(eps_observer_status(looks[i], &status, &error) == 0, "%s", error.text);
        ck_assert_int_eq(eps_observer_mem(looks[i], true, on_memory, NULL, &error), 0);
        ck_assert_int_eq(eps_observer_units(looks[i], &units, &n, &error), 0);
        ck_assert_int_eq(eps_observer_workers(looks[i], on_worker, &n_workers, &error), 0);
        ck_assert_int_eq(eps_observer_recent(looks[i], &recent, &error), 0);
        ck_assert(n > 0 && n_workers == 1);
    }
    return status.step;
}

static struct eps_observer *open_look(void)
{
    struct eps_observer *look;
    struct eps_error error;

    ck_assert_msg(eps_observer_open(&look, "lab", NULL, NULL, &error) == 0, "%s", error.text);
    return look;
}

struct fds {
    pid_t pid;
    unsigned n;
};

static bool has_fds(void *context)
{
    const struct fds *expected = context;

    return processes_count_fds(expected->pid) == expected->n;
}

/* The daemon's own memory may move by the slack of its allocator, 128 KiB: five bytes for each question would be
 * more. */
TEST(a_hundred_observers_of_a_job_leave_memory_and_descriptors_as_they_are)
{
    static const char *const train[] = {"train",    "--connect", "lab",     "--model", "tiny.json", "--data",
                                        "tiny.txt", "--steps",   "1000000", "--batch", "4",         "--save-every",
                                        "0",        "--out",     "out",     NULL};
    struct eps_observer *looks[VIEWERS];
    const pid_t daemon = processes_daemon("lab", 1, NULL), client = processes_start("eps", train, NULL);

    processes_await_text(processes_path("out/metrics.jsonl"), "\"step\": 3");
    struct fds before = {daemon, processes_count_fds(daemon)};
    for (unsigned i = 0; i < VIEWERS; i++)
        looks[i] = open_look();
    for (unsigned i = 0; i < WARM; i++)
        look_round(looks);
    ck_assert_uint_eq(processes_count_fds(daemon), before.n + VIEWERS);
    const uint64_t bytes = processes_status_bytes(daemon, "RssAnon"), step = look_round(looks);
    for (unsigned i = 0; i < ROUNDS; i++)
        look_round(looks);
    ck_assert_uint_gt(look_round(looks), step); /* the job went on */
    ck_assert_uint_eq(processes_count_fds(daemon), before.n + VIEWERS);
    for (unsigned i = 0; i < VIEWERS; i++)
        eps_observer_close(looks[i]);
    for (unsigned i = 0; i < CYCLES; i++)
        eps_observer_close(open_look());
    ck_assert(processes_until(has_fds, &before));
    if (!SANITIZED)
        ck_assert_uint_le(processes_status_bytes(daemon, "RssAnon"), bytes + (128 << 10));
    ck_assert_int_eq(kill(client, SIGKILL), 0);
    ck_assert_int_eq(processes_wait(client), 128 + SIGKILL);
    stop(daemon);
}
