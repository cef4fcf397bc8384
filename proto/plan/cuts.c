/* Sizes come from a plan without cuts, which has those of all shapes; the tables are filled once, and plan_cut reads
 * nothing else. A search calls it for many limits.
 *
 * What is stored below a place depends only on the cuts below it. So the best way to reach a place does not depend on
 * what lies above, and a larger limit allows all that a smaller one does: that makes the recurrence exact, and the
 * bisection for the least limit valid. */
#include "proto/plan/cuts.h"

#include "proto/plan/memory/segments.h"
#include "proto/plan/memory/values.h"

/* ---- what is between two places ---- */

/* The first layer from `from` on, before `end`, at which a segment may begin; or `end`. */
static uint32_t cuts_next_place(const struct model *model, uint32_t from, uint32_t end)
{
    while (from < end && !plan_may_cut(model, from))
        from++;
    return from;
}

static void cuts_list_places(struct plan_cuts *out, const struct model *model)
{
    const uint64_t layers = model->n_layers - 1;
    const uint32_t most = PLAN_MAX_CUTS;

    for (uint32_t i = 0; i < most && i < layers; i++) {
        const uint64_t spaces = layers < most ? layers : most;
        const uint32_t from = 1 + (uint32_t)(layers * i / spaces), end = 1 + (uint32_t)(layers * (i + 1) / spaces);
        const uint32_t at = cuts_next_place(model, from, end);
        if (at < end)
            out->at[out->n++] = at;
    }
    out->at[out->n] = model->n_layers;
}

static uint64_t cuts_bytes_of(const struct plan *plan, const struct model *model, const struct model_value *v)
{
    return v->stashed && !model_is_small(&model->values.shapes[v->shape]) ? plan->values[v->shape].bytes : 0;
}

/* Each value is written between two places. Those that are read above j add up downwards. */
static void add_values(struct plan_cuts *out, const struct plan *plan, const struct model *model)
{
    const struct model_value *const of = model->values.of;
    uint32_t i = 0;

    for (const struct model_value *v = of; v < of + model->values.n; v++) {
        while (i < out->n && v->first >= out->at[i])
            i++; /* behind place i-1 */
        const uint64_t bytes = cuts_bytes_of(plan, model, v);
        if (i == 0)
            out->lowest += bytes;
        else
            out->written[i] += bytes;
        for (uint32_t j = i; i > 0 && j < out->n && v->top >= out->at[j]; j++)
            out->crossing[i - 1][j] += bytes;
    }
    for (uint32_t j = 1; j <= out->n; j++) {
        out->written[j] += out->written[j - 1];
        for (uint32_t k = j - 1; k-- > 0;)
            out->crossing[k][j] += out->crossing[k + 1][j];
    }
}

/* About those of the layer's matrices: elements times places. */
static double count_operations(const struct model *model, const struct plan *plan, uint32_t layer)
{
    const struct model_layer *l = &model->layers[layer];
    const struct model_value *y = l->edges.n_writes > 0 ? &model->values.of[l->edges.writes[0]] : NULL;
    uint64_t n = 0;

    for (uint32_t i = 0; i < l->n_visits; i++)
        n += model->units[model->visits[l->first_visit + i]].n;
    return (double)n *
           (y ? (double)plan_shape_elements(&model->values.shapes[y->shape], 1, plan->setting.goal.seq) : 1);
}

/* Upwards from i: nothing below the lowest trained layer comes again. */
static void add_operations(struct plan_cuts *out, const struct plan *plan, const struct model *model, uint32_t i)
{
    uint32_t layer = out->at[i];
    double sum = 0;

    for (uint32_t j = i + 1; j < out->n; j++) {
        const uint32_t end = plan_again_end(model, (struct plan_segment){out->at[i], out->at[j]});
        double behind = 0;
        for (; layer < out->at[j]; layer++)
            sum += count_operations(model, plan, layer);
        for (uint32_t l = end; l < out->at[j]; l++)
            behind += count_operations(model, plan, l);
        out->operations[i][j] = out->at[j] > model->lowest_trained ? sum - behind : 0;
    }
}

static void cuts_add_gradients(struct plan_cuts *out, const struct plan *plan, const struct model *model, uint32_t i)
{
    for (uint32_t j = i + 1; j <= out->n; j++)
        for (uint32_t k = 0; k < model->values.n_shapes; k++) {
            const struct model_shape *shape = &model->values.shapes[k];
            if (shape->lowest < out->at[j] && shape->topmost >= out->at[i])
                out->gradients[i][j] += plan_gradients_bytes(plan, model, k);
        }
}

/* ---- the least for each place ---- */

struct least {
    uint64_t bytes; /* UINT64_MAX: the place is out of reach */
    double operations;
    uint32_t before; /* the place below, if this is not the lowest */
};

static bool cuts_fits(const struct plan_cuts *cuts, const struct least *below, uint32_t i, uint32_t j, uint64_t limit)
{
    return below->bytes != UINT64_MAX &&
           below->bytes + cuts->written[j] - cuts->written[i] + cuts->gradients[i][j] <= limit;
}

static bool is_less(const struct least *a, const struct least *b)
{
    return a->bytes < b->bytes || (a->bytes == b->bytes && a->operations < b->operations);
}

static void find_all(struct least of[PLAN_CUT_PLACES], const struct plan_cuts *cuts, uint64_t limit)
{
    of[0] = (struct least){.bytes = cuts->lowest};
    for (uint32_t j = 1; j < cuts->n; j++) {
        of[j] = (struct least){.bytes = UINT64_MAX};
        for (uint32_t i = 0; i < j; i++) {
            const struct least next = {of[i].bytes + cuts->crossing[i][j], of[i].operations + cuts->operations[i][j],
                                       i};
            if (cuts_fits(cuts, &of[i], i, j, limit) && is_less(&next, &of[j]))
                of[j] = next;
        }
    }
}

/* The place of the topmost segment; n: there is none. */
static uint32_t find_top(const struct least of[PLAN_CUT_PLACES], const struct plan_cuts *cuts, uint64_t limit)
{
    uint32_t top = cuts->n;

    for (uint32_t i = 0; i < cuts->n; i++)
        if (cuts_fits(cuts, &of[i], i, cuts->n, limit) && (top == cuts->n || of[i].operations < of[top].operations))
            top = i;
    return top;
}

bool plan_cut(struct plan_choice *choice, const struct plan_cuts *cuts, uint64_t limit)
{
    struct least of[PLAN_CUT_PLACES];

    find_all(of, cuts, limit);
    const uint32_t top = find_top(of, cuts, limit);
    if (top == cuts->n)
        return false;
    choice->n_cuts = 1;
    for (uint32_t i = top; i > 0; i = of[i].before)
        choice->n_cuts++;
    for (uint32_t i = top, k = choice->n_cuts; k-- > 0; i = of[i].before)
        choice->cuts[k] = cuts->at[i];
    return true;
}

static uint64_t find_least_limit(const struct plan_cuts *cuts)
{
    uint64_t low = 0, high = cuts->most;
    struct plan_choice choice;

    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (plan_cut(&choice, cuts, middle))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

void plan_cuts_init(struct plan_cuts *out, const struct plan *plan, const struct model *model)
{
    *out = (struct plan_cuts){.n = 0};
    cuts_list_places(out, model);
    add_values(out, plan, model);
    for (uint32_t i = 0; i < out->n; i++) {
        add_operations(out, plan, model, i);
        cuts_add_gradients(out, plan, model, i);
    }
    out->most = out->n > 0 ? out->lowest + out->written[out->n] + out->gradients[0][out->n] : 0;
    out->least = find_least_limit(out);
}
