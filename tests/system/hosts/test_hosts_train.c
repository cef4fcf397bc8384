/* Training on several hosts: real programs, real files. What they make equals what one daemon makes of the same parts,
 * byte for byte. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/puppet.h"
#include "tests/kit/test.h"
#include "tests/system/hosts/team.h"

#include <signal.h>
#include <stdio.h>

SUITE_LABELS(long, slow)
SUITE_TIMEOUT(180)
SUITE_SKIP_UNLESS(team_has_mpirun(), TEAM_NEEDS)
SUITE_FIXTURE(team_setup, processes_remove)

/* Of hosts that have so many workers each, one job after another. */
static const struct {
    uint32_t n_hosts, n_workers;
    const char *jobs[6];
} settings[] = {
    {3,
     2,
     {RUN " --steps 4 --batch 10 --parts 5 --optimizer adamw --precision bf16 --master none --save-every 1", /* uneven
                                                                                                          * shares */
      RUN_OF("part_norm.json") " --steps 4 --batch 18 --parts 6 --optimizer adamw --precision bf16",
      SAMPLED " --steps 6 --batch 10 --parts 5 --optimizer adamw --precision bf16 --grad-dtype bf16",
      SAMPLED_OF("t5.json", "sums.jsonl --seq 64 --source-seq 24") " --steps 6 --batch 10 --parts 5"}},
    {4, 1, {RUN " --steps 4 --batch 8 --parts 4 --optimizer adama --clip-update 0.5"}},
    {3,
     1,
     {RUN " --steps 4 --batch 6 --parts 3 --optimizer adamw --clip-norm 1 --precision bf16 --sums bf16 --freeze h.0.*",
      RUN " --steps 4 --batch 6 --parts 3 --optimizer adamw --freeze 'h.*.c_*.weight' wpe.* --base int8",
      SAMPLED " --steps 6 --batch 6 --parts 3 --optimizer adamw --clip-norm 0.5", /* fenced */
      RUN " --steps 4 --batch 6 --parts 3 --optimizer sgd --weight-decay 0.1 --precision bf16 --moments bf16"}},
    {2,
     2,
     {RUN_OF("chunked.json") " --steps 4 --batch 8 --parts 4 --optimizer adamw --freeze layers.1.mlp.[12].*",
      RUN " --steps 4 --batch 8 --parts 4 --optimizer sgd --nesterov --weight-decay 0.1"}},
    {2,
     1,
     {RUN " --steps 4 --batch 8 --parts 4 --optimizer adamw --freeze h.0.mlp.* wte.* --freeze-until 2",
      RUN_OF("crossing.json") " --steps 4 --batch 8 --parts 4 --optimizer adama",
      SAMPLED " --steps 7 --batch 8 --parts 4 --optimizer adama --save-every 1", /* of several epochs */
      SAMPLED " --steps 6 --batch 8 --parts 4 --freeze h.0.* wte.* --freeze-until 3"}},
};

TEST_EACH(hosts_train_the_bits_of_one, COUNT(settings))
{
    const struct team team = team_start(settings[_i].n_hosts, settings[_i].n_workers);

    for (int i = 0; settings[_i].jobs[i]; i++) {
        char one[16], several[16];
        snprintf(one, sizeof one, "one-%d", i), snprintf(several, sizeof several, "several-%d", i);
        team_train("", settings[_i].jobs[i], one);
        team_train(" --connect hosts", settings[_i].jobs[i], several);
        team_check_same(one, several);
    }
    team_stop(&team);
}

/* Each host needs one: the sentences name the daemon that has none. */
TEST(a_run_waits_for_a_worker_on_every_host)
{
    const struct team team = team_start(2, 0);
    const char *const line[] = {
        "-c", print("exec %s/eps train" RUN " --steps 1 --batch 4 --connect hosts --out run >said", BIN_DIR), NULL};

    processes_worker("hosts", "64MiB", NULL);
    processes_await_workers("hosts", 1);
    expect("eps train" RUN " --steps 1 --batch 4 --connect hosts --out none --wait 0", 1, "hosts-1 has no worker",
           "eps-worker --connect hosts-1");
    const pid_t run = processes_start("/bin/sh", line, NULL);
    processes_await_text("said", "waiting for a worker to attach to the daemon hosts-1");
    processes_worker("hosts-1", "64MiB", NULL);
    ck_assert_int_eq(processes_wait(run), 0);
    team_stop(&team);
}

