/* Whether two blocks may change places is decided by what they read and write at their boundaries, never by their kind:
 * a block between two others is moved only if its neighbours cannot tell. Layers of a block come in the same order in
 * every place, so `part` names the counterpart. */
#include "proto/model/order.h"

#include "proto/model/model_internal.h"

#include <string.h>

/* The first layer of a block. */
static const struct model_layer *layers_of(const struct model *m, uint32_t block)
{
    const struct model_layer *const first = &m->layers[m->first_block];
    uint32_t low = 0, high = m->n_block_layers;

    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (first[middle].index < block)
            low = middle + 1;
        else
            high = middle;
    }
    return &first[low];
}

static bool is_same_boundary(const struct program *a, const struct program_boundary *of_a, const struct program *b,
                             const struct program_boundary *of_b)
{
    const struct program_value *x = &a->values[of_a->value], *y = &b->values[of_b->value];

    return strcmp(of_a->name, of_b->name) == 0 && x->domain == y->domain && x->columns == y->columns &&
           x->type == y->type && of_a->adds == of_b->adds;
}

static bool agrees(const struct model_program *a, const struct model_program *b)
{
    const struct program *p = &a->program, *q = &b->program;

    if (p->n_inputs != q->n_inputs || p->n_outputs != q->n_outputs || a->reads != b->reads || a->passes != b->passes)
        return false;
    for (int i = 0; i < p->n_inputs; i++)
        if (!is_same_boundary(p, &p->inputs[i], q, &q->inputs[i]))
            return false;
    for (int i = 0; i < p->n_outputs; i++)
        if (!is_same_boundary(p, &p->outputs[i], q, &q->outputs[i]))
            return false;
    return true;
}

bool model_order_fits(const struct model *m, uint32_t block, uint32_t place)
{
    if (block == place)
        return true;
    const struct model_layer *const a = layers_of(m, block), *const b = layers_of(m, place);
    const ptrdiff_t n_a = model_next_block(a) - a, n_b = model_next_block(b) - b;

    for (ptrdiff_t i = 0; i < n_a || i < n_b; i++) {
        const bool moves = i < n_a && model_drop_concerns(&a[i]);
        if (moves != (i < n_b && model_drop_concerns(&b[i])) || (moves && !agrees(a[i].program, b[i].program)))
            return false;
    }
    return true;
}

bool model_order_is_valid(const struct model_order *order, const struct model_drop *dropped, const struct model *m)
{
    struct model_drop seen = {0};

    if (order->n == 0)
        return true;
    if (order->n != m->config.n_layers)
        return false;
    for (uint32_t place = 0; place < order->n; place++) {
        const uint32_t block = order->blocks[place];
        if (block >= order->n || model_drop_holds(&seen, block) || !model_order_fits(m, block, place) ||
            (block != place && model_drop_holds(dropped, block)))
            return false;
        model_drop_add(&seen, block);
    }
    return true;
}

void model_order_homes(uint32_t *homes, const struct model_order *order, const struct model *m)
{
    for (uint32_t v = 0; v < m->n_visits; v++) {
        const struct model_layer *layer = &m->layers[m->visit_layers[v]];
        const bool moves = order && order->n > 0 && model_drop_concerns(layer);
        homes[v] = moves ? layers_of(m, order->blocks[layer->index])[layer->part].first_visit : v;
    }
}
