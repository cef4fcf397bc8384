/* Each feature of a run meets each invariant: a table, of which every cell is real programs on a tiny model.
 *
 * A feature's run is made once, as it is, by one private worker with much memory: the run "whole". A cell makes it once
 * more under an invariant; weights, moments and each line of metrics.jsonl without its clock are then the same, bit
 * for bit. Where the product refuses, the feature's row says so, and the cell checks the sentence.
 *
 * Without an argument each feature is killed and resumed, and meets the invariant of the day: days since 1970 name a
 * diagonal of the table, which is printed, and which day=N or EPS_INVARIANTS_DAY=N repeats. Under a sanitizer it meets
 * that one alone. By hand:
 *
 *     build/bin/test_invariants all               the whole table, in some minutes
 *     build/bin/test_invariants sgd               a row
 *     build/bin/test_invariants budget            a column
 *     build/bin/test_invariants sgd budget        a cell
 *     build/bin/test_invariants list              the rows, and what is refused */
#include "proto/model/adapter.h"
#include "proto/model/file/checkpoint.h"
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"
#include "tests/system/hosts/team.h"
#include "tests/system/invariants/features.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

SUITE_LABELS(long, slow)
SUITE_TIMEOUT(120)

static const char *const names[INVARIANTS] = {
    [INVARIANT_RESUMED] = "resumed", [INVARIANT_BUDGET] = "budget",     [INVARIANT_WORKERS] = "workers",
    [INVARIANT_LOST] = "lost",       [INVARIANT_ATTACHED] = "attached", [INVARIANT_HOSTS] = "hosts",
    [INVARIANT_SAVED] = "saved"};

#define PRIVATE "--device cpu --device-mem 64MiB "

/* ---- a run ---- */

enum { DEATH = 3 }; /* the step behind which somebody is killed; the checkpoint before it is of step 2 */

static void on_step(void *user, const struct eps_step *step)
{
    const pid_t *victim = user; /* 0: the client itself; NULL: nobody */

    if (step->step == DEATH && victim)
        kill(*victim ? *victim : getpid(), SIGKILL);
}

static pid_t client = 0;

/* In a process of its own, whose sentence goes to the file said; false: it was refused. */
static bool train(const struct feature *feature, const char *more, pid_t *victim)
{
    const struct eps_train_events events = {.on_step = on_step};
    struct eps_error error = {""};
    struct feature_run run;
    int status;
    const pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        feature_run_init(&run, feature, more);
        const int rc = eps_train(&run.options, &events, victim, &error);
        processes_put_text("said", error.text);
        _exit(rc ? 1 : 0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFSIGNALED(status) ? victim == &client : victim != &client || status, "%s: status %d", feature->name,
                  status);
    return WIFSIGNALED(status) || WEXITSTATUS(status) == 0;
}

/* True: it was trained, as the row says; else the product has said that it does not. */
static bool trains(const struct feature *feature, enum invariant invariant, const char *more, pid_t *victim)
{
    const char *refusal = feature_refusal(feature, invariant);
    const bool done = train(feature, more, victim);
    char *said = done ? NULL : processes_read("said");

    ck_assert_msg(done == !refusal, "%s, %s: %s", feature->name, names[invariant], done ? "not refused" : said);
    ck_assert_msg(done || strncmp(said, refusal, strlen(refusal)) == 0, "%s: not \"%s\"", said, refusal);
    free(said);
    return done;
}

static void check_same(const char *out, const char *whole)
{
    outputs_check_same_latest(out, whole);
    outputs_check_same_metrics(out, whole, FEATURE_STEPS);
}

/* Of a run that went on from step 4 in a directory of its own. */
static void check_same_since(const char *out, const char *whole)
{
    outputs_check_same_latest(out, whole);
    expect(print("for r in %s %s; do tail -n %d $r/metrics.jsonl | grep -oE '\"(step|loss|eval_loss|grad_norm)\": "
                 "[^,}]*' >$r.losses; done; test -s %s.losses && cmp %s.losses %s.losses",
                 out, whole, FEATURE_STEPS - 4, whole, out, whole),
           0);
}

/* ---- invariants: of a feature, whose run as it is has the name `whole` ---- */

