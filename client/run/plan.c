/* eps_plan: the daemon's and the worker's own arithmetic, with neither of them. */
#include "client/daemon/look.h"
#include "client/eps.h"
#include "client/model/preset.h"
#include "client/run/options.h"
#include "client/run/record.h"
#include "proto/base/process.h"
#include "proto/plan/advice.h"
#include "proto/plan/cost.h"
#include "proto/plan/search.h"
#include "proto/plan/timeline.h"
#include "proto/plan/units.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_LAYERS = 4096, MOST_ROWS = 1 << 20, MOST_TOKENS = 1 << 27 };

/* A model with its options, and the room there is. */
struct question {
    struct eps_train_options options; /* resolved */
    struct model_config config;
    uint64_t config_bytes, side_bytes; /* that go with the job */
    struct model model;
    struct profile profile;
    bool measured;
    const struct plan_backend *backend;
    uint64_t available; /* of the host's memory, for everything there; UINT64_MAX: not said */
    uint64_t cap;       /* of the daemon's bytes; UINT64_MAX: none but that */
    bool shared;        /* the workers' memory is the host's, and it is the host's that is asked about */
};

/* What was found: a worker's plan and the daemon's bytes with it. */
struct answer {
    struct plan plan;
    struct plan_host host;
    struct plan_host_setting setting;
};

static int read_config(struct question *q, const char *name, struct error *err)
{
    const bool file = access(name, F_OK) == 0 || strpbrk(name, "/.");
    const struct eps_preset *preset = file ? NULL : client_preset_find(name);
    struct client_model model;
    struct stat st;
    int rc;

    if (!file && !preset)
        return client_preset_unknown(name, err);
    rc = preset ? client_preset_open(&model, preset, preset->vocabulary, err)
                : client_model_open_fresh(&model, name, err);
    if (rc)
        return rc;
    q->config = model.config;
    q->side_bytes = client_record_side_bytes(model.side, preset);
    if (fstat(model.config_fd, &st))
        rc = error_set(err, -errno, "--model %.200s: %s", name, strerror(errno));
    else
        q->config_bytes = (uint64_t)st.st_size;
    client_model_close(&model);
    return rc;
}

/* A device that nobody looks at has as much as it takes. */
static uint64_t default_budget(const struct question *q, uint32_t n_workers)
{
    return q->backend->takes_turns ? plan_default_budget(q->backend, q->available, n_workers) : UINT64_MAX;
}

static int resolve(struct question *q, const struct eps_train_options *in, struct error *err)
{
    const struct client_facts facts = {.n_positions = q->config.n_positions,
                                       .fresh = true,
                                       .n_tokens = (uint64_t)1 << 40}; /* enough for any batch */
    const uint32_t n_workers = in->workers ? in->workers : 1;
    struct eps_train_options options = *in;
    struct device_name device;
    int rc = client_options_device(&device, in->device, n_workers, NULL, err);

    if (rc)
        return rc;
    const bool cuda = device.kind == DEVICE_CUDA;
    q->backend = cuda ? &plan_cuda : &plan_cpu;
    const struct client_devices devices = {.cpu = !cuda, .cuda = cuda, .budget = default_budget(q, n_workers)};
    options.steps = 1, options.epochs = NAN, options.eval_data = NULL, options.connect = NULL;
    options.warmup = 0, options.eval_every = 0;
    rc = client_options_resolve(&q->options, &options, &facts, err);
    client_options_settle(&q->options, &devices);
    return rc;
}

static void close_question(struct question *q)
{
    model_free(&q->model);
}

/* Undo: close_question, after a failure too. */
static int open_question(struct question *q, const struct eps_train_options *in, struct error *err)
{
    *q = (struct question){.available = process_available_bytes(), .cap = UINT64_MAX};
    if (!in->model)
        return error_set(err, -EDOM, "--model is missing: name a directory, a config.json or a preset");
    int rc = read_config(q, in->model, err);
    if (!rc)
        rc = resolve(q, in, err);
    if (!rc)
        rc = model_init(&q->model, &q->config, err);
    if (rc)
        return rc;
    q->shared = q->backend->takes_turns && !in->host_mem;
    if (in->host_mem)
        q->cap = in->host_mem, q->available = UINT64_MAX;
    return profile_find(&q->profile, &q->measured, q->backend->name, err);
}

