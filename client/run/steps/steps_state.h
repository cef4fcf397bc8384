/* client/run/steps/steps_state.h - what the files of client/run/steps/steps.h share: how a run comes to its first step
 * (steps_start.c), its steps (steps.c), how each is opened (steps_open.c), and when it requests a checkpoint and what
 * follows from that (steps_save.c). */
#ifndef CLIENT_RUN_STEPS_STEPS_STATE_H
#define CLIENT_RUN_STEPS_STEPS_STATE_H

#include "client/run/steps/steps.h"

/* Tells the user a sentence. */
void client_steps_note(const struct client_steps *s, const char *sentence);

/* ---- steps_start.c ---- */

/* Up to the first step: of a new or a resumed run; of a job that is taken over, which is this process's from then
 * on. */
int client_steps_start(struct client_steps *s, struct error *err);
int client_steps_take_over(struct client_steps *s, const struct client_attach *attach, struct error *err);

/* ---- steps.c ---- */

/* Takes a step's end in: its line, and an evaluation if one is due. */
int client_steps_on_done(struct client_steps *s, const struct message *m, struct error *err);

/* Evaluates after all opened steps are done, in the buffer that does not hold the next step's data. A stop interrupts
 * it: the loss is then NaN. */
int client_steps_evaluate(struct client_steps *s, double *loss, struct error *err);

/* Writes a text of the last step, which continues this prompt, to the event files. */
void client_steps_write_sample(struct client_steps *s, size_t prompt, const char *text, size_t n);

/* Patience ends the run like its last step: that step is saved. */
void client_steps_end_early(struct client_steps *s);

/* Records a failed write of metrics. It does not end the run: the lines are retried with the next step's. */
void client_steps_note_metrics(struct client_steps *s, int rc, const struct error *why);

/* The last step that is done here: the run's, or the job's if that is less. */
static inline uint64_t client_steps_last(const struct client_steps *s)
{
    return s->job_end < s->end ? s->job_end : s->end;
}

/* ---- steps_open.c ---- */

/* True if the held-out loss is measured after this step. */
bool client_steps_evaluates_after(const struct client_steps *s, uint64_t step);
/* The rate of the step that was prepared last. */
double client_steps_lr(const struct client_steps *s, uint64_t step);

/* True if on_weights looks at the weights once all opened steps are done; no step may be open then. */
bool client_steps_weights_are_due(const struct client_steps *s);
int client_steps_show_weights(struct client_steps *s, struct error *err);

/* Prepares the first step's data. */
int client_steps_begin(struct client_steps *s, struct error *err);
/* True if the next step may open: the last one has arrived, and no checkpoint, evaluation, sample or look at the
 * weights is due first. */
bool client_steps_may_open(const struct client_steps *s);
/* Opens it, and prepares the one after it. Where rows are given, what they are given for may come first: then it is to
 * be called again. */
int client_steps_open(struct client_steps *s, struct error *err);

/* ---- steps_save.c ---- */

/* A checkpoint is new, or the run begins: counts the time to the next one. save_ns: what it took; 0: unknown. */
void client_steps_count_time(struct client_steps *s, uint64_t save_ns);

/* True if a checkpoint of the covered steps is due; no step may be open. */
bool client_steps_save_is_due(const struct client_steps *s);
/* True if one will be due once all opened steps are covered. */
bool client_steps_save_will_be_due(const struct client_steps *s);
/* Requests a checkpoint of the covered steps. */
void client_steps_ask_save(struct client_steps *s);

/* True if the run ends before its open step, and the one before it may be saved. */
bool client_steps_cut_is_due(const struct client_steps *s);
/* Requests that checkpoint; the daemon chooses its step. */
void client_steps_ask_cut(struct client_steps *s);

/* The daemon's answers. */
void client_steps_on_saved(struct client_steps *s, uint64_t step);
void client_steps_on_save_failed(struct client_steps *s, uint64_t step, int code, const struct error *why);

/* Removes old checkpoints in the background. */
void client_steps_tidy(struct client_steps *s);
/* Takes a copy to the mirror that has ended in, and begins the next. */
void client_steps_mirror(struct client_steps *s);
/* Waits for the last one, unless a stop gives it up. Errors as client_link_next. The other: of a run that has
 * failed. */
int client_steps_await_mirror(struct client_steps *s, struct error *err);
void client_steps_end_mirror(struct client_steps *s);

/* True if the run directory has a complete checkpoint of this step. */
bool client_steps_has_saved(const struct client_steps *s, uint64_t step);

/* s->judged is new: if it is the lowest of those that have a checkpoint, and has one already, points `best` to it. */
void client_steps_on_judged(struct client_steps *s);
/* Says that the lowest loss has no checkpoint; false if it has one. */
bool client_steps_lacks_best(struct error *sentence, const struct client_steps *s);

#endif
