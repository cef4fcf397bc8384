/* client/eps.h - libeps: train a model, generate from it, observe a live daemon.
 *
 * This and what it includes, eps_data.h, eps_options.h, eps_plan.h and eps_texts.h, are the whole public interface; the
 * eps command uses nothing else. A call blocks until it is done and reports through callbacks on the caller's thread.
 * It runs its own event loop and leaves no thread behind.
 * Errors: 0 or -errno, and one sentence in error (which may be NULL); `device_mem` in it is the option of that name.
 * Everywhere:
 *   -EDOM         an option's value is invalid, or options contradict each other
 *   -EINTR        should_stop ended the call; a run was saved as save_every promised
 *   -EIO          a daemon or worker process is gone
 *   others        files, data, model, memory: errno's meaning */
#ifndef CLIENT_EPS_H
#define CLIENT_EPS_H

#include "eps_data.h"
#include "eps_options.h"
#include "eps_plan.h"
#include "eps_texts.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* exported by libeps.so */

struct eps_error {
    char text[512]; /* one sentence, no full stop */
};

enum eps_dtype { EPS_DTYPE_DEFAULT, EPS_DTYPE_FP32, EPS_DTYPE_FP16, EPS_DTYPE_BF16 };

/* One row of `eps mem`: a category of one side's ledger. */
struct eps_memory_row {
    const char *category;
    uint64_t current, peak, planned;
};
/* The operating system's figures for one process: its private memory and the shared memory that it provides. */
struct eps_pages {
    bool known; /* false: all below is 0 */
    uint64_t resident;
    uint64_t locked; /* resident bytes that cannot be swapped out */
    uint64_t huge;   /* resident bytes in huge pages */
    size_t n_nodes;
    uint64_t nodes[8]; /* resident bytes on each NUMA node; the last one sums the eighth and all after it */
};
struct eps_memory {
    uint32_t worker;  /* 0: the host */
    uint32_t pid;     /* of the worker, or the daemon */
    const char *host; /* name of the machine that it runs on */
    const char *device;
    uint64_t budget; /* 0: the host's, without --host-mem */
    uint64_t current, peak;
    uint64_t planned;                  /* 0: no plan */
    const struct eps_memory_row *rows; /* rows that are not all zero */
    size_t n_rows;
    struct eps_pages pages;
};

/* A metric of a task: "accuracy"; with two classes "f1", "matthews", with more "macro_f1"; of a regression "pearson",
 * "spearman". */
struct eps_score {
    const char *name; /* constant; of eps_metrics_read valid during the call only */
    double value;     /* NAN: undefined for this data */
};

/* One step, as in metrics.jsonl. */
struct eps_step {
    uint64_t step;    /* from 1 */
    uint64_t n_steps; /* of the run */
    double time;      /* when it was done, in seconds since 1970; NAN: unknown */
    double loss;      /* nats per token, of a task per row (a regression: squared error), before this step's update */
    double lr;
    uint64_t tokens;              /* so far, without padding */
    double tokens_per_s, step_ms; /* NAN: the step ended while the run had no client (attach) */
    uint32_t pixels;              /* of an image, each of which is a token; 0: rows are no images */
    uint64_t device_peak_bytes, device_budget_bytes, host_bytes;
    double eval_loss;                /* held-out loss; NAN if this step did not evaluate */
    double eval_before;              /* first step: the held-out loss before it; NAN: not measured */
    double grad_norm;                /* of the whole gradient, before clipping; NAN: unknown, or not fenced */
    bool skipped;                    /* a contribution was not finite, so nothing was updated (fenced commit) */
    double loss_scale;               /* the loss's factor in its gradients, in fp16; 0: none */
    double optimizer_ms;             /* that the optimizer's thread worked since the step before; 0: unknown */
    const struct eps_score *scores;  /* (n_scores) of a task or of preferences, on steps that evaluate */
    const struct eps_score *rewards; /* (n_rewards) of the step's preferences, by the names that TRL logs */
    size_t n_scores, n_rewards;
    const char *changed; /* changes before this step: "after step 5: lr 0.01 to 0.005"; NULL: none */
    /* (n_memory) The host, and the device with the most memory. Sampled once a second: absent on most steps. */
    const struct eps_memory *memory;
    size_t n_memory;
};

