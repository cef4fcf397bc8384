/* Row groups: parts of a share that pass the model together. That no bit depends on them is tested with whole steps
 * (tests/system/exact/test_exact_same.c). */
#include "tests/kit/device/backend.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/test.h"

/* A row group begins: losses come after contributions. */
static unsigned n_begun;

static int begin_group(void *context, uint32_t part, double sum, const struct preference_rewards *rewards, bool finite)
{
    struct array_link *link = context;

    n_begun += link->n_contributions > 0;
    link->n_slots = link->n_contributions = 0;
    link->last_name = 0;
    return array_link.loss(context, part, sum, rewards, finite);
}

/* If the relay counts on it, parts pass the model together only if they follow each other, and are few enough; with the
 * bits of parts that all do. */
TEST_EACH(row_groups_are_of_parts_that_follow_each_other, 6)
{
    static const struct {
        uint32_t parts[4], n, most;
        bool groups;
        unsigned n_groups;
    } cases[] = {{{0, 1, 2, 3}, 4, 0, true, 1}, {{0, 1, 2, 3}, 4, 3, true, 2},  {{0, 2, 3, 5}, 4, 0, true, 3},
                 {{0, 1, 3, 5}, 4, 2, true, 3}, {{0, 2, 3, 5}, 4, 0, false, 1}, {{0, 2, 3, 5}, 4, 2, false, 2}};
    struct device_link link = array_link;
    struct array_link whole, cut;
    struct device_worker worker;
    struct ledger ledger = {0};
    struct setting s;

    setting_open(&s, setting_config(0), 6, 5);
    struct device_worker_options options = setting_options(&s, 1, 0);
    setting_step_whole(&whole, &s, &options);
    options.setting.goal.fenced = true;
    options.choice.group_parts = cases[_i].most;
    ck_assert_int_eq(device_worker_init(&worker, &options, &ledger, NULL), 0);
    array_link_init(&cut, &s.model, s.weights);
    cut.version = SETTING_STEP;
    link.loss = begin_group, n_begun = 1;
    struct device_share share = setting_share(&s, cases[_i].n);
    share.parts = cases[_i].parts, share.groups = cases[_i].groups;
    ck_assert_int_eq(device_worker_step(&worker, &share, &link, &cut, NULL), 0);
    ck_assert_uint_eq(n_begun, cases[_i].n_groups);
    for (uint32_t i = 0; i < cases[_i].n; i++) {
        const uint32_t part = cases[_i].parts[i];
        ck_assert(setting_same_bits(whole.parts[part], cut.parts[part], s.model.segment_n));
    }
    device_worker_free(&worker);
    array_link_free(&whole);
    array_link_free(&cut);
    setting_close(&s);
}
