/* How a step becomes an update: the commit, the optimizer of its parts, and the types of what the host keeps. */
#include "client/options/options.h"

#include "proto/base/process.h"
#include "proto/plan/memory/host.h"

#include <errno.h>
#include <math.h>

static int check_clip(const char *option, double value, struct error *err)
{
    if (isnan(value) || (value > 0 && isfinite(value)))
        return 0;
    return error_set(err, -EDOM, "%s %g is not a number above 0: leave it out for no clipping", option, value);
}

/* The option that implies a fenced commit, if one does. */
static const char *fencing(const struct eps_train_options *o)
{
    return o->precision == EPS_FP16 ? "--precision fp16" : "--clip-norm";
}

const char *eps_commit_name(enum eps_commit commit)
{
    return commit == EPS_FENCED ? "fenced" : commit == EPS_FOLDED ? "folded" : "eager";
}

/* A folded commit is of optimizers that take each part by itself. */
static int check_folded(const struct eps_train_options *o, struct error *err)
{
    const bool sgd = o->optimizer == EPS_SGD, has_momentum = !isnan(o->momentum) && o->momentum > 0;
    const char *const optimizer = has_momentum ? "sgd with --nesterov" : "sgd without --momentum";

    if (o->commit != EPS_FOLDED || (sgd ? has_momentum && !o->nesterov : o->optimizer == EPS_ADAMA))
        return 0;
    return error_set(err, -EDOM,
                     "--commit folded puts the gradient of each of --parts into the moments by itself, and --optimizer "
                     "%s needs their sum: choose %s, or --commit fenced",
                     sgd ? optimizer : "adamw", sgd ? "sgd with --momentum alone" : "--optimizer adama");
}

/* What --state says of the types of the state, where they are not named. A resumed run has them; then it must say the
 * same. Without --state, gradients travel in bf16 with --precision bf16, which may depend on the devices still:
 * client_options_complete. */
static int commit_take_state(struct eps_train_options *o, bool fences, struct error *err)
{
    const bool narrow = o->state == EPS_BF16, has_moments = o->optimizer != EPS_SGD || o->momentum != 0;
    const enum eps_moments moments = narrow && has_moments ? EPS_MOMENTS_BF16 : EPS_MOMENTS_FP32;
    const enum eps_number grad = narrow ? EPS_BF16 : EPS_FP32,
                          sums = narrow && (fences || o->commit == EPS_FENCED) ? EPS_BF16 : EPS_FP32;
    const enum eps_master master = narrow && o->precision != EPS_FP32 ? EPS_MASTER_NONE : EPS_MASTER_FP32;
    const bool had = o->moments != EPS_MOMENTS_DEFAULT;

    if (o->moments == EPS_MOMENTS_DEFAULT)
        o->moments = moments;
    if (o->grad_dtype == EPS_NUMBER_DEFAULT && o->state)
        o->grad_dtype = grad;
    if (o->grad_dtype == EPS_NUMBER_DEFAULT && o->precision)
        o->grad_dtype = client_options_sent(o->precision);
    if (o->master == EPS_MASTER_DEFAULT)
        o->master = master;
    if (o->sums == EPS_NUMBER_DEFAULT)
        o->sums = sums;
    if (!had || !o->state || !(o->resume || o->attach) ||
        (o->moments == moments && o->grad_dtype == grad && o->master == master && o->sums == sums))
        return 0;
    return error_set(err, -EDOM,
                     "--state %s: the run's state has other types, which it keeps: leave it out, or begin another run",
                     narrow ? "bf16" : "fp32");
}

/* What coded moments cannot be of yet. Each fold of a part by itself would encode them once more. */
static int check_coded(const struct eps_train_options *o, struct error *err)
{
    if (o->moments != EPS_MOMENTS_CODED)
        return 0;
    if (o->optimizer == EPS_SGD)
        return error_set(err, -EDOM, "--moments coded are Adam's: with --optimizer sgd choose bf16 or fp32");
    if (o->optimizer == EPS_ADAMA && o->parts > 1)
        return error_set(err, -EDOM,
                         "--moments coded are encoded once a step, and --optimizer adama takes each of %u --parts by "
                         "itself: choose adamw, --parts 1, or --moments bf16",
                         o->parts);
    if (o->sparse)
        return error_set(err, -EDOM, "--moments coded are of dense weights: with --sparse choose bf16 or fp32");
    if (o->freeze_until > 0)
        return error_set(err, -EDOM,
                         "--moments coded are grouped once: with --freeze-until, which changes what is trained, choose "
                         "bf16 or fp32");
    return 0;
}

