/* Sessions of workers that come and go: the daemon's memory and descriptors stay flat, whether a job runs or not.
 *
 *   CHURN=CYCLES test_churn    the same with so many, and 64 idle workers beside 8, four of which work */
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/processes.h"
#include "tests/kit/inprocess/stage.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_TIMEOUT(120)
SUITE_FIXTURE(processes_setup, processes_remove)

/* A leak of a peer is 10 KB a cycle, of a session more; the allocator's own growth ends after the first cycles. */
enum { MAX_IDLE = 64, WARM = 20, SLACK_BYTES = 256 << 10, WHEN_TESTED = 60 };

/* A worker by its word alone: it is idle, as it is not of the job's kind. */
static void attach(struct side *side, struct stage *st, const char *directory)
{
    struct message hello = worker_hello;

    *side = (struct side){0};
    snprintf(hello.hello.device, sizeof hello.hello.device, "cuda:1");
    ck_assert_int_eq(session_connect(&side->s, &st->loop, directory, &hello, &side_events, side, NULL), 0);
    stage_run_until(st, &side->n_opened, 1);
}

static void detach(struct side *side, struct stage *st)
{
    session_close(side->s);
    stage_run_until(st, &side->n_closed, 1);
}

static bool has_workers(void *n)
{
    return processes_workers("lab") == *(uint32_t *)n;
}

struct figures {
    unsigned n_fds;
    uint64_t bytes;
};

/* Once the daemon has seen all that was done. */
static struct figures figures_of(pid_t daemon, uint32_t n_workers)
{
    ck_assert(processes_until(has_workers, &n_workers));
    return (struct figures){processes_count_fds(daemon), processes_status_bytes(daemon, "RssAnon")};
}

static void churn(unsigned n_cycles, uint32_t n_active, uint32_t n_idle, bool trains, FILE *told)
{
    static struct stage st;
    static struct side idle[MAX_IDLE], one;
    struct driver driver;
    char directory[300];

    const pid_t daemon = processes_daemon("lab", n_active, NULL);
    stage_begin(&st);
    rmdir(st.directory); /* the daemon has its own */
    ck_assert_int_eq(session_directory(directory, sizeof directory, "lab", NULL), 0);
    if (trains) {
        driver_open(&driver, "lab", &(struct driver_options){.n_parts = n_active < 4 ? n_active : 4});
        driver_train(&driver, 1);
    }
    for (uint32_t i = 0; i < n_idle; i++)
        attach(&idle[i], &st, directory);
    struct figures before = {0};
    for (unsigned i = 0; i < n_cycles + WARM; i++) {
        if (i == WARM)
            before = figures_of(daemon, n_active + n_idle);
        attach(&one, &st, directory);
        if (trains && i % 10 == 0)
            driver_train(&driver, 2 + i / 10);
        detach(&one, &st);
    }
    const struct figures after = figures_of(daemon, n_active + n_idle);
    if (told)
        fprintf(told, "%u cycles: descriptors %u, then %u; private memory %llu KiB, then %llu KiB\n", n_cycles,
                before.n_fds, after.n_fds, (unsigned long long)before.bytes >> 10,
                (unsigned long long)after.bytes >> 10);
    ck_assert_uint_eq(after.n_fds, before.n_fds);
    if (!SANITIZED) /* which keep what is freed */
        ck_assert_uint_le(after.bytes, before.bytes + SLACK_BYTES);
    if (trains)
        driver_close(&driver);
    for (uint32_t i = 0; i < n_idle; i++)
        detach(&idle[i], &st);
    stage_end(&st);
    expect_stop(daemon);
}

TEST_EACH(sessions_that_come_and_go_leave_nothing, 2)
{
    const char *const n_cycles = getenv("CHURN");

    if (n_cycles)
        churn((unsigned)atoi(n_cycles), 8, MAX_IDLE, _i == 1, stdout);
    else
        churn(WHEN_TESTED, 1, 4, _i == 1, NULL);
}
