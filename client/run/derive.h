/* client/run/derive.h - a checkpoint of another model, made from a run's, from which another run goes on: what --grow
 * and --replace have in common.
 *
 * Step, rates, data, seeds and the other files stay. Each tensor of the new model comes from one of the old model: as
 * it is, or with some of its rows or columns, its units, and new ones behind them; or it is fresh. The moments and the
 * number of updates come from the same tensor, or are zeros.
 *
 * In order: client_derive_open; client_derive_models, with the new model's config; the caller sets origins; and
 * client_derive_write. */
#ifndef CLIENT_RUN_DERIVE_H
#define CLIENT_RUN_DERIVE_H

#include "client/run/resume.h"
#include "proto/base/watch.h"
#include "proto/model/model.h"
#include "proto/model/file/safetensors.h"

#include <limits.h>

/* The units of a layer that gets another width. */
struct derive_units {
    uint32_t n, n_kept;
    uint32_t *kept; /* (n_kept) the old layer's, ascending; the others, n_kept..n-1, are new */
};

/* What a tensor of the new model is made of. */
struct derive_origin {
    uint32_t tensor;                  /* the old model's; UINT32_MAX: the one of the same name */
    bool fresh;                       /* none: as a fresh model has it; without_moments, too */
    bool without_moments;             /* zeros, and no updates */
    const struct derive_units *units; /* of rows or columns; NULL: the tensor is as it was */
    bool columns;                     /* units are columns */
    bool new_are_zeros;               /* weights of new units; else they are drawn as a fresh model's */
};

struct client_derive {
    const char *option, *folder; /* "--grow"; the checkpoint is in OUT/folder; NULL: in OUT */
    const struct client_watch *watch;
    struct client_resume resume;
    int from_fd, out_fd, to_fd; /* directories: the checkpoint; that folder; its step-N.partial */
    char *old_config;           /* (n_old_config) */
    size_t n_old_config;
    char *config; /* the new model's */
    struct model old, model;
    struct derive_origin *origins; /* (model.n_tensors) */
    char *chunk, *old_chunk;       /* (DERIVE_CHUNK) */
    struct checkpoint checkpoint;
    bool leaves_norms; /* the source has norms that the run remembered */
};

enum { DERIVE_CHUNK = 4 << 20 /* bytes; holds a row of any matrix */ };

/* Opens the checkpoint of in->resume. -EDOM with a sentence: resume or out is unset, or the run goes on in its own
 * directory, has adapters, frozen tensors or sparse weights; errors as client_resume_open. Undo: client_derive_close,
 * also after a failure. */
int client_derive_open(struct client_derive *d, const struct eps_train_options *in, struct error *err);

/* Describes both models, and makes room; old is what old_config says, and config (a text, owned from here on; NULL: no
 * memory) is the new one's. Clears the origins. -ENOMEM, errors as model_config_parse and model_init. */
int client_derive_models(struct client_derive *d, const struct model_config *old, char *config, struct error *err);

/* A layer of a block. NULL: there is none. */
const struct model_layer *client_derive_layer(const struct model *model, uint32_t block, uint32_t part);

/* Calls `use` with an open file of tensors of the checkpoint. */
int client_derive_read(struct client_derive *d, const char *name,
                       int (*use)(struct client_derive *d, const struct safetensors *from, void *data,
                                  struct error *err),
                       void *data, struct error *err);

/* Writes step-N of OUT/folder, or of OUT, whose path becomes *directory; in place of one that is there. -EEXIST: OUT holds a run;
 * -EINVAL, -EINTR, -errno with a sentence; the checkpoint is there whole or not at all. */
int client_derive_write(char directory[PATH_MAX], struct client_derive *d, const struct eps_train_options *in,
                        struct error *err);

/* What the user is to know, of the checkpoints (client_resume_open) and of what was left behind; or empty. */
void client_derive_say(struct error *note, const struct client_derive *d);

void client_derive_close(struct client_derive *d);

#endif
