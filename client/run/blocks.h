/* client/run/blocks.h - the blocks of a step, as the caller of eps_train names them (on_blocks in
 * client/eps_options.h). */
#ifndef CLIENT_RUN_BLOCKS_H
#define CLIENT_RUN_BLOCKS_H

#include "client/eps.h"
#include "proto/base/error.h"
#include "proto/wire/message.h"

struct client_blocks {
    struct model model;
    uint32_t n;                  /* the model's */
    uint32_t *computed, *frozen; /* (n) each, as in struct eps_step_blocks; owned, one block */
    struct model_drop trained;   /* blocks that have tensors to train */
    bool trains_others;          /* so have layers beside them */
};

/* Takes over the model as it is trained, also on failure. -ENOMEM with a sentence. Undo: client_blocks_free. */
int client_blocks_init(struct client_blocks *out, struct model *model, struct error *err);
void client_blocks_free(struct client_blocks *blocks); /* safe on a zeroed one */

/* Asks options->on_blocks for a step that is to be opened: fills in drop, which has those that are drawn, frozen and
 * order. -EINVAL with a sentence: the answer is none. */
int client_blocks_ask(struct message *open, const struct client_blocks *blocks, const struct eps_train_options *options,
                      struct error *err);

#endif
