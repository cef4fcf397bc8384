/* RELEASE may come in the middle of a step. It sets link.cancelled, on which every call of the link returns, and
 * on_mail gives the job back when the step has returned. The answer is posted when all is given back, as the worker
 * may be assigned anew from then on. */
#include "device/worker/compute.h"

#include "proto/step/generate.h"
#include "proto/step/step.h"
#include "device/worker/link.h"
#include "proto/base/process.h"
#include "proto/plan/memory/data.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ASSIGN's descriptors in order; stash and trace may be absent. */
enum { WEIGHTS_FD, INBOX_FD, DATA_FD, CONFIG_FD, STASH_FD, FEWEST_FDS = STASH_FD };

struct compute {
    const struct compute_options *options;
    struct mailbox *box;
    struct ledger ledger;
    struct link link;
    struct message assign; /* kind 0: no job */
    struct segment weights, inbox, data, stash;
    struct trace trace; /* open if the job is traced */
    struct device_worker worker;
};

static void post_ledger(struct compute *c)
{
    const struct message m = {.kind = MESSAGE_LEDGER, .ledger = c->ledger};

    mailbox_post(c->box, &m);
}

static void post_failed(struct compute *c, int code, const struct error *err)
{
    const struct message m = {.kind = MESSAGE_FAILED,
                              .failed = {.code = code, .error = *err->text ? *err : c->link.error}};

    mailbox_post(c->box, &m);
}

static struct plan_data data_of(const struct compute *c)
{
    return plan_data_of(&c->assign.assign.goal, c->worker.model.config.n_labels);
}

/* Where a minibatch's fields lie in the shared segment: addresses alone, nothing is read. Fields that this job does
 * not have are not used. */
static struct device_rows compute_rows_of(const struct compute *c, uint32_t buffer, uint32_t n_tokens)
{
    const struct plan_data data = data_of(c);
    const char *base = c->data.base;
    const uint64_t norms = plan_data_norms_at(&c->assign.assign.goal, &c->worker.model, buffer, 0);

    return (struct device_rows){.n_tokens = n_tokens,
                                .ids = (const uint32_t *)(base + data.buffers[buffer].at[PLAN_FIELD_IDS]),
                                .labels = (const uint32_t *)(base + data.buffers[buffer].at[PLAN_FIELD_LABELS]),
                                .positions = (const uint32_t *)(base + data.buffers[buffer].at[PLAN_FIELD_POSITIONS]),
                                .rows = (const struct plan_row *)(base + data.buffers[buffer].at[PLAN_FIELD_LENGTHS]),
                                .references = (const float *)(base + data.buffers[buffer].at[PLAN_FIELD_REFERENCES]),
                                .weights = (const float *)(base + data.buffers[buffer].at[PLAN_FIELD_WEIGHTS]),
                                .norms = c->worker.model.n_norm_maps ? (const uint16_t *)(base + norms) : NULL};
}

static void open_trace(struct compute *c, int fd)
{
    trace_open(&c->trace, fd, "eps-worker", "compute");
    c->worker.trace = c->link.trace = &c->trace;
}

static void compute_close_trace(struct compute *c)
{
    const bool open = c->trace.pid != 0;
    const int fd = c->trace.fd;
    const int rc = trace_close(&c->trace);

    if (open)
        close(fd);
    if (rc)
        log_warning("the trace ends early: %s", strerror(-rc));
}

static void free_job(struct compute *c)
{
    device_worker_free(&c->worker); /* first: the device uses the segments until it is closed */
    segment_close(&c->weights);
    segment_close(&c->inbox);
    segment_close(&c->data);
    segment_close(&c->stash);
    compute_close_trace(c);
    memset(&c->assign, 0, sizeof c->assign);
}

/* Checks the daemon's choice against this worker's budget. Both sides compute the same plan from the same message.
 * If their results differ, one of them would write beyond its memory. */
