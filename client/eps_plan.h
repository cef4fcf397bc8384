/* client/eps_plan.h - the plan of a training run: memory to the byte, the choice that makes it fit, time of a step.
 *
 * Included by eps.h. */
#ifndef CLIENT_EPS_PLAN_H
#define CLIENT_EPS_PLAN_H

#include "eps_options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* exported by libeps.so */

struct eps_error; /* eps.h */

/* Activations that a block keeps for the backward pass: "all", "nothing", or the operations whose results they are, as
 * "attn.c_attn, attention". */
struct eps_kept {
    char names[288];
};

/* Blocks that can keep the same activations. In most models these are all blocks. */
struct eps_blocks {
    char lowest[32];    /* "h.0": the lowest of them */
    uint32_t n, n_kept; /* blocks; the topmost of them, which keep the activations `kept`, the others `kept_below` */
    struct eps_kept kept, kept_below; /* all other activations are recomputed in the backward pass */
};

enum { EPS_BLOCKS = 32 };

/* The planner's choice for a device. */
struct eps_choice {
    uint32_t microbatch;  /* rows */
    uint32_t group_parts; /* parts of a share that pass the model together, one row group after another; 0: all */
    bool host_stash;      /* activation checkpoints are in host memory; else on the device */
    /* Activation checkpoints are of n_stored of the n_inputs layers above the embedding: their inputs stay from forward
     * to backward. The others' are computed again, a segment of layers at a time; or, if `derives`, a residual net's
     * elementwise, of what its convolutions gave. */
    uint32_t n_inputs, n_stored;
    bool derives;
    struct eps_blocks blocks[EPS_BLOCKS];
    uint32_t n_blocks;         /* of this array */
    uint32_t n_weight_buffers; /* units of weights on the device at a time */
    uint32_t n_resident;       /* units that stay on the device */
    bool whole_head;           /* the head's weights are on the device at once; else it runs twice, in pieces */
    bool sparse_singly;  /* sparse weights are put into their places one matrix at a time, each time that it is read */
    const char *replay;  /* "replay on", or that it is off and why: as in eps_plan; a constant string */
    double predicted_ms; /* of a training step, where the profile of each worker was measured (eps_profile); else 0 */
    double predicted_compute_ms,
        predicted_optimizer_ms; /* of the first worker's device, and of the optimizer; likewise */
};

/* The plan of a training run: bytes on both sides, the choice that makes them fit, traffic and time of a step, disk.
 * Needs no daemon, weights, data or device. Reads the options on model, task, batch, optimizer, numbers and memory. If
 * host_mem is unset, it is this machine's free memory, which CPU workers share with the daemon. If it is set, it limits
 * the daemon alone, as in training. Of a task: seq unset is the model's positions, as the longest row is unknown;
 * classes are called LABEL_0, LABEL_1 and so on, and longer names take more bytes of the host, as many as config.json
 * has more. With freeze_until it is the plan of the steps before, and fits, minimum and checkpoint_bytes are of
 * both. */