/* That get a share. */
static uint32_t workers_of(const struct question *q)
{
    return q->options.workers < q->options.parts ? q->options.workers : q->options.parts;
}

static struct plan_setting setting_of(const struct question *q)
{
    const struct eps_train_options *o = &q->options;
    struct plan_setting setting = {
        .backend = q->backend,
        .purpose = PLAN_TRAIN,
        .precision = client_options_number(o->precision),
        .grad = client_options_number(o->grad_dtype),
        .seq = o->seq,
    };

    plan_share(&setting, o->batch, o->parts, workers_of(q), sysconf(_SC_NPROCESSORS_ONLN));
    return setting;
}

/* The daemon's bytes beside that plan. */
static void add_host(struct answer *a, const struct question *q)
{
    const struct eps_train_options *o = &q->options;

    a->setting = (struct plan_host_setting){
        .purpose = PLAN_TRAIN,
        .precision = client_options_number(o->precision),
        .moments = client_options_number(o->moments),
        .grad = client_options_number(o->grad_dtype),
        .fenced = o->commit == EPS_FENCED,
        .adamw = o->optimizer == EPS_ADAMW,
        .n_parts = o->parts,
        .n_workers = o->workers,
        .beside = !q->backend->takes_turns,
        .batch = o->batch,
        .seq = o->seq,
        .host_stash_bytes = workers_of(q) * a->plan.host_stash_bytes,
        .config_bytes = q->config_bytes,
        .side_bytes = q->side_bytes,
    };
    plan_host(&a->host, &q->model, &a->setting);
}

static uint64_t arenas_of(const struct question *q, const struct answer *a)
{
    return q->shared ? workers_of(q) * plan_total(&a->plan) : 0;
}

static struct plan_room room_of(const struct question *q, const struct answer *a)
{
    return (struct plan_room){q->available, q->cap, arenas_of(q, a)};
}

static bool host_fits(const struct question *q, const struct answer *a)
{
    const struct plan_room room = room_of(q, a);

    return plan_host_fits(&a->host, &room);
}

/* No more rows at once than a part has: where the batch is what is asked for. */
static struct plan_wish wish_of(const struct question *q, bool no_host_stash)
{
    const uint32_t rows = q->options.microbatch, most = q->options.batch / q->options.parts;

    return (struct plan_wish){.microbatch = rows < most ? rows : most, .no_host_stash = no_host_stash};
}

static int find_fastest(struct answer *a, const struct question *q, bool no_host_stash, uint64_t budget,
                        struct error *err)
{
    const struct plan_setting setting = setting_of(q);
    const struct plan_wish wish = wish_of(q, no_host_stash);
    const int rc = plan_search(&a->plan, &q->model, &setting, &wish, &q->profile, budget, err);

    add_host(a, q);
    return rc;
}

static void find_smallest(struct answer *a, const struct question *q, bool no_host_stash)
{
    const struct plan_setting setting = setting_of(q);
    const struct plan_wish wish = wish_of(q, no_host_stash);

    plan_smallest(&a->plan, &q->model, &setting, &wish);
    add_host(a, q);
}

/* For each worker, of what the host has left beside that answer's daemon without a stash. */
static uint64_t left_of(const struct question *q, const struct answer *a)
{
    return q->shared ? plan_host_left(&a->host, q->available) / workers_of(q) : UINT64_MAX;
}

static int refuse_host(const struct question *q, const struct answer *a, struct error *err)
{
    const uint64_t arenas = arenas_of(q, a), all = a->host.total + arenas;
    const uint64_t needed = all + (q->available < UINT64_MAX ? plan_host_slack(all, a->host.n_workers) : 0);
    const uint64_t have = q->cap < UINT64_MAX ? q->cap : q->available;
    char terms[160] = "", bytes[PROCESS_BYTES_TEXT];

    plan_host_name_terms(terms, sizeof terms, &a->host, arenas);
    return error_set(err, -ENOMEM, "this model needs %.1f MiB (%" PRIu64 " bytes) of host memory (%s); %s %s",
                     ceil((double)needed / (1 << 20) * 10) / 10, needed, terms,
                     q->cap < UINT64_MAX ? "--host-mem is" : "free are", process_format_bytes(bytes, have));
}