struct eps_status {
    const char *address; /* the daemon's directory */
    const char *state;   /* "idle", "loading", "training", "detached" (its client died), "ending", ... */
    uint64_t step, n_steps, n_parameters;
    uint32_t job;      /* number of its job, for eps_observer_stop_job; 0: there is none */
    uint32_t n_queued; /* jobs that wait: eps_observer_queue */
    uint32_t n_workers, pid, uid;
    uint32_t n_elsewhere; /* workers of the daemon's other hosts, as its host 0 knows */
    uint32_t n_idle; /* workers without a place in the job, as it has no part or no memory for them; 0 without a job */
    uint32_t n_threads; /* of the optimizer: all cores, or all but two if a worker has a GPU */
    double loss;
    const char *model, *out; /* empty without a job or an output directory */
    const char *precision;   /* "fp32", "bf16", "fp16" */
    const char *commit;      /* "eager", "fenced", "folded" */
    bool waits;              /* the job goes on only once another worker has joined */
    uint64_t n_audits;       /* of --audit: the job's steps of which one part was computed twice, with equal results */
    uint64_t n_redone;       /* results that were computed again, as two of them differed; then workers are named */
    bool saving;
    uint64_t saved_step; /* UINT64_MAX: none */
    const char *trouble; /* why the last save failed; empty if it did not */
};

/* A job that waits for its turn at a daemon. */
struct eps_queued {
    uint32_t job, place; /* its number; 1 is the next */
    uint32_t pid, uid;   /* of its client */
    const char *does;    /* "training", "evaluating", "generating" */
    uint64_t step, n_steps;
    const char *out; /* empty without an output directory */
};

/* Current activity of a live daemon, for eps top. Asking costs the daemon next to nothing. */
enum eps_unit_state {
    EPS_UNIT_WAITING,  /* for its turn */
    EPS_UNIT_RELAYING, /* a worker has its weights, or its contribution is in transfer */
    EPS_UNIT_FOLDING,  /* a contribution is accumulated into the optimizer's state */
    EPS_UNIT_UPDATING, /* its weights are updated */
};
struct eps_unit {
    enum eps_unit_state state;
    uint64_t version; /* steps done, updated or skipped */
};
struct eps_worker {
    uint32_t id, pid;
    const char *host;               /* name of the machine that it runs on, where it has this pid */
    const char *device, *model;     /* "cuda:1", "NVIDIA H200"; for the CPU "cpu" and "" */
    uint64_t budget, current, peak; /* bytes of device memory */
    const char *phase;              /* "idle", "forward", "backward", "evaluating", "generating" */
    const char *unit;               /* current unit, "h.3"; empty while idle */
    uint32_t visit, n_visits;       /* position of that unit in the model, 0 at the bottom */
    uint32_t part, n_parts;         /* current part of the minibatch; number of its parts */
    uint32_t microbatch;            /* rows; 0: not reported yet */
    uint64_t down_bytes, up_bytes;  /* weights to it and contributions from it since it attached */
    const char *left_out;           /* why it takes no part in the job; empty: it may */
};
struct eps_recent {
    uint64_t step;       /* last step with a known loss */
    uint64_t tokens;     /* of the job so far */
    double tokens_per_s; /* over the last steps; NAN before the second */
    double step_ms;
    double lr;           /* of the last of these steps; NAN before the first */
    const float *losses; /* (n_losses) of the last steps, nats per token, oldest first */
    size_t n_losses;
};

