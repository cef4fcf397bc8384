/* tests/kit/runs.h - training runs of one model and data, in other circumstances, in the working directory: each leaves
 * the same bytes. Everything asserts. */
#ifndef TESTS_KIT_RUNS_H
#define TESTS_KIT_RUNS_H

#include "client/eps.h"

#include <sys/types.h>

/* The least memory, and then more: of the stash, of what is kept and of the weights, more lies on the device. Runs that
 * were stopped after step 2 go on with the least, and with much. job: the model and its numbers, for `eps train`; data:
 * its rows and "--save-every 2"; plan: what `eps plan` must be told beside the job, or "". */
void runs_check_budgets(const char *job, const char *data, const char *plan);

/* One worker alone; three, of which one is killed behind step 2, and the others redo its parts. Changes options; leaves
 * the runs "alone" and "three". */
void runs_check_killed(struct eps_train_options *options);
/* Kills the client of a private daemon, which was started by processes_start and writes to out, and waits for the
 * daemon, which saves. Returns the step of the latest checkpoint. */
uint64_t runs_kill_client(pid_t client, const char *out);

/* This command of eps train, whose steps take seconds in all, and the same with its worker killed behind the first of
 * them. Leaves the runs "left" and "killed". */
void runs_check_killed_command(const char *train);

#endif
