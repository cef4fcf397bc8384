/* metrics.jsonl: as it is written, read with another program's eyes (jansson); and read back, also from what a damaged
 * disk or another hand makes of it. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/record/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static int directory_fd;
static struct client_metrics metrics;

static void setup(void)
{
    processes_setup();
    directory_fd = open(".", O_RDONLY | O_DIRECTORY);
    ck_assert_int_ge(directory_fd, 0);
    metrics.fd = -1;
}

static void teardown(void)
{
    client_metrics_close(&metrics);
    client_metrics_close(&metrics);
    close(directory_fd);
    processes_remove();
}

SUITE_FIXTURE(setup, teardown)

static void open_metrics(void)
{
    ck_assert_int_eq(client_metrics_open(&metrics, directory_fd, NULL), 0);
}

static struct eps_step at(uint64_t step)
{
    struct eps_step at = {
        .step = step, .time = 1764300000.251, .loss = 5.5451774444795623, .lr = 3e-4, .tokens = 16384 * step};

    at.tokens_per_s = 1e5, at.step_ms = 163.84, at.device_peak_bytes = (uint64_t)1 << 33, at.host_bytes = 12345;
    at.eval_loss = at.eval_before = at.grad_norm = NAN;
    return at;
}

static void write_step(struct eps_step step)
{
    ck_assert_int_eq(client_metrics_write(&metrics, &step, NULL), 0);
}

static void write_steps(uint64_t first, uint64_t last)
{
    for (uint64_t i = first; i <= last; i++)
        write_step(at(i));
}

/* Every line of the file as JSON; asserts that there are n and that they are steps 1..n. */
static json_t *read_lines(size_t n)
{
    json_t *lines = json_array();
    char *text = processes_read("metrics.jsonl"), *rest = text;

    for (char *line; *rest && (line = strsep(&rest, "\n"));) {
        ck_assert_msg(rest != NULL, "no end of %s", line);
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        ck_assert_msg(object != NULL, "%s", line);
        ck_assert_int_eq(json_array_append_new(lines, object), 0);
        ck_assert_int_eq(json_integer_value(json_object_get(object, "step")), (json_int_t)json_array_size(lines));
    }
    ck_assert_uint_eq(json_array_size(lines), n);
    free(text);
    return lines;
}

static const struct eps_memory_row host[] = {{"weights", 400, 500, 0}, {"inbox", 0, 10, 0}, {"data", 7, 7, 0}};
static const struct eps_memory_row device[] = {{"stash", 30, 30, 0}};
static const struct eps_memory sides[] = {{.rows = host, .n_rows = 3},
                                          {.worker = 9, .budget = 64, .rows = device, .n_rows = 1}};

/* The lines are there while the file is still open for writing. */
TEST(each_step_is_one_line_there_as_soon_as_it_is_written)
{
    struct eps_step step = at(2), third = at(3);

    step.loss = INFINITY, step.eval_loss = 4.25, step.grad_norm = INFINITY, step.skipped = true;
    third.grad_norm = 0.25, third.memory = sides, third.n_memory = 2;
    open_metrics();
    write_step(at(1)), write_step(step), write_step(third);
    json_t *lines = read_lines(3);
    /* No eval_loss, norm, skip or memory where there is none; what is held now, not what was. */
    json_t *first = json_pack("{s:i, s:f, s:f, s:f, s:i, s:f, s:f, s:I, s:i}", "step", 1, "time", 1764300000.25, "loss",
                              5.54517744448, "lr", 3e-4, "tokens", 16384, "tokens_per_s", 1e5, "step_ms", 163.84,
                              "device_peak_bytes", (json_int_t)1 << 33, "host_bytes", 12345);
    json_t *memory = json_pack("{s:{s:i, s:i}, s:{s:i}, s:i}", "host", "weights", 400, "data", 7, "device", "stash", 30,
                               "device_budget", 64);
    ck_assert(json_equal(json_at(lines, "0"), first) && json_equal(json_at(lines, "2.memory"), memory));
    ck_assert(json_is_null(json_at(lines, "1.loss")) && json_is_true(json_at(lines, "1.skipped")));
    ck_assert_ptr_null(json_object_get(json_at(lines, "1"), "grad_norm"));
    ck_assert(json_number_at(lines, "1.eval_loss") == 4.25 && json_number_at(lines, "2.grad_norm") == 0.25);
    json_decref(memory), json_decref(lines), json_decref(first);
}