struct eps_train_events {
    /* Before the first step. */
    void (*on_start)(void *user, const struct eps_train_options *resolved, uint64_t n_parameters);
    /* After on_start: bytes of a checkpoint, at most; how many there are at most at once, the one being written
     * included; bytes free where they are saved, UINT64_MAX: unknown. Not with no_save. */
    void (*on_disk)(void *user, uint64_t checkpoint_bytes, uint64_t n_most, uint64_t free_bytes);
    /* After on_start: the choice for the first worker, and the plans of the host and of the device with the most
     * memory, in `planned` of each and of its rows. */
    void (*on_plan)(void *user, const struct eps_choice *choice, const struct eps_memory *host,
                    const struct eps_memory *device);
    void (*on_step)(void *user, const struct eps_step *step);
    /* Progress of an evaluation: n_tokens of n_all. */
    void (*on_evaluating)(void *user, uint64_t n_tokens, uint64_t n_all);
    /* Held-out loss after `step` updates; tokens: of a task its rows. */
    void (*on_evaluated)(void *user, uint64_t step, double loss, uint64_t tokens);
    /* Scores of a task, after on_evaluated. */
    void (*on_scored)(void *user, const struct eps_score *scores, size_t n);
    /* At the end: the host, then each worker. */
    void (*on_memory)(void *user, const struct eps_memory *side);
    /* With sample_every, after on_step: what the model writes after a prompt, n bytes of UTF-8. */
    void (*on_sample)(void *user, uint64_t step, const char *prompt, const char *text, size_t n);
    void (*on_saved)(void *user, uint64_t step, const char *path);
    /* A checkpoint or metrics.jsonl could not be written. Training goes on, and both are retried. eps_train returns an
     * error if the last checkpoint, or a line, could not be written in the end. */
    void (*on_save_failed)(void *user, uint64_t step, const char *why);
    /* One sentence for the user that no option requests. */
    void (*on_note)(void *user, const char *sentence);
    /* Asked several times a second. 1 ends the run after a save (if save_every is not 0), 2 ends it at once: -EINTR. */
    int (*should_stop)(void *user);
};

/* Trains; writes metrics.jsonl, step-N/ and latest into the run directory. Without `connect`, a daemon and workers
 * start and end with the call. A run that could not save its first checkpoint is refused before its first step:
 * -ENOSPC, -EDQUOT, -EFBIG, -EROFS, -EACCES. If the disk is too full for the last checkpoint, waits up to 10 minutes
 * for room; a stop ends the wait. 20 skipped steps in a row (fenced commit) end the run. Each callback may be NULL. */
int eps_train(const struct eps_train_options *options, const struct eps_train_events *events, void *user,
              struct eps_error *error);

/* Measured performance of this machine, from which eps_plan and the daemon predict times. */
struct eps_profile {
    char path[4096];              /* of the file written */
    uint32_t rows[4];             /* of matrix products */
    double matmul_flops[2][4];    /* operations per second of matrix products with these rows, in fp32 and in bf16 */
    uint32_t narrow[3];           /* on a GPU, whose products above are 4,096 wide, the widths of narrower ones */
    double narrow_flops[3][2][4]; /* and their operations per second; 0 on others */
    /* Convolutions of images, and the gradients of their inputs and of their weights; by our own kernels, and by cuDNN,
     * 0 where that is missing; in fp32 and in bf16 */
    double conv2d_flops[3][2][2];
    /* Causal attention: forward and backward; without tensor cores; on a GPU (elsewhere 0) also with them, with them
     * and with dropout, and by cuDNN, 0 where that is missing; in fp32 and in bf16 */
    double attention_flops[2][4][2];
    uint32_t lengths[3], heads[3]; /* tokens of the rows, and values of the heads, of the shapes below */
    /* The same: forward and backward; by the four; in fp32 and in bf16; keys of each head, and of several; heads; rows.
     * 0: not measured */
    double attention_by_shape[2][4][2][2][3][3];
    double link_bytes_per_s;        /* from host to device; on a GPU both ways at once, each */
    double memory_bytes_per_s;      /* of the device, read and written */
    double norm_bytes_per_s[2];     /* the same in norms, forward and backward */
    double update_parameters_per_s; /* by the optimizer on the host */
    double call_s;                  /* seconds of one launch on a CUDA device; 0 on others */
    double message_s; /* seconds of a message between worker and daemon: half of a round trip between threads */
};
struct eps_profile_options {
    const char *device;   /* "cpu", "cuda", "cuda:1"; NULL, "auto": the CPU */
    const char *path;     /* NULL: the user's cache, where eps_plan and eps-worker find it */
    const char *programs; /* as in eps_train_options */
};
struct eps_profile_options eps_profile_defaults(void); /* all options unset */
/* Takes some seconds, on a GPU less than a minute. */
int eps_profile(struct eps_profile *out, const struct eps_profile_options *options, struct eps_error *error);

