/* What a job may become from what it is: all else is a mistake of the daemon's own. */
#include "eps/job/job.h"

#include "tests/kit/driver.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
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
