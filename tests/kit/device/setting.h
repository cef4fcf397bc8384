/* tests/kit/device/setting.h - small models with weights and a minibatch, and one step of a worker on them. */
#ifndef TESTS_KIT_DEVICE_SETTING_H
#define TESTS_KIT_DEVICE_SETTING_H

#include "proto/step/step.h"
#include "tests/kit/device/array_link.h"
#include "tests/kit/reference/reference_gpt2.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SETTING_CONFIGS = 4, SETTING_SEED = 7, SETTING_STEP = 5 };

/* Odd head counts and widths, tied and not, every activation and scale; dropout at every site in the last. */
const struct model_config *setting_config(int i); /* 0 to SETTING_CONFIGS - 1; borrowed */

/* 0, 1, 2, ...: all parts, in order. */
extern const uint32_t setting_parts[ARRAY_LINK_PARTS];

struct setting {
    struct model model;
    float *weights; /* (segment_n): random, norms around 1 */
    uint32_t batch, seq;
    uint32_t *ids, *labels;    /* (batch * seq): random, every sixth label padding */
    struct plan_row *rows;     /* (batch) of a classifier: random; else NULL */
    const uint32_t *positions; /* (batch * seq) if rows are packed, borrowed; NULL unless it is set */
    const uint16_t *norms;     /* what is remembered, borrowed; NULL unless it is set */
    uint64_t n_valid;
    float loss_scale;           /* of a share; 0: none */
    enum number_type precision; /* of the device; fp32 unless it is set */
    bool lends;                 /* weights are lent: array_link_lend */
};

/* The same for the same arguments. Owned: setting_close. */
void setting_open(struct setting *s, const struct model_config *config, uint32_t batch, uint32_t seq);
void setting_close(struct setting *s);

/* Has every row as long as seq, its last token with a label, or its length so: no microbatch is cut. */
void setting_fill(struct setting *s);

/* -1..1, Marsaglia's xorshift: nothing of proto/base/random.h. *state is not 0. */
double setting_random(uint64_t *state);

/* 0 .. n-1. */
uint32_t setting_below(uint64_t *state, uint32_t n);

/* Small, every second one with a vocabulary that is cut into two or three units; of 12 positions; a third each of
 * GPT-2, of BERT and RoBERTa, most of them classifiers, and of the families in tests/families. */
struct model_config setting_random_config(uint64_t *state);

/* A small BERT with labels to predict: a number if it is one. */
struct model_config setting_classifier(uint32_t n_labels, uint32_t n_segments);

/* All but the microbatch, at random. */
void setting_choose(struct plan_choice *choice, const struct model *model, uint64_t *state);

/* One thread, two weight buffers, the whole minibatch as the share; microbatch 0: a whole part. */
struct device_worker_options setting_options(const struct setting *s, uint32_t part_rows, uint32_t microbatch);

/* One step of a fresh worker with these parts, on top of what the link already holds. */
void setting_step(struct array_link *link, const struct setting *s, const struct device_worker_options *options,
                  uint32_t n_parts, const uint32_t *parts);

/* The same with a fresh link and all parts; link is then the caller's to free. */
void setting_step_whole(struct array_link *link, const struct setting *s, const struct device_worker_options *options);

/* One step by these options gives the same gradient and losses, bit for bit. */
void setting_check_bits(const struct array_link *same, const struct setting *s,
                        const struct device_worker_options *options);

/* What a fresh worker says of an evaluation; *n_pulls, unless NULL: of the link, each of which was waited for. */
double setting_evaluate(const struct setting *s, const struct device_worker_options *options,
                        const struct device_evaluation *evaluation, unsigned *n_pulls);

/* The minibatch. */
struct device_rows setting_rows(const struct setting *s);

/* A step's share of the first n parts. */
struct device_share setting_share(const struct setting *s, uint32_t n_parts);

/* The same step for the reference. */
struct reference_batch setting_batch(const struct setting *s);

bool setting_same_bits(const float *a, const float *b, size_t n);

/* |a - b| / |b| of one tensor, the worst of all; a and b (segment_n). */
double setting_distance(const struct model *model, const float *a, const float *b);

#endif
