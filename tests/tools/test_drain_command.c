/* eps drain, against a daemon that is played. */
#include "tests/kit/command.h"
#include "tests/kit/inprocess/stage.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <signal.h>

SUITE_FIXTURE(processes_setup, processes_remove)

/* It ends when it is asked whether the worker is there. */
static void accept_and_end(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    (void)fds, (void)n_fds;
    if (m->kind == MESSAGE_DRAIN)
        session_send(s, m);
    if (m->kind == MESSAGE_WORKERS)
        raise(SIGKILL);
}

TEST(a_worker_whose_daemon_has_ended_meanwhile_has_left)
{
    struct stage st;
    const pid_t pid = stage_begin_daemon(&st, accept_and_end);

    expect(print("eps drain 3 %s", st.directory), 0, "worker 3 has left\n");
    stage_end_daemon(&st, pid);
}
