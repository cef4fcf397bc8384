/* eps: the command line. */
#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/screen/terminal.h"

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
#include <unistd.h>

static const struct {
    const char *name, *does;
    int (*run)(int argc, char **argv); /* NULL: a heading */
} commands[] = {
    {"Models", NULL, NULL},
    {"train", "train a model", command_train},
    {"plan", "predict memory and step time; does it fit?", command_plan},
    {"pull", "download a model of the Hugging Face hub", command_pull},
    {"models", "list the families of models that eps trains", command_models},
    {"data", "show what a model sees of files: tokens, and which are trained", command_data},
    {"eval", "measure a model's loss on files", command_eval},
    {"generate", "continue a text", command_generate},
    {"chat", "converse with a model", command_chat},
    {"report", "plot a run: loss, tokens/s, memory", command_report},
    {"export", "write a model for other programs to load", command_export},
    {"reshape", "change a run's model, and train on", command_reshape},
    {"verify", "check checkpoints against their checksums", command_verify},
    {"bench", "measure this machine's speed, for eps plan", command_bench},
    {"Live runs and daemons", NULL, NULL},
    {"up", "start a shared daemon and its workers", command_up},
    {"status", "show what a daemon is doing", command_status},
    {"mem", "show memory by category", command_mem},
    {"top", "show a run's work on the whole screen", command_top},
    {"save", "write a checkpoint now", command_save},
    {"drain", "take a worker out, once its share is done", command_drain},
    {"stop", "save and end a run and its daemon", command_stop},
};

enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void print_usage(FILE *to)
{
    const char *bold = terminal_style(to, TERMINAL_BOLD), *plain = terminal_style(to, TERMINAL_PLAIN);

    fprintf(to, "usage: eps COMMAND [OPTIONS]\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (commands[i].run)
            fprintf(to, "  %s%-8s%s  %s\n", bold, commands[i].name, plain, commands[i].does);
        else
            fprintf(to, "\n%s%s:%s\n", bold, commands[i].name, plain);
    }
    fprintf(to, "\neps help COMMAND lists a command's options, eps version the version; man eps-COMMAND\n"
                "explains them. epsd is the daemon, eps-worker owns a device; both have --help.\n");
}

/* NULL: no such command. */
static int (*find_command(const char *name))(int argc, char **argv)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (commands[i].run && strcmp(name, commands[i].name) == 0)
            return commands[i].run;
    }
    return NULL;
}

static int misused(const char *sentence)
{
    static const struct command eps = {.name = "eps"};
    return arguments_fail(&eps, -EDOM, sentence);
}

static int refuse_command(const char *word)
{
    const char *names[N_COMMANDS + 2];
    char sentence[300];
    size_t n = 0;

    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (commands[i].run)
            names[n++] = commands[i].name;
    }
    names[n++] = "help";
    names[n++] = "version";
    const char *meant = eps_nearest(word, names, n);
    if (meant)
        snprintf(sentence, sizeof sentence, "'%.80s' is not a command: did you mean %s? see eps --help", word, meant);
    else
        snprintf(sentence, sizeof sentence, "'%.80s' is not a command: see eps --help", word);
    return misused(sentence);
}

/* "eps help train" is "eps train --help", and "eps help train all" is "eps train --help all". */
static int help(int argc, char **argv)
{
    static char option[] = "--help";

    if (argc < 3) {
        print_usage(stdout);
        return 0;
    }
    if (argc > 4 || (argc == 4 && strcmp(argv[3], "all") != 0))
        return misused("help takes one command, or one command and the word all: see eps --help");
    int (*const run)(int, char **) = find_command(argv[2]);
    return run ? run(argc - 1, (char *[]){argv[2], option, argv[3], NULL}) : refuse_command(argv[2]);
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0)
        return help(strcmp(argv[1], "help") == 0 ? argc : 2, argv);
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0 || strcmp(argv[1], "version") == 0) {
        puts("eps " EPS_VERSION);
        return 0;
    }
    int (*const run)(int, char **) = find_command(argv[1]);
    return run ? run(argc - 1, argv + 1) : refuse_command(argv[1]);
}

/* Checks as process_check_stack and process_check_descriptors do: a sufficient stack, 0, 1 and 2 open, and room for
 * more descriptors. A closed one becomes /dev/null opened in the wrong direction, so that using it still fails. */
static bool check_limits(void)
{
    enum { FEWEST = 64, LEAST_KIB = 1024 }; /* the daemon inherits them */
    struct rlimit limit;
    char line[96];

    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < LEAST_KIB << 10) {
        const int n = snprintf(line, sizeof line, "eps: a stack may take only %ju KiB: allow at least %d (ulimit -s)\n",
                               (uintmax_t)limit.rlim_cur >> 10, LEAST_KIB);
        (void)!write(STDERR_FILENO, line, (size_t)n); /* stdio would take 8 KiB of stack */
        return false;
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < FEWEST) {
        fprintf(stderr, "eps: only %ju files may be open at once: allow at least %d (ulimit -n)\n",
                (uintmax_t)limit.rlim_cur, FEWEST);
        return false;
    }
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) {
            fprintf(stderr, "eps: descriptor %d is closed, and /dev/null cannot be opened for it\n", fd);
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    if (!check_limits())
        return 1;
    signal(SIGXFSZ, SIG_IGN); /* a file size limit then acts like a full disk */
    signal(SIGCHLD, SIG_DFL); /* who starts this program may ignore it: children's statuses are then lost */
    setlocale(LC_CTYPE, "");  /* for the width of characters; numbers stay in the C locale */
    const int status = dispatch(argc, argv);

    return (fflush(stdout) || ferror(stdout)) && status == 0 ? output_status("eps", errno) : status;
}
