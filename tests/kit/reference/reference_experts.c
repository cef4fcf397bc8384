/* Neither sorted nor gathered: each token goes through its own experts, and gradients of weights are added to as tokens
 * come. Weights are taken from a softmax over all experts, which is divided by the sum of the chosen ones: its
 * derivative is written as that quotient's. */
#include "tests/kit/reference/reference_experts.h"

#include "tests/kit/reference/reference.h"

#include <math.h>
#include <stdlib.h>

static double *reference_room(size_t n)
{
    double *room = calloc(n, sizeof *room);

    if (!room)
        abort();
    return room;
}

static double sigmoid(double s)
{
    return s < 0 ? exp(s) / (1 + exp(s)) : 1 / (1 + exp(-s));
}

static void sigmoids(double *p, const struct device_route *op, size_t i)
{
    for (size_t j = 0; j < op->n_experts; j++)
        p[j] = sigmoid(((const double *)op->scores)[i * op->n_experts + j]);
}

/* p (n_experts) of token i. */
static void softmax(double *p, const struct device_route *op, size_t i)
{
    const double *s = (const double *)op->scores + i * op->n_experts;
    double most = s[0], sum = 0;

    for (size_t j = 1; j < op->n_experts; j++)
        most = fmax(most, s[j]);
    for (size_t j = 0; j < op->n_experts; j++)
        sum += p[j] = exp(s[j] - most);
    for (size_t j = 0; j < op->n_experts; j++)
        p[j] /= sum;
}

/* How many experts are before expert j. */
static size_t rank_of(const double *s, size_t n, size_t j)
{
    size_t rank = 0;

    for (size_t other = 0; other < n; other++)
        rank += s[other] > s[j] || (s[other] == s[j] && other < j);
    return rank;
}

static double chosen_sum(const struct device_route *op, const double *p, size_t i)
{
    double sum = 0;

    for (size_t c = 0; c < op->n_chosen; c++)
        sum += p[op->numbers[i * op->n_chosen + c]];
    return sum;
}

/* The sum of the two highest of n. */
static double two_best(const double *s, size_t n)
{
    double sum = 0;

    for (size_t j = 0; j < n; j++)
        sum += rank_of(s, n, j) < 2 ? s[j] : 0;
    return sum;
}

/* s (n_experts): what experts are chosen by, least where their group is not among the best. */
static void leave_groups(double *s, const struct device_route *op)
{
    const size_t n_groups = op->n_groups, n = n_groups ? op->n_experts / n_groups : 0;
    double *best = reference_room(n_groups + 1);

    for (size_t g = 0; g < n_groups; g++)
        best[g] = two_best(s + g * n, n);
    for (size_t j = 0; j < n_groups * n; j++)
        if (rank_of(best, n_groups, j / n) >= op->n_chosen_groups)
            s[j] = -INFINITY;
    free(best);
}

/* p: each expert's, and s: what they are chosen by. A quotient's derivative, as above; sigmoid's is p - p^2. */
static void reference_route_sigmoids(const struct device_route *op, size_t i, double *p, double *s)
{
    const double *bias = (const void *)op->bias;

    sigmoids(p, op, i);
    for (size_t j = 0; j < op->n_experts; j++)
        s[j] = p[j] + (bias ? bias[j] : 0);
    leave_groups(s, op);
    for (size_t j = 0; j < op->n_experts; j++) {
        const size_t rank = rank_of(s, op->n_experts, j);
        if (rank < op->n_chosen)
            op->numbers[i * op->n_chosen + rank] = (uint32_t)j;
    }
    const double sum = op->normalises ? chosen_sum(op, p, i) + (double)op->epsilon : 1;
    for (size_t c = 0; c < op->n_chosen; c++)
        ((double *)(void *)op->weights)[i * op->n_chosen + c] =
            p[op->numbers[i * op->n_chosen + c]] / sum * (double)op->scale;
}

