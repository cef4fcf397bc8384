/* The callback gets our arrays and may write anything into anything: after it, only counts and the arrays' content are
 * its answer, all else is set again. What was dropped by draw is what it is shown first, so a callback that changes
 * nothing keeps the draw. Sets tell which blocks are computed, the list tells in which order: so it is read twice. */
#include "client/run/blocks.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

int client_blocks_init(struct client_blocks *out, struct model *from, struct error *err)
{
    const struct model *const m = &out->model;

    *out = (struct client_blocks){.model = *from, .n = from->config.n_layers};
    *from = (struct model){0};
    for (uint32_t visit = 0; visit < m->n_visits; visit++) {
        const struct model_layer *layer = &m->layers[m->visit_layers[visit]];
        if (model_contributes(m, visit) && model_drop_concerns(layer))
            model_drop_add(&out->trained, layer->index);
        else if (model_contributes(m, visit))
            out->trains_others = true;
    }
    out->computed = calloc(2 * (size_t)out->n, sizeof *out->computed);
    out->frozen = out->computed ? out->computed + out->n : NULL;
    return out->computed ? 0 : error_memory(err);
}

void client_blocks_free(struct client_blocks *blocks)
{
    free(blocks->computed);
    model_free(&blocks->model);
    *blocks = (struct client_blocks){0};
}

static int blocks_refuse(const struct eps_step_blocks *asked, const char *why, uint32_t block, struct error *err)
{
    error_set(err, -EINVAL, "on_blocks of step %" PRIu64 ": ", asked->step);
    error_append(err, why, block);
    return -EINVAL;
}

/* *out: the blocks of a list. */
static int blocks_take(struct model_drop *out, const struct eps_step_blocks *asked, const uint32_t *list, uint32_t n,
                       struct error *err)
{
    *out = (struct model_drop){0};
    if (n > asked->n_blocks)
        return blocks_refuse(asked, "%u blocks are more than the model has", n, err);
    for (uint32_t i = 0; i < n; i++) {
        if (list[i] >= asked->n_blocks)
            return blocks_refuse(asked, "the model has no block %u: its first is 0", list[i], err);
        if (model_drop_holds(out, list[i]))
            return blocks_refuse(asked, "block %u is named twice", list[i], err);
        model_drop_add(out, list[i]);
    }
    return 0;
}

/* The list's blocks, in the places of all that are computed: those that are left out stay in theirs. */
static int blocks_arrange(struct model_order *out, const struct eps_step_blocks *asked,
                          const struct model_drop *dropped, const struct model *model, struct error *err)
{
    bool moves = false;

    out->n = 0;
    for (uint32_t place = 0, i = 0; place < asked->n_blocks; place++) {
        const uint32_t block = model_drop_holds(dropped, place) ? place : asked->computed[i++];
        if (!model_order_fits(model, block, place)) {
            blocks_refuse(asked, "block %u cannot be computed", block, err);
            error_append(err, " in the place of block %u: they read or write other values, so name it among its like",
                         place);
            return -EINVAL;
        }
        moves |= block != place;
        out->blocks[place] = (uint16_t)block;
    }
    out->n = moves ? asked->n_blocks : 0;
    return 0;
}

int client_blocks_ask(struct message *open, const struct client_blocks *blocks, const struct eps_train_options *options,
                      struct error *err)
{
    struct model_drop *const dropped = &open->open_step.drop, *const frozen = &open->open_step.frozen, computed;
    const uint64_t step = open->open_step.step + 1;
    struct eps_step_blocks asked = {.step = step,
                                    .n_blocks = blocks->n,
                                    .computed = blocks->computed,
                                    .frozen = blocks->frozen};
    bool trains = blocks->trains_others;

    for (uint32_t b = 0; b < blocks->n; b++)
        if (!model_drop_holds(dropped, b))
            asked.computed[asked.n_computed++] = b;
    options->on_blocks(options->blocks_user, &asked);
    asked.step = step, asked.n_blocks = blocks->n; /* it may have written these, too */
    asked.computed = blocks->computed;
    int rc = blocks_take(&computed, &asked, blocks->computed, asked.n_computed, err);
    if (!rc)
        rc = blocks_take(frozen, &asked, blocks->frozen, asked.n_frozen, err);
    if (rc)
        return rc;
    if (asked.n_computed == 0)
        return blocks_refuse(&asked, "no block is named, and a step computes one at least", 0, err);
    *dropped = (struct model_drop){0};
    for (uint32_t b = 0; b < blocks->n; b++) {
        if (model_drop_holds(frozen, b) && !model_drop_holds(&computed, b))
            return blocks_refuse(&asked, "block %u is frozen, and not computed: name it in computed, too", b, err);
        if (!model_drop_holds(&computed, b))
            model_drop_add(dropped, b);
        else
            trains |= !model_drop_holds(frozen, b) && model_drop_holds(&blocks->trained, b);
    }
    if (!trains)
        return blocks_refuse(&asked, "nothing is left to train: compute another block, or freeze fewer", 0, err);
    return blocks_arrange(&open->open_step.order, &asked, dropped, &blocks->model, err);
}
