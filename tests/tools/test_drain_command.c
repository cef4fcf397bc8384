/* eps drain, against a daemon that is played. */
#include "tests/kit/command.h"
#include "tests/kit/inprocess/stage.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <signal.h>

SUITE_FIXTURE(processes_setup, processes_remove)

/* What it does when it is asked whether the worker is there. */
static void (*on_workers)(struct session *s);

static void be_killed(struct session *s)
{
    (void)s;
    raise(SIGKILL);
}

static void accept_and_end(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    (void)fds, (void)n_fds;
    if (m->kind == MESSAGE_DRAIN)
        session_send(s, m);
    if (m->kind == MESSAGE_WORKERS)
        on_workers(s);
}

static void drain(void (*end)(struct session *s), int status, const char *says)
{
    struct stage st;

    on_workers = end;
    const pid_t pid = stage_begin_daemon(&st, accept_and_end);
    expect(print("eps drain 3 %s", st.directory), status, says);
    stage_end_daemon(&st, pid);
}

TEST(a_worker_whose_daemon_has_stopped_meanwhile_has_left)
{
    drain(session_close, 0, "worker 3 has left\n");
}

/* It waits for the next daemon. */
TEST(a_worker_whose_daemon_was_killed_has_not_left)
{
    drain(be_killed, 1, "eps drain: the daemon is gone: killed\n");
}