/* Where no other option helps. */
static void add_remedy(const struct answer *a, struct error *err)
{
    const uint64_t of_rows = a->host.bytes[LEDGER_STASH] + a->host.bytes[LEDGER_DATA];

    error_append(err, "; choose a smaller %s", of_rows > a->host.total / 2 ? "--batch or --seq" : "model");
}

/* Of what the host leaves a worker. */
static bool find_less(struct answer *a, const struct question *q, bool no_host_stash, uint64_t left)
{
    const uint64_t budget = left < q->options.device_mem ? left : q->options.device_mem;

    return find_fastest(a, q, no_host_stash, budget, NULL) == 0 && host_fits(q, a);
}

/* As the daemon plans a job: the fastest that the device holds; where the host does not hold that, the fastest that it
 * leaves room for, without a stash there, or beside one that a small device cannot do without; and then the smallest
 * there is. 0, or why it does not fit: *a is then the smallest. */
static int find_fitting(struct answer *a, const struct question *q, struct error *err)
{
    struct answer other;
    int rc = find_fastest(a, q, false, q->options.device_mem, err);

    if (rc || host_fits(q, a))
        return rc;
    const uint64_t left = left_of(q, a), stash = a->plan.host_stash_bytes;
    if (find_less(&other, q, true, left) || find_less(&other, q, false, left > stash ? left - stash : 0)) {
        *a = other;
        return 0;
    }
    find_smallest(a, q, true);
    if (plan_total(&a->plan) > q->options.device_mem)
        find_smallest(a, q, false);
    return host_fits(q, a) ? 0 : refuse_host(q, a, err);
}

/* The same, with slots in what is left. */
static int fit(struct answer *a, const struct question *q, struct error *err)
{
    const int rc = find_fitting(a, q, err);
    const struct plan_room room = room_of(q, a);

    if (!rc)
        plan_host_add_slots(&a->host, &q->model, &a->setting, &room);
    return rc;
}

/* Of the options that the search assumes to be right. */
static int check(const struct question *q, struct error *err)
{
    const struct plan_setting setting = setting_of(q);

    return plan_check(&q->model, &setting, err);
}

/* The cheapest other options that fit are named, as the daemon names them. */
static bool advise(const struct question *q, struct error *err)
{
    const struct plan_asked asked = {.batch = q->options.batch,
                                     .n_parts = q->options.parts,
                                     .n_workers = workers_of(q),
                                     .can_drop_workers = true,
                                     .moments = client_options_number(q->options.moments),
                                     .precision = client_options_number(q->options.precision)};
    char name[PLAN_ADVICE_TEXT], bytes[2][PROCESS_BYTES_TEXT];
    struct plan_asked advice;
    struct answer a;

    for (unsigned i = 0; plan_advice(&advice, &asked, i); i++) {
        struct question other = *q;
        other.options.workers = advice.n_workers, other.options.parts = advice.n_parts;
        other.options.moments = advice.moments == NUMBER_BF16 ? EPS_BF16 : EPS_FP32;
        other.options.precision = advice.precision == NUMBER_BF16 ? EPS_BF16 : EPS_FP32;
        if (check(&other, NULL) || fit(&a, &other, NULL))
            continue;
        error_append(err, "; %s would take %s of host memory and %s of %s", plan_advice_name(name, &advice, &asked),
                     process_format_bytes(bytes[0], a.host.total), process_format_bytes(bytes[1], plan_total(&a.plan)),
                     advice.n_workers > 1 ? "each device" : "the device");
        return true;
    }
    return false;
}

static void fill_side(struct eps_plan_side *side, const uint64_t bytes[LEDGER_CATEGORIES], uint64_t limit)
{
    side->limit = limit;
    for (int c = 0; c < LEDGER_CATEGORIES; c++) {
        if (bytes[c])
            side->terms[side->n_terms++] = (struct eps_plan_term){ledger_name((enum ledger_category)c), bytes[c]};
        side->bytes += bytes[c];
    }
}

