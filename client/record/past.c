#include "client/record/past.h"

#include "client/eps.h"

#include <math.h>

struct reading {
    struct client_past *past;
    uint64_t most;
};

static void on_line(void *user, const struct eps_step *step)
{
    const struct reading *reading = user;
    struct client_past *past = reading->past;

    if (step->step > reading->most)
        return;
    if (!isnan(step->eval_before))
        client_best_add(&past->best, 0, step->eval_before);
    if (!isnan(step->eval_loss))
        client_best_add(&past->best, step->step, step->eval_loss);
    past->last = step->step;
    past->eval_loss = step->eval_loss;
    past->step_ms = step->step_ms;
    past->tokens_per_s = step->tokens_per_s;
    past->n_skipped = step->skipped ? past->n_skipped + 1 : 0;
}

void client_past_read(struct client_past *out, const char *directory, uint64_t step)
{
    struct reading reading = {out, step};

    *out = (struct client_past){.eval_loss = NAN, .step_ms = NAN, .tokens_per_s = NAN};
    client_best_init(&out->best);
    (void)eps_metrics_read(directory, on_line, &reading, NULL, NULL);
}

bool client_past_lacks_evaluation(const struct client_past *past, const struct eps_train_options *options,
                                  uint64_t step)
{
    const bool is_due = step == options->steps || (options->eval_every > 0 && step % options->eval_every == 0);

    return is_due && step > 0 && (past->last < step || isnan(past->eval_loss));
}