static int check_plan(const struct compute *c, struct error *err)
{
    const struct plan *plan = &c->worker.plan;
    const uint64_t budget = c->options->device.budget;
    char need[PROCESS_BYTES_TEXT], have[PROCESS_BYTES_TEXT];

    if (plan->host_stash_bytes != c->assign.assign.host_stash_bytes)
        return error_set(err, -EPROTO, "the daemon's plan is not this worker's: are they of one build?");
    if (plan_total(plan) > budget)
        return error_set(err, -ENOSPC, "the daemon's plan takes %s of this device, of which %s may be used",
                         process_format_bytes(need, plan_total(plan)), process_format_bytes(have, budget));
    if (model_largest_bytes(&c->worker.model, plan->setting.goal.precision) > c->assign.assign.weights_bytes)
        return error_set(err, -EPROTO,
                         "the daemon's memory for weights has no room for the model's largest unit: are they of one "
                         "build?");
    return 0;
}

/* Reads the daemon's config text by this process's own rules: copies it first, then checks the copy. */
static int compute_read_config(struct model_config *out, int fd, uint32_t n, const struct plan_goal *goal,
                               struct error *err)
{
    char *text = malloc(n);
    int rc = text ? 0 : error_memory(err);

    if (!rc && pread(fd, text, n, 0) != (ssize_t)n)
        rc = error_set(err, -EPROTO, "config.json came without its %" PRIu32 " bytes", n);
    if (!rc && (rc = model_config_parse(out, text, n, err)))
        error_prefix(err, "config.json");
    if (!rc)
        rc = plan_divide_rows(out, goal, err);
    free(text);
    return rc;
}

/* Laid out first, as arithmetic, then claimed: a plan that does not fit is refused before the device is touched. */
static int compute_claim(struct compute *c, const struct model_config *config, struct error *err)
{
    const struct message *m = &c->assign;
    const uint32_t part_rows = m->assign.goal.batch / m->assign.goal.n_parts;
    const struct device_claim *device = &c->options->device;
    const struct device_worker_options options = {
        .config = *config,
        .freeze = m->assign.freeze,
        .ops = device->ops,
        .index = device->index,
        .setting = {.backend = plan_backend_find(device->name),
                    .library_bytes = device->facts.library_bytes,
                    .attention = (enum plan_attention)m->assign.attention,
                    .convolution = m->assign.convolution,
                    .goal = m->assign.goal,
                    .share_rows = m->assign.max_parts * part_rows,
                    .part_rows = part_rows,
                    .n_threads = m->assign.n_threads},
        .choice = m->assign.choice,
        .seed = m->assign.seed,
        .done = &c->box->progress,
    };
    int rc = device_worker_lay_out(&c->worker, &options, &c->ledger, err);

    ledger_forget_peaks(&c->ledger);
    if (!rc)
        rc = check_plan(c, err);
    if (!rc)
        rc = device_worker_claim(&c->worker, &options, err);
    if (rc)
        return rc;
    if (c->worker.attention[0])
        log_line("%s", c->worker.attention);
    if (c->worker.convolutions[0])
        log_line("%s", c->worker.convolutions);
    return 0;
}

