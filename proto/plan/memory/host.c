#include "proto/plan/memory/host.h"

#include "proto/base/process.h"
#include "proto/model/checkpoint.h"
#include "proto/model/weights.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    MIN_SLOTS = 2,
    MAX_SLOTS = 4,      /* of an inbox, without the reserved one, unless contributions wait in it: 64 MiB in transfer */
    FORWARD_SHARE = 3,  /* of a step's computation: at most 1/3, less if backward recomputes */
    ACCUMULATORS = 2,   /* adamw with parts: for the unit being contributed, and for the one above, being updated */
    NO_INBOX = 64,      /* bytes without contributions: a segment is never empty */
    SLACK_DIVISOR = 50, /* uncounted memory: 1/50 of all bytes */
    SLACK_PROCESS_BYTES = 8 << 20, /* and for each process, its code and stacks */
};

/* The minimum of slots: for all slices of the largest unit, within limits. */
static void size_inbox(struct plan_host *out, const struct model *model, const struct plan_host_setting *s)
{
    out->n_slots = MIN_SLOTS;
    for (uint32_t u = 0; u < model->n_units; u++)
        if (model->units[u].n_slices > out->n_slots)
            out->n_slots = model->units[u].n_slices;
    if (out->n_slots > MAX_SLOTS)
        out->n_slots = MAX_SLOTS;
    out->slot_bytes = model_slot_bytes(model, s->goal.grad);
    out->inbox_bytes = s->goal.purpose == PLAN_TRAIN ? (1 + out->n_slots) * out->slot_bytes : NO_INBOX;
}

/* Where a unit's trained elements begin among the model's, or where the last ones end. */
static uint64_t trained_before(const struct model *model, uint32_t unit)
{
    return unit < model->n_units ? model->units[unit].trained_offset : model->trained_n;
}

void plan_own(struct plan_own *out, const struct model *model, uint32_t own_first, uint32_t n_own)
{
    const uint32_t first = n_own ? own_first : 0, end = n_own ? own_first + n_own : model->n_units;
    uint64_t n_tied = 0, largest = 0;
    struct plan_own o = {.first = first, .end = end};

    assert(first < end && end <= model->n_units);
    assert(model->visits[model->layers[0].n_visits - 1] == model->layers[0].n_visits - 1); /* plan_keeps */
    for (uint32_t u = first; u < end; u++) {
        const uint64_t n = model_rounded(model->units[u].n_trained);
        n_tied += model->units[u].n_visits > 1 ? n : 0;
        largest = largest < n ? n : largest;
    }
    for (uint32_t u = 0; u < model->n_units; u++) {
        const bool owns = u >= first && u < end, keeps = plan_keeps(&o, model, u);
        const uint64_t n = model_rounded(model->units[u].n), replay_n = model->units[u].n_trained > 0 ? n : 0;
        o.weights_n += owns ? n : 0;
        o.replay_before += u < first ? replay_n : 0;
        o.replay_n += owns ? replay_n : 0;
        o.tables_n += keeps && !owns ? n : 0;
        o.tables_replay_n += keeps && !owns ? replay_n : 0;
        o.n_foreign += !keeps;
        o.slot_n = keeps || o.slot_n > n ? o.slot_n : n;
    }
    o.trained_offset = trained_before(model, first);
    o.trained_n = trained_before(model, end) - o.trained_offset;
    o.tied_bytes = n_tied * sizeof(float);
    o.accumulator_bytes = largest * sizeof(float);
    *out = o;
}

/* The embedding's tables are the first units. */
bool plan_keeps(const struct plan_own *own, const struct model *model, uint32_t unit)
{
    return (unit >= own->first && unit < own->end) || unit < model->layers[0].n_visits;
}

/* Among the model's units, `before` elements precede it, and `before_own` the first own unit. */
static uint64_t place(const struct plan_own *own, uint32_t unit, uint64_t own_n, uint64_t before, uint64_t before_own)
{
    if (unit < own->first)
        return own_n + before;
    return unit < own->end ? before - before_own : before; /* tables after own units: own_n of these precede them */
}

