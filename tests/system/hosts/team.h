/* tests/system/hosts/team.h - daemons on several hosts, as mpirun starts them on this machine, and runs on them. */
#ifndef TESTS_SYSTEM_HOSTS_TEAM_H
#define TESTS_SYSTEM_HOSTS_TEAM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define RUN_OF(model) " --model " model " --data text.txt --seq 32 --microbatch 2 --seed 7 --deterministic"
#define RUN           RUN_OF("model.json")

/* Three matrices of which norms of gradients are remembered. An epoch of 12 rows is 2 steps of 8. */
#define SAMPLED_OF(model, data)                                                                                        \
    " --model " model " --data " data " --microbatch 2 --seed 7 --deterministic --schedule constant "                  \
    "--approximate wta=0.3"
#define SAMPLED SAMPLED_OF("relu.json", "few.txt --seq 32")

enum { TEAM_HOSTS = 4, TEAM_WORKERS = 2 };

struct team {
    pid_t mpirun, workers[TEAM_HOSTS][TEAM_WORKERS];
};

bool team_has_mpirun(void);
#define TEAM_NEEDS "Open MPI is not installed: apt-get install libopenmpi-dev openmpi-bin, and build again"

/* A directory with the models and data of RUN and SAMPLED; RUN_OF also finds chunked.json, crossing.json and
 * part_norm.json, SAMPLED_OF t5.json and sums.jsonl. processes_remove ends it. */
void team_setup(void);

/* Where a host listens: hosts, or hosts-1 and so on. */
const char *team_host(uint32_t host);
/* options: mpirun's. */
struct team team_start_with(uint32_t n_hosts, uint32_t n_workers, const char *options);
struct team team_start(uint32_t n_hosts, uint32_t n_workers);
/* All end when host 0 is told to. */
void team_stop(const struct team *team);
/* One more worker of a host that has none. */
void team_attach(const char *host);
/* The daemon of a host, as it says in the log. */
pid_t team_daemon(const char *name);
/* The status of a process that ends within minutes. */
int team_await_end(pid_t pid);

/* connect: "" or " --connect hosts". */
void team_train(const char *connect, const char *options, const char *out);
/* While a run goes on: in the background, with all that it says in the file train. */
pid_t team_train_aside(const char *line);
/* Losses and norms, as they are printed, and the weights and moments. */
void team_check_same(const char *out, const char *other);

#endif
