/* tests/kit/device/array_link.h - a step's link over plain arrays: no daemon, no messages, no optimizer.
 *
 * Weights come from an array in the model's unit layout, contributions are added up in two arrays of the same layout:
 * of each part and of all. It holds the step to its protocol: pulls within the buffers, losses before contributions,
 * names in fold order. */
#ifndef TESTS_KIT_DEVICE_ARRAY_LINK_H
#define TESTS_KIT_DEVICE_ARRAY_LINK_H

#include "proto/step/step.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ARRAY_LINK_PARTS = 8, ARRAY_LINK_SLOTS = 12 };

struct array_link {
    const struct model *model;  /* borrowed */
    const float *weights;       /* (segment_n), borrowed */
    enum number_type precision; /* in which they are handed out: what was rounded at the first pull stays */
    enum number_type grad;      /* in which slots are filled */
    uint16_t *rounded;          /* (segment_n) bf16; NULL before the first pull */
    uint64_t version;           /* that pulls must ask for */
    uint32_t n_buffers;
    void *lent;                      /* (largest_unit) of array_link_lend; else NULL */
    float *gradient;                 /* (segment_n): the sum of all contributions */
    float *parts[ARRAY_LINK_PARTS];  /* (segment_n) each: of one part, NULL before it has any */
    float *norms[ARRAY_LINK_PARTS];  /* of one part, map after map of the model's n_norm_maps; NULL before it has any */
    double losses[ARRAY_LINK_PARTS]; /* as told */
    struct preference_rewards rewards[ARRAY_LINK_PARTS]; /* likewise */
    bool told[ARRAY_LINK_PARTS], finite[ARRAY_LINK_PARTS];
    unsigned n_pulls, n_waits, n_slots, n_contributions, n_completed; /* calls; completed: contributed() */
    unsigned n_calls;                                                 /* all but looks for a slot where there is none */
    unsigned cancel_at; /* the call of this number (from 1) and all after it are -ECANCELED; 0: none */
    void (*on_first_pull)(void *context); /* or NULL */
    void *context;
    uint32_t asked[PLAN_MAX_WEIGHT_BUFFERS]; /* units, a ring from n_waits to n_pulls */
    uint64_t last_name, last_offered;        /* of the latest slot taken and contribution, rising in fold order */
    uint32_t n_inbox;                        /* slots: 1 to ARRAY_LINK_SLOTS */
    void *inbox[ARRAY_LINK_SLOTS];           /* (MODEL_SLICE) each */
    uint64_t taken[ARRAY_LINK_SLOTS];        /* by this name; 0: free */
};

extern const struct device_link array_link;

/* Owned: array_link_free. Everything else is 0 and may be set. */
void array_link_init(struct array_link *link, const struct model *model, const float *weights);
void array_link_free(struct array_link *link);
/* From now on, weights that pass through buffers are handed out in link->lent, one unit over the other. Its bytes. */
size_t array_link_lend(struct array_link *link);

#endif
