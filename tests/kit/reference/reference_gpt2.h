/* tests/kit/reference/reference_gpt2.h - the loss of a GPT-2, in double, by plain loops: what the layers are held to.
 *
 * Written from the model's definition (Radford et al. 2019; Hugging Face's names), with nothing of device/: it knows
 * tensors, not units. Gradients come from central differences of it. Dropout follows the definition in
 * proto/operation/device.h.
 */
#ifndef TESTS_KIT_REFERENCE_REFERENCE_GPT2_H
#define TESTS_KIT_REFERENCE_REFERENCE_GPT2_H

#include "proto/model/model.h"

struct reference_gpt2 {
    const struct model *model; /* borrowed */
    double **tensors;          /* (model->n_tensors), each (tensor.n); may be changed between calls */
};

struct reference_batch {
    const uint32_t *ids, *labels; /* (rows, seq): the whole minibatch */
    uint32_t first_row, n_rows;   /* of it, those that count */
    uint32_t seq;
    bool dropout;
    uint64_t seed, step;
};

/* From weights laid out in units (segment_n). Owned: reference_gpt2_free. */
void reference_gpt2_init(struct reference_gpt2 *ref, const struct model *model, const float *weights);
void reference_gpt2_free(struct reference_gpt2 *ref);

/* The sum of -log p over all labels that count, in nats. */
double reference_gpt2_loss(const struct reference_gpt2 *ref, const struct reference_batch *batch);

/* As a function of the tensors, whatever it is the loss of. */
typedef double reference_loss(const struct reference_gpt2 *ref, const void *batch);
double reference_gpt2_loss_of(const struct reference_gpt2 *ref, const void *batch);

/* dloss/d(element) of one tensor by a central difference, good to 1e-9. */
double reference_slope(struct reference_gpt2 *ref, reference_loss *loss, const void *batch, uint32_t tensor,
                       uint64_t element);

/* One tensor's gradient, that of the mean of n_valid losses, is the slope along a random direction: 1e-5 of the root
 * mean square of its elements, as of a single one; 1e-7 where it is 0 but for rounding. */
void reference_check_direction(struct reference_gpt2 *ref, reference_loss *loss, const void *batch, uint64_t n_valid,
                               const struct reference_gpt2 *gradient, uint32_t tensor, uint64_t *state);

#endif
