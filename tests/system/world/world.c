/* The operator, and the faults. */
#include "tests/system/world/world.h"

#include "eps/job/job.h"
#include "proto/plan/backend.h"
#include "proto/plan/host.h"
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

enum { STUCK_S = 1800, MOST_EVENTS = 1000000, END_S = 300, STALL_S = 40, SILENCE_S = 60, SOON_EVENTS = 64 };

const struct world_setting *world_is;
const struct world_options *world_wants;

struct slot {
    struct process *process;
    uint64_t start_at;
};

static struct {
    struct world_setting setting;
    struct world_options options;
    struct slot daemon, client, workers[WORLD_MOST_WORKERS];
    struct fault faults[WORLD_MOST_FAULTS];
    unsigned n_workers; /* that the operator keeps running */
    unsigned n_faults, next_fault;
    uint64_t n_events, last_fault_at;
    bool is_ending;
    uint64_t end_at, signalled_at;
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

/* ---- what is drawn ---------------------------------------------------------------------------------------------- */

void world_setting(struct world_setting *out, unsigned number)
{
    static const unsigned parts[] = {1, 2, 4}, workers[] = {1, 3, 2, 3};

    *out = (struct world_setting){
        .n_layers = 1 + number / 2 % 2,
        .vocabulary = 32,
        .batch = 4,
        .seq = 8,
        .n_parts = parts[number % 3],
        .n_workers = workers[number / 3 % 4],
        .n_steps = 3 + number % 4,
        .save_every = 1 + number / 5 % 3,
        .adamw = number % 4 != 3,
        .fenced = number % 8 == 6,
        .bf16 = number % 8 == 5,
        .evaluates = number % 2 == 1,
        .beside = number / 4 % 2 == 1,
        .small_devices = number % 4 == 0 || number % 4 == 3,
        .slow_optimizer = number / 12 % 2 == 1,
        .few_slots = number / 24 == 1,
        .no_replay = number / 24 == 1 && (number % 8 == 1 || number % 8 == 4),
    };
    if (!out->adamw)
        out->fenced = false;
    if (out->n_parts < out->n_workers)
        out->n_parts = 4;
}

/* The CPU device stands in for one with a memory and queues of its own. */
const struct plan_backend *__real_plan_backend_find(const char *name);
const struct plan_backend *__wrap_plan_backend_find(const char *name);

const struct plan_backend *__wrap_plan_backend_find(const char *name)
{
    static struct plan_backend beside;
    const struct plan_backend *backend = __real_plan_backend_find(name);

    if (!backend || !world.setting.beside)
        return backend;
    beside = *backend;
    beside.takes_turns = false;
    return &beside;
}

/* A host with little memory. */
void __real_plan_host_add_slots(struct plan_host *out, const struct model *model, const struct plan_host_setting *s,
                                const struct plan_room *room);
void __wrap_plan_host_add_slots(struct plan_host *out, const struct model *model, const struct plan_host_setting *s,
                                const struct plan_room *room);
void __real_plan_host_add_replay(struct plan_host *out, struct plan_host_setting *s, const struct model *model,
                                 const struct plan_room *room);
void __wrap_plan_host_add_replay(struct plan_host *out, struct plan_host_setting *s, const struct model *model,
                                 const struct plan_room *room);

void __wrap_plan_host_add_slots(struct plan_host *out, const struct model *model, const struct plan_host_setting *s,
                                const struct plan_room *room)
{
    if (!world.setting.few_slots)
        __real_plan_host_add_slots(out, model, s, room);
}

void __wrap_plan_host_add_replay(struct plan_host *out, struct plan_host_setting *s, const struct model *model,
                                 const struct plan_room *room)
{
    if (world.setting.no_replay)
        out->replay = PLAN_REPLAY_NO_ROOM;
    else
        __real_plan_host_add_replay(out, s, model, room);
}

/* The same for devices, once the job has begun. */
int __real_job_plan_seat(struct plan *out, const struct job_seat *seat, const struct peer *worker, uint32_t n_parts,
                         struct error *err);
int __wrap_job_plan_seat(struct plan *out, const struct job_seat *seat, const struct peer *worker, uint32_t n_parts,
                         struct error *err);

int __wrap_job_plan_seat(struct plan *out, const struct job_seat *seat, const struct peer *worker, uint32_t n_parts,
                         struct error *err)
{
    const struct world_setting *s = &world.setting;

