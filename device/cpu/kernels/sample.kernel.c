/* device/cpu/kernels/sample.kernel.c - rows that stand for all in a sum over rows: their scores, the choice, the
 * copies. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/value.h"

#include <math.h>

enum { SEVERAL = 4 }; /* sums of a row that do not wait for each other */

static float norm_of(const value *x, size_t n)
{
    vec sums[SEVERAL] = {{0}};
    size_t j = 0;

    for (; j + SEVERAL * VECTOR <= n; j += SEVERAL * VECTOR)
        for (size_t k = 0; k < SEVERAL; k++) {
            const vec some = value_load(x + j + k * VECTOR);
            sums[k] = vec_multiply_add(some, some, sums[k]);
        }
    for (; j < n; j += VECTOR) {
        const vec some = value_load_n(x + j, n - j);
        sums[0] = vec_multiply_add(some, some, sums[0]);
    }
    return (float)sqrt(vec_sum((sums[0] + sums[1]) + (sums[2] + sums[3])));
}

void KERNEL_NAME(cpu_row_norms)(struct device *dev, const struct device_row_norms *op)
{
    const size_t n_heads = sample_heads(op);

#pragma omp parallel for num_threads(cpu_threads(dev, sample_heads(op) * op->m * op->n)) schedule(static)
    for (size_t i = 0; i < op->m; i++)
        for (size_t head = 0; head < n_heads; head++) {
            const float norm = norm_of((const value *)op->x + i * op->stride + head * op->n, op->n);
            float *const to = op->norms + sample_norm_at(op, i, head);

            *to = op->multiply ? *to * norm : norm;
        }
}

void KERNEL_NAME(cpu_weigh_scores)(struct device *dev, const struct device_weigh_scores *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, op->n_rows * op->n_tokens)) schedule(static)
    for (size_t row = 0; row < op->n_rows; row++) {
        const uint16_t *const norms = op->norms + row * op->stride;
        float *const scores = op->scores + row * op->n_tokens;
        float sum = 0, n = 0;

        for (size_t i = 0; i < op->n_tokens; i++) {
            const bool known = norms[i] > 0 && norms[i] < SAMPLE_PADDING;
            sum += known ? number_from_bf16(norms[i]) : 0;
            n += known ? 1 : 0;
        }
        const float mean = n > 0 ? sum / n : 0;
        for (size_t i = 0; i < op->n_tokens; i++)
            scores[i] *= SAMPLE_WEIGHT(norms[i], number_from_bf16(norms[i]), mean);
    }
}

/* ---- the choice ---- */

/* Scores of a block, sorted: each is (whole number << INDEX_BITS) + INDEX_LAST - index. */
enum { INDEX_BITS = 11, INDEX_LAST = SAMPLE_BLOCK - 1 };
_Static_assert(1 << INDEX_BITS == SAMPLE_BLOCK, "an index fits its bits");

struct choice {
    size_t n, k;
    uint64_t sorted[SAMPLE_BLOCK];     /* (n), the largest first */
    uint64_t before[SAMPLE_BLOCK + 1]; /* (n + 1): the whole numbers of all before this one, summed up */
};

static uint64_t whole_of(uint64_t key)
{
    return key >> INDEX_BITS;
}

static uint32_t index_of(uint64_t key)
{
    return INDEX_LAST - (uint32_t)(key & INDEX_LAST);
}

/* The children of keys[at] are heaps already: with it, one whose smallest key is first. */
static void sift(uint64_t *keys, size_t at, size_t n)
{
    const uint64_t key = keys[at];

    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        child += child + 1 < n && keys[child + 1] < keys[child];
        if (keys[child] >= key)
            break;
        keys[at] = keys[child];
    }
    keys[at] = key;
}

/* Heapsort, the largest first. */
static void sort(uint64_t *keys, size_t n)
{
    for (size_t i = n / 2; i-- > 0;)
        sift(keys, i, n);
    for (size_t end = n; end-- > 1;) {
        const uint64_t smallest = keys[0];

        keys[0] = keys[end];
        keys[end] = smallest;
        sift(keys, 0, end);
    }
}

/* False if a score is not finite. */
static bool rank(struct choice *c, const float *scores)
{
    double largest = 0;

    for (size_t i = 0; i < c->n; i++) {
        if (!isfinite(scores[i]))
            return false;
        largest = fmax(largest, (double)scores[i]);
    }
    for (size_t i = 0; i < c->n; i++) {
        const double share = scores[i] > 0 ? (double)scores[i] / largest : 0;
        const uint64_t whole = (uint64_t)(share * (double)(UINT64_C(1) << SAMPLE_SCORE_BITS));

        c->sorted[i] = (whole > 0 ? whole : scores[i] > 0) << INDEX_BITS | (INDEX_LAST - i);
    }
    sort(c->sorted, c->n);
    c->before[0] = 0;
    for (size_t i = 0; i < c->n; i++)
        c->before[i + 1] = c->before[i] + whole_of(c->sorted[i]);
    return true;
}

