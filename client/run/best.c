#include "client/run/best.h"

#include "client/eps.h"
#include "client/run/checkpoints.h"
#include "proto/model/output.h"

#include <math.h>

void client_best_init(struct client_best *best)
{
    *best = (struct client_best){.loss = INFINITY};
}

bool client_best_add(struct client_best *best, uint64_t step, double loss)
{
    if (!(loss < best->loss)) { /* also true for NaN */
        best->n_since++;
        return false;
    }
    *best = (struct client_best){.loss = loss, .step = step};
    return true;
}

struct reading {
    struct client_best *best;
    uint64_t marked, last;
};

static void on_step(void *user, const struct eps_step *step)
{
    struct reading *r = user;

    if (isnan(step->eval_loss) || step->step < r->marked || step->step > r->last)
        return;
    if (step->step == r->marked)
        client_best_add(r->best, step->step, step->eval_loss);
    else if (r->best->loss < INFINITY)
        r->best->n_since++;
}

void client_best_read(struct client_best *best, const char *directory, int directory_fd, uint64_t step)
{
    struct reading reading = {.best = best, .last = step};

    client_best_init(best);
    if (client_checkpoints_link(&reading.marked, directory_fd, "best"))
        (void)eps_metrics_read(directory, on_step, &reading, NULL, NULL);
}

int client_best_mark(int directory_fd, uint64_t step)
{
    return output_point(directory_fd, "best", step);
}
