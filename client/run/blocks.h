/* client/run/blocks.h - the blocks of a step, as the caller of eps_train names them (on_blocks in client/eps_options.h). */
#ifndef CLIENT_RUN_BLOCKS_H
#define CLIENT_RUN_BLOCKS_H

#include "client/eps.h"
#include "proto/base/error.h"
#include "proto/model/drop.h"
#include "proto/model/model.h"

struct client_blocks {
    uint32_t n;                  /* the model's */
    uint32_t *computed, *frozen; /* (n) each, as in struct eps_step_blocks; owned, one block */
    struct model_drop trained;   /* blocks that have tensors to train */
    bool trains_others;          /* so have layers beside them */
};

/* For the model as it is trained. -ENOMEM with a sentence. Undo: client_blocks_free. */
int client_blocks_init(struct client_blocks *out, const struct model *model, struct error *err);
void client_blocks_free(struct client_blocks *blocks); /* safe on a zeroed one */

/* Asks options->on_blocks for step `step` (from 0). dropped has those that are drawn, and then those that the step does not
 * compute; frozen: those of the computed ones that it does not train. -EINVAL with a sentence: the answer is none. */
int client_blocks_ask(struct model_drop *dropped, struct model_drop *frozen, const struct client_blocks *blocks,
                      const struct eps_train_options *options, uint64_t step, struct error *err);

#endif
