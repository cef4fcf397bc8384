/* Nobody reads a manual who already knows another program's option. So what other programs call ours comes first
 * (eps_foreign): the search for the nearest name compares spelling, not meaning. */
#include "tools/arguments.h"

#include "client/eps.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 80 };

/* Normalises "--Batch_Size=8" and "-batch-size" to "--batch-size". */
static void hint_normalise(char out[NAME_BYTES], const char *option)
{
    const size_t n_dashes = strspn(option, "-");

    snprintf(out, NAME_BYTES, "--%.*s", (int)strcspn(option + n_dashes, "="), option + n_dashes);
    for (char *c = out; *c; c++) {
        if (*c == '_')
            *c = '-';
        else if (*c >= 'A' && *c <= 'Z')
            *c = (char)(*c - 'A' + 'a');
    }
}

/* The command's options and --help. Returns how many; room: for as many as there are arguments, and one. */
static size_t hint_names(const char **names, const struct command *command)
{
    size_t n = 0;

    for (size_t i = 0; i < command->n_arguments; i++) {
        if (command->arguments[i].name[0] == '-' && command->arguments[i].kind != ARGUMENT_USUAL)
            names[n++] = command->arguments[i].name;
    }
    names[n++] = "--help";
    return n;
}

/* What to do about the option, after "--BS is not an option". bare: room for n names. */
static void hint_advise(char *out, size_t cap, const struct command *command, const char *option, const char **names,
                        const char **bare, size_t n)
{
    char name[NAME_BYTES], foreign[EPS_FOREIGN_TEXT], options[OPTIONS_TEXT];
    bool same = false;

    hint_normalise(name, option);
    for (size_t i = 0; i < n; i++) {
        same = same || strcmp(names[i], name) == 0;
        bare[i] = names[i] + strlen("--"); /* dashes do not count as similarity */
    }
    if (same) { /* only its dashes or its case are wrong */
        snprintf(out, cap, ": did you mean %s?", name);
        return;
    }
    if (eps_foreign(foreign, option, names, n)) {
        snprintf(out, cap, ": %s", arguments_options(options, foreign));
        return;
    }
    const char *meant = eps_nearest(name + strlen("--"), bare, n);
    if (meant)
        snprintf(out, cap, ": did you mean --%s?", meant);
    else
        snprintf(out, cap, " of %s: see %s --help", command->name, command->name);
}

void hint_option(char *out, size_t cap, const struct command *command, const char *option)
{
    const size_t shown = strcspn(option, "=") < NAME_BYTES ? strcspn(option, "=") : NAME_BYTES;
    const size_t most = command->n_arguments + 1;
    const char **names = malloc(2 * most * sizeof *names);

    const int said = snprintf(out, cap, "%.*s is not an option", (int)shown, option);
    const size_t used = said > 0 && (size_t)said < cap ? (size_t)said : 0;
    if (names)
        hint_advise(out + used, cap - used, command, option, names, names + most, hint_names(names, command));
    free(names);
}
