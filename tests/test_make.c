#include "tests/run.h"

#include "plan/make.h"

#include <check.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A device of which only the sizes are asked. Odd ones, so that rounding shows. */
static uint64_t library(unsigned n_threads)
{
    (void)n_threads;
    return 1000;
}

static uint64_t scratch(size_t n_rows, size_t n_tokens, size_t n_heads, size_t width, unsigned n_threads)
{
    return n_rows * n_tokens * n_heads + width + n_threads;
}

static uint64_t cache(enum number_type type, size_t n_positions, size_t n_heads, size_t width)
{
    (void)type;
    return n_positions * width * 8 + n_heads;
}

static const struct plan_backend sizes_only = {.name = "sizes",
                                               .library_bytes = library,
                                               .scratch_bytes = scratch,
                                               .cache_bytes = cache};

static struct model_config config_of(uint32_t n_layers, uint32_t width, uint32_t vocabulary, bool tied)
{
    return (struct model_config){.n_layers = n_layers,
                                 .n_heads = 2,
                                 .width = width,
                                 .inner_width = 4 * width,
                                 .n_positions = 64,
                                 .vocabulary = vocabulary,
                                 .tied = tied,
                                 .norm_epsilon = 1e-5f,
                                 .initializer_range = 0.02f};
}

struct options {
    struct plan_setting setting;
    struct plan_choice choice;
    uint64_t budget;
};

static struct options options_of(uint32_t parts, uint32_t part_rows, uint32_t seq)
{
    return (struct options){.setting = {.backend = &sizes_only,
                                        .purpose = PLAN_TRAIN,
                                        .share_rows = parts * part_rows,
                                        .part_rows = part_rows,
                                        .seq = seq,
                                        .n_threads = 2},
                            .choice = {.n_weight_buffers = 2},
                            .budget = UINT64_MAX};
}

static struct options generation_of(uint32_t seq)
{
    struct options o = options_of(1, 1, seq);

    o.setting.purpose = PLAN_GENERATE;
    return o;
}

static void open_model(struct model *model, uint32_t n_layers, uint32_t width, uint32_t vocabulary, bool tied)
{
    const struct model_config config = config_of(n_layers, width, vocabulary, tied);

    ck_assert_int_eq(model_init(model, &config, NULL), 0);
}

static int make(struct plan *plan, const struct model *model, const struct options *o, struct error *err)
{
    return plan_make(plan, model, &o->setting, &o->choice, o->budget, err);
}

static uint64_t sum_of(const struct plan *plan)
{
    uint64_t sum = 0;

    for (int c = 0; c < LEDGER_CATEGORIES; c++)
        sum += plan->bytes[c];
    return sum;
}

/* The first "(N bytes)" after `from` in a sentence. */
static uint64_t figure(const char *text, const char *from)
{
    const char *at = strstr(text, from);
    uint64_t bytes = 0;

    ck_assert_ptr_nonnull(at);
    at = strchr(at, '(');
    ck_assert_ptr_nonnull(at);
    ck_assert_int_eq(sscanf(at, "(%" SCNu64 " bytes)", &bytes), 1);
    return bytes;
}

/* Every cap from too small to roomy either holds the whole plan, with as many rows as fit, or is refused with a figure
 * that suffices, to the byte. */
START_TEST(every_budget_is_kept_or_refused_with_the_figure_that_suffices)
{
    struct model model;
    struct plan all, plan;
    struct options o = options_of(2, 8, 16);
    unsigned kept = 0, refused = 0;

    open_model(&model, 3, 16, 50, true);
    ck_assert_int_eq(make(&all, &model, &o, NULL), 0);
    const uint64_t roomy = sum_of(&all);
    for (o.budget = 0; o.budget < roomy + roomy / 8; o.budget += roomy / 100) {
        struct error err = {""};
        int rc = make(&plan, &model, &o, &err);
        if (rc == 0) {
            kept++;
            ck_assert_uint_le(sum_of(&plan), o.budget);
            struct options more = o;
            more.choice.microbatch = plan.choice.microbatch + 1;
            ck_assert(plan.choice.microbatch == o.setting.part_rows || make(&plan, &model, &more, NULL) == -ENOSPC);
        } else {
            refused++;
            ck_assert_int_eq(rc, -ENOSPC);
            const uint64_t least = figure(err.text, "at least");
            ck_assert_uint_gt(least, o.budget);
            ck_assert_uint_eq(least, sum_of(&plan));
            struct options again = o;
            again.budget = least;
            ck_assert_int_eq(make(&plan, &model, &again, NULL), 0);
            again.budget = least - 1;
            ck_assert_int_eq(make(&plan, &model, &again, &err), -ENOSPC);
            ck_assert_uint_eq(figure(err.text, "at least"), least);
        }
    }
    ck_assert_uint_gt(kept, 20);
    ck_assert_uint_gt(refused, 20);
    model_free(&model);
}
END_TEST