/* Always takes the descriptors. An inbox of a job without training has one byte, since a segment has at least that. */
static int compute_attach(struct compute *c, const struct mail *mail, struct error *err)
{
    const struct message *m = &mail->message;
    const struct model *model = &c->worker.model;
    const size_t slot_bytes = model_slot_bytes(model, m->assign.goal.grad);
    const bool gives_logits =
        m->assign.goal.purpose == PLAN_GENERATE || plan_data_of(&m->assign.goal, model->config.n_labels).outputs > 0;
    const struct {
        struct segment *segment;
        int fd;
        uint64_t bytes;
        enum segment_access access;
    } segments[] = {
        {&c->weights, mail->fds[WEIGHTS_FD], m->assign.weights_bytes, SEGMENT_READ},
        {&c->inbox, mail->fds[INBOX_FD],
         m->assign.goal.purpose == PLAN_TRAIN ? (1 + m->assign.n_slots) * slot_bytes : 1, SEGMENT_READ_WRITE},
        {&c->data, mail->fds[DATA_FD], plan_data_bytes(&m->assign.goal, model),
         gives_logits ? SEGMENT_READ_WRITE : SEGMENT_READ},
        {&c->stash, mail->fds[STASH_FD], m->assign.host_stash_bytes, SEGMENT_READ_WRITE},
    };
    int rc = 0;

    for (unsigned i = 0; i < 3u + m->assign.choice.host_stash; i++) {
        const int attached =
            segment_attach(segments[i].segment, segments[i].fd, segments[i].bytes, segments[i].access, rc ? NULL : err);
        rc = rc ? rc : attached;
    }
    close(mail->fds[CONFIG_FD]); /* already read */
    c->worker.stash = c->stash.base;
    c->link = (struct link){.box = c->box,
                            .model = model,
                            .weights = &c->weights,
                            .inbox = &c->inbox,
                            .precision = m->assign.goal.precision,
                            .grad = m->assign.goal.grad,
                            .slot_bytes = slot_bytes,
                            .n_slots = m->assign.n_slots,
                            .takes_turns = m->assign.takes_turns,
                            .groups = m->assign.groups};
    if (m->assign.trace)
        open_trace(c, mail->fds[mail->n_fds - 1]);
    return rc;
}

/* Lends the job's memory to the device, for direct access until it is closed. If the system refuses, copies are slower;
 * that is logged once per job. */
static void compute_lend(const struct compute *c)
{
    const struct {
        const struct segment *segment;
        bool writable;
    } segments[] = {{&c->weights, false}, {&c->inbox, true}, {&c->stash, true}};
    const struct device_worker *w = &c->worker;
    bool told = false;

    for (size_t i = 0; i < sizeof segments / sizeof *segments; i++) {
        const struct segment *s = segments[i].segment;
        struct error err;
        if (!s->base || !w->ops->lend(w->dev, s->base, s->bytes, segments[i].writable, &err) || told)
            continue;
        log_line("%s", err.text);
        told = true;
    }
}

/* Sets the algorithms that all workers of the job use. An algorithm that is unknown here is left out, and said:
 * results may then differ in their last bits. */
static void compute_choose_products(const struct compute *c)
{
    const struct device_worker *w = &c->worker;
    struct error err;

    if (c->assign.assign.products.version && w->ops->choose(w->dev, &c->assign.assign.products, &err))
        log_line("%s", err.text);
}

/* Whatever fails, the answer is REFUSED with a reason, and nothing of the job is left. The ledger is sent first, so
 * that the daemon never shows an assigned worker without memory. */
static void on_assign(struct compute *c, const struct mail *mail)
{
    const struct message *m = &mail->message;
    const unsigned n_fds = (unsigned)FEWEST_FDS + m->assign.choice.host_stash + m->assign.trace;
    struct message reply = {.kind = MESSAGE_ASSIGNED};
    struct model_config config;
    struct error err = {""};
    int rc = 0;

    free_job(c);
    c->assign = *m;
    if (mail->n_fds != n_fds || m->assign.n_slots > LINK_MAX_SLOTS)
        rc = error_set(&err, -EPROTO, "an assignment that cannot be");
    if (!rc)
        rc = compute_read_config(&config, mail->fds[CONFIG_FD], m->assign.config_bytes, &m->assign.goal, &err);
    if (!rc)
        rc = compute_claim(c, &config, &err);
    if (!rc)
        rc = compute_attach(c, mail, &err);
    else
        for (unsigned i = 0; i < mail->n_fds; i++)
            close(mail->fds[i]);
    if (rc) {
        free_job(c);
        reply.kind = MESSAGE_REFUSED;
        reply.refused.code = rc;
        reply.refused.error = err;
    } else {
        compute_lend(c);
        compute_choose_products(c);
        reply.assigned.arena_bytes = c->worker.plan.arena_bytes;
    }
    post_ledger(c);
    mailbox_post(c->box, &reply);
}

