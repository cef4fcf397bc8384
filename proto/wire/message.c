/* A kind's fields are one list, in both directions, and its order is the format. What depends on several fields is
 * checked at the end of a list, so that no check decides whether bytes are read.
 *
 * The same checks judge what this process sends. There a fault is a bug, and ends it: a number that a peer's figures
 * have made infinite must be caught before it is put into a message. */
#include "proto/wire/message.h"

#include "proto/wire/message_internal.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

static void nothing(struct wire *w, struct message *m)
{
    (void)w, (void)m;
}

static void hello(struct wire *w, struct message *m)
{
    m->hello.role = wire_choice(w, m->hello.role, ROLE_CLIENT, ROLE_VIEWER);
    wire_u32(w, &m->hello.pid);
    wire_u64(w, &m->hello.nonce);
    wire_text(w, m->hello.device, sizeof m->hello.device);
    wire_text(w, m->hello.model, sizeof m->hello.model);
    wire_text(w, m->hello.host, sizeof m->hello.host);
    wire_text(w, m->hello.bus, sizeof m->hello.bus);
    wire_u64(w, &m->hello.budget);
    wire_u64(w, &m->hello.library_bytes);
    wire_u32(w, &m->hello.attention);
    wire_u32(w, &m->hello.convolution);
    message_profile_fields(w, &m->hello.profile);
}

static void welcome(struct wire *w, struct message *m)
{
    wire_u32(w, &m->welcome.id);
    wire_text(w, m->welcome.address, sizeof m->welcome.address);
}

static void greeting(struct wire *w, struct message *m)
{
    wire_u32(w, &m->greeting.id);
    wire_u64(w, &m->greeting.nonce);
}

static void pong(struct wire *w, struct message *m)
{
    wire_u64(w, &m->pong.progress);
}

static void job(struct wire *w, struct message *m)
{
    message_goal_fields(w, &m->job.goal);
    wire_flag(w, &m->job.fresh);
    wire_flag(w, &m->job.output);
    wire_flag(w, &m->job.side);
    wire_flag(w, &m->job.trace);
    wire_flag(w, &m->job.resume);
    wire_flag(w, &m->job.deterministic);
    wire_u64(w, &m->job.step);
    wire_u64(w, &m->job.n_steps);
    wire_u64(w, &m->job.seed);
    wire_u32(w, &m->job.microbatch);
    wire_f64_finite(w, &m->job.beta1);
    wire_f64_finite(w, &m->job.beta2);
    wire_f64_finite(w, &m->job.epsilon);
    wire_f64_finite(w, &m->job.weight_decay);
    wire_flag(w, &m->job.require_pinned);
    wire_f64_from_0(w, &m->job.clip_norm);
    wire_f64_from_0(w, &m->job.clip_update);
    wire_u64(w, &m->job.host_mem);
    wire_flag(w, &m->job.files);
    wire_text(w, m->job.out, sizeof m->job.out);
    wire_text(w, m->job.freeze, sizeof m->job.freeze);
    m->job.thaw = wire_choice(w, m->job.thaw, MODEL_THAW_NEVER, MODEL_THAWED);
    wire_u32_in(w, &m->job.config_bytes, 0, MESSAGE_MAX_CONFIG_BYTES);
    wire_u32(w, &m->job.side_bytes);
    wire_u32_in(w, &m->job.n_files, 0, MESSAGE_MAX_FILES);
    wire_u64(w, &m->job.header_bytes);
    wire_flag(w, &m->job.saves);
    wire_u64(w, &m->job.audit_every);
    m->job.goal.attention = wire_choice(w, m->job.goal.attention, PLAN_ATTENTION_MEASURED, PLAN_ATTENTION_WISHES - 1);
    if (m->job.output && m->job.files)
        wire_wrong(w, "an output directory, and files in its place");
    if (m->job.config_bytes == 0 && (m->job.side_bytes || m->job.n_files))
        wire_wrong(w, "files that are served, without a config");
    if (m->job.config_bytes > 0 && m->job.output)
        wire_wrong(w, "a directory, and files that are served");
    if (m->job.config_bytes > 0 && m->job.side != (m->job.side_bytes > 0))
        wire_wrong(w, "a side file without its bytes, or bytes without it");
    if (m->job.clip_norm > 0 && !m->job.goal.fenced)
        wire_wrong(w, "a clipped norm without a fenced commit");
}

