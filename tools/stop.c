#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"

#include <stddef.h>

int command_stop(int argc, char **argv)
{
    const char *address = NULL;
    const struct argument arguments[] = {
        {"ADDRESS", NULL, ARGUMENT_POSITIONAL, &address, "the daemon's name or directory; yours, if you run only one"},
    };
    const struct command command = {"eps stop",
                                    "Ends a live daemon: its job ends with a word to the client, its workers end too.",
                                    arguments, sizeof arguments / sizeof *arguments};
    struct eps_error error;
    int status = arguments_parse(&command, argc, argv);

    if (status >= 0)
        return status;
    int rc = eps_stop(address, &error);
    return rc ? arguments_fail(&command, rc, error.text) : 0;
}
