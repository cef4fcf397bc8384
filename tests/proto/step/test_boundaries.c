#include "proto/model/gpt2.h"
#include "proto/step/boundaries.h"

#include "proto/plan/time/cost.h"
#include "proto/plan/search.h"
#include "proto/plan/memory/units.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/device/extents.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

SUITE_LABELS(single, slow, on_cuda_release)

enum { ROUNDS = SANITIZED ? 3 : 8, MANY = 25 };

/* Of each round of a loop. */
static int n_settings(void)
{
    return backend_get()->simulated ? 2 : SANITIZED ? 6 : MANY;
}

/* The step on a device that records what it is given; its figures against the plan's. Returns the bytes copied. */
static uint64_t step_measured(struct array_link *link, const struct setting *s, struct device_worker_options options)
{
    struct extents extents;
    struct plan plan;

    options.ops = &device_extents;
    extents_begin(&extents);
    setting_step_whole(link, s, &options);
    plan_lay_out(&plan, &s->model, &options.setting, &options.choice);
    ck_assert_uint_eq(extents.n_outside, 0);
    ck_assert_uint_eq(extents.high_water, plan.arena_bytes);
    return extents.copied;
}

/* A step by other options has the same bits, and does what its plan says; returns the bytes copied. */
static uint64_t check_same(const struct array_link *same, const struct setting *s, struct device_worker_options options)
{
    struct array_link link;
    const uint64_t copied = step_measured(&link, s, options);

    ck_assert(setting_same_bits(same->gradient, link.gradient, s->model.segment_n));
    ck_assert_mem_eq(same->losses, link.losses, sizeof link.losses);
    array_link_free(&link);
    return copied;
}

/* Every second round as a device that works beside the host, as the CPU is not. */
static const struct plan_backend *backend_of(int round)
{
    static struct plan_backend beside;

    beside = backend_beside(backend_get()->plan);
    return round % 2 ? &beside : backend_get()->plan;
}

/* In tiles of fewer tokens than a microbatch may have, or as it was; on the CPU too as CUDA's units are padded and add
 * up. */
static const struct plan_backend *cut_head(const struct plan_backend *backend, uint64_t *state)
{
    static struct plan_backend cut;

    cut = *backend;
    if (setting_below(state, 3))
        cut.head_tile = 1 + setting_below(state, 30);
    if (!backend_get()->cuda && setting_below(state, 2))
        cut.head_pad = PLAN_CUDA_HEAD_PAD, cut.head_sums = true;
    return &cut;
}

static bool simulated(void)
{
    return backend_get()->simulated;
}

static int rounds(void)
{
    return simulated() ? 2 : ROUNDS;
}

static int first_setting(void)
{
    return simulated() ? SETTING_CONFIGS - 1 : 0;
}

/* From the smallest budget, which every sixth is, over all between, evenly on a logarithmic scale, to twice what could
 * be used. */
static uint64_t random_budget(const struct setting *s, const struct plan_setting *setting, const struct plan_wish *wish,
                              uint64_t *state)
{
    struct plan smallest, largest;

    plan_smallest(&smallest, &s->model, setting, wish);
    ck_assert_int_eq(plan_search(&largest, &s->model, setting, wish, profile_default("cpu"), UINT64_MAX, NULL), 0);
    const double least = (double)plan_total(&smallest), most = 2 * (double)plan_total(&largest);
    const double between = least * pow(most / least, (setting_random(state) + 1) / 2);
    return setting_below(state, 6) == 0 ? plan_total(&smallest) : (uint64_t)fmax(between, least);
}

struct drawn {
    struct setting s;
    struct device_worker_options options;
};

/* A random model, batch and setting. */
static void draw(struct drawn *d, int round, uint64_t *state)
{
    const struct model_config config = setting_random_config(state);
    const uint32_t part_rows = 1 + setting_below(state, 6), parts = 1 + setting_below(state, 3);

    setting_open(&d->s, &config, parts * part_rows, 1 + setting_below(state, 12));
    setting_fill(&d->s);
    d->options = setting_options(&d->s, part_rows, 1 + setting_below(state, part_rows));
    d->options.setting.backend = cut_head(backend_of(round), state);
    d->options.setting.n_threads = 1 + (setting_below(state, 8) == 0);
    d->options.setting.goal.precision = (enum number_type)setting_below(state, 2);
    d->options.choice.n_weight_buffers = 3;
}

/* Whatever stays, is kept, passes through buffers or lies on the host: a roomy device's bits, and as many bytes as the
 * plan says, counted from what operations are given. What a stash on the host adds to the copies of a step is what is
 * predicted. */
