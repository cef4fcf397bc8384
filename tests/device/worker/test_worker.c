#include "proto/step/step.h"

#include "tests/kit/device/setting.h"
#include "tests/kit/test.h"

#include <errno.h>

TEST(the_arena_stands_in_the_ledger_while_the_worker_lives)
{
    struct setting s;
    struct device_worker worker;
    struct ledger ledger = {0};

    setting_open(&s, setting_config(0), 4, 7);
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

TEST(an_impossible_choice_is_refused)
{
    struct setting s;
    struct device_worker worker;
    struct ledger ledger = {0};
    struct error err = {""};

    setting_open(&s, setting_config(0), 4, 7);
    const struct device_worker_options options = setting_options(&s, 2, 3);
    ck_assert_int_eq(device_worker_init(&worker, &options, &ledger, &err), -EINVAL);
    ck_assert_str_eq(err.text, "--microbatch 3: a part has 2 rows");
    ck_assert_uint_eq(ledger.total.peak, 0);
    device_worker_free(&worker);
    setting_close(&s);
}

TEST(an_impossible_model_is_refused)
{
    struct setting s;
    struct device_worker worker;
    struct ledger ledger = {0};
    struct error err = {""};

    setting_open(&s, setting_config(0), 4, 7);
    struct device_worker_options options = setting_options(&s, 2, 0);
    options.config.n_heads = 5; /* does not divide 12 */
    ck_assert_int_eq(device_worker_init(&worker, &options, &ledger, &err), -EINVAL);
    ck_assert(err.text[0] != 0);
    ck_assert_uint_eq(ledger.total.peak, 0);
    device_worker_free(&worker);
    setting_close(&s);
}
