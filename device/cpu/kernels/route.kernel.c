/* device/cpu/kernels/route.kernel.c - the choice of experts (proto/operation/call/experts.h), a token at a time: exponentials
 * and their sums in double, rounded once. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/value.h"

#include <math.h>

static float score_of(const struct device_route *op, size_t i, size_t j)
{
    return value_widen(((const value *)op->scores)[i * op->n_experts + j]);
}

static bool is_chosen(const uint32_t *numbers, size_t n, size_t expert)
{
    for (size_t c = 0; c < n; c++)
        if (numbers[c] == expert)
            return true;
    return false;
}

static double route_sigmoid(double s)
{
    return 1 / (1 + exp(-s));
}

/* By which experts are chosen. A score that is no number comes after all that are; its weight is none, either. */
static float rank_of(const struct device_route *op, size_t i, size_t j)
{
    const float score = score_of(op, i, j);
    const float rank = op->sigmoid ? (float)route_sigmoid((double)score) + (op->bias ? op->bias[j] : 0) : score;

    return isnan(rank) ? -INFINITY : rank;
}

/* The sum of the two highest of n ranks. */
static float rank_of_group(const float *ranks, size_t n)
{
    float first = -INFINITY, second = -INFINITY;

    for (size_t j = 0; j < n; j++) {
        second = ranks[j] > first ? first : ranks[j] > second ? ranks[j] : second;
        first = ranks[j] > first ? ranks[j] : first;
    }
    return first + second;
}

/* A bit for each group whose experts may be chosen. */
static uint32_t choose_groups(const struct device_route *op, const float *ranks)
{
    const size_t n = op->n_groups > 0 ? op->n_experts / op->n_groups : 0;
    float of[DEVICE_EXPERT_GROUPS];
    uint32_t chosen = 0;

    for (uint32_t g = 0; g < op->n_groups; g++)
        of[g] = rank_of_group(ranks + g * n, n);
    for (uint32_t c = 0; c < op->n_groups && c < op->n_chosen_groups; c++) {
        uint32_t best = op->n_groups;
        for (uint32_t g = 0; g < op->n_groups; g++)
            if (!(chosen >> g & 1) && (best == op->n_groups || of[g] > of[best]))
                best = g;
        chosen |= UINT32_C(1) << best;
    }
    return chosen;
}

static bool is_in(const struct device_route *op, uint32_t groups, size_t expert)
{
    return op->n_groups == 0 || groups >> expert / (op->n_experts / op->n_groups) & 1;
}

static size_t best_left(const struct device_route *op, const float *ranks, uint32_t groups, const uint32_t *numbers,
                        size_t n)
{
    size_t best = op->n_experts;

    for (size_t j = 0; j < op->n_experts; j++)
        if ((best == op->n_experts || ranks[j] > ranks[best]) && is_in(op, groups, j) && !is_chosen(numbers, n, j))
            best = j;
    return best;
}

static void choose_experts(const struct device_route *op, size_t i, uint32_t *numbers)
{
    float ranks[DEVICE_EXPERTS];

    for (size_t j = 0; j < op->n_experts; j++)
        ranks[j] = rank_of(op, i, j);
    const uint32_t groups = choose_groups(op, ranks);
    for (size_t c = 0; c < op->n_chosen; c++)
        numbers[c] = (uint32_t)best_left(op, ranks, groups, numbers, c);
}

/* The sum of exponentials that weights are divided by. */
static double route_total(const struct device_route *op, size_t i, const uint32_t *numbers, float largest)
{
    double total = 0;

    for (size_t j = 0; j < op->n_experts; j++)
        if (!op->normalises || is_chosen(numbers, op->n_chosen, j))
            total += exp((double)score_of(op, i, j) - (double)largest);
    return total;
}

