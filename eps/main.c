/* epsd: the daemon. See eps/daemon.h.
 *
 * The order in eps_main_serve counts. Spinning is bounded before any thread of OpenMP exists, which may execute the
 * program anew; the log's file is opened before anything but misuse is told; signals are held from the first line on,
 * and let in when the daemon can stop in an orderly way. */
#include "eps/daemon.h"

#include "eps/job/queue.h"
#include "proto/base/process.h"
#include "proto/net/key.h"
#include "proto/wire/session.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <grp.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage[] =
    "usage: epsd --listen ADDRESS [--listen tcp://HOST:PORT --key FILE] [--host-mem BYTES]\n"
    "            [--queue N] [--group G] [--share-workers] [--viewers G] [--log FILE]\n"
    "       mpirun -n HOSTS [--map-by ppr:1:node] epsd --mpi --listen ADDRESS [...]\n"
    "       epsd --make-key FILE\n"
    "\n"
    "Holds models and optimizer state in host memory. Workers (eps-worker) attach to it, and eps\n"
    "train drives it. Runs one job after another until SIGTERM, SIGINT or eps stop.\n"
    "\n"
    "If the client of a training job is killed, the daemon finishes the open steps and keeps the\n"
    "model: eps train --attach takes it over. It stays until eps stop, or until another job waits:\n"
    "then it is saved first. If only its client could save it, it ends once others have waited for\n"
    "60 s.\n"
    "\n"
    "  --listen ADDRESS  a name ($XDG_RUNTIME_DIR/eps/NAME, else /tmp/eps-UID/NAME), not of digits\n"
    "                    alone, or a directory: an address with a '/' in it. A second one,\n"
    "                    tcp://HOST:PORT, admits workers of other hosts; alone, it means the name\n"
    "                    tcp-PORT as well\n"
    "  --key FILE        the key that those workers must have: at most 64 at a time. Whoever has not\n"
    "                    shown it within 5 s is dropped; 64 connections may try at a time\n"
    "  --plain-bulk      for trusted links: authenticate weights and gradients that travel by tcp, but\n"
    "                    do not encrypt them; workers need it, too\n"
    "  --mpi             on each of several hosts, started by mpirun or srun: the hosts divide a\n"
    "                    training job's units and optimizer state among them, and the parts of each\n"
    "                    step (--parts, at least one a host). Host 0 listens at ADDRESS and takes the\n"
    "                    jobs; host N listens at ADDRESS-N, for its own workers. All must see the same\n"
    "                    files. A host that is lost ends the job and the daemons\n"
    "  --host-mem BYTES  hard cap on the host memory of a job, as in 8GiB; default: free memory\n"
    "  --queue N         how many jobs may wait for their turn, 0 to 256; default 16. A member of the\n"
    "                    group has a quarter of the places; you have one beyond them\n"
    "  --group G         share the daemon with your group G: its members may run jobs, attach workers\n"
    "                    and observe; only you may stop it. They must be able to reach the directory,\n"
    "                    as in --listen /srv/eps, and their --out must be writable for the group\n"
    "                    (chmod g+ws)\n"
    "  --share-workers   let any member's worker compute anybody's job. By default a job is computed by\n"
    "                    workers of its own user, of yours, of root, and of other hosts (--key): a worker\n"
    "                    reads the job's weights and data, and could falsify its result\n"
    "  --viewers G       let members of your group G observe, and no more. With --group, whose members\n"
    "                    must be in G, too, to reach the directory\n"
    "  --log FILE        append the log to FILE, with times; SIGHUP opens it anew, after a rotation.\n"
    "                    Default: standard error, as the system's journal takes it\n"
    "  --log-level error|warning|info\n"
    "                    the least that is logged; default: info\n"
    "  --make-key FILE   write a new key to FILE, which must not exist, and exit\n"
    "  --private         end with the first client that asks for anything, with the process that\n"
    "                    started this one, or on SIGHUP; --private=PID names that process. A run whose\n"
    "                    client dies is saved first, if it has --save-every above 0\n"
    "  --version         print the version\n"
    "  --help            print this text\n"
    "\n"
    "Limits: a message has at most 1 KiB, and 511 messages may wait for a peer that does not read; then\n"
    "its session ends. A user other than you and root has at most 64 sessions, or a quarter of ulimit\n"
    "-n, and 512 messages a second beside those of a job; what is beyond waits. 128 connections may\n"
    "wait at the listener, and each has 5 s to say who it is. A config.json has at most 1 MiB, a job's\n"
    "tokenizer and options 64 MiB. Of peers turned away, 8 in 10 s are logged.\n"
    "\n" PROCESS_BYTES_HELP "\n"
    "\n"
    "Exit status: 0 stopped, 1 failed, 2 wrong usage.\n";