static void job_opened(struct wire *w, struct message *m)
{
    wire_u64(w, &m->job_opened.n_parameters);
    wire_u32(w, &m->job_opened.n_workers);
    wire_u64(w, &m->job_opened.data_bytes);
    wire_u64(w, &m->job_opened.resident_bytes);
    message_choice_fields(w, &m->job_opened.choice);
    wire_f64_from_0(w, &m->job_opened.predicted_ms);
    m->job_opened.replay = wire_choice(w, m->job_opened.replay, PLAN_REPLAY_NONE, PLAN_REPLAY_OVER_CAP);
    wire_u32_in(w, &m->job_opened.entries, 0, UINT32_MAX - 1);
    wire_f64_from_0(w, &m->job_opened.predicted_compute_ms);
    wire_f64_from_0(w, &m->job_opened.predicted_optimizer_ms);
}

static void message_assign(struct wire *w, struct message *m)
{
    wire_u32_in(w, &m->assign.config_bytes, 1, MESSAGE_MAX_CONFIG_BYTES);
    message_goal_fields(w, &m->assign.goal);
    wire_u64(w, &m->assign.seed);
    wire_u32_in(w, &m->assign.max_parts, 0, MESSAGE_MAX_PARTS);
    wire_u32(w, &m->assign.n_slots);
    wire_u32(w, &m->assign.n_threads);
    wire_flag(w, &m->assign.takes_turns);
    wire_flag(w, &m->assign.groups);
    wire_flag(w, &m->assign.trace);
    wire_u64(w, &m->assign.weights_bytes);
    message_choice_fields(w, &m->assign.choice);
    wire_u64(w, &m->assign.host_stash_bytes);
    wire_u32(w, &m->assign.attention);
    wire_u32(w, &m->assign.convolution);
    message_products_fields(w, &m->assign.products);
    wire_text(w, m->assign.freeze, sizeof m->assign.freeze);
    if (m->assign.weights_bytes == 0)
        wire_wrong(w, "an assignment without weights");
    if (m->assign.choice.host_stash != (m->assign.host_stash_bytes > 0))
        wire_wrong(w, "a stash without its bytes, or bytes without it");
}

static void message_assigned(struct wire *w, struct message *m)
{
    wire_u64(w, &m->assigned.arena_bytes);
}

static void message_open_step(struct wire *w, struct message *m)
{
    wire_u64(w, &m->open_step.step);
    wire_u32_in(w, &m->open_step.buffer, 0, 1);
    wire_u64(w, &m->open_step.n_valid);
    wire_u32_in(w, &m->open_step.n_tokens, 1, UINT32_MAX);
    wire_u64(w, &m->open_step.n_real);
    wire_f64_finite(w, &m->open_step.lr);
    message_drop_fields(w, &m->open_step.drop);
    message_drop_fields(w, &m->open_step.frozen);
    message_order_fields(w, &m->open_step.order);
}

static void message_share(struct wire *w, struct message *m)
{
    wire_u64(w, &m->share.step);
    wire_u32_in(w, &m->share.buffer, 0, 1);
    wire_u64(w, &m->share.n_valid);
    wire_u32_in(w, &m->share.n_tokens, 1, UINT32_MAX);
    wire_u32_in(w, &m->share.n, 0, MESSAGE_MAX_PARTS);
    for (uint32_t i = 0; !w->why && i < m->share.n; i++) {
        m->share.parts[i].part = wire_choice(w, m->share.parts[i].part, 0, MESSAGE_MAX_PARTS - 1);
        wire_u32(w, &m->share.parts[i].attempt);
    }
    wire_f64_from_0(w, &m->share.loss_scale);
    message_drop_fields(w, &m->share.drop);
    message_drop_fields(w, &m->share.frozen);
    message_order_fields(w, &m->share.order);
    wire_u32_in(w, &m->share.audit, 0, MESSAGE_MAX_PARTS);
    wire_u32_in(w, &m->share.audited, 0, MESSAGE_MAX_PARTS);
}