struct eps_plan_term {
    const char *category; /* as eps_memory_row's */
    uint64_t bytes;
};
struct eps_plan_side {
    uint64_t bytes, limit; /* limit UINT64_MAX: unknown */
    struct eps_plan_term terms[32];
    size_t n_terms; /* terms that are not zero, in the order of eps mem */
};
struct eps_plan {
    bool fits;
    char why[512]; /* if it does not fit: what is needed; else empty */
    struct {
        bool device;                  /* that is too small; else the host, with the devices that are in its memory */
        uint64_t need, have;          /* bytes of it; have: the limit, or what is free */
    } shortage;                       /* if it does not fit */
    struct eps_train_options options; /* resolved */
    const char *ignored; /* a key of config.json that has no effect; a constant string; NULL: there is none */
    uint64_t n_parameters;
    bool fresh; /* the model has no weights: they are drawn */
    struct {
        uint64_t n_parameters;
        uint64_t host_bytes, device_bytes; /* extra bytes of the same choice if all are trained */
    } frozen;
    struct {
        uint64_t host_bytes, device_bytes; /* of the plan after options.freeze_until, if that is set */
    } thawed;
    uint32_t adapter_rank,
        adapter_least_rank; /* the largest and smallest of adapters, if these are trained; 0: they are not */
    uint32_t n_layers, width;
    uint32_t image_height, image_width; /* of each row, in pixels; 0: rows are of tokens */
    uint32_t n_workers;                 /* workers that get a share */
    struct eps_plan_side host, worker;  /* worker: each of them */
    const char *device;                 /* "cpu", "cuda": as requested, unchecked, or found */
    bool allowance;                     /* the worker's term "library" is an allowance: only its device knows */
    bool shared;                        /* the workers' bytes count against host memory and its limit */
    uint64_t minimum;                   /* smallest sufficient device_mem */
    uint64_t checkpoint_bytes;          /* of one checkpoint on disk, at most */
    uint64_t n_checkpoints; /* at most at once in a long run: options.keep, the best, and the one being written */
    /* The choice: microbatch rows at a time, of part_rows in a part. n_resident units stay on the device, n_pulled are
     * all units that are pulled. */
    uint32_t microbatch, part_rows, n_weight_buffers, n_resident, n_pulled;
    uint32_t group_parts, n_groups; /* parts of a worker's share that pass the model together, in so many row groups */
    struct eps_blocks blocks[EPS_BLOCKS]; /* (n_blocks) */
    uint32_t n_blocks;
    uint32_t n_sums, n_slots; /* contributions on the device at a time; slots for their slices in the host's inbox */
    bool host_stash, whole_head, one_pass;
    uint32_t n_inputs, n_stored; /* as in eps_choice, */
    bool derives;                /* and so is this */
    bool sparse_singly; /* sparse weights are put into their places one matrix at a time, each time that it is read */
    bool replays; /* a second buffer of relayed weights, if the host has room, to redo the parts of a lost worker */
    const char *replay;                           /* "replay on", or that it is off and why; a constant string */
    uint32_t head_tile;                           /* maximum tokens whose logits exist at a time */
    uint64_t stash_bytes;                         /* activation checkpoints of a worker's share, on either side; with
                                                   * those that are computed again, at most at a time */
    uint64_t down_bytes, up_bytes, stash_traffic; /* per step and worker */
    double step_ms, compute_ms, pull_ms, push_ms, stash_ms, optimizer_ms, message_ms; /* message_ms: 0 if it overlaps */
    bool measured;   /* times use this machine's profile; else they are assumed: another machine's, or a data sheet's */
    bool overlaps;   /* pulls run while the device computes */
    bool host_binds; /* devices and links need less than step_ms: what the host's updates and copies take */
    double hiding_tokens; /* tokens per worker from which on transfers are hidden behind computation */
};
/* Sets what eps_train would choose by options->data, which it reads whole: the model if none is named, batch, seq,
 * source_seq, parts, steps, labels, and what a plan asks of preferences and of --approximate wta. No other function of
 * a plan reads data. Without data it sets nothing, and refuses options that say how they are read. Errors as eps_train,
 * before it asks for a daemon. */