int client_options_commit(struct eps_train_options *o, struct error *err)
{
    const bool clips = !isnan(o->clip_norm), scales = o->precision == EPS_FP16;
    int rc;

    if (o->optimizer == EPS_OPTIMIZER_DEFAULT)
        o->optimizer = o->parts > 1 ? EPS_ADAMW : EPS_ADAMA;
    rc = commit_take_state(o, clips || scales, err);
    if (!rc)
        rc = check_clip("--clip-norm", o->clip_norm, err);
    if (!rc)
        rc = check_clip("--clip-update", o->clip_update, err);
    if (rc)
        return rc;
    const bool holds = o->commit == EPS_COMMIT_DEFAULT || o->commit == EPS_FENCED;
    if (clips && !holds)
        return error_set(err, -EDOM,
                         "--clip-norm %g does not go with --commit %s, which %s before the whole gradient is "
                         "known: choose --commit fenced, or --clip-update, which clips tensor by tensor",
                         o->clip_norm, eps_commit_name(o->commit),
                         o->commit == EPS_EAGER ? "updates" : "changes the moments");
    if (scales && !holds)
        return error_set(err, -EDOM, "--precision fp16 does not go with --commit %s: choose fenced, or bf16",
                         eps_commit_name(o->commit));
    if (o->grad_dtype == EPS_FP16 && !scales)
        return error_set(err, -EDOM,
                         "--grad-dtype fp16 needs --precision fp16, whose gradients are scaled to its range");
    if (o->master == EPS_MASTER_NONE && o->precision == EPS_FP32)
        return error_set(err, -EDOM, "--master none is for weights in 16 bits: choose --precision bf16 or fp16");
    if (o->attention > EPS_ATTENTION_OWN && (o->precision == EPS_FP32 || scales))
        return error_set(err, -EDOM,
                         "--attention: cuDNN's is of bf16 alone: choose --precision bf16, or --attention own");
    /* Before the commit is resolved: sentences name what the user gave. */
    const char *const option = o->commit == EPS_FENCED ? "--commit fenced" : fencing(o);
    if (o->commit == EPS_COMMIT_DEFAULT)
        o->commit = clips || scales ? EPS_FENCED : EPS_EAGER;
    if (o->sums == EPS_BF16 && o->commit != EPS_FENCED)
        return error_set(err, -EDOM, "--sums bf16 is for --commit fenced, which holds the sums: choose both or none");
    if (o->commit == EPS_FENCED && o->optimizer == EPS_ADAMA && o->parts > 1)
        return error_set(err, -EDOM,
                         "%s with --parts %u needs --optimizer adamw: adama squares each part's gradient by itself, "
                         "before their sum is known",
                         option, o->parts);
    rc = check_folded(o, err);
    return rc ? rc : check_coded(o, err);
}

bool client_options_say_fenced(struct error *sentence, const struct eps_train_options *asked,
                               const struct eps_train_options *resolved, uint64_t n_trained)
{
    const unsigned each = resolved->sums == EPS_BF16 ? 2 : 4;
    char bytes[24];

    if (asked->commit != EPS_COMMIT_DEFAULT || resolved->commit != EPS_FENCED)
        return false;
    error_set(sentence, 0,
              "%s turns --commit fenced on, which holds the summed gradient: %s of host memory, %u bytes a parameter",
              fencing(resolved), process_format_bytes(bytes, each * n_trained), each);
    return true;
}

bool client_options_say_summed(struct error *sentence, const struct eps_train_options *asked,
                               const struct eps_train_options *resolved, const struct model *model)
{
    const struct plan_host_setting adamw = {.goal = {.adamw = true, .n_parts = resolved->parts}},
                                   adama = {.goal = {.n_parts = resolved->parts}};
    char bytes[24];

    if (asked->optimizer != EPS_OPTIMIZER_DEFAULT || resolved->parts == 1 || resolved->commit == EPS_FENCED)
        return false;
    const uint64_t summed = plan_host_sums(model, &adamw), squared = plan_host_sums(model, &adama);
    error_set(sentence, 0,
              "the %u parts are summed before they are squared (--optimizer adamw), so that their number does not "
              "change the result",
              resolved->parts);
    if (squared < summed)
        error_append(sentence, "; --optimizer adama squares each, and would save %s of host memory",
                     process_format_bytes(bytes, summed - squared));
    return true;
}