static void message_pull(struct wire *w, struct message *m)
{
    wire_u64(w, &m->pull.version);
    wire_u32(w, &m->pull.unit);
}

static void message_weights(struct wire *w, struct message *m)
{
    wire_u64(w, &m->weights.version);
    wire_u32(w, &m->weights.unit);
    wire_u64(w, &m->weights.at);
    wire_u64(w, &m->weights.frozen_at);
    wire_flag(w, &m->weights.lent);
    if (m->weights.at % 64 || m->weights.frozen_at % 64)
        wire_wrong(w, "weights that are not at a multiple of 64 bytes");
}

static void loss(struct wire *w, struct message *m)
{
    wire_u64(w, &m->loss.step);
    wire_u32_in(w, &m->loss.part, 0, MESSAGE_MAX_PARTS - 1);
    wire_u32(w, &m->loss.attempt);
    wire_f64(w, &m->loss.sum);
    message_rewards_fields(w, &m->loss.rewards);
    wire_flag(w, &m->loss.finite);
}

static void message_contribution(struct wire *w, struct message *m)
{
    message_name_fields(w, &m->contribution.name);
    wire_u32(w, &m->contribution.slot);
    wire_u64(w, &m->contribution.digest);
    wire_u64(w, &m->contribution.sum.a);
    wire_u64(w, &m->contribution.sum.b);
}

static void message_free_slot(struct wire *w, struct message *m)
{
    message_name_fields(w, &m->free.name);
    wire_u32(w, &m->free.slot);
}

static void digest(struct wire *w, struct message *m)
{
    wire_u64(w, &m->digest.step);
    wire_u32(w, &m->digest.visit);
    wire_u32_in(w, &m->digest.part, 0, MESSAGE_MAX_PARTS - 1);
    wire_u32(w, &m->digest.slice);
    wire_u64(w, &m->digest.digest);
}

static void message_grant(struct wire *w, struct message *m)
{
    message_name_fields(w, &m->grant.name);
}

static void done(struct wire *w, struct message *m)
{
    message_done_fields(w, &m->done);
}

static void message_map(struct wire *w, struct message *m)
{
    wire_u32(w, &m->map.first);
}

static void mapped(struct wire *w, struct message *m)
{
    wire_u64(w, &m->mapped.step);
    wire_u64(w, &m->mapped.weights_bytes);
    wire_u32(w, &m->mapped.n_units);
    wire_u32(w, &m->mapped.first);
    wire_u32_in(w, &m->mapped.n, 0, MESSAGE_MAP_UNITS);
    for (uint32_t i = 0; !w->why && i < m->mapped.n; i += 8) {
        const uint32_t left = m->mapped.n - i;
        m->mapped.second[i / 8] =
            (uint8_t)wire_choice(w, m->mapped.second[i / 8], 0, left < 8 ? (1u << left) - 1 : 255);
    }
}

static void message_evaluate(struct wire *w, struct message *m)
{
    wire_u32_in(w, &m->evaluate.buffer, 0, 1);
    wire_u32(w, &m->evaluate.first_row);
    wire_u32(w, &m->evaluate.n_rows);
    wire_u32_in(w, &m->evaluate.n_tokens, 1, UINT32_MAX);
    wire_flag(w, &m->evaluate.drops);
    wire_u64(w, &m->evaluate.step);
    wire_flag(w, &m->evaluate.base);
}

static void evaluated(struct wire *w, struct message *m)
{
    wire_f64(w, &m->evaluated.sum);
}