/* Mean loss of a model over the windows of files. If it predicts masked tokens: over those, which are the same at each
 * call. If it is a classifier: over the files' rows. Start from eps_eval_defaults(), and set data. */
struct eps_eval_options {
    /* A directory; a run directory means its latest checkpoint. NULL: a snapshot of the model that a daemon trains; its
     * training goes on. */
    const char *model;
    const char *base_model;  /* of an adapter, as in eps_train_options */
    const char *const *data; /* (n_data), as in eps_train_options */
    size_t n_data;
    /* With model: as in eps_train_options. Without: the daemon that trains it; NULL: the caller's only daemon. */
    const char *connect;
    double wait; /* as in eps_train_options; without model, for the daemon and its run */
    const char *programs;
    uint32_t batch, seq; /* 0: chosen */
    uint32_t source_seq; /* as in eps_train_options */
    /* Tokens from one sequence's begin to the next one's; 0: seq. With fewer, sequences overlap, and a token is
     * predicted from at least seq - stride tokens before it: what transformers calls the perplexity of fixed-length
     * models, with a max_length of seq + 1 and this stride. Not for masked tokens. */
    uint32_t stride;
    double mask_fraction;         /* as in eps_train_options; for a model that predicts the next token also 0 */
    uint64_t seed;                /* of the masks; a run's held-out masks have the run's */
    uint64_t eval_tokens;         /* maximum, spread evenly over the data; 0: all */
    enum eps_separator separator; /* as in eps_train_options */
    const char *chat_template;    /* of conversations, as in eps_train_options; unset: as the model was trained */
    enum eps_train_on train_on;   /* as in eps_train_options */
    enum eps_split split_special_tokens; /* as chat_template */
    enum eps_long long_rows;             /* as train_on */
    bool pack;                           /* as train_on; the loss is the same, to rounding */
    const char *columns;                 /* of a classifier's data, as in eps_train_options */
    const char *image;                   /* of images, as in eps_train_options: "224x224,shorter=256" */
    const char *predictions; /* the file that on_prediction or on_hypothesis writes: refused if it is one of data; NULL:
                                   * none */
    /* Measures BLEU instead of a loss (NAN; *tokens are those written): of the targets that an encoder-decoder writes
     * of the data's sources, by a search as in eps_generate_options (n_beams 0: 4), against the data's targets. */
    bool bleu;
    uint32_t n_beams, n_tokens;
    double length_penalty;
    enum eps_task task;  /* resolved: the model's */
    const char *device;  /* as in eps_train_options; not together with both model and connect */
    uint64_t device_mem; /* the same */
};
struct eps_eval_options eps_eval_defaults(void); /* all options unset */

/* What a classifier predicts of a row. */
struct eps_prediction {
    uint64_t row;              /* from 0, over all files */
    uint32_t likeliest;        /* class; of a regression 0 */
    double number;             /* of a regression; else NAN */
    uint32_t n_classes;        /* 0: regression */
    const char *const *names;  /* (n_classes) */
    const double *probability; /* (n_classes) */
};

/* BLEU as sacrebleu 2 computes it by default: Post, arXiv:1804.08771. */
struct eps_bleu {
    double score, precisions[4]; /* 0..100 */
    double brevity_penalty;
    uint64_t n_hypothesis_tokens, n_reference_tokens; /* as its tokenizer divides texts */
    uint64_t n_segments;
    const char *signature; /* as sacrebleu's, without its version; constant */
};

struct eps_eval_events {
    int (*on_hypothesis)(void *user, uint64_t row, const char *text,
                         size_t n);                                       /* not 0 ends the call with this error */
    void (*on_bleu)(void *user, const struct eps_bleu *bleu);             /* at the end */
    void (*on_evaluating)(void *user, uint64_t n_tokens, uint64_t n_all); /* progress, after each minibatch */
    int (*should_stop)(void *user);                    /* asked several times a second; not 0: -EINTR */
    void (*on_note)(void *user, const char *sentence); /* reports what it waits for; what of the data is not read */
    /* Resolved options; mask_fraction is NAN unless masked tokens are predicted. */
    void (*on_start)(void *user, const struct eps_eval_options *options);
    /* Metrics of a classifier, and each row in its order, at the end. With on_prediction rows need no labels; if any
     * lacks one there is no loss (NAN, tokens 0) and no metric. Not 0 ends the call with this error. */
    void (*on_scored)(void *user, const struct eps_score *scores, size_t n);
    int (*on_prediction)(void *user, const struct eps_prediction *prediction);
    /* The rows of each class of a classifier of images, and how many of them are predicted; after on_scored. */
    void (*on_class)(void *user, const char *name, uint64_t n_rows, uint64_t n_right);
};
/* events may be NULL, and so may each callback. *tokens: those that the loss is the mean of; of a classifier the
 * rows. */