    if (s->small_devices && n_parts > (s->n_parts + s->n_workers - 1) / s->n_workers)
        return error_set(err, -ENOSPC, "no memory for %u parts", n_parts);
    return __real_job_plan_seat(out, seat, worker, n_parts, err);
}

static const struct {
    const char *name;
    unsigned weight;
    bool is_harmless; /* to the client's run: only time is lost */
} kinds[FAULT_KINDS] = {
    [FAULT_KILL_WORKER] = {"kill a worker", 12, true},
    [FAULT_STOP_WORKER] = {"stop a worker", 8, true},
    [FAULT_HANG_WORKER] = {"hang a worker", 5, true},
    [FAULT_DETACH_WORKER] = {"detach a worker", 5, true},
    [FAULT_ATTACH_WORKER] = {"attach a worker", 6, true},
    [FAULT_SLOW] = {"slow a process", 6, true},
    [FAULT_CUT_WORKER] = {"cut a worker off", 4, true},
    [FAULT_KILL_CLIENT] = {"kill the client", 4, false},
    [FAULT_STOP_CLIENT] = {"stop the client", 3, true},
    [FAULT_KILL_DAEMON] = {"kill the daemon", 3, false},
    [FAULT_STOP_DAEMON] = {"stop the daemon", 2, false},
    [FAULT_END_DAEMON] = {"end the daemon", 2, false},
    [FAULT_HANG_DAEMON] = {"hang the optimizer thread", 2, false},
    [FAULT_STALL_DAEMON] = {"stall the daemon's threads", 9, true},
    [FAULT_CUT_CLIENT] = {"cut the client off", 2, false},
    [FAULT_BAD_NUMBERS] = {"spoil a contribution", 5, true},
    [FAULT_RIVAL] = {"start a rival", 4, true},
    [FAULT_FULL_DISK] = {"fill the disk", 5, true},
    [FAULT_NO_MEMORY] = {"refuse an allocation", 5, false},
    [FAULT_SUSPEND] = {"suspend the machine", 4, true},
    [FAULT_VIEWER] = {"start a viewer", 6, true},
};

const char *world_fault_name(enum fault_kind kind)
{
    return kinds[kind].name;
}

static enum fault_kind draw_kind(void)
{
    unsigned sum = 0, at;