uint64_t plan_weights_at(const struct plan_own *own, const struct model *model, uint32_t unit, uint32_t buffer)
{
    const struct model_unit *u = &model->units[unit];

    assert(plan_keeps(own, model, unit) && (!buffer || u->n_trained > 0));
    if (!buffer)
        return place(own, unit, own->weights_n, u->offset, model->units[own->first].offset);
    return plan_weights_n(own, 0) +
           place(own, unit, own->replay_n, u->replay_offset - model->segment_n, own->replay_before);
}

uint64_t plan_weights_n(const struct plan_own *own, uint32_t n_ring)
{
    return own->weights_n + own->tables_n + n_ring * own->slot_n;
}

uint64_t plan_replay_n(const struct plan_own *own)
{
    return own->replay_n + own->tables_replay_n;
}

uint32_t plan_ring_slots(const struct plan_own *own, uint32_t n_parts)
{
    return own->n_foreign < 2 * n_parts + 1 ? own->n_foreign : 2 * n_parts + 1;
}

/* The end of a host's units that begin at `first`, of which `n_left` are trained; n_after hosts come after it. */
static uint32_t find_end(const struct model *model, uint32_t first, uint32_t *n_left, uint32_t n_hosts,
                         uint32_t n_after)
{
    const uint64_t share = model->trained_n / n_hosts * (n_hosts - n_after);
    bool any = false;
    uint32_t u = first;

    for (; n_after && u < model->n_units; u++) {
        const struct model_unit *unit = &model->units[u];
        const bool is_full = unit->trained_offset + unit->n_trained / 2 >= share; /* most of the unit is beyond it */
        if (unit->n_trained && any && (is_full || *n_left <= n_after))
            return u;
        any |= unit->n_trained > 0;
        *n_left -= unit->n_trained > 0;
    }
    return model->n_units;
}

int plan_divide(uint32_t *own_first, uint32_t *n_own, const struct model *model, uint32_t n_hosts, uint32_t host,
                struct error *err)
{
    uint32_t n_left = model->n_units - model->n_frozen_units, end = 0;

    assert(host < n_hosts);
    if (n_left < n_hosts)
        return error_set(err, -EINVAL,
                         "a model of %u trained units cannot be divided among %u hosts; start %u or fewer", n_left,
                         n_hosts, n_left);
    for (uint32_t h = 0; h <= host; h++) {
        *own_first = end;
        end = find_end(model, end, &n_left, n_hosts, n_hosts - 1 - h);
    }
    *n_own = end - *own_first;
    return 0;
}

/* Hosts are at most as many as parts, so several hosts have several parts, of which one host may have but one. */
static uint32_t count_accumulators(const struct plan_host_setting *s)
{
    const bool several = s->goal.n_parts > 1 || s->n_own > 0;

    return s->goal.adamw && several && !s->goal.fenced ? ACCUMULATORS : 0;
}

uint64_t plan_host_accumulators(const struct model *model, const struct plan_host_setting *s)
{
    struct plan_own own;

    plan_own(&own, model, s->own_first, s->n_own);
    return count_accumulators(s) * own.accumulator_bytes;
}

/* Moments, and sums: with fenced commit one sum per unit, which also serves tied units and parts. */
static void add_training(struct plan_host *out, const struct model *model, const struct plan_host_setting *s)
{
    struct plan_own own;

    plan_own(&own, model, s->own_first, s->n_own);
    const uint64_t n = own.trained_n;
    out->bytes[LEDGER_MASTER] = s->goal.precision == NUMBER_BF16 ? n * sizeof(int16_t) : 0;
    out->bytes[LEDGER_FIRST_MOMENT] = n * number_bytes(s->goal.moments);
    out->bytes[LEDGER_SECOND_MOMENT] = n * number_bytes(s->goal.moments);
    if (s->goal.fenced) {
        out->bytes[LEDGER_SUM] = n * sizeof(float);
        return;
    }
    out->n_accumulators = count_accumulators(s);
    out->bytes[LEDGER_TIED] = own.tied_bytes;
    out->bytes[LEDGER_ACCUMULATORS] = out->n_accumulators * own.accumulator_bytes;
}

