#include "tests/system/hosts/team.h"

#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

bool team_has_mpirun(void)
{
    return access(BIN_DIR "/eps-mpi.so", F_OK) == 0 && system("command -v mpirun >/dev/null 2>&1") == 0;
}

/* Of the families that only tests have. */
#define LAYERED(family, blocks, more)                                                                                  \
    "{\"model_type\": \"" family "\", \"num_hidden_layers\": " #blocks ", \"num_attention_heads\": 4, "                \
    "\"num_key_value_heads\": 2, \"hidden_size\": 32, \"intermediate_size\": 40, \"max_position_embeddings\": 32, "    \
    "\"vocab_size\": 256" more "}"

#define LAYERED_T5                                                                                                     \
    "{\"model_type\": \"t5\", \"d_model\": 32, \"d_kv\": 8, \"d_ff\": 64, \"num_heads\": 4, \"num_layers\": 2, "       \
    "\"vocab_size\": 256, \"dropout_rate\": 0.1, \"feed_forward_proj\": \"relu\", "                                    \
    "\"relative_attention_num_buckets\": 8, \"relative_attention_max_distance\": 16, \"decoder_start_token_id\": 0, "  \
    "\"pad_token_id\": 0, \"eos_token_id\": 1}"

void team_setup(void)
{
    processes_setup();
    processes_know_families();
    processes_config_with("model.json", 3, 4, 64, 32, "\"attn_pdrop\": 0.1, \"resid_pdrop\": 0.1");
    processes_put_text("chunked.json", LAYERED("chunked", 3, ""));
    processes_put_text("crossing.json", LAYERED("crossing", 3, ", \"context_length\": 5"));
    processes_put_text("part_norm.json", LAYERED("part_norm", 2, ""));
    processes_text("text.txt", 16000);
    processes_config_with("relu.json", 3, 4, 64, 32, "\"activation_function\": \"relu\"");
    processes_put_text("t5.json", LAYERED_T5);
    processes_text("few.txt", 400);
    expect("for i in $(seq 24); do printf '{\"source\": \"%s and one\", \"target\": \"is %s\"}\\n' $i $((i + 1)); done "
           ">sums.jsonl",
           0);
}

const char *team_host(uint32_t host)
{
    static char names[TEAM_HOSTS][24];

    snprintf(names[host], sizeof *names, host ? "hosts-%u" : "hosts", host);
    return names[host];
}

struct team team_start_with(uint32_t n_hosts, uint32_t n_workers, const char *options)
{
    struct team team = {0};
    char line[600];

    snprintf(line, sizeof line,
             "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
             "OMPI_MCA_hwloc_base_binding_policy=none ASAN_OPTIONS=detect_leaks=0 exec mpirun %s -n %u %s/epsd --mpi "
             "--listen hosts >mpirun.log 2>&1 </dev/null",
             options, n_hosts, processes_programs());
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); /* ranks that mpirun leaves */
    team.mpirun = processes_start("/bin/sh", (const char *const[]){"-c", line, NULL}, NULL);
    for (uint32_t h = 0; h < n_hosts; h++) {
        processes_await_workers(team_host(h), 0);
        const char *const worker[] = {"--connect", team_host(h), "--device-mem", "64MiB", NULL};
        for (uint32_t k = 0; k < n_workers; k++)
            team.workers[h][k] = processes_start("eps-worker", worker, NULL);
    }
    for (uint32_t h = 0; h < n_hosts; h++)
        processes_await_workers(team_host(h), n_workers);
    return team;
}

struct team team_start(uint32_t n_hosts, uint32_t n_workers)
{
    return team_start_with(n_hosts, n_workers, "");
}

void team_stop(const struct team *team)
{
    expect("eps stop hosts", 0);
    ck_assert_int_eq(processes_wait(team->mpirun), 0);
    processes_await_nobody();
}

void team_train(const char *connect, const char *options, const char *out)
{
    char line[600];

    snprintf(line, sizeof line, "eps train%s %s --out %s", connect, options, out);
    expect(line, 0);
}

void team_attach(const char *host)
{
    processes_start("eps-worker", (const char *const[]){"--connect", host, "--device-mem", "64MiB", NULL}, NULL);
    processes_await_workers(host, 1);
}

void team_check_same(const char *out, const char *other)
{
    char line[300];

    snprintf(line, sizeof line,
             "for r in %s %s; do grep -oE '\"(step|loss|grad_norm)\": [^,}]*' $r/metrics.jsonl >$r.losses; done; "
             "test -s %s.losses && cmp %s.losses %s.losses",
             out, other, out, out, other);
    expect(line, 0);
    outputs_check_same_latest(out, other);
}

pid_t team_train_aside(const char *line)
{
    char all[600];

    snprintf(all, sizeof all, "%s >train 2>&1", line);
    return processes_start("/bin/sh", (const char *const[]){"-c", all, NULL}, NULL);
}

pid_t team_daemon(const char *name)
{
    char *log = processes_read("mpirun.log"), key[40];

    snprintf(key, sizeof key, "/%s, pid ", name);
    const char *at = strstr(log, key);
    ck_assert_msg(at != NULL, "no %s in %s", key, log);
    const pid_t pid = (pid_t)atoi(at + strlen(key));
    free(log);
    return pid;
}

int team_await_end(pid_t pid)
{
    int status = -1;

    for (int i = 0; i < 24 && status < 0; i++)
        status = processes_wait(pid);
    return status;
}