struct arguments {
    const char *address, *group, *viewers, *log; /* NULL: unset */
    const char *network, *key;                   /* tcp://...; NULL: unset */
    bool plain_bulk, share_workers;
    bool is_private, mpi;
    int parent;           /* 0: unset */
    uint64_t host_mem;    /* 0: unset */
    const char *make_key; /* file for a new key; NULL: none */
    const char *answer;   /* what --help or --version prints */
    int queue;
};

/* strtoul alone would take blanks and a sign. */
static int parse_number(int *out, const char *text, int most)
{
    char *end = NULL;
    const unsigned long n = isdigit((unsigned char)*text) ? strtoul(text, &end, 10) : ULONG_MAX;

    if (n > (unsigned long)most || *end)
        return -EDOM;
    *out = (int)n;
    return 0;
}

/* False if the command line is misused; a sentence has been printed. */
static bool main_parse(struct arguments *out, int argc, char **argv)
{
    static const struct option options[] = {
        {"listen", required_argument, NULL, 'l'},
        {"host-mem", required_argument, NULL, 'm'},
        {"queue", required_argument, NULL, 'q'},
        {"group", required_argument, NULL, 'g'},
        {"viewers", required_argument, NULL, 'w'},
        {"share-workers", no_argument, NULL, 'S'},
        {"key", required_argument, NULL, 'K'},
        {"plain-bulk", no_argument, NULL, 'P'},
        {"mpi", no_argument, NULL, 'M'},
        {"make-key", required_argument, NULL, 'k'},
        {"private", optional_argument, NULL, 'p'},
        {"version", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},
        {"log", required_argument, NULL, 'o'},
        {"log-level", required_argument, NULL, 'e'},
        {0},
    };
    struct error err = {""};
    int option;

    opterr = 0;
    *out = (struct arguments){.queue = QUEUE_DEFAULT};
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
        switch (option) {
        case 'l': {
            const char **address = port_is_address(optarg) ? &out->network : &out->address;

            if (*address) {
                log_error("--listen %s and --listen %s: it takes one name or directory, and one tcp://HOST:PORT",
                          *address, optarg);
                return false;
            }
            *address = optarg;
            break;
        }
        case 'K':
            out->key = optarg;
            break;
        case 'P':
            out->plain_bulk = true;
            break;
        case 'M':
            out->mpi = true;
            break;
        case 'q':
            if (parse_number(&out->queue, optarg, QUEUE_MOST) == 0)
                break;
            log_error("--queue %.40s: a number of jobs, 0 to %d", optarg, QUEUE_MOST);
            return false;
        case 'g':
            out->group = optarg;
            break;
        case 'w':
            out->viewers = optarg;
            break;
        case 'S':
            out->share_workers = true;
            break;
        case 'k':
            out->make_key = optarg;
            return true;
        case 'o':
            out->log = optarg;
            break;
        case 'e':
            if (log_set_level(optarg, &err) == 0)
                break;
            log_error("%s", err.text);
            return false;
        case 'p':
            out->is_private = true;
            if (!optarg || (parse_number(&out->parent, optarg, INT_MAX) == 0 && out->parent > 0))
                break;
            log_error("--private=%.40s: the number of a process", optarg);
            return false;
        case 'v':
            out->answer = "epsd " EPS_VERSION "\n";
            return true;
        case 'h':
            out->answer = usage;
            return true;
        case 'm':
            if (process_parse_bytes(&out->host_mem, "--host-mem", optarg, &err) == 0)
                break;
            log_error("%s", err.text);
            return false;
        default:
            log_error("%s: no such option, or its value is missing; see epsd --help", argv[optind - 1]);
            return false;
        }
    if (optind < argc) {
        log_error("'%s' is not an option; see epsd --help", argv[optind]);
        return false;
    }
    if ((!out->network && !out->address) || (out->address && !*out->address)) {
        log_error("--listen ADDRESS is needed; see epsd --help");
        return false;
    }
    if (session_has_port(out->address)) {
        log_error("--listen %s: did you mean tcp://%s?", out->address, out->address);
        return false;
    }
    if (out->address && out->address[strspn(out->address, "0123456789")] == '\0') {
        log_error("--listen %s: eps stop would take a number for a job: choose a name", out->address);
        return false;
    }
    if (out->log && !*out->log) {
        log_error("--log is empty");
        return false;
    }
    const char *shared = out->group ? "group" : out->viewers ? "viewers" : NULL;
    if (shared && out->is_private) {
        log_error("--private and --%s: a private daemon has nobody to share with", shared);
        return false;
    }
    if (out->share_workers && !out->group) {
        log_error("--share-workers: there is nobody to share with; it needs --group G");
        return false;
    }
    if (out->mpi && (out->is_private || shared)) {
        log_error("--mpi and --%s: a daemon on several hosts serves its own user, job after job",
                  shared ? shared : "private");
        return false;
    }
    if (out->network && !out->key) {
        log_error(
            "--listen %s: without a key anybody could attach; make one with epsd --make-key FILE, and give it to both "
            "sides with --key FILE",
            out->network);
        return false;
    }
    if (!out->network && (out->key || out->plain_bulk)) {
        log_error("%s is for workers of other hosts: it needs --listen tcp://HOST:PORT",
                  out->key ? "--key" : "--plain-bulk");
        return false;
    }
    return true;
}

