/* Replay is asked for before slots are added: it saves the work of a lost worker, while slots only hide a slow
 * optimizer, and would leave no room for it. They take half of the rest, because what the ledger does not count is an
 * estimate.
 *
 * plan_host_fits must have held before: then no difference below is negative. */
#include "proto/plan/memory/room.h"

#include "proto/base/block_sum.h"
#include "proto/base/process.h"

#include <stdio.h>
#include <string.h>

enum {
    FORWARD_SHARE = 3,             /* forward is at most 1/3 of a step's computation, less if backward recomputes */
    SLACK_DIVISOR = 50,            /* uncounted memory: 1/50 of all bytes */
    SLACK_PROCESS_BYTES = 8 << 20, /* uncounted memory of each process: its code and stacks */
};

uint64_t plan_host_slack(uint64_t bytes, uint32_t n_workers)
{
    return bytes / SLACK_DIVISOR + (1 + n_workers) * (uint64_t)SLACK_PROCESS_BYTES;
}

bool plan_host_fits(const struct plan_host *host, const struct plan_room *room)
{
    const uint64_t all = host->total + room->arenas;

    return host->total <= room->cap && all + plan_host_slack(all, host->n_workers) <= room->available;
}

void plan_host_add_replay(struct plan_host *host, struct plan_host_setting *s, const struct model *model,
                          const struct plan_room *room)
{
    struct plan_host_setting with = *s;
    struct plan_host other;

    if (s->goal.purpose != PLAN_TRAIN || plan_updates_last(&s->goal))
        return;
    with.replay = true;
    plan_host(&other, model, &with);
    if (plan_host_fits(&other, room))
        *host = other, *s = with;
    else
        host->replay = other.total > room->cap ? PLAN_REPLAY_OVER_CAP : PLAN_REPLAY_NO_ROOM;
}

const char *plan_replay_text(enum plan_replay replay)
{
    switch (replay) {
    case PLAN_REPLAY_NONE:
        return "replay off: weights stand until the step is folded";
    case PLAN_REPLAY_ON:
        return "replay on";
    case PLAN_REPLAY_NO_ROOM:
        return "replay off: no room in free memory";
    case PLAN_REPLAY_OVER_CAP:
        return "replay off: no room in --host-mem";
    }
    return "";
}

static uint64_t wanted_slots(const struct model *model, const struct plan_host_setting *s, uint32_t n_workers)
{
    const uint64_t parts = (plan_host_parts(s) + n_workers - 1) / n_workers;
    uint64_t n = 0, most = 0;

    for (uint32_t visit = 0; visit < model->n_visits; visit++) {
        const uint64_t slices = model->units[model->visits[visit]].n_slices;
        n += slices * parts;
        most = most < slices ? slices : most;
    }
    return (n + FORWARD_SHARE - 1) / FORWARD_SHARE + most;
}

static uint64_t half_of_rest(const struct plan_host *host, const struct plan_room *room)
{
    const uint64_t all = host->total + room->arenas, taken = all + plan_host_slack(all, host->n_workers);
    const uint64_t of_cap = room->cap - host->total, free = room->available - taken;

    return (of_cap < free ? of_cap : free) / 2;
}

void plan_host_add_slots(struct plan_host *host, const struct model *model, const struct plan_host_setting *s,
                         const struct plan_room *room)
{
    const uint64_t sum = s->goal.checks_memory ? sizeof(struct block_sum) : 0;
    const uint64_t a_slot = host->n_workers * (host->slot_bytes + sum); /* one in every inbox */
    uint64_t n;

    if (s->goal.purpose != PLAN_TRAIN || !s->beside)
        return;
    n = wanted_slots(model, s, host->n_workers);
    n = n < PLAN_HOST_MAX_SLOTS ? n : PLAN_HOST_MAX_SLOTS;
    n = n > host->n_slots ? n - host->n_slots : 0;
    n = n < half_of_rest(host, room) / a_slot ? n : half_of_rest(host, room) / a_slot;
    host->n_slots += (uint32_t)n;
    host->inbox_bytes += n * host->slot_bytes;
    host->inbox_sums += n * sum;
    host->bytes[LEDGER_INBOX] += host->n_workers * n * host->slot_bytes;
    host->bytes[LEDGER_CHECKSUMS] += host->n_workers * n * sum;
    host->total += n * a_slot;
}

uint64_t plan_host_left(const struct plan_host *host, uint64_t available)
{
    const uint64_t rest = host->total - host->bytes[LEDGER_STASH];
    const uint64_t taken = rest + plan_host_slack(available, host->n_workers);

    return available > taken ? available - taken : 0;
}

void plan_host_name_terms(char *text, size_t n, const struct plan_host *host, uint64_t arenas)
{
    uint64_t bytes[LEDGER_CATEGORIES + 1];
    char bytes_text[PROCESS_BYTES_TEXT];
    uint32_t named = 0;
    size_t used = 0;

    memcpy(bytes, host->bytes, sizeof host->bytes);
    bytes[LEDGER_CATEGORIES] = arenas;
    for (int i = 0; i < PLAN_NAMED_TERMS && used < n; i++) {
        const int at = plan_largest(bytes, LEDGER_CATEGORIES + 1, &named);
        if (at < 0)
            return;
        used += (size_t)snprintf(text + used, n - used, "%s%s %s", i ? ", " : "",
                                 at < LEDGER_CATEGORIES ? ledger_name((enum ledger_category)at) : "CPU workers",
                                 process_format_bytes(bytes_text, bytes[at]));
    }
}
