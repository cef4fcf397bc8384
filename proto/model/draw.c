/* The daemon draws weights when a job begins, the client when it derives a model (client/run/derive.c), each in ranges
 * of its own. So an element depends on nothing but key, index and place. */
#include "proto/model/draw.h"

#include <math.h>

/* u: from -1 to 1, where these become the two bounds. */
static double draw_between(double least, double most, float u)
{
    return least + (most - least) * ((double)u + 1) / 2;
}

/* The inverse of softplus: log(e^s - 1), which loses no digits where s is small. */
static float draw_step(const struct model_tensor *tensor, float u)
{
    const double size = exp(draw_between(log((double)tensor->least), log((double)tensor->deviation), u));

    return (float)(size + log(-expm1(-size)));
}

void model_draw(float *out, const struct model_tensor *tensor, struct random_key key, uint32_t index, uint64_t first,
                size_t n)
{
    float factor = tensor->deviation;

    switch (tensor->init) {
    case MODEL_INIT_ZERO:
    case MODEL_INIT_ONE:
        for (size_t i = 0; i < n; i++)
            out[i] = tensor->init == MODEL_INIT_ONE;
        factor = 1;
        break;
    case MODEL_INIT_CONSTANT:
        for (size_t i = 0; i < n; i++)
            out[i] = 1;
        break;
    case MODEL_INIT_NORMAL:
        random_normal(out, key, index, first, n);
        break;
    case MODEL_INIT_UNIFORM:
        random_uniform(out, key, index, first, n);
        break;
    case MODEL_INIT_LOG_UNIFORM:
        random_uniform(out, key, index, first, n);
        for (size_t i = 0; i < n; i++)
            out[i] = (float)log(draw_between(fmax(MODEL_LEAST_LOGGED, (double)tensor->least), (double)factor, out[i]));
        factor = 1;
        break;
    case MODEL_INIT_STEP:
        random_uniform(out, key, index, first, n);
        for (size_t i = 0; i < n; i++)
            out[i] = draw_step(tensor, out[i]);
        factor = 1;
        break;
    }
    for (size_t i = 0; i < n; i++)
        out[i] *= factor;
}
