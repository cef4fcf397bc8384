/* client/options/options.h - defaults for options left unset, and the learning rate of each step.
 *
 * Defaults depend only on the model, the data, the machine and the other options. So a run can be repeated from its
 * printed options. A user's own model gets the usual ones: batches of about 16 Ki tokens, one epoch, a learning rate of
 * 3e-4 (2e-5 from weights), 3 % of warm-up, betas 0.9,0.999. A task gets minibatches of 32 rows, three epochs, and the
 * length of the longest row, as Devlin et al. fine-tuned BERT (arXiv:1810.04805, appendix A.3). Given weights get
 * smaller batches of few data, and evaluations are counted by the steps: client/options/length.c.
 *
 * A preset with fresh weights has one recipe, whether it was named or chosen. If there are two figures, the first is
 * for byte and gpt2 presets, the second for presets that learn a tokenizer:
 *   steps   1500, 750; at least 1 and at most 10 epochs
 *   batch   the tokens divided by the steps; at least 1 Ki, 2 Ki, and at most 16 Ki tokens
 *   lr      2e-3, 3e-3 under 4 Mi parameters (small); 1e-3 under 32 Mi (medium); else 3e-4
 *   warmup  45 steps; 3 % of more than 1500 steps; 30 % of fewer than 150
 *   betas   0.9,0.99: the second moment should average over less than the run
 *   seq     less than the model's positions if the data are shorter than two windows
 *
 * Measured with byte-small on plays, one run each; held-out loss on another 40 kB, at lr 2e-3 (at 1e-3):
 *   20 kB   5 epochs 2.89 (2.75), 10 epochs 2.79 (2.74), 20 epochs 2.85 (2.85): it overfits
 *   200 kB  1500 steps 2.18 (2.19)
 *   1 MB    1500 steps 1.95 (2.03): the higher rate is better for whole books
 * The rate of byte-medium and the betas are from nanoGPT's example of the same shape (github.com/karpathy/nanoGPT,
 * config/train_shakespeare_char.py), whose batches have 16 Ki tokens; they were not measured here.
 *
 * Measured with text-small on 3.4 MB of documentation, held-out nats per byte:
 *   100 steps   1 Ki tokens 2.00; 2 Ki 1.88 (3e-3), 1.92 (6e-3), 1.99 (1e-2); 4 Ki 1.96 (6e-3); byte-small 2.75
 *   1500 steps  1 Ki tokens 1.28
 *   750 steps   2 Ki tokens 1.30 */
#ifndef CLIENT_OPTIONS_OPTIONS_H
#define CLIENT_OPTIONS_OPTIONS_H

#include "client/eps.h"
#include "client/model/preset.h"
#include "proto/base/error.h"
#include "proto/base/number.h"
#include "proto/model/model.h"
#include "proto/operation/device_name.h"
#include "proto/plan/memory/plan.h"

#include <stdbool.h>
#include <stdint.h>

/* Inputs of the defaults. */
struct client_facts {
    uint32_t n_positions;
    bool masked;            /* the model predicts masked tokens */
    bool pairs;             /* rows are preferences, two for each */
    bool whole;             /* rows are as they come, not cut from a stream of tokens */
    bool flows;             /* if whole: each step has all its rows, if need be from the next epoch */
    enum eps_task task;     /* of a classifier; EPS_TASK_DEFAULT: the model predicts tokens */
    uint32_t seq;           /* chosen if none is given; 0: the longest row's */
    uint32_t source;        /* tokens of seq that are a source; 0: there is none */
    uint32_t n_rows;        /* if whole: rows to train on */
    uint32_t n_held_out;    /* if whole: rows that are held out */
    uint32_t joined;        /* rows that no part divides: of a ghost batch; 0: 1 */
    uint32_t longest;       /* if whole: tokens of the longest row */
    uint32_t least;         /* the least seq that all rows have room in */
    bool fresh;             /* the model has no weights */
    bool adapts;            /* adapters are trained */
    enum form coded;        /* of the model's files: weights_form */
    bool resumed;           /* the run is resumed: options are the stored ones, apart from those that may differ */
    uint64_t batch_step;    /* first step with the current batch: 0, unless --change altered it */
    uint64_t batch_row;     /* the run's row at which that step begins */
    uint64_t n_tokens;      /* training data */
    uint64_t n_eval_tokens; /* eval_data, if given */
    bool separated;         /* an end token separates texts */
    uint32_t n_workers;     /* attached to the daemon of `connect`, of all its hosts, if given */

