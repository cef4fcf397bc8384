#include "client/eps.h"
#include "tools/commands.h"
#include "tools/screen/text.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Describes what this request does, and what a second one would. */
static const char *describe_request(const struct eps_status *s)
{
    if (strcmp(s->state, "stopping") == 0)
        return "stopping at once";
    if (*s->out && (strcmp(s->state, "training") == 0 || strcmp(s->state, "detached") == 0))
        return "saving, then stopping; again to stop at once";
    return "stopping";
}

static int stop_job(struct eps_look *look, uint32_t job, bool json, struct eps_error *error)
{
    const int rc = eps_look_stop_job(look, job, error);

    if (!rc && json)
        answer_print(json_pack("{s:o, s:I, s:b}", "address", text_json(eps_look_address(look)), "job", (json_int_t)job,
                               "stopped", 1));
    return rc;
}

static int stop(struct eps_look *look, uint32_t job, bool json, struct eps_error *error)
{
    struct eps_status status;
    const char *word = NULL;
    if (job)
        return stop_job(look, job, json, error);
    int rc = eps_look_status(look, &status, error);
    if (!rc)
        word = describe_request(&status);
    if (!rc)
        rc = eps_look_stop(look, error);
    if (!rc && !json) {
        printf("%s\n", word);
        fflush(stdout);
    }
    if (!rc)
        rc = eps_look_wait(look, UINT64_MAX, error);
    if (rc == -EIO && word)
        rc = 0; /* the daemon is gone */
    if (!rc && json)
        answer_print(json_pack("{s:o, s:b}", "address", text_json(eps_look_address(look)), "stopped", 1));
    return rc;
}

int command_stop(int argc, char **argv)
{
    static const struct request request = {
        "eps stop",
        "Ends a live daemon: its run saves and ends, then daemon and workers end. A second eps stop ends them at once. "
        "With JOB, ends one of its jobs instead: a running one saves first, a waiting one leaves the queue; you may "
        "end your own, and the daemon's owner any. Returns when the daemon, or the job, is gone; Ctrl-C ends the wait, "
        "not the shutdown.",
        "print an object with address and stopped, and job if one is named, at the end",
        stop,
        .takes_job = true,
    };

    return request_command(argc, argv, &request);
}
