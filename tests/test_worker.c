#include "device/step.h"

#include "tests/run.h"
#include "tests/setting.h"

#include <check.h>
#include <errno.h>
#include <string.h>

START_TEST(the_arena_stands_in_the_ledger_while_the_worker_lives)
{
    struct setting s;
    struct device_worker worker;
    struct ledger ledger = {0};

    setting_open(&s, &setting_configs[0], 4, 7);
    const struct device_worker_options options = setting_options(&s, 2, 0);
    ck_assert_int_eq(device_worker_init(&worker, &options, &ledger, NULL), 0);
    ck_assert_uint_eq(ledger.total.current, worker.plan.arena_bytes + worker.plan.bytes[LEDGER_LIBRARY]);
    for (int c = 0; c < LEDGER_CATEGORIES; c++)
        ck_assert_uint_eq(ledger.rows[c].current, worker.plan.bytes[c]);
    device_worker_free(&worker);
    ck_assert_uint_eq(ledger.total.current, 0);
    device_worker_free(&worker); /* again is harmless */
    setting_close(&s);
}
END_TEST

/* Every cap from nothing to roomy: refused before anything is claimed, or kept. */
START_TEST(a_cap_is_kept_or_refused)
{
    struct setting s;
    struct device_worker worker;
    unsigned kept = 0, refused = 0;

    setting_open(&s, &setting_configs[0], 8, 9);
    struct device_worker_options options = setting_options(&s, 4, 0);
    const uint64_t library = options.plan.ops->library_bytes(options.plan.n_threads);
    for (options.plan.budget = library; kept < 10; options.plan.budget += 8192) {
        struct ledger ledger = {0};
        struct error err = {""};
        int rc = device_worker_init(&worker, &options, &ledger, &err);
        if (rc == 0) {
            kept++;
            ck_assert_uint_le(ledger.total.peak, options.plan.budget);
        } else {
            refused++;
            ck_assert_int_eq(rc, -ENOSPC);
            ck_assert_ptr_nonnull(strstr(err.text, "at least"));
            ck_assert_uint_eq(ledger.total.peak, 0);
        }
        device_worker_free(&worker);
        ck_assert_uint_eq(ledger.total.current, 0);
    }
    ck_assert_uint_ge(refused, 5);
    setting_close(&s);
}
END_TEST

START_TEST(an_impossible_model_is_refused)
{
    struct setting s;
    struct device_worker worker;
    struct ledger ledger = {0};
    struct error err = {""};

    setting_open(&s, &setting_configs[0], 4, 7);
    struct device_worker_options options = setting_options(&s, 2, 0);
    options.config.n_heads = 5; /* does not divide 12 */
    ck_assert_int_eq(device_worker_init(&worker, &options, &ledger, &err), -EINVAL);
    ck_assert(err.text[0] != 0);
    ck_assert_uint_eq(ledger.total.peak, 0);
    device_worker_free(&worker);
    setting_close(&s);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("worker");

    tcase_add_test(tests, the_arena_stands_in_the_ledger_while_the_worker_lives);
    tcase_add_test(tests, a_cap_is_kept_or_refused);
    tcase_add_test(tests, an_impossible_model_is_refused);
    return run_tests(tests);
}