int eps_plan_data(struct eps_train_options *options, struct eps_error *error);
/* Returns 0 whether the plan fits or not. options.model may also be the name of a published model (eps_published). */
int eps_plan(struct eps_plan *out, const struct eps_train_options *options, struct eps_error *error);
/* Which kernels compute a family's attention on a GPU: in bf16, forward and backward, without cuDNN. */
enum eps_attention_path {
    EPS_PATH_NONE,   /* it has none */
    EPS_PATH_TENSOR, /* those for tensor cores, in all blocks */
    EPS_PATH_PLAIN,  /* others, which are slower */
    EPS_PATH_BOTH    /* by block, or by pass */
};
enum { EPS_FAMILY_MAPS = 32 };
/* A family of models that eps trains, on CPUs and on CUDA GPUs alike. Texts are static, but for `maps`. */
struct eps_family {
    const char *model_type;   /* in config.json */
    const char *architecture; /* the class in transformers, or, of eps's own, the name in config.json */
    const char *classifier;   /* that of its classifier; NULL: it has none */
    unsigned teaches;         /* set of enum eps_tasks: what its rows may teach */
    bool is_own;              /* transformers does not read it */
    /* Of a model of the family's default config; one with other widths of heads or with dropout may take others. */
    enum eps_attention_path attention;
    const char *const *maps; /* of its blocks, that adapters may be beside: the last parts of their names, as --lora
                              * targets takes them. Valid during the callback; NULL ends them */
    const char *const *off;  /* keys of config.json that must be null or false. An asterisk at the end stands for any
                             * ending; NULL ends them; NULL: there are none */
};
/* Tells of each, by name. -ENOMEM. */
int eps_models(void (*on_family)(void *user, const struct eps_family *family), void *user, struct eps_error *error);
/* The smallest sufficient device_mem. */
int eps_plan_minimum(uint64_t *bytes, const struct eps_train_options *options, struct eps_error *error);
/* The largest number of layers like the model's, and of rows in a minibatch, that fits both memories. -ENOSPC: none. */
int eps_plan_depth(uint32_t *n_layers, const struct eps_train_options *options, struct eps_error *error);
int eps_plan_batch(uint32_t *n_rows, const struct eps_train_options *options, struct eps_error *error);

/* ---- What fits: this machine, published models, and a plan of each ---- */

/* A GPU, as NVIDIA's driver tells without making a context. */
struct eps_machine_device {
    char name[64];                   /* "NVIDIA GeForce RTX 4090" */
    uint64_t bytes, available_bytes; /* of its memory; available: no process has it */
    uint64_t default_mem;            /* that a worker takes of it without device_mem */
    enum eps_card card;              /* default: none of those */
    bool computes;                   /* eps trains on it */
    const char *why;                 /* that it does not: a constant phrase; NULL: it does */
};
enum { EPS_MACHINE_DEVICES = 16 };
struct eps_machine {
    uint32_t n_cores;
    uint64_t host_bytes, host_available_bytes; /* of memory, UINT64_MAX: unknown; available: within its control group */
    struct eps_machine_device devices[EPS_MACHINE_DEVICES]; /* of CUDA_VISIBLE_DEVICES, if that is set */
    uint32_t n_devices;
};
void eps_machine(struct eps_machine *out);

/* A published model. */
struct eps_published {
    const char *name;      /* on the Hugging Face hub: "Qwen/Qwen3-8B" */
    const char *date;      /* "2025-04": when the numbers in its config.json were published */
    uint64_t n_parameters; /* as published */
    enum eps_task task;    /* in eps_plan_published */
    const char *config;    /* config.json at huggingface.co/NAME, as far as it shapes the model */
};
/* By index, the smallest first; NULL after the last. eps_plan takes their names as options.model, and needs no file. */
const struct eps_published *eps_published(size_t index);

/* How much of a model is trained: all; adapters of rank 16; the same on a base in nf4. */
enum eps_way { EPS_WAY_WHOLE, EPS_WAY_ADAPTERS, EPS_WAY_ADAPTERS_ON_NF4, EPS_WAYS };
struct eps_plan_row {
    const struct eps_published *published;
    enum eps_way way;
    const struct eps_train_options *options; /* those whose plan it is */
    const struct eps_plan *plan; /* eps_plan's of these options, but `why` names no remedy; NULL: they are refused, */
    const char *refusal;         /* with this sentence */
};
/* Plans each published model in each way, on several threads, and calls on_row for one row after another, each as soon
 * as it is there; what it points to is valid during the call only. options as of eps_plan; model, base_model, lora,
 * base, freeze and freeze_until must be unset: -EDOM. If every row is refused: the first row's code and sentence, and
 * on_row is not called. */
int eps_plan_published(const struct eps_train_options *options,
                       void (*on_row)(void *user, const struct eps_plan_row *row), void *user, struct eps_error *error);

