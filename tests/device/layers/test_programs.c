/* Llama's block as a program, run on the CPU: against the same block in double, and against its slopes. */
#include "device/layers/layers.h"
#include "tests/kit/programs.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 2, TOKENS = 5, N = ROWS * TOKENS, WIDTH = 16, HEADS = 4, HEAD = WIDTH / HEADS, INNER = 24 };

/* The tensors' places in the unit, by hand. */
enum {
    NORM_1 = 0,
    Q = NORM_1 + WIDTH,
    K = Q + WIDTH * WIDTH,
    V = K + WIDTH * WIDTH,
    O = V + WIDTH * WIDTH,
    NORM_2 = O + WIDTH * WIDTH,
    GATE = NORM_2 + WIDTH,
    UP = GATE + WIDTH * INNER,
    DOWN = UP + WIDTH * INNER,
    WEIGHTS = DOWN + INNER * WIDTH,
    VALUES = N * WIDTH,
};

static double draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (double)(*state >> 11) / (double)(UINT64_C(1) << 53) - 0.5;
}

/* ---- in double ---- */

static void norm(double *y, const double *x, const double *w)
{
    double sum = 0;

    for (int i = 0; i < WIDTH; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < WIDTH; i++)
        y[i] = x[i] / sqrt(sum / WIDTH + 1e-5) * w[i];
}

static void map(double *y, const double *x, const double *w, int in, int out)
{
    for (int j = 0; j < out; j++) {
        y[j] = 0;
        for (int i = 0; i < in; i++)
            y[j] += x[i] * w[i * out + j];
    }
}

static void turn(double *head, int position)
{
    for (int j = 0; j < HEAD / 2; j++) {
        const double angle = position * pow(10000, -2.0 * j / HEAD), a = head[j], b = head[j + HEAD / 2];
        head[j] = a * cos(angle) - b * sin(angle);
        head[j + HEAD / 2] = b * cos(angle) + a * sin(angle);
    }
}

static void attend(double *out, const double *q, const double (*k)[WIDTH], const double (*v)[WIDTH], int n, int h)
{
    double p[TOKENS], sum = 0;

    for (int t = 0; t < n; t++) {
        double score = 0;
        for (int i = 0; i < HEAD; i++)
            score += q[h * HEAD + i] * k[t][h * HEAD + i];
        p[t] = exp(score / sqrt(HEAD));
        sum += p[t];
    }
    for (int i = 0; i < HEAD; i++) {
        out[h * HEAD + i] = 0;
        for (int t = 0; t < n; t++)
            out[h * HEAD + i] += p[t] / sum * v[t][h * HEAD + i];
    }
}

/* One row: y (TOKENS, WIDTH). */
static void block(double *y, const double *x, const double *w)
{
    double q[TOKENS][WIDTH], k[TOKENS][WIDTH], v[TOKENS][WIDTH], n[WIDTH], a[WIDTH], o[WIDTH], gate[INNER], up[INNER];

    for (int t = 0; t < TOKENS; t++) {
        norm(n, x + t * WIDTH, w + NORM_1);
        map(q[t], n, w + Q, WIDTH, WIDTH);
        map(k[t], n, w + K, WIDTH, WIDTH);
        map(v[t], n, w + V, WIDTH, WIDTH);
        for (int h = 0; h < HEADS; h++)
            turn(q[t] + h * HEAD, t), turn(k[t] + h * HEAD, t);
        for (int h = 0; h < HEADS; h++)
            attend(a, q[t], k, v, t + 1, h);
        map(o, a, w + O, WIDTH, WIDTH);
        for (int i = 0; i < WIDTH; i++)
            o[i] += x[t * WIDTH + i];
        norm(n, o, w + NORM_2);
        map(gate, n, w + GATE, WIDTH, INNER);
        map(up, n, w + UP, WIDTH, INNER);
        for (int i = 0; i < INNER; i++)
            up[i] *= gate[i] / (1 + exp(-gate[i]));
        map(n, up, w + DOWN, INNER, WIDTH);
        for (int i = 0; i < WIDTH; i++)
            y[t * WIDTH + i] = o[i] + n[i];
    }
}

/* The sum of y times dy. */
static double objective(const double *x, const double *w, const double *dy)
{
    double y[VALUES], sum = 0;

    for (int row = 0; row < ROWS; row++)
        block(y + row * TOKENS * WIDTH, x + row * TOKENS * WIDTH, w);
    for (int i = 0; i < VALUES; i++)
        sum += y[i] * dy[i];
    return sum;
}

/* ---- on the device ---- */

struct result {
    float y[VALUES], x_gradient[VALUES], weight_gradient[WEIGHTS];
};

static float *take(char **at, size_t bytes)
{
    float *taken = (float *)*at;

    *at += (bytes + 63) / 64 * 64;
    return taken;
}