    const struct eps_preset *preset; /* preset with fresh weights; NULL: another model */
};

/* Resolves all options that do not depend on the devices; device, device_mem and precision stay as given until
 * client_options_complete, and grad_dtype where it follows from that precision. Resolved options resolve to
 * themselves: steps is set and epochs is not; workers is 0 with `connect`. -EDOM with a sentence that names the option,
 * its value and what is accepted; -EINVAL if the data is too short. */
int client_options_resolve(struct eps_train_options *out, const struct eps_train_options *in,
                           const struct client_facts *facts, struct error *err);

/* Says that data (n names, of which the first is said) hold nothing, after their option and a blank, or "". -EINVAL. */
int client_options_refuse_empty(const char *option, const char *const *names, size_t n, struct error *err);

/* Checks the tokens of a row: -EDOM. */
int client_options_check_seq(uint32_t seq, uint32_t n_positions, struct error *err);

/* Checks a fraction of tokens to be masked, and chooses it if it is NAN: -EDOM. */
int client_options_mask(double *fraction, struct error *err);

/* Number of training tokens (client_windows_n_train). options are resolved. */
uint64_t client_options_n_train(const struct eps_train_options *options, uint64_t n_tokens);

/* Resolves moments, sums, master, commit and optimizer; parts are known. With one part both optimizers are the same.
 * With several, AdamA's result depends on their number, by default that of the workers, so it must be asked for.
 * -EDOM. */
int client_options_commit(struct eps_train_options *options, struct error *err);

/* Resolves the schedule, and the steps and the factor of --schedule step: -EDOM. */
int client_options_schedule(struct eps_train_options *options, struct error *err);

/* The learning rate of a step (from 0); options are resolved. It rises linearly to lr over `warmup` steps, then falls
 * to min_lr at the step after the last one, linearly or as half a cosine; or, not below min_lr, with the inverse square
 * root of the step (Vaswani et al., arXiv 1706.03762, equation 3), or by lr_factor once each of lr_steps is done. */
double client_options_lr(const struct eps_train_options *options, uint64_t step);

/* Rows of a minibatch: about 16 Ki tokens, a multiple of n_parts; at most n_windows if each part still gets a row. */
uint32_t client_options_batch(uint32_t seq, uint32_t n_parts, uint64_t n_windows);

/* Rows of a minibatch, left to choose, of n_rows (windows of a text) to train on; seq and parts are resolved. */
uint32_t client_options_choose_batch(const struct eps_train_options *options, const struct client_facts *facts,
                                     uint64_t n_rows);

/* Resolves steps, and the options that count steps, from the training windows; the batch is resolved. Stored values
 * stay, even if the run now ends before them. -EDOM. */
int client_options_length(struct eps_train_options *options, const struct client_facts *facts, uint64_t n_windows,
                          struct error *err);

/* Says that a run is short, and the remedy; false if it is not, or if its steps were asked for. */
bool client_options_say_short(struct error *sentence, const struct eps_train_options *asked,
                              const struct eps_train_options *resolved);

/* Describes what in `resolved` is the preset's recipe; false if nothing is. */
bool client_options_say_recipe(struct error *sentence, const struct eps_preset *preset,
                               const struct eps_train_options *asked, const struct eps_train_options *resolved);

/* Says that --clip-norm chose the fenced commit, and its cost; false if it did not. */
bool client_options_say_fenced(struct error *sentence, const struct eps_train_options *asked,
                               const struct eps_train_options *resolved, uint64_t n_trained);

