#include "proto/message.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

/* One walk over a message's bytes, writing or reading. Each kind lists its fields once, for both directions, so that
 * encoder and decoder cannot disagree; the checks run in both too. */
struct wire {
    uint8_t *to;         /* NULL when reading */
    const uint8_t *from; /* NULL when writing */
    size_t at, end;
    const char *why; /* what is wrong first; nothing is read after it */
};

static void wrong(struct wire *w, const char *why)
{
    if (!w->why)
        w->why = why;
}

/* Room for n bytes more? */
static bool take(struct wire *w, size_t n)
{
    if (n > w->end - w->at)
        wrong(w, "shorter than its kind");
    return !w->why;
}

static void put(uint8_t *to, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *from, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)from[i] << (8 * i);
    return value;
}

/* The value as it stands in the message (writing), or as it is on the wire (reading; 0 once something was wrong). */
static uint64_t number(struct wire *w, uint64_t value, unsigned bytes)
{
    if (!take(w, bytes))
        return 0;
    if (w->to)
        put(w->to + w->at, value, bytes);
    else
        value = get(w->from + w->at, bytes);
    w->at += bytes;
    return value;
}

static void u64(struct wire *w, uint64_t *value)
{
    *value = number(w, *value, 8);
}

static void u32(struct wire *w, uint32_t *value)
{
    *value = (uint32_t)number(w, *value, 4);
}

static void u32_in(struct wire *w, uint32_t *value, uint32_t first, uint32_t last)
{
    u32(w, value);
    if (*value < first || *value > last)
        wrong(w, "a count or an index out of range");
}

static void f64(struct wire *w, double *value)
{
    uint64_t bits;

    memcpy(&bits, value, 8);
    u64(w, &bits);
    memcpy(value, &bits, 8);
}

static void f64_finite(struct wire *w, double *value)
{
    f64(w, value);
    if (!isfinite(*value))
        wrong(w, "a number that is not finite");
}

static void f64_from_0(struct wire *w, double *value)
{
    f64_finite(w, value);
    if (signbit(*value))
        wrong(w, "a number below zero");
}

static void f32(struct wire *w, float *value)
{
    uint32_t bits;

    memcpy(&bits, value, 4);
    u32(w, &bits);
    memcpy(value, &bits, 4);
}

static void flag(struct wire *w, bool *value)
{
    uint64_t byte = number(w, *value, 1);

    if (byte > 1)
        wrong(w, "a flag that is neither 0 nor 1");
    *value = byte == 1;
}

/* An enumeration, one byte. */
static unsigned choice(struct wire *w, unsigned value, unsigned first, unsigned last)
{
    assert(!w->to || value <= UINT8_MAX);
    value = (unsigned)number(w, value, 1);
    if (value < first || value > last)
        wrong(w, "an enumeration out of range");
    return value;
}

static enum number_type number_field(struct wire *w, enum number_type value)
{
    return choice(w, value, NUMBER_FP32, NUMBER_BF16);
}

/* Bytes of the printable UTF-8 character at s (n > 0 bytes), or 0: control characters, overlong forms, surrogates and
 * what was cut off are not, so that a text can go to a terminal as it is. */
static size_t character(const uint8_t *s, size_t n)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = s[0] < 0x80 ? 1 : s[0] >= 0xF8 ? 0 : s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : s[0] >= 0xC0 ? 2 : 0;
    uint32_t code = length == 1 ? s[0] : s[0] & (0x7Fu >> length);

    if (length == 0 || length > n)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
        code = code << 6 | (s[i] & 0x3F);
    }
    bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
    bool surrogate = code >= 0xD800 && code < 0xE000;
    return control || surrogate || code < least[length] || code > 0x10FFFF ? 0 : length;
}

/* A sentence may quote a file, so unprintable bytes become '?': they are no mistake of ours. */
static void write_text(uint8_t *to, const char *text, size_t size)
{
    size_t n = strnlen(text, size - 1), length;

    memset(to, 0, size);
    memcpy(to, text, n);
    for (size_t i = 0; i < n; i += length) {
        length = character(to + i, n - i);
        if (length == 0) {
            to[i] = '?';
            length = 1;
        }
    }
}