static void check_resumed(const struct feature *feature, const char *whole)
{
    if (!trains(feature, INVARIANT_RESUMED, PRIVATE "--workers 2 --out cut", &client))
        return;
    processes_await_nobody();
    ck_assert_uint_ge(outputs_latest("cut"), DEATH);
    ck_assert_uint_lt(outputs_latest("cut"), FEATURE_STEPS);
    expect("eps train --resume cut", 0, "continuing from cut/step-");
    check_same("cut", whole);
}

/* The most that a step's device had. */
static double device_peak(const char *out)
{
    json_t *line = expect_json(print("tail -n 1 %s/metrics.jsonl", out), 0);
    const double bytes = json_number_at(line, "device_peak_bytes");

    json_decref(line);
    return bytes;
}

/* Of the stash, of what is kept and of the weights, more lies on the device with more memory. */
static void check_budget(const struct feature *feature, const char *whole)
{
    const unsigned long long least = feature_minimum(feature);

    expect(print("eps train %s", feature_line(feature, print("--device cpu --device-mem %llu --out least", least))), 0,
           "at most (as planned)");
    check_same("least", whole);
    ck_assert_double_lt(device_peak("least"), device_peak(whole));
    expect(print("eps train --resume %s/step-4 --out on --device-mem %llu", whole, least), 0,
           "activation checkpoints on the host");
    expect("eps train --resume least/step-4 --out back --device-mem 1GiB -v", 0,
           "activation checkpoints: on the device");
    check_same_since("on", whole);
    check_same_since("back", whole);
}

static void check_workers(const struct feature *feature, const char *whole)
{
    const unsigned long long memory = feature_minimum(feature) * 5 / 4;

    if (trains(feature, INVARIANT_WORKERS, print("--device cpu --device-mem %llu --workers 3 --out three", memory),
               NULL))
        check_same("three", whole);
}

static void check_lost(const struct feature *feature, const char *whole)
{
    pid_t workers[3];
    const pid_t daemon = processes_daemon("lab", 3, workers);

    if (trains(feature, INVARIANT_LOST, "--connect lab --out struck", &workers[1])) {
        ck_assert_uint_eq(processes_workers("lab"), 2);
        check_same("struck", whole);
    }
    expect_stop(daemon);
}

static void check_attached(const struct feature *feature, const char *whole)
{
    const pid_t daemon = processes_daemon("lab", 2, NULL);

    if (trains(feature, INVARIANT_ATTACHED, "--connect lab --out taken", &client)) {
        processes_await_state("lab", "detached");
        expect("eps train --attach lab", 0);
        check_same("taken", whole);
    }
    expect_stop(daemon);
}

static void check_hosts(const struct feature *feature, const char *whole)
{
    if (!team_has_mpirun())
        TEST_SKIP(TEAM_NEEDS);
    const struct team team = team_start(2, 1);
    if (trains(feature, INVARIANT_HOSTS, "--connect hosts --out two", NULL))
        check_same("two", whole);
    team_stop(&team);
}

/* All of the one file's tensors are the other's, which has a family's constants besides: an export alone writes them. */
static void check_same_tensors(const char *directory, const char *other, const char *name)
{
    struct outputs_tensors files[2];

    outputs_open_tensors(&files[0], directory, name);
    outputs_open_tensors(&files[1], other, name);
    for (size_t i = 0; i < files[1].file.n_entries; i++) {
        const struct safetensors_entry *two = &files[1].file.entries[i];
        ck_assert_msg(two->n_dims == 0 || safetensors_find(&files[0].file, two->name), "%s", two->name);
    }
    for (size_t i = 0; i < files[0].file.n_entries; i++) {
        const struct safetensors_entry *one = &files[0].file.entries[i],
                                       *two = safetensors_find(&files[1].file, one->name);
        float *values = calloc(2 * one->n, sizeof *values);
        ck_assert_msg(two && two->n == one->n, "%s", one->name);
        ck_assert_int_eq(safetensors_read(values, one, 0, one->n, NULL), 0);
        ck_assert_int_eq(safetensors_read(values + one->n, two, 0, one->n, NULL), 0);
        ck_assert_msg(memcmp(values, values + one->n, one->n * sizeof *values) == 0, "%s", one->name);
        free(values);
    }
    for (int i = 0; i < 2; i++)
        outputs_close_tensors(&files[i]);
}

