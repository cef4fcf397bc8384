/* client/eps.h - libeps: train a model, let it speak, look at a live one.
 *
 * The whole public interface; the eps command is its first customer and uses nothing else. Calls block until done and
 * report through callbacks, on the caller's thread; a call runs its own event loop and leaves no thread behind.
 * Errors: 0 or -errno, and one sentence in error (which may be NULL). Everywhere:
 *   -EDOM         an option's value is at fault, or options that contradict each other
 *   -EINTR        should_stop said so; the run was saved as save_every promised
 *   -EIO          a process on the other side is gone
 *   others        files, data, model, memory: what errno means for them */
#ifndef CLIENT_EPS_H
#define CLIENT_EPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* what libeps.so shows */

struct eps_error {
    char text[512]; /* one sentence, no full stop */
};

enum eps_schedule { EPS_SCHEDULE_DEFAULT, EPS_SCHEDULE_COSINE, EPS_SCHEDULE_LINEAR, EPS_SCHEDULE_CONSTANT };
enum eps_optimizer_kind { EPS_OPTIMIZER_DEFAULT, EPS_ADAMA, EPS_ADAMW };
enum eps_number { EPS_NUMBER_DEFAULT, EPS_FP32, EPS_BF16 };
enum eps_commit { EPS_COMMIT_DEFAULT, EPS_EAGER, EPS_FENCED };
enum eps_separator { EPS_SEPARATOR_DEFAULT, EPS_SEPARATOR_NONE, EPS_SEPARATOR_EOS };
enum eps_order { EPS_ORDER_DEFAULT, EPS_SHUFFLED, EPS_SEQUENTIAL };

/* Start from eps_train_defaults(), which leaves everything to be chosen; data has no default. */
struct eps_train_options {
    const char *model;   /* config.json, a directory with config.json and *.safetensors, a preset; NULL: a preset that
                          fits the data and the machine, trained as suits it. A file of a preset's name is first */
    char model_note[96]; /* resolved: what was chosen of the model and why, "chosen for 1.2 M tokens"; or empty */
    /* (n_data) files: text, .jsonl, .bin, .npy, each also .gz and .zst; directories of them; patterns as of glob(7); "-",
     * standard input. See client/data/data.h */
    const char *const *data;
    size_t n_data;
    const char *eval_data; /* NULL: the last 1 % of the data is held out */
    const char *out;       /* run directory; NULL: runs/MODEL-TIME, or that of `resume` */
    const char *resume; /* a run directory (its newest checkpoint) or a step-N of one: what was stored there stands for
                              everything that is left to choose here; a differing value is refused, but for steps,
                              epochs, device, device_mem, host_mem, require_pinned, workers, connect, save_every, keep,
                              eval_every, eval_tokens, patience, microbatch, and out; data may lie elsewhere if its
                              content is the same */
    const char
        *change; /* of a resumed run: names of options, "lr,batch", whose given values replace the stored ones from
                              here on: batch, lr, min-lr, schedule, warmup, weight-decay, clip-norm, clip-update.
                              Moments are kept, and the data go on with the next window. NULL: none */
    const char *connect;  /* address of a daemon, which may be 10 s in coming, and its first worker as long; NULL: a
                            private daemon and worker, as processes of their own */
    const char *programs; /* directory of epsd and eps-worker; NULL: where the calling program is, then
                             where libeps was installed, then PATH */
    uint64_t steps;       /* 0: `epochs` of the data, rounded up */
    double epochs;        /* NAN: 1; without a model as many, up to 10, as make 1500 steps */
    uint32_t batch, seq, microbatch, parts, workers;        /* 0: chosen */
    double lr, min_lr, weight_decay, beta1, beta2, epsilon; /* NAN: chosen */
    enum eps_schedule schedule;
    uint64_t warmup; /* steps; UINT64_MAX: 3 % */
    enum eps_optimizer_kind optimizer;
    enum eps_number precision; /* of weights and all that is computed on a device; sums, statistics and losses are fp32.
                                  bf16 where all workers have CUDA devices, else fp32 */
    enum eps_number moments;   /* of the optimizer, in host memory: 4 or 2 bytes each. fp32 */
    enum eps_number grad_dtype; /* of contributions on their way to the host; summed in fp32. fp32 */
    enum eps_commit commit;     /* fenced: no unit is updated before all contributions of the step are known to be
                                   finite, for 4 bytes of host memory a parameter; with several parts adamw alone. Fenced
                                   with clip_norm, else eager */
    double clip_norm;           /* the whole gradient is scaled down to this norm; NAN: not */
    double clip_update; /* each tensor's update is scaled down to this root mean square, before the rate; NAN: not */
    enum eps_order order;
    enum eps_separator
        separator;        /* between files of text, and between texts of .jsonl: EPS_SEPARATOR_EOS, the tokenizer's
                                     end token, where it has one. EPS_SEPARATOR_NONE: nothing between files, and a new
                                     line after a text of .jsonl */
    uint64_t seed;        /* below 2^63; UINT64_MAX: 0 */
    uint64_t eval_every;  /* steps between held-out losses; there is one before the first step too, and after the last
                            in any case. 0: only then. Where checkpoints are saved, one is at each that is the best so
                            far, and `best` names it */
    uint64_t eval_tokens; /* that each of them takes of the held-out data, spread over it; 0: all; UINT64_MAX: 64 Ki */
    uint32_t
        patience; /* so many evaluations without a better one than before end the run, as its last step would; 0: none
                          do */
    uint64_t save_every; /* steps between checkpoints, 0: only at the end, and not when interrupted. UINT64_MAX: a tenth
                            of the run, rounded up */
    uint32_t keep; /* checkpoints that stand at a time, the newest, and the best beside them; UINT32_MAX: 2. 0: all */
    bool deterministic;
    const char *device;  /* of private workers: "auto", "cpu", "cuda" (several workers: each the next), "cuda:1"; NULL:
                            auto, CUDA if there is one. Resolved: "cpu", "cuda", or "cpu and cuda" of a daemon's */
    uint64_t device_mem; /* bytes for each private worker; 0: chosen from the memory that is free */
    uint64_t host_mem;   /* bytes that the job may take at the daemon; 0: what is free there */
    bool require_pinned; /* host memory that cannot be locked is a reason to refuse */
    const char *trace;   /* a new file for what every thread did when, to look at in chrome://tracing or
                            ui.perfetto.dev; NULL: none. Not stored. On a full disk it ends, with a note */
};

