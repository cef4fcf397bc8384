/* client/task/masks.h - masked tokens: which a model has to predict, and what it sees in their places.
 *
 * Each token of a row is chosen with probability `fraction`; its label is then its id, and no other token has one. Of
 * the chosen, 80 % become the mask token, 10 % a random token, and 10 % stay. Special tokens are never chosen. If a
 * row's draws choose none, the token with the lowest draw is chosen: only a row of special tokens has no label.
 *
 * A draw is a function of the seed, the row's number and the position (proto/base/random.h). Every row of a run has a
 * number of its own, so a sequence gets other masks in each epoch. In an evaluation, a window of the data has the same
 * masks each time.
 *
 * Sources: Devlin, Chang, Lee, Toutanova, "BERT", arXiv:1810.04805, section 3.1 and appendix A.1.
 *          Other masks in each epoch - Liu et al., "RoBERTa", arXiv:1907.11692, section 4.1. */
#ifndef CLIENT_TASK_MASKS_H
#define CLIENT_TASK_MASKS_H

#include "proto/base/error.h"
#include "proto/base/random.h"
#include "proto/plan/memory/data.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define CLIENT_MASKS_FRACTION 0.15 /* Devlin et al. */

struct client_masks {
    bool *special;             /* (vocabulary), owned */
    uint32_t mask;             /* the mask token */
    uint32_t n_ids;            /* random tokens are below this: those of the tokenizer */
    uint32_t threshold;        /* the first of an element's words chooses it if it is less */
    struct random_key keys[2]; /* training, evaluation */
};

/* Finds mask token and special tokens in a model's side files (proto/model/file/model_files.h). model_type: as for
 * client_tokenizer_open. -EINVAL with a sentence if there is
 * no tokenizer or no mask token, and as client_tokenizer_open; *out is then zeroed. Undo: client_masks_close. */
int client_masks_open(struct client_masks *out, const json_t *side, const char *model_type, uint32_t vocabulary,
                      struct error *err);
void client_masks_close(struct client_masks *masks); /* safe on a zeroed struct */

/* Refuses a fraction that is not above 0 and below 1: -EDOM with a sentence about --mask-fraction. */
int client_masks_check(double fraction, struct error *err);

/* To be set before masks are drawn. fraction: above 0 and below 1. */
void client_masks_set(struct client_masks *masks, double fraction, uint64_t seed);

/* Masks tokens first .. n-1 of a row; ids (n), labels (n): PLAN_NO_LABEL where no token is chosen. */
void client_masks_draw(const struct client_masks *masks, uint32_t *ids, uint32_t *labels, uint32_t first, uint32_t n,
                       bool evaluates, uint64_t row);

#endif
