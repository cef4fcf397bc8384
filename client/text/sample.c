#include "client/text/sample.h"

#include "proto/base/random.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

int client_sample_check(const struct client_sample_options *options, struct error *err)
{
    if (!isfinite(options->temperature) || options->temperature < 0)
        return error_set(err, -EDOM, "--temperature %g: a number of at least 0 is needed; 0 takes the likeliest token",
                         options->temperature);
    if (!(options->top_p > 0 && options->top_p <= 1))
        return error_set(err, -EDOM, "--top-p %g: a probability above 0 and at most 1 is needed", options->top_p);
    return 0;
}

int client_sampler_init(struct client_sampler *out, const struct client_sample_options *options, uint32_t n,
                        struct error *err)
{
    *out = (struct client_sampler){.options = *options, .n = n};
    if (options->temperature == 0)
        return 0;
    out->candidates = malloc(n * sizeof *out->candidates);
    return out->candidates ? 0 : error_set(err, -ENOMEM, "out of memory for %" PRIu32 " candidates", n);
}

void client_sampler_free(struct client_sampler *sampler)
{
    free(sampler->candidates);
    *sampler = (struct client_sampler){0};
}

/* Finds the largest logit; of equal ones the lowest id. Reads every logit, to check that it is finite. */
static int find_likeliest(uint32_t *id, const float *logits, uint32_t n, uint64_t position, struct error *err)
{
    *id = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(logits[i]))
            return error_set(err, -EINVAL,
                             "the model's logit of token %" PRIu32 " at position %" PRIu64
                             " is %s: its weights are damaged, or its training has diverged",
                             i, position, isnan(logits[i]) ? "not a number" : "infinite");
        if (logits[i] > logits[*id])
            *id = i;
    }
    return 0;
}

static bool is_likelier(const struct client_candidate *a, const struct client_candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

/* Sifts the candidate at i down a heap whose root is the likeliest. */
static void sift_down(struct client_candidate *heap, uint32_t n, uint32_t i)
{
    const struct client_candidate sinking = heap[i];

    for (uint64_t child; (child = 2 * (uint64_t)i + 1) < n; i = (uint32_t)child) {
        if (child + 1 < n && is_likelier(&heap[child + 1], &heap[child]))
            child++;
        if (!is_likelier(&heap[child], &sinking))
            break;
        heap[i] = heap[child];
    }
    heap[i] = sinking;
}

/* Moves the likeliest of n candidates to index n-1, behind the remaining heap. */
static struct client_candidate *pop_likeliest(struct client_candidate *heap, uint32_t n)
{
    const struct client_candidate likeliest = heap[0];

    heap[0] = heap[n - 1];
    sift_down(heap, n - 1, 0);
    heap[n - 1] = likeliest;
    return &heap[n - 1];
}

static double weigh(struct client_sampler *s, uint32_t first, float largest)
{
    double total = 0;

    for (uint32_t i = first; i < s->n; i++) {
        s->candidates[i].weight = exp(((double)s->candidates[i].logit - (double)largest) / s->options.temperature);
        total += s->candidates[i].weight;
    }
    return total;
}

/* Keeps candidates *first .. n-1, from which one is drawn, and returns their total weight. After filtering the
 * likeliest is last. */
static double filter_candidates(uint32_t *first, struct client_sampler *s, float largest)
{
    const uint32_t k = s->options.top_k > 0 && s->options.top_k < s->n ? s->options.top_k : s->n;
    const bool by_k = k < s->n, by_p = s->options.top_p < 1;
    double total, nucleus = 0;

    *first = 0;
    if (by_k || by_p) {
        for (uint32_t i = s->n / 2; i-- > 0;)
            sift_down(s->candidates, s->n, i);
    }
    if (by_k) {
        for (*first = s->n; *first > s->n - k; --*first)
            pop_likeliest(s->candidates, *first);
    }
    total = weigh(s, *first, largest);
    if (!by_p)
        return total;
    for (uint32_t end = s->n; end > s->n - k; end--) {
        nucleus += by_k ? s->candidates[end - 1].weight : pop_likeliest(s->candidates, end)->weight;
        *first = end - 1;
        if (nucleus >= s->options.top_p * total)
            break;
    }
    return nucleus;
}

/* Uniform in [0, 1), 53 bits. */
static double uniform(uint64_t seed, uint64_t position)
{
    uint32_t word[4];

    random_quad(word, random_site_key(seed, 0, 0, RANDOM_SAMPLE), 0, position);
    return (double)(((uint64_t)word[0] << 32 | word[1]) >> 11) * 0x1p-53;
}

int client_sampler_draw(uint32_t *id, struct client_sampler *sampler, const float *logits, uint64_t position,
                        struct error *err)
{
    uint32_t likeliest, first;
    int rc = find_likeliest(&likeliest, logits, sampler->n, position, err);

    *id = likeliest;
    if (rc || sampler->options.temperature == 0)
        return rc;
    for (uint32_t i = 0; i < sampler->n; i++)
        sampler->candidates[i] = (struct client_candidate){.logit = logits[i], .id = i};
    double left = filter_candidates(&first, sampler, logits[likeliest]);
    left *= uniform(sampler->options.seed, position);
    for (uint32_t i = sampler->n; i-- > first;) {
        left -= sampler->candidates[i].weight;
        if (left < 0) {
            *id = sampler->candidates[i].id;
            break;
        }
    } /* rounding may leave a remainder beyond the last candidate: take the likeliest */
    return 0;
}