static void message_generate(struct wire *w, struct message *m)
{
    uint32_t n = 0;

    wire_u32_in(w, &m->generate.n_rows, 1, PLAN_GENERATE_ROWS);
    for (uint32_t i = 0; !w->why && i < m->generate.n_rows; i++) {
        struct plan_tokens *row = &m->generate.rows[i];
        wire_u32_in(w, &row->from, 0, m->generate.n_rows - 1);
        wire_u32(w, &row->first);
        wire_u32(w, &row->n);
        wire_u32(w, &row->source);
        n |= row->n;
    }
    if (n == 0)
        wire_wrong(w, "a generation without tokens");
}

static void message_save(struct wire *w, struct message *m)
{
    wire_u64(w, &m->save.step);
}

static void save_failed(struct wire *w, struct message *m)
{
    wire_u64(w, &m->save_failed.step);
    message_code_field(w, &m->save_failed.code);
    wire_text(w, m->save_failed.error.text, sizeof m->save_failed.error.text);
}

static void message_lost(struct wire *w, struct message *m)
{
    wire_u32(w, &m->lost.worker);
    wire_u32(w, &m->lost.pid);
    wire_u64(w, &m->lost.step);
    wire_flag(w, &m->lost.waits);
    m->lost.how = wire_choice(w, m->lost.how, LOSS_WORKING, LOSS_UNFIT);
    wire_text(w, m->lost.device, sizeof m->lost.device);
    wire_text(w, m->lost.host, sizeof m->lost.host);
    wire_text(w, m->lost.error.text, sizeof m->lost.error.text);
}

static void message_drain(struct wire *w, struct message *m)
{
    wire_u32(w, &m->drain.worker);
}

static void output(struct wire *w, struct message *m)
{
    wire_u32(w, &m->output.id);
    wire_u64(w, &m->output.step);
    m->output.what = wire_choice(w, m->output.what, OUTPUT_OPEN, OUTPUT_DROP);
}

static void files(struct wire *w, struct message *m)
{
    wire_flag(w, &m->files.trace);
}

static void file(struct wire *w, struct message *m)
{
    const uint64_t most = INT64_MAX; /* the largest offset in a file */

    wire_u32(w, &m->file.index);
    m->file.act = wire_choice(w, m->file.act, FILE_SIZE, FILE_FLUSH);
    wire_u32_in(w, &m->file.window, 0, 1);
    wire_u64(w, &m->file.offset);
    wire_u64(w, &m->file.bytes);
    const bool moves = m->file.act == FILE_READ || m->file.act == FILE_WRITE;
    if (moves != (m->file.bytes > 0) || m->file.bytes > FILE_WINDOW || m->file.offset > most - FILE_WINDOW)
        wire_wrong(w, "bytes that no window or no file has");
}

static void file_done(struct wire *w, struct message *m)
{
    message_code_field(w, &m->file_done.code);
    wire_u64(w, &m->file_done.size);
}

static void message_output_done(struct wire *w, struct message *m)
{
    wire_u32(w, &m->output_done.id);
    wire_u32(w, &m->output_done.first_file);
    wire_u32_in(w, &m->output_done.n_files, 0, MESSAGE_MAX_FILES);
    message_code_field(w, &m->output_done.code);
    wire_text(w, m->output_done.error.text, sizeof m->output_done.error.text);
}

static void job_number(struct wire *w, struct message *m)
{
    wire_u32(w, &m->stop.job);
}

static void message_queued(struct wire *w, struct message *m)
{
    wire_u32(w, &m->queued.job);
    wire_u32_in(w, &m->queued.place, 1, UINT32_MAX);
}

