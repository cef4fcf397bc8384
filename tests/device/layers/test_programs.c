/* Blocks of other families as programs, run on the CPU: against the same blocks in double, and against their slopes. */
#include "device/layers/layers.h"
#include "tests/kit/programs.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 2,
    TOKENS = 5,
    N = ROWS * TOKENS,
    WIDTH = 16,
    HEADS = 4,
    HEAD = WIDTH / HEADS,
    INNER = 24,
    VALUES = N * WIDTH,
    MAX_WEIGHTS = 4 * WIDTH * WIDTH + 3 * WIDTH * INNER + 2 * WIDTH, /* Llama's, which shares no keys */
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

static void layer_norm(double *y, const double *x, const double *w)
{
    double centred[WIDTH], mean = 0;

    for (int i = 0; i < WIDTH; i++)
        mean += x[i] / WIDTH;
    for (int i = 0; i < WIDTH; i++)
        centred[i] = x[i] - mean;
    norm(y, centred, w);
    for (int i = 0; i < WIDTH; i++)
        y[i] += w[WIDTH + i];
}

/* The next tensor of n elements: a unit's lie one behind the other. */
static const double *next(const double **w, int n)
{
    const double *taken = *w;

    *w += n;
    return taken;
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

/* Query q over n keys. Head h reads the keys of head h * n_kv / HEADS. */
static void attend(double *out, const double *q, const double (*k)[WIDTH], const double (*v)[WIDTH], int n, int h,
                   int n_kv)
{
    const int kv = h * n_kv / HEADS * HEAD;
    double p[TOKENS], sum = 0;

    for (int t = 0; t < n; t++) {
        double score = 0;
        for (int i = 0; i < HEAD; i++)
            score += q[h * HEAD + i] * k[t][kv + i];
        p[t] = exp(score / sqrt(HEAD));
        sum += p[t];
    }
    for (int i = 0; i < HEAD; i++) {
        out[h * HEAD + i] = 0;
        for (int t = 0; t < n; t++)
            out[h * HEAD + i] += p[t] / sum * v[t][kv + i];
    }
}

/* One row of Llama's: y (TOKENS, WIDTH). */
static void llama(double *y, const double *x, const double *w, int n_kv)
{
    const double *const norm_1 = next(&w, WIDTH), *const of_q = next(&w, WIDTH * WIDTH);
    const double *const of_k = next(&w, WIDTH * n_kv * HEAD), *const of_v = next(&w, WIDTH * n_kv * HEAD);
    const double *const of_o = next(&w, WIDTH * WIDTH), *const norm_2 = next(&w, WIDTH);
    const double *const of_gate = next(&w, WIDTH * INNER), *const of_up = next(&w, WIDTH * INNER), *const of_down = w;
    double q[TOKENS][WIDTH], k[TOKENS][WIDTH], v[TOKENS][WIDTH], n[WIDTH], a[WIDTH], o[WIDTH], gate[INNER], up[INNER];

    for (int t = 0; t < TOKENS; t++) {
        norm(n, x + t * WIDTH, norm_1);
        map(q[t], n, of_q, WIDTH, WIDTH);
        map(k[t], n, of_k, WIDTH, n_kv * HEAD);
        map(v[t], n, of_v, WIDTH, n_kv * HEAD);
        for (int h = 0; h < HEADS; h++)
            turn(q[t] + h * HEAD, t);
        for (int h = 0; h < n_kv; h++)
            turn(k[t] + h * HEAD, t);
        for (int h = 0; h < HEADS; h++)
            attend(a, q[t], k, v, t + 1, h, n_kv);
        map(o, a, of_o, WIDTH, WIDTH);
        for (int i = 0; i < WIDTH; i++)
            o[i] += x[t * WIDTH + i];
        norm(n, o, norm_2);
        map(gate, n, of_gate, WIDTH, INNER);
        map(up, n, of_up, WIDTH, INNER);
        for (int i = 0; i < INNER; i++)
            up[i] *= gate[i] / (1 + exp(-gate[i]));
        map(n, up, of_down, INNER, WIDTH);
        for (int i = 0; i < WIDTH; i++)
            y[t * WIDTH + i] = o[i] + n[i];
    }
}

/* y (out) = x (in) W + b, whose tensors are the next two. */
static void linear(double *y, const double *x, const double **w, int in, int out)
{
    map(y, x, *w, in, out);
    for (int j = 0; j < out; j++)
        y[j] += (*w)[in * out + j];
    *w += in * out + out;
}

/* One row of BERT's. */
static void bert(double *y, const double *x, const double *w, int n_kv)
{
    double q[TOKENS][WIDTH], k[TOKENS][WIDTH], v[TOKENS][WIDTH], qkv[3 * WIDTH], a[WIDTH], h[WIDTH], n[WIDTH], g[INNER];
    const double *behind = w;

    for (int t = 0; t < TOKENS; t++) {
        behind = w;
        linear(qkv, x + t * WIDTH, &behind, WIDTH, 3 * WIDTH);
        memcpy(q[t], qkv, sizeof q[t]);
        memcpy(k[t], qkv + WIDTH, sizeof k[t]);
        memcpy(v[t], qkv + 2 * WIDTH, sizeof v[t]);
    }
    for (int t = 0; t < TOKENS; t++) {
        const double *at = behind;
        for (int head = 0; head < HEADS; head++)
            attend(a, q[t], k, v, TOKENS, head, n_kv);
        linear(h, a, &at, WIDTH, WIDTH);
        for (int i = 0; i < WIDTH; i++)
            h[i] += x[t * WIDTH + i];
        layer_norm(n, h, next(&at, 2 * WIDTH));
        linear(g, n, &at, WIDTH, INNER);
        for (int i = 0; i < INNER; i++)
            g[i] *= 0.5 * (1 + erf(g[i] / sqrt(2)));
        linear(h, g, &at, INNER, WIDTH);
        for (int i = 0; i < WIDTH; i++)
            h[i] += n[i];
        layer_norm(y + t * WIDTH, h, at);
    }
}

static const struct family {
    int program, n_kv_heads;
    void (*row)(double *y, const double *x, const double *w, int n_kv);
} families[] = {
    {PROGRAMS_LLAMA, HEADS, llama},
    {PROGRAMS_LLAMA, 2, llama},
    {PROGRAMS_LLAMA, 1, llama},
    {PROGRAMS_BERT, HEADS, bert},
};

/* The sum of y times dy. */
static double objective(const struct family *f, const double *x, const double *w, const double *dy)
{
    double y[VALUES], sum = 0;

    for (int row = 0; row < ROWS; row++)
        f->row(y + row * TOKENS * WIDTH, x + row * TOKENS * WIDTH, w, f->n_kv_heads);
    for (int i = 0; i < VALUES; i++)
        sum += y[i] * dy[i];
    return sum;
}

/* ---- on the device ---- */

struct result {
    float y[VALUES], x_gradient[VALUES], weight_gradient[MAX_WEIGHTS];
};

static float *take(char **at, size_t bytes)
{
    float *taken = (float *)*at;

    *at += (bytes + 63) / 64 * 64;
    return taken;
}

/* Returns the number of weights. The workspace holds NaNs before each pass, so that nothing is read there that was not
 * written. */
static int run(struct result *out, const struct family *f, const float *x, const float *w, const float *dy, bool keeps)
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

    programs_write(&layer.program, f->program,
                   &(struct programs_shape){WIDTH, HEADS, (uint32_t)f->n_kv_heads, INNER, 0});
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
    ck_assert_uint_le(unit.n, MAX_WEIGHTS);
    const size_t bytes = sizeof(float) * unit.n;
    ck_assert_int_eq(ops->open(&dev, 0, NUMBER_FP32, 4 * ROOM, 1, NULL), 0);
    char *at = ops->arena(dev);
    float *weights = take(&at, bytes), *contribution = take(&at, bytes);
    float *input = take(&at, sizeof(float) * VALUES), *output = take(&at, sizeof(float) * VALUES);
    float *gradient = take(&at, sizeof(float) * VALUES), *kept = take(&at, ROOM), *workspace = take(&at, ROOM);
    memcpy(weights, w, bytes);
    memcpy(input, x, sizeof(float) * VALUES);
    memcpy(gradient, dy, sizeof(float) * VALUES);
    memset(contribution, 0xff, bytes);
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
    memcpy(out->weight_gradient, contribution, bytes);
    ops->close(dev);
    return (int)unit.n;
}