TEST(a_line_can_be_written_again_with_more_in_it)
{
    struct eps_step step = at(2);

    open_metrics();
    write_steps(1, 2);
    step.eval_loss = 1.5;
    ck_assert_int_eq(client_metrics_rewrite(&metrics, &step, NULL), 0);
    write_steps(3, 3);
    json_t *lines = read_lines(3);
    ck_assert_ptr_null(json_object_get(json_at(lines, "0"), "eval_loss"));
    ck_assert_double_eq(json_number_at(lines, "1.eval_loss"), 1.5);
    json_decref(lines);
}

/* The bytes of a line that had it at once; everything else that a line may have is there. */
TEST(an_evaluation_that_was_missed_is_added_to_the_last_line)
{
    const struct eps_score scores[] = {{"accuracy", 2. / 3}, {"f1", NAN}};
    struct eps_step step = at(2);

    step.grad_norm = 1. / 3, step.skipped = true, step.changed = "after step 1: lr 1 to 2";
    step.memory = sides, step.n_memory = 2;
    open_metrics();
    write_steps(1, 1), write_step(step);
    client_metrics_close(&metrics);
    ck_assert_int_eq(client_metrics_reopen(&metrics, directory_fd, 2, NULL, NULL, NULL), 0);
    ck_assert_int_eq(client_metrics_add_evaluation(&metrics, 1. / 7, scores, 2, NULL), 0);
    write_steps(3, 3);
    char *added = processes_read("metrics.jsonl");
    client_metrics_close(&metrics);
    unlink("metrics.jsonl");
    open_metrics();
    step.eval_loss = 1. / 7, step.scores = scores, step.n_scores = 2;
    write_steps(1, 1), write_step(step), write_steps(3, 3);
    outputs_check_file("metrics.jsonl", added);
    free(added);
    json_t *lines = read_lines(3);
    ck_assert_double_eq(json_number_at(lines, "1.eval_loss"), client_metrics_round(1. / 7));
    json_decref(lines);
}

/* A file may not grow: as a full disk, in the middle of a line. Later it may again. */
TEST(what_a_full_disk_did_not_take_comes_with_the_next_line)
{
    struct rlimit limit, small;
    struct eps_step step = at(2);
    struct error err = {0};

    signal(SIGXFSZ, SIG_IGN);
    open_metrics();
    write_steps(1, 1);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit, small.rlim_cur = (rlim_t)metrics.good + 20;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    ck_assert_int_eq(client_metrics_write(&metrics, &step, &err), -EFBIG);
    ck_assert_holds(err.text, "metrics.jsonl");
    step.eval_loss = 2.5;
    ck_assert_int_eq(client_metrics_rewrite(&metrics, &step, &err), -EFBIG);
    step = at(3);
    ck_assert_int_eq(client_metrics_write(&metrics, &step, &err), -EFBIG);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(client_metrics_flush(&metrics, &err), 0);
    write_steps(4, 4);
    json_t *lines = read_lines(4);
    ck_assert_double_eq(json_number_at(lines, "1.eval_loss"), 2.5);
    json_decref(lines);
}

