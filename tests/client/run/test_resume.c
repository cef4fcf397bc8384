/* Runs that stop and go on, with real processes: the same bits as if they had never stopped, and what is refused.
 * Killed runs: tests/system/chaos.sh. Every optimizer and number: tests/system/exact/test_train_modes.c. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

SUITE_LABELS(long)

enum { N_STEPS = 6 };

/* Dropout, so that random bits must go on too; as small as its layers allow. */
static void setup(void)
{
    processes_setup();
    processes_config_with("model.json", 2, 2, 16, 16, "\"attn_pdrop\": 0.2, \"embd_pdrop\": 0.1, \"resid_pdrop\": 0.1");
    processes_text("text.txt", 4000);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE(setup, processes_remove)

/* What a run hears and does. */
struct script {
    uint64_t stop_after; /* step after which it is to stop; UINT64_MAX: never, 0: from the beginning */
    int level;
    void (*act)(uint64_t step);
    uint64_t done, saved_first;
    unsigned n_saved, n_save_failed, n_notes;
    char why[512];
};

static void on_step(void *user, const struct eps_step *step)
{
    struct script *s = user;

    s->done = step->step;
    if (s->act)
        s->act(step->step);
}

static void on_saved(void *user, uint64_t step, const char *path)
{
    struct script *s = user;

    ck_assert_int_eq(access(path, F_OK), 0);
    if (s->n_saved++ == 0)
        s->saved_first = step;
}

static void on_save_failed(void *user, uint64_t step, const char *why)
{
    struct script *s = user;

    (void)step;
    s->n_save_failed++;
    snprintf(s->why, sizeof s->why, "%s", why);
}

static void on_note(void *user, const char *sentence)
{
    struct script *s = user;

    (void)sentence;
    s->n_notes++;
}

static int should_stop(void *user)
{
    const struct script *s = user;
    return s->done >= s->stop_after ? s->level : 0;
}

static struct eps_error error;

static int train(const struct eps_train_options *options, struct script *script)
{
    static const struct eps_train_events events = {.on_step = on_step,
                                                   .on_saved = on_saved,
                                                   .on_save_failed = on_save_failed,
                                                   .on_note = on_note,
                                                   .should_stop = should_stop};
    struct script none = {.stop_after = UINT64_MAX};

    return eps_train(options, &events, script ? script : &none, &error);
}

static void must_train(const struct eps_train_options *options)
{
    ck_assert_msg(train(options, NULL) == 0, "%s", error.text);
}

static struct eps_train_options begin(const char *out)
{
    static const char *const files[] = {"text.txt"};
    struct eps_train_options o = processes_options("model.json", files, out);

    o.eval_data = NULL, o.order = EPS_SHUFFLED, o.optimizer = EPS_ADAMA, o.parts = 4, o.steps = N_STEPS;
    o.batch = 8, o.seq = 16, o.lr = 0.01, o.device_mem = 256 << 20;
    o.eval_every = 0; /* else the best evaluation may have a checkpoint, and when depends on time */
    return o;
}

static struct eps_train_options resume(const char *from, const char *out)
{
    struct eps_train_options o = eps_train_defaults();

    o.resume = from, o.out = out, o.programs = BIN_DIR;
    return o;
}

static void same_state(const char *step, const char *other)
{
    outputs_check_same(step, other, "model.safetensors");
    outputs_check_same(step, other, "optimizer.safetensors");
}

/* Steps first..last, each once, in order; returns how many have an eval_loss. */
static unsigned check_metrics(const char *out, uint64_t first, uint64_t last)
{
    unsigned n_evaluated = 0;
    char *lines = processes_read(print("%s/metrics.jsonl", out)), *rest = lines, *line;

    for (uint64_t step = first; step <= last; step++) {
        line = strsep(&rest, "\n");
        json_t *object = line ? json_loads(line, 0, NULL) : NULL;
        ck_assert_msg(object != NULL, "no step %" PRIu64 ": %s", step, line ? line : "the end");
        ck_assert_int_eq(json_integer_value(json_object_get(object, "step")), (json_int_t)step);
        ck_assert_int_eq(json_integer_value(json_object_get(object, "tokens")), (json_int_t)(step * 8 * 16));
        n_evaluated += json_object_get(object, "eval_loss") != NULL;
        json_decref(object);
    }
    ck_assert_str_eq(rest ? rest : "?", "");
    free(lines);
    return n_evaluated;
}

static void check_error(int rc, int wanted, const char *first, const char *second)
{
    ck_assert_msg(rc == wanted, "%d: %s", rc, error.text);
    ck_assert_holds(error.text, first, second);
}

TEST(stopped_after_each_step_and_gone_on_it_is_the_run_that_never_stopped)
{
    struct eps_train_options o = begin("whole");

    o.save_every = 0;
    must_train(&o);
    ck_assert_uint_eq(check_metrics("whole", 1, N_STEPS), 1);
    o = begin("pieces");
    for (uint64_t done = 0; done < N_STEPS;) {
        struct script script = {.stop_after = done + 1, .level = 1};
        const int rc = train(&o, &script);
        ck_assert_uint_gt(script.done, done); /* how many more are done by then is a matter of speed */
        done = script.done;
        check_error(rc, -EINTR, print("after %" PRIu64 " steps; saved in pieces/step-%" PRIu64, done, done),
                    "; resume with: eps train --resume pieces");
        o = resume("pieces", NULL);
    }
    must_train(&o); /* the evaluation after the last step, and nothing else */
    same_state("whole/step-6", "pieces/latest");
    outputs_check_same_metrics("whole", "pieces", N_STEPS);
    check_error(train(&o, NULL), -EINVAL, "the run is complete", "6 of 6 steps");
}

enum { MOST_STEPS = 14, PATIENCE = 3 };

/* Its rate rises until it ruins it, so patience ends it before its last step. */
static struct eps_train_options begin_patient(const char *out, bool shared)
{
    struct eps_train_options o = begin(out);

    o.steps = o.warmup = MOST_STEPS, o.lr = 0.3;
    o.eval_every = 1, o.patience = PATIENCE, o.keep = 1, o.save_every = MOST_STEPS;
    if (shared)
        o.connect = "lab", o.device_mem = 0, o.workers = 0;
    return o;
}

static unsigned next_job = 2; /* of the daemon "lab" */

static void stop_job(uint64_t step)
{
    static uint64_t before = UINT64_MAX;

    if (step == before + 1) /* of the same run: it is stopped already */
        return;
    before = step;
    expect(print("eps stop lab %u >stop-%u 2>&1 &", next_job, next_job), 0); /* it waits for the end of the run: ours */
    processes_await_text(print("stop-%u", next_job++), "stopping");
}

/* A stop comes while a step computes, and so before its evaluation: at each second step, the odd ones and the even
 * ones; by a signal or, at a shared daemon, by eps stop. */
TEST_EACH(stopped_before_its_evaluations_a_run_decides_as_if_it_had_never_stopped, 4)
{
    const bool shared = _i >= 2, by_request = _i == 3;
    struct eps_train_options o = begin_patient("whole", shared);
    struct script script = {.stop_after = UINT64_MAX};
    unsigned n_stops = 0;

    if (shared)
        processes_daemon("lab", 1, NULL);
    ck_assert_msg(train(&o, &script) == 0, "%s", error.text);
    ck_assert(script.done > PATIENCE + 2 && script.done < MOST_STEPS);
    o = begin_patient("pieces", shared);
    script = (struct script){.stop_after = by_request ? UINT64_MAX : 1 + (uint64_t)_i % 2, .level = 1};
    script.act = by_request ? stop_job : NULL;
    while (train(&o, &script) == -EINTR && strstr(error.text, "; resume with: eps train --resume pieces")) {
        ck_assert_holds(error.text, by_request ? "the job was stopped" : "interrupted after ");
        n_stops++;
        o = resume("pieces", NULL);
        o.connect = shared ? "lab" : NULL;
        script.stop_after = by_request ? UINT64_MAX : script.done + 1;
    }
    ck_assert_msg(n_stops >= 3, "%u: %s", n_stops, error.text);
    outputs_check_same_metrics("whole", "pieces", script.done);
    same_state("whole/latest", "pieces/latest");
    same_state("whole/best", "pieces/best");
    ck_assert_str_eq(print("%s", outputs_names("whole")), outputs_names("pieces"));
    o = resume("pieces", NULL);
    check_error(train(&o, NULL), -EINVAL, "the run is complete", print("give more `patience` than %d", PATIENCE));
}

/* A rate too small to change anything: no evaluation is better than the first one, before and after a stop. The digits
 * of its loss that metrics.jsonl has not must not count. */
TEST(equal_losses_are_no_better_after_a_stop)
{
    struct eps_train_options o = begin_patient("flat", false);
    struct script script = {.stop_after = 1, .level = 1};

    o.lr = 1e-12, o.freeze = "*.bias"; /* biases begin at 0 */
    ck_assert_int_eq(train(&o, &script), -EINTR);
    o = resume("flat", NULL);
    must_train(&o);
    check_metrics("flat", 1, PATIENCE);
}

/* Without options on either: six steps have three evaluations of a minibatch and the one before them. */
TEST(by_default_evaluations_are_those_of_the_run_that_never_stopped)
{
    struct eps_train_options o = begin("evaluated");
    struct script script = {.stop_after = 3, .level = 1};

    o.eval_every = UINT64_MAX;
    must_train(&o);
    ck_assert_uint_eq(check_metrics("evaluated", 1, N_STEPS), 3);
    o.out = "halted";
    ck_assert_int_eq(train(&o, &script), -EINTR);
    ck_assert_uint_lt(script.done, N_STEPS);
    o = resume("halted", NULL);
    must_train(&o);
    same_state("evaluated/latest", "halted/latest");
    outputs_check_same_metrics("evaluated", "halted", N_STEPS);
    expect("grep -q eval_chosen halted/latest/training.json && ! grep -q eval_chosen whole/latest/training.json", 0);
}

/* The second fork with more workers, another budget and other saves. */
TEST(from_any_checkpoint_a_fork_ends_the_same)
{
    struct eps_train_options o = begin("source");

    o.deterministic = true, o.save_every = 1, o.keep = 0, o.eval_every = 2;
    must_train(&o);
    ck_assert_uint_eq(check_metrics("source", 1, N_STEPS), 3);
    ck_assert_str_eq(outputs_names("source"),
                     "best latest log metrics.jsonl step-1 step-2 step-3 step-4 step-5 step-6 ");
    for (unsigned k = 1; k < N_STEPS; k += 2) {
        o = resume(print("source/step-%u", k), print("forks/%u", k));
        if (k == 3)
            o.workers = 4, o.device_mem = 80 << 20, o.save_every = 4;
        must_train(&o);
        same_state("source/step-6", print("forks/%u/step-6", k));
        check_metrics(print("forks/%u", k), k + 1, N_STEPS);
    }
}

/* What resuming needs keeps its checksum. */
TEST(texts_of_a_checkpoint_may_be_edited_and_the_run_goes_on_with_them)
{
    static const char text[] = "tokenizer_config.json is not as it was saved; ";
    struct eps_train_options o = begin("edited");

    o.save_every = 3, o.keep = 0;
    must_train(&o);
    expect("cp -r edited/step-3 edited/step-6 . && echo >>edited/step-3/tokenizer_config.json", 0);
    expect("eps train --resume edited/step-3 --out on", 0, print("edited/step-3: %sthe run goes on with it", text));
    same_state("step-6", "on/step-6");
    expect("eps verify on && cmp edited/step-3/tokenizer_config.json on/step-6/tokenizer_config.json", 0);
    expect("eps generate --model edited/step-3 --tokens 1", 0);
    ck_assert_holds(command_err(), print("edited/step-3: %sit is read as it is", text));
    expect("eps export --model edited/step-3 --out exported", 0);
    ck_assert_holds(command_err(), text);
    expect("eps train --model edited/step-3 --data text.txt --steps 1 --seq 16 --out tuned", 0, text);
    expect("echo >>edited/step-3/config.json", 0);
    expect("eps train --resume edited/step-3 --out off", 1, "config.json has ");
    expect("mv edited/step-3/tokenizer_config.json . && cp step-3/config.json edited/step-3", 0);
    expect("eps train --resume edited/step-3 --out off", 1, "tokenizer_config.json is missing");
}

static void rest(uint64_t step)
{
    (void)step;
    usleep(20000);
}

/* The first is due once the run has lasted so long that a disk that writes a byte a nanosecond would take 3 % of it: 6 ms of
 * this model, and so within 29 steps that rest. */
TEST(interim_checkpoints_change_neither_the_run_nor_the_files_that_it_leaves)
{
    struct eps_train_options o = begin("plain");
    struct script script = {.stop_after = UINT64_MAX, .act = rest};

    o.steps = o.save_every = 30, o.keep = 2, o.save_minutes = 0;
    must_train(&o);
    o.out = "interim", o.save_minutes = 1e-9;
    ck_assert_msg(train(&o, &script) == 0, "%s", error.text);
    ck_assert_str_eq(print("%s", outputs_names("plain")), outputs_names("interim"));
    same_state("plain/latest", "interim/latest");
    outputs_check_same_metrics("plain", "interim", 30);
    ck_assert_uint_lt(script.saved_first, 30);
}

/* Killed before the first checkpoint by step. */
TEST(a_run_that_is_killed_early_goes_on_from_an_interim_checkpoint)
{
    static const char run[] = "eps train --model model.json --data text.txt --batch 8 --seq 16 --lr 0.01 --min-lr 0.01 "
                              "--warmup 0 --schedule constant --device-mem 64MiB --save-every 1000000";

    expect(print("bash -c '%s --steps 1000000 --save-minutes 1e-9 --out killed >said & "
                 "until grep -q ^saved said; do kill -0 $! || exit 1; sleep 0.05; done; kill -9 $!; wait $!; flock "
                 "killed true'",
                 run),
           0);
    const uint64_t end = outputs_latest("killed") + 2;
    expect(print("eps train --resume killed --steps %ju", (uintmax_t)end), 0, "continuing from killed/step-");
    expect(print("%s --steps %ju --out whole", run, (uintmax_t)end), 0);
    outputs_check_same_latest("killed", "whole");
}

static int second_rc;

static void try_second(uint64_t step)
{
    const struct eps_train_options o = resume("longer", NULL);

    if (step == 3)
        second_rc = eps_train(&o, NULL, NULL, &error);
}

TEST(a_directory_is_one_run_s_at_a_time_which_may_go_beyond_its_end)
{
    struct eps_train_options o = begin("longer");
    struct script script = {.stop_after = UINT64_MAX, .act = try_second};

    o.save_every = 1;
    ck_assert_msg(train(&o, &script) == 0, "%s", error.text);
    ck_assert_int_eq(second_rc, -EBUSY);
    check_metrics("longer", 1, N_STEPS);
    ck_assert_str_eq(outputs_names("longer"), "latest log metrics.jsonl step-5 step-6 ");
    o = resume("longer", NULL), o.steps = 8;
    script = (struct script){.stop_after = UINT64_MAX};
    ck_assert_msg(train(&o, &script) == 0, "%s", error.text);
    ck_assert_uint_eq(script.n_saved, 2);
    ck_assert_uint_eq(script.n_notes, 2); /* where it goes on from; that the schedule has another end */
    ck_assert_str_eq(outputs_names("longer"), "latest log metrics.jsonl step-7 step-8 ");
    check_metrics("longer", 1, 8);
}

#define DAMAGE(file) "printf '?' | dd conv=notrunc bs=1 seek=3000 of=" file

TEST(what_cannot_be_resumed_or_begun_is_refused_in_a_sentence)
{
    static const struct {
        const char *command; /* of the shell, before */
        const char *from;    /* NULL: a run is begun */
        const char *out;
        int code;
        const char *first, *second;
    } wrongs[] = {
        {"true", "nowhere", NULL, -ENOENT, "`resume` nowhere", ""},
        {"true", "text.txt", NULL, -ENOTDIR, "text.txt", "not a directory"},
        {"mkdir empty", "empty", NULL, -ENOENT, "`resume` empty", "no checkpoint"},
        {"touch empty/metrics.jsonl", "empty", NULL, -ENOENT, "nothing to resume from", "another `out`"},
        {"true", "good", NULL, -EINVAL, "complete", "give more `steps`"},
        {"true", "good/step-3", NULL, -EEXIST, "later checkpoint, step-6", "`out`"},
        {"true", "good/step-3", "./good/", -EEXIST, "later checkpoint, step-6", ""},
        {"cp -r good/step-3 good-copy", "good-copy", NULL, -EINVAL, "good-copy", "step-N"},
        {"cp -r a b; " DAMAGE("b/step-3/model.safetensors"), "b", NULL, -EINVAL, "b/step-3", "model.safetensors"},
        {"cp -r a c; " DAMAGE("c/step-3/optimizer.safetensors"), "c", NULL, -EINVAL, "c/step-3",
         "optimizer.safetensors"},
        {"cp -r a d; rm d/step-3/model.safetensors", "d", NULL, -EINVAL, "d/step-3", "model.safetensors"},
        {"cp -r a e; rm e/step-3/optimizer.safetensors", "e", NULL, -EINVAL, "e/step-3", "optimizer.safetensors"},
        {"cp -r a f; cp good/step-6/optimizer.safetensors f/step-3", "f", NULL, -EINVAL, "f/step-3",
         "optimizer.safetensors"},
        {"cp -r a g; echo '{\"format\":2,\"step\":3}' >g/step-3/training.json", "g", NULL, -EPROTONOSUPPORT,
         "training.json", ""},
        {"true", NULL, "good", -EEXIST, "`out` good holds a run", "`resume`"},
        {"mkdir part; cp -r a/step-3 part/step-3.partial", NULL, "part", -EEXIST, "`out` part holds a run",
         "step-3.partial"},
        {"true", "a/step-3", "part", -EEXIST, "`out` part holds a run", "step-3.partial"},
    };
    struct eps_train_options o = begin("good");

    o.save_every = 3;
    must_train(&o);
    expect("mkdir a && cp -r good/step-3 a", 0);
    for (int i = 0; i < COUNT(wrongs); i++) {
        expect(wrongs[i].command, 0);
        o = wrongs[i].from ? resume(wrongs[i].from, wrongs[i].out) : begin(wrongs[i].out);
        check_error(train(&o, NULL), wrongs[i].code, wrongs[i].first, wrongs[i].second);
    }
    o = resume("good", NULL), o.steps = 5;
    check_error(train(&o, NULL), -EINVAL, "complete", "6 of 5 steps");
    ck_assert_str_eq(outputs_names("b"), "step-3 "); /* nothing was changed by all this */
}

/* ---- damaged checkpoints ---- */

static char notes[4096];

static void keep_note(void *user, const char *sentence)
{
    const size_t n = strlen(notes);

    (void)user;
    snprintf(notes + n, sizeof notes - n, "%s\n", sentence);
}

static int train_noted(const struct eps_train_options *options)
{
    static const struct eps_train_events events = {.on_note = keep_note};

    notes[0] = 0;
    return eps_train(options, &events, NULL, &error);
}

/* good: its run; spoilt: a copy of it that is cut off after step 6 of 6, of which this becomes of its files. */
static const struct {
    const char *command, *reason, *from;
    const char *left; /* to go on from */
} damages[] = {
    {DAMAGE("spoilt/step-6/model.safetensors"), "step-6: model.safetensors is not what was written", "spoilt",
     "step-4"},
    {"truncate -s -1 spoilt/step-6/optimizer.safetensors", "step-6: optimizer.safetensors has ", "spoilt/latest",
     "step-4"},
    {"rm spoilt/step-6/training.json", "step-6: training.json is missing", "spoilt/", "step-4"},
    {"echo '{' >spoilt/step-6/training.json", "step-6: training.json: not JSON", "spoilt/latest/", "step-4"},
    {DAMAGE("spoilt/step-6/config.json"), "step-6: config.json has ", "spoilt/step-4", "step-4"},
    {DAMAGE("spoilt/step-6/model.safetensors") "; rm spoilt/step-4/config.json", ", and 1 before it", "spoilt",
     "step-3"},
};

TEST_EACH(a_damaged_newest_checkpoint_is_put_aside_and_the_run_goes_on_from_the_newest_whole_one, COUNT(damages))
{
    struct eps_train_options o = begin("good");

    o.save_every = 2, o.keep = 0, o.eval_every = 3;
    must_train(&o);
    expect("cp -a good spoilt", 0);
    expect(damages[_i].command, 0);
    expect("cp -a spoilt/step-6 kept", 0);
    expect("eps verify spoilt", 1);
    ck_assert_holds(command_err(), print("eps train --resume spoilt goes on from %s\n", damages[_i].left));
    o = resume(damages[_i].from, NULL);
    ck_assert_msg(train_noted(&o) == 0, "%s", error.text);
    ck_assert_holds(notes, "not whole: ", damages[_i].reason, "step-6.damaged; the run goes on from ",
                    damages[_i].left);
    expect("diff -r kept spoilt/step-6.damaged", 0);
    same_state("good/step-6", "spoilt/latest");
    outputs_check_same_metrics("good", "spoilt", N_STEPS);
    expect("eps verify spoilt && test $(readlink good/best) = $(readlink spoilt/best)", 0);
}

TEST(a_second_damaged_checkpoint_of_a_step_takes_another_name_and_one_of_a_run_that_is_only_read_stays)
{
    struct eps_train_options o = begin("run");

    o.save_every = 3, o.keep = 0;
    must_train(&o);
    expect("mkdir run/step-6.damaged; " DAMAGE("run/step-6/model.safetensors") "; cp -a run before", 0);
    o = resume("run", "other");
    ck_assert_msg(train_noted(&o) == 0, "%s", error.text);
    ck_assert_holds(notes, "step-6: model.safetensors is not", "; the run goes on from step-3");
    expect("diff -r before run", 0);
    o = resume("run", NULL);
    must_train(&o);
    ck_assert_str_eq(outputs_names("run"), "latest log metrics.jsonl step-3 step-6 step-6.damaged step-6.damaged-2 ");
    same_state("run/step-6", "other/step-6");
}

TEST(a_disk_s_error_and_a_run_without_a_whole_checkpoint_change_nothing)
{
    struct eps_train_options o = begin("run");

    o.save_every = 3, o.keep = 0;
    must_train(&o);
    expect("cp -a run unread; ln -sf model.safetensors unread/step-6/model.safetensors; cp -a unread before", 0);
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"unread", "unread/latest", "unread/step-3"};
        o = resume(names[i], NULL);
        check_error(train(&o, NULL), -ELOOP, "step-6: model.safetensors: Too many levels",
                    "move it away to go on from");
    }
    expect("diff --no-dereference -r before unread", 0);
    expect("eps verify unread", 1);
    ck_assert_holds(command_err(), "step-6: model.safetensors: Too many levels", "whether it is whole is not known");
    expect(DAMAGE("run/step-6/model.safetensors") "; " DAMAGE("run/step-3/model.safetensors") "; cp -a run broken", 0);
    o = resume("run", NULL);
    check_error(train(&o, NULL), -EINVAL, "step-6: model.safetensors is not",
                "no older checkpoint of the run is whole");
    o = resume("run/step-3", NULL);
    check_error(train(&o, NULL), -EINVAL, "step-3: model.safetensors is not", "");
    expect("diff -r broken run", 0);
    static const char *const commands[] = {"eval --data text.txt --model run", "generate --model run/latest --prompt a",
                                           "export --model run/step-6 --out exported",
                                           "train --data text.txt --out another --model run/latest"};
    for (int i = 0; i < COUNT(commands); i++) {
        expect(print("eps %s", commands[i]), 1);
        ck_assert_holds(command_err(), "/run/step-6: model.safetensors is not what was written", "; eps verify /",
                        "/run tells which of its checkpoints are whole: name one\n");
    }
}

