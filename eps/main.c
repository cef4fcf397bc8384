/* epsd: the daemon. See eps/daemon.h. */
#include "eps/daemon.h"
#include "proto/process.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>

static const char usage[] =
    "usage: epsd --listen ADDRESS\n"
    "\n"
    "Holds models and optimizer state in host memory; workers attach to it, eps train drives it.\n"
    "Serves one job after another until SIGTERM, SIGINT or eps stop.\n"
    "\n"
    "  --listen ADDRESS  a name ($XDG_RUNTIME_DIR/eps/NAME, else /tmp/eps-UID/NAME), or a directory with a '/' in it\n"
    "  --private         end with the first client, and with the process that started this one\n"
    "  --version         which build this is\n"
    "  --help            this text\n"
    "\n"
    "Exit status: 0 stopped, 1 failed, 2 misused.\n";

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"listen", required_argument, NULL, 'l'},
        {"private", no_argument, NULL, 'p'},
        {"version", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    const char *address = NULL;
    bool is_private = false;
    char directory[4096];
    struct error err = {""};
    int option;

    process_bound_spinning(argv);
    log_name("epsd");
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
        switch (option) {
        case 'l':
            address = optarg;
            break;
        case 'p':
            is_private = true;
            break;
        case 'v':
            puts("epsd " EPS_VERSION);
            return 0;
        case 'h':
            fputs(usage, stdout);
            return 0;
        default:
            return 2;
        }
    if (optind < argc || !address || !*address) {
        fprintf(stderr, "epsd: --listen ADDRESS is needed, and nothing else; see epsd --help\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file grown too large is a refusal to save, not the end */
    eps_optimizer_select(EPS_ISA_BEST);
    if (is_private)
        process_follow_parent();
    int rc = session_directory(directory, sizeof directory, address, &err);
    if (!rc)
        rc = daemon_run(directory, is_private, &err);
    if (rc)
        log_line("%s", err.text);
    return rc ? 1 : 0;
}
