/* eps up: a shared daemon and its workers by one command, in the foreground. */
#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void on_up(void *user, const char *address, uint32_t n_workers)
{
    (void)user;
    printf("%s is up, with %" PRIu32 " %s: eps train --connect %s\n", address, n_workers,
           n_workers > 1 ? "workers" : "worker", address);
    fflush(stdout);
}

static void up_on_note(void *user, const char *sentence)
{
    char text[OPTIONS_TEXT];

    (void)user;
    fprintf(stderr, "eps up: %s\n", arguments_options(text, sentence));
}

/* Index of the argument "--", or argc: those behind it are epsd's. */
static int find_rest(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--") == 0)
            return i;
    return argc;
}

int command_up(int argc, char **argv)
{
    struct eps_up_options options = eps_up_defaults();
    struct stopping stopping;
    const struct eps_up_events events = {on_up, up_on_note, stopping_should_stop};
    struct eps_error error = {""};
    const struct argument arguments[] = {
        {"NAME", NULL, ARGUMENT_POSITIONAL, &options.name, "the daemon's name or directory, as epsd --listen takes it"},
        {"--workers", "N", ARGUMENT_UP, &options.workers, "worker processes on this host, 1 to 64; default 1"},
        {"--device", "auto|cpu|cuda[:ID]", ARGUMENT_TEXT, &options.device,
         "with --workers N, cuda is the first N CUDA devices; default auto: CUDA if there is one, else the CPU"},
        {"--device-mem", "BYTES", ARGUMENT_BYTES, &options.device_mem,
         "hard cap on each worker's memory, as in 2GiB; default: as eps-worker chooses"},
    };
    const struct command command = {
        "eps up",
        "Starts a daemon (epsd) and its workers (eps-worker), and stays until eps stop NAME, SIGTERM or Ctrl-C: then "
        "the "
        "run saves, and all of them end; a second signal ends them at once. A worker that is lost starts again, unless "
        "eps drain told it to leave. Options of epsd follow two dashes, as in: eps up lab --workers 2 -- --group lab. "
        "On "
        "several hosts: mpirun -n HOSTS --map-by ppr:1:node eps up big --workers 8 -- --mpi.",
        arguments, sizeof arguments / sizeof *arguments};
    const int rest = find_rest(argc, argv), status = arguments_parse(&command, rest, argv);

    if (status >= 0)
        return status;
    if (!options.name)
        return arguments_fail(&command, -EDOM, "the daemon's NAME is missing: eps up lab");
    if (rest < argc) {
        options.daemon_options = (const char *const *)argv + rest + 1;
        options.n_daemon_options = (size_t)(argc - rest - 1);
    }
    stopping_init(&stopping);
    const int rc = eps_up(&options, &events, &stopping, &error);
    return rc ? arguments_fail(&command, rc, error.text) : 0;
}