/* Those of both hosts, as host 0 was told. */
TEST(a_step_has_as_many_parts_as_there_are_workers)
{
    const struct team team = team_start(2, 2);

    expect("until eps status hosts --json | grep -q '\"workers_elsewhere\": 2'; do :; done", 0);
    expect("eps status hosts", 0, "2 workers and 2 on other hosts, pid ");
    expect("eps status hosts-1", 0, "2 workers, pid ");
    expect("eps train --connect hosts" RUN " --steps 2 --batch 8 --out several -v", 0, "in 4 parts");
    kill(team.workers[1][0], SIGTERM);
    expect("until eps status hosts --json | grep -q '\"workers_elsewhere\": 1'; do :; done", 0);
    team_stop(&team);
}

/* Also one job after another, with other sizes, of the same daemons. */
TEST(a_run_of_three_hosts_resumes_on_two_and_on_one)
{
    struct team team = team_start(3, 1);

    team_train("", RUN " --steps 6 --batch 8 --parts 4 --save-every 2 --keep 0", "one");
    team_train(" --connect hosts", RUN " --steps 2 --batch 6 --parts 3", "other");
    team_train(" --connect hosts", RUN " --steps 6 --batch 8 --parts 4 --save-every 2 --keep 0", "three");
    team_check_same("one", "three");
    team_stop(&team);
    outputs_check_same("one/step-2", "three/step-2", "model.safetensors");
    outputs_check_same("one/step-2", "three/step-2", "optimizer.safetensors");
    team = team_start(2, 1);
    team_train(" --connect hosts", "--resume three/step-2", "two");
    outputs_check_same_latest("one", "two");
    team_stop(&team);
    team_train("", "--resume three/step-4", "alone");
    outputs_check_same_latest("one", "alone");
}

/* In their second epoch and later, with norms of gradients. */
TEST(a_sampled_run_goes_on_from_one_host_on_several_and_back)
{
    struct team team = team_start(3, 1);
    const char *const job = SAMPLED " --steps 9 --batch 8 --parts 4 --save-every 3 --keep 0";

    expect(print("eps train%s --out one", job), 0, "norms of gradients are remembered for 3 matrices: ");
    expect(print("eps train --connect hosts%s --out three", job), 0,
           "norms of gradients are remembered for 3 matrices: ");
    team_check_same("one", "three");
    team_train(" --connect hosts", "--resume one/step-3", "there");
    outputs_check_same_latest("one", "there");
    team_stop(&team);
    team = team_start(2, 1);
    team_train(" --connect hosts", "--resume three/step-6", "two");
    outputs_check_same_latest("one", "two");
    team_stop(&team);
    team_train("", "--resume three/step-3", "back");
    outputs_check_same_latest("one", "back");
}

/* An adapter's matrices have nothing that is worth remembering. */
TEST(hosts_train_adapters_by_sampled_gradients_as_one)
{
    const struct team team = team_start(2, 1);
    const char *const job = " --model base/latest --data few.txt --seq 32 --microbatch 2 --seed 7 --deterministic "
                            "--lora rank=4,targets=c_attn,c_proj --approximate wta=0.3 --steps 6 --batch 8 --parts 4";

    team_train("", RUN_OF("relu.json") " --steps 2 --batch 4", "base");
    team_train("", job, "one");
    team_train(" --connect hosts", job, "several");
    team_check_same("one", "several");
    team_stop(&team);
}

/* It has no other, so the client waits for one. */
TEST(a_worker_of_another_host_is_left_out)
{
    const struct team team = team_start(2, 0);

    puppet_start("hosts-1", PUPPET_REFUSES);
    team_train("", RUN " --steps 4 --batch 8 --parts 4 --save-every 4", "one");
    team_attach("hosts");
    processes_await_workers("hosts-1", 1);
    const pid_t run = team_train_aside("exec " BIN_DIR "/eps train --connect hosts" RUN
                                       " --steps 4 --batch 8 --parts 4 --save-every 4 --out several");
    processes_await_text("train", "(cpu of host 1 on stage) is left out: no arena");
    processes_await_text("train", "host 1: no worker is left that can do this job: worker ");
    processes_await_text("train", "; waiting for another worker to attach");
    processes_start("eps-worker", (const char *const[]){"--connect", "hosts-1", "--device-mem", "64MiB", NULL}, NULL);
    ck_assert_int_eq(team_await_end(run), 0);
    team_check_same("one", "several");
    team_stop(&team);
}

