/* Runs seeds, each in a process of its own; shrinks one that fails. */
#include "tests/system/world/world.h"

#include <ftw.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
    "usage: world [--hosts] --seed N [--trace] | --seeds A..B | --seconds S\n"
    "\n"
    "Runs the daemon, its workers and a client in one thread, over simulated links, clock and death.\n"
    "Each seed draws a model, delays and faults; the run must end with the bits of one without faults.\n"
    "\n"
    "  --hosts       the daemon is 2 to 4 daemons, which share each job\n"
    "  --seed N      one seed; prints its faults\n"
    "  --trace       every message, log line and fault of it\n"
    "  --here        in this process, for a debugger\n"
    "  --faults M    of its faults, those in this mask (hexadecimal) alone\n"
    "  --seeds A..B  these seeds; ends with the first that fails, and its fewest faults\n"
    "  --seconds S   fresh seeds for that long\n"
    "\n"
    "Exit status: 0 no seed failed, 1 one failed, 2 wrong usage.\n";

/* Of the processor, for a run that takes 20 ms: one that calls nothing would never end by itself. */
enum { MOST_SECONDS = 10 };

static bool has_hosts; /* several: --hosts */

struct known {
    bool known;
    struct world_result result;
};
static struct known alone[WORLD_SETTINGS][WORLD_MOST_HOSTS + 1], shared[WORLD_SETTINGS][WORLD_MOST_HOSTS + 1];

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info, (void)kind, (void)at;
    return remove(path);
}

static void remove_directory(const char *directory)
{
    if (nftw(directory, remove_one, 8, FTW_DEPTH | FTW_PHYS))
        perror(directory);
}

/* In a process of its own. False: it failed. */
static bool run_apart(struct world_result *out, const struct world_options *options, bool is_quiet)
{
    struct world_options own = *options;
    char directory[] = "/dev/shm/eps-world-XXXXXX";
    int ends[2], status = 0;

    if (!mkdtemp(directory) || pipe(ends)) {
        perror("world");
        exit(2);
    }
    own.directory = directory;
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        setrlimit(RLIMIT_CPU, &(struct rlimit){MOST_SECONDS, MOST_SECONDS + 1});
        if (is_quiet && (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)))
            _exit(2);
        world_run(out, &own);
        fflush(stdout);
        _exit(write(ends[1], out, sizeof *out) == sizeof *out ? 0 : 2);
    }
    close(ends[1]);
    const bool whole = read(ends[0], out, sizeof *out) == sizeof *out;
    close(ends[0]);
    waitpid(pid, &status, 0);
    remove_directory(directory);
    if (WIFSIGNALED(status) && !is_quiet)
        printf("%s %" PRIu64 ": %s\n", options->expected ? "seed" : "before any fault, setting", options->seed,
               strsignal(WTERMSIG(status)));
    return whole && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* For debuggers. */
static int run_here(struct world_options *options)
{
    struct world_result result;
    char directory[] = "/dev/shm/eps-world-XXXXXX";

    options->directory = mkdtemp(directory);
    world_run(&result, options);
    remove_directory(directory);
    return 0;
}

/* Runs a setting without faults, once. */
static const struct world_result *run_without(struct known *k, const struct world_options *without)
{
    const bool traces = world_traces;

    world_traces = false;
    if (!k->known) {
        k->known = run_apart(&k->result, without, false);
        if (!k->known) {
            printf("setting %u fails without faults%s\n", without->setting, without->n_hosts > 1 ? ": --faults 0" : "");
            exit(1);
        }
    }
    world_traces = traces;
    return &k->result;
}

/* What several hosts make has the bits that one daemon makes of the same parts. */
static void find_expected(struct world_options *options)
{
    const unsigned n = options->for_hosts;
    struct world_options without = {.setting = options->setting,
                                    .for_hosts = n,
                                    .n_hosts = 1,
                                    .seed = options->setting};

    options->expected = run_without(&alone[options->setting][n], &without);
    options->n_events = options->expected->n_events;
    if (n == 1 || options->kept == 0)
        return;
    without.n_hosts = n;
    without.expected = options->expected;
    without.seed += (n - 2) * WORLD_SETTINGS; /* the first seed that has them */
    options->n_events = run_without(&shared[options->setting][n], &without)->n_events;
}

static struct world_options options_of(uint64_t seed, uint64_t kept)
{
    const unsigned n_hosts = has_hosts ? 2 + (unsigned)(seed / WORLD_SETTINGS % (WORLD_MOST_HOSTS - 1)) : 1;
    struct world_options options = {.setting = (unsigned)(seed % WORLD_SETTINGS),
                                    .for_hosts = n_hosts,
                                    .n_hosts = n_hosts,
                                    .seed = seed,
                                    .kept = kept};

    find_expected(&options);
    return options;
}