static void fill_choice(struct eps_plan *out, const struct question *q, const struct answer *a)
{
    const struct plan *plan = &a->plan;
    const uint64_t value = number_bytes(plan->setting.precision);

    out->microbatch = plan->choice.microbatch, out->part_rows = plan->setting.part_rows;
    out->n_kept = plan->choice.n_kept, out->n_weight_buffers = plan->n_weight_buffers;
    out->n_resident = plan->n_resident, out->n_pulled = plan_count_uploaded(&q->model);
    out->host_stash = plan->choice.host_stash;
    out->whole_head = plan->choice.whole_head, out->one_pass = plan->one_pass;
    out->head_tile = plan->head_tile;
    out->n_sums = plan->n_sums, out->n_slots = a->host.n_slots;
    out->stash_bytes =
        (uint64_t)plan->setting.share_rows * plan->setting.seq * q->config.width * value * plan->n_boundaries;
}

static void fill_cost(struct eps_plan *out, const struct question *q, const struct answer *a)
{
    struct plan_cost cost;

    plan_cost(&cost, &a->plan, &q->model, &a->setting, &q->profile);
    out->down_bytes = cost.down_bytes, out->up_bytes = cost.up_bytes, out->stash_traffic = cost.stash_bytes;
    out->step_ms = cost.step_ms, out->compute_ms = cost.compute_ms, out->pull_ms = cost.pull_ms;
    out->push_ms = cost.push_ms, out->stash_ms = cost.stash_ms, out->optimizer_ms = cost.optimizer_ms;
    out->hiding_tokens = cost.hiding_tokens;
    out->measured = q->measured, out->overlaps = !q->backend->takes_turns;
}

/* Without a stash on the host where that has no room for it, and then the rest fits. */
static uint64_t minimum_of(const struct question *q)
{
    struct answer least, other;

    find_smallest(&least, q, false);
    find_smallest(&other, q, true);
    return plan_total(host_fits(q, &least) || !host_fits(q, &other) ? &least.plan : &other.plan);
}

static void fill(struct eps_plan *out, const struct question *q, const struct answer *a, int rc,
                 const struct error *err)
{
    *out = (struct eps_plan){.fits = rc == 0,
                             .options = q->options,
                             .n_parameters = q->model.n_parameters,
                             .n_layers = q->config.n_layers,
                             .width = q->config.width,
                             .n_workers = workers_of(q),
                             .device = q->backend->name,
                             .allowance = !q->backend->takes_turns,
                             .shared = q->shared,
                             .minimum = minimum_of(q)};
    if (rc)
        snprintf(out->why, sizeof out->why, "%s", err->text);
    fill_side(&out->host, a->host.bytes, q->cap < UINT64_MAX ? q->cap : q->available);
    fill_side(&out->worker, a->plan.bytes, q->options.device_mem);
    fill_choice(out, q, a);
    fill_cost(out, q, a);
}

static void fill_advised(struct eps_plan *out, const struct question *q, struct error *err)
{
    struct answer answer;
    const int rc = fit(&answer, q, err);

    if (rc && !advise(q, err) && rc == -ENOMEM)
        add_remedy(&answer, err);
    fill(out, q, &answer, rc, err);
}

int eps_plan(struct eps_plan *out, const struct eps_train_options *options, struct eps_error *error)
{
    struct error err = {""};
    struct question q;
    int rc = open_question(&q, options, &err);

    if (!rc)
        rc = check(&q, &err);
    if (!rc)
        fill_advised(out, &q, &err);
    close_question(&q);
    return client_report(error, &err, rc);
}

/* Waits for nobody are for launches and the host, which take no time: there are none. */
static int fill_timeline(struct eps_timeline *out, const struct question *q, const struct answer *a)
{
    static const enum plan_queue queues[EPS_QUEUES] = {PLAN_QUEUE_PULL, PLAN_QUEUE_COMPUTE, PLAN_QUEUE_PUSH,
                                                       PLAN_QUEUE_OPTIMIZER};
    const struct plan_timeline_setting setting = {
        .plan = &a->plan, .model = &q->model, .host = &a->setting, .profile = &q->profile, .n_slots = a->host.n_slots};
    const double tokens = (double)q->options.batch * q->options.seq;
    struct plan_timeline line;
    const int rc = plan_timeline(&line, &setting);

    if (rc)
        return rc;
    out->step_ms = line.seconds * 1e3;
    out->tokens_per_s = tokens / line.seconds;
    out->tflops = 6 * (double)q->model.n_parameters * out->tokens_per_s / 1e12;
    for (int i = 0; i < EPS_QUEUES; i++) {
        if (line.binds == queues[i])
            out->binds = (enum eps_queue)i;
        out->busy_ms[i] = line.queues[queues[i]].busy * 1e3;
        for (int j = 0; j < EPS_QUEUES; j++)
            out->waited_ms[i][j] = line.queues[queues[i]].waited[queues[j]] * 1e3;
    }
    return 0;
}

