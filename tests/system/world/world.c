/* The operator, and the faults. */
#include "tests/system/world/world.h"

#include "eps/job/job.h"
#include "proto/operation/backend.h"
#include "proto/plan/memory/room.h"
#include "tests/system/world/loop.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* eps/main.c and device/main.c: CMakeLists.txt gives main these names. */
int epsd_main(int argc, char **argv);
int worker_main(int argc, char **argv);

enum {
    STUCK_S = 1800,
    MOST_EVENTS = 1000000,
    END_S = 300,
    STALL_S = 40,
    SILENCE_S = 60,
    PAUSE_S = 120,
    SOON_EVENTS = 64
};

const struct world_setting *world_is;
const struct world_options *world_wants;

struct slot {
    struct process *process;
    uint64_t start_at;
};

static struct {
    struct world_setting setting;
    struct world_options options;
    struct slot daemons[WORLD_MOST_HOSTS], client, workers[WORLD_MOST_WORKERS];
    uint64_t ended_by; /* when the launcher ends the other daemons; 0: all are well; NEVER: it does not */
    struct fault faults[WORLD_MOST_FAULTS];
    unsigned n_workers; /* that the operator keeps running */
    unsigned n_faults, next_fault;
    uint64_t n_events, last_fault_at;
    bool is_ending;
    uint64_t end_at, signalled_at;
    struct process *told_to_end;
    unsigned n_bad; /* contributions that were not finite: two of one part end a run */
    bool harmless;  /* every fault so far was one that a run survives */
} world;

void world_fail(const char *format, ...)
{
    va_list args;

    printf("%s %" PRIu64 ", event %" PRIu64 " (%.3f s): ",
           world.options.expected ? "seed" : "before any fault, setting", world.options.seed, world.n_events,
           (double)world_now() / 1e9);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
    process_running = NULL; /* the process that ends is ours */
    _exit(3);
}

/* ---- processes -------------------------------------------------------------------------------------------------- */

const char *world_address(unsigned number)
{
    static const char *const addresses[WORLD_MOST_HOSTS] = {WORLD_ADDRESS, WORLD_ADDRESS "-1", WORLD_ADDRESS "-2",
                                                            WORLD_ADDRESS "-3"};
    return addresses[number];
}

static int daemon_body(void *arg)
{
    char *argv[] = {"epsd", "--listen", WORLD_ADDRESS, world.setting.n_hosts > 1 ? "--mpi" : NULL, NULL};

    (void)arg;
    optind = 0;
    return epsd_main(world.setting.n_hosts > 1 ? 4 : 3, argv);
}

static int worker_body(void *arg)
{
    char address[] = WORLD_ADDRESS "-0";
    char *argv[] = {"eps-worker", "--connect", address, "--device", "cpu", "--device-mem", "32MiB", NULL};

    (void)arg;
    snprintf(address, sizeof address, "%s", world_address(process_running->host));
    optind = 0;
    return worker_main(7, argv);
}

/* True: whoever has ended is to be started now. */
static bool is_due(struct slot *slot, uint64_t most_ns)
{
    if (slot->process && slot->process->alive)
        return false;
    if (slot->process && slot->start_at == 0) {
        slot->start_at = world_now() + chance_time(10 * MS, most_ns);
        return false;
    }
    if (world_now() < slot->start_at)
        return false;
    slot->start_at = 0;
    return true;
}

static void start(struct slot *slot, enum process_kind kind, const char *name, int (*body)(void *arg), unsigned number)
{
    slot->process = process_start(kind, name, body, NULL);
    slot->process->host = number;
}

static void start_daemons(void)
{
    struct process *started[WORLD_MOST_HOSTS];

    for (unsigned h = 0; h < world.setting.n_hosts; h++) {
        start(&world.daemons[h], PROCESS_DAEMON, "epsd", daemon_body, h);
        started[h] = world.daemons[h].process;
        if (world.setting.slow_optimizer)
            started[h]->pause_ns = 500 * MS;
    }
    world.ended_by = 0;
    if (world.setting.n_hosts > 1)
        hosts_launch(started, world.setting.n_hosts);
}

static unsigned count_daemons(void)
{
    unsigned n = 0;

    for (unsigned h = 0; h < world.setting.n_hosts; h++)
        n += world.daemons[h].process && world.daemons[h].process->alive;
    return n;
}

