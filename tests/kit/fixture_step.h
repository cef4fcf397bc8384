/* tests/kit/fixture_step.h - a fixture's first minibatch by one step of a worker, without daemon and optimizer: in either type
 * of values, its gradient beside what PyTorch says. */
#ifndef TESTS_KIT_FIXTURE_STEP_H
#define TESTS_KIT_FIXTURE_STEP_H

#include "tests/kit/device/array_link.h"
#include "tests/kit/fixture.h"
#include "tests/kit/device/setting.h"

struct fixture_step {
    struct fixture fixture;
    struct setting s; /* weights as drawn, the first minibatch */
    struct array_link link;
    float *tensor; /* what fixture_step_find returns */
};

/* Undo: fixture_step_close. */
void fixture_step_open(struct fixture_step *step, const char *fixture, enum number_type precision);
void fixture_step_close(struct fixture_step *step);

/* Makes the gradient, once. Rows of a part, which divide the batch into at most ARRAY_LINK_PARTS, and of a microbatch, 0
 * for a whole part. Returns the loss. */
double fixture_step_run(struct fixture_step *step, uint32_t part_rows, uint32_t microbatch);

/* A fixture_find over the gradient; context: the fixture_step. */
const float *fixture_step_find(void *step, const char *name, uint64_t n);

#endif
