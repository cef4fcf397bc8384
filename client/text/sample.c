/* A draw walks the candidates as filtering left them, so their order is part of the result. It follows from logits and
 * ids alone: the heap's comparison is total, and without a filter they stay in the order of ids. Weights are relative
 * to the largest logit, so none overflows, and the likeliest one's is 1, on which min-p relies. */
#include "client/text/sample.h"

#include "proto/base/random.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int client_sample_check(const struct client_sample_options *options, struct error *err)
{
    if (!isfinite(options->temperature) || options->temperature < 0)
        return error_set(err, -EDOM, "--temperature %g: a number of at least 0 is needed; 0 takes the likeliest token",
                         options->temperature);
    if (!(options->top_p > 0 && options->top_p <= 1))
        return error_set(err, -EDOM, "--top-p %g: a probability above 0 and at most 1 is needed", options->top_p);
    if (!(options->min_p >= 0 && options->min_p <= 1))
        return error_set(err, -EDOM, "--min-p %g: a fraction from 0 to 1 is needed", options->min_p);
    if (!(options->repetition_penalty > 0 && isfinite(options->repetition_penalty)))
        return error_set(err, -EDOM, "--repetition-penalty %g: a number above 0 is needed; 1 is no penalty",
                         options->repetition_penalty);
    return 0;
}

int client_sampler_init(struct client_sampler *out, const struct client_sample_options *options, uint32_t n,
                        struct error *err)
{
    const bool draws = options->temperature > 0, penalises = options->repetition_penalty != 1;

    *out = (struct client_sampler){.options = *options, .n = n};
    out->candidates = draws ? malloc(n * sizeof *out->candidates) : NULL;
    out->penalised = penalises ? malloc(n * sizeof *out->penalised) : NULL;
    out->seen = penalises ? calloc(n, 1) : NULL;
    if ((!draws || out->candidates) && (!penalises || (out->penalised && out->seen)))
        return 0;
    client_sampler_free(out);
    return error_set(err, -ENOMEM, "out of memory for %" PRIu32 " candidates", n);
}

int client_sampler_init_beside(struct client_sampler *out, const struct client_sampler *of, struct error *err)
{
    *out = *of;
    out->borrows = true;
    out->seen = of->seen ? calloc(of->n, 1) : NULL;
    if (!of->seen || out->seen)
        return 0;
    *out = (struct client_sampler){0};
    return error_set(err, -ENOMEM, "out of memory for %" PRIu32 " tokens", of->n);
}

void client_sampler_free(struct client_sampler *sampler)
{
    if (!sampler->borrows) {
        free(sampler->candidates);
        free(sampler->penalised);
    }
    free(sampler->seen);
    *sampler = (struct client_sampler){0};
}

void client_sampler_begin(struct client_sampler *sampler, const uint32_t *ids, size_t n_ids)
{
    if (!sampler->seen)
        return;
    memset(sampler->seen, 0, sampler->n);
    for (size_t i = 0; i < n_ids; i++)
        sampler->seen[ids[i]] = 1;
}

/* The logits after the penalty; they stay finite. */
static const float *penalise(struct client_sampler *s, const float *logits)
{
    const float penalty = (float)s->options.repetition_penalty;

    if (!s->seen)
        return logits;
    for (uint32_t i = 0; i < s->n; i++) {
        const float logit = logits[i];
        const float changed = !s->seen[i] ? logit : logit < 0 ? logit * penalty : logit / penalty;
        s->penalised[i] = fminf(fmaxf(changed, -FLT_MAX), FLT_MAX);
    }
    return s->penalised;
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

static double sample_weigh(struct client_sampler *s, uint32_t first, float largest)
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
    total = sample_weigh(s, *first, largest);
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

/* Takes the weight of candidates below min-p, relative to the likeliest one's weight of 1, and returns what is left. */
static double drop_unlikely(struct client_sampler *s, uint32_t first, double total)
{
    if (s->options.min_p == 0)
        return total;
    total = 0;
    for (uint32_t i = first; i < s->n; i++) {
        if (s->candidates[i].weight < s->options.min_p)
            s->candidates[i].weight = 0;
        total += s->candidates[i].weight;
    }
    return total;
}

/* Uniform in [0, 1), 53 bits. */
static double sample_uniform(uint64_t seed, uint64_t position)
{
    uint32_t word[4];

    random_quad(word, random_site_key(seed, 0, 0, RANDOM_SAMPLE), 0, position);
    return (double)(((uint64_t)word[0] << 32 | word[1]) >> 11) * 0x1p-53;
}

static uint32_t text_sample_draw(struct client_sampler *s, const float *logits, uint32_t likeliest, uint64_t position)
{
    uint32_t first;

    for (uint32_t i = 0; i < s->n; i++)
        s->candidates[i] = (struct client_candidate){.logit = logits[i], .id = i};
    double left = filter_candidates(&first, s, logits[likeliest]);
    left = drop_unlikely(s, first, left) * sample_uniform(s->options.seed, position);
    for (uint32_t i = s->n; i-- > first;) {
        left -= s->candidates[i].weight;
        if (left < 0)
            return s->candidates[i].id;
    }
    return likeliest; /* rounding left a remainder beyond the last candidate */
}

int client_sampler_draw(uint32_t *id, struct client_sampler *sampler, const float *logits, uint64_t position,
                        struct error *err)
{
    uint32_t likeliest;
    int rc = find_likeliest(&likeliest, logits, sampler->n, position, err);

    if (!rc && sampler->seen) {
        logits = penalise(sampler, logits);
        rc = find_likeliest(&likeliest, logits, sampler->n, position, err);
    }
    *id = likeliest;
    if (!rc && sampler->options.temperature > 0)
        *id = text_sample_draw(sampler, logits, likeliest, position);
    if (!rc && sampler->seen)
        sampler->seen[*id] = 1;
    return rc;
}
