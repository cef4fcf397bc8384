/* How a run begins: options from a file or from another run, its name and its directory; what is said of its data and
 * its disk; a run that ends before its first step; and how an evaluation follows the run that it is of. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(long)

#define SHAPE "--seq 16 --batch 4 --device-mem 64MiB --deterministic "
#define TRAIN "eps train --model tiny.json --data text.txt " SHAPE

static void setup(void)
{
    processes_setup();
    processes_config("tiny.json", 1, 2, 16, 32);
    processes_text("text.txt", 4000);
    expect(TRAIN "--out base --steps 6 --save-every 3 --lr 0.01 --clip-norm 2 --seed 7", 0);
}

SUITE_TIMEOUT(180)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* ---- options of another run, and of a file ---- */

TEST(a_run_like_another_is_that_run_again)
{
    expect("eps train --like base --out like -v", 0, "rate         0.01 to 0.001, cosine");
    outputs_check_same_latest("like", "base");
    outputs_check_same_metrics("like", "base", 6);
    expect("eps train --like base/step-3 --out step", 0, "step 6/6");
    expect("eps train --config base/latest/training.json --out file", 0, "step 6/6");
    outputs_check_same_latest("file", "base");
    expect("eps train --like file --out again --name ''", 2);
}

/* What is typed counts, and what the other run chose by it is chosen anew. */
TEST(options_of_the_command_line_win)
{
    static const struct {
        const char *typed, *said;
    } cases[] = {
        {"--lr 0.02", "rate         0.02 to 0.002, cosine"},
        {"--lr 0.0005", "rate         0.0005 to 5e-05, cosine"},
        {"--steps 2", "step 2/2"},
        {"--epochs 0.1", "step 7/7"}, /* 4000 bytes, of which 1 % is held out: 247 windows of 16, in batches of 4 */
        {"--batch 2 --steps 1", "1 of 2 sequences of 16 tokens"},
        {"--optimizer sgd --steps 1", "rate         0.1 to 0.01"},
        {"--no-save --steps 1", "checkpoints  none: --no-save"},
        {"--workers 2 --steps 1", "in 2 parts"},
        {"--schedule constant --steps 1", "rate         0.01 to 0.01, constant"},
    };

    for (int i = 0; i < COUNT(cases); i++)
        expect(print("rm -rf won; eps train --like base --out won -v %s", cases[i].typed), 0, cases[i].said);
}

TEST(a_file_has_options_as_a_checkpoint_stores_them)
{
    processes_put_text("run.json", quoted("{'model': 'tiny.json', 'data': ['text.txt'], 'steps': 6, 'batch': 4, "
                                          "'seq': 16, 'lr': 0.01, 'clip_norm': 2, 'seed': 7, 'device_mem': '64MiB', "
                                          "'deterministic': true, 'save_every': 3, 'microbatch': 'auto', "
                                          "'freeze': null, 'pack': false, 'schedule': 'cosine', "
                                          "'betas': [0.9, 0.999]}"));
    expect("eps train --config run.json --out written", 0);
    outputs_check_same_latest("written", "base");
    expect("eps train --config run.json --steps 1 --name typed", 0, "step 1/1", "runs/typed");
    processes_put_text("part.json", quoted("{'lr': 0.03, 'steps': 1}"));
    expect("eps train --like base --config part.json --out both -v", 0, "rate         0.03 to 0.003", "step 1/1");
}

