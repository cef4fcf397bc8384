/* eps_plan, of one form: the daemon's and the worker's own arithmetic, without either process. */
#include "client/ask/plan/form.h"
#include "client/ask/plan/model.h"
#include "client/ask/plan/timeline.h"
#include "client/daemon/observer.h"
#include "client/eps.h"
#include "client/images/view.h"
#include "client/member.h"
#include "client/record/disk.h"
#include "client/options/options.h"
#include "client/task/source.h"
#include "proto/base/process.h"
#include "proto/model/family.h"
#include "proto/plan/advice.h"
#include "proto/plan/memory/data.h"
#include "proto/plan/memory/segments.h"
#include "proto/plan/memory/units.h"
#include "proto/plan/memory/values.h"
#include "proto/plan/time/card.h"
#include "proto/step/timeline.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_LAYERS = 4096, MOST_ROWS = 1 << 20, MOST_TOKENS = 1 << 27, MANY_ROWS = 1 << 30, DEFAULT_SEQ = 1024 };

/* A model with its options and the memory available. */
struct question {
    struct eps_train_options options; /* resolved */
    struct model_config config;
    enum eps_task task;                /* the model's */
    uint64_t config_bytes, side_bytes; /* of the job's files */
    uint64_t header_bytes;             /* of its weights' files */
    uint32_t n_files;                  /* of weights */
    bool thawed;                       /* asked of the job that follows a thaw */
    bool brief;                        /* a refusal names no remedy */
    enum form coded;                   /* of those files: weights_form */
    uint64_t saved_bytes;              /* of those files in a checkpoint */
    struct model model;
    struct profile profile;
    bool measured;
    const struct card *card;  /* that is planned for; NULL: this machine's device */
    enum eps_card found_card; /* of this machine's GPU, where no device is named */
    uint64_t found_bytes;     /* that a worker would take of it; 0: none is found, or looked for */
    const struct plan_backend *backend;
    uint64_t available; /* host memory for everything; UINT64_MAX: unknown */
    uint64_t cap;       /* limit of the daemon's bytes; UINT64_MAX: none besides `available` */
    bool shared;        /* the workers' memory is the host's, and --host-mem is unset */
    struct plan_fit_device devices[PLAN_FIT_WORKERS];
    struct plan_fit *found; /* what fit finds; owned, as it has half a megabyte */
};

/* Takes over what a plan reads of the model. */
static int plan_read_model(struct question *q, const struct eps_train_options *in, struct error *err)
{
    struct plan_model m;
    const int rc = client_plan_model_read(&m, in, err);

    q->config = m.config, q->task = m.task, q->coded = m.coded;
    q->config_bytes = m.config_bytes, q->side_bytes = m.side_bytes, q->saved_bytes = m.saved_bytes;
    q->header_bytes = m.header_bytes, q->n_files = m.n_files;
    return rc;
}

/* The budget of a device that is not probed: of a card, as if it were free; else as much as the plan can use. */
static uint64_t default_budget(const struct question *q, uint32_t n_workers)
{
    if (q->backend->takes_turns)
        return plan_default_budget(q->backend, q->available, n_workers);
    if (q->found_bytes)
        return q->found_bytes;
    return q->card ? plan_default_budget(q->backend, q->card->bytes, n_workers) : UINT64_MAX;
}

/* Tokens of an encoder-decoder's source: half of the row unless given, as the data are not known. Others: 0. */
static uint32_t source_of(const struct question *q, const struct eps_train_options *in)
{
    if (!model_has_source(&q->config))
        return 0;
    return in->source_seq ? in->source_seq : (in->seq ? in->seq : DEFAULT_SEQ) / 2;
}

/* The driver's first GPU that eps trains on. Of several, CUDA may number another one first, which eps-worker takes. */
static bool plan_finds_gpu(struct question *q)
{
    struct eps_machine machine;

    eps_machine(&machine);
    for (uint32_t i = 0; i < machine.n_devices; i++) {
        const struct eps_machine_device *d = &machine.devices[i];
        if (!d->computes)
            continue;
        q->found_card = d->card;
        q->found_bytes = d->default_mem;
        return true;
    }
    return false;
}