/* What a form of --approximate takes and gives: its plan, beside an exact one in as much device memory. */
struct eps_plan_form {
    const char *approximate;           /* as the option; NULL: exact; static */
    const char *kind;                  /* of its gradients: "exact", "unbiased" or "biased"; static */
    bool is_there;                     /* it fits; else the figures are 0 */
    bool chosen;                       /* the form of eps train --approximate any; none if none fits */
    bool fresh;                        /* the model has no weights: then the choice is exact, or none */
    uint64_t device_bytes, kept_bytes; /* of a worker; activations that blocks keep, of those */
    uint64_t host_bytes;
    bool measured; /* as eps_plan's */
    double step_ms;
    /* An exact step within device_bytes; -1: none fits, and the rest is 0 */
    double exact_step_ms;
    uint64_t exact_kept_bytes, exact_host_bytes;
};
enum { EPS_PLAN_FORMS = 12 };
/* Compares all forms, from exact by unbiased to biased; options.approximate is not read. The choice begins with the
 * exact form and moves on only to one whose step takes at least 5 % less time than the choice so far: what can be kept
 * or remade exactly in about the same time, within the same budget, stays exact. So do gradients of fresh weights.
 * Errors as eps_plan. */
int eps_plan_forms(struct eps_plan_form out[EPS_PLAN_FORMS], const struct eps_train_options *options,
                   struct eps_error *error);
/* The form that options.approximate names (not "any"; NULL: exact); `chosen` is false. Errors as eps_plan. */
int eps_plan_one_form(struct eps_plan_form *out, const struct eps_train_options *options, struct eps_error *error);

/* A narrower form of the optimizer's state, or of what is sent to it: an option by its name here, and its value. */
struct eps_plan_narrower {
    const char *member, *value; /* "moments", "bf16"; static */
    double step_ms;             /* of eps_plan with it */
};
enum { EPS_PLAN_NARROWER = 6 };
/* Where the host binds, what it would take with each narrower form that this run can have, of those that save 1 % or
 * more; else *n is 0. plan: eps_plan's of these options. Errors as eps_plan. */
int eps_plan_narrower(struct eps_plan_narrower out[EPS_PLAN_NARROWER], uint32_t *n, const struct eps_plan *plan,
                      const struct eps_train_options *options, struct eps_error *error);

/* Queues of a simulated step in a long run, with the same profile as eps_plan. */
enum eps_queue {
    EPS_DOWN,      /* copies to the device */
    EPS_COMPUTE,   /* the device */
    EPS_UP,        /* copies to the host */
    EPS_OPTIMIZER, /* the host's threads */
    EPS_QUEUES,
    EPS_MESSAGES = EPS_QUEUES /* between worker and daemon: what queues also wait for */
};
enum { EPS_MOST_PATHS = 16 };
struct eps_timeline {
    bool fits;
    char why[512]; /* as eps_plan's; the figures are then those of the smallest plan */
    bool measured; /* as eps_plan's */
    uint32_t n_workers;
    uint32_t pixels;                      /* as eps_step's */
    double step_ms, tokens_per_s, tflops; /* of all workers: 6 operations per parameter and token */
    enum eps_queue binds;                 /* the busiest queue */
    double busy_ms[EPS_QUEUES];
    /* [a][b]: how long queue a waited for work in queue b, or for messages. A row plus its busy_ms is step_ms. */
    double waited_ms[EPS_QUEUES][EPS_QUEUES + 1];
    struct eps_path {
        /* "products", "convolutions", "convolutions_input" and "convolutions_weights" (their gradients), "attention",
         * "attention_backward", "rest"; constant, as `path` */
        const char *kind;
        /* What computes it. Products: "cublaslt", or "tiles" on the CPU. Convolutions: "cudnn" or "own". Attention:
         * "cudnn", "tensor" (our kernels on tensor cores), "dropout" (these with dropout), "plain". The rest, which
         * moves memory: "memory" */
        const char *path;
        double ms;     /* of busy_ms[EPS_COMPUTE] */
        double tflops; /* while it runs; 0: of the rest */
    } paths[EPS_MOST_PATHS];
    uint32_t n_paths; /* those that take time, in this order */
};
/* As eps_plan. Simulates one worker's queues and the optimizer for all workers. */
int eps_plan_timeline(struct eps_timeline *out, const struct eps_train_options *options, struct eps_error *error);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
