/* eps verify: a line as soon as a checkpoint has been read, a JSON list when all have. What was found before a failure
 * is printed with it. */
#include "client/eps.h"
#include "tools/commands.h"
#include "tools/arguments.h"
#include "tools/screen/terminal.h"
#include "tools/screen/text.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

static void verify_print_line(void *user, const struct eps_verified *c)
{
    (void)user;
    const char *plain = terminal_style(stdout, TERMINAL_PLAIN);

    if (c->why)
        printf("%s  %sNOT WHOLE%s: %s\n", c->path, terminal_style(stdout, TERMINAL_RED), plain, c->why);
    else
        printf("%s  %swhole%s, %" PRIu64 " step%s%s%s\n", c->path, terminal_style(stdout, TERMINAL_GREEN), plain,
               c->step, c->step == 1 ? "" : "s", c->edited ? "; " : "", c->edited ? c->edited : "");
    fflush(stdout); /* the next checkpoint may take a while */
}

static void add_to_list(void *user, const struct eps_verified *c)
{
    json_t *list = user;

    json_array_append_new(list,
                          json_pack("{s:o, s:I, s:b, s:s?, s:s?}", "path", text_json(c->path), "step",
                                    (json_int_t)c->step, "whole", c->why == NULL, "why", c->why, "edited", c->edited));
}

int command_verify(int argc, char **argv)
{
    const char *directory = NULL;
    bool json = false;
    const struct argument arguments[] = {
        {"DIR", NULL, ARGUMENT_POSITIONAL, &directory,
         "a checkpoint (step-N), or a run's directory with all its checkpoints"},
        {"--json", NULL, ARGUMENT_FLAG, &json,
         "print a list of objects with path, step, whole, why (null if it is whole), and edited: which of its texts "
         "were changed since (null: none)"},
    };
    const struct command command = {"eps verify",
                                    "Verifies every byte of checkpoints against their checksums. Exits with 1 if one "
                                    "is damaged. Skips a checkpoint that is being written. The texts of a checkpoint "
                                    "(tokenizer, chat template, generation_config.json) may be edited.",
                                    arguments, sizeof arguments / sizeof *arguments};
    struct eps_error error;
    int status = arguments_parse(&command, argc, argv);

    if (status >= 0)
        return status;
    if (!directory)
        return arguments_fail(&command, -EDOM, "DIR is needed: a step-N, or the directory of a run");
    json_t *list = json ? json_array() : NULL;
    int rc = eps_verify(directory, json ? add_to_list : verify_print_line, list, &error);
    if (json && (rc == 0 || json_array_size(list) > 0))
        answer_print(json_incref(list));
    json_decref(list);
    return rc ? arguments_fail(&command, rc, error.text) : 0;
}
