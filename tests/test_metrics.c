/* metrics.jsonl, read back with another program's eyes: jansson. */
#include "client/metrics.h"

#include <check.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct eps_step one = {.step = 1,
                                    .loss = 5.5451774444795623,
                                    .lr = 3e-4,
                                    .tokens = 16384,
                                    .tokens_per_s = 1e5,
                                    .step_ms = 163.84,
                                    .device_peak_bytes = (uint64_t)1 << 33,
                                    .host_bytes = 12345,
                                    .eval_loss = NAN};

START_TEST(each_step_is_one_line_there_as_soon_as_it_is_written)
{
    char directory[] = "/tmp/test_metrics.XXXXXX", path[64], line[512];
    struct eps_step step = one;
    struct client_metrics metrics;

    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_assert_int_eq(client_metrics_open(&metrics, directory, NULL), 0);
    ck_assert_int_eq(client_metrics_write(&metrics, &step, NULL), 0);
    step.step = 2, step.loss = INFINITY, step.eval_loss = 4.25;
    ck_assert_int_eq(client_metrics_write(&metrics, &step, NULL), 0);

    snprintf(path, sizeof path, "%s/metrics.jsonl", directory); /* still open for writing */
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(fgets(line, sizeof line, file));
    json_t *object = json_loads(line, 0, NULL);
    ck_assert_int_eq(json_integer_value(json_object_get(object, "step")), 1);
    ck_assert_double_eq_tol(json_real_value(json_object_get(object, "loss")), one.loss, 1e-10);
    ck_assert_double_eq(json_real_value(json_object_get(object, "lr")), 3e-4);
    ck_assert_int_eq(json_integer_value(json_object_get(object, "tokens")), 16384);
    ck_assert_double_eq(json_real_value(json_object_get(object, "tokens_per_s")), 1e5);
    ck_assert_double_eq(json_real_value(json_object_get(object, "step_ms")), 163.84);
    ck_assert_int_eq(json_integer_value(json_object_get(object, "device_peak_bytes")), (json_int_t)1 << 33);
    ck_assert_int_eq(json_integer_value(json_object_get(object, "host_bytes")), 12345);
    ck_assert_uint_eq(json_object_size(object), 8); /* no eval_loss */
    json_decref(object);
    ck_assert_ptr_nonnull(fgets(line, sizeof line, file));
    object = json_loads(line, 0, NULL);
    ck_assert(json_is_null(json_object_get(object, "loss")));
    ck_assert_double_eq(json_real_value(json_object_get(object, "eval_loss")), 4.25);
    json_decref(object);
    ck_assert_ptr_null(fgets(line, sizeof line, file));
    fclose(file);
    client_metrics_close(&metrics);
    unlink(path);
    rmdir(directory);
}
END_TEST

START_TEST(an_earlier_run_is_not_written_over)
{
    char directory[] = "/tmp/test_metrics.XXXXXX", path[64];
    struct client_metrics metrics;
    struct error err = {0};

    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_assert_int_eq(client_metrics_open(&metrics, directory, NULL), 0);
    client_metrics_close(&metrics);
    client_metrics_close(&metrics);
    ck_assert_int_eq(client_metrics_open(&metrics, directory, &err), -EEXIST);
    ck_assert_ptr_nonnull(strstr(err.text, directory));
    ck_assert_ptr_nonnull(strstr(err.text, "--out"));
    client_metrics_close(&metrics);
    snprintf(path, sizeof path, "%s/metrics.jsonl", directory);
    unlink(path);
    rmdir(directory);
    ck_assert_int_eq(client_metrics_open(&metrics, directory, &err), -ENOENT);
}
END_TEST

START_TEST(a_full_disk_is_reported)
{
    struct client_metrics metrics = {.file = fopen("/dev/full", "w")};
    struct error err = {0};

    ck_assert_ptr_nonnull(metrics.file);
    ck_assert_int_eq(client_metrics_write(&metrics, &one, &err), -ENOSPC);
    ck_assert_ptr_nonnull(strstr(err.text, "metrics.jsonl"));
    client_metrics_close(&metrics);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("metrics");
    TCase *tests = tcase_create("metrics");
    SRunner *runner = srunner_create(suite);

    tcase_add_test(tests, each_step_is_one_line_there_as_soon_as_it_is_written);
    tcase_add_test(tests, an_earlier_run_is_not_written_over);
    tcase_add_test(tests, a_full_disk_is_reported);
    suite_add_tcase(suite, tests);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