/* False if the caller cannot share with this group; a sentence has been printed. *out is (gid_t)-1 if name is NULL.
 * Files of the directory get this group, which only a member, or root, may give them. */
static bool find_group(gid_t *out, const char *option, const char *name)
{
    const struct group *group = name ? getgrnam(name) : NULL;

    *out = group ? group->gr_gid : (gid_t)-1;
    if (!name || (group && (geteuid() == 0 || group->gr_gid == getegid() || group_member(group->gr_gid))))
        return true;
    log_error("--%s %s: %s", option, name, group ? "you are not a member of it; see id" : "there is no such group");
    return false;
}

static bool find_groups(struct daemon_options *out, const struct arguments *arguments)
{
    if (!find_group(&out->users, "group", arguments->group) || !find_group(&out->group, "viewers", arguments->viewers))
        return false;
    out->shared = arguments->group || arguments->viewers;
    if (!arguments->viewers)
        out->group = out->users;
    return true;
}

/* What the tcp port needs; *key is the caller's. With a tcp address alone, *name is the local one. 0, or -errno with a
 * sentence. */
static int open_network(struct port_options *out, uint8_t **key, char name[64], const struct arguments *arguments,
                        struct error *err)
{
    char host[PORT_NAME_BYTES], port[PORT_DIGITS_BYTES];
    int rc = port_split(host, port, arguments->network, err);

    if (rc)
        return rc;
    *out = (struct port_options){.address = arguments->network, .plain_bulk = arguments->plain_bulk};
    snprintf(name, 64, "tcp-%s", port);
    rc = key_read(key, arguments->key, err);
    out->key = *key;
    return rc;
}

