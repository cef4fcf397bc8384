/* The plan's arithmetic, the price, forward, which copies units, and backward, which derives values, must agree on the
 * layout. Offsets are not stored anywhere: each of them asks these functions, which walk the layers in one order. */
#include "proto/plan/memory/chains.h"

#include "proto/plan/memory/layers.h"
#include "proto/plan/memory/units.h"
#include "proto/plan/memory/values.h"

/* The unit of a layer with a program, which is visited once. */
static uint32_t chains_unit_of(const struct model *model, const struct model_layer *layer)
{
    return model->visits[layer->first_visit];
}

static bool is_derived(const struct model *model, const struct model_layer *layer)
{
    return layer->edges.n_writes == 1 && model->values.of[layer->edges.writes[0]].chain > 0;
}

bool plan_may_derive(const struct model *model, const struct plan_setting *setting, const struct plan_choice *choice)
{
    for (const struct model_layer *l = model->layers; l < model->layers + model->n_layers; l++)
        if (is_derived(model, l) && model->units[chains_unit_of(model, l)].n_decoded > 0)
            return false;
    return model->values.n_chains > 0 && setting->goal.purpose == PLAN_TRAIN && !plan_may_drop(&setting->goal) &&
           !choice->host_stash && choice->n_cuts == 0;
}

const struct model_layer *plan_chain_layer(const struct model *model, const struct model_chain *chain, uint32_t i)
{
    const struct model_layer *layer = &model->layers[chain->lowest];

    for (;; layer++)
        if (is_derived(model, layer) && i-- == 0)
            return layer;
}

bool plan_is_copied(const struct plan *plan, const struct model *model, const struct model_layer *layer)
{
    return plan->choice.derives && is_derived(model, layer) &&
           plan_place_of(model, chains_unit_of(model, layer)) >= plan->n_resident;
}

uint64_t plan_chain_unit(const struct plan *plan, const struct model *model, const struct model_layer *layer)
{
    uint64_t at = plan->chain_units;

    if (!plan_is_copied(plan, model, layer))
        return plan_resident(plan, model, chains_unit_of(model, layer));
    for (const struct model_layer *l = model->layers; l < layer; l++)
        if (plan_is_copied(plan, model, l))
            at += plan_align(plan_uploaded_bytes(model, chains_unit_of(model, l), plan));
    return at;
}

uint64_t plan_chain_bytes(const struct plan *plan, const struct model_chain *chain)
{
    return chain->n * plan->values[chain->shape].bytes;
}

/* Those of layers up to `topmost` that are stored. */
static uint64_t stored_bytes(const struct plan *plan, const struct model *model, uint32_t topmost)
{
    uint64_t bytes = 0;

    for (const struct model_value *v = model->values.of; v < model->values.of + model->values.n; v++) {
        const struct model_shape *shape = &model->values.shapes[v->shape];
        if (v->stashed && v->chain == 0 && v->first <= topmost && !model_is_small(shape))
            bytes += plan_shape_bytes(plan, shape);
    }
    return bytes;
}

uint64_t plan_most_derived(const struct plan *plan, const struct model *model)
{
    uint64_t most = stored_bytes(plan, model, model->n_layers);

    for (const struct model_chain *c = model->values.chains; c < model->values.chains + model->values.n_chains; c++) {
        const uint64_t bytes =
            stored_bytes(plan, model, c->topmost) + c->n * plan_shape_bytes(plan, &model->values.shapes[c->shape]);
        most = most < bytes ? bytes : most;
    }
    return most;
}
