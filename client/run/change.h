/* client/run/change.h - what of a run was changed by name (--change) when it went on, and where that leaves its data.
 *
 * The record keeps a list, "changes", oldest first: {"step": N, "option": "lr", "from": 0.01, "to": 0.005}, where steps
 * up to N had the first value. So a checkpoint tells how it came about, and which windows its steps have seen: rows are
 * counted over the whole run, with the batch that each step had. */
#ifndef CLIENT_RUN_CHANGE_H
#define CLIENT_RUN_CHANGE_H

#include "proto/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The next name of a list with commas; *rest is what follows it, NULL at the end. False: there is none. */
bool client_change_next(char *name, size_t cap, const char **rest);

/* Whether the list, which may be NULL, has this name. */
bool client_change_names(const char *list, const char *name);

/* Whether a list is one that was written here, and ends with this batch. NULL is: nothing was changed. */
bool client_change_check(const json_t *changes, uint32_t batch);

/* Rows of the run before a step (from 0), whose present batch is this. */
uint64_t client_change_rows(const json_t *changes, uint32_t batch, uint64_t step);

/* The step from which on the batch is the present one; 0: it always was. */
uint64_t client_change_batch_step(const json_t *changes);

/* What was changed the i-th time: "after step 5: lr 0.01 to 0.005, batch 4 to 8". *step: after which. False: nothing,
 * there were not so many times. */
bool client_change_say(struct error *sentence, uint64_t *step, const json_t *changes, size_t i);

#endif
