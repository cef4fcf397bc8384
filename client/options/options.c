/* The order of client_options_resolve: rates need nothing, parts need the workers, the commit needs the parts, the
 * batch needs seq and the data, and all that counts steps needs the batch. Resolved options go through it again on
 * resume, so each default is set only where nothing is, and checks that a stored run might fail (a warm-up longer than
 * the run that is now shorter) are left out for it. What is NAN or UINT64_MAX is unset; 0 is where 0 means nothing. */
#include "client/options/options.h"

#include "client/task/masks.h"
#include "client/options/value.h"
#include "client/order/batches.h"
#include "client/order/windows.h"
#include "proto/wire/message.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_BATCH = 1 << 20,
    MAX_TOKENS = 1 << 27, /* per minibatch: two of them take 2 GiB */
};

struct eps_train_options eps_train_defaults(void)
{
    struct eps_train_options options = {0};
    struct eps_option row;
    size_t n;
    const struct eps_option *rows = eps_options(&n);

    for (size_t i = 0; i < n; i++)
        if (eps_option_of(&row, &rows[i], EPS_COMMAND_TRAIN))
            client_option_clear(&options, &row);
    return options;
}

static double chosen(double given, double otherwise)
{
    return isnan(given) ? otherwise : given;
}

/* A preset's seq: below its positions if the data are shorter than the two windows they must give. It is not lowered
 * further for more windows, as positions beyond seq would learn nothing. */
static uint32_t preset_seq(const struct eps_train_options *o, const struct client_facts *facts)
{
    uint64_t most = o->eval_data ? facts->n_tokens : facts->n_tokens / 2;

    if (o->eval_data && facts->n_eval_tokens < most)
        most = facts->n_eval_tokens;
    return most < 2 ? 1 : most - 1 < o->seq ? (uint32_t)(most - 1) : o->seq;
}

int client_options_device(struct device_name *out, const char *device, uint32_t n_workers, const char *connect,
                          struct error *err)
{
    const int rc = device_name_parse(out, "--device", device ? device : "auto", err);

    if (rc)
        return rc;
    if (out->kind == DEVICE_AUTO && out->indexed) /* only eps-worker accepts "auto" with a number */
        return error_set(err, -EDOM, "--device %s: auto takes no number; the device N is cuda:N", device);
    if (connect && out->kind != DEVICE_AUTO)
        return error_set(
            err, -EDOM, "--device %s does not go with --connect: attach workers with that device to the daemon instead",
            device);
    if (out->indexed && n_workers > 1)
        return error_set(err, -EDOM,
                         "--device %s names one device, and --workers %u need one each: write only cuda, and they are "
                         "the first",
                         device, n_workers);
    return 0;
}

/* A run has one precision, so bf16 is its default only where all devices are GPUs. */
void client_options_complete(struct eps_train_options *options, const struct client_devices *devices)
{
    options->device = !devices->cuda ? "cpu" : devices->cpu ? "cpu and cuda" : "cuda";
    if (!options->connect && options->device_mem == 0)
        options->device_mem = devices->budget;
    if (options->precision == EPS_NUMBER_DEFAULT)
        options->precision = devices->cuda && !devices->cpu ? EPS_BF16 : EPS_FP32;
    if (options->grad_dtype == EPS_NUMBER_DEFAULT)
        options->grad_dtype = client_options_sent(options->precision);
}

enum eps_number client_options_sent(enum eps_number precision)
{
    return precision == EPS_BF16 ? EPS_BF16 : EPS_FP32;
}

uint64_t client_options_n_train(const struct eps_train_options *options, uint64_t n_tokens)
{
    return client_windows_n_train(n_tokens, options->seq, options->eval_data != NULL);
}

static int options_check_real(const char *option, double value, double least, double most, struct error *err)
{
    if (value >= least && value <= most) /* false for NaN */
        return 0;
    return error_set(err, -EDOM, "%s %g is not within %g and %g", option, value, least, most);
}

int client_options_check_seq(uint32_t seq, uint32_t n_positions, struct error *err)
{
    return seq > n_positions ? error_set(err, -EDOM, "--seq %u is more than the model's %u positions", seq, n_positions)
                             : 0;
}