/* All hosts log to the launcher's terminal. */
static void name_in_log(uint32_t host)
{
    char machine[HOST_NAME_MAX + 1], name[HOST_NAME_MAX + 32];

    process_host_name(machine, sizeof machine);
    snprintf(name, sizeof name, "epsd host %u (%s)", host, machine);
    log_name(name);
}

/* Joins the daemons that a launcher started together. Host 0 has the address itself: on one machine, too, each has its
 * own. hosts is NULL if there is only one. 0, or -errno with a sentence. */
static int open_hosts(struct sharded_options *out, char *name, size_t n_bytes, const char *address, struct error *err)
{
    *out = (struct sharded_options){.ops = hosts_find("mpi", err)};
    int rc = out->ops ? out->ops->open(&out->hosts, &out->host, &out->n, err) : -ENODEV;

    if (rc)
        return rc;
    /* A launcher that started one daemon has nothing to divide: it runs as one that nobody launched. */
    if (out->n == 1) {
        out->ops->close(out->hosts);
        out->hosts = NULL;
    }
    if (out->host == 0)
        snprintf(name, n_bytes, "%s", address);
    else
        snprintf(name, n_bytes, "%s-%u", address, out->host);
    return 0;
}

/* Apart from main, whose frame must be small: process_check_stack. */
static __attribute__((noinline)) int eps_main_serve(int argc, char **argv)
{
    struct daemon_options options = {0};
    struct arguments arguments;
    struct port_options network;
    struct notify notify;
    char directory[4096], name[64], numbered[4096];
    struct sharded_options sharded = {0};
    uint8_t *key = NULL;
    struct error err = {""};

    process_bound_spinning(argv);
    log_name("epsd");
    if (process_check_descriptors(&err)) {
        log_error("%s", err.text);
        return 1;
    }
    if (!main_parse(&arguments, argc, argv))
        return 2;
    if (arguments.answer) {
        fputs(arguments.answer, stdout);
        return 0;
    }
    if (arguments.make_key) {
        if (key_make(arguments.make_key, &err) == 0)
            return 0;
        log_error("%s", err.text);
        return 1;
    }
    options.directory = directory;
    options.is_private = arguments.is_private;
    /* Asked before anything that takes time: if the parent dies meanwhile, getppid would name another process. */
    options.parent = arguments.parent > 0 ? arguments.parent : getppid();
    options.host_mem = arguments.host_mem;
    options.share_workers = arguments.share_workers;
    options.queue = (unsigned)arguments.queue;
    if (!find_groups(&options, &arguments))
        return 2;
    if (arguments.log && log_open(arguments.log, &err)) {
        log_error("%s", err.text);
        return 1;
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that grows past its limit makes a save fail, not the process */
    if (options.is_private && !process_is_child_of(options.parent)) {
        log_error("the process that started this daemon has ended");
        return 1;
    }
    notify_open(&notify);
    options.notify = &notify;
    int rc = arguments.network ? open_network(&network, &key, name, &arguments, &err) : 0;
    const char *address = arguments.address ? arguments.address : name;
    if (!rc && arguments.mpi) {
        rc = open_hosts(&sharded, numbered, sizeof numbered, address, &err);
        address = numbered;
    }
    if (sharded.hosts)
        name_in_log(sharded.host);
    options.sharded = sharded.hosts ? &sharded : NULL;
    if (!rc)
        rc = session_directory(directory, sizeof directory, address, &err);
    options.network = arguments.network ? &network : NULL;
    if (!rc)
        rc = daemon_run(&options, &err);
    notify_close(&notify);
    key_free(key);
    if (rc)
        log_error("%s", err.text);
    return rc == -EDOM ? 2 : rc ? 1 : 0;
}

int main(int argc, char **argv)
{
    process_hold_signals();
    return process_check_stack("epsd") ? eps_main_serve(argc, argv) : 1;
}
