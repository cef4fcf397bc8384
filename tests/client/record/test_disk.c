/* What checkpoints take on disk: as it is predicted; and runs that could not save their first one, which are refused
 * before their first step. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/record/disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TRAIN "eps train --model tiny.json --data text.txt --seq 16 --batch 4 --device-mem 64MiB --steps 3 "

static void set_up(void)
{
    processes_setup();
    processes_config("tiny.json", 2, 2, 16, 32);
    processes_text("text.txt", 4000);
}

SUITE_TIMEOUT(60)
SUITE_FIXTURE(set_up, processes_remove)

TEST(the_most_at_once_are_those_kept_the_best_and_the_one_being_written)
{
    static const struct {
        uint64_t steps, save_every, eval_every;
        uint32_t keep;
        double save_minutes;
        uint64_t most;
    } runs[] = {
        {100, 10, 0, 2, 0, 3},        {100, 10, 5, 2, 0, 4},  {100, 10, 0, 0, 0, 10},  {95, 10, 0, 0, 0, 10},
        {100, 0, 0, 2, 10, 1},        {100, 100, 0, 2, 0, 1}, {100, 60, 0, 2, 0, 2},   {100, 0, 10, 2, 0, 1},
        {100, 10, 5, 2, 1, 5},        {100, 100, 0, 2, 1, 2}, {100, 10, 50, 0, 0, 11}, {100, UINT64_MAX, 10, 2, 10, 5},
        {3, UINT64_MAX, 3, 2, 10, 2},
    };

    for (int i = 0; i < COUNT(runs); i++) {
        struct eps_train_options o = eps_train_defaults();
        o.steps = runs[i].steps, o.save_every = runs[i].save_every, o.eval_every = runs[i].eval_every;
        o.keep = runs[i].keep, o.save_minutes = runs[i].save_minutes;
        ck_assert_msg(client_disk_most(&o) == runs[i].most, "%d: %ju", i, (uintmax_t)client_disk_most(&o));
    }
}

static uint64_t file_bytes(const char *directory, const char *name)
{
    struct stat st;

    ck_assert_int_eq(stat(print("%s/%s", directory, name), &st), 0);
    return (uint64_t)st.st_size;
}

static void on_disk(void *user, uint64_t checkpoint_bytes, uint64_t n_most, uint64_t free_bytes)
{
    ck_assert_uint_eq(n_most, 2); /* the last one, and an interim one before it */
    ck_assert_uint_gt(free_bytes, checkpoint_bytes);
    *(uint64_t *)user = checkpoint_bytes;
}