    for (unsigned k = 0; k < FAULT_KINDS; k++) {
        assert(kinds[k].weight > 0);
        sum += kinds[k].weight;
    }
    at = (unsigned)chance(sum);
    for (unsigned k = 0; k < FAULT_KINDS; k++) {
        if (at < kinds[k].weight)
            return (enum fault_kind)k;
        at -= kinds[k].weight;
    }
    abort();
}

unsigned world_faults(struct fault out[WORLD_MOST_FAULTS], const struct world_options *options)
{
    unsigned n, n_kept = 0;

    chance_seed(options->seed ^ UINT64_C(0xFA17FA17FA17FA17));
    n = 1 + (unsigned)chance(chance(4) ? 5 : WORLD_MOST_FAULTS);
    for (unsigned i = 0; i < n; i++) {
        const struct fault f = {
            .kind = draw_kind(),
            .number = i,
            .at = chance(options->n_events + options->n_events / 4 + 1),
            .lasts = chance_time(10 * MS, chance(2) ? 2 * SECOND : 200 * SECOND),
            .which = chance(UINT32_MAX),
        };
        unsigned k = n_kept;
        if (!(options->kept >> i & 1))
            continue;
        for (; k > 0 && out[k - 1].at > f.at; k--)
            out[k] = out[k - 1];
        out[k] = f;
        n_kept++;
    }
    return n_kept;
}

/* ---- processes -------------------------------------------------------------------------------------------------- */

static int daemon_body(void *arg)
{
    char *argv[] = {"epsd", "--listen", WORLD_ADDRESS, NULL};

    (void)arg;
    optind = 0;
    return epsd_main(3, argv);
}

static int worker_body(void *arg)
{
    char *argv[] = {"eps-worker", "--connect", WORLD_ADDRESS, "--device", "cpu", "--device-mem", "32MiB", NULL};

    (void)arg;
    optind = 0;
    return worker_main(7, argv);
}

static void tend(struct slot *slot, enum process_kind kind, const char *name, int (*body)(void *arg), uint64_t most_ns)
{
    if (slot->process && slot->process->alive)
        return;
    if (slot->process && slot->start_at == 0) {
        slot->start_at = world_now() + chance_time(10 * MS, most_ns);
        return;
    }
    if (world_now() < slot->start_at)
        return;
    slot->start_at = 0;
    slot->process = process_start(kind, name, body, NULL);
    if (kind == PROCESS_DAEMON && world.setting.slow_optimizer)
        slot->process->pause_ns = 500 * MS;
}

/* What a process may not do by itself. */
static void judge_deaths(void)
{
    const struct process *d = world.daemon.process, *c = world.client.process;

    if (!world.options.expected && !world.is_ending)
        for (const struct process *p = process_all; p; p = p->next)
            if (!p->alive && (p->kind != PROCESS_CLIENT || p->status))
                world_fail("%s ended with status %d, and no fault had come", p->name, p->status);
    if (world.harmless && d && !d->alive && !world.is_ending)
        world_fail("%s ended with status %d, and only its peers were at fault", d->name, d->status);
    if (world.harmless && c && !c->alive && c->status && script_in_job)
        world_fail("the client's run ended, and only workers were at fault: %s", script_error);
}

/* The client has saved the last step. */
static void begin_end(void)
{
    if (script_last_step() != (long)world.setting.n_steps)
        world_fail("the client ended well, and the last checkpoint is of step %ld", script_last_step());
    world.is_ending = true;
    world.end_at = world_now();
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
    if (daemon && daemon->alive && daemon->hung_until == NEVER && !wire_is_live(WORLD_ADDRESS "/door"))
        process_kill(daemon, -SIGKILL);
}

/* True: all have ended. */
static bool tend_all(void)
{
    struct process *client = world.client.process, *daemon = world.daemon.process;

    judge_deaths();
    replace_starved();
    kill_hung(daemon);
    if (!world.is_ending && client && !client->alive && client->status == 0)
        begin_end();
    if (world.is_ending) {
        if (daemon->alive && world_now() >= world.signalled_at + SECOND) {
            loop_signal(daemon, SIGTERM);
            world.signalled_at = world_now();
        }
        if (world_now() > world.end_at + END_S * SECOND)
            world_fail("the processes do not end");
        for (struct process *p = process_all; p; p = p->next)
            if (!daemon->alive && p->alive && p->kind == PROCESS_WORKER && p->cut)
                process_kill(p, -SIGKILL);
        return all_dead();
    }
    tend(&world.daemon, PROCESS_DAEMON, "epsd", daemon_body, 3 * SECOND);
    for (unsigned i = 0; i < world.n_workers; i++)
        tend(&world.workers[i], PROCESS_WORKER, "worker", worker_body, chance(4) ? 5 * SECOND : 90 * SECOND);
    tend(&world.client, PROCESS_CLIENT, "client", script_client, 5 * SECOND);
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
        [FAULT_BAD_NUMBERS] = PROCESS_WORKER,
    };
    return victims[kind];
}

/* Whoever has just begun to open a session gives that one up when the clock jumps: opening has a limit. Later, silence is
 * counted only while a process runs. */
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
    world.harmless = world.harmless && kinds[f->kind].is_harmless && !(f->kind == FAULT_BAD_NUMBERS && world.n_bad++);
    world.last_fault_at = until;
    world_say("fault %u: %s (%s, %.3f s)", f->number, kinds[f->kind].name, p->name, (double)f->lasts / 1e9);
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
        break;
    case FAULT_DETACH_WORKER:
    case FAULT_END_DAEMON:
        loop_signal(p, SIGTERM);
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
    case FAULT_CUT_CLIENT:
        p->cut = p->ailing = true;
        wire_cut(p);
        break;
    case FAULT_BAD_NUMBERS: /* a fenced step would be skipped, and its bits are those of no other run */
        p->spoils = !world.setting.fenced;
        break;
    case FAULT_FULL_DISK:
        host.full_until = until;
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
        process_start(PROCESS_VIEWER, "viewer", script_viewer, NULL);
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
    setenv("HWLOC_PLUGINS_PATH", "/nonexistent", 1); /* loading them would take half of the time */
    world.options = *options;
    world_setting(&world.setting, options->setting);
    if (!options->expected)
        world.setting.save_every = 1;
    world_is = &world.setting;
    world_wants = &world.options;
    world.harmless = !world.setting.no_replay;
    world.n_workers = world.setting.n_workers;
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
    if (world.harmless && world.daemon.process->status != 0)
        world_fail("the daemon ended with status %d", world.daemon.process->status);
    script_check_saved(world.setting.n_steps);
    *out = script_result;
    out->n_events = world.n_events;
}
