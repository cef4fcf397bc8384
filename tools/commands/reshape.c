/* The run that is written is another one: the old is only read, so nothing here can harm it. */
#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"

#include <stdio.h>

static void reshape_on_note(void *user, const char *sentence)
{
    char text[OPTIONS_TEXT];

    (void)user;
    fprintf(stderr, "eps reshape: %s\n", arguments_options(text, sentence));
}

int command_reshape(int argc, char **argv)
{
    struct eps_reshape_options options = {.should_stop = stopping_should_stop, .on_note = reshape_on_note};
    const struct argument arguments[] = {
        {"RUN", "RUN", ARGUMENT_POSITIONAL, &options.run,
         "the run's directory, whose newest whole checkpoint is taken, or a checkpoint in it; it is only read"},
        {"--out", "DIR", ARGUMENT_TEXT, &options.out, "the new run's directory, which must not hold a run"},
        {"--grow", "N[,moments=zero]", ARGUMENT_TEXT, &options.grow,
         "put copies of the topmost N blocks above them, with their moments, or without"},
        {"--replace", "BLOCK=WIDTH|FILE,...", ARGUMENT_TEXT, &options.replace,
         "give the feed-forward layer of a block another width, or put the block that a config.json describes in its "
         "place, with fresh weights; \",moments=zero\" at the end: these layers' moments begin anew"},
    };
    const struct command command = {"eps reshape",
                                    "Writes a run's checkpoint as that of another model, from which training goes on: "
                                    "eps train --resume DIR. Steps, "
                                    "rates, data, and the moments of what stays are the run's.",
                                    arguments, sizeof arguments / sizeof *arguments};
    struct stopping stopping;
    struct eps_error error;
    const int status = arguments_parse(&command, argc, argv);

    if (status >= 0)
        return status;
    stopping_init(&stopping);
    options.user = &stopping;
    const int rc = eps_reshape(&options, &error);
    if (rc)
        return stopping_status(&stopping, arguments_fail(&command, rc, error.text));
    printf("%s holds the model, and the run: eps train --resume %s\n", options.out, options.out);
    return 0;
}