int eps_eval(double *loss, uint64_t *tokens, const struct eps_eval_options *options,
             const struct eps_eval_events *events, void *user, struct eps_error *error);

/* Writes a model for other programs: config.json, tokenizer, generation settings, and weights, split into several files
 * above 4 GiB; or adapters alone, for PEFT. out must not hold a model. fp16 and bf16 are rounded to nearest, ties to
 * even; a number beyond their range is refused. written may be NULL. */
struct eps_export_options {
    const char *model, *connect; /* as in eps_eval_options */
    const char *base_model;      /* of an adapter, as in eps_train_options; or see text_only */
    const char *out;
    /* Adds a model's adapters to its weights, in fp32. Otherwise they are written alone, as PEFT has them. Must not be
     * set for models without adapters. */
    bool merge;
    /* Leaves out what was not trained: the rest of a wrapper, as a vision tower, whose text model is then a model of
     * its own; heads that draft tokens; poolers. Otherwise it is taken from the model that the training began from, as
     * it is there, and base_model says where that is, if it has moved. */
    bool text_only;
    /* > 0: the mean of the weights of so many checkpoints, the newest of a run, whose directory is `model`. In double
     * precision, rounded once. Adapters only with merge. */
    uint32_t average;
    /* Default: the type in which the model came, also after training; fp32 if it had several, and of adapters alone. */
    enum eps_dtype dtype;
    void (*on_note)(void *user, const char *sentence); /* reports what it waits for; NULL: nobody hears */
    void *user;
};
struct eps_export_options eps_export_defaults(void); /* all options unset; out must be set */
struct eps_exported {
    enum eps_dtype dtype; /* of the weights in out */
    const char *loader; /* the class of transformers that loads it: "AutoModelForCausalLM"; constant; NULL: none does */
    /* What alone was exported, "text model of Gemma3ForConditionalGeneration (without vision)"; or empty. */
    char part[96];
    bool adapter; /* adapters alone: loader is PEFT's class */
    /* Tensors that were not trained: "437 tensors (1.2 GiB) are not trained: model.visual.*"; or empty. */
    char passed[300];
};
int eps_export(struct eps_exported *written, const struct eps_export_options *options, struct eps_error *error);

/* Writes a run's checkpoint as that of another model, of which training goes on: eps_train with resume = out. It has
 * more blocks, or other blocks, or feed-forward layers of other widths; step, rates, data and what stays of the moments
 * are the run's, which is only read. A checkpoint is there whole or not at all. */
struct eps_reshape_options {
    const char *run;     /* a run's directory, whose newest whole checkpoint is taken, or a checkpoint in it */
    const char *out;     /* must not hold a run */
    const char *grow;    /* "4" or "4,moments=zero": so many of the topmost blocks once more, above them */
    const char *replace; /* "3=512,4=llama.json" or "3=512,moments=zero"; one of these two must be set */
    int (*should_stop)(void *user);                    /* not 0: -EINTR; may be NULL */
    void (*on_note)(void *user, const char *sentence); /* may be NULL */
    void *user;
};
int eps_reshape(const struct eps_reshape_options *options, struct eps_error *error);

/* Approximate gradients of a run beside the exact one, at a checkpoint or at all checkpoints of a run directory; so
 * every N steps, with save_every N and keep 0. All are those of the run's next step, over the same minibatch; the run
 * itself is only read. Each is a step of a run of its own, whose files are in the directory for as long: two
 * checkpoints, and with several draws 8 bytes a trained element.
 *
 * The distance of one draw has noise. With n draws g_i of the exact g, and m their mean: noise^2 is sum |g_i - m|^2 /
 * (n - 1), and |m - g|^2 has the mean |bias|^2 + noise^2 / n. So a form shows bias where `off` is well above noise /
 * sqrt(n). */