static void description(struct wire *w, struct message *m)
{
    wire_u32(w, &m->description.job);
    wire_u64(w, &m->description.step);
    wire_flag(w, &m->description.thawed);
    wire_u32_in(w, &m->description.config_bytes, 1, MESSAGE_MAX_CONFIG_BYTES);
    wire_flag(w, &m->description.output);
    wire_flag(w, &m->description.files);
    wire_text(w, m->description.out, sizeof m->description.out);
    wire_u32(w, &m->description.n_workers);
    wire_u64(w, &m->description.n_parameters);
    wire_u64(w, &m->description.data_bytes);
    message_choice_fields(w, &m->description.choice);
    m->description.replay = wire_choice(w, m->description.replay, PLAN_REPLAY_NONE, PLAN_REPLAY_OVER_CAP);
    wire_u32_in(w, &m->description.entries, 0, UINT32_MAX - 1);
    wire_flag(w, &m->description.weighted);
}

static void taken(struct wire *w, struct message *m)
{
    wire_u64(w, &m->taken.opened);
    wire_u64(w, &m->taken.arrived);
    wire_u64(w, &m->taken.covered);
    wire_u64(w, &m->taken.done);
    wire_flag(w, &m->taken.waits);
    wire_u32_in(w, &m->taken.n, 0, MESSAGE_DONE_STEPS);
    for (uint32_t i = 0; !w->why && i < m->taken.n; i++)
        message_done_fields(w, &m->taken.steps[i]);
    if (m->taken.done > m->taken.covered || m->taken.covered > m->taken.arrived || m->taken.arrived > m->taken.opened)
        wire_wrong(w, "steps that end before they begin");
}

static void message_arrived(struct wire *w, struct message *m)
{
    wire_u64(w, &m->arrived.step);
}

static void refused(struct wire *w, struct message *m)
{
    message_code_field(w, &m->refused.code);
    wire_text(w, m->refused.error.text, sizeof m->refused.error.text);
}

static void dismissed(struct wire *w, struct message *m)
{
    m->dismissed.end = wire_choice(w, m->dismissed.end, END_FAULT, END_TURNED_AWAY);
    message_code_field(w, &m->dismissed.code);
    wire_text(w, m->dismissed.error.text, sizeof m->dismissed.error.text);
}

/* A kind: its fields; roles that send it to the daemon; whether it overtakes bytes, and may carry descriptors. */
enum {
    CLIENTS = 1 << ROLE_CLIENT,
    WORKERS = 1 << ROLE_WORKER,
    VIEWERS = 1 << ROLE_VIEWER,
    ALL = CLIENTS | WORKERS | VIEWERS
};
enum { OVERTAKES = 1, CARRIES = 2 };