/* What mpirun does once one of the daemons has failed; other launchers leave the rest alone. */
static void end_others(void)
{
    bool has_failed = false;

    for (unsigned h = 0; h < world.setting.n_hosts; h++)
        has_failed = has_failed || (!world.daemons[h].process->alive && world.daemons[h].process->status);
    if (has_failed && world.ended_by == 0)
        world.ended_by = chance(2) ? NEVER : world_now() + chance_time(1 * MS, 3 * SECOND);
    if (!has_failed || world_now() < world.ended_by)
        return;
    for (unsigned h = 0; h < world.setting.n_hosts; h++)
        if (world.daemons[h].process->alive)
            loop_signal(world.daemons[h].process, SIGTERM);
    world.ended_by = world_now() + SECOND;
}

/* Daemons of several hosts are started together. */
static void tend_daemons(void)
{
    if (world.setting.n_hosts > 1 && count_daemons() > 0)
        end_others();
    else if (is_due(&world.daemons[0], 3 * SECOND))
        start_daemons();
}

/* The client was away for five minutes in which a rival waited, or was told to end and did not come: then its job is
 * saved and ends. */
static bool has_given_way(void)
{
    return strstr(script_error, "saved and ended after") != NULL;
}

/* What a process may not do by itself. */
static void judge_deaths(void)
{
    const struct process *c = world.client.process;

    if ((!world.options.expected || world.options.kept == 0) && !world.is_ending)
        for (const struct process *p = process_all; p; p = p->next)
            if (!p->alive && (p->kind != PROCESS_CLIENT || p->status))
                world_fail("%s ended with status %d, and no fault had come", p->name, p->status);
    for (unsigned h = 0; h < world.setting.n_hosts; h++) {
        const struct process *d = world.daemons[h].process;
        if (world.harmless && d && !d->alive && !world.is_ending)
            world_fail("%s ended with status %d, and only its peers were at fault", d->name, d->status);
        if (d && !d->alive && d->status == 0 && hosts_has_lost(d))
            world_fail("%s has lost a host, and its status is 0", d->name);
    }
    if (world.harmless && c && !c->alive && c->status && script_in_job && !has_given_way())
        world_fail("the client's run ended, and only workers were at fault: %s", script_error);
}

/* The client has saved the last step. */
static void begin_end(void)
{
    if (script_last_step() != (long)world.setting.n_steps)
        world_fail("the client ended well, and the last checkpoint is of step %ld", script_last_step());
    world.is_ending = true;
    world.end_at = world_now();
    world.told_to_end = world.daemons[world.setting.n_hosts > 1 ? chance(world.setting.n_hosts) : 0].process;
    world_say("the run is over");
}

static bool all_dead(void)
{
    for (const struct process *p = process_all; p; p = p->next)
        if (p->alive)
            return false;
    return true;
}

/* A worker that had no memory for a job is not asked again: the operator, who reads so in the daemon's log, begins it
 * anew. */
static void replace_starved(void)
{
    for (struct process *p = process_all; p; p = p->next)
        if (p->kind == PROCESS_WORKER && p->starved_at && world_now() > p->starved_at + 30 * SECOND)
            process_kill(p, -SIGKILL);
}

/* A daemon that has begun to end, and whose thread does not, is killed, as a service manager does. */
static void kill_hung(struct process *daemon)
{
    char connection[64];

    if (!daemon || !daemon->alive || daemon->hung_until != NEVER)
        return;
    snprintf(connection, sizeof connection, "%s/listener", world_address(daemon->host));
    if (!wire_is_live(connection))
        process_kill(daemon, -SIGKILL);
}

/* True: all have ended. */
static bool end_all(void)
{
    struct process *daemon = world.told_to_end;

    if (daemon->alive && world_now() >= world.signalled_at + SECOND) {
        loop_signal(daemon, SIGTERM);
        world.signalled_at = world_now();
    }
    if (world.setting.n_hosts > 1 && count_daemons() > 0)
        end_others();
    if (world_now() > world.end_at + END_S * world.setting.n_hosts * SECOND)
        world_fail("the processes do not end");
    for (struct process *p = process_all; p; p = p->next)
        if (!world.daemons[p->host].process->alive && p->alive && p->kind == PROCESS_WORKER && p->cut)
            process_kill(p, -SIGKILL);
    return all_dead();
}

