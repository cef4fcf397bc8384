/* epsd: the daemon. See eps/daemon.h. */
#include "eps/daemon.h"
#include "proto/base/process.h"
#include "proto/wire/session.h"

#include <errno.h>
#include <getopt.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage[] =
    "usage: epsd --listen ADDRESS [--host-mem BYTES] [--group G]\n"
    "\n"
    "Holds models and optimizer state in host memory. Workers (eps-worker) attach to it, and eps\n"
    "train drives it. Runs one job after another until SIGTERM, SIGINT, SIGHUP or eps stop.\n"
    "\n"
    "  --listen ADDRESS  a name ($XDG_RUNTIME_DIR/eps/NAME, else /tmp/eps-UID/NAME), or a directory:\n"
    "                    an address with a '/' in it\n"
    "  --host-mem BYTES  hard cap on the host memory of a job, as in 8GiB; default: free memory\n"
    "  --group G         share the daemon with your group G: its members may run jobs, attach workers\n"
    "                    and observe; only you may stop it. They must be able to reach the directory,\n"
    "                    as in --listen /srv/eps, and their --out must be writable for the group\n"
    "                    (chmod g+ws)\n"
    "  --private         end with the first client, and with the process that started this one;\n"
    "                    --private=PID names that process\n"
    "  --version         print the version\n"
    "  --help            print this text\n"
    "\n"
    "Exit status: 0 stopped, 1 failed, 2 wrong usage.\n";

struct arguments {
    const char *address, *group; /* NULL: unset */
    bool is_private;
    long parent;        /* 0: unset */
    uint64_t host_mem;  /* 0: unset */
    const char *answer; /* what --help or --version prints */
};

/* False if the command line is misused; a sentence has been printed. */
static bool parse(struct arguments *out, int argc, char **argv)
{
    static const struct option options[] = {
        {"listen", required_argument, NULL, 'l'},
        {"host-mem", required_argument, NULL, 'm'},
        {"group", required_argument, NULL, 'g'},
        {"private", optional_argument, NULL, 'p'},
        {"version", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    struct error err = {""};
    int option;

    opterr = 0;
    *out = (struct arguments){0};
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
        switch (option) {
        case 'l':
            out->address = optarg;
            break;
        case 'g':
            out->group = optarg;
            break;
        case 'p':
            out->is_private = true;
            out->parent = optarg ? atol(optarg) : 0;
            break;
        case 'v':
            out->answer = "epsd " EPS_VERSION "\n";
            return true;
        case 'h':
            out->answer = usage;
            return true;
        case 'm':
            if (process_parse_bytes(&out->host_mem, "--host-mem", optarg, &err) == 0)
                break;
            log_line("%s", err.text);
            return false;
        default:
            log_line("%s: no such option, or its value is missing; see epsd --help", argv[optind - 1]);
            return false;
        }
    if (optind < argc || !out->address || !*out->address) {
        log_line("--listen ADDRESS is needed; see epsd --help");
        return false;
    }
    if (out->group && out->is_private) {
        log_line("--private and --group: a private daemon has nobody to share with");
        return false;
    }
    return true;
}

/* False if the caller cannot share with this group; a sentence has been printed. */
static bool find_group(gid_t *out, const char *name)
{
    const struct group *group = getgrnam(name);

    if (!group) {
        log_line("--group %s: there is no such group", name);
        return false;
    }
    if (geteuid() != 0 && group->gr_gid != getegid() && !group_member(group->gr_gid)) {
        log_line("--group %s: you are not a member of it; see id", name);
        return false;
    }
    *out = group->gr_gid;
    return true;
}

int main(int argc, char **argv)
{
    struct daemon_options options = {0};
    struct arguments arguments;
    char directory[4096];
    struct error err = {""};

    process_hold_signals();
    process_bound_spinning(argv);
    log_name("epsd");
    if (process_check_stack(&err) || process_check_descriptors(&err)) {
        log_line("%s", err.text);
        return 1;
    }
    if (!parse(&arguments, argc, argv))
        return 2;
    if (arguments.answer) {
        fputs(arguments.answer, stdout);
        return 0;
    }
    options.directory = directory;
    options.is_private = arguments.is_private;
    options.host_mem = arguments.host_mem;
    options.shared = arguments.group != NULL;
    if (options.shared && !find_group(&options.group, arguments.group))
        return 2;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that grows past its limit makes a save fail, not the process */
    if (options.is_private && !process_follow_parent(arguments.parent)) {
        log_line("the process that started this daemon has ended");
        return 1;
    }
    int rc = session_directory(directory, sizeof directory, arguments.address, &err);
    if (!rc)
        rc = daemon_run(&options, &err);
    if (rc)
        log_line("%s", err.text);
    return rc == -EDOM ? 2 : rc ? 1 : 0;
}