static void reference_turn_sigmoids(const struct device_route *op, size_t i, double *p)
{
    const double *dw = (const double *)(const void *)op->weights_gradient + i * op->n_chosen;
    const uint32_t *numbers = op->numbers + i * op->n_chosen;
    double *ds = (double *)op->scores_gradient + i * op->n_experts, all = 0;

    sigmoids(p, op, i);
    const double sum = op->normalises ? chosen_sum(op, p, i) + (double)op->epsilon : 1;
    for (size_t c = 0; op->normalises && c < op->n_chosen; c++)
        all += dw[c] * p[numbers[c]];
    for (size_t j = 0; j < op->n_experts; j++)
        ds[j] = 0;
    for (size_t c = 0; c < op->n_chosen; c++)
        ds[numbers[c]] =
            (double)op->scale * (dw[c] / sum - all / (sum * sum)) * (p[numbers[c]] - p[numbers[c]] * p[numbers[c]]);
}

void reference_route(const struct device_route *op)
{
    double *p = reference_room(op->n_experts), *s = reference_room(op->n_experts);

    for (size_t i = 0; i < op->m; i++) {
        if (op->sigmoid) {
            reference_route_sigmoids(op, i, p, s);
            continue;
        }
        softmax(p, op, i);
        for (size_t j = 0; j < op->n_experts; j++) {
            const size_t rank = rank_of((const double *)op->scores + i * op->n_experts, op->n_experts, j);
            if (rank < op->n_chosen)
                op->numbers[i * op->n_chosen + rank] = (uint32_t)j;
        }
        const double sum = op->normalises ? chosen_sum(op, p, i) : 1;
        for (size_t c = 0; c < op->n_chosen; c++)
            ((double *)(void *)op->weights)[i * op->n_chosen + c] = p[op->numbers[i * op->n_chosen + c]] / sum;
    }
    free(p);
    free(s);
}

/* The gradients of p, of which only chosen ones have any; then softmax's. */
void reference_route_backward(const struct device_route *op)
{
    double *p = reference_room(op->n_experts), *dp = reference_room(op->n_experts);

    for (size_t i = 0; i < op->m; i++) {
        const double *dw = (const double *)(const void *)op->weights_gradient + i * op->n_chosen;
        const uint32_t *numbers = op->numbers + i * op->n_chosen;
        double *ds = (double *)op->scores_gradient + i * op->n_experts, all = 0, mean = 0;
        if (op->sigmoid) {
            reference_turn_sigmoids(op, i, p);
            continue;
        }
        softmax(p, op, i);
        const double sum = op->normalises ? chosen_sum(op, p, i) : 1;
        for (size_t c = 0; c < op->n_chosen; c++)
            all += dw[c] * p[numbers[c]] / sum;
        for (size_t j = 0; j < op->n_experts; j++)
            dp[j] = 0;
        for (size_t c = 0; c < op->n_chosen; c++)
            dp[numbers[c]] = (dw[c] - (op->normalises ? all : 0)) / sum;
        for (size_t j = 0; j < op->n_experts; j++)
            mean += p[j] * dp[j];
        for (size_t j = 0; j < op->n_experts; j++)
            ds[j] = p[j] * (dp[j] - mean);
    }
    free(p);
    free(dp);
}

/* ---- experts ---- */

/* One token's inner values in one expert. */
struct inside {
    double *gate, *up, *gate_gradient, *up_gradient;
};

static struct inside inside_of(const struct device_experts *op)
{
    double *room = reference_room(4 * op->inner);

    return (struct inside){room, room + op->inner, room + 2 * op->inner, room + 3 * op->inner};
}

static size_t expert_at(const struct device_experts *op, size_t i, size_t c)
{
    return op->numbers[i * op->n_chosen + c] * op->n * op->inner;
}

static void enter(const struct inside *in, const struct device_experts *op, size_t i, size_t c)
{
    const double *x = (const double *)op->x + i * op->n;
    const double *gate = (const double *)op->gate + expert_at(op, i, c),
                 *up = (const double *)op->up + expert_at(op, i, c);

    for (size_t j = 0; j < op->inner; j++) {
        in->gate[j] = in->up[j] = 0;
        for (size_t k = 0; k < op->n; k++) {
            in->gate[j] += gate[j * op->n + k] * x[k];
            in->up[j] += up[j * op->n + k] * x[k];
        }
    }
}