TEST(data_may_move_but_not_change)
{
    struct eps_train_options o = begin("first");
    const char *moved[] = {"moved.txt"}, *other[] = {"other.txt"};

    o.save_every = 3;
    must_train(&o);
    expect("mv text.txt moved.txt", 0);
    o = resume("first/step-3", "second");
    check_error(train(&o, NULL), -ENOENT, "text.txt", "say where it is now with `data`");
    o.data = moved, o.n_data = 1;
    must_train(&o);
    same_state("first/step-6", "second/step-6");
    expect("tr a b <moved.txt >other.txt", 0);
    o = resume("first/step-3", "third");
    o.data = other, o.n_data = 1;
    check_error(train(&o, NULL), -EINVAL, "`data` other.txt", "4000 tokens");
    expect("cp other.txt text.txt", 0);
    o = resume("first/step-3", "third");
    check_error(train(&o, NULL), -EINVAL, "text.txt", "not what the run was trained on");
    ck_assert_int_ne(access("third", F_OK), 0);
}

TEST(an_interrupt_before_the_first_step_leaves_nothing)
{
    struct eps_train_options o = begin("new/deep/run");
    struct script script = {.stop_after = 0, .level = 1};

    check_error(train(&o, &script), -EINTR, "before the first step", "");
    ck_assert_int_ne(access("new", F_OK), 0);
    o.out = outputs_make("mine");
    check_error(train(&o, &script), -EINTR, "before the first step", "");
    ck_assert_str_eq(outputs_names("mine"), "");
    must_train(&o);
    expect("cp -r mine before", 0);
    o = resume("mine", NULL), o.steps = 9;
    check_error(train(&o, &script), -EINTR, "before the first step", "");
    expect("diff -r mine before", 0);
}

