/* What a job may become from what it is: all else is a mistake of the daemon's own. */
#include "eps/job/damage.h"
#include "eps/job/forward.h"

#include "tests/kit/driver.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"
#include "tests/proto/wire/message_samples.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Row: from; column: to. As a job's life is told in job.h: none, loading, assigning, resting, stepping, evaluating,
 * generating, ending. A step may be opened while the last is not done. */
static const char *const legal[] = {
    ".L......", "..A....E", "...R...E", "....SVGE", "...RS..E", "...R...E", "...R...E", "N.......",
};

static bool may_enter(enum job_state from, enum job_state to)
{
    const pid_t child = fork();
    int status;

    if (child == 0) {
        struct job job = {.state = from};
        signal(SIGABRT, SIG_DFL);
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        job_enter(&job, to);
        _exit(job.state == to ? 0 : 2);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    if (WIFEXITED(status))
        ck_assert_int_eq(WEXITSTATUS(status), 0);
    else
        ck_assert_int_eq(WTERMSIG(status), SIGABRT);
    return WIFEXITED(status);
}

TEST_EACH(a_state_is_entered_from_those_before_it_alone, JOB_STATES)
{
    for (int to = 0; to < JOB_STATES; to++)
        ck_assert_msg(may_enter((enum job_state)_i, (enum job_state)to) == (legal[_i][to] != '.'), "%d to %d", _i, to);
}

/* The optimizer thread draws or reads no more of it. */
TEST(a_job_that_ends_while_it_loads_abandons_its_load)
{
    struct peers peers = {0};
    struct job job = {.peers = &peers, .state = JOB_LOADING, .loading = true};

    ck_assert(!pieces_are_abandoned(&job.load_pieces));
    job_end(&job, -ECANCELED, "its client is gone");
    ck_assert_int_eq(job.state, JOB_ENDING);
    ck_assert(pieces_are_abandoned(&job.load_pieces));
}

static void ignore(void *context)
{
    (void)context;
}

static void await_look(struct job *job)
{
    struct updater_task task;

    while (!updater_take(job->peers->updater, &task))
        sched_yield();
    ck_assert(task.call == damage_do_look);
    damage_on_looked(job);
}

/* One that began before a number was found amiss may have passed what was damaged in between. */
TEST_EACH(a_job_ends_for_another_reason_once_a_look_that_began_after_it_is_over, 2)
{
    struct peers peers = {0};
    struct job job = {.peers = &peers, .state = JOB_STEPPING, .request.job.goal.checks_memory = true};

    ck_assert_int_eq(updater_start(&peers.updater, &job.store, 1, ignore, NULL), 0);
    (_i == 0 ? damage_look : damage_look_before)(&job);
    damage_end_otherwise(&job, -EDOM, "it is not finite");
    await_look(&job);
    ck_assert_int_eq(job.state, JOB_STEPPING);
    await_look(&job);
    ck_assert_int_eq(job.state, JOB_ENDING);
    ck_assert_int_eq(job.end_code, -EDOM);
    updater_stop(peers.updater);
}

enum { FORWARDED_BYTES = MESSAGE_MAX_BYTES + 64 };

/* As host 0 tells of a job that has a message of this kind for its request. Its bytes. */
static size_t print_forwarded(uint8_t *out, enum message_kind kind)
{
    static const char json[] = "{\"config\": \"{}\"}";
    const struct message m = message_sample(kind);
    const size_t n = message_encode(out + 2, MESSAGE_MAX_BYTES, &m);

    out[0] = (uint8_t)n, out[1] = (uint8_t)(n >> 8);
    memcpy(out + 2 + n, json, sizeof json - 1);
    return 2 + n + sizeof json - 1;
}

/* Whoever reads past them reads where there is no memory. */
static int open_forwarded(const uint8_t *bytes, size_t n)
{
    enum { ROOM = 64 << 10 };
    char *const room = mmap(NULL, 2 * ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct forward forward;
    struct error err;

    ck_assert_ptr_ne(room, MAP_FAILED);
    ck_assert_int_eq(mprotect(room + ROOM, ROOM, PROT_NONE), 0);
    memcpy(room + ROOM - n, bytes, n);
    const int rc = forward_open(&forward, room + ROOM - n, n, &err);
    if (rc)
        ck_assert_holds(err.text, "in no known form");
    else
        job_close_fds(forward.fds, forward.n_fds);
    ck_assert_int_eq(munmap(room, 2 * ROOM), 0);
    return rc;
}

TEST(what_another_host_told_is_opened_if_it_is_a_whole_job)
{
    uint8_t bytes[FORWARDED_BYTES];
    size_t n = print_forwarded(bytes, MESSAGE_JOB);

    ck_assert_int_eq(open_forwarded(bytes, n), 0);
    while (n-- > 0)
        ck_assert_msg(open_forwarded(bytes, n) == -EINVAL, "%zu bytes", n);
    n = print_forwarded(bytes, MESSAGE_OPEN_STEP);
    ck_assert_int_eq(open_forwarded(bytes, n), -EINVAL);
}

struct open_files {
    pid_t pid;
    unsigned n;
};

static bool are_as_few(void *context)
{
    const struct open_files *files = context;

    return processes_count_fds(files->pid) <= files->n;
}

TEST(what_a_job_opened_is_closed_after_it)
{
    struct driver driver;
    struct open_files files[2];

    processes_setup();
    files[0].pid = processes_daemon("lab", 1, &files[1].pid);
    for (int i = 0; i < 2; i++)
        files[i].n = processes_count_fds(files[i].pid);
    driver_open(&driver, "lab", &(struct driver_options){0});
    driver_train(&driver, 1);
    ck_assert_uint_gt(processes_count_fds(files[0].pid), files[0].n);
    driver_close(&driver);
    for (int i = 0; i < 2; i++)
        ck_assert(processes_until(are_as_few, &files[i]));
    processes_remove();
}