int eps_plan_timeline(struct eps_timeline *out, const struct eps_train_options *options, struct eps_error *error)
{
    struct error err = {""};
    struct question q;
    struct answer a;
    int rc = open_question(&q, options, &err);

    if (!rc)
        rc = check(&q, &err);
    if (!rc) {
        const int unfit = fit(&a, &q, &err);
        *out = (struct eps_timeline){.fits = unfit == 0, .measured = q.measured, .n_workers = workers_of(&q)};
        if (unfit)
            snprintf(out->why, sizeof out->why, "%s", err.text);
        if (fill_timeline(out, &q, &a))
            rc = error_set(&err, -ENOMEM, "no memory to play a step of %u microbatches in",
                           q.options.batch / a.plan.choice.microbatch);
    }
    close_question(&q);
    return client_report(error, &err, rc);
}

int eps_plan_minimum(uint64_t *bytes, const struct eps_train_options *options, struct eps_error *error)
{
    struct error err = {""};
    struct question q;
    int rc = open_question(&q, options, &err);

    if (!rc)
        rc = check(&q, &err);
    if (!rc)
        *bytes = minimum_of(&q);
    close_question(&q);
    return client_report(error, &err, rc);
}

static bool fits(const struct question *q)
{
    struct answer answer;

    return check(q, NULL) == 0 && fit(&answer, q, NULL) == 0;
}

static bool fits_depth(struct question *q, uint32_t n_layers)
{
    struct question other = *q;

    other.config.n_layers = n_layers;
    if (model_init(&other.model, &other.config, NULL))
        return false;
    const bool yes = fits(&other);
    model_free(&other.model);
    return yes;
}

static bool fits_parts_of(struct question *q, uint32_t part_rows)
{
    struct question other = *q;

    other.options.batch = part_rows * q->options.parts;
    return fits(&other);
}

/* The most, of 1 .. most, that fits; 0: none does. */
static uint32_t find_most(struct question *q, uint32_t most, bool (*fits_with)(struct question *q, uint32_t n))
{
    uint32_t least = 0;

    while (least < most) {
        const uint32_t middle = least + (most - least + 1) / 2;
        if (fits_with(q, middle))
            least = middle;
        else
            most = middle - 1;
    }
    return least;
}

/* Why not even one of it fits. */
static int refuse_all(struct question *q, struct error *err)
{
    struct answer answer;
    const int rc = fit(&answer, q, err);

    assert(rc); /* it was asked before */
    if (rc == -ENOMEM)
        add_remedy(&answer, err);
    return rc;
}

static int refuse_one_layer(struct question *q, struct error *err)
{
    model_free(&q->model);
    q->config.n_layers = 1;
    const int rc = model_init(&q->model, &q->config, err);
    return rc ? rc : refuse_all(q, err);
}

int eps_plan_depth(uint32_t *n_layers, const struct eps_train_options *options, struct eps_error *error)
{
    struct error err = {""};
    struct question q;
    int rc = open_question(&q, options, &err);

    if (!rc)
        rc = check(&q, &err);
    if (!rc && (*n_layers = find_most(&q, MOST_LAYERS, fits_depth)) == 0)
        rc = refuse_one_layer(&q, &err);
    close_question(&q);
    return client_report(error, &err, rc);
}

int eps_plan_batch(uint32_t *n_rows, const struct eps_train_options *options, struct eps_error *error)
{
    struct error err = {""};
    struct question q;
    int rc = open_question(&q, options, &err);

    if (!rc)
        rc = check(&q, &err);
    if (!rc) {
        const uint32_t by_tokens = MOST_TOKENS / q.options.seq, most = by_tokens < MOST_ROWS ? by_tokens : MOST_ROWS;
        *n_rows = q.options.parts * find_most(&q, most / q.options.parts, fits_parts_of);
        q.options.batch = q.options.parts;
        if (*n_rows == 0)
            rc = refuse_all(&q, &err);
    }
    close_question(&q);
    return client_report(error, &err, rc);
}
