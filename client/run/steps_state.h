/* client/run/steps_state.h - when a run requests a checkpoint, and what follows from it (client/run/steps_save.c); for
 * client/run/steps.c alone. */
#ifndef CLIENT_RUN_STEPS_STATE_H
#define CLIENT_RUN_STEPS_STATE_H

#include "client/run/steps.h"

/* Tells the user a sentence. */
void client_steps_note(const struct client_steps *s, const char *sentence);

/* A checkpoint is new, or the run begins: counts the time to the next one. */
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

/* True if the run directory has a complete checkpoint of this step. */
bool client_steps_has_saved(const struct client_steps *s, uint64_t step);

/* s->best is new: points `best` to its checkpoint, if there is one already. */
void client_steps_on_best(struct client_steps *s);

#endif