/* A line of `eps mem`: one side's ledger. */
struct eps_memory_row {
    const char *category;
    uint64_t current, peak, planned;
};
/* What the system says of the memory of one side's process: of its own, and of the shared memory that it gives out. */
struct eps_pages {
    bool known; /* else all below is 0 */
    uint64_t resident;
    uint64_t locked; /* of it, cannot be swapped out */
    uint64_t huge;   /* of it, in huge pages */
    size_t n_nodes;
    uint64_t nodes[8]; /* of it, on each NUMA node; from the eighth on together */
};
struct eps_memory {
    uint32_t worker; /* 0: the host */
    const char *device;
    uint64_t budget; /* 0 for the host */
    uint64_t current, peak;
    uint64_t planned;                  /* 0: nothing is */
    const struct eps_memory_row *rows; /* those that are not zero */
    size_t n_rows;
    struct eps_pages pages;
};

/* One step as written to metrics.jsonl. */
struct eps_step {
    uint64_t step;    /* from 1 */
    uint64_t n_steps; /* of the run */
    double loss;      /* nats per token, before this step's update */
    double lr;
    uint64_t tokens; /* so far */
    double tokens_per_s, step_ms;
    uint64_t device_peak_bytes, device_budget_bytes, host_bytes;
    double eval_loss;    /* NAN unless this step evaluated */
    double eval_before;  /* of the first step: the held-out loss before it; NAN: there was none */
    double grad_norm;    /* of the whole gradient, before clipping; NAN: not known, as with eager commit */
    bool skipped;        /* it left no trace, as a contribution was not finite (fenced commit) */
    const char *changed; /* what `change` changed before it: "after step 5: lr 0.01 to 0.005"; NULL: nothing */
    /* (n_memory) the host's, and that of the device that has most; asked once a second, so none on most steps. */
    const struct eps_memory *memory;
    size_t n_memory;
};

struct eps_status {
    const char *address; /* its directory */
    const char *state;   /* "idle", "loading", "training", ... */
    uint64_t step, n_steps, n_parameters;
    uint32_t n_workers, pid, uid;
    uint32_t n_threads; /* of the optimizer: all cores, or all but two where a worker has a device of its own */
    double loss;
    const char *model, *out; /* empty without a job, or output directory */
    const char *precision;   /* "fp32", "bf16" */
    const char *commit;      /* "eager", "fenced" */
    bool saving;
    uint64_t saved_step; /* UINT64_MAX: none */
    const char *trouble; /* why the last save failed; empty if it did not */
};

