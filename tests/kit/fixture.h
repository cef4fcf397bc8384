/* tests/kit/fixture.h - what PyTorch says: the references in tests/fixtures, made by tests/oracle/training.py.
 *
 * A fixture is a model, four minibatches, the gradient of the first one and three runs of 20 steps, all in float64,
 * each with the distance at which PyTorch's own fp32 ends up: the yardstick. Weights and tokens are drawn by formula
 * here and there, not stored. Of large tensors a sample of elements is stored, and a sketch of 128 numbers, from which
 * the norm of a difference follows to about 6 %. Where elements of the sample are left out, it stands alone.
 *
 * Every call asserts that the files are as the script writes them: a broken fixture is a failed test. */
#ifndef TESTS_KIT_FIXTURE_H
#define TESTS_KIT_FIXTURE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fixture {
    const char *name; /* "a", "b" or "c" */
    const char *draw; /* what its weights and tokens are drawn by; borrowed from reference */
    char config[512]; /* path of config.json */
    uint32_t batch, seq, vocabulary, label_gap, n_minibatches, n_steps;
    double lr, beta1, beta2, epsilon, weight_decay;
    json_t *reference;
    double *values; /* all samples and sketches, one block */
    size_t n_values;
};

/* Reads tests/fixtures/NAME. Undo: fixture_close. */
void fixture_open(struct fixture *fixture, const char *name);
void fixture_close(struct fixture *fixture);

/* The model alone: of the fields above, those up to config, vocabulary and reference are set. */
void fixture_open_model(struct fixture *fixture, const char *name);

/* The weights of one tensor (n), by its full name. */
void fixture_draw(float *weights, const struct fixture *fixture, const char *tensor);

/* ids and labels (batch * seq each) of minibatch number % n_minibatches; UINT32_MAX where no label counts.
 * Returns the number of labels that count. */
uint64_t fixture_minibatch(uint32_t *ids, uint32_t *labels, const struct fixture *fixture, uint32_t number);

/* Writes config.json and model.safetensors with the drawn weights into an existing directory. */
void fixture_write_model(const struct fixture *fixture, const char *directory);

/* One set of results: a gradient, or a run's losses and final weights. */
struct fixture_set {
    const struct fixture *fixture;
    const json_t *json;
    char label[32]; /* names the set's samples and signs: "a:gradient", "a:adama8" */
};

struct fixture_set fixture_gradient(const struct fixture *fixture);

/* The run by this optimizer, "adamw" or "adama", with so many parts. AdamW is the same for any number: stored as 1. */
struct fixture_set fixture_run(const struct fixture *fixture, const char *optimizer, uint32_t n_parts);

/* The loss before update `step` (from 0) of a run; of a gradient, step 0. */
double fixture_loss(const struct fixture_set *set, uint32_t step);

/* Our tensor `name` (n elements), borrowed until the next call. */
typedef const float *fixture_find(void *context, const char *name, uint64_t n);

/* One piece of the set, ours beside float64's: a tensor, or q, k or v of c_attn.bias. Distances are norms of the
 * difference. */
struct fixture_piece {
    char text[160];               /* "a:gradient:transformer.h.0.attn.c_attn.bias.q" */
    bool is_key;                  /* k of c_attn.bias: its gradient is nothing but rounding */
    bool estimated;               /* distance comes from the sketch, for the whole was not stored */
    double norm;                  /* of float64's */
    double single;                /* distance of fp32 PyTorch, the largest of its ways to compute; or, of a regression's
                                   * gradient, the sum of its distances of single rows (make_labels.py) */
    double distance;              /* ours */
    double single_sample, sample; /* the same on the stored sample alone; both 0 if that is everything */
    double moved;                 /* of weights: float64's distance from the start */
};

size_t fixture_n_pieces(const struct fixture_set *set);
struct fixture_piece fixture_measure(const struct fixture_set *set, size_t piece, fixture_find *find, void *context);

/* What is asked of each piece. The sample is held to `singles` too: it finds a few far elements that a norm over all
 * would hide. */
struct fixture_limits {
    double relative; /* times the norm of float64's; 0: not asked */
    double singles;  /* times fp32 PyTorch's own distance */
    double keys;     /* absolute, for the key biases */
};

/* Measures every piece. Returns how many are beyond the limits; a line on stderr for the first five, and for
 * every piece with EPS_FIXTURE_VERBOSE in the environment. */
unsigned fixture_compare(const struct fixture_set *set, const struct fixture_limits *limits, fixture_find *find,
                         void *context);

#endif
