/* client/model/model.h - opens a model's files for the daemon to read.
 *
 * The daemon opens no path that a client names; the client sends descriptors. A model is either a config.json alone
 * (fresh weights) or a directory in Hugging Face's layout: config.json, and the weights (client/model/shards.h). A run
 * directory means its latest checkpoint. */
#ifndef CLIENT_MODEL_MODEL_H
#define CLIENT_MODEL_MODEL_H

#include "client/eps.h"
#include "proto/base/error.h"
#include "proto/base/number.h"
#include "proto/model/model.h"
#include "proto/model/file/safetensors.h"
#include "proto/model/wrapper.h"
#include "proto/plan/memory/plan.h"
#include "proto/wire/session.h"

#include <jansson.h>
#include <limits.h>

/* That go with a job beside the weights: config, output directory, side file, trace and moments. */
enum { CLIENT_MODEL_OTHER_FILES = 5, CLIENT_MODEL_MAX_FILES = SESSION_MAX_FDS - CLIENT_MODEL_OTHER_FILES };

struct client_model {
    char name[64]; /* for display: the directory's name, or the config file's without .json */
    struct model_config config;
    int config_fd;
    struct file weights[CLIENT_MODEL_MAX_FILES];
    unsigned n_weights;                         /* 0: fresh weights; of an adapter, the last one is its own */
    enum number_type precision;                 /* precision of its training, if its checkpoint says; else fp32 */
    enum safetensors_type dtype;                /* type of the weights as they came: client_model_match */
    enum form form;                             /* that keeps the files' values: weights_form, by client_model_match */
    const struct client_model_rewrite *rewrite; /* borrowed while the model is opened, else NULL */
    bool rewritten;                             /* the config is not the directory's own: client_model_open_as */
    char wrapper[WRAPPER_NOTE_BYTES]; /* the model that its text model is a part of (proto/model/wrapper.h); else "" */
    char edited[800]; /* texts that its checkpoint says were other ones, as a sentence: client_model_check; else "" */
    json_t *passed;   /* what it leaves out (client/model/passed.h): client_model_match; NULL: nothing */
    json_t *trained;  /* the options of its training (client/record/record.h), if its checkpoint says; else NULL */
    json_t *side;     /* the other files beside config.json (proto/model/file/model_files.h); NULL: not read */
    char directory[PATH_MAX]; /* directory of the files, links resolved; empty for a lone config or open files */
};

/* Tells what a user must know of an open model: texts that were edited (client_model_check comes before), and a key of
 * its config.json that is ignored. on_note may be NULL. */
void client_model_tell(const struct client_model *model, void (*on_note)(void *user, const char *sentence), void *user);

/* Which model. */
struct client_model_name {
    const char *path;
    const char *base;   /* of an adapter: its base's directory; NULL: the one that the adapter names */
    bool passes;        /* base may as well be where a checkpoint's `passed` is: the caller's to use */
    const char *config; /* the text of config.json, of a model that is not here; NULL: it is at the path */
};

/* Returns -errno or -EINVAL with a sentence that begins with the path; nothing is then open. A directory of an adapter
 * (client/model/adapter.h) is opened with its base. Undo: client_model_close. */
int client_model_open(struct client_model *out, const struct client_model_name *name, struct error *err);

/* client_model_open, but first passes the text of config.json (n bytes) to rewrite (NULL: it stays), which sets *out to
 * the new text, owned, or to NULL: it stays. An error of rewrite ends the call. */
struct client_model_rewrite {
    int (*rewrite)(char **out, const char *text, size_t n, void *data, struct error *err);
    void *data;
};
int client_model_open_as(struct client_model *out, const struct client_model_name *name,
                         const struct client_model_rewrite *rewrite, struct error *err);

/* As client_model_open_as, but ignores the weights. */
int client_model_open_fresh(struct client_model *out, const struct client_model_name *name,
                            const struct client_model_rewrite *rewrite, struct error *err);

/* Replaces an open model's config by this text, in memory. -EINVAL as model_config_parse; the model then has its
 * own. */
int client_model_replace_config(struct client_model *model, const char *text, struct error *err);

/* Verifies the model's files against their checkpoint's checksums, and takes precision and options from it. Files
 * that are no checkpoint's pass, and so do texts that were edited, which model->edited names. on_bytes as in
 * checkpoint_check. -EINVAL with a sentence that names directory and file. */
int client_model_check(struct client_model *model, int (*on_bytes)(void *data, uint64_t bytes), void *data,
                       struct error *err);

/* Matches the tensors in the files with the model's, by headers alone, and sets dtype: F32, F16 or BF16 if all tensors
 * have that type, else F32; for a checkpoint, the type of the weights that its run began from. Sets passed. -EINVAL
 * with a sentence that names the first tensor that does not fit and counts the others (proto/model/weights.h). */
int client_model_match(struct client_model *model, struct error *err);

/* client_model_match for a model whose training begins. drawn (WEIGHTS_MISSING_BYTES) names the tensors of a classifier
 * that the files lack and the seed draws; "" if there are none. */
int client_model_match_base(struct client_model *model, char *drawn, struct error *err);

/* Bytes of the headers of the model's files: safetensors_header_bytes. */
int client_model_header_bytes(uint64_t *out, const struct client_model *model, struct error *err);

/* Prints the model's config.json for weights of this type (model_config_print). Owned: free. NULL with a sentence. */
char *client_model_print_config(const struct client_model *model, enum safetensors_type type, struct error *err);

/* Describes the activations that the blocks of each class keep. Returns the number of classes. */
uint32_t client_model_blocks(struct eps_blocks out[EPS_BLOCKS], const struct model *model,
                             const struct plan_choice *choice);

/* The class of transformers that loads such a model, or NULL. */
const char *client_model_loader(const struct model_config *config);

/* What PEFT calls the task of adapters of such a model, "CAUSAL_LM", and its class that loads them; NULL: it has
 * none. */
struct client_peft {
    const char *task, *loader;
};
struct client_peft client_model_peft(const struct model_config *config);

/* The precision in a run's recorded options (client/record/record.h); fp32 if they have none. */
enum number_type client_model_precision(const json_t *options);

/* Where they are unset, how the model's training read conversations: the name of its chat template, borrowed, and what
 * special tokens were that messages spell. True if that gave the name. */
bool client_model_follow_training(const char **chat_template, enum eps_split *split, const struct client_model *model);

/* The type of the weights that a run began from, in its recorded options: "fp16", "bf16"; without the key fp32. */
#define CLIENT_MODEL_DTYPE_KEY "source_dtype"
enum safetensors_type client_model_dtype(const json_t *options);

/* Makes a model from open files, such as a snapshot of a live one. name->path is what sentences call it, and begin
 * with. The base of an adapter that has weights is opened. Takes ownership of config_fd, weights_fd (-1: fresh weights)
 * and side (may be NULL), also on failure. Errors as client_model_open, but -EINVAL if the base is not there. */
int client_model_from(struct client_model *out, const struct client_model_name *name, int config_fd, int weights_fd,
                      json_t *side, struct error *err);

/* Sets model->name to the distinctive part of a path: "runs/small/step-100" is step-100, "small/config.json" is small,
 * "models--Qwen--Qwen3-8B/snapshots/COMMIT" is Qwen3-8B. directory: it is one. */
void client_model_call(struct client_model *model, const char *path, bool directory);

/* Safe after a failure, when called twice, and on {.config_fd = -1}. */
void client_model_close(struct client_model *model);

#endif
