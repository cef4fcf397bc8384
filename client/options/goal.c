/* Options as the model and the goal of a plan. */
#include "client/options/options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

static enum number_type goal_number_of(enum eps_number number)
{
    return number == EPS_BF16 ? NUMBER_BF16 : number == EPS_FP16 ? NUMBER_FP16 : NUMBER_FP32;
}

static enum number_type goal_moments_of(enum eps_moments moments)
{
    return moments == EPS_MOMENTS_BF16 ? NUMBER_BF16 : moments == EPS_MOMENTS_CODED ? NUMBER_CODED : NUMBER_FP32;
}

/* Both enums have the forms in one order. Without --base, frozen weights are stored as the trained ones are. */
static enum form goal_form_of(enum eps_base base)
{
    return base == EPS_BASE_DEFAULT ? FORM_VALUES : (enum form)(base - EPS_BASE_FULL);
}

static int goal_check_base(const struct eps_train_options *o, const struct model_config *config, struct error *err)
{
    const enum form form = goal_form_of(o->base);

    if (form == FORM_VALUES || (o->freeze && *o->freeze) || config->adapter.rank > 0)
        return 0;
    return error_set(
        err, -EDOM,
        "--base %s is the form of frozen weights, and none are frozen here: name them with --freeze, train "
        "adapters with --lora, or leave --base out",
        form_name(form));
}

/* A form that would change nothing here is a mistake. */
static int check_approximation(const struct model *model, const struct client_approximation *allowed, struct error *err)
{
    const unsigned there = model_approximates(model);

    if (allowed->pooled > 0 && !(there & MODEL_POOLS))
        return error_set(err, -EDOM,
                         "--approximate pool=%u is for nets of images: no convolution that is trained here can use it",
                         allowed->pooled);
    if (allowed->sampling.share > 0 && !(there & MODEL_SAMPLES))
        return error_set(err, -EDOM, "--approximate wta=%g: no block of this model has a linear map that is trained",
                         allowed->sampling.share);
    if (allowed->sampling.queries > 0 && !(there & MODEL_ATTENDS))
        return error_set(err, -EDOM, "--approximate attention=%g: no block of this model has attention",
                         allowed->sampling.queries);
    if (allowed->kept_bits > 0 && !(there & MODEL_CODES))
        return error_set(err, -EDOM, "--approximate coded=%u: no block of this model keeps what bears so few bits",
                         allowed->kept_bits);
    return 0;
}

/* check_approximation comes after model_freeze: a map that is frozen has no gradient to sample. */
int client_options_model(struct model *out, const struct model_config *config, const struct eps_train_options *o,
                         struct error *err)
{
    struct client_approximation allowed;
    struct sparse sparse;
    const char *freeze = o->freeze;
    struct model_config divided = *config;
    int rc = 0;

    *out = (struct model){0};
    if (o->source_seq > 0 && o->seq > 0 && model_divide_rows(&divided, o->source_seq, o->seq, NULL))
        return error_set(err, -EDOM, "--source-seq %u leaves no room for a target in --seq %u, which is that of both",
                         o->source_seq, o->seq);
    rc = model_init(out, &divided, err);
    if (!rc && freeze && strlen(freeze) >= MODEL_FREEZE_BYTES)
        return error_set(err, -EDOM, "--freeze: patterns of %zu characters are more than %d: choose wider patterns",
                         strlen(freeze), MODEL_FREEZE_BYTES - 1);
    if (!rc)
        rc = goal_check_base(o, config, err);
    if (!rc)
        rc = client_options_approximate(&allowed, o->approximate, err);
    if (!rc)
        rc = client_options_sparse(&sparse, o->sparse, o->steps, err);
    if (!rc)
        model_approximate(out,
                          &(struct model_approximation){allowed.kept_bits, allowed.sampling.share > 0, allowed.pooled});
    if (!rc)
        rc = model_freeze(out, freeze, model_base_of(goal_form_of(o->base), goal_number_of(o->precision)), err) ? -EDOM
                                                                                                                : 0;
    if (!rc) {
        model_sparsify(out, &sparse);
        rc = model_check_sparse(out, &sparse, err) ? -EDOM : 0;
        if (rc)
            error_prefix(err, "--sparse");
    }
    if (!rc)
        rc = check_approximation(out, &allowed, err);
    if (!rc && o->on_blocks && model_drop_check(out, err)) {
        error_prefix(err, "on_blocks");
        rc = -EDOM;
    }
    if (!rc && model_drop_prepare(out, client_options_drop(o), err)) {
        error_prefix(err, "--drop-layers");
        rc = -EDOM;
    }
    return rc;
}