/* Central differences of 1e-5 err by 1e-10 or so; fp32 by 1e-6 of the largest. */
static void check_slopes(const struct family *f, const float *found, double *at, int n, const double *x,
                         const double *w, const double *dy)
{
    double difference = 0, size = 0;

    for (int i = 0; i < n; i++) {
        const double was = at[i], step = 1e-5;
        at[i] = was + step;
        const double above = objective(f, x, w, dy);
        at[i] = was - step;
        const double slope = (above - objective(f, x, w, dy)) / (2 * step);
        at[i] = was;
        difference += pow(found[i] - slope, 2), size += slope * slope;
    }
    ck_assert_msg(sqrt(difference) <= 1e-5 * sqrt(size), "off by %g of %g", sqrt(difference), sqrt(size));
}

/* Each family twice: its internals kept, and computed again in backward. */
TEST_EACH(a_block_is_what_double_says, 2 * COUNT(families))
{
    const struct family *f = &families[_i / 2];
    static double x[VALUES], w[MAX_WEIGHTS], dy[VALUES];
    static float x32[VALUES], w32[MAX_WEIGHTS], dy32[VALUES];
    static struct result found;
    uint64_t state = 7;
    double y[VALUES];

    for (int i = 0; i < VALUES; i++) {
        x[i] = x32[i] = (float)(2 * draw(&state));
        dy[i] = dy32[i] = (float)draw(&state);
    }
    for (int i = 0; i < MAX_WEIGHTS; i++)
        w[i] = w32[i] = (float)draw(&state);
    const int n_weights = run(&found, f, x32, w32, dy32, _i % 2);
    for (int row = 0; row < ROWS; row++)
        f->row(y + row * TOKENS * WIDTH, x + row * TOKENS * WIDTH, w, f->n_kv_heads);
    for (int i = 0; i < VALUES; i++)
        ck_assert_double_eq_tol((double)found.y[i], y[i], 2e-6 * (1 + fabs(y[i])));
    check_slopes(f, found.x_gradient, x, VALUES, x, w, dy);
    check_slopes(f, found.weight_gradient, w, n_weights, x, w, dy);
}