static void read_text(struct wire *w, char *text, const uint8_t *from, size_t size)
{
    const uint8_t *stop = memchr(from, 0, size);
    size_t n = stop ? (size_t)(stop - from) : 0, length = 1;

    if (!stop)
        wrong(w, "a text without its end");
    for (size_t i = n; i < size; i++)
        if (stop && from[i])
            wrong(w, "bytes after the end of a text");
    for (size_t i = 0; i < n && length > 0; i += length) {
        length = character(from + i, n - i);
        if (length == 0)
            wrong(w, "a text that is not printable UTF-8");
    }
    if (!w->why)
        memcpy(text, from, size);
}

static void text(struct wire *w, char *value, size_t size)
{
    if (!take(w, size))
        return;
    if (w->to)
        write_text(w->to + w->at, value, size);
    else
        read_text(w, value, w->from + w->at, size);
    w->at += size;
}

static void config_fields(struct wire *w, struct model_config *c)
{
    u32(w, &c->n_layers);
    u32(w, &c->n_heads);
    u32(w, &c->width);
    u32(w, &c->inner_width);
    u32(w, &c->n_positions);
    u32(w, &c->vocabulary);
    c->activation = choice(w, c->activation, MODEL_GELU_NEW, MODEL_RELU);
    flag(w, &c->tied);
    flag(w, &c->scale_attention);
    flag(w, &c->scale_by_layer);
    f32(w, &c->norm_epsilon);
    f32(w, &c->dropout_attention);
    f32(w, &c->dropout_embedding);
    f32(w, &c->dropout_residual);
    f32(w, &c->initializer_range);
    if (!w->why && model_config_check(c, NULL) < 0)
        wrong(w, "a model past its limits");
}

static void ledger_fields(struct wire *w, struct ledger *ledger)
{
    for (unsigned i = 0; i < LEDGER_CATEGORIES; i++) {
        u64(w, &ledger->rows[i].current);
        u64(w, &ledger->rows[i].peak);
    }
    u64(w, &ledger->total.current);
    u64(w, &ledger->total.peak);
}

/* -errno, 0 where none fits. */
static void code(struct wire *w, int32_t *value)
{
    uint32_t positive = (uint32_t) - *value;

    u32_in(w, &positive, 0, 4095);
    *value = -(int32_t)(positive & 4095);
}

static void nothing(struct wire *w, struct message *m)
{
    (void)w, (void)m;
}

static void hello(struct wire *w, struct message *m)
{
    m->hello.role = choice(w, m->hello.role, ROLE_CLIENT, ROLE_VIEWER);
    u32(w, &m->hello.pid);
    text(w, m->hello.device, sizeof m->hello.device);
    u64(w, &m->hello.budget);
    u64(w, &m->hello.nonce);
}

static void welcome(struct wire *w, struct message *m)
{
    u32(w, &m->welcome.id);
    text(w, m->welcome.address, sizeof m->welcome.address);
}

static void greeting(struct wire *w, struct message *m)
{
    u32(w, &m->greeting.id);
    u64(w, &m->greeting.nonce);
}

static void pong(struct wire *w, struct message *m)
{
    u64(w, &m->pong.progress);
}