static const struct {
    const char *name;
    void (*fields)(struct wire *w, struct message *m);
    uint8_t senders; /* 0: the daemon alone */
    uint8_t how;
} kinds[MESSAGE_KINDS] = {
    [MESSAGE_HELLO] = {"HELLO", hello, ALL},
    [MESSAGE_WELCOME] = {"WELCOME", welcome},
    [MESSAGE_GREETING] = {"GREETING", greeting},
    [MESSAGE_PING] = {"PING", nothing, 0, OVERTAKES},
    [MESSAGE_PONG] = {"PONG", pong, ALL, OVERTAKES},
    [MESSAGE_JOB] = {"JOB", job, CLIENTS, CARRIES},
    [MESSAGE_JOB_OPENED] = {"JOB_OPENED", job_opened, 0, CARRIES},
    [MESSAGE_ASSIGN] = {"ASSIGN", message_assign, 0, CARRIES},
    [MESSAGE_ASSIGNED] = {"ASSIGNED", message_assigned, WORKERS},
    [MESSAGE_RELEASE] = {"RELEASE", nothing, WORKERS},
    [MESSAGE_CLOSE] = {"CLOSE", nothing, CLIENTS},
    [MESSAGE_OPEN_STEP] = {"OPEN_STEP", message_open_step, CLIENTS},
    [MESSAGE_SHARE] = {"SHARE", message_share},
    [MESSAGE_PULL] = {"PULL", message_pull, WORKERS, OVERTAKES},
    [MESSAGE_WEIGHTS] = {"WEIGHTS", message_weights},
    [MESSAGE_VOID] = {"VOID", message_pull},
    [MESSAGE_READ] = {"READ", message_pull, WORKERS, OVERTAKES},
    [MESSAGE_LOSS] = {"LOSS", loss, WORKERS, OVERTAKES},
    [MESSAGE_CONTRIBUTION] = {"CONTRIBUTION", message_contribution, WORKERS},
    [MESSAGE_FREE] = {"FREE", message_free_slot, 0, OVERTAKES},
    [MESSAGE_DIGEST] = {"DIGEST", digest, WORKERS},
    [MESSAGE_GRANT] = {"GRANT", message_grant, 0, OVERTAKES},
    [MESSAGE_ARRIVED] = {"ARRIVED", message_arrived},
    [MESSAGE_COVERED] = {"COVERED", done},
    [MESSAGE_DONE] = {"DONE", done},
    [MESSAGE_MAP] = {"MAP", message_map, CLIENTS},
    [MESSAGE_MAPPED] = {"MAPPED", mapped, 0, CARRIES},
    [MESSAGE_EVALUATE] = {"EVALUATE", message_evaluate, CLIENTS},
    [MESSAGE_EVALUATED] = {"EVALUATED", evaluated, WORKERS},
    [MESSAGE_GENERATE] = {"GENERATE", message_generate, CLIENTS},
    [MESSAGE_GENERATED] = {"GENERATED", nothing, WORKERS},
    [MESSAGE_SAVE] = {"SAVE", message_save, CLIENTS | VIEWERS},
    [MESSAGE_SAVED] = {"SAVED", message_save},
    [MESSAGE_SAVE_FAILED] = {"SAVE_FAILED", save_failed},
    [MESSAGE_SNAPSHOT] = {"SNAPSHOT", nothing, VIEWERS, CARRIES},
    [MESSAGE_OUTPUT] = {"OUTPUT", output},
    [MESSAGE_OUTPUT_DONE] = {"OUTPUT_DONE", message_output_done, CLIENTS},
    [MESSAGE_STATUS] = {"STATUS", message_status_body, CLIENTS | VIEWERS},
    [MESSAGE_STATUS_REPLY] = {"STATUS_REPLY", message_status_reply_body},
    [MESSAGE_MEMORY] = {"MEMORY", message_memory_body, CLIENTS | VIEWERS},
    [MESSAGE_MEMORY_REPLY] = {"MEMORY_REPLY", message_memory_reply_body},
    [MESSAGE_LEDGER] = {"LEDGER", message_ledger_body, WORKERS},
    [MESSAGE_UNITS] = {"UNITS", message_units_body, CLIENTS | VIEWERS},
    [MESSAGE_UNITS_REPLY] = {"UNITS_REPLY", message_units_reply_body},
    [MESSAGE_WORKERS] = {"WORKERS", nothing, CLIENTS | VIEWERS},
    [MESSAGE_WORKERS_REPLY] = {"WORKERS_REPLY", message_workers_reply_body},
    [MESSAGE_RECENT] = {"RECENT", nothing, CLIENTS | VIEWERS},
    [MESSAGE_RECENT_REPLY] = {"RECENT_REPLY", message_recent_reply_body},
    [MESSAGE_STOP] = {"STOP", job_number, CLIENTS | VIEWERS},
    [MESSAGE_REFUSED] = {"REFUSED", refused, WORKERS},
    [MESSAGE_FAILED] = {"FAILED", refused, WORKERS},
    [MESSAGE_LOST] = {"LOST", message_lost},
    [MESSAGE_DRAIN] = {"DRAIN", message_drain, ALL, OVERTAKES},
    [MESSAGE_QUEUED] = {"QUEUED", message_queued},
    [MESSAGE_QUEUE] = {"QUEUE", nothing, CLIENTS | VIEWERS},
    [MESSAGE_QUEUE_REPLY] = {"QUEUE_REPLY", message_queue_reply_body},
    [MESSAGE_DESCRIBE] = {"DESCRIBE", job_number, CLIENTS},
    [MESSAGE_DESCRIPTION] = {"DESCRIPTION", description, 0, CARRIES},
    [MESSAGE_TAKE] = {"TAKE", job_number, CLIENTS},
    [MESSAGE_TAKEN] = {"TAKEN", taken},
    [MESSAGE_FILES] = {"FILES", files, CLIENTS | VIEWERS, CARRIES},
    [MESSAGE_FILE] = {"FILE", file},
    [MESSAGE_FILE_DONE] = {"FILE_DONE", file_done},
    [MESSAGE_DISMISSED] = {"DISMISSED", dismissed, ALL, OVERTAKES},
    [MESSAGE_BYE] = {"BYE", nothing, ALL},
};