struct eps_bias_layer {
    char name[128]; /* "transformer.h.0"; "other": all tensors outside of blocks; "all" */
    uint64_t n;     /* trained elements */
    double cosine;  /* of the approximate gradient, of several draws their mean, with the exact one; NAN: one is 0 */
    double norm, exact; /* Euclidean norms of both */
    double noise;       /* of a draw; NAN: there is one */
    double off;         /* |m - g| */
};
struct eps_bias {
    uint64_t step;
    const char *approximate; /* as the option */
    uint32_t draws;
    const struct eps_bias_layer
        *layers; /* (n_layers) from the input up, then "other", which may be empty, then "all" */
    size_t n_layers;
};
struct eps_bias_options {
    const char *run;         /* a run directory, or a step-N in it */
    const char *approximate; /* the form, not "any"; NULL: the run's */
    uint32_t draws;          /* at least 1; above it the form must draw: wta, attention or coded */
    const char *base_model;  /* of an adapter, as in eps_train_options */
    const char *device;      /* as in eps_train_options on resume */
    uint64_t device_mem;     /* as in eps_train_options on resume */
    const char *programs;    /* as in eps_train_options */
};
struct eps_bias_options eps_bias_defaults(void); /* one draw, all else unset; run must be set */
struct eps_bias_events {
    void (*on_bias)(void *user, const struct eps_bias *bias); /* of each checkpoint, from the oldest */
    int (*should_stop)(void *user);                           /* asked several times a second; not 0: -EINTR */
};
/* -EINVAL: neither the run nor the options have a form, or it draws nothing where several draws are asked for;
 * gradients are those of preferences, whose reference are the run's first weights; the run's data came from standard
 * input. -ENOENT: no checkpoint. Otherwise as eps_train. */
int eps_bias(const struct eps_bias_options *options, const struct eps_bias_events *events, void *user,
             struct eps_error *error);

/* The filters of a net's first convolution, which reads the image itself. */
struct eps_filters {
    uint32_t n, height, width, channels; /* > 0 */
    float *values;                       /* (n, height, width, channels) */
};
/* Reads the filters of a run's latest checkpoint, of a step-N, or of a model's directory. Owned: eps_filters_free.
 * -EINVAL: the model is no net of images, or has no weights; otherwise as eps_eval opens a model. */
int eps_filters(struct eps_filters *out, const char *path, struct eps_error *error);
void eps_filters_free(struct eps_filters *filters); /* safe on a zeroed one */

/* Verifies every byte of a checkpoint, or of all checkpoints in a run directory, against their checksums. Calls
 * on_checked for each whose content could be read. -EINVAL if one is damaged, -ENOENT if there is none, -errno if the
 * disk does not give one; a training run resumes from the newest that is intact. A checkpoint whose texts were edited
 * (tokenizer, chat template, generation settings) is intact. */
struct eps_verified { /* valid during the call only */
    const char *path;
    uint64_t step;
    const char *why;    /* it is damaged; NULL: it is intact */
    const char *edited; /* "chat_template.jinja is not as it was saved"; NULL: nothing is */
};
int eps_verify(const char *directory, void (*on_checked)(void *user, const struct eps_verified *checked), void *user,
               struct eps_error *error);

/* Reads the steps in a run's metrics.jsonl, in order; the run may still be active. Values absent from a line are NAN or
 * 0; n_steps and device_budget_bytes always are. Invalid lines are skipped and counted in *n_bad (may be NULL).
 * on_step's argument is valid during the call only. -ENOENT, -errno. */
int eps_metrics_read(const char *run, void (*on_step)(void *user, const struct eps_step *step), void *user,
                     uint64_t *n_bad, struct eps_error *error);

/* The presets of --model by index; NULL after the last. */
struct eps_preset {
    const char *name;
    uint32_t n_layers, n_heads, width, n_positions, vocabulary;
    uint64_t n_parameters;
    bool learns; /* learns a tokenizer from its training text */
};
const struct eps_preset *eps_preset(size_t index);

