/* What is drawn from numbers: models and how they are trained, with what the planner is told of their machines, and a
 * seed's faults. */
#include "tests/system/world/world.h"

#include "eps/job/job.h"
#include "proto/plan/memory/room.h"
#include "proto/operation/backend.h"
#include "proto/plan/memory/host.h"
#include "proto/plan/search.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* A batch has as many rows in each part, and a host at least one part and one unit. Half of the models have more units
 * than a host has slots for those of others. */
static void make_for_hosts(struct world_setting *s, unsigned number, unsigned n)
{
    s->n_layers = number / 24 == 1 ? 9 : 2 + number / 2 % 2;
    s->n_parts = n + number % 3;
    s->batch = s->n_parts > 4 ? s->n_parts : 2 * s->n_parts;
    s->n_workers = 1 + number / 3 % 2;
    s->no_replay = false; /* they always replay, unless fenced */
}

/* Blocks of several layers are fewer, so that a model has about as many units; those that differ recur. */
static void make_of_family(struct world_setting *s, unsigned number)
{
    static const struct {
        const char *name;
        unsigned n_layers, n_more; /* of a block; blocks */
    } families[] = {{"alternating", 1, 3}, {"chunked", 5, 0}, {"experts", 9, 0}};
    const unsigned which = number / 5 % 3;

    s->family = families[which].name;
    s->n_layers = (s->n_layers + families[which].n_layers - 1) / families[which].n_layers + families[which].n_more;
}