/* What a live daemon does right now, for eps top. Asking costs it next to nothing. */
enum eps_unit_state {
    EPS_UNIT_WAITING,  /* for its turn */
    EPS_UNIT_RELAYING, /* its weights are with a worker, or its contribution is on the way back */
    EPS_UNIT_FOLDING,  /* a contribution goes into the optimizer's state */
    EPS_UNIT_UPDATING, /* its weights move */
};
struct eps_unit {
    enum eps_unit_state state;
    uint64_t version; /* updates that it has had, or that were passed over */
};
struct eps_worker {
    uint32_t id, pid;
    const char *device, *model;     /* "cuda:1", "NVIDIA H200"; of the CPU "cpu" and nothing */
    uint64_t budget, current, peak; /* bytes of its memory */
    const char *phase;              /* "resting", "forward", "backward", "evaluating", "generating" */
    const char *unit;               /* "h.3": what it is at; empty while it rests */
    uint32_t visit, n_visits;       /* that unit's place in the model, 0 at the bottom */
    uint32_t part, n_parts;         /* of the minibatch; how many it has */
    uint32_t microbatch;            /* rows at a time; 0: not said yet */
    uint64_t down_bytes, up_bytes;  /* weights to it, contributions from it, since it attached */
};
struct eps_recent {
    uint64_t step;       /* the last whose loss is known */
    uint64_t tokens;     /* of the job so far */
    double tokens_per_s; /* of the last steps; NAN before the second */
    double step_ms;
    const float *losses; /* (n_losses) of the last steps, nats per token, oldest first */
    size_t n_losses;
};

/* What a planner chose for a device, so that its memory holds the model. */
struct eps_choice {
    uint32_t microbatch; /* rows at a time */
    bool host_stash;     /* layers' inputs wait in host memory for their backward pass; else on the device */
    uint32_t n_kept;     /* blocks that keep what they computed in forward; the other ones compute it again */
    uint32_t n_blocks;
    uint32_t n_weight_buffers; /* units whose weights are there at a time */
    uint32_t n_resident;       /* units that stay */
    bool whole_head;           /* all of the head's weights are there at once; else it runs piece by piece, twice */
};

struct eps_train_events {
    void (*on_start)(void *user, const struct eps_train_options *resolved,
                     uint64_t n_parameters); /* before the first step */
    /* After it: what was chosen for the first worker; what the host and the device that takes most are to hold, in
     * `planned` of each and of its rows. */
    void (*on_plan)(void *user, const struct eps_choice *choice, const struct eps_memory *host,
                    const struct eps_memory *device);
    void (*on_step)(void *user, const struct eps_step *step);
    void (*on_evaluating)(void *user, uint64_t n_tokens,
                          uint64_t n_all); /* a held-out loss is measured: so far, of all */
    void (*on_evaluated)(void *user, uint64_t step, double loss,
                         uint64_t tokens);                        /* held-out loss after `step` updates */
    void (*on_memory)(void *user, const struct eps_memory *side); /* at the end: the host, then each worker */
    void (*on_saved)(void *user, uint64_t step, const char *path);
    /* A checkpoint or metrics.jsonl could not be written; training goes on, and both are tried again. eps_train ends
     * with an error if the last checkpoint, or a line, stays unwritten. */
    void (*on_save_failed)(void *user, uint64_t step, const char *why);
    /* Something that the caller of a run may want to know and has no option to ask for; one sentence. */
    void (*on_note)(void *user, const char *sentence);
    /* Asked several times a second: 1 ends the run when it has been saved (if save_every is not 0), 2 at once: -EINTR.
     */
    int (*should_stop)(void *user);
};

/* Everything left to choose. */
struct eps_train_options eps_train_defaults(void);

/* Trains, and leaves metrics.jsonl, step-N/ and latest in the run directory. Without `connect` its daemon and workers
 * start and end with it. Where the disk is too full for the last checkpoint, it waits up to 10 minutes for room; a stop
 * ends that. 20 skipped steps in a row (fenced commit) end the run. A callback may be NULL. */
int eps_train(const struct eps_train_options *options, const struct eps_train_events *events, void *user,
              struct eps_error *error);

/* What training would take: both sides' bytes, what is chosen to make it fit, what a step moves and how long it takes.
 * Needs no daemon, no weights, no data and no device: of the options, those of the model, the batch, the optimizer, the
 * numbers and the memory are read. Where host_mem is left open, it is what this machine has free, and the workers of a
 * device whose memory is the host's share in that; as a figure it is the daemon's alone, as it is when training. */