static void list_faults(const struct world_options *options)
{
    struct fault faults[WORLD_MOST_FAULTS];
    struct world_setting s;
    const unsigned n = world_faults(faults, options);

    world_setting(&s, options->setting, options->for_hosts);
    printf("setting %u: ", options->setting);
    if (options->n_hosts > 1)
        printf("%u hosts, on each of which ", options->n_hosts);
    printf("%u layers, %u parts, %u workers, %u steps, %s%s%s%s%s%s%s%s%s%s%s\n", s.n_layers, s.n_parts, s.n_workers,
           s.n_steps, s.adamw ? "adamw" : "adama",
           s.fenced   ? ", fenced"
           : s.folded ? ", folded"
                      : "",
           s.bf16 ? ", bf16" : "", s.family ? ", " : "", s.family ? s.family : "",
           s.beside ? ", beside the optimizer" : "", s.small_devices ? ", small devices" : "",
           s.slow_optimizer ? ", slow optimizer" : "", s.few_slots ? ", few slots" : "",
           s.no_replay ? ", no replay" : "", s.n_entries ? ", norms" : "");
    for (unsigned i = 0; i < n; i++)
        printf("  fault %u at event %" PRIu64 ": %s, %.3f s\n", faults[i].number, faults[i].at,
               world_fault_name(faults[i].kind), (double)faults[i].lasts / 1e9);
}

/* Leaves out one fault after another, as long as the seed still fails. */
static void shrink(uint64_t seed)
{
    struct world_options options = options_of(seed, UINT64_MAX);
    struct world_result result;
    struct fault faults[WORLD_MOST_FAULTS];
    const unsigned n = world_faults(faults, &options);

    options.kept = (UINT64_C(1) << n) - 1;
    for (bool any = true; any;) {
        any = false;
        for (unsigned i = 0; i < n; i++) {
            struct world_options fewer = options;
            fewer.kept &= ~(UINT64_C(1) << i);
            if (fewer.kept == options.kept || run_apart(&result, &fewer, true))
                continue;
            options = fewer;
            any = true;
        }
    }
    printf("fewest faults: world%s --seed %" PRIu64 " --faults %" PRIx64 " --trace\n", has_hosts ? " --hosts" : "",
           seed, options.kept);
    list_faults(&options);
    run_apart(&result, &options, false);
}

static bool run_seed(uint64_t seed)
{
    const struct world_options options = options_of(seed, UINT64_MAX);
    struct world_result result;

    if (run_apart(&result, &options, false))
        return true;
    shrink(seed);
    return false;
}

static int run_seeds(uint64_t first, uint64_t end)
{
    for (uint64_t seed = first; seed < end; seed++)
        if (!run_seed(seed))
            return 1;
    printf("%" PRIu64 " seeds, from %" PRIu64 " on: none failed\n", end - first, first);
    return 0;
}

static int run_seconds(double seconds)
{
    struct timespec t;
    uint64_t n = 0;

    clock_gettime(CLOCK_REALTIME, &t);
    const uint64_t first = (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
    const double until = (double)t.tv_sec + (double)t.tv_nsec / 1e9 + seconds;
    printf("seeds from %" PRIu64 " on\n", first);
    while ((double)t.tv_sec + (double)t.tv_nsec / 1e9 < until) {
        if (!run_seed(first + n++))
            return 1;
        clock_gettime(CLOCK_REALTIME, &t);
    }
    printf("%" PRIu64 " seeds: none failed\n", n);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"seed", required_argument, NULL, 's'},   {"seeds", required_argument, NULL, 'r'},
        {"here", no_argument, NULL, 'h'},         {"seconds", required_argument, NULL, 't'},
        {"trace", no_argument, NULL, 'v'},        {"hosts", no_argument, NULL, 'm'},
        {"faults", required_argument, NULL, 'f'}, {0},
    };
    uint64_t seed = 0, end = 0, kept = UINT64_MAX;
    double seconds = 0;
    bool is_here = false;
    char what = 0;
    int option;

    setvbuf(stdout, NULL, _IOLBF, 0);
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'v')
            world_traces = true;
        else if (option == 'h')
            is_here = true;
        else if (option == 'm')
            has_hosts = true;
        else if (option == 'f')
            kept = strtoull(optarg, NULL, 16);
        else if (option == 's' || option == 't')
            what = (char)option, seconds = strtod(optarg, NULL), seed = strtoull(optarg, NULL, 10);
        else if (option == 'r' && sscanf(optarg, "%" SCNu64 "..%" SCNu64, &seed, &end) == 2 && seed < end)
            what = 'r';
        else
            what = '?';
    }
    if (what == 'r')
        return run_seeds(seed, end);
    if (what == 't')
        return run_seconds(seconds);
    if (what != 's') {
        fputs(usage, stderr);
        return 2;
    }
    struct world_options one = options_of(seed, kept);
    struct world_result result;
    list_faults(&one);
    if (is_here)
        return run_here(&one);
    return run_apart(&result, &one, false) ? 0 : 1;
}