int client_options_check_thaw(const struct eps_train_options *o, struct error *err)
{
    if (o->freeze_until == 0)
        return 0;
    if (!o->freeze || !*o->freeze)
        return error_set(err, -EDOM,
                         "--freeze-until %" PRIu64
                         " is for frozen tensors, and none are named: name them with --freeze",
                         o->freeze_until);
    if (o->sparse)
        return error_set(err, -EDOM,
                         "--freeze-until %" PRIu64
                         " is for weights that are dense: leave it out to freeze them to the end, or --sparse",
                         o->freeze_until);
    if (o->steps == 0 || o->freeze_until < o->steps)
        return 0;
    return error_set(err, -EDOM,
                     "--freeze-until %" PRIu64 " is not below the run's %" PRIu64
                     " steps: choose a lower one, or leave "
                     "it out to freeze them to the end",
                     o->freeze_until, o->steps);
}

bool client_options_thawed(const struct eps_train_options *o, uint64_t step)
{
    return o->freeze_until > 0 && step >= o->freeze_until;
}

struct eps_train_options client_options_thaw(const struct eps_train_options *options, bool adapts)
{
    struct eps_train_options o = *options;

    o.freeze = NULL;
    o.freeze_until = 0;
    o.base = adapts ? o.base : EPS_BASE_FULL; /* as model_thawed_base */
    return o;
}

double client_options_drop(const struct eps_train_options *o)
{
    return isnan(o->drop_layers) ? 0 : o->drop_layers;
}

static enum plan_attention_wish wish_of(enum eps_attention attention)
{
    switch (attention) {
    case EPS_ATTENTION_DEFAULT:
        break;
    case EPS_ATTENTION_CUDNN:
        return PLAN_ATTENTION_CUDNN;
    case EPS_ATTENTION_OWN:
        return plan_attention_exactly(PLAN_ATTENTION_OWN);
    case EPS_ATTENTION_FORWARD:
        return plan_attention_exactly(PLAN_ATTENTION_FORWARD);
    case EPS_ATTENTION_SCORES:
        return plan_attention_exactly(PLAN_ATTENTION_SCORES);
    case EPS_ATTENTION_TWICE:
        return plan_attention_exactly(PLAN_ATTENTION_TWICE);
    case EPS_ATTENTION_ORDERED:
        return plan_attention_exactly(PLAN_ATTENTION_ORDERED);
    }
    return PLAN_ATTENTION_MEASURED;
}

struct plan_goal client_options_goal(const struct eps_train_options *o)
{
    struct client_approximation allowed;
    struct sparse sparse;

    /* client_options_model has checked both. */
    client_options_approximate(&allowed, o->approximate, NULL);
    client_options_sparse(&sparse, o->sparse, o->steps, NULL);
    if (allowed.sampling.share > 0)
        allowed.sampling.begin = o->warmup;
    return (struct plan_goal){.purpose = PLAN_TRAIN,
                              .precision = goal_number_of(o->precision),
                              .base = goal_form_of(o->base),
                              .moments = goal_moments_of(o->moments),
                              .grad = goal_number_of(o->grad_dtype),
                              .no_master = o->master == EPS_MASTER_NONE,
                              .fenced = o->commit == EPS_FENCED,
                              .folded = o->commit == EPS_FOLDED,
                              .sums = goal_number_of(o->sums),
                              .adamw = o->optimizer == EPS_ADAMW,
                              .sgd = o->optimizer == EPS_SGD,
                              .nesterov = o->nesterov,
                              .momentum = isnan(o->momentum) ? 0 : o->momentum,
                              .preference = {.beta = isnan(o->dpo_beta) ? 0 : o->dpo_beta,
                                             .smoothing = isnan(o->dpo_smoothing) ? 0 : o->dpo_smoothing},
                              .packs = o->pack,
                              .checks_memory = o->check_memory,
                              .drop_layers = client_options_drop(o),
                              .chooses = o->on_blocks != NULL,
                              .weighted = o->on_rows != NULL,
                              .smoothing = isnan(o->label_smoothing) ? 0 : o->label_smoothing,
                              .kept_bits = allowed.kept_bits,
                              .pooled = allowed.pooled,
                              .sampling = allowed.sampling,
                              .sparse = sparse,
                              .batch = o->batch,
                              .seq = o->seq,
                              .source = o->source_seq,
                              .n_parts = o->parts,
                              .attention = wish_of(o->attention)};
}