struct eps_plan_term {
    const char *category; /* as eps_memory_row's */
    uint64_t bytes;
};
struct eps_plan_side {
    uint64_t bytes, limit; /* limit UINT64_MAX: the system does not say */
    struct eps_plan_term terms[32];
    size_t n_terms; /* those that are not zero, in the order of eps mem */
};
struct eps_plan {
    bool fits;
    char why[512];                    /* it does not: what is needed; else empty */
    struct eps_train_options options; /* resolved */
    uint64_t n_parameters;
    uint32_t n_layers, width;
    uint32_t n_workers;                /* that get a share */
    struct eps_plan_side host, worker; /* worker: each of them */
    const char *device;                /* "cpu", "cuda": asked for, and not looked at; auto is the CPU */
    bool allowance;                    /* the worker's term library is one: its device alone can say */
    bool shared;                       /* the workers' bytes are of the host's memory, and of its limit */
    uint64_t minimum;                  /* the smallest device_mem that can work */
    /* The choice. microbatch rows at once, of part_rows of a part. */
    uint32_t microbatch, part_rows, n_kept, n_weight_buffers, n_resident,
        n_pulled;             /* units: that stay; all that are pulled */
    uint32_t n_sums, n_slots; /* contributions on the device at a time; their slices in the host's inbox */
    bool host_stash, whole_head, one_pass;
    uint32_t head_tile;   /* tokens whose logits are there at a time, at most */
    uint64_t stash_bytes; /* of all boundary activations of a worker's share, wherever they are */
    uint64_t down_bytes, up_bytes, stash_traffic; /* of a step, for each worker */
    double step_ms, compute_ms, pull_ms, push_ms, stash_ms, optimizer_ms;
    bool measured;        /* times come from this machine's profile; else from another's */
    bool overlaps;        /* pulls run while the device computes */
    double hiding_tokens; /* of a worker's share, from which on computing a unit takes as long as pulling it */
};
/* 0 whether it fits or not. */
int eps_plan(struct eps_plan *out, const struct eps_train_options *options, struct eps_error *error);
/* The smallest device_mem with which it can work. */
int eps_plan_minimum(uint64_t *bytes, const struct eps_train_options *options, struct eps_error *error);
/* The most layers like this model's, and the most rows in a minibatch, that fit both memories. -ENOSPC: not even one. */
int eps_plan_depth(uint32_t *n_layers, const struct eps_train_options *options, struct eps_error *error);
int eps_plan_batch(uint32_t *n_rows, const struct eps_train_options *options, struct eps_error *error);

/* A step among many in time, by the same profile: what a worker's queues do, and what they wait for. */
enum eps_queue {
    EPS_DOWN,
    EPS_COMPUTE,
    EPS_UP,
    EPS_OPTIMIZER,
    EPS_QUEUES
}; /* copies to the device; the device; copies to
                                                                               the host; the host's threads */
struct eps_timeline {
    bool fits;
    char why[512]; /* as eps_plan's; the figures are those of the smallest plan then */
    bool measured;
    uint32_t n_workers;
    double step_ms, tokens_per_s, tflops; /* of all workers: 6 operations a parameter and token */
    enum eps_queue binds;                 /* the busiest */
    double busy_ms[EPS_QUEUES];
    double waited_ms[EPS_QUEUES]
                    [EPS_QUEUES]; /* of one, while the other, which it needs, is at work; with busy_ms step_ms */
};
/* As eps_plan. One worker's queues, and the optimizer of all. */
int eps_plan_timeline(struct eps_timeline *out, const struct eps_train_options *options, struct eps_error *error);

/* What this machine manages, measured: eps_plan and the daemon predict times from it. */
struct eps_profile {
    char path[4096];                /* of the file that was written */
    uint32_t rows[4];               /* of matrix products, */
    double matmul_flops[2][4];      /* whose operations a second these are, in fp32 and in bf16 */
    double attention_flops[2][2];   /* the same of causal attention: forward and backward, in fp32 and in bf16 */
    double link_bytes_per_s;        /* from the host to the device */
    double memory_bytes_per_s;      /* of the device, read and written */
    double update_parameters_per_s; /* by the optimizer on the host */
};
struct eps_profile_options {
    const char *device;   /* "cpu", "cuda", "cuda:1"; NULL, "auto": the CPU */
    const char *path;     /* NULL: where eps_plan and eps-worker look, in the user's cache */
    const char *programs; /* as eps_train's */
};
/* Takes some seconds. */
int eps_profile(struct eps_profile *out, const struct eps_profile_options *options, struct eps_error *error);

