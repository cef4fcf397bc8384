/* The rest is what the compute queue is busy with beyond the uses that have a path, so the shares of all paths add up
 * to all computing. There is at most one path for each kind and way, which is what EPS_MOST_PATHS counts. */
#include "client/ask/plan/timeline.h"

#include "proto/step/timeline.h"

/* seconds: of one worker's computing. */
static void plan_timeline_add_path(struct eps_timeline *out, const char *kind, const char *path, double seconds,
                                   double operations)
{
    if (seconds > 0)
        out->paths[out->n_paths++] =
            (struct eps_path){.kind = kind, .path = path, .ms = seconds * 1e3, .tflops = operations / seconds / 1e12};
}

static void fill_paths(struct eps_timeline *out, const struct plan_setting *setting, const struct step_timeline *line)
{
    const bool of_host = setting->backend->takes_turns;
    const struct plan_uses *uses = &line->uses;
    const struct {
        const char *kind;
        int first;
    } directions[] = {{"attention", PLAN_USE_ATTENTION}, {"attention_backward", PLAN_USE_ATTENTION_BACKWARD}};
    static const char *const kinds[CONV2D_KINDS] = {"convolutions", "convolutions_input", "convolutions_weights"};
    double rest = line->queues[PLAN_QUEUE_COMPUTE].busy;

    plan_timeline_add_path(out, "products", of_host ? "tiles" : "cublaslt", uses->seconds[PLAN_USE_PRODUCTS],
                           uses->operations[PLAN_USE_PRODUCTS]);
    for (int i = 0; i < CONV2D_KINDS * CONV2D_PATHS; i++)
        plan_timeline_add_path(out, kinds[i / CONV2D_PATHS],
                               profile_conv2d_path_name((enum conv2d_path)(i % CONV2D_PATHS)),
                               uses->seconds[PLAN_USE_CONVOLUTIONS + i], uses->operations[PLAN_USE_CONVOLUTIONS + i]);
    for (int i = 0; i < 2; i++)
        for (int path = 0; path < ATTENTION_PATHS; path++)
            plan_timeline_add_path(out, directions[i].kind, profile_path_name((enum attention_path)path),
                                   uses->seconds[directions[i].first + path],
                                   uses->operations[directions[i].first + path]);
    for (int i = 0; i < PLAN_USES; i++)
        rest -= uses->seconds[i];
    plan_timeline_add_path(out, "rest", "memory", rest, 0);
}

int client_fill_timeline(struct eps_timeline *out, const struct eps_train_options *options, const struct model *model,
                         const struct profile *profile, const struct plan_fit *fit)
{
    static const enum plan_queue queues[EPS_QUEUES] = {PLAN_QUEUE_PULL, PLAN_QUEUE_COMPUTE, PLAN_QUEUE_PUSH,
                                                       PLAN_QUEUE_OPTIMIZER};
    const struct step_timeline_setting setting = {.plan = &fit->plans[0],
                                                  .model = model,
                                                  .host = &fit->setting,
                                                  .profile = profile,
                                                  .n_slots = fit->host.n_slots};
    const double tokens = (double)options->batch * options->seq;
    struct step_timeline line;
    const int rc = step_timeline(&line, &setting);

    if (rc)
        return rc;
    out->step_ms = line.seconds * 1e3;
    out->pixels = model->config.image.height * model->config.image.width;
    out->tokens_per_s = tokens / line.seconds;
    out->tflops = 6 * (double)model->n_parameters * out->tokens_per_s / 1e12;
    for (int i = 0; i < EPS_QUEUES; i++) {
        if (line.binds == queues[i])
            out->binds = (enum eps_queue)i;
        out->busy_ms[i] = line.queues[queues[i]].busy * 1e3;
        for (int j = 0; j < EPS_QUEUES; j++)
            out->waited_ms[i][j] = line.queues[queues[i]].waited[queues[j]] * 1e3;
        out->waited_ms[i][EPS_MESSAGES] = line.queues[queues[i]].waited[PLAN_QUEUE_NOBODY] * 1e3;
    }
    fill_paths(out, &fit->plans[0].setting, &line);
    return 0;
}