/* What is saved on the way is what the run has then, and changes nothing. */
static void check_saved(const struct feature *feature, const char *whole)
{
    if (!trains(feature, INVARIANT_SAVED, PRIVATE "--save-every 1 --out saved", NULL))
        return;
    check_same("saved", whole);
    for (int step = 2; step < FEATURE_STEPS; step += 2)
        expect(print("cd saved/step-%d && for f in *.safetensors; do cmp $f ../../%s/step-%d/$f || exit 1; done", step,
                     whole, step),
               0);
    expect("eps verify saved && eps export --model saved/latest --dtype fp32 --out exported", 0);
    check_same_tensors("saved/latest", "exported",
                       access("saved/latest/" ADAPTER_WEIGHTS, F_OK) == 0 ? ADAPTER_WEIGHTS : CHECKPOINT_WEIGHTS);
}

static void (*const checks[INVARIANTS])(const struct feature *feature, const char *whole) = {
    [INVARIANT_RESUMED] = check_resumed, [INVARIANT_BUDGET] = check_budget,     [INVARIANT_WORKERS] = check_workers,
    [INVARIANT_LOST] = check_lost,       [INVARIANT_ATTACHED] = check_attached, [INVARIANT_HOSTS] = check_hosts,
    [INVARIANT_SAVED] = check_saved};

/* ---- which cells ---- */

static struct {
    long day;
    bool whole_table;
    int feature, invariant; /* -1: not chosen */
} chosen = {.day = -1, .feature = -1, .invariant = -1};

static bool is_chosen(int cell)
{
    const int feature = cell / INVARIANTS, invariant = cell % INVARIANTS;

    if (chosen.whole_table)
        return true;
    if (chosen.feature >= 0 || chosen.invariant >= 0)
        return (chosen.feature < 0 || chosen.feature == feature) &&
               (chosen.invariant < 0 || chosen.invariant == invariant);
    return (invariant == INVARIANT_RESUMED && !SANITIZED) || invariant == (int)((feature + chosen.day) % INVARIANTS);
}

static int list(void)
{
    for (int i = 0; i < n_features; i++) {
        printf("%s\n", features[i].name);
        for (int k = 0; k < INVARIANTS; k++)
            if (feature_refusal(&features[i], k))
                printf("    not %s: %s...\n", names[k], feature_refusal(&features[i], k));
    }
    return 0;
}

static int command(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        bool known = strcmp(argv[i], "all") == 0 || sscanf(argv[i], "day=%ld", &chosen.day) == 1;
        if (strcmp(argv[i], "list") == 0)
            return list();
        chosen.whole_table |= strcmp(argv[i], "all") == 0;
        for (int k = 0; k < n_features; k++)
            if (strcmp(argv[i], features[k].name) == 0)
                chosen.feature = k, known = true;
        for (int k = 0; k < INVARIANTS; k++)
            if (strcmp(argv[i], names[k]) == 0)
                chosen.invariant = k, known = true;
        if (!known) {
            fprintf(stderr, "%s: no feature and no invariant; list prints them\n", argv[i]);
            return 2;
        }
    }
    return -1;
}

SUITE_COMMAND(command)

/* How many cells there are, once it is known which of them run. */
static int count_cells(void)
{
    const char *given = getenv("EPS_INVARIANTS_DAY");

    if (chosen.day < 0)
        chosen.day = given ? atol(given) : (long)(time(NULL) / 86400);
    return n_features * INVARIANTS;
}

static void setup(void)
{
    if (chosen.feature < 0 && chosen.invariant < 0 && !chosen.whole_table)
        fprintf(stderr, "test_invariants: the diagonal of day %ld: day=%ld repeats it\n", chosen.day, chosen.day);
    processes_setup();
    processes_know_families();
    features_setup();
}

SUITE_FIXTURE_ONCE(setup, processes_remove)

TEST_EACH_IF(a_feature_meets_an_invariant, count_cells(), is_chosen(_i))
{
    const struct feature *feature = &features[_i / INVARIANTS];
    char whole[40];

    fprintf(stderr, "%d: %s %s\n", _i, feature->name, names[_i % INVARIANTS]);
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* daemons of killed clients come to us and can be found */
    snprintf(whole, sizeof whole, "whole-%s", feature->name);
    if (access(whole, F_OK) != 0)
        expect(print("eps train %s", feature_line(feature, print(PRIVATE "--out %s", whole))), 0,
               "at most (as planned)", feature_shown(feature));
    expect("rm -rf cut least on back three struck taken two saved exported", 0);
    checks[_i % INVARIANTS](feature, whole);
}