int client_options_mask(double *fraction, struct error *err)
{
    if (isnan(*fraction))
        *fraction = CLIENT_MASKS_FRACTION;
    return client_masks_check(*fraction, err);
}

/* A smaller model bears a higher rate. */
static double preset_lr(const struct eps_preset *preset)
{
    const uint64_t mi = 1 << 20, n = preset->n_parameters;

    return n < 4 * mi ? client_preset_recipe(preset)->small_lr : n < 32 * mi ? 1e-3 : 3e-4;
}

/* As torch.optim.SGD, but for momentum and rate, without which it does not get far. */
static int resolve_sgd(struct eps_train_options *o, const struct client_facts *facts, struct error *err)
{
    if (!isnan(o->beta1) || !isnan(o->epsilon))
        return error_set(err, -EDOM, "%s is Adam's: leave it out with --optimizer sgd, which has --momentum",
                         isnan(o->beta1) ? "--epsilon" : "--betas");
    if (!isnan(o->clip_update))
        return error_set(err, -EDOM,
                         "--clip-update %g clips Adam's updates, which are about 1: leave it out with --optimizer sgd, "
                         "or choose --clip-norm",
                         o->clip_update);
    o->lr = chosen(o->lr, facts->fresh ? 0.1 : 0.01);
    o->weight_decay = chosen(o->weight_decay, 0);
    o->momentum = chosen(o->momentum, 0.9);
    if (!(o->momentum >= 0 && o->momentum < 1))
        return error_set(err, -EDOM, "--momentum %g is not at least 0 and less than 1", o->momentum);
    if (o->nesterov && o->momentum == 0)
        return error_set(err, -EDOM,
                         "--nesterov looks ahead along the momentum, and --momentum 0 keeps none: leave one of "
                         "them out");
    if (o->moments == EPS_MOMENTS_BF16 && o->momentum == 0)
        return error_set(err, -EDOM,
                         "--moments bf16 is the type of the momentum, and --momentum 0 keeps none: leave one of "
                         "them out");
    return 0;
}

/* The usual rates of an adapter, a fresh model and one that is tuned. A preset's second beta is lower, as its run may
 * be shorter than the thousand steps that 0.999 averages over. */
static int resolve_adam(struct eps_train_options *o, const struct client_facts *facts, struct error *err)
{
    const double usual = facts->adapts ? 2e-4 : facts->fresh ? 3e-4 : 2e-5;

    if (!isnan(o->momentum) || o->nesterov)
        return error_set(err, -EDOM, "%s is for --optimizer sgd: choose that, or leave it out; Adam has --betas",
                         isnan(o->momentum) ? "--nesterov" : "--momentum");
    o->lr = chosen(o->lr, facts->preset ? preset_lr(facts->preset) : usual);
    o->weight_decay = chosen(o->weight_decay, 0.01);
    o->beta1 = chosen(o->beta1, 0.9);
    o->beta2 = chosen(o->beta2, facts->preset ? 0.99 : 0.999);
    o->epsilon = chosen(o->epsilon, 1e-8);
    if (!(o->beta1 >= 0 && o->beta1 < 1) || !(o->beta2 >= 0 && o->beta2 < 1))
        return error_set(err, -EDOM, "--betas %g,%g: each has to be at least 0 and less than 1", o->beta1, o->beta2);
    return options_check_real("--epsilon", o->epsilon, 1e-30, 1, err);
}

