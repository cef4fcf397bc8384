/* What plans are refused for: settings that cannot be, and choices that do not fit them. */
#include "proto/model/family.h"
#include "proto/operation/operation.h"
#include "proto/plan/memory/chains.h"
#include "proto/plan/memory/segments.h"
#include "proto/plan/memory/units.h"

#include <errno.h>

/* True if what a token sees depends on more than the tokens before it: texts of their own, or other rows. */
static bool sees_more(const struct family *family)
{
    const struct family_layer *layer = family->layers;

    while (layer->name && !layer->finish)
        layer++;
    return layer->name || family->own_domain;
}

int plan_check_generates(const struct model_config *config, struct error *err)
{
    if (!model_has_source(config) && sees_more(config->family))
        return error_set(
            err, -EINVAL,
            "a %s model reads whole rows and cannot continue a text: choose a model whose tokens see those "
            "before them alone",
            config->family->model_type);
    if (!config->family->masked && config->n_labels == 0)
        return 0;
    return error_set(err, -EINVAL,
                     "a %s model %s and cannot continue a text: choose a model that predicts the next token",
                     config->family->model_type, config->n_labels ? "predicts labels" : "restores masked tokens");
}

int plan_check_packs(const struct model *model, struct error *err)
{
    const char *const type = model->config.family->model_type;

    if (model->config.n_labels)
        return error_set(err, -EINVAL, "a %s model with labels has one for each row: leave out --pack", type);
    for (uint32_t i = 0; i < model->n_programs; i++) {
        const struct program_operation *op = program_find_mixing(&model->programs[i].program);
        if (op)
            return error_set(err, -EINVAL,
                             "a %s model cannot keep documents of one row apart (%s mixes them): leave out --pack",
                             type, op->kind->name);
    }
    return 0;
}

/* Gradients in fp16 may overflow, which a fenced commit alone survives; norms that units remember are not scaled. */
static int check_numbers(const struct model *model, const struct plan_setting *s, struct error *err)
{
    const struct plan_goal *goal = &s->goal;
    const bool narrow = goal->precision == NUMBER_FP16, trains = goal->purpose == PLAN_TRAIN;

    if (goal->moments == NUMBER_FP16 || (goal->grad == NUMBER_FP16 && !narrow))
        return error_set(err, -EINVAL, "moments have no form in fp16, and gradients only where values have it");
    if (!trains && (goal->no_master || goal->sums != NUMBER_FP32))
        return error_set(err, -EINVAL, "a master, and sums, are of training alone");
    if (goal->moments == NUMBER_CODED && trains &&
        (goal->sgd || goal->sparse.keep > 0 || (goal->n_parts > 1 && !goal->adamw)))
        return error_set(err, -EINVAL,
                         "coded moments are Adam's, of dense weights, and encoded once a step: not SGD's, of sparse "
                         "weights, or of several parts by AdamA");
    if (!trains && goal->checks_memory)
        return error_set(err, -EINVAL, "memory is checked in training alone");
    if (goal->no_master && goal->precision == NUMBER_FP32)
        return error_set(err, -EINVAL,
                         "weights in fp32 are their own master: choose --precision bf16 for --master none");
    if (goal->sums == NUMBER_FP16 || (goal->sums != NUMBER_FP32 && !goal->fenced))
        return error_set(err, -EINVAL, "sums are of a fenced commit alone, in fp32 or bf16: choose --commit fenced");
    if (goal->folded && (goal->fenced || !trains || plan_sums_parts(goal)))
        return error_set(
            err, -EINVAL,
            "a folded commit is of AdamA, or of SGD with plain momentum, and nothing else: choose --commit "
            "eager or fenced");
    if (narrow && trains && !goal->fenced)
        return error_set(err, -EINVAL, "gradients in fp16 may overflow: choose --commit fenced");
    if (narrow && (goal->sampling.share > 0 || goal->sampling.queries > 0))
        return error_set(err, -EINVAL,
                         "samples by norms of gradients are not for fp16, which scales these: choose bf16");
    for (uint32_t t = 0; goal->grad == NUMBER_FP16 && t < model->n_tensors; t++)
        if (model->tensors[t].averages)
            return error_set(err, -EINVAL,
                             "running statistics are no gradients, which fp16 would cut: choose --grad-dtype bf16");
    return 0;
}

