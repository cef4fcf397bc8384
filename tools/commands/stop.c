/* eps stop: the daemon counts requests of one caller, and a second one ends it at once (eps/dispatch.c). So Ctrl-C
 * during the wait is sent as a second request on the same connection; `borne` then lets the wait go on, until another
 * signal. */
#include "client/eps.h"
#include "tools/commands.h"
#include "tools/screen/text.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static void stop_say(const struct asked *asked, const char *word)
{
    if (asked->json)
        return;
    printf("%s\n", word);
    fflush(stdout);
}

static int request_end(struct eps_observer *observer, uint32_t job, struct eps_error *error)
{
    return job ? eps_observer_stop_job(observer, job, error) : eps_observer_stop(observer, error);
}

/* True if what is requested to end is given time to save: asked before, as it may have ended a moment later. */
static bool saves(struct eps_observer *observer, uint32_t job)
{
    struct eps_status status;

    return eps_observer_status(observer, &status, NULL) == 0 && status.job != 0 && (job == 0 || job == status.job) &&
           *status.out && strcmp(status.state, "ending") != 0;
}

static int stop_wait_for_end(struct eps_observer *observer, uint32_t job, struct eps_error *error)
{
    const int rc = job ? eps_observer_wait_job(observer, job, error) : eps_observer_wait(observer, UINT64_MAX, error);

    return rc == -EIO ? 0 : rc; /* the daemon is gone */
}

/* After the first Ctrl-C, which is the same caller's second request. */
static int end_at_once(struct eps_observer *observer, const struct asked *asked, struct eps_error *error)
{
    asked->stopping->borne = 1;
    stop_say(asked, "stopping at once");
    const int rc = request_end(observer, asked->job, error);
    if (rc == -ENOENT && asked->job) /* it has just ended */
        return 0;
    return rc ? rc : stop_wait_for_end(observer, asked->job, error);
}

static int stop_stop(struct eps_observer *observer, const struct asked *asked, struct eps_error *error)
{
    const bool has_time = observer && saves(observer, asked->job);
    int rc = observer ? request_end(observer, asked->job, error) : 0;

    if (rc)
        return rc;
    stop_say(asked, has_time ? "saving, then stopping; Ctrl-C to stop at once" : "stopping");
    rc = observer ? stop_wait_for_end(observer, asked->job, error) : 0;
    if (rc == -EINTR && asked->stopping->first == SIGINT && asked->stopping->level == 1)
        rc = end_at_once(observer, asked, error);
    if (rc || !asked->json)
        return rc;
    json_t *answer = json_pack("{s:o, s:b}", "address",
                               observer ? text_json(eps_observer_address(observer)) : json_null(), "stopped", 1);
    if (asked->job)
        json_object_set_new(answer, "job", json_integer(asked->job));
    answer_print(answer);
    return 0;
}

int command_stop(int argc, char **argv)
{
    static const struct request request = {
        "eps stop",
        "Ends a live daemon: its run saves and ends, then daemon and workers end. With JOB, ends one of its jobs "
        "instead: "
        "a running one saves first, a waiting one leaves the queue; you may end your own, and the daemon's owner any. "
        "Returns when the daemon, or the job, is gone. Ctrl-C ends it at once, without the save; a second Ctrl-C, or "
        "SIGTERM, ends the wait alone. Whoever else asks meanwhile waits for the same end.",
        "print an object with address and stopped, and job if one is named, at the end",
        stop_stop,
        .takes_job = true,
        .ends = true,
    };

    return request_command(argc, argv, &request);
}