static void job(struct wire *w, struct message *m)
{
    flag(w, &m->job.train);
    flag(w, &m->job.generate);
    flag(w, &m->job.fresh);
    flag(w, &m->job.output);
    flag(w, &m->job.side);
    flag(w, &m->job.trace);
    flag(w, &m->job.resume);
    flag(w, &m->job.deterministic);
    u64(w, &m->job.step);
    u64(w, &m->job.n_steps);
    u64(w, &m->job.seed);
    u32(w, &m->job.batch);
    u32(w, &m->job.seq);
    u32_in(w, &m->job.n_parts, 1, MESSAGE_MAX_PARTS);
    u32(w, &m->job.microbatch);
    m->job.optimizer = choice(w, m->job.optimizer, OPTIMIZER_ADAMA, OPTIMIZER_ADAMW);
    f64_finite(w, &m->job.beta1);
    f64_finite(w, &m->job.beta2);
    f64_finite(w, &m->job.epsilon);
    f64_finite(w, &m->job.weight_decay);
    m->job.precision = number_field(w, m->job.precision);
    m->job.moments = number_field(w, m->job.moments);
    m->job.grad = number_field(w, m->job.grad);
    flag(w, &m->job.fenced);
    flag(w, &m->job.require_pinned);
    f64_from_0(w, &m->job.clip_norm);
    f64_from_0(w, &m->job.clip_update);
    u64(w, &m->job.host_mem);
}

static void job_opened(struct wire *w, struct message *m)
{
    config_fields(w, &m->job_opened.config);
    u64(w, &m->job_opened.n_parameters);
    u32(w, &m->job_opened.n_workers);
    u32(w, &m->job_opened.microbatch);
    u64(w, &m->job_opened.data_bytes);
    u64(w, &m->job_opened.resident_bytes);
}

static void assign(struct wire *w, struct message *m)
{
    config_fields(w, &m->assign.config);
    u64(w, &m->assign.seed);
    u32(w, &m->assign.batch);
    u32(w, &m->assign.seq);
    u32_in(w, &m->assign.n_parts, 1, MESSAGE_MAX_PARTS);
    u32(w, &m->assign.microbatch);
    u32_in(w, &m->assign.max_parts, 0, MESSAGE_MAX_PARTS);
    u32(w, &m->assign.n_slots);
    u32(w, &m->assign.n_threads);
    flag(w, &m->assign.train);
    flag(w, &m->assign.generate);
    flag(w, &m->assign.takes_turns);
    flag(w, &m->assign.trace);
    m->assign.precision = number_field(w, m->assign.precision);
    m->assign.grad = number_field(w, m->assign.grad);
    flag(w, &m->assign.host_stash);
    flag(w, &m->assign.whole_head);
    u32(w, &m->assign.n_kept);
    u32_in(w, &m->assign.n_weight_buffers, 1, MESSAGE_MAX_WEIGHT_BUFFERS);
    u32(w, &m->assign.n_resident);
    u64(w, &m->assign.host_stash_bytes);
    if (m->assign.host_stash != (m->assign.host_stash_bytes > 0))
        wrong(w, "a stash without its bytes, or bytes without it");
}

static void assigned(struct wire *w, struct message *m)
{
    u64(w, &m->assigned.arena_bytes);
    u64(w, &m->assigned.resident_bytes);
    u32(w, &m->assigned.microbatch);
}

static void open_step(struct wire *w, struct message *m)
{
    u64(w, &m->open_step.step);
    u32_in(w, &m->open_step.buffer, 0, 1);
    u64(w, &m->open_step.n_valid);
    f64_finite(w, &m->open_step.lr);
}

static void share(struct wire *w, struct message *m)
{
    u64(w, &m->share.step);
    u32_in(w, &m->share.buffer, 0, 1);
    u64(w, &m->share.n_valid);
    u32_in(w, &m->share.n, 0, MESSAGE_MAX_PARTS);
    for (uint32_t i = 0; !w->why && i < m->share.n; i++) {
        u32_in(w, &m->share.parts[i].part, 0, MESSAGE_MAX_PARTS - 1);
        u32(w, &m->share.parts[i].attempt);
    }
}

static void pull(struct wire *w, struct message *m)
{
    u64(w, &m->pull.version);
    u32(w, &m->pull.unit);
}

static void loss(struct wire *w, struct message *m)
{
    u64(w, &m->loss.step);
    u32_in(w, &m->loss.part, 0, MESSAGE_MAX_PARTS - 1);
    u32(w, &m->loss.attempt);
    f64(w, &m->loss.sum);
    flag(w, &m->loss.finite);
}