START_TEST(a_fixed_microbatch_is_refused_with_its_own_figure_and_that_of_one_row)
{
    struct model model;
    struct plan plan;
    struct options o = options_of(1, 8, 16);
    struct error err;

    open_model(&model, 3, 16, 50, true);
    o.choice.microbatch = 4;
    o.budget = 1000;
    ck_assert_int_eq(make(&plan, &model, &o, &err), -ENOSPC);
    const uint64_t four = figure(err.text, "at least"), one = figure(err.text, ", or ");
    ck_assert_ptr_nonnull(strstr(err.text, "microbatches of 4 rows"));
    ck_assert_ptr_nonnull(strstr(err.text, "workspace"));
    ck_assert_uint_eq(figure(err.text, "--device-mem"), 1000);
    ck_assert_uint_lt(one, four);
    o.budget = four;
    ck_assert_int_eq(make(&plan, &model, &o, NULL), 0);
    o.budget = four - 1;
    ck_assert_int_eq(make(&plan, &model, &o, NULL), -ENOSPC);
    o.choice.microbatch = 0; /* as many as fit: exactly these */
    o.budget = four;
    ck_assert_int_eq(make(&plan, &model, &o, NULL), 0);
    ck_assert_uint_eq(plan.choice.microbatch, 4);
    o.choice.microbatch = 1;
    o.budget = one;
    ck_assert_int_eq(make(&plan, &model, &o, NULL), 0);
    o.budget = one - 1;
    ck_assert_int_eq(make(&plan, &model, &o, NULL), -ENOSPC);
    model_free(&model);
}
END_TEST

/* From nothing to everything on the device: each cap is kept, or refused with the figure that suffices; what stays never
 * falls as the cap grows, and units stay as soon as they fit. */
START_TEST(every_budget_to_generate_is_kept_or_refused)
{
    struct model model;
    struct plan plan;
    struct options o = generation_of(16);
    uint32_t most = 0, distinct = 0;
    uint64_t least = 0;

    open_model(&model, _i ? 1 : 9, 16, 50, true); /* of one block: one buffer is enough for it */
    ck_assert_int_eq(make(&plan, &model, &o, NULL), 0);
    const uint64_t roomy = sum_of(&plan);
    for (o.budget = 0; o.budget <= roomy; o.budget += 4) {
        struct error err = {""};
        if (make(&plan, &model, &o, &err) != 0) {
            least = figure(err.text, "at least");
            ck_assert_ptr_nonnull(strstr(err.text, "to generate up to 16 tokens"));
            ck_assert_uint_gt(least, o.budget);
            ck_assert_uint_eq(least, sum_of(&plan));
            ck_assert_uint_eq(most, 0);
            continue;
        }
        ck_assert_uint_ge(o.budget, least);
        ck_assert_uint_le(sum_of(&plan), o.budget);
        ck_assert_uint_ge(plan.choice.n_resident, most);
        distinct += plan.choice.n_resident > most;
        most = plan.choice.n_resident;
        while (++plan.choice.n_resident <= model.n_units) {
            const struct plan_choice more = plan.choice;
            plan_lay_out(&plan, &model, &o.setting, &more);
            ck_assert_uint_gt(plan_total(&plan), o.budget);
        }
    }
    ck_assert_uint_eq(most, model.n_units);
    ck_assert_uint_gt(distinct, _i ? 1 : 8);
    o.budget = least;
    ck_assert_int_eq(make(&plan, &model, &o, NULL), 0);
    o.budget = least - 1;
    ck_assert_int_eq(make(&plan, &model, &o, NULL), -ENOSPC);
    model_free(&model);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("make");

    tcase_add_test(tests, every_budget_is_kept_or_refused_with_the_figure_that_suffices);
    tcase_add_test(tests, a_fixed_microbatch_is_refused_with_its_own_figure_and_that_of_one_row);
    tcase_add_loop_test(tests, every_budget_to_generate_is_kept_or_refused, 0, 2);
    return run_tests(tests);
}
