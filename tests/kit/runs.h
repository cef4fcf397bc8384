/* tests/kit/runs.h - training runs of whose programs one is killed, in the working directory. Everything asserts. */
#ifndef TESTS_KIT_RUNS_H
#define TESTS_KIT_RUNS_H

#include <stdint.h>
#include <sys/types.h>

/* Kills the client of a private daemon, which was started by processes_start and writes to out, and waits for the
 * daemon, which saves. Returns the step of the latest checkpoint. */
uint64_t runs_kill_client(pid_t client, const char *out);

/* This command of eps train, whose steps take seconds in all, and the same with its worker killed behind the first of
 * them. Leaves the runs "left" and "killed". */
void runs_check_killed_command(const char *train);

#endif