static void contribution(struct wire *w, struct message *m)
{
    u64(w, &m->contribution.step);
    u32(w, &m->contribution.visit);
    u32_in(w, &m->contribution.part, 0, MESSAGE_MAX_PARTS - 1);
    u32(w, &m->contribution.slice);
    u32(w, &m->contribution.attempt);
    u32(w, &m->contribution.slot);
}

static void free_slot(struct wire *w, struct message *m)
{
    u32(w, &m->free.slot);
    u32(w, &m->free.visit);
    u32_in(w, &m->free.part, 0, MESSAGE_MAX_PARTS - 1);
    u32(w, &m->free.slice);
}

static void grant(struct wire *w, struct message *m)
{
    u32(w, &m->grant.visit);
    u32_in(w, &m->grant.part, 0, MESSAGE_MAX_PARTS - 1);
    u32(w, &m->grant.slice);
}

static void done(struct wire *w, struct message *m)
{
    u64(w, &m->done.step);
    f64(w, &m->done.loss);
    u64(w, &m->done.device_peak);
    u64(w, &m->done.host_bytes);
    f64(w, &m->done.grad_norm);
    flag(w, &m->done.skipped);
}

static void evaluate(struct wire *w, struct message *m)
{
    u32_in(w, &m->evaluate.buffer, 0, 1);
    u32(w, &m->evaluate.first_row);
    u32(w, &m->evaluate.n_rows);
}

static void evaluated(struct wire *w, struct message *m)
{
    f64(w, &m->evaluated.sum);
}

static void generate(struct wire *w, struct message *m)
{
    u32(w, &m->generate.first);
    u32_in(w, &m->generate.n, 1, UINT32_MAX);
}

static void save(struct wire *w, struct message *m)
{
    u64(w, &m->save.step);
}

static void save_failed(struct wire *w, struct message *m)
{
    u64(w, &m->save_failed.step);
    code(w, &m->save_failed.code);
    text(w, m->save_failed.error.text, sizeof m->save_failed.error.text);
}

static void status_reply(struct wire *w, struct message *m)
{
    m->status_reply.state = choice(w, m->status_reply.state, STATE_IDLE, STATE_STOPPING);
    u64(w, &m->status_reply.step);
    u64(w, &m->status_reply.n_steps);
    u64(w, &m->status_reply.n_parameters);
    u32(w, &m->status_reply.n_workers);
    u32(w, &m->status_reply.pid);
    u32(w, &m->status_reply.uid);
    f64(w, &m->status_reply.loss);
    u64(w, &m->status_reply.saved_step);
    flag(w, &m->status_reply.saving);
    text(w, m->status_reply.model, sizeof m->status_reply.model);
    text(w, m->status_reply.out, sizeof m->status_reply.out);
    text(w, m->status_reply.trouble, sizeof m->status_reply.trouble);
}

static void memory(struct wire *w, struct message *m)
{
    flag(w, &m->memory.pages);
}

static void pages_fields(struct wire *w, struct pages *pages)
{
    flag(w, &pages->known);
    u64(w, &pages->resident);
    u64(w, &pages->locked);
    u64(w, &pages->huge);
    u32_in(w, &pages->n_nodes, 0, PAGES_MAX_NODES);
    for (uint32_t i = 0; !w->why && i < pages->n_nodes; i++)
        u64(w, &pages->nodes[i]);
}

static void memory_reply(struct wire *w, struct message *m)
{
    flag(w, &m->memory_reply.last);
    u32(w, &m->memory_reply.worker);
    text(w, m->memory_reply.device, sizeof m->memory_reply.device);
    u64(w, &m->memory_reply.budget);
    ledger_fields(w, &m->memory_reply.ledger);
    for (unsigned i = 0; i < LEDGER_CATEGORIES; i++)
        u64(w, &m->memory_reply.planned[i]);
    pages_fields(w, &m->memory_reply.pages);
}

static void ledger(struct wire *w, struct message *m)
{
    ledger_fields(w, &m->ledger);
}

