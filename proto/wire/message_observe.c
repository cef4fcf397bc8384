/* The fields of observers' messages: status, memory, units, workers, recent steps, the queue. */
#include "proto/wire/message_internal.h"

static void pages_fields(struct wire *w, struct pages *pages)
{
    wire_flag(w, &pages->known);
    wire_u64(w, &pages->resident);
    wire_u64(w, &pages->locked);
    wire_u64(w, &pages->huge);
    wire_u32_in(w, &pages->n_nodes, 0, PAGES_MAX_NODES);
    for (uint32_t i = 0; !w->why && i < pages->n_nodes; i++)
        wire_u64(w, &pages->nodes[i]);
}

void message_status_body(struct wire *w, struct message *m)
{
    wire_u32(w, &m->status.n_workers);
}

void message_status_reply_body(struct wire *w, struct message *m)
{
    m->status_reply.state = wire_choice(w, m->status_reply.state, STATE_IDLE, STATE_ENDING);
    wire_u64(w, &m->status_reply.step);
    wire_u64(w, &m->status_reply.n_steps);
    wire_u64(w, &m->status_reply.n_parameters);
    wire_u32(w, &m->status_reply.n_workers);
    wire_u32(w, &m->status_reply.n_foreign);
    wire_u32(w, &m->status_reply.n_elsewhere);
    wire_u32(w, &m->status_reply.lacks);
    wire_u32(w, &m->status_reply.n_idle);
    wire_u32(w, &m->status_reply.n_threads);
    wire_u32(w, &m->status_reply.pid);
    wire_u32(w, &m->status_reply.uid);
    wire_u32(w, &m->status_reply.job);
    wire_u32(w, &m->status_reply.n_queued);
    wire_f64(w, &m->status_reply.loss);
    wire_u64(w, &m->status_reply.saved_step);
    wire_flag(w, &m->status_reply.saving);
    wire_flag(w, &m->status_reply.waits);
    wire_u64(w, &m->status_reply.n_audits);
    wire_u64(w, &m->status_reply.n_redone);
    m->status_reply.precision = message_number_field(w, m->status_reply.precision);
    message_commit_field(w, &m->status_reply.fenced, &m->status_reply.folded);
    wire_text(w, m->status_reply.model, sizeof m->status_reply.model);
    wire_text(w, m->status_reply.out, sizeof m->status_reply.out);
    wire_text(w, m->status_reply.trouble, sizeof m->status_reply.trouble);
}

void message_memory_body(struct wire *w, struct message *m)
{
    wire_flag(w, &m->memory.pages);
}

void message_memory_reply_body(struct wire *w, struct message *m)
{
    wire_flag(w, &m->memory_reply.last);
    wire_u32(w, &m->memory_reply.worker);
    wire_u32(w, &m->memory_reply.pid);
    wire_text(w, m->memory_reply.device, sizeof m->memory_reply.device);
    wire_text(w, m->memory_reply.host, sizeof m->memory_reply.host);
    wire_u64(w, &m->memory_reply.budget);
    message_ledger_fields(w, &m->memory_reply.ledger);
    for (unsigned i = 0; i < LEDGER_CATEGORIES; i++)
        wire_u64(w, &m->memory_reply.planned[i]);
    pages_fields(w, &m->memory_reply.pages);
}

void message_ledger_body(struct wire *w, struct message *m)
{
    message_ledger_fields(w, &m->ledger);
}

void message_units_body(struct wire *w, struct message *m)
{
    wire_u32(w, &m->units.first);
}

void message_units_reply_body(struct wire *w, struct message *m)
{
    wire_u32(w, &m->units_reply.first);
    wire_u32(w, &m->units_reply.n_units);
    wire_u64(w, &m->units_reply.version);
    wire_u32_in(w, &m->units_reply.n, 0, MESSAGE_PAGE_UNITS);
    for (uint32_t i = 0; !w->why && i < m->units_reply.n; i++)
        m->units_reply.units[i] =
            (uint8_t)wire_choice(w, m->units_reply.units[i], UNIT_WAITING, UNIT_UPDATING | UNIT_AHEAD);
}

void message_workers_reply_body(struct wire *w, struct message *m)
{
    wire_flag(w, &m->workers_reply.last);
    wire_u32(w, &m->workers_reply.worker);
    wire_u32(w, &m->workers_reply.pid);
    wire_text(w, m->workers_reply.device, sizeof m->workers_reply.device);
    wire_text(w, m->workers_reply.model, sizeof m->workers_reply.model);
    wire_text(w, m->workers_reply.host, sizeof m->workers_reply.host);
    wire_u64(w, &m->workers_reply.budget);
    wire_u64(w, &m->workers_reply.current);
    wire_u64(w, &m->workers_reply.peak);
    m->workers_reply.phase = wire_choice(w, m->workers_reply.phase, PHASE_RESTING, PHASE_GENERATING);
    wire_u32(w, &m->workers_reply.visit);
    wire_u32(w, &m->workers_reply.n_visits);
    wire_text(w, m->workers_reply.unit, sizeof m->workers_reply.unit);
    wire_u32(w, &m->workers_reply.part);
    wire_u32_in(w, &m->workers_reply.n_parts, 0, MESSAGE_MAX_PARTS);
    wire_u32(w, &m->workers_reply.microbatch);
    wire_u64(w, &m->workers_reply.down_bytes);
    wire_u64(w, &m->workers_reply.up_bytes);
    wire_text(w, m->workers_reply.unfit.text, sizeof m->workers_reply.unfit.text);
}

void message_recent_reply_body(struct wire *w, struct message *m)
{
    wire_u64(w, &m->recent_reply.step);
    wire_u64(w, &m->recent_reply.tokens);
    wire_f64(w, &m->recent_reply.tokens_per_s);
    wire_f64(w, &m->recent_reply.step_ms);
    wire_f64(w, &m->recent_reply.lr);
    wire_u32_in(w, &m->recent_reply.n, 0, MESSAGE_RECENT_STEPS);
    for (uint32_t i = 0; !w->why && i < m->recent_reply.n; i++)
        wire_f32(w, &m->recent_reply.losses[i]);
}

void message_queue_reply_body(struct wire *w, struct message *m)
{
    wire_flag(w, &m->queue_reply.last);
    wire_u32(w, &m->queue_reply.job);
    wire_u32(w, &m->queue_reply.pid);
    wire_u32(w, &m->queue_reply.uid);
    m->queue_reply.purpose = wire_choice(w, m->queue_reply.purpose, PLAN_TRAIN, PLAN_GENERATE);
    wire_u64(w, &m->queue_reply.step);
    wire_u64(w, &m->queue_reply.n_steps);
    wire_text(w, m->queue_reply.out, sizeof m->queue_reply.out);
}