const char *message_name(enum message_kind kind)
{
    const char *name = (unsigned)kind < MESSAGE_KINDS ? kinds[kind].name : NULL;

    return name ? name : "?";
}

bool message_has_descriptors(enum message_kind kind)
{
    return kinds[kind].how & CARRIES;
}

bool message_overtakes(enum message_kind kind)
{
    return kinds[kind].how & OVERTAKES;
}

bool message_is_sent_by(enum message_kind kind, enum message_role role)
{
    return kinds[kind].senders >> role & 1;
}

size_t message_encode(uint8_t *buf, size_t cap, const struct message *m)
{
    struct message copy = *m; /* the fields are listed for reading too, which writes to them */
    struct wire w = {.to = buf, .at = MESSAGE_HEADER_BYTES, .end = MESSAGE_MAX_BYTES};

    assert(cap >= MESSAGE_MAX_BYTES);
    assert((unsigned)m->kind < MESSAGE_KINDS && kinds[m->kind].fields);
    kinds[m->kind].fields(&w, &copy);
    assert(!w.why);
    wire_put(buf, MESSAGE_MAGIC, 2);
    wire_put(buf + 2, MESSAGE_VERSION, 1);
    wire_put(buf + 3, m->kind, 1);
    wire_put(buf + 4, w.at - MESSAGE_HEADER_BYTES, 2);
    wire_put(buf + 6, 0, 2);
    message_number(buf, m->sequence);
    return w.at;
}

void message_number(uint8_t *buf, uint64_t sequence)
{
    wire_put(buf + 8, sequence, 8);
}

int message_version(const uint8_t *buf, size_t n)
{
    return n >= MESSAGE_HEADER_BYTES && wire_get(buf, 2) == MESSAGE_MAGIC ? buf[2] : -1;
}

/* The version is judged before all that another one may have changed, so that such a peer is told to use one build. */
static const char *header_fault(const uint8_t *buf, size_t n)
{
    if (n < MESSAGE_HEADER_BYTES)
        return "shorter than a header";
    if (message_version(buf, n) < 0)
        return "not one of our messages";
    if (message_version(buf, n) != MESSAGE_VERSION)
        return "another version of the protocol";
    if (n > MESSAGE_MAX_BYTES)
        return "longer than any message";
    if (wire_get(buf + 4, 2) != n - MESSAGE_HEADER_BYTES)
        return "body is not the promised length";
    if (wire_get(buf + 6, 2) != 0)
        return "header's reserved bytes are not zero";
    if (buf[3] >= MESSAGE_KINDS || !kinds[buf[3]].fields)
        return "no such kind";
    return NULL;
}

int message_decode(struct message *out, const uint8_t *buf, size_t n, const char **why)
{
    int version = message_version(buf, n);
    struct message m = {0};
    struct wire w = {.from = buf, .at = MESSAGE_HEADER_BYTES, .end = n};

    *why = header_fault(buf, n);
    if (*why)
        return version >= 0 && version != MESSAGE_VERSION ? -EPROTONOSUPPORT : -EBADMSG;
    m.kind = buf[3];
    m.sequence = wire_get(buf + 8, 8);
    kinds[m.kind].fields(&w, &m);
    if (w.at != w.end)
        wire_wrong(&w, "longer than its kind");
    *why = w.why;
    if (w.why)
        return -EBADMSG;
    *out = m;
    return 0;
}