static int resolve_optimizer(struct eps_train_options *o, const struct client_facts *facts, struct error *err)
{
    const double tiny = 1e-12;
    int rc = (o->optimizer == EPS_SGD ? resolve_sgd : resolve_adam)(o, facts, err);

    if (!rc)
        rc = client_options_schedule(o, err);
    if (rc)
        return rc;
    if (o->order == EPS_ORDER_DEFAULT)
        o->order = EPS_SHUFFLED;
    if (o->separator == EPS_SEPARATOR_DEFAULT)
        o->separator = facts->separated ? EPS_SEPARATOR_EOS : EPS_SEPARATOR_NONE;
    if (o->train_on == EPS_TRAIN_ON_DEFAULT)
        o->train_on = EPS_TRAIN_ON_ANSWERS;
    if (o->split_special_tokens == EPS_SPLIT_DEFAULT)
        o->split_special_tokens = EPS_SPLIT_YES;
    if (o->long_rows == EPS_LONG_DEFAULT)
        o->long_rows = EPS_LONG_CUT;
    if (o->seed == UINT64_MAX)
        o->seed = 0;
    if (o->seed > INT64_MAX)
        return error_set(err, -EDOM, "--seed %" PRIu64 " is not below 2^63", o->seed);
    rc = options_check_real("--lr", o->lr, tiny, 10, err);
    if (rc)
        return rc;
    if (isnan(o->min_lr))
        o->min_lr = o->schedule == EPS_SCHEDULE_CONSTANT                                           ? o->lr
                    : o->schedule == EPS_SCHEDULE_INVERSE_SQRT || o->schedule == EPS_SCHEDULE_STEP ? 0
                                                                                                   : o->lr / 10;
    if (!(o->min_lr >= 0 && o->min_lr <= o->lr))
        return error_set(err, -EDOM, "--min-lr %g is not within 0 and --lr %g%s", o->min_lr, o->lr,
                         facts->resumed ? ": change both, with --change lr,min-lr" : "");
    return options_check_real("--weight-decay", o->weight_decay, 0, 10, err);
}

_Static_assert(EPS_BASE_BF16 - EPS_BASE_FULL == FORM_BF16 && EPS_BASE_INT8 - EPS_BASE_FULL == FORM_INT8 &&
                   EPS_BASE_NF4 - EPS_BASE_FULL == FORM_NF4,
               "enum eps_base has the forms in their order");

/* Frozen weights that came quantised keep their form. */
static void resolve_base(struct eps_train_options *o, const struct client_facts *facts)
{
    const bool freezes = facts->adapts || (o->freeze && *o->freeze);

    if (o->base == EPS_BASE_DEFAULT)
        o->base = freezes ? (enum eps_base)(EPS_BASE_FULL + facts->coded) : EPS_BASE_FULL;
}

int client_options_check_connect(const struct eps_train_options *o, struct error *err)
{
    struct device_name device;

    if (o->connect && o->workers)
        return error_set(err, -EDOM, "--workers %u does not go with --connect: attach workers to that daemon instead",
                         o->workers);
    if (o->connect && o->device_mem)
        return error_set(err, -EDOM, "--device-mem does not go with --connect: give it to each eps-worker instead");
    return client_options_device(&device, o->device, o->workers, o->connect, err);
}

/* Resolves parts, seq and microbatch. batch follows later, as it needs the data. */
static int resolve_shape(struct eps_train_options *o, const struct client_facts *facts, struct error *err)
{
    int rc = client_options_check_connect(o, err);

    if (rc)
        return rc;
    if (o->connect && facts->n_workers == 0)
        return error_set(err, -EAGAIN, "the daemon has no worker: attach one with eps-worker --connect");
    if (!o->connect && o->workers == 0)
        o->workers = 1;
    if (o->workers > MESSAGE_MAX_PARTS)
        return error_set(err, -EDOM, "--workers %u is more than %d", o->workers, MESSAGE_MAX_PARTS);
    if (o->parts == 0)
        o->parts = !o->connect                            ? o->workers
                   : facts->n_workers < MESSAGE_MAX_PARTS ? facts->n_workers
                                                          : MESSAGE_MAX_PARTS;
    if (o->parts > MESSAGE_MAX_PARTS)
        return error_set(err, -EDOM, "--parts %u is more than %d", o->parts, MESSAGE_MAX_PARTS);
    if (o->seq == 0) {
        o->seq = facts->n_positions < 1024 ? facts->n_positions : 1024;
        o->seq = facts->seq      ? facts->seq
                 : facts->preset ? preset_seq(o, facts)
                 : facts->whole  ? client_batches_length(facts->longest, facts->n_positions)
                                 : o->seq;
    }
    rc = client_options_check_seq(o->seq, facts->n_positions, err);
    o->source_seq = facts->source;
    return rc;
}

