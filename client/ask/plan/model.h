/* client/ask/plan/model.h - what a plan reads of a model: its config, and how large its files are. */
#ifndef CLIENT_ASK_PLAN_MODEL_H
#define CLIENT_ASK_PLAN_MODEL_H

#include "client/eps.h"
#include "proto/base/error.h"
#include "proto/model/model.h"

struct plan_model {
    struct model_config config;
    enum eps_task task;                /* the model's */
    uint64_t config_bytes, side_bytes; /* of the job's files */
    uint64_t saved_bytes;              /* of those files in a checkpoint */
    uint64_t header_bytes;             /* of its weights' files */
    uint32_t n_files;                  /* of weights */
    enum form coded;                   /* of those files: weights_form */
};

/* Reads what the options' model, task, lora and n_labels make of files, of a preset, or of a published model that is
 * not here (client/model/published.h). -EDOM, or as client_model_open. */
int client_plan_model_read(struct plan_model *out, const struct eps_train_options *in, struct error *err);

#endif