TEST(a_file_that_was_removed_is_reported_and_an_earlier_run_not_written_over)
{
    const struct eps_step step = at(2);
    struct error err = {0};

    open_metrics();
    ck_assert_int_eq(client_metrics_open(&(struct client_metrics){.fd = -1}, directory_fd, &err), -EEXIST);
    ck_assert_holds(err.text, "--out");
    ck_assert_int_eq(unlink("metrics.jsonl"), 0);
    ck_assert_int_eq(client_metrics_write(&metrics, &step, &err), -ENOENT);
    ck_assert_holds(err.text, "removed");
}

static void *refuse_memory(size_t n)
{
    (void)n;
    return NULL;
}

/* Of a line, or of the longer one that was to replace it. */
TEST_EACH(a_line_that_memory_is_short_for_harms_no_other, 2)
{
    struct eps_step step = at(2);

    open_metrics();
    write_steps(1, _i == 0 ? 1 : 2);
    json_set_alloc_funcs(refuse_memory, free);
    ck_assert_int_eq((_i == 0 ? client_metrics_write : client_metrics_rewrite)(&metrics, &step, NULL), -ENOMEM);
    json_set_alloc_funcs(malloc, free);
    step.eval_loss = 1.5;
    if (_i == 0)
        ck_assert_int_eq(client_metrics_rewrite(&metrics, &step, NULL), 0);
    write_steps(3, 3);
    json_decref(read_lines(3));
}

static bool fill(void *data, struct eps_step *lost)
{
    ck_assert_ptr_eq(data, &metrics);
    lost->tokens = 100 * lost->step;
    return true;
}

/* How a killed process may leave the file of 6 lines; the run goes on after step 4. */
TEST_EACH(a_run_that_goes_on_has_each_step_once, 6)
{
    static const struct {
        double cut;       /* lines off the end; below 0: bytes */
        const char *more; /* behind it */
        uint64_t from;    /* the first line that is missing */
    } ends[] = {
        {0, "", 5},      {0, "{\"step\": 7, \"lo", 5}, {-1, "", 5}, /* the 6th has no newline */
        {3.5, "", 3},                                               /* half of the third is left */
        {-100, "\n", 5}, {0, "{\"step\": 3}\n", 5},
    };
    const double cut = ends[_i].cut;
    json_t *line;
    size_t i;

    open_metrics();
    write_steps(1, 6);
    const off_t six = metrics.good;
    client_metrics_close(&metrics);
    ck_assert_int_eq(truncate("metrics.jsonl", cut < 0 ? six + (off_t)cut : six - (off_t)(cut * (double)six / 6)), 0);
    FILE *file = fopen("metrics.jsonl", "a");
    ck_assert(fputs(ends[_i].more, file) >= 0 && fclose(file) == 0);

    ck_assert_int_eq(client_metrics_reopen(&metrics, directory_fd, 4, fill, &metrics, NULL), 0);
    json_t *lines = read_lines(4);
    json_array_foreach(lines, i, line)
    {
        const bool filled = i + 1 >= ends[_i].from;
        ck_assert_int_eq(json_is_null(json_object_get(line, "loss")), filled);
        ck_assert_int_eq(json_is_null(json_object_get(line, "host_bytes")), filled);
        ck_assert_int_eq(json_integer_value(json_object_get(line, "tokens")),
                         (json_int_t)((filled ? 100 : 16384) * (i + 1)));
    }
    json_decref(lines);
    write_steps(5, 7);
    json_decref(read_lines(7));
}

/* To a file that somebody else wants overwritten, or made. */
TEST(a_link_that_another_has_planted_is_not_followed)
{
    struct error err;

    outputs_write(".", "mine", "{\"step\": 1}\nworth keeping\n");
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(symlink(i ? "nothing" : "mine", "metrics.jsonl"), 0);
        ck_assert_int_eq(client_metrics_open(&metrics, directory_fd, &err), -EEXIST);
        ck_assert_int_eq(client_metrics_check(directory_fd, &err), -EINVAL);
        ck_assert_int_eq(client_metrics_reopen(&metrics, directory_fd, 1, NULL, NULL, &err), -EINVAL);
        ck_assert_str_eq(err.text, "metrics.jsonl: not a regular file: move it away");
        ck_assert_int_eq(unlink("metrics.jsonl"), 0);
    }
    outputs_check_file("mine", "{\"step\": 1}\nworth keeping\n");
    ck_assert_int_ne(access("nothing", F_OK), 0);
}

