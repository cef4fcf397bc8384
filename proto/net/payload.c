/* Ranges follow from what is remembered of earlier messages (share, first_row, n_rows, generate, given). So
 * payload_ranges must see every message of a job, those without bytes too, and both sides must remember the same when
 * one answers: a worker has one evaluation or generation to answer at a time, and uses a slot again only after its
 * FREE. */
#include "proto/net/payload.h"

#include "proto/base/process.h"
#include "proto/model/norms.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[PAYLOAD_SEGMENTS] = {"eps-weights", "eps-inbox", "eps-data", "eps-config", "eps-stash"};

/* ---- segments --------------------------------------------------------------------------------------------------- */

static const struct plan_goal *payload_goal_of(const struct payload *p)
{
    return &p->assign.assign.goal;
}

static bool payload_trains(const struct payload *p)
{
    return payload_goal_of(p)->purpose == PLAN_TRAIN;
}

static bool generates(const struct payload *p)
{
    return payload_goal_of(p)->purpose == PLAN_GENERATE;
}

static uint32_t row_outputs(const struct payload *p)
{
    return p->data.outputs;
}

static uint64_t payload_bytes_of(const struct payload *p, enum payload_segment segment)
{
    const struct message *m = &p->assign;

    switch (segment) {
    case PAYLOAD_WEIGHTS:
        return m->assign.weights_bytes;
    case PAYLOAD_INBOX:
        return payload_trains(p) ? (1 + (uint64_t)m->assign.n_slots) * p->slot_bytes : 1;
    case PAYLOAD_DATA:
        return plan_data_bytes(payload_goal_of(p), &p->model);
    case PAYLOAD_CONFIG:
        return m->assign.config_bytes;
    case PAYLOAD_STASH:
        return m->assign.choice.host_stash ? m->assign.host_stash_bytes : 0;
    case PAYLOAD_SEGMENTS:
        break;
    }
    return 0;
}

/* The model, from the text in the config's segment. */
static int payload_read_model(struct payload *p, struct error *err)
{
    const struct segment *config = &p->segments[PAYLOAD_CONFIG];
    const struct plan_goal *goal = payload_goal_of(p);
    struct model_config c;
    char *text = malloc(config->bytes); /* a copy: the peer may write to the segment */
    int rc = text ? 0 : error_memory(err);

    if (rc)
        return rc;
    memcpy(text, config->base, config->bytes);
    rc = model_config_parse(&c, text, config->bytes, err);
    free(text);
    if (!rc)
        rc = model_init(&p->model, &c, err);
    if (!rc)
        rc = model_freeze(&p->model, p->assign.assign.freeze, model_base_of(goal->base, goal->precision), err);
    if (!rc && (p->assign.assign.n_slots > PLAN_HOST_MAX_SLOTS || goal->seq < 1 || goal->batch < 1 ||
                goal->batch % goal->n_parts != 0 || (uint64_t)goal->batch * goal->seq > 1u << 28))
        rc = error_set(err, -EPROTO, "an assignment that cannot be");
    if (rc)
        return rc;
    plan_approximate(&p->model, goal);
    p->slot_bytes = model_slot_bytes(&p->model, goal->grad);
    p->data = plan_data_of(goal, c.n_labels);
    p->given = calloc(1 + (size_t)p->assign.assign.n_slots, 1);
    return p->given ? 0 : error_memory(err);
}

int payload_attach(struct payload *p, const struct message *assign, const int *fds, unsigned n_fds, struct error *err)
{
    const unsigned n = PAYLOAD_STASH + assign->assign.choice.host_stash;
    int rc = 0;

    *p = (struct payload){.begun = true, .assign = *assign};
    if (n_fds != n) {
        for (unsigned i = 0; i < n_fds; i++)
            close(fds[i]);
        return error_set(err, -EPROTO, "an assignment with %u descriptors", n_fds);
    }
    rc = segment_attach(&p->segments[PAYLOAD_CONFIG], fds[PAYLOAD_CONFIG], assign->assign.config_bytes, SEGMENT_READ,
                        err);
    if (!rc)
        rc = payload_read_model(p, err);
    for (unsigned i = 0; i < n; i++) {
        const bool writes = i == PAYLOAD_INBOX || (i == PAYLOAD_DATA && (generates(p) || row_outputs(p) > 0));
        if (i == PAYLOAD_CONFIG)
            continue;
        if (rc || i == PAYLOAD_STASH) /* the worker's stash is on its own host */
            close(fds[i]);
        else
            rc = segment_attach(&p->segments[i], fds[i], payload_bytes_of(p, (enum payload_segment)i),
                                writes ? SEGMENT_READ_WRITE : SEGMENT_READ, err);
    }
    p->open = !rc;
    return rc;
}

/* The config's text comes first, alone: the model that it describes says how large all else is. */
int payload_begin(struct payload *p, const struct message *assign, struct error *err)
{
    *p = (struct payload){.begun = true, .assign = *assign};
    return segment_create(&p->segments[PAYLOAD_CONFIG], names[PAYLOAD_CONFIG], assign->assign.config_bytes,
                          SEGMENT_READ, err);
}

