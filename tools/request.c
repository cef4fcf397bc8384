#include "tools/request.h"

#include "tools/arguments.h"
#include "tools/stopping.h"

#include <stddef.h>

int request_command(int argc, char **argv, const struct request *request)
{
    const char *address = NULL;
    bool json = false;
    const struct argument arguments[] = {
        {"ADDRESS", NULL, ARGUMENT_POSITIONAL, &address,
         "the daemon's name or directory, or its run's --out; default: your only daemon"},
        {"--json", NULL, ARGUMENT_FLAG, &json, request->json},
    };
    const struct command command = {request->name, request->text, arguments, sizeof arguments / sizeof *arguments};
    struct stopping stopping;
    struct eps_error error;
    struct eps_look *look;
    int status = arguments_parse(&command, argc, argv);

    if (status >= 0)
        return status;
    stopping_init(&stopping);
    int rc = eps_look_open(&look, address, stopping_should_stop, &stopping, &error);
    if (!rc)
        rc = request->ask(look, json, &error);
    eps_look_close(look);
    return rc ? stopping_status(&stopping, arguments_fail(&command, rc, error.text)) : 0;
}