static void units(struct wire *w, struct message *m)
{
    u32(w, &m->units.first);
}

static void units_reply(struct wire *w, struct message *m)
{
    u32(w, &m->units_reply.first);
    u32(w, &m->units_reply.n_units);
    u64(w, &m->units_reply.version);
    u32_in(w, &m->units_reply.n, 0, MESSAGE_PAGE_UNITS);
    for (uint32_t i = 0; !w->why && i < m->units_reply.n; i++)
        m->units_reply.units[i] = (uint8_t)choice(w, m->units_reply.units[i], UNIT_WAITING, UNIT_UPDATING | UNIT_AHEAD);
}

static void workers_reply(struct wire *w, struct message *m)
{
    flag(w, &m->workers_reply.last);
    u32(w, &m->workers_reply.worker);
    u32(w, &m->workers_reply.pid);
    text(w, m->workers_reply.device, sizeof m->workers_reply.device);
    u64(w, &m->workers_reply.budget);
    u64(w, &m->workers_reply.current);
    u64(w, &m->workers_reply.peak);
    m->workers_reply.phase = choice(w, m->workers_reply.phase, PHASE_RESTING, PHASE_GENERATING);
    u32(w, &m->workers_reply.visit);
    u32(w, &m->workers_reply.n_visits);
    text(w, m->workers_reply.unit, sizeof m->workers_reply.unit);
    u32(w, &m->workers_reply.part);
    u32_in(w, &m->workers_reply.n_parts, 0, MESSAGE_MAX_PARTS);
    u32(w, &m->workers_reply.microbatch);
    u64(w, &m->workers_reply.down_bytes);
    u64(w, &m->workers_reply.up_bytes);
}

static void recent_reply(struct wire *w, struct message *m)
{
    u64(w, &m->recent_reply.step);
    u64(w, &m->recent_reply.tokens);
    f64(w, &m->recent_reply.tokens_per_s);
    f64(w, &m->recent_reply.step_ms);
    u32_in(w, &m->recent_reply.n, 0, MESSAGE_RECENT_STEPS);
    for (uint32_t i = 0; !w->why && i < m->recent_reply.n; i++)
        f32(w, &m->recent_reply.losses[i]);
}

static void refused(struct wire *w, struct message *m)
{
    code(w, &m->refused.code);
    text(w, m->refused.error.text, sizeof m->refused.error.text);
}

