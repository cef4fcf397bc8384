/* Attention is priced alone, without the rest of a step: its time has the same order in all ways' favour whatever the
 * microbatch, the stash and the budget are, so the choice cannot depend on them. */
#include "proto/plan/attention_choice.h"

#include "proto/operation/kind/attention.h"
#include "proto/operation/call.h"
#include "proto/plan/memory/data.h"
#include "proto/plan/time/meter.h"

#include <errno.h>
#include <math.h>

/* One row of an operation's, forward or backward. Of arrays it matters whether they are there. */
static struct call call_of(const struct model_layer *layer, const struct program_operation *op,
                           const struct plan_goal *goal, bool backward)
{
    static float there;
    static const uint32_t words;
    const struct program *p = &layer->program->program;
    const struct program_attention_options *how = &op->attention;
    const size_t n_tokens = program_row_elements(p, op->inputs[0], goal->seq);
    const bool biased = how->buckets.n > 0;
    struct call call = {.kind = backward ? CALL_attention_backward : CALL_attention,
                        .attention = {.n_rows = 1,
                                      .n_tokens = n_tokens,
                                      .n_heads = how->n_heads,
                                      .n_kv_heads = how->n_kv_heads,
                                      .width = p->values[op->outputs[0]].columns,
                                      .full = how->full,
                                      .window = how->window,
                                      .positions = goal->packs ? &words : NULL,
                                      .scale = how->scale,
                                      .cap = how->cap,
                                      .alibi = how->alibi,
                                      .bias = biased ? &there : NULL,
                                      .buckets = how->buckets,
                                      .sinks = how->sinks ? &there : NULL,
                                      .dropout.p = how->dropout.p}};

    if (backward && sampling_queries(&goal->sampling, n_tokens) > 0)
        call.attention.n_chosen = sampling_queries(&goal->sampling, n_tokens), call.attention.chosen = &words;
    return call;
}

/* Seconds for a row of a job: of all its blocks. */
static double seconds_of(const struct plan_fit_asked *asked, const struct plan_fit_device *device,
                         enum plan_attention way)
{
    const struct plan_meter meter = {.on = {device->backend, asked->goal.precision, 1, way, false, 0},
                                     .profile = device->profile};
    const bool trains = asked->goal.purpose == PLAN_TRAIN;
    double seconds = 0;

    for (const struct model_layer *l = asked->model->layers; l < asked->model->layers + asked->model->n_layers; l++)
        for (int i = 0; l->program && i < l->program->program.n_operations; i++) {
            const struct program_operation *op = &l->program->program.operations[i];
            for (int backward = 0; op->kind == &operation_attention && backward <= trains; backward++) {
                struct call call = call_of(l, op, &asked->goal, backward);
                seconds += plan_meter_price(&meter, &call);
            }
        }
    return seconds;
}

/* Whether the library was timed in what a way takes of it: on this device, with a version of the same algorithm. */
static bool is_timed(const struct plan_fit_device *device, enum plan_attention way)
{
    const struct profile *profile = device->profile;
    const double forward = profile->attention_flops[PROFILE_FORWARD][ATTENTION_LIBRARY][NUMBER_BF16];
    const double backward = profile->attention_flops[PROFILE_BACKWARD][ATTENTION_LIBRARY][NUMBER_BF16];

    return profile->attention == device->attention && forward > 0 && (way == PLAN_ATTENTION_FORWARD || backward > 0);
}

/* The devices' best way, or `otherwise` where it is not one. */
static enum plan_attention common_way(const struct plan_fit_asked *asked, enum plan_attention otherwise)
{
    const enum plan_attention first = asked->devices[0].attention;

    for (uint32_t i = 1; i < asked->n_workers; i++)
        if (asked->devices[i].attention != first)
            return otherwise;
    return first;
}

static enum plan_attention fastest(const struct plan_fit_asked *asked)
{
    const enum plan_attention best = common_way(asked, PLAN_ATTENTION_OWN), ways[] = {PLAN_ATTENTION_FORWARD, best};
    const struct plan_fit_device *device = asked->devices, *const end = device + asked->n_workers;
    enum plan_attention out = PLAN_ATTENTION_OWN;

    while (device < end && !device->measured)
        device++;
    if (best == PLAN_ATTENTION_OWN || device == end)
        return PLAN_ATTENTION_OWN;
    double least = seconds_of(asked, device, out);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const double seconds = is_timed(device, ways[i]) ? seconds_of(asked, device, ways[i]) : INFINITY;
        if (seconds < least)
            least = seconds, out = ways[i];
    }
    return out;
}

enum plan_attention plan_attention_of(const struct plan_fit_asked *asked)
{
    const struct plan_goal *goal = &asked->goal;

    if (goal->attention >= PLAN_ATTENTION_EXACTLY)
        return (enum plan_attention)(goal->attention - PLAN_ATTENTION_EXACTLY);
    if (goal->precision != NUMBER_BF16)
        return PLAN_ATTENTION_OWN;
    if (goal->attention == PLAN_ATTENTION_CUDNN)
        return common_way(asked, PLAN_ATTENTION_FORWARD);
    if (plan_may_cut_rows(goal, asked->model) && 4 * (uint64_t)goal->row_tokens[0] <= 3 * (uint64_t)goal->seq)
        return PLAN_ATTENTION_OWN;
    return fastest(asked);
}

int plan_attention_check(const struct plan_fit_asked *asked, struct error *err)
{
    const enum plan_attention_wish wish = asked->goal.attention;

    if (plan_attention_meets(PLAN_ATTENTION_OWN, wish))
        return 0;
    if (asked->goal.precision != NUMBER_BF16)
        return error_set(err, -EINVAL, "--attention %s: cuDNN's attention is of bf16 alone: choose --precision bf16",
                         plan_attention_wish_name(wish));
    for (uint32_t i = 0; i < asked->n_workers; i++)
        if (!plan_attention_meets(asked->devices[i].attention, wish))
            return plan_attention_refuse(asked->devices[i].attention, wish, err);
    return 0;
}

int plan_attention_refuse(enum plan_attention best, enum plan_attention_wish wish, struct error *err)
{
    const char *const asked = plan_attention_wish_name(wish),
                      *const remedy = "choose --attention own, in a resumed run with --change attention";

    if (best == PLAN_ATTENTION_OWN)
        return error_set(err, -EINVAL, "--attention %s: the device has no cuDNN: %s", asked, remedy);
    return error_set(err, -EINVAL, "--attention %s: the device's cuDNN has another way, %s: %s", asked,
                     plan_attention_name(best), remedy);
}

bool plan_attention_meets(enum plan_attention best, enum plan_attention_wish wish)
{
    switch (wish) {
    case PLAN_ATTENTION_MEASURED:
        return true;
    case PLAN_ATTENTION_CUDNN:
        return best != PLAN_ATTENTION_OWN;
    case PLAN_ATTENTION_EXACTLY:
    case PLAN_ATTENTION_WISHES:
        break;
    }
    return plan_attention_can(best, (enum plan_attention)(wish - PLAN_ATTENTION_EXACTLY));
}

const char *plan_attention_wish_name(enum plan_attention_wish wish)
{
    return wish == PLAN_ATTENTION_MEASURED ? "measured"
           : wish == PLAN_ATTENTION_CUDNN  ? "cudnn"
                                           : plan_attention_name((enum plan_attention)(wish - PLAN_ATTENTION_EXACTLY));
}