int plan_check(const struct model *model, const struct plan_setting *s, struct error *err)
{
    if (s->part_rows == 0 || s->share_rows < s->part_rows || s->goal.seq == 0 || s->n_threads == 0 ||
        s->n_threads > PLAN_MAX_THREADS || s->share_rows / s->part_rows > PLAN_MAX_PARTS)
        return error_set(err, -EINVAL,
                         "a share of %u rows in parts of %u rows of %u tokens on %u threads cannot be planned",
                         s->share_rows, s->part_rows, s->goal.seq, s->n_threads);
    if (s->attention >= PLAN_ATTENTIONS)
        return error_set(err, -EINVAL, "attention method %d is unknown to this build", (int)s->attention);
    if (s->goal.purpose == PLAN_GENERATE && (s->share_rows != s->part_rows || s->share_rows > PLAN_GENERATE_ROWS))
        return error_set(err, -EINVAL, "a job generates up to %d texts in one part, not %u in %u", PLAN_GENERATE_ROWS,
                         s->share_rows, s->share_rows / s->part_rows);
    if (s->goal.purpose == PLAN_GENERATE && plan_check_generates(&model->config, err))
        return -EINVAL;
    if (s->goal.purpose == PLAN_GENERATE && (s->goal.packs || s->goal.weighted || plan_has_pairs(&s->goal)))
        return error_set(err, -EINVAL, "a job that generates has neither packed rows nor preferences nor weights");
    if (s->goal.weighted && (model->config.n_labels || model_has_source(&model->config) || plan_has_pairs(&s->goal)))
        return error_set(err, -EINVAL, "weights of tokens are for models that predict each token; a %s model does not",
                         model->config.family->model_type);
    if (s->goal.preference.beta > PREFERENCE_MOST_BETA || s->goal.preference.smoothing > 0.5)
        return error_set(err, -EINVAL, "preferences with beta %g and smoothing %g: at most %g and 0.5 are possible",
                         s->goal.preference.beta, s->goal.preference.smoothing, PREFERENCE_MOST_BETA);
    if (!(s->goal.smoothing < 1) || (s->goal.smoothing > 0 && (model->config.regression || plan_has_pairs(&s->goal))))
        return error_set(err, -EINVAL,
                         "labels smoothed by %g: below 1 is possible, of models that predict classes or tokens",
                         s->goal.smoothing);
    if (s->goal.kept_bits != 0 && s->goal.kept_bits != 8 && s->goal.kept_bits != 4)
        return error_set(err, -EINVAL, "activations in %u bits: 8 and 4 are possible", s->goal.kept_bits);
    if (s->goal.pooled == 1 || (s->goal.pooled & (s->goal.pooled - 1)) != 0 || s->goal.pooled > 8)
        return error_set(err, -EINVAL, "means of %u by %u pixels: of 2, 4 and 8 are possible", s->goal.pooled,
                         s->goal.pooled);
    if (!sampling_is_valid(&s->goal.sampling))
        return error_set(err, -EINVAL,
                         "gradients from shares of %g of the rows and %g of the queries: at least %g and below 1 are "
                         "possible",
                         s->goal.sampling.share, s->goal.sampling.queries, SAMPLING_LEAST_SHARE);
    if (check_numbers(model, s, err))
        return -EINVAL;
    if (model_check_sparse(model, &s->goal.sparse, err))
        return -EINVAL;
    if (s->goal.packs && plan_check_packs(model, err))
        return -EINVAL;
    if (plan_has_pairs(&s->goal) && s->goal.packs)
        return error_set(err, -EINVAL, "pairs of texts are not packed: leave out --pack");
    if (plan_has_pairs(&s->goal) &&
        (model->config.n_labels || model->config.family->masked || model_has_source(&model->config)))
        return error_set(err, -EINVAL, "preferences are for models that predict the next token; a %s model does not",
                         model->config.family->model_type);
    if (plan_has_pairs(&s->goal) && s->part_rows % 2)
        return error_set(err, -EINVAL,
                         "a part has %u rows, so half a pair of texts: --batch must be a multiple of twice --parts",
                         s->part_rows);
    if (s->part_rows % plan_joined_rows(&s->goal, &model->config))
        return error_set(
            err, -EINVAL,
            "a part has %u rows, which are not whole ghost batches of %u: --batch must be a multiple of %u",
            s->part_rows, model->config.image.ghost_batch, model->config.image.ghost_batch * s->goal.n_parts);
    if (s->goal.source != model->config.source || (s->goal.source > 0 && s->goal.seq != model->config.row))
        return error_set(err, -EINVAL, "rows of %u tokens with a source of %u: the model was divided into %u and %u",
                         s->goal.seq, s->goal.source, model->config.row, model->config.source);
    if (s->goal.purpose == PLAN_GENERATE && model_has_source(&model->config) && s->goal.source != s->goal.seq)
        return error_set(err, -EINVAL, "a job that generates targets has rows of one side, not a source of %u in %u",
                         s->goal.source, s->goal.seq);
    if (model->config.image.height > 0 && s->goal.seq != model->config.n_positions)
        return error_set(err, -EINVAL, "rows of %u pixels: the model sees images of %u x %u", s->goal.seq,
                         model->config.image.height, model->config.image.width);
    if (s->goal.seq > model->config.n_positions)
        return error_set(err, -EINVAL, "--seq %u is more than the model's %u positions", s->goal.seq,
                         model->config.n_positions);
    if (s->goal.seq < model->least_tokens)
        return error_set(err, -EINVAL, "--seq %u is too short: this model takes the first %u tokens of each row apart",
                         s->goal.seq, model->least_tokens);
    if ((uint64_t)s->share_rows * s->goal.seq > PLAN_MAX_TOKENS)
        return error_set(err, -EINVAL, "%u rows of %u tokens are too many for one worker: at most %d tokens",
                         s->share_rows, s->goal.seq, PLAN_MAX_TOKENS);
    return 0;
}