TEST(a_file_that_is_no_options_is_refused_by_its_key)
{
    static const struct {
        const char *json;
        struct refusal refusal;
    } wrongs[] = {
        {"{'learning_rate': 1}",
         {"o.json", 2, "learning_rate is no option of eps train: it is called --lr here", NULL}},
        {"{'batc': 1}", {"o.json", 2, "batc is no option of eps train: did you mean batch?", NULL}},
        {"{'frobnicate': 1}", {"o.json", 2, "frobnicate is no option of eps train", NULL}},
        {"{'resume': 'base'}", {"o.json", 2, "resume is for the command line alone", NULL}},
        {"{'lr': 'high'}", {"o.json", 2, "its value of lr is none of those that --lr X takes", NULL}},
        {"{'pack': 1}", {"o.json", 2, "--pack (true, false) takes", NULL}},
        {"{'batch': -4}", {"o.json", 2, "--batch N takes", NULL}},
        {"{'schedule': 'cosin'}", {"o.json", 2, "--schedule cosine|linear", NULL}},
        {"{'data': [1]}", {"o.json", 2, "--data FILE... takes", NULL}},
        {"{'device_mem': '12Q'}", {"o.json", 2, "--device-mem: '12Q' is not a size", NULL}},
        {"{'model_type': 'gpt2', 'n_layer': 1}", {"o.json", 2, "is a model's config.json: that is for --model", NULL}},
        {"[1]", {"o.json", 1, "it is no object", "{\"lr\": 1e-4, \"batch\": 32}"}},
        {"lr: 1e-4", {"o.json", 1, "a file of options is JSON", NULL}},
    };

    for (int i = 0; i < COUNT(wrongs); i++) {
        struct refusal refusal = wrongs[i].refusal;
        processes_put_text("o.json", quoted(wrongs[i].json));
        refusal.command = "eps train --config o.json --out none";
        expect_refusal(&refusal);
    }
    processes_put_text("a.yaml", "lr: 1e-4\n");
    expect_sentence(TRAIN "--config a.yaml --out none", 1, "YAML is not read here");
    expect_sentence(TRAIN "--config absent --out none", 1, "--config: absent: No such file");
    expect_sentence("eps train --like absent --out none", 1, "--like absent: No such file");
    expect_sentence("eps train --like . --out none", 1, "--like .: no checkpoint (step-N) is in it");
    expect_sentence("eps train --like base --resume base", 2, "--like does not go with --resume");
    expect_sentence("eps train --config run.json --attach lab", 2, "--config does not go with --attach");
    ck_assert_int_ne(access("none", F_OK), 0);
}

/* What a run stores whatever its task does not stand in the way of a run of another task; what somebody wrote does. */
TEST(a_run_of_another_task_takes_what_it_has_use_for)
{
    processes_put_text("rows.jsonl", quoted("{'prompt': 'a b', 'completion': ' c'}\n"
                                            "{'prompt': 'd e', 'completion': ' f'}\n"
                                            "{'prompt': 'g h', 'completion': ' i'}\n"));
    expect("eps train --like base --data rows.jsonl --steps 1 --batch 2 --out rows -v", 0,
           "rows         3 conversations");
    expect_sentence("eps train --like base --data rows.jsonl --separator none --steps 1 --batch 2 --out none", 2,
                    "--separator", "");
    processes_put_text("separated.json", quoted("{'separator': 'none'}"));
    expect_sentence("eps train --config separated.json --model tiny.json --data rows.jsonl --batch 2 --out none", 2,
                    "--separator", "");
}

/* ---- the name and the directory ---- */

TEST(a_run_has_the_directory_of_its_name)
{
    expect(TRAIN "--name first --steps 1", 0, "saves        runs/first, ");
    ck_assert_uint_eq(outputs_latest("runs/first"), 1);
    expect_sentence(TRAIN "--name first --steps 1", 1, "--out runs/first holds a run already");
    expect_sentence(TRAIN "--name a/b --steps 1", 2, "--name 'a/b': it is a directory's in runs/",
                    "--out takes a path");
    expect_sentence(TRAIN "--name .. --steps 1", 2, "--name '..'");
    expect_sentence(TRAIN "--name x --out y --steps 1", 2, "--name x makes runs/x the run's directory, and --out y");
}

