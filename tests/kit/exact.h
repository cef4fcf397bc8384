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
    float *gradient;        /* (segment_n) of exact_gradient */
    const float *segment;   /* what exact_find reads: store weights (the default), gradient or masters */
};

/* Opens the engine as `how` says, with config, batch, seq and clip_norm of the fixture filled in, and its weights.
 * Asserts that it opens. Undo: exact_close. */
void exact_open(struct exact *exact, const char *fixture, const struct inprocess_options *how);
/* The same, and the first n_steps. */
void exact_train(struct exact *exact, const char *fixture, const struct inprocess_options *how, uint32_t n_steps);
void exact_close(struct exact *exact);

/* One step over minibatch `step` % 4, by the fixture's hyperparameters. Returns the loss. */
double exact_step(struct exact *exact, uint32_t step);
/* The first step, whose gradient exact_find reads from then on. Returns the loss. */
double exact_gradient(struct exact *exact);

/* The weights' segment, where every tensor of the model lies: as they are now, of bf16 a copy. */
float *exact_weights(const struct exact *exact);

/* A fixture_find over exact->segment; context: the exact. */
const float *exact_find(void *exact, const char *name, uint64_t n);

/* Asserts that the gradient of the first minibatch is PyTorch's. */
void exact_check_gradient(const char *fixture, const struct inprocess_options *how);
/* Asserts that losses, norms where they are clipped, and final weights of 20 steps, by how->adamw and how->n_parts, are
 * PyTorch's. */
void exact_check_training(const char *fixture, const struct inprocess_options *how);
/* Nothing but rounding moves a key bias, and Adam makes steps of up to lr of it: it can go no farther than this. */
double exact_farthest_key(const struct exact *exact);

/* 64 bits that tell two segments apart (FNV-1a over the units, word by word; the gaps between them are left out). */
uint64_t exact_digest(const struct exact *exact, const float *segment);
/* Of weights and moments, where nothing is frozen. */
uint64_t exact_state(const struct exact *exact);

#endif