/* Operations within a step have their own events. Written at once, so that observers of a live run see whole steps. */
static void record_step(struct compute *c, uint64_t since, const struct message *m, bool audits)
{
    trace_end(&c->trace, since, audits ? "audit" : "step", NULL,
              (struct trace_arg[]){{"step", m->share.step + 1}, {"parts", m->share.n}, {NULL, 0}});
    trace_flush(&c->trace);
}

/* One pass over the share's parts: the share itself, or its audit. */
static int compute_share(struct compute *c, const struct message *m, const uint32_t *parts, uint32_t n,
                         const struct device_link *link, struct error *err)
{
    const struct device_share share = {
        .step = m->share.step,
        .n_valid = m->share.n_valid,
        .loss_scale = (float)m->share.loss_scale,
        .n_parts = n,
        .parts = parts,
        .groups = c->assign.assign.groups,
        .rows = compute_rows_of(c, m->share.buffer, m->share.n_tokens),
        .drop = &m->share.drop,
        .frozen = &m->share.frozen,
        .order = &m->share.order,
    };

    link_begin(&c->link, m->share.step);
    const uint64_t since = trace_begin(c->worker.trace);
    const int rc = device_worker_step(&c->worker, &share, link, &c->link, err);
    link_end(&c->link);
    if (c->worker.trace)
        record_step(c, since, m, link == &link_audit);
    return rc;
}

/* The audit comes first, for it waits for weights alone: what waits for its digests does not wait for ever. */
static void on_share(struct compute *c, const struct message *m)
{
    const uint32_t audit = m->share.audit - 1;
    uint32_t parts[MESSAGE_MAX_PARTS];
    struct error err = {""};
    int rc = 0;

    for (uint32_t i = 0; i < m->share.n; i++) {
        parts[i] = m->share.parts[i].part;
        c->link.attempts[parts[i]] = m->share.parts[i].attempt;
    }
    c->link.audited = m->share.audited;
    if (m->share.audit > 0)
        rc = compute_share(c, m, &audit, 1, &link_audit, &err);
    if (rc == 0)
        rc = compute_share(c, m, parts, m->share.n, &link_session, &err);
    if (rc && rc != -ECANCELED && rc != -ESTALE)
        post_failed(c, rc, &err);
    post_ledger(c);
}

static void on_evaluate(struct compute *c, const struct message *m)
{
    struct message reply = {.kind = MESSAGE_EVALUATED};
    struct error err = {""};
    const struct device_evaluation evaluation = {
        .rows = compute_rows_of(c, m->evaluate.buffer, m->evaluate.n_tokens),
        .first_row = m->evaluate.first_row,
        .n_rows = m->evaluate.n_rows,
        .drops = m->evaluate.drops,
        .step = m->evaluate.step,
        .base = m->evaluate.base,
        .logits = data_of(c).outputs ? (float *)((char *)c->data.base + data_of(c).logits) : NULL,
    };

    const struct device_worker *w = &c->worker;
    const struct products *products = &c->assign.assign.products;

    link_begin(&c->link, MESSAGE_NO_STEP);
    const uint64_t since = trace_begin(c->worker.trace);
    const bool chooses = products->version && !m->evaluate.drops; /* then it computes what the step will */
    if (chooses) /* a loss must have the same bits in a run and for its checkpoint */
        w->ops->choose(w->dev, &(struct products){0}, NULL);
    int rc = device_worker_evaluate(&c->worker, &evaluation, &link_session, &c->link, &reply.evaluated.sum, &err);
    link_end(&c->link);
    if (chooses)
        w->ops->choose(w->dev, products, NULL);
    if (c->worker.trace)
        trace_end(&c->trace, since, "evaluate", NULL, (struct trace_arg[]){{"rows", m->evaluate.n_rows}, {NULL, 0}});
    if (!rc)
        mailbox_post(c->box, &reply);
    else if (rc != -ECANCELED && rc != -ESTALE)
        post_failed(c, rc, &err);
}

