/* The norms that a unit remembers, on their way to the device (proto/model/norms.h). */
#include "proto/step/layers.h"
#include "proto/step/pass.h"

#include "proto/model/norms.h"

static const struct model_unit *norms_unit_at(const struct device_pass *pass, uint32_t place)
{
    const struct model *model = &pass->worker->model;

    return &model->units[model->visits[device_weights_home(&pass->weights, place)]];
}

static uint32_t set_at(const struct device_pass *pass, uint32_t place)
{
    return place % pass->worker->plan.n_sets;
}

static bool has_norms(const struct device_pass *pass, uint32_t place)
{
    return pass->norms && norms_unit_at(pass, place)->n_norm_maps > 0;
}

/* A set has (runs, the unit's maps, part_rows, seq) numbers. */
static uint16_t *norms_of(const struct device_pass *pass, uint32_t place, uint32_t run)
{
    uint16_t *first = device_pass_address(pass, pass->worker->plan.norms[set_at(pass, place)]);

    return first + run * norms_unit_at(pass, place)->n_norms;
}

void device_norms_next(struct device_pass *pass, uint32_t place)
{
    const struct device_worker *w = pass->worker;
    const struct plan_goal *goal = &w->plan.setting.goal;
    const size_t map_stride = (size_t)goal->batch * goal->seq, own_stride = (size_t)pass->run_rows * goal->seq;

    if (!has_norms(pass, place))
        return;
    const struct model_unit *unit = norms_unit_at(pass, place);
    w->ops->follow(w->dev, DEVICE_PULL, DEVICE_COMPUTE, pass->norms_used[set_at(pass, place)]);
    for (uint32_t run = 0; run < pass->n_runs; run++)
        for (uint32_t i = 0; i < unit->n_norm_maps; i++) {
            const uint32_t u = (uint32_t)(unit - w->model.units);
            const size_t n = model_norm_map(&w->model, u, i, pass->n_tokens).n;
            w->ops->upload(w->dev, norms_of(pass, place, run) + i * own_stride,
                           pass->norms + (unit->first_norm_map + i) * map_stride + device_pass_first_row(pass, run) * n,
                           pass->run_rows * n * sizeof *pass->norms);
        }
    w->ops->follow(w->dev, DEVICE_COMPUTE, DEVICE_PULL, w->ops->mark(w->dev, DEVICE_PULL));
}

void device_norms_leave(struct device_pass *pass, uint32_t place)
{
    const struct device_worker *w = pass->worker;

    if (has_norms(pass, place))
        pass->norms_used[set_at(pass, place)] = w->ops->mark(w->dev, DEVICE_COMPUTE);
}

void device_norms_set(struct layer_pass *visit, const struct device_pass *pass, uint32_t run, float *contribution)
{
    const struct model_unit *unit = visit->unit;

    visit->norms = has_norms(pass, pass->place) ? norms_of(pass, pass->place, run) : NULL;
    visit->norms_out = contribution && unit->n_norms > 0 ? contribution + model_norms_at(unit) : NULL;
    visit->norms_stride = (size_t)pass->run_rows * visit->setting->goal.seq;
}