TEST_EACH(every_choice_gives_the_roomy_bits_and_uses_its_arena_to_the_byte, rounds())
{
    uint64_t state = 88172645463325252u + (uint64_t)_i;

    for (int i = 0; i < n_settings(); i++) {
        struct array_link roomy;
        struct plan_cost cost;
        struct drawn d;
        struct plan plan;

        draw(&d, _i, &state);
        step_measured(&roomy, &d.s, d.options);
        setting_choose(&d.options.choice, &d.s.model, &state);
        const uint64_t copied = check_same(&roomy, &d.s, d.options);
        if (d.options.choice.host_stash) {
            const uint32_t parts = d.s.batch / d.options.setting.part_rows;
            const struct plan_host_setting host = {.goal = {.purpose = PLAN_TRAIN, .n_parts = parts}, .n_workers = 1};
            plan_lay_out(&plan, &d.s.model, &d.options.setting, &d.options.choice);
            plan_cost(&cost, &plan, &d.s.model, &host, profile_default("cpu"), NULL);
            d.options.choice.host_stash = false;
            ck_assert_uint_eq(copied - check_same(&roomy, &d.s, d.options), cost.stash_bytes);
        }
        array_link_free(&roomy);
        setting_close(&d.s);
    }
}

/* The same of what the planner itself chooses for a budget. Single rows, thirds and halves of a part, or free. */
TEST_EACH(what_is_planned_for_a_budget_is_what_is_used_of_it, rounds())
{
    unsigned n_stashed = 0, n_kept = 0, n_resident = 0, n_apart = 0;
    uint64_t state = 362436069362436069u + (uint64_t)_i;

    for (int i = 0; i < n_settings(); i++) {
        struct array_link roomy;
        struct drawn d;
        struct plan plan;

        draw(&d, _i, &state);
        d.options.setting.n_threads = 1;
        const struct plan_wish wish = {.microbatch = setting_below(&state, d.options.setting.part_rows + 1),
                                       .no_host_stash = setting_below(&state, 4) == 0};
        const uint64_t budget = random_budget(&d.s, &d.options.setting, &wish, &state);
        ck_assert_int_eq(plan_search(&plan, &d.s.model, &d.options.setting, &wish, profile_default("cpu"), budget,
                                     NULL),
                         0);
        ck_assert_uint_le(plan_total(&plan), budget);
        d.options.choice.microbatch = plan.choice.microbatch;
        step_measured(&roomy, &d.s, d.options);
        d.options.choice = plan.choice;
        check_same(&roomy, &d.s, d.options);
        n_stashed += plan.choice.host_stash, n_kept += plan.choice.keeping[0].n_kept > 0,
            n_resident += plan.n_resident > 0;
        n_apart += plan.choice.n_weight_buffers == 1;
        array_link_free(&roomy);
        setting_close(&d.s);
    }
    if (n_settings() == MANY) { /* enough for every kind of choice */
        ck_assert_uint_gt(n_stashed, 0);
        ck_assert_uint_lt(n_stashed, MANY);
        ck_assert_uint_gt(n_kept, 0);
        ck_assert_uint_lt(n_kept, MANY);
        ck_assert_uint_gt(n_resident, 0);
        ck_assert_uint_gt(n_apart, 0);
    }
}

/* One unit's logits, computed twice for a share of two parts, once for each part alone. */
TEST_RANGE(a_head_in_one_pass_gives_the_bits_of_two, first_setting(), SETTING_CONFIGS)
{
    struct setting s;
    struct array_link both, each;

    setting_open(&s, setting_config(_i), 6, 5);
    struct device_worker_options options = setting_options(&s, 3, 2);
    setting_step_whole(&both, &s, &options);
    options.setting.share_rows = 3;
    for (uint32_t part = 0; part < 2; part++) {
        array_link_init(&each, &s.model, s.weights);
        setting_step(&each, &s, &options, 1, setting_parts + part);
        ck_assert(setting_same_bits(both.parts[part], each.parts[part], s.model.segment_n));
        ck_assert(both.losses[part] == each.losses[part]);
        array_link_free(&each);
    }
    array_link_free(&both);
    setting_close(&s);
}

/* Constant memory: 384 layers take what 12 take, and train as they would with room. */
TEST(with_the_stash_on_the_host_depth_costs_the_device_nothing)
{
    static const uint32_t depths[] = {12, 24, 96, 384};
    const size_t n = backend_get()->simulated ? 2 : sizeof depths / sizeof *depths;
    uint64_t first = 0;

    for (size_t i = 0; i < n; i++) {
        struct model_config config = *setting_config(0);
        struct array_link roomy;
        struct setting s;
        struct plan plan;

        config.n_layers = depths[i];
        setting_open(&s, &config, 2, 9);
        setting_fill(&s);
        struct device_worker_options options = setting_options(&s, 2, 1);
        step_measured(&roomy, &s, options);
        options.choice.host_stash = true;
        check_same(&roomy, &s, options);
        plan_lay_out(&plan, &s.model, &options.setting, &options.choice);
        first = i ? first : plan.arena_bytes;
        ck_assert_uint_eq(plan.arena_bytes, first);
        /* embedding, blocks, norm; their gradient: 18 tokens of width 12, rounded up to 64 bytes */
        ck_assert_uint_eq(plan.host_stash_bytes, (depths[i] + 3) * 896u);
        array_link_free(&roomy);
        setting_close(&s);
    }
}