/* Maximum bytes of a file's header:
 * {"__metadata__":{"format":"pt"},"NAME":{"dtype":"F32","shape":[R,C],"data_offsets":[B,E]},...}. A name has at most 65
 * characters, numbers 20, and 52 surround them. */
static uint64_t header_bytes(uint64_t n_tensors)
{
    enum { FIXED = 64, OF_A_TENSOR = 200 };
    return FIXED + n_tensors * OF_A_TENSOR;
}

void plan_host_files(struct plan_host_files *out, const struct model *model)
{
    const uint64_t n_tensors = model->n_tensors;
    const uint64_t n_moments = 1 + 2 * (uint64_t)model->n_trained_tensors; /* counts of updates, then m and v */
    uint64_t n_runs = 0, n_trained_runs = 0;

    /* A piece begins at most one run; a run that is full ends one. */
    for (uint32_t p = 0; p < model->n_pieces; p++)
        n_trained_runs += !model->tensors[model->pieces[p].tensor].frozen;
    for (uint32_t u = 0; u < model->n_units; u++) {
        n_runs += model->units[u].n_pieces + model->units[u].n * sizeof(float) / PLAN_HOST_RUN_BYTES;
        n_trained_runs += model->units[u].n_trained * sizeof(float) / PLAN_HOST_RUN_BYTES;
    }
    *out =
        (struct plan_host_files){.weights_header = header_bytes(n_tensors), .moments_header = header_bytes(n_moments)};
    out->weights_runs = n_runs + 1 + out->weights_header / PLAN_HOST_RUN_BYTES;
    out->moments_runs =
        2 * n_trained_runs + 2 + (out->moments_header + n_tensors * sizeof(uint64_t)) / PLAN_HOST_RUN_BYTES;
    out->bytes = out->weights_header + out->moments_header + /* offsets, and one more of each file: */
                 (n_tensors + 1 + n_moments + 1 + /* updates: */ n_tensors) * sizeof(uint64_t) +
                 (out->weights_runs + out->moments_runs) * sizeof(struct checkpoint_run);
}

uint64_t plan_load_bytes(const struct model *model, uint32_t n_files, uint64_t header_bytes)
{
    const uint64_t places = reserve_rounded((model->n_tensors + 1) * sizeof(uint32_t)) +
                            reserve_rounded((model->n_pieces + 1) * sizeof(uint32_t));
    const uint64_t seen = reserve_rounded(2 * (uint64_t)model->n_tensors); /* moments */

    return n_files == 0 ? 0 : places + seen + weights_memory(model, n_files, header_bytes);
}

/* Tables of units and visits, and the job's texts. */
static uint64_t table_bytes(const struct model *model, const struct plan_host_setting *s)
{
    struct plan_host_files files;
    uint64_t bytes = ledger_table(s->config_bytes) + ledger_table(s->side_bytes) + ledger_table(s->files_bytes) +
                     ledger_table(s->hosts_tables) + ledger_table(plan_load_bytes(model, s->n_files, s->header_bytes));

    bytes += ledger_table(model->n_visits * sizeof(uint32_t));             /* slices of each visit */
    bytes += ledger_table(model->n_units * sizeof(double));                /* a fenced step's squares */
    bytes += ledger_table(model->n_units * sizeof(uint32_t));              /* number of its folds */
    bytes += ledger_table((model->n_frozen_units + 1) * sizeof(uint32_t)); /* frozen units */
    if (s->replay)
        bytes += ledger_table(model->n_units); /* which of its two buffers is current */
    if (s->goal.purpose == PLAN_TRAIN) {
        bytes += ledger_table(model->n_units * sizeof(float *));  /* where each unit's sum is */
        bytes += ledger_table(model->n_units * sizeof(uint64_t)); /* number of its updates */
        plan_host_files(&files, model);
        bytes += ledger_table(files.bytes);
        bytes += ledger_table(model->n_units * (uint64_t)PLAN_HOST_SAVES); /* flags of each save in progress */
        if (s->goal.precision != NUMBER_FP32 || s->goal.moments != NUMBER_FP32)
            bytes += PLAN_HOST_RUN_BYTES;
    }
    return bytes;
}

