/* metrics.jsonl, read back with another program's eyes: jansson. */
#include "tests/kit/test.h"

#include "client/run/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <signal.h>
#include <unistd.h>

static char directory[40], path[64];
static int directory_fd;

static void setup(void)
{
    snprintf(directory, sizeof directory, "/tmp/test_metrics.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    directory_fd = open(directory, O_RDONLY | O_DIRECTORY);
    ck_assert_int_ge(directory_fd, 0);
    snprintf(path, sizeof path, "%s/metrics.jsonl", directory);
}

static void teardown(void)
{
    close(directory_fd);
    unlink(path);
    rmdir(directory);
}

SUITE_FIXTURE(setup, teardown)

static struct eps_step at(uint64_t step)
{
    return (struct eps_step){.step = step,
                             .loss = 5.5451774444795623,
                             .lr = 3e-4,
                             .tokens = 16384 * step,
                             .tokens_per_s = 1e5,
                             .step_ms = 163.84,
                             .device_peak_bytes = (uint64_t)1 << 33,
                             .host_bytes = 12345,
                             .eval_loss = NAN,
                             .eval_before = NAN,
                             .grad_norm = NAN};
}

static void write_steps(struct client_metrics *metrics, uint64_t first, uint64_t last)
{
    for (uint64_t i = first; i <= last; i++) {
        const struct eps_step step = at(i);
        ck_assert_int_eq(client_metrics_write(metrics, &step, NULL), 0);
    }
}

/* Every line of the file as JSON; asserts that there are n and that they are steps 1..n. */
static json_t *read_lines(size_t n)
{
    json_t *lines = json_array();
    char line[1024];
    FILE *file = fopen(path, "r");

    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file)) {
        ck_assert_int_eq(line[strlen(line) - 1], '\n');
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        ck_assert_msg(object != NULL, "%s", line);
        ck_assert_int_eq(json_array_append_new(lines, object), 0);
        ck_assert_int_eq(json_integer_value(json_object_get(object, "step")), (json_int_t)json_array_size(lines));
    }
    fclose(file);
    ck_assert_uint_eq(json_array_size(lines), n);
    return lines;
}

TEST(each_step_is_one_line_there_as_soon_as_it_is_written)
{
    struct client_metrics metrics;
    struct eps_step step = at(1);

    ck_assert_int_eq(client_metrics_open(&metrics, directory_fd, NULL), 0);
    ck_assert_int_eq(client_metrics_write(&metrics, &step, NULL), 0);
    step = at(2), step.loss = INFINITY, step.eval_loss = 4.25;
    ck_assert_int_eq(client_metrics_write(&metrics, &step, NULL), 0);

    json_t *lines = read_lines(2), *object = json_array_get(lines, 0); /* still open for writing */
    ck_assert_double_eq_tol(json_real_value(json_object_get(object, "loss")), at(1).loss, 1e-10);
    ck_assert_double_eq(json_real_value(json_object_get(object, "lr")), 3e-4);
    ck_assert_int_eq(json_integer_value(json_object_get(object, "tokens")), 16384);
    ck_assert_double_eq(json_real_value(json_object_get(object, "tokens_per_s")), 1e5);
    ck_assert_double_eq(json_real_value(json_object_get(object, "step_ms")), 163.84);
    ck_assert_int_eq(json_integer_value(json_object_get(object, "device_peak_bytes")), (json_int_t)1 << 33);
    ck_assert_int_eq(json_integer_value(json_object_get(object, "host_bytes")), 12345);
    ck_assert_uint_eq(json_object_size(object), 8); /* no eval_loss */
    object = json_array_get(lines, 1);
    ck_assert(json_is_null(json_object_get(object, "loss")));
    ck_assert_double_eq(json_real_value(json_object_get(object, "eval_loss")), 4.25);
    json_decref(lines);
    client_metrics_close(&metrics);
}

TEST(the_norm_a_skip_and_memory_are_there_where_they_are_known)
{
    static const struct eps_memory_row host[] = {{"weights", 400, 500, 0}, {"inbox", 0, 10, 0}, {"data", 7, 7, 0}};
    static const struct eps_memory_row device[] = {{"stash", 30, 30, 0}};
    const struct eps_memory sides[] = {{.rows = host, .n_rows = 3},
                                       {.worker = 9, .budget = 64, .rows = device, .n_rows = 1}};
    struct client_metrics metrics;
    struct eps_step step = at(1);

    step.grad_norm = 0.25, step.memory = sides, step.n_memory = 2;
    ck_assert_int_eq(client_metrics_open(&metrics, directory_fd, NULL), 0);
    ck_assert_int_eq(client_metrics_write(&metrics, &step, NULL), 0);
    step.eval_loss = 2;
    ck_assert_int_eq(client_metrics_rewrite(&metrics, &step, NULL), 0);
    step = at(2), step.grad_norm = INFINITY, step.skipped = true;
    ck_assert_int_eq(client_metrics_write(&metrics, &step, NULL), 0);

    json_t *lines = read_lines(2), *first = json_array_get(lines, 0), *second = json_array_get(lines, 1);
    json_t *memory = json_pack("{s:{s:i, s:i}, s:{s:i}, s:i}", "host", "weights", 400, "data", 7, "device", "stash", 30,
                               "device_budget", 64);
    ck_assert_double_eq(json_real_value(json_object_get(first, "grad_norm")), 0.25);
    ck_assert_ptr_null(json_object_get(first, "skipped"));
    ck_assert(json_equal(json_object_get(first, "memory"), memory)); /* what is held now, not what was */
    ck_assert_double_eq(json_real_value(json_object_get(first, "eval_loss")), 2);
    ck_assert_ptr_null(json_object_get(second, "grad_norm"));
    ck_assert(json_is_true(json_object_get(second, "skipped")));
    ck_assert_ptr_null(json_object_get(second, "memory"));
    json_decref(memory);
    json_decref(lines);
    client_metrics_close(&metrics);
}