/* Mean loss of a model over the windows of files. programs, device_mem as above; batch, seq 0: chosen. */
struct eps_eval_options {
    const char *model; /* a directory, or that of a run: its latest checkpoint; NULL: the model that a daemon trains, as
                          it is now, while its training goes on */
    const char *const *data; /* (n_data), as eps_train's */
    size_t n_data;
    const char *connect; /* with a model: as above. Without: the daemon that trains it; NULL: the caller's only one */
    const char *programs;
    uint32_t batch, seq;
    uint64_t eval_tokens;         /* measured at most, spread over the data; 0: all */
    enum eps_separator separator; /* as eps_train's */
    const char *device;           /* as eps_train's; like device_mem not with both model and connect */
    uint64_t device_mem;
};

struct eps_eval_events {
    void (*on_evaluating)(void *user, uint64_t n_tokens, uint64_t n_all); /* how far it is, after each minibatch */
    int (*should_stop)(void *user);                    /* asked several times a second; not 0: -EINTR */
    void (*on_note)(void *user, const char *sentence); /* as eps_train's: what it waits for */
};
/* events may be NULL, and so may each callback. */
int eps_eval(double *loss, uint64_t *tokens, const struct eps_eval_options *options,
             const struct eps_eval_events *events, void *user, struct eps_error *error);

/* Continues a text, token by token. */
struct eps_generate_options {
    const char *model; /* as eps_eval_options */
    const char *connect, *programs;
    const char *device;
    uint64_t device_mem;
    const char *prompt; /* (prompt_bytes) UTF-8 text; NULL or empty: prompt_ids, or, without any, what texts begin
                           after: the end-of-text token, or, of bytes, a new line */
    size_t prompt_bytes;
    const uint32_t *prompt_ids; /* (n_prompt_ids) token ids instead */
    size_t n_prompt_ids;
    uint32_t
        n_tokens; /* to generate at most; 0: 200. Where prompt and text are longer than the model's positions, it sees
                          their last tokens alone: when all positions are taken, the last half of them begins anew */
    double temperature; /* 0: greedy, the likeliest token each time; NAN: 1 */
    uint32_t top_k;     /* of the k likeliest only; 0: of all */
    double top_p;       /* of the likeliest that together have this probability; NAN: 1, all */
    uint64_t seed;
};

struct eps_generated { /* what is known, after a failure too */
    uint32_t n_prompt, n_tokens;
    double prompt_ms;        /* until the first new token was drawn; loading is not counted */
    double tokens_ms;        /* for the others; callbacks are not counted */
    uint64_t weight_bytes;   /* of the whole model */
    uint64_t token_bytes;    /* of them, those that each token visits */
    uint64_t resident_bytes; /* of them, those that stayed on the device; others are relayed each time, but the tables
                              * of tokens and positions: what is looked up there is read where the host has it */
    uint32_t n_slides;       /* how often the model's positions were all taken, and begun anew */
    bool ended;              /* by the model's end-of-text token */
};

struct eps_generate_events {
    /* Each token as it comes: its id, and the text that is complete with it: valid UTF-8, maybe nothing. Bytes that are
     * no character become U+FFFD. Of the end-of-text token there is no text; text is NULL where the model has no
     * tokenizer. */
    void (*on_token)(void *user, uint32_t id, const char *text, size_t n);
    int (*should_stop)(void *user); /* asked several times a second, and between two tokens; not 0: -EINTR */
    void (*on_note)(void *user, const char *sentence); /* as eps_train's: what it waits for */
};
int eps_generate(struct eps_generated *out, const struct eps_generate_options *options,
                 const struct eps_generate_events *events, void *user, struct eps_error *error);

/* Writes a model for others to load: config.json, tokenizer, weights in fp32 or bf16 (rounded to nearest, ties to
 * even), in several files where they take over 4 GiB. out must not hold a model yet. */
struct eps_export_options {
    const char *model, *connect; /* as eps_eval_options */
    const char *out;
    bool bf16;
};
int eps_export(const struct eps_export_options *options, struct eps_error *error);

/* Reads a checkpoint, or every one of a run directory, byte by byte against its checksums. on_checked is called for
 * each, with why NULL if it is whole. -EINVAL if one is not, -ENOENT if there is none. */
int eps_verify(const char *directory, void (*on_checked)(void *user, const char *path, uint64_t step, const char *why),
               void *user, struct eps_error *error);

