/* client/record/change.h - options that --change altered when a run was resumed, and the run's position in its data.
 *
 * The record keeps a list, "changes", oldest first: {"step": N, "option": "lr", "from": 0.01, "to": 0.005}. Steps up to
 * N had the first value. So a checkpoint tells how it was made and which windows its steps have seen: rows are counted
 * over the whole run, with the batch that each step had. */
#ifndef CLIENT_RECORD_CHANGE_H
#define CLIENT_RECORD_CHANGE_H

#include "proto/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads the next name of a comma-separated list. *rest is what follows it, NULL at the end. False if there is none. */
bool client_change_next(char *name, size_t cap, const char **rest);

/* True if the list has this name. list may be NULL. */
bool client_change_names(const char *list, const char *name);

/* True if this module wrote the list and its last batch is `batch`. NULL, no changes, is valid. */
bool client_change_check(const json_t *changes, uint32_t batch);

/* Rows of the run before `step` (from 0), if the current batch is `batch`. */
uint64_t client_change_rows(const json_t *changes, uint32_t batch, uint64_t step);

/* First step with the current batch; 0 if it never changed. */
uint64_t client_change_batch_step(const json_t *changes);

/* Describes the i-th set of changes: "after step 5: lr 0.01 to 0.005, batch 4 to 8". *step: the step after which they
 * apply. False if there are fewer. */
bool client_change_say(struct error *sentence, uint64_t *step, const json_t *changes, size_t i);

#endif