/* Queries to a live daemon. address is a name, a daemon's directory, or the output directory of its job. NULL: the
 * caller's only daemon (-ENOENT: there is none; -ENOTUNIQ: there are several, and the sentence lists them). */
int eps_status(const char *address, void (*on_status)(void *user, const struct eps_status *status), void *user,
               struct eps_error *error);
/* Calls on_memory for the host, then for each worker. */
int eps_mem(const char *address, void (*on_memory)(void *user, const struct eps_memory *side), void *user,
            struct eps_error *error);
/* Directories of the caller's daemons, including those of running eps_train calls. */
int eps_daemons(void (*on_daemon)(void *user, const char *address), void *user, struct eps_error *error);
/* Saves a checkpoint of the daemon's job into its output directory while training goes on. Returns when done. */
int eps_save(const char *address, uint64_t *step, struct eps_error *error);
/* Ends the daemon and its job, which first saves what it promised. Returns when the daemon is gone. */
int eps_stop(const char *address, struct eps_error *error);

enum { EPS_UP_WORKERS = 64 }; /* most workers of one daemon that eps_up starts */

/* Start from eps_up_defaults(), and set name. */
struct eps_up_options {
    const char *name;   /* the daemon's, or its directory: epsd --listen */
    uint32_t workers;   /* on this host; with several, each takes a device of its own, or CPU workers share the cores */
    const char *device; /* "auto", "cpu", "cuda", "cuda:1", "cuda:GPU-8f2c", "cuda:0000:3b:00.0"; NULL: auto */
    uint64_t device_mem;  /* bytes for each worker; 0: they choose */
    const char *programs; /* as in eps_train_options */
    const char *const
        *daemon_options; /* (n_daemon_options) further arguments of epsd: "--mpi", "--host-mem", "64GiB" */
    size_t n_daemon_options;
};
struct eps_up_events {
    /* Once: the daemon listens at this directory, and all its workers have attached. */
    void (*on_up)(void *user, const char *address, uint32_t n_workers);
    void (*on_note)(void *user, const char *sentence); /* a worker was lost */
    /* Asked several times a second. 1: the daemon saves what its run promised, and ends; 2: it ends at once. */
    int (*should_stop)(void *user);
};
struct eps_up_options eps_up_defaults(void);

/* Starts a shared daemon and its workers, and returns when the daemon has ended, and its workers with it: by eps_stop,
 * a signal, or should_stop. A worker that is lost is started again, after a pause; one that was drained is not. All of
 * them end if the caller is killed. Their lines go to the caller's standard error. Events may be NULL, and each of its
 * callbacks. -EDOM: epsd or eps-worker refused its options; -EIO: the daemon failed, or, where the caller ignores
 * SIGCHLD or waits for any child, has ended in whatever way. */
int eps_up(const struct eps_up_options *options, const struct eps_up_events *events, void *user,
           struct eps_error *error);

/* Asks as eps_status and eps_mem do, and more, over one open session. should_stop (may be NULL) is asked several times
 * a second while a call waits; not 0 ends that call with -EINTR. Once the daemon is gone, calls return -EIO. */
struct eps_observer;
int eps_observer_open(struct eps_observer **out, const char *address, int (*should_stop)(void *user), void *user,
                      struct eps_error *error);
void eps_observer_close(struct eps_observer *observer);                /* NULL is safe */
const char *eps_observer_address(const struct eps_observer *observer); /* the daemon's directory */
/* *out is valid until the next call. */
int eps_observer_status(struct eps_observer *observer, struct eps_status *out, struct eps_error *error);
/* pages: also asks the operating system, at most once a second for all observers; otherwise pages are unknown. */
int eps_observer_mem(struct eps_observer *observer, bool pages,
                     void (*on_memory)(void *user, const struct eps_memory *side), void *user, struct eps_error *error);
/* *units (n) is valid until the next call; empty without a job. */
int eps_observer_units(struct eps_observer *observer, const struct eps_unit **units, size_t *n,
                       struct eps_error *error);
int eps_observer_workers(struct eps_observer *observer, void (*on_worker)(void *user, const struct eps_worker *worker),
                         void *user, struct eps_error *error);
/* losses are valid until the next call. */
int eps_observer_recent(struct eps_observer *observer, struct eps_recent *out, struct eps_error *error);
/* on_note hears what eps_observer_save, eps_observer_wait and eps_observer_wait_job wait for, if that may take long:
 * "step 12 waits for a worker: ...". NULL: nobody does. */
