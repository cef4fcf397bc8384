#include "client/eps.h"
#include "tools/answer.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/stopping.h"
#include "tools/text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* "OUT/step-N" */
static void print_saved(uint64_t step, const char *path, bool json)
{
    if (json)
        answer_print(json_pack("{s:I, s:o}", "step", (json_int_t)step, "path", text_json(path)));
    else
        printf("%s\n", path);
}

static int save(const char *address, bool json, struct stopping *stopping, struct eps_error *error)
{
    struct eps_look *look;
    struct eps_status status;
    char path[300];
    uint64_t step;
    int rc = eps_look_open(&look, address, stopping_should_stop, stopping, error);

    if (!rc)
        rc = eps_look_status(look, &status, error); /* what it points to goes with the next call */
    if (!rc)
        snprintf(path, sizeof path - 40, "%s", status.out);
    if (!rc)
        rc = eps_look_save(look, &step, error);
    if (!rc) {
        snprintf(path + strlen(path), 40, "/step-%" PRIu64, step);
        print_saved(step, path, json);
    }
    eps_look_close(look);
    return rc;
}

int command_save(int argc, char **argv)
{
    const char *address = NULL;
    bool json = false;
    const struct argument arguments[] = {
        {"ADDRESS", NULL, ARGUMENT_POSITIONAL, &address,
         "the daemon's name or directory, or its run's --out; yours, if only one runs"},
        {"--json", NULL, ARGUMENT_FLAG, &json, "an object with step and path"},
    };
    const struct command command = {"eps save",
                                    "A checkpoint of the run under way, in its output directory, while training goes "
                                    "on.\nPrints its path when it stands; Ctrl-C leaves the daemon to it.",
                                    arguments, sizeof arguments / sizeof *arguments};
    struct stopping stopping;
    struct eps_error error;
    int status = arguments_parse(&command, argc, argv);

    if (status >= 0)
        return status;
    stopping_init(&stopping);
    int rc = save(address, json, &stopping, &error);
    return rc ? stopping_status(&stopping, arguments_fail(&command, rc, error.text)) : 0;
}
