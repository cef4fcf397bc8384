/* Runs with --audit whose workers compute wrongly, always or once, or die while they audit (tests/kit/preload/lies.c):
 * who is wrong is named and dropped, and the run ends with the bits of one that nobody disturbed. Real processes. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(slow)
SUITE_SKIP_UNLESS(!SANITIZED, "a sanitizer must be preloaded first")
SUITE_TIMEOUT(120)

enum { STEPS = 8, PARTS = 3, EVERY = 2, MAX_WORKERS = 4 };

#define ALWAYS "0-999999"

static void setup(void)
{
    processes_setup();
    processes_config_with("model.json", 2, 4, 64, 32, "\"attn_pdrop\": 0.1");
    processes_text("text.txt", 10000);
}

SUITE_FIXTURE(setup, processes_remove)

/* A daemon "lab" whose log is the file "log", and its workers; ids: the daemon's numbers of them. */
struct lab {
    pid_t daemon;
    uint32_t ids[MAX_WORKERS], n_workers;
};

static void note_newest(void *user, const struct eps_worker *worker)
{
    uint32_t *id = user;

    if (worker->id > *id)
        *id = worker->id;
}

/* lies, end: $LIES and $LIES_END; NULL: none. */
static void attach(struct lab *lab, const char *lies, const char *end)
{
    if (lies || end)
        setenv("LD_PRELOAD", BIN_DIR "/liblies.so", 1);
    if (lies)
        setenv("LIES", lies, 1);
    if (end)
        setenv("LIES_END", end, 1);
    processes_worker("lab", "256MiB", NULL);
    unsetenv("LD_PRELOAD"), unsetenv("LIES"), unsetenv("LIES_END");

    struct eps_error error;
    struct eps_observer *look;
    processes_await_workers("lab", ++lab->n_workers);
    ck_assert_int_eq(eps_observer_open(&look, "lab", NULL, NULL, &error), 0);
    ck_assert_int_eq(eps_observer_workers(look, note_newest, &lab->ids[lab->n_workers - 1], &error), 0);
    eps_observer_close(look);
}

/* Of n workers this one, counted from 1, lies or ends; 0: none. */
static void begin(struct lab *lab, uint32_t n, uint32_t which, const char *lies, const char *end)
{
    static const char *const daemon[] = {"--listen", "lab", NULL};

    *lab = (struct lab){.daemon = processes_start("epsd", daemon, "log")};
    processes_await_workers("lab", 0);
    for (uint32_t i = 0; i < n; i++)
        attach(lab, i + 1 == which ? lies : NULL, i + 1 == which ? end : NULL);
}

static const char *command(const char *out, const char *more)
{
    return print(
        "eps train --model model.json --data text.txt --seq 32 --batch 12 --steps %d --parts %d --microbatch 1 "
        "--deterministic --lr 1e-3 --connect lab --out %s %s",
        STEPS, PARTS, out, more);
}

/* The same without audits. */
static void check_bits(const char *out, const char *more)
{
    expect(command("plain", more), 0);
    outputs_check_same_latest("plain", out);
}

static void end(struct lab *lab)
{
    expect_stop(lab->daemon);
    processes_await_nobody();
}

static const char *audited(const char *more)
{
    return print("--audit %d %s", EVERY, more);
}

/* Of each form of a step, and of workers that audit one another, or themselves. */
static const struct {
    uint32_t n_workers;
    const char *options;
} forms[] = {
    {1, ""},
    {2, ""},
    {3, "--optimizer adama"},
    {3, "--commit fenced --clip-norm 0.5"},
    {2, "--precision bf16 --moments bf16"},
};

TEST_EACH(audits_change_no_bit_and_find_nothing, COUNT(forms))
{
    struct lab lab;

    begin(&lab, forms[_i].n_workers, 0, NULL, NULL);
    expect(command("tried", audited(forms[_i].options)), 0);
    check_bits("tried", forms[_i].options);
    ck_assert_uint_eq(processes_count("log", "audit of step"), 0);
    ck_assert_uint_eq(processes_count("log", print("%d steps were audited", STEPS / EVERY)), 1);
    end(&lab);
}

/* The step of the log's line that names this worker; 0: there is none. */
static unsigned step_of_conviction(uint32_t worker)
{
    char line[1000];
    unsigned id = 0, step = 0, found = 0;
    FILE *log = fopen("log", "r");

    ck_assert_ptr_nonnull(log);
    while (fgets(line, sizeof line, log)) {
        const char *at = strstr(line, "worker ");
        if (at && sscanf(at, "worker %u refused: its gradient of step %u was wrong", &id, &step) == 2) {
            ck_assert_uint_eq(id, worker);
            ck_assert_uint_eq(found, 0);
            found = step;
        }
    }
    fclose(log);
    return found;
}

TEST_EACH(a_worker_that_always_computes_wrongly_is_named_within_n_times_parts_steps, 3)
{
    struct lab lab;

    begin(&lab, PARTS, 1 + (uint32_t)_i, ALWAYS, NULL);
    expect(command("tried", audited("")), 0);
    const unsigned step = step_of_conviction(lab.ids[_i]);
    ck_assert_msg(step > 0 && step <= EVERY * PARTS, "step %u", step);
    ck_assert_uint_eq(processes_workers("lab"), PARTS - 1);
    check_bits("tried", "");
    end(&lab);
}