static void add_weights(struct plan_host *out, const struct model *model, const struct plan_host_setting *s)
{
    const size_t value = number_bytes(s->goal.precision);
    struct plan_own own;

    plan_own(&own, model, s->own_first, s->n_own);
    out->n_ring = plan_ring_slots(&own, s->own_parts);
    out->bytes[LEDGER_WEIGHTS] = plan_weights_n(&own, out->n_ring) * value;
    out->bytes[LEDGER_REPLAY] = s->replay ? plan_replay_n(&own) * value : 0;
}

void plan_host(struct plan_host *out, const struct model *model, const struct plan_host_setting *s)
{
    *out = (struct plan_host){.n_workers = s->n_workers < s->goal.n_parts ? s->n_workers : s->goal.n_parts};
    size_inbox(out, model, s);
    out->replay = s->replay ? PLAN_REPLAY_ON : PLAN_REPLAY_NONE;
    add_weights(out, model, s);
    out->bytes[LEDGER_INBOX] = out->n_workers * out->inbox_bytes + s->hosts_bytes;
    out->bytes[LEDGER_STASH] = s->host_stash_bytes;
    out->bytes[LEDGER_DATA] = plan_data_bytes(&s->goal, &model->config);
    out->bytes[LEDGER_OTHER] = table_bytes(model, s);
    if (s->goal.purpose == PLAN_TRAIN)
        add_training(out, model, s);
    for (int c = 0; c < LEDGER_CATEGORIES; c++)
        out->total += out->bytes[c];
}

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

    if (s->goal.purpose != PLAN_TRAIN || s->goal.fenced)
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
        return "replay off: a fenced commit needs none";
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
    const uint64_t parts = (s->goal.n_parts + n_workers - 1) / n_workers;
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
    const uint64_t a_slot = host->n_workers * host->slot_bytes; /* one in every inbox */
    uint64_t n;

    if (s->goal.purpose != PLAN_TRAIN || !s->beside)
        return;
    n = wanted_slots(model, s, host->n_workers);
    n = n < PLAN_HOST_MAX_SLOTS ? n : PLAN_HOST_MAX_SLOTS;
    n = n > host->n_slots ? n - host->n_slots : 0;
    n = n < half_of_rest(host, room) / a_slot ? n : half_of_rest(host, room) / a_slot;
    host->n_slots += (uint32_t)n;
    host->inbox_bytes += n * host->slot_bytes;
    host->bytes[LEDGER_INBOX] += n * a_slot;
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

struct plan_data plan_data_of(uint32_t batch, uint32_t seq, uint32_t n_labels)
{
    const uint64_t field = (uint64_t)batch * seq * sizeof(uint32_t),
                   rows = n_labels ? batch * sizeof(struct plan_row) : 0;
    struct plan_data out = {0};

    for (int i = 0; i < 2; i++) {
        out.buffers[i].ids = out.bytes;
        out.buffers[i].labels = out.bytes + field;
        out.buffers[i].rows = out.bytes + 2 * field;
        out.bytes += 2 * field + rows;
    }
    out.logits = out.bytes;
    out.bytes += (uint64_t)batch * n_labels * sizeof(float);
    return out;
}

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

uint64_t plan_generate_logits(uint32_t batch, uint32_t seq)
{
    return rounded((uint64_t)batch * seq * sizeof(uint32_t));
}

uint64_t plan_data_bytes(const struct plan_goal *goal, const struct model_config *config)
{
    if (goal->purpose != PLAN_GENERATE)
        return plan_data_of(goal->batch, goal->seq, config->n_labels).bytes;
    return plan_generate_logits(goal->batch, goal->seq) +
           rounded((uint64_t)goal->batch * config->vocabulary * sizeof(float));
}