static const struct {
    const char *name;
    void (*fields)(struct wire *w, struct message *m);
} kinds[MESSAGE_KINDS] = {
    [MESSAGE_HELLO] = {"HELLO", hello},
    [MESSAGE_WELCOME] = {"WELCOME", welcome},
    [MESSAGE_GREETING] = {"GREETING", greeting},
    [MESSAGE_PING] = {"PING", nothing},
    [MESSAGE_PONG] = {"PONG", pong},
    [MESSAGE_JOB] = {"JOB", job},
    [MESSAGE_JOB_OPENED] = {"JOB_OPENED", job_opened},
    [MESSAGE_ASSIGN] = {"ASSIGN", assign},
    [MESSAGE_ASSIGNED] = {"ASSIGNED", assigned},
    [MESSAGE_RELEASE] = {"RELEASE", nothing},
    [MESSAGE_CLOSE] = {"CLOSE", nothing},
    [MESSAGE_OPEN_STEP] = {"OPEN_STEP", open_step},
    [MESSAGE_SHARE] = {"SHARE", share},
    [MESSAGE_PULL] = {"PULL", pull},
    [MESSAGE_WEIGHTS] = {"WEIGHTS", pull},
    [MESSAGE_LOSS] = {"LOSS", loss},
    [MESSAGE_CONTRIBUTION] = {"CONTRIBUTION", contribution},
    [MESSAGE_FREE] = {"FREE", free_slot},
    [MESSAGE_GRANT] = {"GRANT", grant},
    [MESSAGE_COVERED] = {"COVERED", done},
    [MESSAGE_DONE] = {"DONE", done},
    [MESSAGE_EVALUATE] = {"EVALUATE", evaluate},
    [MESSAGE_EVALUATED] = {"EVALUATED", evaluated},
    [MESSAGE_GENERATE] = {"GENERATE", generate},
    [MESSAGE_GENERATED] = {"GENERATED", nothing},
    [MESSAGE_SAVE] = {"SAVE", save},
    [MESSAGE_SAVED] = {"SAVED", save},
    [MESSAGE_SAVE_FAILED] = {"SAVE_FAILED", save_failed},
    [MESSAGE_SNAPSHOT] = {"SNAPSHOT", nothing},
    [MESSAGE_STATUS] = {"STATUS", nothing},
    [MESSAGE_STATUS_REPLY] = {"STATUS_REPLY", status_reply},
    [MESSAGE_MEMORY] = {"MEMORY", memory},
    [MESSAGE_MEMORY_REPLY] = {"MEMORY_REPLY", memory_reply},
    [MESSAGE_LEDGER] = {"LEDGER", ledger},
    [MESSAGE_UNITS] = {"UNITS", units},
    [MESSAGE_UNITS_REPLY] = {"UNITS_REPLY", units_reply},
    [MESSAGE_WORKERS] = {"WORKERS", nothing},
    [MESSAGE_WORKERS_REPLY] = {"WORKERS_REPLY", workers_reply},
    [MESSAGE_RECENT] = {"RECENT", nothing},
    [MESSAGE_RECENT_REPLY] = {"RECENT_REPLY", recent_reply},
    [MESSAGE_STOP] = {"STOP", nothing},
    [MESSAGE_REFUSED] = {"REFUSED", refused},
    [MESSAGE_FAILED] = {"FAILED", refused},
    [MESSAGE_BYE] = {"BYE", nothing},
};

const char *message_name(enum message_kind kind)
{
    const char *name = (unsigned)kind < MESSAGE_KINDS ? kinds[kind].name : NULL;

    return name ? name : "?";
}

size_t message_encode(uint8_t *buf, size_t cap, const struct message *m)
{
    struct message copy = *m; /* the fields are listed for reading too, which writes to them */
    struct wire w = {.to = buf, .at = MESSAGE_HEADER_BYTES, .end = MESSAGE_MAX_BYTES};

    assert(cap >= MESSAGE_MAX_BYTES);
    assert((unsigned)m->kind < MESSAGE_KINDS && kinds[m->kind].fields);
    kinds[m->kind].fields(&w, &copy);
    assert(!w.why);
    put(buf, MESSAGE_MAGIC, 2);
    put(buf + 2, MESSAGE_VERSION, 1);
    put(buf + 3, m->kind, 1);
    put(buf + 4, w.at - MESSAGE_HEADER_BYTES, 2);
    put(buf + 6, 0, 2);
    put(buf + 8, m->sequence, 8);
    return w.at;
}

int message_version(const uint8_t *buf, size_t n)
{
    return n >= MESSAGE_HEADER_BYTES && get(buf, 2) == MESSAGE_MAGIC ? buf[2] : -1;
}

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
    if (get(buf + 4, 2) != n - MESSAGE_HEADER_BYTES)
        return "body is not the promised length";
    if (get(buf + 6, 2) != 0)
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
    m.sequence = get(buf + 8, 8);
    kinds[m.kind].fields(&w, &m);
    if (w.at != w.end)
        wrong(&w, "longer than its kind");
    *why = w.why;
    if (w.why)
        return -EBADMSG;
    *out = m;
    return 0;
}

uint64_t message_data_bytes(uint32_t batch, uint32_t seq)
{
    return 4 * (uint64_t)batch * seq * sizeof(uint32_t);
}

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

uint64_t message_generate_logits(uint32_t seq)
{
    return rounded(seq * sizeof(uint32_t));
}

uint64_t message_generate_bytes(uint32_t seq, uint32_t vocabulary)
{
    return message_generate_logits(seq) + rounded(vocabulary * sizeof(float));
}