/* In the auditor's pass, in the owner's, or in one of another step; with a third worker, and without. */
TEST_EACH(a_worker_that_computes_wrongly_once_is_named, 8)
{
    static const char *const when[] = {"0-0", "2-2", "5-5", "9-9"};
    struct lab lab;

    begin(&lab, _i < 4 ? PARTS : 2, 2, when[_i % 4], NULL);
    expect(command("tried", audited("")), 0);
    ck_assert_uint_gt(step_of_conviction(lab.ids[1]), 0);
    check_bits("tried", "");
    end(&lab);
}

/* It computes each audited part twice, and once more if these differ; whoever attaches next goes on. */
TEST_EACH(one_worker_finds_what_passes, 2)
{
    static const char *const when[] = {"3-3", "12-12"};
    struct lab lab;

    begin(&lab, 1, 1, when[_i], NULL);
    const char *const shell[] = {"-c", print("exec %s/%s", processes_programs(), command("tried", audited(""))), NULL};
    const pid_t run = processes_start("/bin/sh", shell, NULL);
    processes_await_count("log", "waits for another worker", 1);
    processes_worker("lab", "256MiB", NULL);
    processes_await_count("log", "steps were audited", 1);
    ck_assert_int_eq(processes_wait(run), 0);
    ck_assert_uint_gt(step_of_conviction(lab.ids[0]), 0);
    check_bits("tried", "");
    end(&lab);
}

/* Of each step; the one whose auditor is dropped may count or not. */
TEST(status_counts_audits_and_what_was_computed_again)
{
    struct lab lab;

    begin(&lab, PARTS, 2, "5-5", NULL);
    const char *const shell[] = {
        "-c", print("exec %s/%s", processes_programs(), command("tried", "--audit 1 --steps 1000000")), NULL};
    const pid_t run = processes_start("/bin/sh", shell, NULL);
    processes_await_count("log", "was wrong", 1);
    processes_await_text("tried/metrics.jsonl", "\"step\": 20,");
    expect("eps status lab", 0, "\naudits       ", " steps, results computed again: 1\n");
    json_t *status = expect_json("eps status lab --json", 0);
    const double audits = json_number_at(status, "audits"), step = json_number_at(status, "step");
    ck_assert_double_ge(step, 20);
    ck_assert_double_ge(audits, step - 1);
    ck_assert_double_le(audits, step + 1);
    ck_assert_double_eq(json_number_at(status, "audits_redone"), 1);
    json_decref(status);
    expect_stop(lab.daemon);
    ck_assert_int_eq(processes_wait(run), 1);
    processes_await_nobody();
}

TEST(two_workers_of_which_one_always_lies_are_both_named_and_the_run_ends)
{
    struct lab lab;

    begin(&lab, 2, 2, ALWAYS, NULL);
    expect(command("tried", audited("")), 1, print("workers %u (cpu) and %u (cpu)", lab.ids[0], lab.ids[1]),
           "no third result");
    ck_assert_uint_eq(processes_workers("lab"), 2);
    end(&lab);
}

/* --check-memory: nobody is at fault. A slice that the owner has agreed with its auditor about changes in its slot. */
TEST_EACH(a_slice_that_changes_in_host_memory_is_computed_again, COUNT(forms) * 2)
{
    const int form = _i / 2,
              first = forms[form].n_workers == 1 ? 8 : 0; /* one worker audits all slices first, in a slot */
    const char *options = print("--check-memory %s", forms[form].options);
    struct lab lab;

    setenv("FLIPS", print("%d-%d", first + _i % 2 * 3, first + _i % 2 * 4), 1);
    setenv("LD_PRELOAD", BIN_DIR "/liblies.so", 1);
    begin(&lab, forms[form].n_workers, 0, NULL, NULL);
    unsetenv("FLIPS"), unsetenv("LD_PRELOAD");
    expect(command("tried", print("--audit 1 %s", options)), 0);
    ck_assert_uint_ge(processes_count("log", "its part is computed again"), 1);
    ck_assert_uint_eq(processes_count("log", "refused"), 0);
    ck_assert_uint_eq(processes_count("log", "audit of step"), 0);
    check_bits("tried", forms[form].options);
    end(&lab);
}

/* Killed in its first digest, or in a later one. */
TEST_EACH(a_lost_auditor_ends_the_audit_and_not_the_step, 2)
{
    static const char *const when[] = {"0", "3"};
    struct lab lab;

    begin(&lab, PARTS, 2, NULL, when[_i]);
    expect(command("tried", audited("")), 0);
    ck_assert_uint_eq(processes_workers("lab"), PARTS - 1);
    ck_assert_uint_eq(processes_count("log", "ended with its auditor"), 1);
    ck_assert_uint_eq(processes_count("log", " refused: "), 0);
    check_bits("tried", "");
    end(&lab);
}
