/* client/run/options.h - what the user left to choose, and the learning rate of each step.
 *
 * Defaults depend on the model, the data, the machine and the other options only, so that a run can be repeated from
 * what it printed. For a model of one's own they are the usual ones: batches of about 16 Ki tokens, one epoch, a rate of
 * 3e-4 (2e-5 from weights), 3 % of warm-up, betas 0.9,0.999.
 *
 * A preset with fresh weights has one recipe, whether it was named or chosen; where two figures stand, the first is for
 * bytes and gpt2, the second for tokens that are learned:
 *   steps   1500, 750: but at least once and at most 10 times through the data
 *   batch   the tokens divided by that, at least 1 Ki, 2 Ki, and at most 16 Ki of them
 *   lr      2e-3, 3e-3 under 4 Mi parameters (the small ones), 1e-3 under 32 Mi (the medium ones), else 3e-4
 *   warmup  45 steps; 3 % of a run of more than 1500, and 30 % of one of fewer than 150
 *   betas   0.9,0.99, as the second moment's memory should be shorter than the run
 *   seq     less than the model's positions where the data are shorter than two windows
 *
 * Measured with byte-small on plays, one run each, held-out loss on other 40 kB of them, at 2e-3 (at 1e-3): 20 kB,
 * 5 times through 2.89 (2.75), 10 times 2.79 (2.74), 20 times 2.85 (2.85), as it knows them by heart then; 200 kB,
 * 1500 steps 2.18 (2.19); 1 MB, as many, 1.95 (2.03). The higher rate is for the sake of whole books. That of
 * byte-medium and the betas are those of nanoGPT's example of the same shape (github.com/karpathy/nanoGPT,
 * config/train_shakespeare_char.py), whose batches have 16 Ki tokens; it has not been measured here.
 *
 * With text-small on 3.4 MB of documentation, nats a byte held out: 100 steps of 1 Ki tokens 2.00, of 2 Ki 1.88 (3e-3),
 * 1.92 (6e-3), 1.99 (1e-2), of 4 Ki 1.96 (6e-3); byte-small, in as many: 2.75. 1500 steps of 1 Ki 1.28, 750 of 2 Ki
 * 1.30. */
#ifndef CLIENT_RUN_OPTIONS_H
#define CLIENT_RUN_OPTIONS_H

#include "client/eps.h"
#include "proto/base/error.h"
#include "proto/base/number.h"
#include "proto/model/model.h"
#include "proto/plan/device_name.h"

#include <stdbool.h>
#include <stdint.h>

/* What the defaults depend on. */
struct client_facts {
    uint32_t n_positions;
    bool fresh;             /* no weights come with the model */
    bool resumed;           /* a run goes on: options are what it stored, and what may differ */
    uint64_t batch_step;    /* the first with the present batch: 0, unless it was changed */
    uint64_t batch_row;     /* of the run, at which it begins */
    uint64_t n_tokens;      /* of the data */
    uint64_t n_eval_tokens; /* of eval_data, if there is one */
    bool separated;         /* texts are separated by an end token */
    uint32_t n_workers;     /* attached to the daemon of `connect`, if that is given */

    const struct eps_preset *preset; /* the model, with fresh weights; NULL: it is another */
};

/* All but what depends on the devices: device, device_mem and precision are as given; client_options_settle follows.
 * Resolved options resolve to themselves: steps is set and epochs is not; workers is 0 with `connect`.
 * -EDOM with a sentence that names the option, its value and what is accepted; -EINVAL if the data is too short. */
int client_options_resolve(struct eps_train_options *out, const struct eps_train_options *in,
                           const struct client_facts *facts, struct error *err);

/* The tokens to train on; those after them are held out: none of the data if eval_data is given, else the last
 * 1 %, and at least one window. options are resolved. */
uint64_t client_options_n_train(const struct eps_train_options *options, uint64_t n_tokens);

/* The learning rate of a step, from 0; options are resolved. It rises by equal amounts over `warmup` steps to lr, and
 * then falls to min_lr (what the step after the last one would have): linear, or as half a cosine. */
double client_options_lr(const struct eps_train_options *options, uint64_t step);

/* Rows of a minibatch: about 16 Ki tokens, a multiple of n_parts, no more than n_windows where that leaves one each. */
uint32_t client_options_batch(uint32_t seq, uint32_t n_parts, uint64_t n_windows);

/* About so many tokens has a minibatch of a preset. */
uint64_t client_options_preset_tokens(const struct eps_preset *preset, uint64_t n_train);

/* What of `resolved` is the preset's recipe, as a sentence; false: nothing is. */
bool client_options_say_recipe(struct error *sentence, const struct eps_preset *preset,
                               const struct eps_train_options *asked, const struct eps_train_options *resolved);

/* That --clip-norm has chosen the commit, and what it costs; false: it has not. */
bool client_options_say_fenced(struct error *sentence, const struct eps_train_options *asked,
                               const struct eps_train_options *resolved, uint64_t n_parameters);

/* That several parts have chosen the optimizer, and what the other one would save; false: they have not, or it would
 * save nothing. model is the run's. */
bool client_options_say_summed(struct error *sentence, const struct eps_train_options *asked,
                               const struct eps_train_options *resolved, const struct model *model);

/* Of a resolved option. */
enum number_type client_options_number(enum eps_number number);

/* Limits of a minibatch: -EDOM. */
int client_options_check_batch(uint32_t batch, uint32_t seq, struct error *err);

/* The devices of a job's workers, once they are known. */
struct client_devices {
    bool cpu, cuda;  /* there are some */
    uint64_t budget; /* the largest */
};
void client_options_settle(struct eps_train_options *options, const struct client_devices *devices);

/* Options that do not go with `connect`, before it is waited for: -EDOM. */
int client_options_check_connect(const struct eps_train_options *options, struct error *err);

/* The device of private workers: -EDOM; NULL is auto. connect: they are a daemon's. */
int client_options_device(struct device_name *out, const char *device, uint32_t n_workers, const char *connect,
                          struct error *err);

#endif
