#include "client/eps.h"
#include "tools/commands.h"
#include "tools/arguments.h"
#include "tools/screen/terminal.h"
#include "tools/screen/text.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

static void verify_print_line(void *user, const char *path, uint64_t step, const char *why)
{
    (void)user;
    const char *plain = terminal_style(stdout, TERMINAL_PLAIN);

    if (why)
        printf("%s  %sNOT WHOLE%s: %s\n", path, terminal_style(stdout, TERMINAL_RED), plain, why);
    else
        printf("%s  %swhole%s, %" PRIu64 " step%s\n", path, terminal_style(stdout, TERMINAL_GREEN), plain, step,
               step == 1 ? "" : "s");
    fflush(stdout); /* the next checkpoint may take a while */
}

static void add_to_list(void *user, const char *path, uint64_t step, const char *why)
{
    json_t *list = user;

    json_array_append_new(list, json_pack("{s:o, s:I, s:b, s:s?}", "path", text_json(path), "step", (json_int_t)step,
                                          "whole", why == NULL, "why", why));
}

int command_verify(int argc, char **argv)
{
    const char *directory = NULL;
    bool json = false;
    const struct argument arguments[] = {
        {"DIR", NULL, ARGUMENT_POSITIONAL, &directory,
         "a checkpoint (step-N), or a run's directory with all its checkpoints"},
        {"--json", NULL, ARGUMENT_FLAG, &json,
         "print a list of objects with path, step, whole, and why (null if it is whole)"},
    };
    const struct command command = {"eps verify",
                                    "Verifies every byte of checkpoints against their checksums. Exits with 1 if one "
                                    "is damaged. Skips a checkpoint that is being written.",
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