static int plan_resolve(struct question *q, const struct eps_train_options *in, struct error *err)
{
    const struct client_facts facts = {.n_positions = q->config.n_positions,
                                       .masked = q->config.family->masked && !q->task,
                                       .pairs = !isnan(in->dpo_beta),
                                       .whole = q->task != EPS_TASK_DEFAULT,
                                       .seq = q->config.image.height > 0 ? q->config.n_positions : 0,
                                       .source = source_of(q, in),
                                       .task = q->task,
                                       .n_rows = MANY_ROWS,
                                       .joined = q->config.image.ghost_batch,
                                       .longest = UINT32_MAX,
                                       .least = 1,
                                       .fresh = true,
                                       .adapts = q->config.adapter.rank > 0,
                                       .coded = q->coded,
                                       .n_tokens = (uint64_t)1 << 40}; /* enough for any batch, as are the rows */
    const uint32_t n_workers = in->workers ? in->workers : 1;
    struct eps_train_options options = *in;
    struct device_name device;
    int rc = client_options_device(&device, in->device || !in->card ? in->device : "cuda", n_workers, NULL, err);

    if (rc)
        return rc;
    if (in->card && device.kind != DEVICE_CUDA)
        return error_set(err, -EDOM, "--card %s is a CUDA device: choose --device cuda, or leave it out",
                         cards[in->card - 1].name);
    q->card = in->card ? &cards[in->card - 1] : NULL;
    const bool cuda = device.kind == DEVICE_CUDA || (device.kind == DEVICE_AUTO && plan_finds_gpu(q));
    q->backend = cuda ? &plan_cuda : &plan_cpu;
    const struct client_devices devices = {.cpu = !cuda, .cuda = cuda, .budget = default_budget(q, n_workers)};
    options.steps = 1, options.epochs = NAN, options.eval_data = NULL, options.connect = NULL;
    options.warmup = 0, options.eval_every = 0, options.freeze_until = 0;
    rc = client_options_resolve(&q->options, &options, &facts, err);
    q->options.n_labels = q->config.n_labels;
    client_options_complete(&q->options, &devices);
    return rc;
}

/* The data are not known, so a model of text may be given conversations. */
static int plan_check_tasks(const struct question *q, const struct eps_train_options *in, struct error *err)
{
    const struct client_source_ops *kind = client_source_kind(&q->config, in->mask_fraction);
    const bool pairs = !isnan(in->dpo_beta);
    struct client_frame frame;

    if (pairs && (q->task || !client_source_predicts_next(q->config.family)))
        return error_set(err, -EDOM, "--dpo-beta is for models that predict the next token, and this %s model does not",
                         q->config.family->model_type);
    int rc = client_options_check_tasks(in, EPS_COMMAND_PLAN, client_source_planned(kind, pairs), false, err);
    if (!rc)
        rc = client_frame_parse(&frame, in->image, err);
    return rc ? rc : client_frame_check(&frame, &q->config.image, err);
}

static void close_question(struct question *q)
{
    model_free(&q->model);
    free(q->found);
}

/* Undo: close_question, also after a failure. */
static int open_question(struct question *q, const struct eps_train_options *in, bool thawed, struct error *err)
{
    *q = (struct question){.available = process_available_bytes(),
                           .cap = UINT64_MAX,
                           .thawed = thawed,
                           .found = malloc(sizeof *q->found)};
    if (!q->found)
        return error_memory(err);
    if (!in->model)
        return error_set(err, -EDOM, "--model is missing: name a directory, a config.json or a preset");
    int rc = plan_read_model(q, in, err);
    if (!rc)
        rc = plan_resolve(q, in, err);
    if (!rc)
        rc = client_options_model(&q->model, &q->config, &q->options, err);
    if (!rc && in->pack)
        rc = client_source_check_packs(&q->model, err);
    if (!rc)
        rc = plan_check_tasks(q, in, err);
    if (rc)
        return rc;
    q->shared = q->backend->takes_turns && !in->host_mem;
    if (in->host_mem)
        q->cap = in->host_mem, q->available = UINT64_MAX;
    if (!q->card)
        rc = profile_find(&q->profile, &q->measured, q->backend->name, err);
    if (!q->card && !q->measured && q->found_card)
        q->card = &cards[q->found_card - 1];
    if (q->card)
        q->profile = card_profile(q->card);
    return rc;
}