struct seen {
    size_t n;
    struct eps_step steps[8]; /* memory and scores are gone by the time they are looked at: what they were is here */
    char memory[400], scores[400];
};

static void on_step(void *user, const struct eps_step *step)
{
    struct seen *seen = user;

    ck_assert_uint_lt(seen->n, 8);
    seen->steps[seen->n++] = *step;
    for (size_t i = 0; i < step->n_memory; i++) {
        const struct eps_memory *side = &step->memory[i];
        char *end = seen->memory + strlen(seen->memory);
        ck_assert_uint_eq(side->worker, i);
        end += sprintf(end, "%zu of %zu:", i, (size_t)side->budget);
        for (size_t k = 0; k < side->n_rows; k++)
            end += sprintf(end, " %s %zu", side->rows[k].category, (size_t)side->rows[k].current);
        strcpy(end, "\n");
    }
    for (size_t i = 0; i < step->n_scores + step->n_rewards; i++) {
        const bool held_out = i < step->n_scores;
        const struct eps_score *score = held_out ? &step->scores[i] : &step->rewards[i - step->n_scores];
        char *end = seen->scores + strlen(seen->scores);
        sprintf(end, "%s%s %g\n", held_out ? "held out " : "", score->name, score->value);
    }
}

static struct seen read_all(uint64_t n_bad)
{
    struct seen seen = {0};
    struct eps_error error;
    uint64_t got = 99;

