/* client/eps.h - libeps: train a model on a daemon's machine, look at a live one.
 *
 * The whole public interface; the eps command is its first customer and uses nothing else. Calls block until done and
 * report through callbacks, on the caller's thread; a call runs its own event loop and leaves no thread behind.
 * Errors: 0 or -errno, and one sentence in error (which may be NULL). Everywhere:
 *   -EDOM         an option's value is at fault, or options that contradict each other
 *   -EINTR        should_stop said so
 *   -EIO          a process on the other side is gone
 *   others        files, data, model, memory: what errno means for them */
#ifndef CLIENT_EPS_H
#define CLIENT_EPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct eps_error {
    char text[512]; /* one sentence, no full stop */
};

enum eps_schedule { EPS_SCHEDULE_DEFAULT, EPS_SCHEDULE_COSINE, EPS_SCHEDULE_LINEAR, EPS_SCHEDULE_CONSTANT };
enum eps_optimizer_kind { EPS_ADAMA, EPS_ADAMW };
enum eps_order { EPS_SHUFFLED, EPS_SEQUENTIAL };

/* Start from eps_train_defaults(), which leaves everything to be chosen; model and data have no default. */
struct eps_train_options {
    const char *model;       /* config.json, or a directory with config.json and *.safetensors */
    const char *const *data; /* (n_data) files: text, .bin, .npy */
    size_t n_data;
    const char *eval_data; /* NULL: the last 1 % of the data is held out */
    const char *out;       /* run directory; NULL: runs/MODEL-TIME */
    const char *connect;   /* address of a daemon; NULL: a private daemon and worker, as processes of their own */
    const char *programs;  /* directory of epsd and eps-worker; NULL: where the calling program is, then PATH */
    uint64_t steps;        /* 0: `epochs` of the data, rounded up */
    double epochs;         /* NAN: 1 */
    uint32_t batch, seq, microbatch, parts, workers;        /* 0: chosen */
    double lr, min_lr, weight_decay, beta1, beta2, epsilon; /* NAN: chosen */
    enum eps_schedule schedule;
    uint64_t warmup; /* steps; UINT64_MAX: 3 % */
    enum eps_optimizer_kind optimizer;
    enum eps_order order;
    uint64_t seed;
    uint64_t eval_every; /* steps; before the first and after the last it is done in any case. 0: only then */
    bool deterministic;
    uint64_t device_mem; /* bytes for each private worker; 0: chosen from the memory that is free */
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
    double eval_loss; /* NAN unless this step evaluated */
};

/* A line of `eps mem`: one side's ledger. */
struct eps_memory_row {
    const char *category;
    uint64_t current, peak;
};
struct eps_memory {
    uint32_t worker; /* 0: the host */
    const char *device;
    uint64_t budget; /* 0 for the host */
    uint64_t current, peak;
    const struct eps_memory_row *rows; /* those that are not zero */
    size_t n_rows;
};

struct eps_status {
    const char *state; /* "idle", "loading", "training", ... */
    uint64_t step, n_parameters;
    uint32_t n_workers, pid;
    double loss;
    const char *model;
};

struct eps_train_events {
    void (*on_start)(void *user, const struct eps_train_options *resolved,
                     uint64_t n_parameters); /* before the first step */
    void (*on_step)(void *user, const struct eps_step *step);
    void (*on_evaluated)(void *user, uint64_t step, double loss,
                         uint64_t tokens);                        /* held-out loss after `step` updates */
    void (*on_memory)(void *user, const struct eps_memory *side); /* at the end: the host, then each worker */
    void (*on_saved)(void *user, uint64_t step, const char *path);
    /* Asked several times a second: true ends the run now (SIGINT): -EINTR. */
    bool (*should_stop)(void *user);
};

/* Everything left to choose. */
struct eps_train_options eps_train_defaults(void);

/* Fills in what was left to choose and checks the rest, as eps_train does at its start; reads the model's config and
 * the data, and asks the daemon of `connect` for its workers. out->out stays NULL if it was: the name holds the time of
 * the start. Pointers inside *out borrow from *in. */
int eps_train_resolve(struct eps_train_options *out, const struct eps_train_options *in, struct eps_error *error);

/* Trains, and leaves metrics.jsonl, step-N/ and latest in the run directory. Without `connect` its daemon and workers
 * start and end with it. A callback may be NULL. */
int eps_train(const struct eps_train_options *options, const struct eps_train_events *events, void *user,
              struct eps_error *error);

/* Mean loss of a model over a file's windows. connect, programs, device_mem as above; batch, seq 0: chosen. */
struct eps_eval_options {
    const char *model;
    const char *data;
    const char *connect, *programs;
    uint32_t batch, seq;
    uint64_t device_mem;
};
int eps_eval(double *loss, uint64_t *tokens, const struct eps_eval_options *options, struct eps_error *error);

/* On a live daemon: address is a name, a directory, or NULL for the caller's only one. */
int eps_status(const char *address, void (*on_status)(void *user, const struct eps_status *status), void *user,
               struct eps_error *error);
/* on_memory is called for the host, then for each worker. */
int eps_mem(const char *address, void (*on_memory)(void *user, const struct eps_memory *side), void *user,
            struct eps_error *error);
/* Ends its job, if it has one, and itself; returns when it is gone. */
int eps_stop(const char *address, struct eps_error *error);

/* "2GiB", "512MiB", "1000" in bytes. -EDOM with a sentence that names the option. */
int eps_parse_bytes(uint64_t *out, const char *option, const char *text, struct eps_error *error);
/* "1.4 GiB"; returns out. */
const char *eps_format_bytes(char out[24], uint64_t bytes);

#endif