/* Says that several parts chose the optimizer, and what adama would save; false if they did not, or if it would save
 * nothing. model is the run's. */
bool client_options_say_summed(struct error *sentence, const struct eps_train_options *asked,
                               const struct eps_train_options *resolved, const struct model *model);

/* The model as it is trained: the tensors that match `freeze` (client/eps.h) are frozen, in the form of `base`; the
 * options' precision counts, too. Owned: model_free, also after a failure. -EDOM if a pattern is wrong, or if there is
 * a base without frozen tensors; otherwise as model_init. */
int client_options_model(struct model *out, const struct model_config *config, const struct eps_train_options *options,
                         struct error *err);

/* Refuses --freeze-until without --freeze, or at the end of the run or later (steps 0: unknown): -EDOM. */
int client_options_check_thaw(const struct eps_train_options *options, struct error *err);

/* True if the tensors that --freeze names are trained after `step` updates: --freeze-until. */
bool client_options_thawed(const struct eps_train_options *options, uint64_t step);

/* These options for a run, or a plan, in which the tensors of --freeze are trained. adapts: the model has adapters, so
 * its base stays frozen. */
struct eps_train_options client_options_thaw(const struct eps_train_options *options, bool adapts);

/* What --approximate allows; NULL: nothing; "any", until eps_plan_forms has chosen: nothing. -EDOM with a sentence. */
struct client_approximation {
    struct sampling sampling;
    uint32_t kept_bits, pooled; /* as in plan_goal */
};

int client_options_approximate(struct client_approximation *out, const char *text, struct error *err);
/* Whether random bits make a gradient inexact, so that another draw has other ones. */
bool client_approximation_draws(const struct client_approximation *allowed);
/* Whether gradients of a form that is allowed are biased. */
bool client_approximate_is_biased(const char *approximate);

/* The probability with which a step drops a block. */
double client_options_drop(const struct eps_train_options *options);

/* The goal of a run with these resolved options. */
struct plan_goal client_options_goal(const struct eps_train_options *options);

/* Checks a minibatch against its limits: -EDOM. */
int client_options_check_batch(uint32_t batch, uint32_t seq, struct error *err);

/* Devices of a job's workers. */
struct client_devices {
    bool cpu, cuda;  /* at least one worker has such a device */
    uint64_t budget; /* largest */
};
void client_options_complete(struct eps_train_options *options, const struct client_devices *devices);
/* grad_dtype, if neither it nor state is given: bf16 for weights in bf16. */
enum eps_number client_options_sent(enum eps_number precision);

/* Refuses options of a command's struct that go with none of these tasks (bits of enum eps_tasks): -EDOM. A whole
 * number of 0 asks for nothing. continued: of a run that is resumed or attached to, whose stored options are its
 * own. */
int client_options_check_tasks(const void *options, enum eps_command command, unsigned tasks, bool continued,
                               struct error *err);

/* Refuses options that do not go with `connect`, before waiting for it: -EDOM. */
int client_options_check_connect(const struct eps_train_options *options, struct error *err);

/* Parses the device of private workers; NULL is auto: -EDOM. With connect (may be NULL): the daemon's devices. */
int client_options_device(struct device_name *out, const char *device, uint32_t n_workers, const char *connect,
                          struct error *err);

/* Reads an option of words that are separated by commas: "wta=0.3,coded=8". text NULL: none. read: 0, or an error with
 * a sentence, of n characters of which more may follow. -EDOM with a sentence: nothing stands between two commas. */
typedef int client_options_word(void *context, const char *word, size_t n, struct error *err);
int client_options_words(const char *option, const char *text, client_options_word *read, void *context,
                         struct error *err);
/* True if n characters, of which more may follow, are a number without a sign. */
bool client_options_real(double *out, const char *text, size_t n);

/* --sparse, of a run of so many steps (0: not known). NULL: weights are dense. -EDOM with a sentence. */
int client_options_sparse(struct sparse *out, const char *text, uint64_t steps, struct error *err);

#endif
