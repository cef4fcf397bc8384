/* Runs that go on by themselves after their daemon, or a worker that was being assigned, is lost: they end with the
 * bits of one that lost nothing. Real processes. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/puppet.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(long)

enum { STEPS = 9, SAVED = 3 };

static void setup(void)
{
    processes_setup();
    processes_config_with("model.json", 1, 2, 16, 16, "\"attn_pdrop\": 0.2, \"resid_pdrop\": 0.1");
    processes_text("text.txt", 1000);
}

static struct eps_train_options begin(const char *out, bool shared)
{
    static const char *const files[] = {"text.txt"};
    struct eps_train_options o = processes_options("model.json", files, out);

    o.steps = STEPS, o.batch = 4, o.seq = 16, o.eval_every = 2, o.save_every = SAVED, o.keep = 0;
    if (shared)
        o.connect = "lab", o.device_mem = 0, o.workers = 0;
    return o;
}

/* The run that loses nothing, once for all tests, in a directory of its own. */
static char reference[96], whole[128];

static void make_reference(void)
{
    setup();
    snprintf(reference, sizeof reference, "%s", processes_directory());
    snprintf(whole, sizeof whole, "%s/whole", reference);
    const struct eps_train_options options = begin(whole, false);
    processes_train(&options);
}

static void remove_reference(void)
{
    ck_assert_int_eq(chdir("/") | system(print("rm -r %s", reference)), 0);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE(setup, processes_remove)
SUITE_FIXTURE_ONCE(make_reference, remove_reference)

/* Steps at which the daemon is killed, once each; and what the run says. */
struct fate {
    uint64_t steps[4];
    pid_t daemon; /* 0: a private one */
    unsigned n_killed;
    bool deserted;    /* no other daemon is started */
    unsigned lingers; /* a process that has the run's directory open outlives the daemon that is killed at this step */
    char notes[4000];
};

/* Longer than client_resume_lock waits. */
static void leave_lingering(void)
{
    if (fork() == 0) {
        poll(NULL, 0, 4000);
        _exit(0);
    }
}

static void on_step(void *user, const struct eps_step *step)
{
    struct fate *fate = user;

    if (step->step != fate->steps[fate->n_killed])
        return;
    fate->n_killed++;
    if (step->step == fate->lingers)
        leave_lingering();
    ck_assert_int_eq(kill(fate->daemon ? fate->daemon : processes_find("epsd"), SIGKILL), 0);
}

static pid_t next_daemon(void)
{
    static const char *const argv[] = {"--listen", "lab", NULL};

    return processes_start("epsd", argv, NULL);
}

static void on_note(void *user, const char *sentence)
{
    struct fate *fate = user;
    const size_t n = strlen(fate->notes);

    snprintf(fate->notes + n, sizeof fate->notes - n, "%s\n", sentence);
    if (fate->daemon && !fate->deserted && strncmp(sentence, "waiting for the daemon", 22) == 0)
        fate->daemon = next_daemon(); /* its worker attaches again */
}

static struct eps_error error;

static int train(const struct eps_train_options *options, struct fate *fate)
{
    static const struct eps_train_events events = {.on_step = on_step, .on_note = on_note};

    return eps_train(options, &events, fate, &error);
}

static void same_run(const char *out)
{
    outputs_check_same_metrics(whole, out, STEPS);
    outputs_check_same_latest(whole, out);
    expect(print("ls %s | grep -vE '^(log|report)' >a; ls %s | grep -vE '^(log|report)' >b; cmp a b", whole, out),
           0); /* a shared daemon's is its own */
}

/* Before the first checkpoint, after one, and in the last step. It waits for what its lost daemon left. */
TEST(a_run_whose_daemon_is_killed_goes_on_from_its_newest_checkpoint)
{
    struct eps_train_options o = begin("mine", false);
    struct fate fate = {.steps = {2, 5, STEPS}, .lingers = 5};

    o.restarts = 3, o.tensorboard = "events"; /* a file of each attempt */
    ck_assert_msg(train(&o, &fate) == 0, "%s", error.text);
    ck_assert_uint_eq(fate.n_killed, 3);
    expect("ls events | wc -l | grep '^[34]$'", 0); /* the last one is not needed if the last step was saved by then */
    ck_assert_holds(fate.notes, "restart 1 of 3: the daemon (epsd) was killed by signal 9",
                    "; the run begins anew, as it has no checkpoint\n",
                    "restart 2 of 3: ", "; the run goes on from step ", "continuing from mine/step-");
    same_run("mine");
}

/* The newest checkpoint is damaged when its daemon is killed. */
static void spoil_and_kill(void *user, uint64_t step, const char *path)
{
    const struct fate *fate = user;

    if (step != 2 * SAVED || fate->n_killed > 0)
        return;
    processes_flip(print("%s/model.safetensors", path), -1);
    on_step(user, &(struct eps_step){.step = step});
}

TEST(a_restarted_run_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before)
{
    static const struct eps_train_events events = {.on_saved = spoil_and_kill, .on_note = on_note};
    struct eps_train_options o = begin("mine", false);
    struct fate fate = {.steps = {2 * SAVED}};

    o.restarts = 1;
    ck_assert_msg(eps_train(&o, &events, &fate, &error) == 0, "%s", error.text);
    ck_assert_holds(fate.notes, "restart 1 of 1: ", "step-6: model.safetensors is not what was written",
                    "moved aside, to step-6.damaged; the run goes on from step-");
    expect("mv mine/step-6.damaged damaged && ! eps verify damaged", 0);
    same_run("mine");
}

/* The daemon is killed when the last step is evaluated and saved, whichever comes last. */
static void end_last(struct fate *fate, uint64_t step)
{
    static unsigned n_ended;

    if (step == STEPS && ++n_ended == 2)
        on_step(fate, &(struct eps_step){.step = step});
}

static void on_last_step(void *user, const struct eps_step *step)
{
    end_last(user, step->step);
}

static void on_last_saved(void *user, uint64_t step, const char *path)
{
    (void)path;
    end_last(user, step);
}

/* The next one has nothing to do. */
TEST(a_run_whose_daemon_is_killed_with_nothing_left_to_do_has_ended_well)
{
    static const struct eps_train_events events = {.on_step = on_last_step,
                                                   .on_saved = on_last_saved,
                                                   .on_note = on_note};
    struct eps_train_options o = begin("mine", false);
    struct fate fate = {.steps = {STEPS}};

    o.restarts = 1;
    ck_assert_msg(eps_train(&o, &events, &fate, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(fate.n_killed, 1);
    ck_assert_holds(fate.notes, "restart 1 of 1: ");
    same_run("mine");
}

TEST(a_run_is_restarted_no_oftener_than_asked)
{
    struct eps_train_options o = begin("mine", false);
    struct fate fate = {.steps = {4, 5, 0}};

    o.restarts = 1;
    ck_assert_int_eq(train(&o, &fate), -EIO);
    ck_assert_holds(error.text, "the daemon (epsd) was killed by signal 9",
                    "eps train --resume mine continues from step ");
    ck_assert_uint_eq(fate.n_killed, 2);
    ck_assert(strstr(fate.notes, "restart 1 of 1") && !strstr(fate.notes, "restart 2"));
    expect("eps train --resume mine", 0);
    same_run("mine");
}

/* Its worker finds the next daemon by itself. */
TEST(a_run_on_a_shared_daemon_waits_for_the_next_one)
{
    struct eps_train_options o = begin("mine", true);
    struct fate fate = {.steps = {4}, .daemon = processes_daemon("lab", 1, NULL)};

    o.restarts = 1;
    ck_assert_msg(train(&o, &fate) == 0, "%s", error.text);
    ck_assert_uint_eq(fate.n_killed, 1);
    same_run("mine");
    expect_stop(fate.daemon);
}

/* In the second step, twice: then the daemon ends at once, but for its client, which reads why. */
static void stop_daemon(void *user, const struct eps_step *step)
{
    struct fate *fate = user;

    if (step->step != 2 || fate->n_killed++ > 0)
        return;
    ck_assert_int_eq(kill(fate->daemon, SIGTERM), 0);
    expect("until eps status lab | grep -q stopping; do :; done", 0);
    ck_assert_int_eq(kill(fate->daemon, SIGTERM), 0);
    expect("while eps status lab; do :; done", 0);
}

/* Nobody starts another one: the run must not wait for it. */
TEST(a_run_whose_daemon_is_stopped_ends)
{
    static const struct eps_train_events events = {.on_step = stop_daemon, .on_note = on_note};
    struct eps_train_options o = begin("mine", true);
    struct fate fate = {.daemon = processes_daemon("lab", 1, NULL)};

    o.restarts = 3;
    ck_assert_int_eq(eps_train(&o, &events, &fate, &error), -EIO);
    ck_assert_holds(error.text, "the daemon was stopped by SIGTERM");
    ck_assert_msg(!strstr(fate.notes, "restart"), "%s", fate.notes);
    ck_assert_int_eq(processes_wait(fate.daemon), 0);
}

TEST(a_restarted_run_waits_for_the_next_daemon_no_longer_than_asked)
{
    struct eps_train_options o = begin("mine", true);
    struct fate fate = {.steps = {4}, .daemon = processes_daemon("lab", 1, NULL), .deserted = true};

    o.restarts = 1, o.wait = 0.1;
    ck_assert_int_eq(train(&o, &fate), -ECONNREFUSED);
    ck_assert_uint_eq(fate.n_killed, 1);
    ck_assert_holds(error.text, "no daemon lab after 0.1 s");
}

static const enum puppet_fault deaths[] = {PUPPET_DIES_ATTACHED, PUPPET_DIES_ASSIGNED};

/* As eps-worker, the first time: it ends as soon as it is attached, or when it is assigned. */
static int die_early(int argc, char **argv)
{
    if (argc == 3)
        puppet_play(argv[1], deaths[atoi(argv[2])]);
    return 1;
}

SUITE_COMMAND(die_early)

TEST_EACH(a_worker_that_dies_before_the_first_step_is_replaced, COUNT(deaths))
{
    struct eps_train_options o = begin("mine", false);
    struct fate fate = {0};

    expect(print("mkdir programs && ln -s %s/epsd programs && printf '%%s\n' '#!/bin/bash' "
                 "'[ $2 = --connect ] && address=$3' 'mkdir \"%s/once\" 2>/dev/null && exec %s/test_restarts "
                 "\"$address\" %d' "
                 "'exec %s/eps-worker \"$@\"' >programs/eps-worker && chmod +x programs/eps-worker",
                 BIN_DIR, processes_directory(), BIN_DIR, _i, BIN_DIR),
           0);
    o.programs = "programs";
    ck_assert_msg(train(&o, &fate) == 0, "%s", error.text);
    ck_assert_int_eq(access("once", F_OK), 0);
    ck_assert_holds(fate.notes, "; daemon and workers are started anew\n");
    same_run("mine");
}

TEST(what_cannot_be_repeated_is_refused)
{
    expect_refusal(&(struct refusal){"eps train --model model.json --data - --restarts 1 <text.txt", 2,
                                     "--restarts 1: data from standard input can be read once", NULL});
    expect_refusal(&(struct refusal){"eps train --model model.json --data text.txt --restarts 2 --trace t", 2,
                                     "--restarts 2 does not go with --trace", NULL});
}
