/* metrics.jsonl read back: what we write, and what a damaged disk or another hand makes of it. */
#include "tests/kit/test.h"

#include "client/run/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[40], path[64];

static void setup(void)
{
    snprintf(directory, sizeof directory, "/tmp/test_metrics_read.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/metrics.jsonl", directory);
}

static void teardown(void)
{
    unlink(path);
    rmdir(directory);
}

SUITE_FIXTURE(setup, teardown)

static void put(const char *bytes, size_t n)
{
    FILE *file = fopen(path, "a");

    ck_assert_uint_eq(fwrite(bytes, 1, n, file), n);
    ck_assert_int_eq(fclose(file), 0);
}

struct seen {
    size_t n;
    struct eps_step steps[8]; /* memory is gone by the time they are looked at: what it was is here */
    size_t n_rows[2];
    uint64_t budgets[2];
    struct {
        char name[40];
        uint64_t bytes;
    } rows[2][4];
};

static void on_step(void *user, const struct eps_step *step)
{
    struct seen *seen = user;

    ck_assert_uint_lt(seen->n, 8);
    seen->steps[seen->n++] = *step;
    for (size_t i = 0; i < step->n_memory; i++) {
        const struct eps_memory *side = &step->memory[i];
        ck_assert_uint_eq(side->worker, i);
        seen->n_rows[i] = side->n_rows;
        seen->budgets[i] = side->budget;
        for (size_t k = 0; k < side->n_rows && k < 4; k++) {
            snprintf(seen->rows[i][k].name, sizeof seen->rows[i][k].name, "%s", side->rows[k].category);
            seen->rows[i][k].bytes = side->rows[k].current;
        }
    }
}

static struct seen read_all(uint64_t n_bad)
{
    struct seen seen = {0};
    struct eps_error error;
    uint64_t got = 99;

    ck_assert_msg(eps_metrics_read(directory, on_step, &seen, &got, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(got, n_bad);
    return seen;
}

TEST(what_was_written_is_read)
{
    static const struct eps_memory_row host[] = {{"weights", 400, 500, 0}, {"data", 7, 7, 0}};
    static const struct eps_memory_row device[] = {{"stash", 30, 30, 0}};
    const struct eps_memory sides[] = {{.rows = host, .n_rows = 2},
                                       {.worker = 9, .budget = 64, .rows = device, .n_rows = 1}};
    const struct eps_step first = {.step = 1,
                                   .loss = 5.5,
                                   .lr = 1e-4,
                                   .tokens = 100,
                                   .tokens_per_s = 250,
                                   .step_ms = 400,
                                   .device_peak_bytes = 30,
                                   .host_bytes = 407,
                                   .eval_loss = 6.25,
                                   .eval_before = 7.5,
                                   .grad_norm = 0.5,
                                   .memory = sides,
                                   .n_memory = 2};
    const struct eps_step second = {.step = 2,
                                    .loss = INFINITY,
                                    .lr = 1e-4,
                                    .skipped = true,
                                    .eval_loss = NAN,
                                    .eval_before = NAN,
                                    .grad_norm = NAN};
    struct client_metrics metrics;
    const int fd = open(directory, O_RDONLY | O_DIRECTORY);

    ck_assert_int_eq(client_metrics_open(&metrics, fd, NULL), 0);
    ck_assert_int_eq(client_metrics_write(&metrics, &first, NULL), 0);
    ck_assert_int_eq(client_metrics_write(&metrics, &second, NULL), 0);
    client_metrics_close(&metrics);
    close(fd);

    const struct seen seen = read_all(0);
    ck_assert_uint_eq(seen.n, 2);
    ck_assert_uint_eq(seen.steps[0].step, 1);
    ck_assert_double_eq(seen.steps[0].loss, 5.5);
    ck_assert_double_eq(seen.steps[0].lr, 1e-4);
    ck_assert_uint_eq(seen.steps[0].tokens, 100);
    ck_assert_double_eq(seen.steps[0].tokens_per_s, 250);
    ck_assert_double_eq(seen.steps[0].step_ms, 400);
    ck_assert_uint_eq(seen.steps[0].device_peak_bytes, 30);
    ck_assert_uint_eq(seen.steps[0].host_bytes, 407);
    ck_assert_double_eq(seen.steps[0].eval_loss, 6.25);
    ck_assert_double_eq(seen.steps[0].eval_before, 7.5);
    ck_assert_double_eq(seen.steps[0].grad_norm, 0.5);
    ck_assert(!seen.steps[0].skipped);
    ck_assert_uint_eq(seen.n_rows[0], 2);
    ck_assert_str_eq(seen.rows[0][0].name, "weights");
    ck_assert_uint_eq(seen.rows[0][0].bytes, 400);
    ck_assert_str_eq(seen.rows[1][0].name, "stash");
    ck_assert_uint_eq(seen.rows[1][0].bytes, 30);
    ck_assert_uint_eq(seen.budgets[0], 0);
    ck_assert_uint_eq(seen.budgets[1], 64);
    ck_assert(isnan(seen.steps[1].loss));
    ck_assert(isnan(seen.steps[1].eval_loss) && isnan(seen.steps[1].eval_before));
    ck_assert(isnan(seen.steps[1].grad_norm));
    ck_assert(seen.steps[1].skipped);
    ck_assert_uint_eq(seen.steps[1].n_memory, 0);
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

    put(text, sizeof text - 1);
    const struct seen seen = read_all(8);
    ck_assert_uint_eq(seen.n, 4);
    ck_assert_double_eq(seen.steps[0].loss, 3);
    ck_assert_uint_eq(seen.steps[1].step, 2);
    ck_assert(isnan(seen.steps[1].loss));
    ck_assert_uint_eq(seen.steps[1].n_memory, 0);
    ck_assert_uint_eq(seen.steps[2].step, 5);
    ck_assert_uint_eq(seen.steps[2].n_memory, 0);
    ck_assert_uint_eq(seen.n_rows[0], 1);
    ck_assert_str_eq(seen.rows[0][0].name, "c");
}

/* 1 MiB without a line's end, between two that are whole. */
TEST(a_line_without_end_counts_once)
{
    char *x = malloc(1 << 20);

    memset(x, 'x', 1 << 20);
    put("{\"step\": 1}\n", 12);
    put(x, 1 << 20);
    put("\n{\"step\": 2}\n", 13);
    free(x);
    ck_assert_uint_eq(read_all(1).n, 2);
}

TEST(what_holds_no_metrics_is_refused)
{
    struct eps_error error;

    ck_assert_int_eq(eps_metrics_read(directory, on_step, NULL, NULL, &error), -ENOENT);
    ck_assert_ptr_nonnull(strstr(error.text, "holds no metrics.jsonl: name the directory of a run"));
    ck_assert_int_eq(eps_metrics_read("/no/such/run", on_step, NULL, NULL, &error), -ENOENT);
    ck_assert_ptr_nonnull(strstr(error.text, "/no/such/run"));
    ck_assert_int_eq(eps_metrics_read("/etc/passwd", on_step, NULL, NULL, &error), -ENOENT);
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* nobody will ever write to it */
    ck_assert_int_eq(eps_metrics_read(directory, on_step, NULL, NULL, &error), -EINVAL);
}

TEST(an_empty_file_has_no_steps)
{
    put("", 0);
    ck_assert_uint_eq(read_all(0).n, 0);
}