static int check_room(const struct payload *p, struct error *err)
{
    const uint64_t available = process_available_bytes();
    char need[PROCESS_BYTES_TEXT], have[PROCESS_BYTES_TEXT];
    uint64_t bytes = 0;

    for (unsigned i = 0; i < PAYLOAD_SEGMENTS; i++)
        bytes += i == PAYLOAD_CONFIG ? 0 : payload_bytes_of(p, (enum payload_segment)i);
    if (bytes <= available)
        return 0;
    return error_set(
        err, -ENOMEM,
        "a worker on another host keeps the relayed weights in that host's memory: the job needs %s there, "
        "and %s are free",
        process_format_bytes(need, bytes), process_format_bytes(have, available));
}

int payload_create(struct payload *p, struct error *err)
{
    int rc = payload_read_model(p, err);

    if (!rc)
        rc = check_room(p, err);
    for (unsigned i = 0; !rc && i < PAYLOAD_SEGMENTS; i++) {
        const uint64_t bytes = payload_bytes_of(p, (enum payload_segment)i);
        if (i != PAYLOAD_CONFIG && bytes > 0)
            rc = segment_create(&p->segments[i], names[i], bytes,
                                i == PAYLOAD_WEIGHTS ? SEGMENT_READ : SEGMENT_READ_WRITE, err);
    }
    p->open = !rc;
    return rc;
}

unsigned payload_fds(const struct payload *p, int fds[PAYLOAD_SEGMENTS])
{
    const unsigned n = PAYLOAD_STASH + p->assign.assign.choice.host_stash;

    for (unsigned i = 0; i < n; i++)
        fds[i] = p->segments[i].fd;
    return n;
}

void payload_free(struct payload *p)
{
    for (unsigned i = 0; i < PAYLOAD_SEGMENTS; i++)
        segment_close(&p->segments[i]);
    model_free(&p->model);
    free(p->given);
    *p = (struct payload){0};
}

/* ---- ranges ----------------------------------------------------------------------------------------------------- */

static int one(struct payload_range *out, enum payload_segment segment, uint64_t at, uint64_t bytes)
{
    *out = (struct payload_range){segment, at, bytes};
    return bytes > 0;
}

/* Rows first .. first+n-1 of a minibatch with n_tokens each. */
static int rows(struct payload_range *out, const struct payload *p, uint32_t buffer, uint32_t first, uint32_t n,
                uint32_t n_tokens)
{
    int k = 0;

    if (generates(p) || buffer > 1 || n_tokens < 1 || n_tokens > payload_goal_of(p)->seq || n < 1 ||
        (uint64_t)first + n > payload_goal_of(p)->batch)
        return -EPROTO;
    for (enum plan_field f = 0; f < PLAN_FIELDS; f++)
        if (plan_data_has(&p->data, f) && !plan_field_types[f].daemons)
            k += one(&out[k], PAYLOAD_DATA, p->data.buffers[buffer].at[f] + plan_field_bytes(f, first, n_tokens),
                     plan_field_bytes(f, n, n_tokens));
    return k;
}

/* What the daemon remembers of a unit, for the tokens of the share's step; of other steps, as of an evaluation,
 * nothing. */
static int norms(struct payload_range *out, const struct payload *p, const struct message *m)
{
    const struct plan_goal *goal = payload_goal_of(p);
    const struct model_unit *unit = &p->model.units[m->weights.unit];
    const uint64_t at = plan_data_norms_at(goal, &p->model, p->share.buffer, unit->first_norm_map);

    if (unit->n_norm_maps == 0 || !p->share.known || p->share.step != m->weights.version)
        return 0;
    return one(out, PAYLOAD_DATA, at, (uint64_t)unit->n_norm_maps * goal->batch * goal->seq * sizeof(uint16_t));
}

static int payload_weights(struct payload_range *out, const struct payload *p, const struct message *m)
{
    if (m->weights.unit >= p->model.n_units)
        return -EPROTO;
    const struct model_unit *unit = &p->model.units[m->weights.unit];
    const uint64_t trained = unit->n_trained * number_bytes(payload_goal_of(p)->precision),
                   bytes = model_unit_bytes(unit, payload_goal_of(p)->precision),
                   most = p->segments[PAYLOAD_WEIGHTS].bytes;
    if (bytes > most || m->weights.at > most - trained || m->weights.frozen_at > most - bytes)
        return -EPROTO;
    int k = norms(out, p, m);
    if (m->weights.at == m->weights.frozen_at)
        return k + one(&out[k], PAYLOAD_WEIGHTS, m->weights.at, bytes);
    k += one(&out[k], PAYLOAD_WEIGHTS, m->weights.at, trained);
    return k + one(&out[k], PAYLOAD_WEIGHTS, m->weights.frozen_at + trained, bytes - trained);
}

