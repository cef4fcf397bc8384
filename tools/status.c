#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>

static void print_status(void *user, const struct eps_status *status)
{
    (void)user;
    printf("%s, %u worker%s, pid %u\n", status->state, status->n_workers, status->n_workers == 1 ? "" : "s",
           status->pid);
    if (!*status->model)
        return;
    printf("%s, %" PRIu64 " parameters, step %" PRIu64, status->model, status->n_parameters, status->step);
    if (!isnan(status->loss))
        printf(", loss %.4f", status->loss);
    putchar('\n');
}

/* json_real gives NULL for a loss that is not finite. */
static void print_json(void *user, const struct eps_status *status)
{
    json_t *loss = json_real(status->loss);
    json_t *object =
        json_pack("{s:s, s:I, s:s, s:I, s:I, s:I, s:o}", "state", status->state, "step", (json_int_t)status->step,
                  "model", status->model, "parameters", (json_int_t)status->n_parameters, "workers",
                  (json_int_t)status->n_workers, "pid", (json_int_t)status->pid, "loss", loss ? loss : json_null());

    (void)user;
    json_dumpf(object, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(object);
}

int command_status(int argc, char **argv)
{
    const char *address = NULL;
    bool json = false;
    const struct argument arguments[] = {
        {"ADDRESS", NULL, ARGUMENT_POSITIONAL, &address, "the daemon's name or directory; yours, if you run only one"},
        {"--json", NULL, ARGUMENT_FLAG, &json,
         "an object with state, step, model, parameters, workers, pid and loss (null before\nthe first step)"},
    };
    const struct command command = {"eps status", "What a live daemon is doing.", arguments,
                                    sizeof arguments / sizeof *arguments};
    struct eps_error error;
    int status = arguments_parse(&command, argc, argv);

    if (status >= 0)
        return status;
    int rc = eps_status(address, json ? print_json : print_status, NULL, &error);
    return rc ? arguments_fail(&command, rc, error.text) : 0;
}