/* By hand: host 0 owns both tables and half of the blocks; host 1 the others, and has a copy of the tables. Each has 3
 * slots, since it has one part, and a second buffer of all but the slots. The blocks are many, so that tables count. */
TEST(a_host_has_its_own_units_and_a_few_slots_for_others)
{
    enum { WIDTH = 64, BLOCK = 12 * WIDTH * WIDTH + 13 * WIDTH, TABLES = (256 + 32) * WIDTH, NORM = 2 * WIDTH };
    static const double own[] = {TABLES + 30 * BLOCK, TABLES + 30 * BLOCK + NORM};
    const struct team team = team_start(2, 1);

    processes_config_with("deep.json", 60, 4, WIDTH, 32, "");
    const pid_t run =
        team_train_aside("exec " BIN_DIR "/eps train --connect hosts --model deep.json --data text.txt --seq 32 "
                         "--steps 100000 --batch 4 --parts 2 --save-every 0 --out several");
    processes_await_text("several/metrics.jsonl", "\"step\": 3,");
    for (uint32_t h = 0; h < 2; h++) {
        char line[64];
        snprintf(line, sizeof line, "eps mem %s --json", team_host(h));
        json_t *memory = expect_json(line, 0);
        ck_assert_double_eq(json_number_at(memory, "host.categories.weights.current"), 4 * (own[h] + 3 * BLOCK));
        ck_assert_double_eq(json_number_at(memory, "host.categories.replay.current"), 4 * own[h]);
        ck_assert_double_eq(json_number_at(memory, "host.current"), json_number_at(memory, "host.planned"));
        json_decref(memory);
    }
    expect("eps stop hosts 1", 0);
    ck_assert_int_eq(team_await_end(run), 1);
    team_stop(&team);
}

/* By hand, of 3 blocks with one such matrix each: host 0 has one, host 1 two. Of each, 2 bytes for each token of the
 * data and of a minibatch of 8 rows of 32, and 8; and the entries of two minibatches. In checkpoints they are whole. */
TEST(a_host_remembers_the_norms_of_its_own_units)
{
    enum { TOKENS = 8 * 32, DATA = 400 };
    static const double n_maps[] = {1, 2};
    const struct team team = team_start(2, 1);

    const pid_t run = team_train_aside("exec " BIN_DIR "/eps train --connect hosts" SAMPLED
                                       " --steps 100000 --batch 8 --parts 2 --save-every 0 --out several");
    processes_await_text("several/metrics.jsonl", "\"step\": 3,");
    for (uint32_t h = 0; h < 2; h++) {
        json_t *memory = expect_json(print("eps mem %s --json", team_host(h)), 0);
        ck_assert_double_eq(json_number_at(memory, "host.categories.norms.current"),
                            n_maps[h] * (2 * (DATA + TOKENS) + 8) + 2 * 4 * TOKENS);
        ck_assert_double_eq(json_number_at(memory, "host.current"), json_number_at(memory, "host.planned"));
        json_decref(memory);
    }
    expect("eps stop hosts 1", 0);
    ck_assert_int_eq(team_await_end(run), 1);
    team_stop(&team);
}

/* In the middle of a step, in which another host's worker computes all that it had: by the norms that the step
 * found. */
TEST(a_worker_that_is_lost_changes_no_norms)
{
    const struct team team = team_start(2, 2);
    const char *const job = SAMPLED " --steps 24 --batch 8 --parts 4 --save-every 8";

    const pid_t run = team_train_aside(print("exec " BIN_DIR "/eps train --connect hosts%s --out several", job));
    processes_await_text("several/metrics.jsonl", "\"step\": 4,");
    kill(team.workers[1][0], SIGKILL);
    processes_await_text("several/metrics.jsonl", "\"step\": 9,");
    kill(team.workers[0][1], SIGKILL);
    ck_assert_int_eq(team_await_end(run), 0);
    expect_file("train", "(cpu of host 1) was lost after");
    team_train("", job, "one");
    team_check_same("one", "several");
    team_stop(&team);
}