/* With sigmoids, what the chosen ones' are divided by. */
static double sigmoid_total(const struct device_route *op, size_t i, const uint32_t *numbers)
{
    double total = op->normalises ? (double)op->epsilon : 1;

    for (size_t c = 0; op->normalises && c < op->n_chosen; c++)
        total += route_sigmoid((double)score_of(op, i, numbers[c]));
    return total;
}

static void weigh_by_sigmoids(const struct device_route *op, size_t i, float *weights, const uint32_t *numbers)
{
    const double total = sigmoid_total(op, i, numbers);

    for (size_t c = 0; c < op->n_chosen; c++)
        weights[c] = (float)((double)op->scale * route_sigmoid((double)score_of(op, i, numbers[c])) / total);
}

static void route_token(const struct device_route *op, size_t i)
{
    float *weights = op->weights + i * op->n_chosen;
    uint32_t *numbers = op->numbers + i * op->n_chosen;

    choose_experts(op, i, numbers);
    if (op->sigmoid) {
        weigh_by_sigmoids(op, i, weights, numbers);
        return;
    }
    const float largest = score_of(op, i, numbers[0]);
    const double total = route_total(op, i, numbers, largest);
    for (size_t c = 0; c < op->n_chosen; c++)
        weights[c] = (float)(exp((double)score_of(op, i, numbers[c]) - (double)largest) / total);
}

void KERNEL_NAME(cpu_route)(struct device *dev, const struct device_route *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, op->m * op->n_experts * op->n_chosen)) schedule(static)
    for (size_t i = 0; i < op->m; i++)
        route_token(op, i);
}

static void turn_sigmoids(const struct device_route *op, size_t i)
{
    const float *gradient = op->weights_gradient + i * op->n_chosen;
    const uint32_t *numbers = op->numbers + i * op->n_chosen;
    const double total = sigmoid_total(op, i, numbers);
    value *ds = (value *)op->scores_gradient + i * op->n_experts;
    double mean = 0;

    for (size_t c = 0; op->normalises && c < op->n_chosen; c++)
        mean += (double)gradient[c] * route_sigmoid((double)score_of(op, i, numbers[c])) / total;
    for (size_t j = 0; j < op->n_experts; j++)
        value_store_n(ds + j, vec_all(0), 1);
    for (size_t c = 0; c < op->n_chosen; c++) {
        const double s = (double)score_of(op, i, numbers[c]);
        const double slope = (double)op->scale / total * route_sigmoid(s) * route_sigmoid(-s);
        value_store_n(ds + numbers[c], vec_all((float)(slope * ((double)gradient[c] - mean))), 1);
    }
}

static void route_token_backward(const struct device_route *op, size_t i)
{
    const float *weights = op->weights + i * op->n_chosen, *gradient = op->weights_gradient + i * op->n_chosen;
    const uint32_t *numbers = op->numbers + i * op->n_chosen;
    const float largest = score_of(op, i, numbers[0]);
    const double total = op->normalises ? 0 : route_total(op, i, numbers, largest);
    value *ds = (value *)op->scores_gradient + i * op->n_experts;
    double mean = 0;

    for (size_t c = 0; c < op->n_chosen; c++)
        mean += (double)weights[c] * (double)gradient[c];
    for (size_t j = 0; j < op->n_experts; j++) {
        const double p = op->normalises ? 0 : exp((double)score_of(op, i, j) - (double)largest) / total;
        value_store_n(ds + j, vec_all((float)(-p * mean)), 1);
    }
    for (size_t c = 0; c < op->n_chosen; c++)
        value_store_n(ds + numbers[c], vec_all((float)((double)weights[c] * ((double)gradient[c] - mean))), 1);
}

void KERNEL_NAME(cpu_route_backward)(struct device *dev, const struct device_route *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, op->m * op->n_experts * op->n_chosen)) schedule(static)
    for (size_t i = 0; i < op->m; i++)
        if (op->sigmoid)
            turn_sigmoids(op, i);
        else
            route_token_backward(op, i);
}