TEST(a_directory_of_other_files_is_not_mixed_with_a_run)
{
    expect("mkdir -p used kept/.git && echo mine >used/notes.txt && touch kept/.keep kept/log", 0);
    expect_sentence(
        TRAIN "--out used --steps 1", 1,
        "--out used holds other files (notes.txt), and no run: choose a new directory, as in --out used/run");
    ck_assert_str_eq(outputs_names("used"), "notes.txt ");
    expect(TRAIN "--out used/run --steps 1", 0);
    expect(TRAIN "--out kept --steps 1", 0); /* hidden files, and where a shell writes what is said */
    expect_sentence("eps train --resume base --steps 8 --grow 1 --out used", 1, "--out used holds other files");
}

/* ---- before the first step ---- */

TEST(a_dry_run_ends_with_the_plan_and_leaves_nothing)
{
    expect("rm -rf dry; " TRAIN "--out dry --steps 5 --trace t.json --tensorboard events --mirror copy --dry-run -v", 0,
           "plan         micro-batches of", "planned      device", "dry run      ends before the first step");
    expect_absent("out", "step 1/5", "memory       ");
    ck_assert_msg(access("dry", F_OK) && access("t.json", F_OK) && access("events", F_OK) && access("copy", F_OK),
                  "something was made");
    expect("cp -r base whole && eps train --resume whole --steps 8 --dry-run && diff -r -x log base whole", 0,
           "plan         ");
    expect_sentence(TRAIN "--device-mem 1MiB --out dry --dry-run", 1, "--device-mem"); /* what does not fit is said */
    expect_sentence("eps train --attach lab --dry-run", 2, "--dry-run does not go with --attach");
}

/* The daemon has let go of the job: another one is not kept waiting. */
TEST(a_dry_run_at_a_daemon_closes_its_job)
{
    pid_t workers[1];
    const pid_t daemon = processes_daemon("lab", 1, workers);
    static const char job[] = "eps train --connect lab --model tiny.json --data text.txt --seq 16 --batch 4 --steps 2 ";

    expect(print("%s --out dry --dry-run", job), 0, "plan         ");
    processes_await_state("lab", "idle");
    ck_assert_int_ne(access("dry", F_OK), 0);
    expect(print("%s --out wet", job), 0, "step 2/2");
    expect_stop(daemon);
}

TEST(a_quiet_run_prints_nothing_but_errors)
{
    expect("rm -rf quiet; " TRAIN "--out quiet --steps 2 --quiet", 0);
    ck_assert_str_eq(command_out(), "");
    ck_assert_str_eq(command_err(), "");
    ck_assert_uint_eq(processes_count("quiet/metrics.jsonl", "\n"), 2);
    expect_sentence(TRAIN "--out quiet --steps 2 --quiet", 1, "--out quiet holds a run already");
    expect("eps generate --model base --prompt a --tokens 2 --quiet", 0, "a");
    ck_assert_str_eq(command_err(), "");
    expect("eps eval --model base --data text.txt --quiet", 0, "loss ");
    ck_assert_str_eq(command_err(), "");
}

/* The variable that OpenMP reads, in the processes that the run starts. */
TEST(processes_of_a_run_have_the_threads_that_it_says)
{
    static const char *const argv[] = {"train",    "--model",      "tiny.json", "--data",
                                       "text.txt", "--seq",        "16",        "--batch",
                                       "4",        "--steps",      "100000",    "--out",
                                       "threads",  "--save-every", "0",         "--threads",
                                       "3",        "--device-mem", "64MiB",     NULL};
    const pid_t run = processes_start("eps", argv, NULL);

    processes_await_text("threads/metrics.jsonl", "\n");
    const pid_t worker = processes_find("eps-worker"), daemon = processes_find("epsd");
    expect(print("tr '\\0' '\\n' </proc/%d/environ | grep OMP_NUM && tr '\\0' '\\n' </proc/%d/environ | grep OMP_NUM",
                 (int)worker, (int)daemon),
           0, "OMP_NUM_THREADS=3\nOMP_NUM_THREADS=3\n");
    kill(run, SIGINT);
    ck_assert_int_eq(processes_wait(run), 130);
    expect_sentence(TRAIN "--connect lab --threads 3", 2, "--threads 3 does not go with --connect lab");
    expect_sentence(TRAIN "--threads 2000", 2, "--threads 2000 is more than 1024");
    expect_sentence(TRAIN "--threads 0", 2, "--threads '0': a whole number");
}

