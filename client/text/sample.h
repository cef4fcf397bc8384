/* client/text/sample.h - the next token, drawn from what the model says of each.
 *
 * The rules are applied in transformers' order: temperature, then the k likeliest, then the nucleus among those. Equal
 * logits count the lower id first. The draw depends on (seed, position) and the logits alone, so a text can be had
 * again, however it was interrupted, and by whatever budget or worker the logits came.
 *
 * Source: nucleus (top-p) sampling - Holtzman et al., arXiv:1904.09751, section 3.1. */
#ifndef CLIENT_TEXT_SAMPLE_H
#define CLIENT_TEXT_SAMPLE_H

#include "proto/base/error.h"

#include <stdint.h>

struct client_sample_options {
    double temperature; /* logits are divided by it; 0: the likeliest token, always */
    uint32_t top_k;     /* 0: all */
    double top_p;       /* the smallest set of likeliest tokens that has this probability; 1: all */
    uint64_t seed;
};

struct client_candidate {
    double weight; /* exp of its logit's distance from the largest one, by the temperature */
    float logit;
    uint32_t id;
};

struct client_sampler {
    struct client_sample_options options;
    uint32_t n;                          /* the vocabulary */
    struct client_candidate *candidates; /* (n), owned; NULL if greedy */
};

/* -EDOM with a sentence that names the option and its value: temperature below 0 or not finite, top_p outside
 * (0, 1]. */
int client_sample_check(const struct client_sample_options *options, struct error *err);

/* Takes all memory that drawing needs. options have been checked, n >= 1. -ENOMEM. */
int client_sampler_init(struct client_sampler *out, const struct client_sample_options *options, uint32_t n,
                        struct error *err);
void client_sampler_free(struct client_sampler *sampler); /* safe on a zeroed one */

/* The token for this position, from its logits (n), which are borrowed. -EINVAL if one is not finite. Time: n steps,
 * and log n for each token of the k likeliest or of the nucleus; nothing is sorted beyond them. */
int client_sampler_draw(uint32_t *id, struct client_sampler *sampler, const float *logits, uint64_t position,
                        struct error *err);

#endif