TEST(an_earlier_run_is_not_written_over)
{
    struct client_metrics metrics;
    struct error err = {0};

    ck_assert_int_eq(client_metrics_open(&metrics, directory_fd, NULL), 0);
    client_metrics_close(&metrics);
    client_metrics_close(&metrics);
    ck_assert_int_eq(client_metrics_open(&metrics, directory_fd, &err), -EEXIST);
    ck_assert_ptr_nonnull(strstr(err.text, "--out"));
    client_metrics_close(&metrics);
}

TEST(a_line_can_be_written_again_with_more_in_it)
{
    struct client_metrics metrics;
    struct eps_step step = at(2);

    ck_assert_int_eq(client_metrics_open(&metrics, directory_fd, NULL), 0);
    write_steps(&metrics, 1, 2);
    step.eval_loss = 1.5;
    ck_assert_int_eq(client_metrics_rewrite(&metrics, &step, NULL), 0);
    write_steps(&metrics, 3, 3);
    json_t *lines = read_lines(3);
    ck_assert_ptr_null(json_object_get(json_array_get(lines, 0), "eval_loss"));
    ck_assert_double_eq(json_real_value(json_object_get(json_array_get(lines, 1), "eval_loss")), 1.5);
    json_decref(lines);
    client_metrics_close(&metrics);
}

/* A file may not grow: as a full disk, in the middle of a line. Later it may again. */
TEST(what_a_full_disk_did_not_take_comes_with_the_next_line)
{
    struct rlimit limit, small;
    struct client_metrics metrics;
    struct eps_step step = at(2);
    struct error err = {0};

    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(client_metrics_open(&metrics, directory_fd, NULL), 0);
    write_steps(&metrics, 1, 1);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit, small.rlim_cur = (rlim_t)metrics.good + 20;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    ck_assert_int_eq(client_metrics_write(&metrics, &step, &err), -EFBIG);
    ck_assert_ptr_nonnull(strstr(err.text, "metrics.jsonl"));
    step.eval_loss = 2.5;
    ck_assert_int_eq(client_metrics_rewrite(&metrics, &step, &err), -EFBIG);
    step = at(3);
    ck_assert_int_eq(client_metrics_write(&metrics, &step, &err), -EFBIG);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(client_metrics_flush(&metrics, &err), 0);
    write_steps(&metrics, 4, 4);
    json_t *lines = read_lines(4);
    ck_assert_double_eq(json_real_value(json_object_get(json_array_get(lines, 1), "eval_loss")), 2.5);
    json_decref(lines);
    client_metrics_close(&metrics);
}

TEST(a_file_that_was_removed_is_reported)
{
    struct client_metrics metrics;
    const struct eps_step step = at(2);
    struct error err = {0};

    ck_assert_int_eq(client_metrics_open(&metrics, directory_fd, NULL), 0);
    write_steps(&metrics, 1, 1);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(client_metrics_write(&metrics, &step, &err), -ENOENT);
    ck_assert_ptr_nonnull(strstr(err.text, "removed"));
    client_metrics_close(&metrics);
}

static void fill(void *data, struct eps_step *lost)
{
    ck_assert_ptr_eq(data, path);
    lost->tokens = 100 * lost->step;
}

/* How a killed process may leave the file of 6 lines; the run goes on after step 4. */
TEST_EACH(a_run_that_goes_on_has_each_step_once, 6)
{
    static const struct {
        int cut;          /* bytes off the end */
        const char *more; /* behind it */
        uint64_t from;    /* the first line that is missing */
    } ends[] = {
        {0, "", 5},     {0, "{\"step\": 7, \"lo", 5}, {1, "", 5}, /* the 6th has no newline */
        {800, "", 3},                                             /* lines have 200 bytes: 3.. are cut */
        {100, "\n", 5}, {0, "{\"step\": 3}\n", 5},
    };
    struct client_metrics metrics;

    ck_assert_int_eq(client_metrics_open(&metrics, directory_fd, NULL), 0);
    write_steps(&metrics, 1, 6);
    const off_t six = metrics.good;
    client_metrics_close(&metrics);
    ck_assert_int_gt((int)six, 5 * 190);
    int cut = ends[_i].cut == 800 ? (int)(six - six / 6 * 2 - six / 12) : ends[_i].cut; /* half of the third is left */
    FILE *file = fopen(path, "r+");
    ck_assert_int_eq(ftruncate(fileno(file), six - cut), 0);
    fseek(file, 0, SEEK_END);
    fputs(ends[_i].more, file);
    fclose(file);

    ck_assert_int_eq(client_metrics_reopen(&metrics, directory_fd, 4, fill, path, NULL), 0);
    json_t *lines = read_lines(4), *line;
    size_t i;
    json_array_foreach(lines, i, line)
    {
        const bool filled = i + 1 >= ends[_i].from;
        ck_assert_int_eq(json_is_null(json_object_get(line, "loss")), filled);
        ck_assert_int_eq(json_is_null(json_object_get(line, "host_bytes")), filled);
        ck_assert_int_eq(json_integer_value(json_object_get(line, "tokens")),
                         (json_int_t)((filled ? 100 : 16384) * (i + 1)));
    }
    json_decref(lines);
    write_steps(&metrics, 5, 7);
    json_decref(read_lines(7));
    client_metrics_close(&metrics);
}