int client_options_check_batch(uint32_t batch, uint32_t seq, struct error *err)
{
    if (batch <= MAX_BATCH && (uint64_t)batch * seq <= MAX_TOKENS)
        return 0;
    return error_set(err, -EDOM, "--batch %u of --seq %u: a minibatch has at most %d rows and %d tokens", batch, seq,
                     MAX_BATCH, MAX_TOKENS);
}

static int check_parts(const struct eps_train_options *o, const struct eps_train_options *asked, bool pairs,
                       struct error *err)
{
    const uint32_t whole = 2 * o->parts;

    if (pairs && o->batch % whole)
        return error_set(err, -EDOM,
                         "--batch %u: each part (--parts %u) has whole preferences, which are two rows each: choose %u",
                         o->batch, o->parts, o->batch < whole ? whole : o->batch - o->batch % whole);
    if (pairs && o->microbatch % 2)
        return error_set(err, -EDOM, "--microbatch %u: a preference is two rows, which stay together: choose %u",
                         o->microbatch, o->microbatch + 1);
    if (o->batch % o->parts)
        return error_set(err, -EDOM, "--batch %u is not a multiple of --parts %u%s: choose %u", o->batch, o->parts,
                         asked->parts ? "" : " (by default one for each worker)",
                         o->batch < o->parts ? o->parts : o->batch - o->batch % o->parts);
    if (o->microbatch > o->batch / o->parts)
        return error_set(err, -EDOM, "--microbatch %u is more than the %u rows of a part (--batch %u, --parts %u)",
                         o->microbatch, o->batch / o->parts, o->batch, o->parts);
    return 0;
}

static int resolve_preference(struct eps_train_options *o, struct error *err)
{
    o->dpo_beta = chosen(o->dpo_beta, 0.1); /* as in the paper, and in TRL */
    o->dpo_smoothing = chosen(o->dpo_smoothing, 0);
    if (!(o->dpo_beta > 0 && o->dpo_beta <= PREFERENCE_MOST_BETA))
        return error_set(err, -EDOM, "--dpo-beta %g is not above 0 and at most 1e6", o->dpo_beta);
    if (!(o->dpo_smoothing >= 0 && o->dpo_smoothing <= 0.5))
        return error_set(err, -EDOM, "--dpo-smoothing %g is not within 0 and 0.5", o->dpo_smoothing);
    return 0;
}

static int check_smoothing(const struct eps_train_options *o, const struct client_facts *facts, struct error *err)
{
    if (isnan(o->label_smoothing))
        return 0;
    if (facts->task == EPS_REGRESS)
        return error_set(err, -EDOM, "--label-smoothing is for tokens and classes, not for numbers: leave it out");
    if (o->label_smoothing >= 0 && o->label_smoothing < 1)
        return 0;
    return error_set(err, -EDOM, "--label-smoothing %g is not at least 0 and less than 1", o->label_smoothing);
}

/* Resolves the batch of whole rows, and what counts steps. An epoch has a step for the rows that are left at its end,
 * unless steps flow from one epoch into the next. */
static int resolve_rows(struct eps_train_options *o, const struct eps_train_options *asked,
                        const struct client_facts *facts, struct error *err)
{
    o->task = facts->task;
    if (facts->task)
        o->eval_tokens = 0;
    if (o->seq < facts->least)
        return error_set(err, -EDOM,
                         "--seq %u: the special tokens of a row leave no room for its text: choose %u or more", o->seq,
                         facts->least);
    if (facts->n_rows == 0)
        return error_set(err, -EINVAL, "--data %s: one row is too few to train on and to hold out another: give more",
                         o->data[0]);
    if (o->batch == 0)
        o->batch = client_options_choose_batch(o, facts, facts->n_rows);
    int rc = client_options_check_batch(o->batch, o->seq, err);
    if (!rc)
        rc = check_parts(o, asked, facts->pairs, err);
    const uint64_t filled = (facts->n_rows + (uint64_t)o->batch - 1) / o->batch * o->batch;
    return rc ? rc : client_options_length(o, facts, facts->flows ? facts->n_rows : filled, err);
}

