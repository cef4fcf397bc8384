/* client/run/steps/samples.h - texts that the model writes while it is trained: --sample-every, --sample-prompt.
 *
 * After every N-th step, before the next one opens, the run copies its model from its daemon and has private processes
 * continue the prompts, as eps_generate does for a live model. Training waits, and nothing of it changes. A text is
 * drawn with the run's seed plus the step, at temperature 1 from all tokens: eps generate with that seed, and these
 * where generation_config.json says otherwise, writes the same from the step's checkpoint. */
#ifndef CLIENT_RUN_STEPS_SAMPLES_H
#define CLIENT_RUN_STEPS_SAMPLES_H

#include "client/run/steps/steps.h"

enum { CLIENT_SAMPLE_TOKENS = 64 }; /* of a text, at most */

/* Refuses one option without the other and a prompt that is not UTF-8 (-EDOM), and models that continue no text
 * (-EINVAL). */
int client_samples_check(const struct client_run *run, struct error *err);

/* True if texts are due after this step. */
bool client_samples_are_due(const struct eps_train_options *options, uint64_t step);

/* Writes the texts of the last step, if they are due: on_sample, and event files. No step is open. A failure is a note,
 * unless the last one was the same; a stop ends it. */
void client_samples_write(struct client_steps *steps);

#endif
