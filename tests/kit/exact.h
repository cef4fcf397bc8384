/* tests/kit/exact.h - a fixture's model in the harness of one process: our side of a comparison with PyTorch, or with
 * ourselves. */
#ifndef TESTS_KIT_EXACT_H
#define TESTS_KIT_EXACT_H

#include "tests/kit/fixture.h"
#include "tests/kit/inprocess.h"

struct exact {
    struct fixture fixture;
    struct inprocess *ip;
    uint32_t *ids, *labels; /* (batch * seq) */
    float *tensor;          /* the largest: what exact_find returns */
    float *masters;         /* (segment_n) of bf16, joined; else NULL */
    const float *segment;   /* what exact_find reads: store weights (the default), m, v, gradient or masters */
};

/* Opens the engine as `how` says, with config, batch and seq of the fixture filled in, and the fixture's weights.
 * Asserts that it opens. Undo: exact_close. */
void exact_open(struct exact *exact, const char *fixture, const struct inprocess_options *how);
void exact_close(struct exact *exact);

/* The fixture's hyperparameters. */
struct hyper exact_hyper(const struct exact *exact);

/* One step over minibatch `step` % 4. Returns the loss. */
double exact_step(struct exact *exact, uint32_t step, const struct hyper *hyper);

/* The weights' segment, where every tensor of the model lies: as they are now, of bf16 a copy. */
float *exact_weights(const struct exact *exact);

/* A fixture_find over exact->segment; context: the exact. */
const float *exact_find(void *exact, const char *name, uint64_t n);

/* Asserts that the gradient of the first minibatch is PyTorch's. */
void exact_check_gradient(const char *fixture, const struct inprocess_options *how);

/* Asserts that the losses and final weights of 20 steps, by how->adamw and how->n_parts, are PyTorch's. */
void exact_check_training(const char *fixture, const struct inprocess_options *how);

/* 64 bits that tell two segments apart (FNV-1a over the units, word by word; the gaps between them are left out). */
uint64_t exact_digest(const struct exact *exact, const float *segment);

#endif