void world_setting(struct world_setting *out, unsigned number, unsigned for_hosts)
{
    static const unsigned parts[] = {1, 2, 4}, workers[] = {1, 3, 2, 3};

    *out = (struct world_setting){
        .n_layers = 1 + number / 2 % 2,
        .vocabulary = 32,
        .batch = 4,
        .seq = 8,
        .n_parts = parts[number % 3],
        .n_workers = workers[number / 3 % 4],
        .n_hosts = 1,
        .n_steps = 3 + number % 4,
        .save_every = 1 + number / 5 % 3,
        .adamw = number % 4 != 3,
        .fenced = number % 8 == 6,
        .folded = number % 8 == 7 && for_hosts == 1,
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
    out->checks_memory = number % 3 < 2;
    if (out->n_parts < out->n_workers)
        out->n_parts = 4;
    if (for_hosts > 1)
        make_for_hosts(out, number, for_hosts);
    else if (out->fenced || out->folded)
        out->groups = out->n_workers > 1 ? 1 : 2;
    out->sparse = number % 3 == 2 && for_hosts == 1;
    out->audit_every = number % 5 < 2 && for_hosts == 1 ? 1 + number / 5 % 2 : 0;
    if (number % 5 == 3)
        make_of_family(out, number);
    else if (number % 7 < 3 && for_hosts == 1)
        out->n_layers = 3, out->drop_layers = 0.5;
    else if (number % 3 == 1 && for_hosts > 1)
        out->n_entries = 3 * out->batch * out->seq / 2;
    else if (number % 7 < 5 && for_hosts == 1)
        out->n_layers = 3, out->orders = true;
}

void world_order(struct model_order *out, uint64_t step)
{
    out->n = world_is->orders ? world_is->n_layers : 0;
    for (uint32_t i = 0; i < out->n; i++)
        out->blocks[i] = (uint16_t)((i + step) % out->n);
}

/* The CPU device stands in for one with a memory and queues of its own. */
const struct plan_backend *__real_plan_backend_find(const char *name);
const struct plan_backend *__wrap_plan_backend_find(const char *name);

const struct plan_backend *__wrap_plan_backend_find(const char *name)
{
    static struct plan_backend beside;
    const struct plan_backend *backend = __real_plan_backend_find(name);

    if (!backend || !world_is->beside)
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
    if (!world_is->few_slots)
        __real_plan_host_add_slots(out, model, s, room);
}

void __wrap_plan_host_add_replay(struct plan_host *out, struct plan_host_setting *s, const struct model *model,
                                 const struct plan_room *room)
{
    if (world_is->no_replay)
        out->replay = PLAN_REPLAY_NO_ROOM;
    else
        __real_plan_host_add_replay(out, s, model, room);
}

/* Devices with memory for as many parts at a time. */
int __real_plan_search(struct plan *out, const struct model *model, const struct plan_setting *setting,
                       const struct plan_wish *wish, const struct profile *profile, uint64_t budget, struct error *err);
int __wrap_plan_search(struct plan *out, const struct model *model, const struct plan_setting *setting,
                       const struct plan_wish *wish, const struct profile *profile, uint64_t budget, struct error *err);

int __wrap_plan_search(struct plan *out, const struct model *model, const struct plan_setting *setting,
                       const struct plan_wish *wish, const struct profile *profile, uint64_t budget, struct error *err)
{
    const int rc = __real_plan_search(out, model, setting, wish, profile, budget, err);
    const bool divides = setting->goal.purpose == PLAN_TRAIN && world_is->groups > 0 &&
                         world_is->groups < setting->share_rows / setting->part_rows;

    if (rc == 0 && divides) {
        struct plan_choice choice = out->choice;
        choice.group_parts = world_is->groups;
        plan_lay_out(out, model, setting, &choice);
    }
    return rc;
}

/* The same for devices, once the job has begun. */
int __real_job_plan_seat(struct plan *out, const struct job_seat *seat, const struct peer *worker, uint32_t n_parts,
                         struct error *err);
int __wrap_job_plan_seat(struct plan *out, const struct job_seat *seat, const struct peer *worker, uint32_t n_parts,
                         struct error *err);

int __wrap_job_plan_seat(struct plan *out, const struct job_seat *seat, const struct peer *worker, uint32_t n_parts,
                         struct error *err)
{
    const struct world_setting *s = world_is;
    const unsigned of_host = (s->n_parts + s->n_hosts - 1) / s->n_hosts;

    if (s->small_devices && n_parts > (of_host + s->n_workers - 1) / s->n_workers)
        return error_set(err, -ENOSPC, "no memory for %u parts", n_parts);
    return __real_job_plan_seat(out, seat, worker, n_parts, err);
}

static const struct {
    const char *name;
    unsigned weight;
    bool is_harmless; /* to the client's run: only time is lost */
    bool needs_hosts;
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
    [FAULT_PAUSE_CLIENT] = {"pause the client", 5, true},
    [FAULT_BAD_NUMBERS] = {"spoil a contribution", 5, true},
    [FAULT_DAMAGE] = {"change a contribution", 5, true},
    [FAULT_MISREAD] = {"change weights", 5, false},
    [FAULT_RIVAL] = {"start a rival", 4, true},
    [FAULT_FULL_DISK] = {"fill the disk", 5, true},
    [FAULT_NO_MEMORY] = {"refuse an allocation", 5, false},
    [FAULT_SUSPEND] = {"suspend the machine", 4, true},
    [FAULT_VIEWER] = {"start a viewer", 6, true},
    [FAULT_CUT_HOST] = {"cut a host off", 2, false, true},
};

const char *world_fault_name(enum fault_kind kind)
{
    return kinds[kind].name;
}

bool world_fault_is_harmless(enum fault_kind kind)
{
    return kinds[kind].is_harmless;
}

static enum fault_kind draw_kind(bool has_hosts)
{
    unsigned sum = 0, at;

    for (unsigned k = 0; k < FAULT_KINDS; k++) {
        assert(kinds[k].weight > 0);
        sum += kinds[k].needs_hosts && !has_hosts ? 0 : kinds[k].weight;
    }
    at = (unsigned)chance(sum);
    for (unsigned k = 0; k < FAULT_KINDS; k++) {
        const unsigned weight = kinds[k].needs_hosts && !has_hosts ? 0 : kinds[k].weight;
        if (at < weight)
            return (enum fault_kind)k;
        at -= weight;
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
            .kind = draw_kind(options->n_hosts > 1),
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