/* The workspace holds NaNs before each pass, so that nothing is read there that was not written. */
static void run(struct result *out, const float *x, const float *w, const float *dy, bool keeps)
{
    enum { ROOM = 1 << 20 };
    static struct model_program layer;
    struct model_tensor tensors[PROGRAM_TENSORS] = {0};
    struct model_piece pieces[PROGRAM_TENSORS] = {0};
    struct model model = {.tensors = tensors, .pieces = pieces};
    struct model_unit unit = {0};
    struct model_layer of = {.kind = MODEL_BLOCK, .program = &layer};
    struct plan plan = {.setting = {.backend = &plan_cpu, .seq = TOKENS, .n_threads = 1},
                        .choice = {.microbatch = ROWS}};
    struct device *dev;
    const struct device_ops *ops = &device_cpu;

    programs_llama(&layer.program, &(struct programs_shape){WIDTH, HEADS, HEADS, INNER, 0});
    layer.kept[MODEL_KEEPS_ALL] = program_keepable(&layer.program);
    for (int i = 0; i < MODEL_KEEPINGS; i++) {
        schedule_forward(&layer.forward[i], &layer.program, layer.kept[i]);
        schedule_backward(&layer.backward[i], &layer.program, layer.kept[i]);
    }
    for (int i = 0; i < layer.program.n_tensors; i++) {
        const struct program_tensor *t = &layer.program.tensors[i];
        tensors[i].n_dims = t->columns ? 2 : 1;
        pieces[i] =
            (struct model_piece){(uint32_t)i, 0, t->rows, unit.n, (uint64_t)t->rows * (t->columns ? t->columns : 1)};
        unit.n += pieces[i].n, unit.n_pieces++;
    }
    ck_assert_uint_eq(unit.n, WEIGHTS);
    ck_assert_int_eq(ops->open(&dev, 0, NUMBER_FP32, 4 * ROOM, 1, NULL), 0);
    char *at = ops->arena(dev);
    float *weights = take(&at, sizeof(float) * WEIGHTS), *contribution = take(&at, sizeof(float) * WEIGHTS);
    float *input = take(&at, sizeof(float) * VALUES), *output = take(&at, sizeof(float) * VALUES);
    float *gradient = take(&at, sizeof(float) * VALUES), *kept = take(&at, ROOM), *workspace = take(&at, ROOM);
    memcpy(weights, w, sizeof(float) * WEIGHTS);
    memcpy(input, x, sizeof(float) * VALUES);
    memcpy(gradient, dy, sizeof(float) * VALUES);
    memset(contribution, 0xff, sizeof(float) * WEIGHTS);
    memset(workspace, 0xff, ROOM);
    const struct layer_pass pass = {.ops = ops,
                                    .dev = dev,
                                    .model = &model,
                                    .layer = &of,
                                    .unit = &unit,
                                    .weights = weights,
                                    .contribution = contribution,
                                    .fresh = true,
                                    .input = input,
                                    .output = output,
                                    .gradient = gradient,
                                    .workspace = workspace,
                                    .kept = keeps ? kept : NULL,
                                    .n_rows = ROWS,
                                    .n_tokens = TOKENS,
                                    .setting = &plan.setting,
                                    .plan = &plan};
    layer_program.forward(&pass);
    ck_assert_int_eq(ops->sync(dev), 0);
    memcpy(out->y, output, sizeof out->y);
    memset(workspace, 0xff, ROOM);
    memset(output, 0xff, sizeof out->y);
    layer_program.backward(&pass);
    ck_assert_int_eq(ops->sync(dev), 0);
    memcpy(out->x_gradient, gradient, sizeof out->x_gradient);
    memcpy(out->weight_gradient, contribution, sizeof out->weight_gradient);
    ops->close(dev);
}

/* Central differences of 1e-5 err by 1e-10 or so; fp32 by 1e-6 of the largest. */
static void check_slopes(const float *found, double *at, int n, const double *x, const double *w, const double *dy)
{
    double difference = 0, size = 0;

    for (int i = 0; i < n; i++) {
        const double was = at[i], step = 1e-5;
        at[i] = was + step;
        const double above = objective(x, w, dy);
        at[i] = was - step;
        const double slope = (above - objective(x, w, dy)) / (2 * step);
        at[i] = was;
        difference += pow(found[i] - slope, 2), size += slope * slope;
    }
    ck_assert_msg(sqrt(difference) <= 1e-5 * sqrt(size), "off by %g of %g", sqrt(difference), sqrt(size));
}

TEST_EACH(llamas_block_is_what_double_says, 2)
{
    static double x[VALUES], w[WEIGHTS], dy[VALUES];
    static float x32[VALUES], w32[WEIGHTS], dy32[VALUES];
    static struct result found;
    uint64_t state = 7;
    double y[VALUES];

    for (int i = 0; i < VALUES; i++) {
        x[i] = x32[i] = (float)(2 * draw(&state));
        dy[i] = dy32[i] = (float)draw(&state);
    }
    for (int i = 0; i < WEIGHTS; i++)
        w[i] = w32[i] = (float)draw(&state);
    run(&found, x32, w32, dy32, _i);
    for (int row = 0; row < ROWS; row++)
        block(y + row * TOKENS * WIDTH, x + row * TOKENS * WIDTH, w);
    for (int i = 0; i < VALUES; i++)
        ck_assert_double_eq_tol((double)found.y[i], y[i], 2e-6 * (1 + fabs(y[i])));
    check_slopes(found.x_gradient, x, VALUES, x, w, dy);
    check_slopes(found.weight_gradient, w, WEIGHTS, x, w, dy);
}