static void on_generate(struct compute *c, const struct message *m)
{
    const struct message reply = {.kind = MESSAGE_GENERATED};
    struct error err = {""};
    const struct plan_goal *goal = &c->assign.assign.goal;
    const struct device_run run = {
        .ids = c->data.base,
        .sources = (const uint32_t *)((const char *)c->data.base + plan_generate_sources(goal)),
        .rows = m->generate.rows,
        .n_rows = m->generate.n_rows,
        .logits = (float *)((char *)c->data.base + plan_generate_logits(goal)),
    };

    link_begin(&c->link, MESSAGE_NO_STEP);
    int rc = device_worker_generate(&c->worker, &run, &link_session, &c->link, &err);
    link_end(&c->link);
    if (!rc)
        mailbox_post(c->box, &reply);
    else if (rc != -ECANCELED && rc != -ESTALE)
        post_failed(c, rc, &err);
}

/* The order is the daemon's guarantee: when it hears RELEASE, no thread of this process uses the job's memory. */
static void on_release(struct compute *c)
{
    const struct message reply = {.kind = MESSAGE_RELEASE};

    free_job(c);
    post_ledger(c);
    mailbox_post(c->box, &reply);
}

static unsigned team_size(const struct compute_options *options)
{
    const struct plan_backend *backend = plan_backend_find(options->device.name);
    const long n = sysconf(_SC_NPROCESSORS_ONLN);

    return backend && backend->takes_turns && n > 1 ? (unsigned)n : 1;
}

unsigned compute_threads(const struct compute_options *options)
{
    return team_size(options);
}

/* Starts the threads that compute products; libgomp creates them on first use. */
static void start_team(unsigned n)
{
    (void)n; /* without OpenMP */
#pragma omp parallel num_threads(n)
    __asm__ volatile(""); /* keeps the compiler from removing the empty region */
}

/* Ignores messages that do not fit the job, or that have none. */
static void on_mail(struct compute *c, const struct mail *mail)
{
    const struct message *m = &mail->message, *job = &c->assign;

    switch (mail_kind(m)) {
    case MAIL_ASSIGN:
        on_assign(c, mail);
        break;
    case MAIL_SHARE:
        if (job->kind && job->assign.goal.purpose == PLAN_TRAIN)
            on_share(c, m);
        break;
    case MAIL_EVALUATE:
        if (job->kind && job->assign.goal.purpose != PLAN_GENERATE &&
            (uint64_t)m->evaluate.first_row + m->evaluate.n_rows <= job->assign.goal.batch)
            on_evaluate(c, m);
        break;
    case MAIL_GENERATE:
        if (job->kind && job->assign.goal.purpose == PLAN_GENERATE)
            on_generate(c, m);
        break;
    case MAIL_RELEASE:
        c->link.cancelled = true;
        break;
    case MAIL_FREE: /* of the previous step, between two steps */
    case MAIL_GRANT:
    case MAIL_WEIGHTS:
    case MAIL_VOID:
        if (job->kind)
            link_take_in(&c->link, mail);
        break;
    case MAIL_NONE:
        break;
    }
    if (c->link.cancelled) { /* nothing follows RELEASE until it is answered: no descriptors are lost with `next` */
        assert(!c->link.has_next || c->link.next.n_fds == 0);
        c->link = (struct link){.box = c->box};
        on_release(c);
    }
}

/* The thread has one job at a time, and one message: what arrives during a step is taken in by the link, which leaves
 * the next share in `next`. */
void *compute_run(void *arg)
{
    struct compute c = {.options = arg};
    struct mail mail;

    start_team(team_size(c.options));
    c.box = c.options->box;
    for (;;) {
        if (c.link.has_next) {
            c.link.has_next = false;
            mail = c.link.next;
        } else {
            mailbox_wait(c.box, &mail);
        }
        on_mail(&c, &mail);
    }
}