int client_options_refuse_empty(const char *option, const char *const *names, size_t n, struct error *err)
{
    return error_set(err, -EINVAL, "%s%s%s is empty, or blank: give more data", option, n > 0 ? names[0] : "",
                     n > 1 ? " and more" : "");
}

int client_options_resolve(struct eps_train_options *out, const struct eps_train_options *in,
                           const struct client_facts *facts, struct error *err)
{
    const char *successor = facts->masked ? "" : " and the token after it";
    uint64_t n_train, window;

    *out = *in;
    resolve_base(out, facts);
    int rc = resolve_optimizer(out, facts, err);
    if (!rc)
        rc = resolve_shape(out, facts, err);
    if (!rc)
        rc = client_options_commit(out, err);
    if (!rc && facts->masked)
        rc = client_options_mask(&out->mask_fraction, err);
    if (!rc && facts->pairs)
        rc = resolve_preference(out, err);
    if (!rc)
        rc = check_smoothing(out, facts, err);
    if (rc)
        return rc;
    if (facts->whole)
        return resolve_rows(out, in, facts, err);
    n_train = client_options_n_train(out, facts->n_tokens);
    /* The last token of a window is only predicted; a masked model predicts tokens of the row itself. */
    window = (uint64_t)out->seq + !facts->masked;
    if (facts->n_tokens == 0)
        return client_options_refuse_empty("--data ", out->data, out->n_data, err);
    if (out->eval_data && facts->n_eval_tokens == 0)
        return client_options_refuse_empty("--eval-data ", &out->eval_data, 1, err);
    if (out->eval_data && facts->n_eval_tokens < window)
        return error_set(err, -EINVAL, "--eval-data %s: %" PRIu64 " tokens are too few for a window of --seq %u%s",
                         out->eval_data, facts->n_eval_tokens, out->seq, successor);
    if (n_train < window)
        return error_set(err, -EINVAL,
                         "--data %s: %" PRIu64 " tokens are too few for %s of --seq %u%s: give more data%s",
                         out->n_data ? out->data[0] : "", facts->n_tokens,
                         out->eval_data ? "a window" : "two windows (one is held out)", out->seq, successor,
                         out->seq > 1 ? " or a lower --seq" : "");
    const uint64_t n_windows = (n_train - !facts->masked) / out->seq;
    if (out->batch == 0)
        out->batch = client_options_choose_batch(out, facts, n_windows);
    rc = client_options_check_batch(out->batch, out->seq, err);
    if (!rc)
        rc = check_parts(out, in, facts->pairs, err);
    return rc ? rc : client_options_length(out, facts, n_windows, err);
}

bool client_options_say_recipe(struct error *sentence, const struct eps_preset *preset,
                               const struct eps_train_options *asked, const struct eps_train_options *resolved)
{
    error_set(sentence, 0, "the preset's recipe:");
    const size_t none = strlen(sentence->text);
    const bool sgd = resolved->optimizer == EPS_SGD; /* which no recipe has */

    if (asked->seq == 0)
        error_append(sentence, " --seq %u", resolved->seq);
    if (asked->batch == 0)
        error_append(sentence, " --batch %u", resolved->batch);
    if (asked->steps == 0 && isnan(asked->epochs))
        error_append(sentence, " --steps %" PRIu64, resolved->steps);
    if (isnan(asked->lr) && !sgd)
        error_append(sentence, " --lr %g", resolved->lr);
    if (asked->warmup == UINT64_MAX)
        error_append(sentence, " --warmup %" PRIu64, resolved->warmup);
    if (isnan(asked->beta1) && isnan(asked->beta2) && !sgd)
        error_append(sentence, " --betas %g,%g", resolved->beta1, resolved->beta2);
    const bool any = strlen(sentence->text) > none;
    if (any && asked->steps == 0 && isnan(asked->epochs) && resolved->steps < client_preset_recipe(preset)->steps)
        error_append(sentence, "; a longer text would teach it more");
    return any;
}