static double unit(const struct inside *in, size_t j)
{
    return reference_activation(MODEL_SILU, in->gate[j]) * in->up[j];
}

static void experts_plain(const struct device_experts *op)
{
    const struct inside in = inside_of(op);

    for (size_t i = 0; i < op->m * op->n; i++)
        ((double *)op->y)[i] = 0;
    for (size_t i = 0; i < op->m * op->n_chosen; i++) {
        const size_t token = i / op->n_chosen, c = i % op->n_chosen;
        const double *down = (const double *)op->down + expert_at(op, token, c);
        enter(&in, op, token, c);
        for (size_t k = 0; k < op->n; k++)
            for (size_t j = 0; j < op->inner; j++)
                ((double *)op->y)[token * op->n + k] +=
                    ((const double *)(const void *)op->weights)[i] * down[k * op->inner + j] * unit(&in, j);
    }
    free(in.gate);
}

/* Gradients of gates and ups, of `down`, and of the choice's weight. */
static void leave(const struct inside *in, const struct device_experts *op, size_t i, size_t c)
{
    const double *dy = (const double *)op->y_gradient + i * op->n;
    const size_t at = expert_at(op, i, c);
    const double w = ((const double *)(const void *)op->weights)[i * op->n_chosen + c];
    double *dw = (double *)(void *)op->weights_gradient + i * op->n_chosen + c;

    for (size_t j = 0; j < op->inner; j++) {
        double slope = 0;
        for (size_t k = 0; k < op->n; k++) {
            slope += dy[k] * ((const double *)op->down)[at + k * op->inner + j];
            if (op->down_gradient)
                ((double *)(void *)op->down_gradient)[at + k * op->inner + j] += w * dy[k] * unit(in, j);
        }
        *dw += slope * unit(in, j);
        in->gate_gradient[j] = w * slope * in->up[j] * reference_activation_gradient(MODEL_SILU, in->gate[j]);
        in->up_gradient[j] = w * slope * reference_activation(MODEL_SILU, in->gate[j]);
    }
}

static void turn(const struct inside *in, const struct device_experts *op, size_t i, size_t c)
{
    const double *x = (const double *)op->x + i * op->n;
    const size_t at = expert_at(op, i, c);

    for (size_t j = 0; j < op->inner; j++)
        for (size_t k = 0; k < op->n; k++) {
            const size_t element = at + j * op->n + k;
            ((double *)op->x_gradient)[i * op->n + k] += in->gate_gradient[j] * ((const double *)op->gate)[element] +
                                                         in->up_gradient[j] * ((const double *)op->up)[element];
            if (op->gate_gradient)
                ((double *)(void *)op->gate_gradient)[element] += in->gate_gradient[j] * x[k];
            if (op->up_gradient)
                ((double *)(void *)op->up_gradient)[element] += in->up_gradient[j] * x[k];
        }
}

static void clear(void *x, size_t n)
{
    for (size_t i = 0; x && i < n; i++)
        ((double *)x)[i] = 0;
}

static void experts_plain_backward(const struct device_experts *op)
{
    const struct inside in = inside_of(op);
    const size_t n = op->beta == 0 ? op->n_experts * op->n * op->inner : 0;

    clear(op->x_gradient, op->m * op->n);
    clear(op->weights_gradient, op->m * op->n_chosen);
    clear(op->gate_gradient, n);
    clear(op->up_gradient, n);
    clear(op->down_gradient, n);
    for (size_t i = 0; i < op->m; i++)
        for (size_t c = 0; c < op->n_chosen; c++) {
            enter(&in, op, i, c);
            leave(&in, op, i, c);
            turn(&in, op, i, c);
        }
    free(in.gate);
}

/* ---- adapters ---- */

/* One map of all experts, of (out, in) numbers; of gates and ups two that share A, one's rows of B behind the other's. */
struct adapted {
    const struct device_experts_adapter *of;
    const double *weight, *a, *b;
    double *merged, *gradient; /* of the merged weight */
    double *weight_gradient;   /* NULL: nobody asks */
    size_t n_experts, in, out, first;
};

/* B[e][i][k] */
static size_t b_at(const struct adapted *map, size_t e, size_t i, size_t k)
{
    return (map->first + i) * map->of->rank * map->n_experts + k * map->n_experts + e;
}