/* With a whole matrix of 154 MB: rows of it are gathered for the tokens there are, and it passes in pieces as the
 * head. */
/* CUDA's libraries alone take more. */
TEST_IF(a_vocabulary_of_50257_by_768_trains_under_24_mib, !backend_get()->cuda)
{
    const struct model_config config = {&family_gpt2, 2,     12,    768,
                                        96,           64,    50257, MODEL_GELU_NEW,
                                        true,         1e-5f, 0,     GPT2_ON(scale_attention)};
    struct array_link roomy;
    struct setting s;
    struct plan plan;

    setting_open(&s, &config, 2, 16);
    struct device_worker_options options = setting_options(&s, 2, 1);
    options.choice.n_weight_buffers = 3;
    options.choice.whole_head = true;
    step_measured(&roomy, &s, options);
    options.choice = (struct plan_choice){.microbatch = 1, .host_stash = true, .n_weight_buffers = 1};
    plan_lay_out(&plan, &s.model, &options.setting, &options.choice);
    ck_assert_uint_le(plan_total(&plan), 24 << 20);
    check_same(&roomy, &s, options);
    array_link_free(&roomy);
    setting_close(&s);
}

/* Rows of a step keep their place between microbatches and parts while an evaluation passes in between. */
TEST_RANGE(an_evaluation_is_the_same_wherever_boundaries_are, first_setting(), SETTING_CONFIGS)
{
    struct setting s;
    double sums[3];

    setting_open(&s, setting_config(_i), 5, 7);
    for (int i = 0; i < 3; i++) {
        struct device_worker_options options = setting_options(&s, 5, 2);
        const struct device_evaluation e = {.rows = setting_rows(&s), .n_rows = 5};
        options.setting.goal.purpose = i < 2 ? PLAN_TRAIN : PLAN_EVALUATE;
        options.choice.keeping[0] =
            i == 1 ? (struct plan_keeping){s.model.config.n_layers, MODEL_KEEPS_ALL, 0} : (struct plan_keeping){0};
        options.choice.host_stash = i == 2;
        sums[i] = setting_evaluate(&s, &options, &e, NULL);
        ck_assert(sums[i] == sums[0]);
    }
    setting_close(&s);
}

/* The bytes of all traced tiles. */
static uint64_t traced_bytes(int fd)
{
    static char text[1 << 16];
    uint64_t sum = 0;
    const ssize_t n = pread(fd, text, sizeof text - 1, 0);

    ck_assert(n > 0 && (size_t)n < sizeof text - 1);
    text[n] = 0;
    for (const char *at = text; (at = strstr(at, "load tile")); at++) {
        const char *bytes = strstr(at, "\"bytes\"");
        ck_assert_ptr_nonnull(bytes);
        sum += strtoull(bytes + strcspn(bytes, "0123456789"), NULL, 10);
    }
    return sum;
}

TEST(tiles_are_traced)
{
    const struct plan_host_setting host = {.goal = {.purpose = PLAN_EVALUATE, .n_parts = 1}, .n_workers = 1};
    const int fd = memfd_create("trace", MFD_CLOEXEC);
    struct device_worker worker;
    struct ledger ledger = {0};
    struct array_link link;
    struct trace trace;
    struct plan_cost cost;
    struct setting s;
    double sum;

    setting_open(&s, setting_config(0), 5, 7);
    struct device_worker_options options = setting_options(&s, 5, 2);
    const struct device_evaluation e = {.rows = setting_rows(&s), .n_rows = 5};
    options.setting.goal.purpose = PLAN_EVALUATE;
    options.choice.host_stash = true;
    ck_assert_int_eq(device_worker_init(&worker, &options, &ledger, NULL), 0);
    void *stash = worker.stash = malloc(worker.plan.host_stash_bytes);
    trace_open(&trace, fd, "test", "tiles");
    worker.trace = &trace;
    array_link_init(&link, &s.model, s.weights);
    ck_assert_int_eq(device_worker_evaluate(&worker, &e, &array_link, &link, &sum, NULL), 0);
    ck_assert_int_eq(trace_close(&trace), 0);
    plan_cost(&cost, &worker.plan, &s.model, &host, profile_default("cpu"), NULL);
    ck_assert_uint_gt(cost.stash_bytes, 0);
    ck_assert_uint_eq(traced_bytes(fd), cost.stash_bytes);
    close(fd);
    device_worker_free(&worker);
    array_link_free(&link);
    free(stash);
    setting_close(&s);
}