/* Workers that get a share. */
static uint32_t workers_of(const struct question *q)
{
    return q->options.workers < q->options.parts ? q->options.workers : q->options.parts;
}

/* What devices need depends on no more than that there are tokens to remember. */
static struct plan_goal plan_goal_of(const struct question *q)
{
    struct plan_goal goal = client_options_goal(&q->options);

    client_source_ask(&goal, client_source_fields(q->options.teaches));
    goal.entries = q->options.data_tokens > 0 ? q->options.data_tokens : 1;
    return goal;
}

/* Of a device that was not measured: the way that is asked for, if it is any. */
static enum plan_attention best_attention(const struct question *q)
{
    const enum plan_attention_wish wish = client_options_goal(&q->options).attention;
    const bool assumed = !q->measured && !q->backend->takes_turns && wish >= PLAN_ATTENTION_EXACTLY;
    const enum plan_attention way = assumed ? (enum plan_attention)(wish - PLAN_ATTENTION_EXACTLY) : PLAN_ATTENTION_OWN;

    return way > PLAN_ATTENTION_FORWARD ? way : q->profile.attention;
}

/* The question in the daemon's form. Borrows from q and fills in q's devices. If the batch is to be found, a microbatch
 * has at most the rows of a part. */
static struct plan_fit_asked asked_of(struct question *q)
{
    const struct eps_train_options *o = &q->options;
    const uint32_t n_workers = workers_of(q), part_rows = o->batch / o->parts;

    for (uint32_t i = 0; i < n_workers; i++)
        q->devices[i] = (struct plan_fit_device){.backend = q->backend,
                                                 .profile = &q->profile,
                                                 .budget = o->device_mem,
                                                 .measured = q->measured,
                                                 .attention = best_attention(q),
                                                 .convolution = profile_has_conv2d(&q->profile)};
    struct plan_goal goal = plan_goal_of(q);
    plan_remember_norms(&q->model, &goal);
    goal.entries = q->model.n_norm_maps > 0 ? goal.entries : 0;
    return (struct plan_fit_asked){
        .model = &q->model,
        .goal = goal,
        .microbatch = o->microbatch < part_rows ? o->microbatch : part_rows,
        .config_bytes = q->config_bytes,
        .side_bytes = q->side_bytes,
        .n_files = q->n_files,
        .header_bytes = q->header_bytes,
        .from_checkpoint = q->thawed,
        .devices = q->devices,
        .n_workers = n_workers,
        .n_cores = sysconf(_SC_NPROCESSORS_ONLN),
        .available = q->available,
        .cap = q->cap,
    };
}

/* What `fit` found too small. */
static void fill_shortage(struct eps_plan *out, const struct plan_fit *fit, int rc)
{
    struct plan_fit_shortage shortage;

    plan_fit_shortage(&shortage, fit);
    out->shortage.device = rc == -ENOSPC;
    out->shortage.need = out->shortage.device ? out->worker.bytes : shortage.need;
    out->shortage.have = out->shortage.device ? out->worker.limit : shortage.have;
}

/* 0; -ENOSPC or -ENOMEM with why the job does not fit; else a failure. play: NULL where that is all that matters. */
static int fit(struct question *q, plan_player *play, struct error *err)
{
    struct plan_fit_asked asked = asked_of(q);

    asked.play = play;
    const int rc = plan_fit(q->found, &asked, err);
    struct plan_fit_shortage shortage;
    char bytes[PROCESS_BYTES_TEXT];

    if (rc != -ENOMEM)
        return rc;
    plan_fit_shortage(&shortage, q->found);
    return error_set(err, rc, "this model needs %.1f MiB (%" PRIu64 " bytes) of host memory (%s); %s %s",
                     ceil((double)shortage.need / (1 << 20) * 10) / 10, shortage.need, shortage.terms,
                     shortage.capped ? "--host-mem is" : "free are", process_format_bytes(bytes, shortage.have));
}

