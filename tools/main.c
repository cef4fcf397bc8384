/* eps: the command line. */
#include "tools/commands.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *does;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"train", "train a model", command_train},
    {"eval", "the loss of a model over a file", command_eval},
    {"status", "what a live daemon is doing", command_status},
    {"mem", "its memory and its workers', by category", command_mem},
    {"stop", "end it", command_stop},
};

static void print_usage(FILE *to)
{
    fprintf(to, "usage: eps COMMAND [OPTIONS]\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].does);
    fprintf(to,
            "\neps COMMAND --help tells more. epsd is the daemon, eps-worker owns a device: they have --help too.\n");
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_usage(stdout);
        return 0;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    }
    fprintf(stderr, "eps: '%.80s' is no command: see eps --help\n", argv[1]);
    return 2;
}

int main(int argc, char **argv)
{
    const int status = dispatch(argc, argv);

    if ((fflush(stdout) || ferror(stdout)) && status == 0) {
        fprintf(stderr, "eps: standard output: %s\n", strerror(errno));
        return 1;
    }
    return status;
}