/* True: all have ended. */
static bool tend_all(void)
{
    struct process *client = world.client.process;
    const unsigned n_hosts = world.setting.n_hosts;

    judge_deaths();
    replace_starved();
    for (unsigned h = 0; h < n_hosts; h++)
        kill_hung(world.daemons[h].process);
    if (!world.is_ending && client && !client->alive && client->status == 0)
        begin_end();
    if (world.is_ending)
        return end_all();
    tend_daemons();
    for (unsigned i = 0; i < world.n_workers; i++)
        if (is_due(&world.workers[i], chance(4) ? 5 * SECOND : 90 * SECOND))
            start(&world.workers[i], PROCESS_WORKER, "worker", worker_body, i % n_hosts);
    if (is_due(&world.client, 5 * SECOND))
        start(&world.client, PROCESS_CLIENT, "client", script_client, 0);
    return false;
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

static struct process *draw_process(enum process_kind kind, uint64_t which)
{
    struct process *found[64];
    unsigned n = 0;

    for (struct process *p = process_all; p; p = p->next)
        if (p->alive && (p->kind == kind || kind == PROCESS_KINDS) && n < 64)
            found[n++] = p;
    return n ? found[which % n] : NULL;
}

static enum process_kind victim_of(enum fault_kind kind)
{
    static const enum process_kind victims[FAULT_KINDS] = {
        [FAULT_KILL_WORKER] = PROCESS_WORKER,  [FAULT_STOP_WORKER] = PROCESS_WORKER,
        [FAULT_HANG_WORKER] = PROCESS_WORKER,  [FAULT_DETACH_WORKER] = PROCESS_WORKER,
        [FAULT_ATTACH_WORKER] = PROCESS_KINDS, [FAULT_SLOW] = PROCESS_KINDS,
        [FAULT_CUT_WORKER] = PROCESS_WORKER,   [FAULT_KILL_CLIENT] = PROCESS_CLIENT,
        [FAULT_STOP_CLIENT] = PROCESS_CLIENT,  [FAULT_KILL_DAEMON] = PROCESS_DAEMON,
        [FAULT_STOP_DAEMON] = PROCESS_DAEMON,  [FAULT_END_DAEMON] = PROCESS_DAEMON,
        [FAULT_HANG_DAEMON] = PROCESS_DAEMON,  [FAULT_FULL_DISK] = PROCESS_KINDS,
        [FAULT_NO_MEMORY] = PROCESS_DAEMON,    [FAULT_SUSPEND] = PROCESS_KINDS,
        [FAULT_VIEWER] = PROCESS_KINDS,        [FAULT_RIVAL] = PROCESS_KINDS,
        [FAULT_STALL_DAEMON] = PROCESS_DAEMON, [FAULT_CUT_CLIENT] = PROCESS_CLIENT,
        [FAULT_BAD_NUMBERS] = PROCESS_WORKER,  [FAULT_CUT_HOST] = PROCESS_DAEMON,
        [FAULT_PAUSE_CLIENT] = PROCESS_CLIENT, [FAULT_DAMAGE] = PROCESS_WORKER,
        [FAULT_MISREAD] = PROCESS_WORKER,
    };
    return victims[kind];
}

/* Whoever has just begun to open a session gives that one up when the clock jumps: opening has a limit. Later, silence
 * is counted only while a process runs. */
static void note_openings(void)
{
    for (struct process *p = process_all; p; p = p->next)
        p->ailing = p->ailing || world_now() - p->started_at < 10 * SECOND;
}

static void commit(const struct fault *f)
{
    struct process *p =
        draw_process(f->kind == FAULT_NO_MEMORY && f->which / 6400 % 2 ? PROCESS_WORKER : victim_of(f->kind), f->which);
    const uint64_t until = world_now() + f->lasts;

    if (!p)
        return;
    world.harmless =
        world.harmless && world_fault_is_harmless(f->kind) && !(f->kind == FAULT_BAD_NUMBERS && world.n_bad++);
    world.last_fault_at = until;
    world_say("fault %u: %s (%s, %.3f s)", f->number, world_fault_name(f->kind), p->name, (double)f->lasts / 1e9);
    switch (f->kind) {
    case FAULT_KILL_WORKER:
    case FAULT_KILL_CLIENT:
    case FAULT_KILL_DAEMON:
        process_kill(p, -SIGKILL);
        break;
    case FAULT_STOP_WORKER:
    case FAULT_STOP_CLIENT:
    case FAULT_STOP_DAEMON:
        p->stopped_until = until;
        p->ailing = true;
        break;
    case FAULT_HANG_WORKER:
        p->hung_until = f->which / 64 % 3 ? until : NEVER;
        p->ailing = true;
        break;
    case FAULT_STALL_DAEMON: /* not twice in the time that its threads may be silent */
        if (p->hung_until == 0 || world_now() > p->hung_until + SILENCE_S * SECOND)
            p->hung_until = world_now() + f->lasts % (STALL_S * SECOND);
        break;
    case FAULT_HANG_DAEMON:
        p->hung_until = NEVER;
        p->hung_at = world_now();
        break;
    case FAULT_DETACH_WORKER:
        loop_signal(p, SIGTERM);
        break;
    case FAULT_END_DAEMON: /* of several, SIGTERM ends it without a checkpoint */
        loop_signal(p, world.setting.n_hosts > 1 && f->which / 64 % 2 ? SIGINT : SIGTERM);
        break;
    case FAULT_ATTACH_WORKER:
        world.n_workers += world.n_workers < WORLD_MOST_WORKERS;
        break;
    case FAULT_SLOW:
        p->slow_until = until;
        p->ailing = true;
        p->slow_ns = f->lasts / 4 < 2 * SECOND ? f->lasts / 4 : 2 * SECOND;
        break;
    case FAULT_CUT_WORKER:
        p->cut = p->ailing = true;
        wire_cut(p);
        break;
    case FAULT_CUT_CLIENT:
        wire_break(p);
        break;
    case FAULT_PAUSE_CLIENT:
        script_pause_ns = f->lasts % (PAUSE_S * SECOND);
        break;
    case FAULT_BAD_NUMBERS: /* a fenced step would be skipped, and its bits are those of no other run */
        p->spoils = !world.setting.fenced;
        break;
    case FAULT_DAMAGE:
        p->changes = world.setting.checks_memory;
        break;
    case FAULT_MISREAD: /* copies of other hosts' weights have no sums */
        p->misreads = world.setting.checks_memory && world.setting.n_hosts == 1;
        break;
    case FAULT_FULL_DISK:
        host.full_until = until;
        host.full_for = NULL;
        if (world.setting.n_hosts > 1 && f->which / 64 % 2)
            host.full_for = world.daemons[f->which / 128 % world.setting.n_hosts].process;
        break;
    case FAULT_NO_MEMORY:
        host.fails_in = p;
        host.fails_after = 1 + (unsigned)(f->which / 64 % 10 * (f->which / 640 % 10));
        break;
    case FAULT_SUSPEND:
        note_openings();
        world_jump(f->lasts * 100);
        world.last_fault_at += f->lasts * 100;
        break;
    case FAULT_RIVAL:
        process_start(PROCESS_VIEWER, "rival", script_rival, NULL);
        break;
    case FAULT_VIEWER:
        process_start(PROCESS_VIEWER, "viewer", script_viewer, NULL)->host =
            (unsigned)(f->which % world.setting.n_hosts);
        break;
    case FAULT_CUT_HOST:
        hosts_cut(p);
        break;
    case FAULT_KINDS:
        abort();
    }
}

/* ---- the run ---------------------------------------------------------------------------------------------------- */

static void come_faults(void)
{
    while (world.next_fault < world.n_faults && world.faults[world.next_fault].at <= world.n_events && !world.is_ending)
        commit(&world.faults[world.next_fault++]);
}

void world_rare(const char *place, unsigned odds)
{
    if (world.next_fault == world.n_faults || chance(odds))
        return;
    world_say("rare: %s", place);
    world.faults[world.next_fault].at = world.n_events;
    if (world.next_fault + 1 < world.n_faults && chance(2)) { /* and another soon after */
        const uint64_t soon = world.n_events + chance(SOON_EVENTS);
        struct fault *second = &world.faults[world.next_fault + 1];
        second->at = second->at < soon ? second->at : soon;
    }
}

void world_run(struct world_result *out, const struct world_options *options)
{
#ifdef _OPENMP
    omp_set_num_threads(1);
#endif
    setenv("HWLOC_SYNTHETIC", "core:1 pu:1", 1);
    setenv("HWLOC_PLUGINS_PATH", "/dev/null/none", 1); /* loading them would take half of the time */
    world.options = *options;
    world_setting(&world.setting, options->setting, options->for_hosts);
    world.setting.n_hosts = options->n_hosts;
    if (!options->expected)
        world.setting.save_every = 1, world.setting.groups = 0, world.setting.folded = false;
    world_is = &world.setting;
    world_wants = &world.options;
    world.harmless = !world.setting.no_replay;
    world.n_workers = world.setting.n_workers * world.setting.n_hosts;
    if (options->expected)
        world.n_faults = world_faults(world.faults, options);
    chance_seed(options->seed);
    world.client.start_at = world_now() + SECOND / 2; /* workers have attached by then */
    while (!tend_all()) {
        come_faults();
        if (fiber_turn(world_now() + 100 * MS)) {
            world.n_events++;
            check_event();
        }
        if (world.n_events > MOST_EVENTS || world_now() > world.last_fault_at + STUCK_S * SECOND)
            world_fail("the run does not end");
    }
    for (unsigned h = 0; h < world.setting.n_hosts; h++)
        if (world.harmless && world.daemons[h].process->status != 0)
            world_fail("%s ended with status %d", world.daemons[h].process->name, world.daemons[h].process->status);
    script_check_saved(world.setting.n_steps);
    *out = script_result;
    out->n_events = world.n_events;
}