TEST(an_interrupt_does_not_wait_where_nothing_is_saved_nor_a_second_one_for_a_checkpoint)
{
    struct eps_train_options o = begin("unsaved");
    struct script once = {.stop_after = 2, .level = 1};
    struct script twice = {.stop_after = 8, .level = 2}; /* step 6 was asked for, so step 3 stands */

    o.save_every = 0, o.steps = 100000;
    check_error(train(&o, &once), -EINTR, "interrupted after ", "no checkpoint was saved");
    ck_assert_str_eq(outputs_names("unsaved"), "log metrics.jsonl ");
    o = resume("unsaved", NULL);
    check_error(train(&o, NULL), -ENOENT, "nothing to resume from", "");

    o = begin("hasty"), o.save_every = 3, o.steps = 100000;
    const int rc = train(&o, &twice);
    check_error(rc, -EINTR, "interrupted after ", "eps train --resume hasty continues from step ");
    const uint64_t further = outputs_latest("hasty") + 3; /* the daemon may have been ahead of what was heard of it */
    o = resume("hasty", NULL), o.steps = further;
    must_train(&o);
    check_metrics("hasty", 1, further);
}

static void limit_files(rlim_t bytes)
{
    struct rlimit limit;

    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static uint64_t room_again; /* before this step */

static void take_room(uint64_t step)
{
    if (step == 2 || step == room_again)
        limit_files(step == 2 ? 0 : RLIM_INFINITY);
}

/* Files of this process, so metrics.jsonl alone, may not grow. */
TEST(metrics_that_find_no_room_are_kept_and_complained_about_at_the_end)
{
    struct eps_train_options o = begin("tight");
    struct script script = {.stop_after = UINT64_MAX, .act = take_room};

    signal(SIGXFSZ, SIG_IGN);
    room_again = 4;
    ck_assert_msg(train(&o, &script) == 0, "%s", error.text);
    ck_assert_uint_eq(script.n_save_failed, 1);
    ck_assert_holds(script.why, "metrics.jsonl");
    check_metrics("tight", 1, N_STEPS);
    script = (struct script){.stop_after = UINT64_MAX, .act = take_room};
    room_again = UINT64_MAX;
    o = begin("full");
    check_error(train(&o, &script), -EFBIG, "metrics.jsonl is incomplete", "");
    limit_files(RLIM_INFINITY);
    ck_assert_uint_eq(script.n_save_failed, 1);
    ck_assert_int_eq(access("full/step-6", F_OK), 0);
    o = resume("full", NULL), o.steps = 8; /* steps 3..6 have lines again, with what is known of them */
    must_train(&o);
    check_metrics("full", 1, 8);
}
