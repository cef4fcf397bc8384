#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void print_profile(const struct eps_profile *p)
{
    static const char *const names[] = {"fp32", "bf16"};

    printf("%-24s", "matrix products of rows");
    for (int i = 0; i < 4; i++)
        printf(" %8u", p->rows[i]);
    for (int type = 0; type < 2; type++) {
        printf("\n  %-4s, GF/s            ", names[type]);
        for (int i = 0; i < 4; i++)
            printf(" %8.0f", p->matmul_flops[type][i] / 1e9);
    }
    printf("\n%-24s %8.1f GB/s\n", "from host to device", p->link_bytes_per_s / 1e9);
    printf("%-24s %8.1f GB/s\n", "the device's memory", p->memory_bytes_per_s / 1e9);
    printf("%-24s %8.0f M parameters/s\n", "the optimizer", p->update_parameters_per_s / 1e6);
    printf("written to %s\n", p->path);
}

int command_bench(int argc, char **argv)
{
    struct eps_profile_options options = {.device = NULL};
    const char *file = NULL;
    const struct argument arguments[] = {
        {"--profile", "[FILE]", ARGUMENT_MAYBE, &file,
         "into this file; default eps/profile-cpu.json, or -cuda, in $XDG_CACHE_HOME or ~/.cache,\nwhere it is looked "
         "for"},
        {"--device", "auto|cpu|cuda[:N]", ARGUMENT_TEXT, &options.device, "default the processor"},
    };
    const struct command command = {
        "eps bench",
        "Measures what this machine manages, prints it, and writes it down: eps plan and the "
        "daemon predict times\nfrom it. Takes some seconds; nothing else should run meanwhile.",
        arguments, sizeof arguments / sizeof *arguments};
    const int status = arguments_parse(&command, argc, argv);
    struct eps_error error;
    struct eps_profile profile;

    if (status >= 0)
        return status;
    if (!file)
        return arguments_fail(&command, -EDOM, "nothing to measure: --profile is what there is");
    options.path = strcmp(file, "-") == 0 ? NULL : file;
    const int rc = eps_profile(&profile, &options, &error);
    if (rc)
        return arguments_fail(&command, rc, error.text);
    print_profile(&profile);
    return 0;
}
