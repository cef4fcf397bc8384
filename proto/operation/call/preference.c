/* A pair's loss is computed twice: on the device, as the factors of the gradient, and on the host, as the figure that
 * is reported. Both start from the same sums of log p, in double. log sigmoid is split at 0, so that exp overflows on
 * neither side. */
#include "proto/operation/call/preference.h"

#include "proto/operation/call.h"

#include <math.h>

void device_preference_describe(struct call_work *out, struct device_preference *op)
{
    const size_t n_rows = 2 * op->n_pairs;

    call_add_array(out, "losses", &op->losses, CALL_FP64, CALL_READ, call_all(n_rows * op->n_tokens));
    call_add_array(out, "references", &op->references, CALL_FP32, CALL_READ, call_all(n_rows));
    call_add_array(out, "log_p", &op->log_p, CALL_FP64, CALL_WRITTEN, call_all(n_rows));
    call_add_array(out, "scales", &op->scales, CALL_FP32, CALL_WRITTEN, call_all(n_rows * op->n_tokens));
}

static double log_sigmoid(double z)
{
    return z > 0 ? -log1p(exp(-z)) : z - log1p(exp(z));
}

double preference_judge(struct preference_rewards *sums, const struct preference *preference, const double log_p[2],
                        const float references[2])
{
    const double beta = preference->beta, smoothing = preference->smoothing;
    const double chosen = beta * (log_p[0] - (double)references[0]),
                 rejected = beta * (log_p[1] - (double)references[1]), z = chosen - rejected;

    sums->chosen += chosen;
    sums->rejected += rejected;
    /* Both policies' log p rounded alike: at step 1, where they are one, neither text is the likelier. */
    sums->right += (double)(float)log_p[0] - (double)references[0] > (double)(float)log_p[1] - (double)references[1];
    sums->chosen_log_p += log_p[0];
    sums->rejected_log_p += log_p[1];
    return -(1 - smoothing) * log_sigmoid(z) - smoothing * log_sigmoid(-z);
}
