#include "client/eps.h"
#include "tools/answer.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/stopping.h"
#include "tools/text.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* What the first request does, and what one more would. */
static const char *announce(const struct eps_status *s)
{
    if (strcmp(s->state, "stopping") == 0)
        return "stopping at once";
    if (*s->out && strcmp(s->state, "training") == 0)
        return "saving, then stopping; again to stop at once";
    return "stopping";
}

static int stop(const char *address, bool json, struct stopping *stopping, struct eps_error *error)
{
    struct eps_look *look;
    struct eps_status status;
    const char *word = NULL;
    int rc = eps_look_open(&look, address, stopping_should_stop, stopping, error);

    if (!rc)
        rc = eps_look_status(look, &status, error);
    if (!rc)
        word = announce(&status);
    if (!rc)
        rc = eps_look_stop(look, error);
    if (!rc && !json) {
        printf("%s\n", word);
        fflush(stdout);
    }
    if (!rc)
        rc = eps_look_wait(look, UINT64_MAX, error);
    if (rc == -EIO && word)
        rc = 0; /* it is gone */
    if (!rc && json)
        answer_print(json_pack("{s:o, s:b}", "address", text_json(eps_look_address(look)), "stopped", 1));
    eps_look_close(look);
    return rc;
}

int command_stop(int argc, char **argv)
{
    const char *address = NULL;
    bool json = false;
    const struct argument arguments[] = {
        {"ADDRESS", NULL, ARGUMENT_POSITIONAL, &address,
         "the daemon's name or directory, or its run's --out; yours, if only one runs"},
        {"--json", NULL, ARGUMENT_FLAG, &json, "an object with address and stopped, at the end"},
    };
    const struct command command = {
        "eps stop",
        "Ends a live daemon: its run saves what it promised and ends, and so do daemon and workers. Again: at "
        "once.\nReturns when it is gone; Ctrl-C leaves it to that.",
        arguments, sizeof arguments / sizeof *arguments};
    struct stopping stopping;
    struct eps_error error;
    int status = arguments_parse(&command, argc, argv);

    if (status >= 0)
        return status;
    stopping_init(&stopping);
    int rc = stop(address, json, &stopping, &error);
    return rc ? stopping_status(&stopping, arguments_fail(&command, rc, error.text)) : 0;
}