static int payload_contribution(struct payload_range *out, struct payload *p, const struct message *m)
{
    const struct contribution_name *name = &m->contribution.name;
    const uint32_t slot = m->contribution.slot;

    if (!payload_trains(p) || name->visit >= p->model.n_visits || slot > p->assign.assign.n_slots || p->given[slot])
        return -EPROTO;
    const struct model_unit *unit = &p->model.units[p->model.visits[name->visit]];
    if (name->slice >= unit->n_slices)
        return -EPROTO;
    p->given[slot] = 1;
    return one(out, PAYLOAD_INBOX, slot * (uint64_t)p->slot_bytes,
               model_slice_of(unit, name->slice).n * number_bytes(payload_goal_of(p)->grad));
}

/* Remembered once its rows are right: WEIGHTS of its step bring norms for them. */
static int share(struct payload_range *out, struct payload *p, const struct message *m)
{
    const int k = rows(out, p, m->share.buffer, 0, payload_goal_of(p)->batch, m->share.n_tokens);

    if (k > 0)
        p->share = (struct payload_share){m->share.step, m->share.buffer, true};
    return k;
}

static int payload_evaluate(struct payload_range *out, struct payload *p, const struct message *m)
{
    p->first_row = m->evaluate.first_row;
    p->n_rows = m->evaluate.n_rows;
    return rows(out, p, m->evaluate.buffer, p->first_row, p->n_rows, m->evaluate.n_tokens);
}

static int payload_generate(struct payload_range *out, struct payload *p, const struct message *m)
{
    const struct plan_goal *goal = payload_goal_of(p);
    int k = 0;

    if (!generates(p) || m->generate.n_rows > goal->batch)
        return -EPROTO;
    for (uint32_t i = 0; i < m->generate.n_rows; i++) {
        const struct plan_tokens *row = &m->generate.rows[i];
        if (row->n > 0 && (uint64_t)row->first + row->n > goal->seq)
            return -EPROTO;
        if (row->source > (goal->source > 0 ? goal->seq : 0))
            return -EPROTO;
        const uint32_t first = model_has_tails(&p->model) && row->n > 0 ? 0 : row->first; /* it may run all again */
        k += one(&out[k], PAYLOAD_DATA, ((uint64_t)i * goal->seq + first) * sizeof(uint32_t),
                 (row->first - first + row->n) * sizeof(uint32_t));
        k += one(&out[k], PAYLOAD_DATA, plan_generate_sources(goal) + (uint64_t)i * goal->seq * sizeof(uint32_t),
                 row->source * sizeof(uint32_t));
    }
    p->generate = *m;
    return k;
}

/* Of the rows that the last GENERATE ran; others have no logits. */
static int generated(struct payload_range *out, const struct payload *p)
{
    const uint64_t first = plan_generate_logits(payload_goal_of(p)), row = p->model.config.vocabulary * sizeof(float);
    int k = 0;

    if (!generates(p))
        return -EPROTO;
    for (uint32_t i = 0; i < p->generate.generate.n_rows; i++)
        if (p->generate.generate.rows[i].n > 0)
            k += one(&out[k], PAYLOAD_DATA, first + i * row, row);
    return k;
}

/* Messages without bytes are none of the other cases. */
static int ranges(struct payload_range *out, struct payload *p, const struct message *m)
{
    const uint64_t outputs = row_outputs(p) * sizeof(float);

    if (m->kind == MESSAGE_WEIGHTS)
        return payload_weights(out, p, m);
    if (m->kind == MESSAGE_CONTRIBUTION)
        return payload_contribution(out, p, m);
    if (m->kind == MESSAGE_SHARE)
        return share(out, p, m);
    if (m->kind == MESSAGE_EVALUATE)
        return payload_evaluate(out, p, m);
    if (m->kind == MESSAGE_EVALUATED)
        return generates(p) ? -EPROTO
                            : one(out, PAYLOAD_DATA, p->data.logits + p->first_row * outputs, p->n_rows * outputs);
    return m->kind == MESSAGE_GENERATE ? payload_generate(out, p, m) : generated(out, p);
}

int payload_ranges(struct payload_range out[PAYLOAD_MAX_RANGES], struct payload *p, const struct message *m,
                   const char **why)
{
    static const bool has_bytes[MESSAGE_KINDS] = {
        [MESSAGE_WEIGHTS] = true,   [MESSAGE_CONTRIBUTION] = true, [MESSAGE_SHARE] = true,
        [MESSAGE_EVALUATE] = true,  [MESSAGE_EVALUATED] = true,    [MESSAGE_GENERATE] = true,
        [MESSAGE_GENERATED] = true,
    };
    int n = 0;

    *why = NULL;
    if (m->kind == MESSAGE_ASSIGN)
        return one(out, PAYLOAD_CONFIG, 0, m->assign.config_bytes);
    if (m->kind == MESSAGE_FREE && p->open && m->free.slot <= p->assign.assign.n_slots)
        p->given[m->free.slot] = 0;
    if (!has_bytes[m->kind])
        return 0;
    n = p->open ? ranges(out, p, m) : -EPROTO;
    if (n < 0)
        *why = p->open ? "bytes that are not of its job, or of a slot in use" : "bytes without a job";
    for (int i = 0; i < n; i++)
        assert(out[i].at + out[i].bytes <= p->segments[out[i].segment].bytes);
    return n;
}