/* ---- notes ---- */

TEST(data_that_tell_nothing_are_named)
{
    processes_put_text("blank.txt", "  \n\t\n   \r\n");
    expect("cp text.txt copy.txt", 0);
    expect(TRAIN "--data text.txt blank.txt --eval-data text.txt --steps 1 --out futile", 0,
           "note         --data blank.txt: nothing but white space",
           "note         --eval-data text.txt: it is trained on, too");
    expect(TRAIN "--eval-data copy.txt --steps 1 --out copied", 0, "--eval-data copy.txt: it is trained on, too");
    processes_put_text("blanks.jsonl", quoted("{'text': '  '}\n{'text': '   '}\n"));
    expect(TRAIN "--data blanks.jsonl text.txt --steps 1 --out lines", 0,
           "note         --data blanks.jsonl: nothing but white space");
    expect(TRAIN "--steps 1 --out told", 0);
    expect_absent("out", "white space", "trained on, too");
}

/* On a file system of its own, where user name spaces allow that. A checkpoint takes about 110 KiB. */
static bool has_mounts(void)
{
    return system("unshare -rm bash -c 'mount -t tmpfs none /tmp' 2>/dev/null") == 0;
}

TEST_IF(a_disk_that_is_too_small_for_all_checkpoints_is_named, has_mounts())
{
    static const char note[] = "note         the disk is too small for the run's checkpoints: ";

    expect("mkdir -p disk; unshare -rm bash -c 'mount -t tmpfs -o size=300k none disk; " TRAIN
           "--steps 9 --save-every 1 --dry-run --out disk/run'",
           0, note, "choose --out on another disk");
    expect("mkdir -p disk; unshare -rm bash -c 'mount -t tmpfs -o size=3m none disk; " TRAIN
           "--steps 9 --save-every 1 --dry-run --out disk/run'",
           0);
    expect_absent("out", note);
}

/* ---- of a run ---- */

/* As the run has measured it; 32 are the model's positions. */
TEST(eval_reads_a_text_as_the_run_did)
{
    expect(TRAIN "--eval-data text.txt --eval-tokens 0 --steps 2 --out measured", 0);
    outputs_check_held_out("measured", "--data text.txt");
    expect("eps eval --model measured --data text.txt 2>&1", 0,
           "sequences have 16 tokens, as in the training of this model (--seq)");
    expect("eps eval --model measured --data text.txt --seq 32", 0);
    ck_assert_ptr_null(strstr(command_err(), "sequences have"));
    expect("eps train --like measured --seq 32 --out usual && eps eval --model usual --data text.txt", 0);
    ck_assert_ptr_null(strstr(command_err(), "sequences have"));
}

TEST(letters_are_options_where_they_have_a_meaning)
{
    static const char whole[] = "eps generate --model base --prompt ab --tokens 4 --temperature 0 --stop x";

    expect(whole, 0);
    char *const text = strdup(command_out());
    expect("eps generate -m base -p ab -n 4 --temperature 0 --stop x", 0);
    ck_assert_str_eq(command_out(), text);
    expect("eps generate --stop x -m base -p ab -n 4 --temperature 0", 0); /* a list of texts ends there */
    ck_assert_str_eq(command_out(), text);
    free(text);
    expect("eps eval -m base --data text.txt", 0, "loss ");
    expect("eps generate --help", 0, "-m is --model, -p --prompt, -n --tokens.\n");
    expect("eps train --help", 0, "-m is --model, -v --verbose.\n");
    expect_sentence("eps status -m base", 2, "-m is not an option");
    expect_sentence("eps chat -m base -p hello", 2, "-p is not an option: ", "--system is the system message");
}
