/* The answer is that of the launches themselves: each step of attention in the model's schedules makes its call, for a
 * device that has attention alone and asks of each call what a launch asks (attention_path_of). So whatever a family's
 * config changes in a call, a cap, a bias, the heads' width, is seen here without being named. The calls' arrays are
 * addresses that nobody reads, which tell by not being NULL that there are keys of another layer, or a bias. */
#include "proto/step/paths.h"

#include "proto/operation/attention_path.h"
#include "proto/operation/operation.h"

/* In the place of a device. */
struct paths_seen {
    enum number_type type;
    unsigned paths;
};

static void paths_see(struct device *dev, const struct device_attention *op, enum attention_kernel kernel)
{
    struct paths_seen *seen = (struct paths_seen *)dev;

    seen->paths |= 1u << attention_path_of(seen->type, op, kernel, PLAN_ATTENTION_OWN);
}

static void paths_attention(struct device *dev, const struct device_attention *op)
{
    paths_see(dev, op, ATTENTION_FORWARD);
}

static void paths_attention_backward(struct device *dev, const struct device_attention *op)
{
    paths_see(dev, op, ATTENTION_QUERIES);
    paths_see(dev, op, ATTENTION_KEYS);
}

/* A schedule of backward has the steps of forward that are computed again, too. */
static void paths_of_schedule(struct operation_run *r, const struct schedule *schedule)
{
    r->schedule = schedule;
    for (int i = 0; i < schedule->n_steps; i++) {
        const struct schedule_step *step = &schedule->steps[i];
        const struct operation *kind = step->operation < 0 ? NULL : operation_of(r, step)->kind;
        if ((step->action == SCHEDULE_FORWARD || step->action == SCHEDULE_BACKWARD) &&
            (kind == &operation_attention || kind == &operation_cross_attention))
            kind->run(r, step);
    }
}

unsigned step_attention_paths(const struct model *model, enum number_type type, uint32_t n_tokens)
{
    static const struct device_ops ops = {.attention = paths_attention, .attention_backward = paths_attention_backward};
    static const uint32_t nowhere[SCHEDULE_BUFFERS];
    struct paths_seen seen = {.type = type};
    struct operation_run r = {.ops = &ops,
                              .dev = (struct device *)&seen,
                              .type = type,
                              .n_rows = 1,
                              .n_tokens = n_tokens,
                              .lengths = model_has_lengths(&model->config) ? nowhere : NULL,
                              .drops = true};

    for (int i = 0; i < SCHEDULE_BUFFERS; i++)
        r.at[i] = (void *)(uintptr_t)&nowhere[i];
    for (uint32_t i = 0; i < model->n_programs; i++) {
        r.program = &model->programs[i].program;
        paths_of_schedule(&r, &model->programs[i].forward[0]);
        paths_of_schedule(&r, &model->programs[i].backward[0]);
    }
    return seen.paths;
}