void eps_observer_notes(struct eps_observer *observer, void (*on_note)(void *user, const char *sentence), void *user);
int eps_observer_save(struct eps_observer *observer, uint64_t *step, struct eps_error *error);
/* Both return 0 once the daemon has received the request, or if it has ended already. The run saves first what it
 * promised. The same request again, by this observer, ends it at once; another caller's joins the first.
 * eps_observer_stop_job ends one job, running or waiting. -ENOENT: there is no such job; -EPERM: it is another user's;
 * -EBUSY: it is detached, and cannot be saved. */
int eps_observer_stop(struct eps_observer *observer, struct eps_error *error);
int eps_observer_stop_job(struct eps_observer *observer, uint32_t job, struct eps_error *error);
/* Waits until the job is gone, or its daemon. */
int eps_observer_wait_job(struct eps_observer *observer, uint32_t job, struct eps_error *error);
/* Tells a worker (eps_worker.id) to end once its share of the step is done. Returns at once; -EPERM, -ENOENT. */
int eps_observer_drain(struct eps_observer *observer, uint32_t worker, struct eps_error *error);
/* Waits until a worker has left: until the daemon no longer lists it, or has stopped. -EIO: the connection was lost
 * otherwise, as to a daemon that was killed, whose workers wait for the next one. */
int eps_observer_wait_worker(struct eps_observer *observer, uint32_t worker, struct eps_error *error);
/* In order of their places. on_queued's argument is valid during the call only. */
int eps_observer_queue(struct eps_observer *observer, void (*on_queued)(void *user, const struct eps_queued *queued),
                       void *user, struct eps_error *error);
/* Waits ms milliseconds; UINT64_MAX: until the daemon is gone. */
int eps_observer_wait(struct eps_observer *observer, uint64_t ms, struct eps_error *error);

/* The name in names (n_names) closest to a misspelt word, for "did you mean": one letter differs, of eight or more
 * letters two; or one is a prefix of the other. A name with a dash and more behind it is another one: --model-revision
 * is not --model. NULL: none. */
const char *eps_nearest(const char *word, const char *const *names, size_t n_names);

/* What an option of another program (TRL, axolotl, LLaMA-Factory, Unsloth, llama.cpp and others) is called here, or why
 * there is none, as a clause: "it is called `batch` here". word: as typed, "--batch_size=8". names (n_names): those of
 * the options that there are, "--batch". False: nothing is known of it. */
enum { EPS_FOREIGN_TEXT = 400 };
bool eps_foreign(char out[EPS_FOREIGN_TEXT], const char *word, const char *const *names, size_t n_names);

/* Quotes a word for a shell with single quotes, if necessary. Returns out; or `word` if it needs no quotes or cap bytes
 * are too few. */
const char *eps_quote(char *out, size_t cap, const char *word);

/* Opens a file that the user named for output, made or emptied. A link in its place is followed only if it is root's or
 * the user's own, as /dev/stdout. Returns the descriptor, owned; or -errno with a sentence. */
int eps_open_output(const char *path, struct eps_error *error);

/* Parses "2GiB", "512M", "128MB" (powers of 1000), "100000" as bytes. -EDOM with a sentence that names the option. */
int eps_parse_bytes(uint64_t *out, const char *option, const char *text, struct eps_error *error);
/* The line of a program's --help about these: "BYTES: as in 1.5GiB, ...". */
const char *eps_bytes_help(void);
/* As the option; of EPS_COMMIT_DEFAULT "eager". Static. */
const char *eps_commit_name(enum eps_commit commit);
/* The option's --approximate leaves the form to the planner. */
bool eps_approximate_is_any(const char *approximate);
/* What an option's --approximate does to a run, in words; static. */
const char *eps_approximate_text(const char *approximate);
/* Formats as "1.4 GiB"; returns out. */
const char *eps_format_bytes(char out[24], uint64_t bytes);
/* Formats a finite number with the fewest digits that read back, in the form of Python's repr: "19.99", "5.0", "1e-07";
 * returns out. */
const char *eps_format_real(char out[32], double number);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