static size_t a_at(const struct adapted *map, size_t e, size_t k, size_t j)
{
    return (e * map->of->rank + k) * map->in + j;
}

/* W + factor B A */
static void merge(struct adapted *map)
{
    for (size_t at = 0; at < map->n_experts * map->out * map->in; at++) {
        const size_t e = at / (map->out * map->in), i = at / map->in % map->out, j = at % map->in;
        double sum = 0;
        for (size_t k = 0; k < map->of->rank; k++)
            sum += map->b[b_at(map, e, i, k)] * map->a[a_at(map, e, k, j)];
        map->merged[at] = map->weight[at] + (double)map->of->factor * sum;
    }
}

/* Those of W are of the merged weight; of A and B they follow by the chain rule, and are added. */
static void split(const struct adapted *map)
{
    double *a = (double *)(void *)map->of->a_gradient, *b = (double *)(void *)map->of->b_gradient;

    for (size_t at = 0; at < map->n_experts * map->out * map->in; at++) {
        const size_t e = at / (map->out * map->in), i = at / map->in % map->out, j = at % map->in;
        const double slope = (double)map->of->factor * map->gradient[at];
        if (map->weight_gradient)
            map->weight_gradient[at] += map->gradient[at];
        for (size_t k = 0; k < map->of->rank; k++) {
            if (a)
                a[a_at(map, e, k, j)] += slope * map->b[b_at(map, e, i, k)];
            if (b)
                b[b_at(map, e, i, k)] += slope * map->a[a_at(map, e, k, j)];
        }
    }
}

enum { GATE, UP, DOWN, MAPS };

static void adapt(struct adapted maps[MAPS], struct device_experts *op)
{
    const void *const weights[] = {op->gate, op->up, op->down};
    float *const gradients[] = {op->gate_gradient, op->up_gradient, op->down_gradient};

    for (int i = 0; i < MAPS; i++) {
        const struct device_experts_adapter *of = i == DOWN ? &op->of_down : &op->gate_up;
        const size_t n = op->n_experts * op->n * op->inner;
        maps[i] = (struct adapted){.of = of,
                                   .weight = weights[i],
                                   .a = of->a,
                                   .b = of->b,
                                   .merged = reference_room(n),
                                   .gradient = reference_room(n),
                                   .weight_gradient = (double *)(void *)gradients[i],
                                   .n_experts = op->n_experts,
                                   .in = i == DOWN ? op->inner : op->n,
                                   .out = i == DOWN ? op->n : op->inner,
                                   .first = i == UP ? op->inner : 0};
        merge(&maps[i]);
    }
    op->gate = maps[GATE].merged, op->up = maps[UP].merged, op->down = maps[DOWN].merged;
    op->gate_gradient = (float *)(void *)maps[GATE].gradient, op->up_gradient = (float *)(void *)maps[UP].gradient;
    op->down_gradient = (float *)(void *)maps[DOWN].gradient;
}

static void adapted_free(struct adapted maps[MAPS])
{
    for (int i = 0; i < MAPS; i++)
        free(maps[i].merged), free(maps[i].gradient);
}

void reference_experts(const struct device_experts *op)
{
    struct device_experts merged = *op;
    struct adapted maps[MAPS];

    adapt(maps, &merged);
    experts_plain(&merged);
    adapted_free(maps);
}

void reference_experts_backward(const struct device_experts *op)
{
    struct device_experts merged = *op;
    struct adapted maps[MAPS];

    adapt(maps, &merged);
    experts_plain_backward(&merged);
    for (int i = 0; op->beta == 0 && i < MAPS; i++) {
        const size_t n = op->n_experts * maps[i].of->rank;
        clear(maps[i].weight_gradient, op->n_experts * op->n * op->inner);
        if (i == UP)
            continue;
        clear(maps[i].of->a_gradient, n * maps[i].in);
        clear(maps[i].of->b_gradient, n * (i == DOWN ? op->n : 2 * op->inner));
    }
    for (int i = 0; i < MAPS; i++)
        split(&maps[i]);
    adapted_free(maps);
}