static uint64_t rest_of(const struct choice *c, size_t winners)
{
    return c->before[c->n] - c->before[winners];
}

/* The fewest winners that minimise what the rule says. */
static size_t count_winners(const struct choice *c, enum sample_rule by)
{
    double smallest = INFINITY;
    size_t winners = 0;

    if (by == SAMPLE_NONE || by == SAMPLE_ALL)
        return by == SAMPLE_ALL ? c->k : 0;
    for (size_t i = 0; i < c->k; i++) {
        const double rest = (double)rest_of(c, i);
        const double rule = (by == SAMPLE_VARIANCE ? rest * rest : rest) / (double)(c->k - i);

        if (rule < smallest) {
            smallest = rule;
            winners = i;
        }
    }
    return winners;
}

/* The row in which a number below the rest lies, as the rest's rows lie one behind the other. */
static size_t find(const struct choice *c, size_t winners, uint64_t number)
{
    size_t low = winners, high = c->n; /* before[low] <= at < before[high] */
    const uint64_t at = c->before[winners] + number;

    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;

        if (c->before[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* 64 random bits for choice i of a row. */
static uint64_t draw(const struct device_choose_rows *op, size_t row, size_t i)
{
    uint32_t words[4];

    random_quad(words, op->key, op->first_row + row, i / 2);
    return (uint64_t)words[i % 2 * 2] << 32 | words[i % 2 * 2 + 1];
}

/* Sorts the k chosen rows of a block that begins at `from`; a row that was drawn several times has one weight. */
static void ascend(struct choice *c, size_t from, uint32_t *chosen, float *weights)
{
    for (size_t i = 0; i < c->k; i++) {
        uint32_t bits;

        memcpy(&bits, &weights[i], sizeof bits);
        c->sorted[i] = (uint64_t)(INDEX_LAST - (chosen[i] - (uint32_t)from)) << 32 | bits;
    }
    sort(c->sorted, c->k);
    for (size_t i = 0; i < c->k; i++) {
        const uint32_t bits = (uint32_t)c->sorted[i];

        chosen[i] = (uint32_t)from + INDEX_LAST - (uint32_t)(c->sorted[i] >> 32);
        memcpy(&weights[i], &bits, sizeof bits);
    }
}

/* The row's tokens from `first` on, fewer than `end`. */
static void choose(const struct device_choose_rows *op, size_t row, size_t first, size_t end)
{
    const size_t begin = sample_before(op, first), from = row * op->n_tokens + first;
    uint32_t *const chosen = op->chosen + row * op->n_chosen + begin;
    float *const weights = op->weights + row * op->n_chosen + begin;
    struct choice c; /* long: what is not used stays as it is */

    c.n = end - first;
    c.k = sample_before(op, end) - begin;
    const bool finite = rank(&c, op->scores + from);
    if (!finite || c.k == c.n) {
        for (size_t i = 0; i < c.k; i++) {
            chosen[i] = (uint32_t)(from + i);
            weights[i] = finite ? 1 : NAN;
        }
        return;
    }
    const size_t winners = count_winners(&c, op->rule);
    const uint64_t rest = rest_of(&c, winners);
    for (size_t i = 0; i < c.k; i++) {
        const bool wins = i < winners;
        const uint64_t number = (uint64_t)((unsigned __int128)(wins ? 0 : draw(op, row, begin + i)) * rest >> 64);
        const uint64_t key = c.sorted[wins || rest == 0 ? i : find(&c, winners, number)];

        chosen[i] = (uint32_t)from + index_of(key);
        weights[i] = wins       ? 1
                     : rest > 0 ? (float)((double)rest / ((double)(c.k - winners) * (double)whole_of(key)))
                                : 0;
    }
    if (op->ascends)
        ascend(&c, from, chosen, weights);
}

void KERNEL_NAME(cpu_choose_rows)(struct device *dev, const struct device_choose_rows *op)
{
    const size_t block = sample_block(op->n_tokens), n_blocks = size_pieces(op->n_tokens, block);

#pragma omp parallel for num_threads(cpu_threads(dev, op->n_rows * op->n_tokens)) schedule(static)
    for (size_t i = 0; i < op->n_rows * n_blocks; i++) {
        const size_t first = i % n_blocks * block;

        choose(op, i / n_blocks, first, size_smaller(first + block, op->n_tokens));
    }
}

/* ---- the copies ---- */

void KERNEL_NAME(cpu_gather_rows)(struct device *dev, const struct device_gather_rows *op)
{
    const size_t n = op->n;

#pragma omp parallel for num_threads(cpu_threads(dev, op->m * op->n)) schedule(static)
    for (size_t i = 0; i < op->m; i++) {
        const value *const x = (const value *)op->x + op->chosen[i] * op->stride;
        value *const y = (value *)op->y + i * n;
        const float weight = op->weights ? op->weights[i] : 1;

        if (weight == 1)
            memcpy(y, x, n * sizeof *y);
        else
            for (size_t j = 0; j < n; j += VECTOR)
                value_store_n(y + j, value_load_n(x + j, n - j) * weight, n - j);
    }
}