/* With frozen tensors, which have no moments. The room beside the two large files is for texts alone. */
TEST_EACH(a_checkpoint_takes_what_the_plan_and_the_run_say, 2)
{
    static const char *const files[] = {"text.txt"};
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "config.json",
                                        "training.json",     "tokenizer.json",        "tokenizer_config.json"};
    const struct eps_train_events events = {.on_disk = on_disk};
    struct eps_train_options o = processes_options("tiny.json", files, "out");
    uint64_t told = 0, written = 0;
    struct eps_error error;
    struct eps_plan plan;

    o.steps = 1, o.batch = 4, o.seq = 16, o.freeze = _i ? "wte.*" : NULL;
    ck_assert_msg(eps_train(&o, &events, &told, &error) == 0, "%s", error.text);
    ck_assert_msg(eps_plan(&plan, &o, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(plan.checkpoint_bytes, told);
    ck_assert_str_eq(outputs_names("out/step-1"), "config.json model.safetensors optimizer.safetensors tokenizer.json "
                                                  "tokenizer_config.json training.json ");
    for (int i = 0; i < COUNT(names); i++)
        written += file_bytes("out/step-1", names[i]);
    ck_assert_uint_ge(told, written);
    ck_assert_uint_le(told, written + (16 << 10));
}

static void refused(const char *command, const char *first, const char *second)
{
    expect_sentence(command, 1, first, second);
    ck_assert_str_eq(command_out(), "");
    ck_assert_int_eq(system("test ! -e run || test -z \"$(ls -A run)\""), 0);
}

/* Of the second file, which is twice as large as the first one, and of the first. */
TEST_EACH(a_limit_of_file_sizes_refuses_the_run, 2)
{
    const int limit = _i ? 60 : 10; /* KiB */

    refused(print("bash -c 'ulimit -f %d; " TRAIN "--out run'", limit), "run: its first checkpoint, of ",
            "could not be saved: File too large; raise the limit of file sizes (ulimit -f)");
    expect("bash -c 'ulimit -f 100; " TRAIN "--out run'", 0, " each, at most ");
    expect_sentence(print("bash -c 'ulimit -f %d; eps train --resume run --steps 4'", limit), 1,
                    "could not be saved: File too large");
    ck_assert_uint_eq(outputs_latest("run"), 3);
    ck_assert_uint_lt(file_bytes("run/step-3", "model.safetensors"), 60 << 10);
    ck_assert_uint_gt(file_bytes("run/step-3", "optimizer.safetensors"), 60 << 10);
}

/* On a file system of its own, where user name spaces allow that. */
static bool has_mounts(void)
{
    return system("unshare -rm bash -c 'mount -t tmpfs none /tmp' 2>/dev/null") == 0;
}

TEST_IF(a_disk_that_is_too_small_refuses_the_run, has_mounts())
{
    refused("mkdir disk; unshare -rm bash -c 'mount -t tmpfs -o size=80k none disk; " TRAIN "--out disk/run'",
            "disk/run: its first checkpoint, of ", "could not be saved: No space left on device; make room there");
    refused("unshare -rm bash -c 'mount -t tmpfs -o size=80k none disk; " TRAIN "--host-mem 100KiB --out disk/run'",
            "this model needs ", " of host memory");
}

/* Neither at its end, nor where it is stopped, resumed or its model asked for; and the losses are those of a run that
 * saves. */
TEST_IF(a_run_without_checkpoints_asks_for_no_room, has_mounts())
{
    expect("mkdir disk; unshare -rm bash -c 'mount -t tmpfs -o size=80k none disk; " TRAIN
           "--no-save --eval-every 1 --out disk/run && ls disk/run | grep -v report.svg >left && cp "
           "disk/run/metrics.jsonl .'",
           0, "saves        nothing (--no-save)", "files        steps in disk/run/metrics.jsonl");
    expect("cat left", 0, "log\nmetrics.jsonl\n");
    expect(TRAIN "--eval-every 1 --out run", 0);
    expect("for f in metrics.jsonl run/metrics.jsonl; do sed 's/.*\"loss\": \\([^,]*\\),.*/\\1/' $f >$f.losses; done; "
           "wc -l <metrics.jsonl.losses && cmp metrics.jsonl.losses run/metrics.jsonl.losses",
           0, "3\n");
}

TEST(a_resumed_run_may_go_on_without_checkpoints)
{
    expect(TRAIN "--save-every 1 --keep 0 --out run", 0);
    expect("eps train --resume run --no-save --steps 5 && ls -d run/step-*", 0, "run/step-1\nrun/step-2\nrun/step-3\n");
    expect("eps train --resume run/step-2 --no-save --out other && ls other | grep -v report.svg", 0,
           "log\nmetrics.jsonl\n");
    expect_sentence("eps train --resume other", 1, "other: its run ended before its first checkpoint", "");
}

TEST_EACH(options_on_checkpoints_do_not_go_without_them, 8)
{
    static const char *const options[] = {"--save-every 2",
                                          "--save-every 0",
                                          "--save-minutes 3",
                                          "--keep 1",
                                          "--mirror copy",
                                          "--freeze wte.* --freeze-until 2",
                                          "--resume run --grow 1 --out larger",
                                          "--resume run --replace 0=80 --out larger"};
    const char *given = options[_i], *end = strchr(given, ' ');
    const char *name = _i == 5   ? "--freeze-until 2"
                       : _i == 6 ? "--grow"
                       : _i == 7 ? "--replace"
                                 : print("%.*s", (int)(end - given), given);
    const char *const command = _i < 6 ? TRAIN "--out none" : "eps train";

    expect_sentence(print("%s --no-save %s", command, given), 2, name, "--no-save");
    expect("test ! -e none && test ! -e copy && test ! -e larger", 0);
}

TEST_IF(a_disk_that_takes_nothing_refuses_the_run, has_mounts())
{
    refused("mkdir disk; unshare -rm bash -c 'mount -t tmpfs none disk && mkdir disk/run && mount -o remount,ro "
            "disk; " TRAIN "--out disk/run'",
            "disk/run/step-0.partial could not be made: Read-only file system", "; make the directory writable");
}

/* A page has room for the events of some steps. The run says once that they end, and goes on. */
TEST_IF(events_end_where_their_disk_is_full, has_mounts())
{
    expect("mkdir disk; unshare -rm bash -c 'mount -t tmpfs -o size=4k none disk; " TRAIN
           "--steps 60 --save-every 60 --tensorboard disk/events --out run >said && cat disk/events/* >kept'",
           0);
    expect("grep -c 'the events in disk/events end at step .*: No space left on device; training goes on' said && "
           "wc -c <kept && wc -l <run/metrics.jsonl && readlink run/latest",
           0, "1\n4096\n60\nstep-60\n");
}

TEST_IF(a_full_disk_for_events_refuses_the_run, has_mounts())
{
    refused(
        "mkdir disk; unshare -rm bash -c 'mount -t tmpfs -o size=4k none disk; head -c 4096 /dev/zero >disk/x; " TRAIN
        "--tensorboard disk/events --out run'",
        "--tensorboard disk/events: No space left on device", "");
}
