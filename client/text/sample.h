/* client/text/sample.h - draws the next token from the model's logits.
 *
 * The order is transformers': repetition penalty, temperature, top-k, then top-p among those, then min-p. Of equal
 * logits, the lower id counts first. A draw depends on (seed, position), the text's tokens and the logits alone. So a
 * text can be reproduced after an interruption, and with any budget or worker that gives the same logits.
 *
 * Sources: repetition penalty - Keskar et al., arXiv:1909.05858, section 4.1;
 *          nucleus (top-p) sampling - Holtzman et al., arXiv:1904.09751, section 3.1;
 *          min-p - Nguyen et al., arXiv:2407.01082. */
#ifndef CLIENT_TEXT_SAMPLE_H
#define CLIENT_TEXT_SAMPLE_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_sample_options {
    double temperature;        /* divides the logits; 0: always the likeliest token */
    uint32_t top_k;            /* keep the k likeliest tokens; 0: all */
    double top_p;              /* keep the smallest set of likeliest tokens with this probability; 1: all */
    double min_p;              /* keep tokens with at least this fraction of the likeliest one's probability; 0: all */
    double repetition_penalty; /* divides positive logits of the text's tokens, multiplies negative ones; 1: none */
    uint64_t seed;
};

struct client_candidate {
    double weight; /* exp((logit - largest) / temperature) */
    float logit;
    uint32_t id;
};

struct client_sampler {
    struct client_sample_options options;
    uint32_t n;                          /* vocabulary size */
    struct client_candidate *candidates; /* (n); NULL if greedy */
    float *penalised;                    /* (n) logits; NULL without a penalty */
    bool borrows;                        /* candidates and penalised are another sampler's; else owned */
    uint8_t *seen;                       /* (n), owned: 1 for tokens of the text; NULL without a penalty */
};

/* -EDOM with a sentence that names the option and its value: temperature negative or not finite, top_p outside (0, 1],
 * min_p outside [0, 1], repetition_penalty not above 0. */
int client_sample_check(const struct client_sample_options *options, struct error *err);

/* Allocates everything that drawing needs. options were checked; n >= 1. -ENOMEM. */
int client_sampler_init(struct client_sampler *out, const struct client_sample_options *options, uint32_t n,
                        struct error *err);
/* Makes a sampler for another text, with the options and the memory of `of`: draw from one at a time, and free this one
 * first. */
int client_sampler_init_beside(struct client_sampler *out, const struct client_sampler *of, struct error *err);
void client_sampler_free(struct client_sampler *sampler); /* safe on a zeroed struct */

/* Begins a text with these tokens, below n. */
void client_sampler_begin(struct client_sampler *sampler, const uint32_t *ids, size_t n_ids);

/* Draws the text's token for this position from its logits (n, borrowed). -EINVAL if a logit is not finite. Time: n
 * steps, plus log n for each token that top-k or top-p keeps; the rest is never sorted. */
int client_sampler_draw(uint32_t *id, struct client_sampler *sampler, const float *logits, uint64_t position,
                        struct error *err);

#endif