/* The steps of a run, as its directory's metrics.jsonl has them, in their order; the run may be under way. What a line
 * does not say is NAN or 0, and so are n_steps and device_budget_bytes always. Lines that are none of a step are passed
 * over: *n_bad, which may be NULL, counts them. What on_step is given is gone when it returns. -ENOENT, -errno. */
int eps_metrics_read(const char *run, void (*on_step)(void *user, const struct eps_step *step), void *user,
                     uint64_t *n_bad, struct eps_error *error);

/* The presets of --model, name by name; NULL after the last. */
struct eps_preset {
    const char *name;
    uint32_t n_layers, n_heads, width, n_positions, vocabulary;
    uint64_t n_parameters;
    bool learns; /* its tokenizer, from the text that it is trained on */
};
const struct eps_preset *eps_preset(size_t index);

/* On a live daemon: address is a name, a daemon's directory, the output directory of its job, or NULL for the caller's
 * only one (-ENOENT: there is none; -ENOTUNIQ: there are several, by name). */
int eps_status(const char *address, void (*on_status)(void *user, const struct eps_status *status), void *user,
               struct eps_error *error);
/* on_memory is called for the host, then for each worker. */
int eps_mem(const char *address, void (*on_memory)(void *user, const struct eps_memory *side), void *user,
            struct eps_error *error);
/* The caller's daemons, by directory, those of running eps_train included. */
int eps_daemons(void (*on_daemon)(void *user, const char *address), void *user, struct eps_error *error);
/* A checkpoint of its job, in that job's output directory, while training goes on; returns when it stands. */
int eps_save(const char *address, uint64_t *step, struct eps_error *error);
/* Ends its job, if it has one, saved as that promised, and itself; returns when it is gone. */
int eps_stop(const char *address, struct eps_error *error);

/* The same over one session that is kept open, for who looks again and again. should_stop, which may be NULL, is asked
 * several times a second while a call waits: anything but 0 ends that call with -EINTR. Once the daemon is gone, calls
 * return -EIO. */
struct eps_look;
int eps_look_open(struct eps_look **out, const char *address, int (*should_stop)(void *user), void *user,
                  struct eps_error *error);
void eps_look_close(struct eps_look *look);                /* NULL is fine */
const char *eps_look_address(const struct eps_look *look); /* the daemon's directory */
/* What *out points to stays until the next call. */
int eps_look_status(struct eps_look *look, struct eps_status *out, struct eps_error *error);
/* pages: asks the system too, at most once a second, whoever looks; else no pages are known. */
int eps_look_mem(struct eps_look *look, bool pages, void (*on_memory)(void *user, const struct eps_memory *side),
                 void *user, struct eps_error *error);
/* What *units (n) points to stays until the next call; none without a job. */
int eps_look_units(struct eps_look *look, const struct eps_unit **units, size_t *n, struct eps_error *error);
int eps_look_workers(struct eps_look *look, void (*on_worker)(void *user, const struct eps_worker *worker), void *user,
                     struct eps_error *error);
/* losses stay until the next call. */
int eps_look_recent(struct eps_look *look, struct eps_recent *out, struct eps_error *error);
int eps_look_save(struct eps_look *look, uint64_t *step, struct eps_error *error);
/* Returns 0 when the daemon has heard of it, or has ended already; eps_look_wait tells of its end. */
int eps_look_stop(struct eps_look *look, struct eps_error *error);
/* Lets time pass; UINT64_MAX: for ever. */
int eps_look_wait(struct eps_look *look, uint64_t ms, struct eps_error *error);

/* The one of names (n_names) that the writer of `word` may have meant: at most a third of the word's letters differ, or
 * one of the two begins with the other. NULL: none. For "did you mean". */
const char *eps_nearest(const char *word, const char *const *names, size_t n_names);

/* A word as a shell reads it, to be pasted: as it is, or in single quotes. Returns out, or `word` where it needs no quotes
 * or cap bytes do not hold it with them. */
const char *eps_quote(char *out, size_t cap, const char *word);

/* "2GiB", "512M", "1000" in bytes. -EDOM with a sentence that names the option. */
int eps_parse_bytes(uint64_t *out, const char *option, const char *text, struct eps_error *error);
/* "1.4 GiB"; returns out. */
const char *eps_format_bytes(char out[24], uint64_t bytes);
/* The same in the unit of `like`: "0.12 GiB" beside "2.0 GiB". */
const char *eps_format_bytes_like(char out[24], uint64_t bytes, uint64_t like);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