bool plan_may_group(const struct plan_setting *s)
{
    return s->goal.purpose == PLAN_TRAIN && plan_updates_last(&s->goal);
}

/* Checks the keeping of one class; the sentence does not name the class. */
static int check_keeping(const struct plan_keeping *k, uint32_t n_blocks, bool may_keep, struct error *err)
{
    if (k->n_kept > (may_keep ? n_blocks : 0))
        return error_set(err, -EINVAL,
                         "%u blocks keep activations: the model has %u, and they keep some only when training with the "
                         "stash on the device, without segments of layers",
                         k->n_kept, n_blocks);
    if ((k->n_kept > 0) != (k->kept > 0) || k->kept > MODEL_KEEPS_ALL || k->kept_below > MODEL_KEEPS_ALL ||
        (k->kept_below > 0 && k->n_kept == 0))
        return error_set(err, -EINVAL, "%u blocks keep set %u of their activations and the others set %u: no such plan",
                         k->n_kept, k->kept, k->kept_below);
    return 0;
}

static int check_cuts(const struct model *model, const struct plan_setting *s, const struct plan_choice *c,
                      struct error *err)
{
    if (c->n_cuts > (s->goal.purpose == PLAN_TRAIN ? PLAN_MAX_CUTS : 0))
        return error_set(err, -EINVAL, "%u cuts between segments of layers: at most %d, and only in training",
                         c->n_cuts, PLAN_MAX_CUTS);
    for (uint32_t i = 0; i < c->n_cuts; i++)
        if (c->cuts[i] >= model->n_layers || c->cuts[i] <= (i > 0 ? c->cuts[i - 1] : 0) ||
            !plan_may_cut(model, c->cuts[i]))
            return error_set(err, -EINVAL, "no segment of layers can begin at layer %u, as cut %u of %u", c->cuts[i],
                             i + 1, c->n_cuts);
    return 0;
}

int plan_check_rows(const struct model *model, const struct plan_setting *s, uint32_t microbatch, struct error *err)
{
    const uint32_t joined = plan_joined_rows(&s->goal, &model->config);

    if (microbatch % joined && plan_has_pairs(&s->goal))
        return error_set(err, -EINVAL, "--microbatch %u: pairs of texts need an even number of rows", microbatch);
    if (microbatch % joined)
        return error_set(err, -EINVAL, "--microbatch %u: ghost batches of %u rows need a multiple of them", microbatch,
                         joined);
    return 0;
}

int plan_check_choice(const struct model *model, const struct plan_setting *s, const struct plan_choice *c,
                      struct error *err)
{
    if (c->n_weight_buffers == 0 || c->n_weight_buffers > PLAN_MAX_WEIGHT_BUFFERS)
        return error_set(err, -EINVAL, "%u weight buffers: choose 1 to %d", c->n_weight_buffers,
                         PLAN_MAX_WEIGHT_BUFFERS);
    if (c->group_parts > s->share_rows / s->part_rows || (c->group_parts > 0 && !plan_may_group(s)))
        return error_set(err, -EINVAL, "row groups of %u parts: a share has %u, and commits must be fenced or folded",
                         c->group_parts, s->share_rows / s->part_rows);
    if (c->n_sums > PLAN_MAX_SUMS)
        return error_set(err, -EINVAL, "%u sums of contributions: at most %d", c->n_sums, PLAN_MAX_SUMS);
    if (c->microbatch == 0 || c->microbatch > s->part_rows)
        return error_set(err, -EINVAL, "--microbatch %u: a part has %u rows", c->microbatch, s->part_rows);
    if (plan_check_rows(model, s, c->microbatch, err))
        return -EINVAL;
    if (c->derives && !plan_may_derive(model, s, c))
        return error_set(err, -EINVAL,
                         "layers' inputs are derived again of residual nets alone: in training, with the stash on the "
                         "device, without segments of layers, of which none is left out or coded");
    if (c->n_resident > plan_count_uploaded(model))
        return error_set(err, -EINVAL, "%u resident units: this model has %u", c->n_resident,
                         plan_count_uploaded(model));
    for (uint32_t i = 0; i < MODEL_CLASSES; i++)
        if (check_keeping(&c->keeping[i], i < model->n_classes ? model->classes[i].n_blocks : 0, plan_may_keep(s, c),
                          err))
            return -EINVAL;
    if (c->whole_head && s->goal.purpose != PLAN_TRAIN)
        return error_set(err, -EINVAL, "the head is whole only in training");
    if (c->whole_head && plan_has_pairs(&s->goal))
        return error_set(err, -EINVAL, "the head is not whole where rows are pairs");
    if (c->sparse_singly && (s->goal.purpose != PLAN_TRAIN || model->n_sparse == 0))
        return error_set(err, -EINVAL, "sparse weights are decoded singly only in training, if there are any");
    if (c->host_stash && s->goal.purpose == PLAN_GENERATE)
        return error_set(err, -EINVAL, "generation has no stash");
    return check_cuts(model, s, c, err);
}