    ck_assert_msg(eps_metrics_read(".", on_step, &seen, &got, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(got, n_bad);
    return seen;
}

/* Between lines up to step 4, and behind the last of these; the run goes on after it. */
TEST(what_is_damaged_takes_no_whole_line_with_it)
{
    static const char kept[] = "{\"step\": 1}\n"
                               "garbage\n"
                               "{\"step\": 1}\n"
                               "{\"step\": 3, \"lo{\"step\": 4}\n"
                               "{\"step\": 4, \"loss\": 2}\n";

    processes_put_text("metrics.jsonl", print("%s%s", kept, "{\"st\n{\"step\": 5}\n{\"step\": 2}\n"));
    ck_assert_int_eq(client_metrics_reopen(&metrics, directory_fd, 4, fill, &metrics, NULL), 0);
    outputs_check_file("metrics.jsonl", kept);
    ck_assert_int_eq(client_metrics_add_evaluation(&metrics, 1.5, NULL, 0, NULL), 0);
    write_steps(5, 5);
    const struct seen seen = read_all(3);
    ck_assert_uint_eq(seen.n, 3);
    ck_assert(seen.steps[1].step == 4 && seen.steps[1].loss == 2 && seen.steps[1].eval_loss == 1.5);
}

/* What is read and written again is the same file. */
TEST(what_was_written_is_read)
{
    struct eps_step first = at(1), second = at(2);
    struct client_metrics again = {.fd = -1};

    const struct eps_score scores[] = {{"accuracy", 0.5}, {"rewards/margins", 1.5}},
                           rewards[] = {{"rewards/chosen", -0.25}, {"logps/chosen", NAN}};

    first.scores = scores, first.n_scores = 2, first.rewards = rewards, first.n_rewards = 2;
    first.eval_loss = 6.25, first.eval_before = 7.5, first.grad_norm = 0.5, first.memory = sides, first.n_memory = 2;
    second.loss = INFINITY, second.skipped = true;
    open_metrics();
    write_step(first), write_step(second);
    const int other_fd = open(outputs_make("other"), O_RDONLY | O_DIRECTORY);
    ck_assert_int_eq(client_metrics_open(&again, other_fd, NULL), 0);
    const struct seen seen = read_all(0);
    ck_assert_uint_eq(seen.n, 2);
    ck_assert_str_eq(seen.memory, "0 of 0: weights 400 data 7\n1 of 64: stash 30\n");
    ck_assert_str_eq(seen.scores, "held out accuracy 0.5\nheld out rewards/margins 1.5\n"
                                  "rewards/chosen -0.25\nlogps/chosen nan\n");
    for (size_t i = 0; i < 2; i++) {
        struct eps_step step = seen.steps[i];
        step.memory = i ? NULL : sides; /* it is gone by now */
        step.scores = scores, step.rewards = rewards;
        ck_assert_int_eq(client_metrics_write(&again, &step, NULL), 0);
    }
    client_metrics_close(&again);
    close(other_fd);
    outputs_check_same(".", "other", "metrics.jsonl");
}

TEST(what_is_no_line_of_a_step_is_passed_over_and_counted)
{
    static const char text[] = "{\"step\": 1, \"loss\": 3}\n"
                               "\n"
                               "garbage\n"
                               "{\"step\": -4}\n"
                               "{\"step\": \"2\"}\n"
                               "[2]\n"
                               "{\"step\": 1, \"loss\": 9}\n" /* again */
                               "{\"step\": 2, \"loss\": \"high\", \"memory\": 7}\n"
                               "\0\0\0\0\n"
                               "{\"step\": 5, \"memory\": {\"device\": {\"stash\": 1}}}\n" /* no host: nothing of it */
                               "{\"step\": 6, \"memory\": {\"host\": {\"a\": -1, \"b\": 1e300, \"c\": 2}}}\n"
                               "{\"step\": 7, \"lo"; /* being written */

    processes_write("metrics.jsonl", text, sizeof text - 1);
    const struct seen seen = read_all(8);
    ck_assert_uint_eq(seen.n, 4);
    ck_assert_double_eq(seen.steps[0].loss, 3);
    ck_assert(seen.steps[1].step == 2 && isnan(seen.steps[1].loss) && seen.steps[1].n_memory == 0);
    ck_assert(seen.steps[2].step == 5 && seen.steps[2].n_memory == 0);
    ck_assert_str_eq(seen.memory, "0 of 0: c 2\n");
}

/* 1 MiB without a line's end, between two that are whole. */
TEST(a_line_without_end_counts_once)
{
    static const char first[] = "{\"step\": 1}\n", last[] = "\n{\"step\": 2}\n";
    char *text = malloc(1 << 20);

    memset(text, 'x', 1 << 20);
    memcpy(text, first, sizeof first - 1);
    memcpy(text + (1 << 20) - sizeof last + 1, last, sizeof last - 1);
    processes_write("metrics.jsonl", text, 1 << 20);
    free(text);
    ck_assert_uint_eq(read_all(1).n, 2);
    processes_put_text("metrics.jsonl", "");
    ck_assert_uint_eq(read_all(0).n, 0);
}

TEST(what_holds_no_metrics_is_refused)
{
    struct eps_error error;

    ck_assert_int_eq(eps_metrics_read(".", on_step, NULL, NULL, &error), -ENOENT);
    ck_assert_holds(error.text, "holds no metrics.jsonl: name the directory of a run");
    ck_assert_int_eq(eps_metrics_read("/no/such/run", on_step, NULL, NULL, &error), -ENOENT);
    ck_assert_holds(error.text, "/no/such/run");
    ck_assert_int_eq(eps_metrics_read("/etc/passwd", on_step, NULL, NULL, &error), -ENOENT);
    ck_assert_int_eq(mkfifo("metrics.jsonl", 0600), 0); /* nobody will ever write to it */
    ck_assert_int_eq(eps_metrics_read(".", on_step, NULL, NULL, &error), -EINVAL);
}
