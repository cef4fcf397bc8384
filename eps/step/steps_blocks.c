/* The blocks of a step: which it leaves out or freezes, and the order in which it computes them. */
#include "eps/step/steps.h"

const uint32_t *steps_arrange(struct steps *steps, const struct message *m)
{
    struct job *job = steps->job;

    if (!job_goal(job)->chooses)
        return job->model.visits;
    model_order_homes(steps->homes, &m->open_step.order, &job->model);
    for (uint32_t v = 0; v < job->model.n_visits; v++) {
        steps->visits[v] = job->model.visits[steps->homes[v]];
        steps->slices[v] = job->model.units[steps->visits[v]].n_slices;
    }
    job->homes = m->open_step.order.n > 0 ? steps->homes : NULL;
    return steps->visits;
}

/* For the relay all of them only advance. */
uint32_t steps_leave_out(struct steps *steps, const struct message *open)
{
    const struct model *model = &steps->job->model;
    const uint32_t *homes = steps->job->homes;
    uint32_t n = model->n_frozen_units, lowest = 0;

    for (uint32_t visit = model->n_visits; visit-- > 0;) {
        const uint32_t home = model_order_home(homes, visit);
        if (!model_contributes(model, home))
            continue;
        if (model_drop_trains(&open->open_step.drop, &open->open_step.frozen, model, home))
            lowest = visit;
        else
            steps->frozen[n++] = model->visits[home];
    }
    steps->lowest_visit = lowest;
    return n;
}

/* True if a block that is neither dropped nor frozen, or a layer beside the blocks, is trained. */
static bool steps_blocks_trains(const struct model *model, const struct message *m)
{
    for (uint32_t i = 0; i < model->n_trained_visits; i++)
        if (model_drop_trains(&m->open_step.drop, &m->open_step.frozen, model, model->trained_visits[i]))
            return true;
    return false;
}

bool steps_may_compute(const struct job *job, const struct message *m)
{
    const uint32_t n = job->model.config.n_layers;
    const struct model_drop *drop = &m->open_step.drop, *frozen = &m->open_step.frozen;

    return (model_drop_is_empty(drop) || (plan_may_drop(job_goal(job)) && !model_drop_exceeds(drop, n))) &&
           (model_drop_is_empty(frozen) || (job_goal(job)->chooses && !model_drop_exceeds(frozen, n))) &&
           (m->open_step.order.n == 0 ||
            (job_goal(job)->chooses && model_order_is_valid(&m->open_step.order, drop, &job->model))) &&
           steps_blocks_trains(&job->model, m);
}