static bool is_refusal(int rc)
{
    return rc == -ENOSPC || rc == -ENOMEM;
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

static int fill_disk(struct eps_plan *out, const struct question *q, struct error *err)
{
    const struct plan_goal goal = client_options_goal(&q->options);
    struct client_disk disk;
    const int rc = client_disk_of(&disk, &q->model, &goal, q->saved_bytes, err);

    out->checkpoint_bytes = client_disk_bytes(&disk);
    out->n_checkpoints = (uint64_t)q->options.keep + 3; /* the best, an interim, and the one being written */
    return rc;
}

static void fill_choice(struct eps_plan *out, const struct question *q, const struct plan_fit *fit)
{
    const struct plan *plan = &fit->plans[0];

    out->microbatch = plan->choice.microbatch, out->part_rows = plan->setting.part_rows;
    out->group_parts = plan->setting.share_rows / plan->setting.part_rows;
    out->n_groups = (plan->share_parts + out->group_parts - 1) / out->group_parts;
    out->n_blocks = client_model_blocks(out->blocks, &q->model, &plan->choice);
    out->n_weight_buffers = plan->n_weight_buffers;
    out->n_resident = plan->n_resident, out->n_pulled = plan_count_uploaded(&q->model);
    out->host_stash = plan->choice.host_stash;
    out->n_inputs = q->model.n_layers - 1, out->n_stored = plan_count_stored(&plan->choice, &q->model);
    out->derives = plan->choice.derives;
    out->whole_head = plan->choice.whole_head, out->one_pass = plan->one_pass;
    out->sparse_singly = plan->choice.sparse_singly;
    out->head_tile = plan->head_tile;
    out->n_sums = plan->n_sums, out->n_slots = fit->host.n_slots;
    out->replays = fit->host.replay == PLAN_REPLAY_ON, out->replay = plan_replay_text(fit->host.replay);
    out->stash_bytes = plan_stash_bytes(plan, &q->model);
}

static void fill_cost(struct eps_plan *out, const struct question *q, const struct plan_cost *cost)
{
    out->down_bytes = cost->down_bytes, out->up_bytes = cost->up_bytes, out->stash_traffic = cost->stash_bytes;
    out->step_ms = cost->step_ms, out->compute_ms = cost->compute_ms, out->pull_ms = cost->pull_ms;
    out->push_ms = cost->push_ms, out->stash_ms = cost->stash_ms, out->optimizer_ms = cost->optimizer_ms;
    out->message_ms = cost->message_ms, out->hiding_tokens = cost->hiding_tokens;
    out->measured = q->measured, out->overlaps = !q->backend->takes_turns;
    out->host_binds = cost->device_ms < cost->step_ms;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* What the same choice takes if all tensors are trained. A base's decoded weights may take more of the device. */
static int fill_frozen(struct eps_plan *out, const struct question *q, const struct plan_fit *fit, struct error *err)
{
    const struct plan *plan = &fit->plans[0];
    struct plan_host host, other_host;
    struct plan other_plan;
    struct model other;

    out->frozen.n_parameters = q->model.n_parameters - q->model.n_trained;
    if (out->frozen.n_parameters == 0 || q->config.adapter.rank > 0) /* without it this would be another model */
        return 0;
    const int rc = model_init(&other, &q->config, err);
    if (rc)
        return rc;
    plan_approximate(&other, &fit->setting.goal);
    plan_host(&host, &q->model, &fit->setting);
    plan_host(&other_host, &other, &fit->setting);
    plan_lay_out(&other_plan, &other, &plan->setting, &plan->choice);
    out->frozen.host_bytes = less(other_host.total, host.total);
    out->frozen.device_bytes = less(plan_total(&other_plan), plan_total(plan));
    model_free(&other);
    return 0;
}

static void plan_fill(struct eps_plan *out, struct question *q, const struct plan_fit *fit)
{
    const struct plan_fit_asked asked = asked_of(q);

    *out = (struct eps_plan){.options = q->options,
                             .ignored = q->config.ignored,
                             .n_parameters = q->model.n_parameters,
                             .adapter_rank = q->config.adapter.rank,
                             .adapter_least_rank = model_adapter_least_rank(&q->config.adapter),
                             .n_layers = q->config.n_layers,
                             .width = q->config.width,
                             .image_height = q->config.image.height,
                             .image_width = q->config.image.width,
                             .n_workers = workers_of(q),
                             .device = q->backend->name,
                             .allowance = !q->backend->takes_turns,
                             .shared = q->shared,
                             .minimum = plan_fit_minimum(&asked)};
    fill_side(&out->host, fit->host.bytes, q->cap < UINT64_MAX ? q->cap : q->available);
    fill_side(&out->worker, fit->plans[0].bytes, q->options.device_mem);
    fill_choice(out, q, fit);
    fill_cost(out, q, &fit->cost);
}

/* Fills in the reason and, unless it is to be brief, the remedy, in the daemon's words. */
static void fill_why(struct eps_plan *out, struct question *q, const struct plan_fit *fit, int rc, struct error *err)
{
    const struct plan_fit_asked asked = asked_of(q);
    const struct plan_advice_scope scope = {.can_drop_workers = true};

    if (!q->brief && !plan_advise(err, &asked, &scope) && rc == -ENOMEM)
        plan_remedy(err, &asked, fit);
    snprintf(out->why, sizeof out->why, "%s", err->text);
    client_name_members(out->why);
}

static int plan_answer_form(struct eps_plan *out, const struct eps_train_options *options, bool thawed, bool brief,
                            struct eps_error *error)
{
    struct error err = {""};
    struct question q;
    int rc = open_question(&q, options, thawed, &err);
    const bool opened = rc == 0;

    q.brief = brief;
    if (opened)
        rc = fit(&q, step_timeline_play, &err);
    if (opened && (!rc || is_refusal(rc))) {
        plan_fill(out, &q, q.found);
        out->fits = rc == 0, out->fresh = q.n_files == 0 && q.config.adapter.rank == 0;
        if (rc) {
            fill_shortage(out, q.found, rc);
            fill_why(out, &q, q.found, rc, &err);
        }
        rc = fill_frozen(out, &q, q.found, &err);
        if (!rc)
            rc = fill_disk(out, &q, &err);
    }
    close_question(&q);
    return client_report(error, &err, rc);
}

int client_plan_form(struct eps_plan *out, const struct eps_train_options *options, bool thawed,
                     struct eps_error *error)
{
    return plan_answer_form(out, options, thawed, false, error);
}

int client_plan_form_brief(struct eps_plan *out, const struct eps_train_options *options, struct eps_error *error)
{
    return plan_answer_form(out, options, false, true, error);
}

int eps_plan_timeline(struct eps_timeline *out, const struct eps_train_options *options, struct eps_error *error)
{
    struct error err = {""};
    struct question q;
    int rc = open_question(&q, options, false, &err);
    const bool opened = rc == 0;

    if (opened)
        rc = fit(&q, step_timeline_play, &err);
    if (opened && (!rc || is_refusal(rc))) {
        *out = (struct eps_timeline){.fits = rc == 0, .measured = q.measured, .n_workers = workers_of(&q)};
        if (rc) {
            snprintf(out->why, sizeof out->why, "%s", err.text);
            client_name_members(out->why);
        }
        rc = client_fill_timeline(out, &q.options, &q.model, &q.profile, q.found);
        if (rc)
            error_set(&err, rc, "no memory to simulate a step of %u microbatches",
                      q.options.batch / q.found->plans[0].choice.microbatch);
    }
    close_question(&q);
    return client_report(error, &err, rc);
}

/* Checks the options that a plan takes for granted. */
static int check(struct question *q, struct error *err)
{
    const struct plan_fit_asked asked = asked_of(q);
    const struct plan_setting setting = plan_fit_setting(&asked, 0);
    const int rc = plan_check(&q->model, &setting, err);
    return rc ? rc : plan_check_rows(&q->model, &setting, q->options.microbatch, err);
}

int client_plan_form_minimum(uint64_t *bytes, const struct eps_train_options *options, struct eps_error *error)
{
    struct error err = {""};
    struct question q;
    int rc = open_question(&q, options, false, &err);

    if (!rc)
        rc = check(&q, &err);
    if (!rc) {
        const struct plan_fit_asked asked = asked_of(&q);
        *bytes = plan_fit_minimum(&asked);
    }
    close_question(&q);
    return client_report(error, &err, rc);
}

static bool fits_depth(struct question *q, uint32_t n_layers)
{
    struct question other = *q;

    other.config.n_layers = n_layers;
    other.model = (struct model){0};
    const bool yes =
        client_options_model(&other.model, &other.config, &other.options, NULL) == 0 && fit(&other, NULL, NULL) == 0;
    model_free(&other.model);
    return yes;
}

/* The smallest minibatch. */
static uint32_t least_rows(const struct question *q)
{
    const struct plan_goal goal = client_options_goal(&q->options);

    return plan_joined_rows(&goal, &q->config) * q->options.parts;
}

static bool fits_rows(struct question *q, uint32_t n)
{
    struct question other = *q;

    other.options.batch = n * least_rows(q);
    return fit(&other, NULL, NULL) == 0;
}

/* The largest n in 1 .. most that fits; 0 if none does. */
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

/* Reports why not even n = 1 fits. */
static int refuse_all(struct question *q, struct error *err)
{
    const struct plan_fit_asked asked = asked_of(q);
    const int rc = fit(q, NULL, err);

    assert(rc); /* fits_with(q, 1) has failed */
    if (rc == -ENOMEM)
        plan_remedy(err, &asked, q->found);
    return rc;
}

static int refuse_one_layer(struct question *q, struct error *err)
{
    model_free(&q->model);
    q->config.n_layers = 1;
    const int rc = client_options_model(&q->model, &q->config, &q->options, err);
    return rc ? rc : refuse_all(q, err);
}

int eps_plan_depth(uint32_t *n_layers, const struct eps_train_options *options, struct eps_error *error)
{
    struct error err = {""};
    struct question q;
    int rc = open_question(&q, options, false, &err);

    if (!rc)
        rc = check(&q, &err);
    if (!rc && model_has_source(&q.config))
        rc = error_set(&err, -EDOM, "--find-depth is for models of one stack of blocks, and a %s model has two",
                       q.config.family->model_type);
    if (!rc && q.config.image.height > 0)
        rc = error_set(&err, -EDOM, "--find-depth is for models of like blocks, and those of images come in stages");
    if (!rc && options->freeze)
        rc = error_set(&err, -EDOM, "--find-depth does not go with --freeze, whose patterns name tensors of one depth");
    if (!rc && (*n_layers = find_most(&q, MOST_LAYERS, fits_depth)) == 0)
        rc = refuse_one_layer(&q, &err);
    close_question(&q);
    return client_report(error, &err, rc);
}

int client_plan_form_batch(uint32_t *n_rows, const struct eps_train_options *options, bool thawed,
                           struct eps_error *error)
{
    struct error err = {""};
    struct question q;
    int rc = open_question(&q, options, thawed, &err);

    if (!rc)
        rc = check(&q, &err);
    if (!rc) {
        const uint32_t by_tokens = MOST_TOKENS / q.options.seq, most = by_tokens < MOST_ROWS ? by_tokens : MOST_ROWS;
        *n_rows = least_rows(&q) * find_most(&q, most / least_rows(&q), fits_rows);
        q.options.batch = least_rows(&q);
        if (*n_rows == 0)
            rc = refuse_all(&q, &err);
    }
    close_question(&q);
    return client_report(error, &err, rc);
}
