/* eps: the command line. */
#include "tools/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static const struct {
    const char *name, *does;
    int (*run)(int argc, char **argv); /* NULL: a heading */
} commands[] = {
    {"Models", NULL, NULL},
    {"train", "train a model", command_train},
    {"plan", "will it fit, and how long will a step take", command_plan},
    {"eval", "the loss of a model over files", command_eval},
    {"generate", "continue a text", command_generate},
    {"report", "a run as curves: loss, tokens/s, memory", command_report},
    {"export", "a model for other programs to load", command_export},
    {"verify", "checkpoints against their checksums", command_verify},
    {"bench", "what this machine manages, for eps plan", command_bench},
    {"Live runs and daemons", NULL, NULL},
    {"status", "what it is doing", command_status},
    {"mem", "its memory and its workers', by category", command_mem},
    {"top", "its work on the whole screen, live", command_top},
    {"save", "a checkpoint now", command_save},
    {"stop", "save what was promised and end it", command_stop},
};

static void print_usage(FILE *to)
{
    fprintf(to, "usage: eps COMMAND [OPTIONS]\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (commands[i].run)
            fprintf(to, "  %-8s  %s\n", commands[i].name, commands[i].does);
        else
            fprintf(to, "\n%s:\n", commands[i].name);
    }
    fprintf(to, "\neps COMMAND --help tells more, man eps more yet; eps --version says which build this is.\n"
                "epsd is the daemon, eps-worker owns a device: they have --help too.\n");
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
    if (strcmp(argv[1], "--version") == 0) {
        puts("eps " EPS_VERSION);
        return 0;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (commands[i].run && strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    }
    fprintf(stderr, "eps: '%.80s' is no command: see eps --help\n", argv[1]);
    return 2;
}

/* As process_check_descriptors in the daemon and the worker: 0, 1 and 2 are open, and there is room for more. What was
 * closed gets /dev/null, the wrong way round, so that writing to it goes on failing. */
static bool check_descriptors(void)
{
    enum { FEWEST = 64 }; /* the daemon that is started inherits this */
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < FEWEST) {
        fprintf(stderr, "eps: only %ju files may be open at once: allow at least %d (ulimit -n)\n",
                (uintmax_t)limit.rlim_cur, FEWEST);
        return false;
    }
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    if (!check_descriptors())
        return 1;
    setlocale(LC_CTYPE, ""); /* how wide a character is; numbers stay as C has them */
    const int status = dispatch(argc, argv);

    if ((fflush(stdout) || ferror(stdout)) && status == 0) {
        if (errno == EPIPE) /* whoever read it has seen enough */
            return 128 + SIGPIPE;
        fprintf(stderr, "eps: standard output: %s\n", strerror(errno));
        return 1;
    }
    return status;
}
