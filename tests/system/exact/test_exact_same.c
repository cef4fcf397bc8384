/* What must not change a bit: threads, weight buffers, budget, replay, when the optimizer commits, AdamA in one part,
 * and with --deterministic the number of workers. Without it, and from AdamA to AdamW, no more than rounding. */
#include "proto/plan/search.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/fixtures/exact.h"
#include "tests/kit/test.h"

#include <math.h>

SUITE_LABELS(single, slow)

enum { N_STEPS = SANITIZED ? 1 : 4, FEW_STEPS = SANITIZED ? 1 : 2 /* an update, and a step from it */ };

/* 3 workers do not divide 8 parts; 5 threads are more than rows. A sanitizer sees the first ones. */
static const struct {
    const char *fixture;
    struct inprocess_options one, other;
} pairs[] = {
    {"a", {.n_parts = 8, .microbatch = 1, .adamw = true}, {.n_workers = 3, .deterministic = true}},
    {"a", {.n_parts = 8, .microbatch = 1}, {.n_workers = 8, .deterministic = true}},
    {"a", {.n_parts = 1, .microbatch = 1, .adamw = true}, {.fenced = true}},
    {"a", {.n_parts = 4, .microbatch = 1, .adamw = true}, {.fenced = true}},
    {"a", {.n_parts = 1, .microbatch = 1}, {.fenced = true}},
    {"a", {.n_parts = 1, .microbatch = 1}, {.adamw = true}},
    {"b", {.n_parts = 2, .microbatch = 4}, {.n_threads = 5}},
    {"a", {.n_parts = 2, .microbatch = 2}, {.n_weight_buffers = 1}},
    {"a", {.n_parts = 2, .microbatch = 2}, {.n_weight_buffers = 3}},
    /* An even number of steps: the weights are in the first of replay's two buffers, where exact_state reads them. */
    {"a", {.n_parts = 1, .microbatch = 1}, {.replay = true}},
    {"b", {.n_parts = 2, .microbatch = 2, .adamw = true}, {.n_workers = 2, .deterministic = true, .replay = true}},
    {"sgd", {.n_parts = 4, .microbatch = 1}, {.n_workers = 3, .deterministic = true}},
    {"sgd", {.n_parts = 2, .microbatch = 2}, {.n_threads = 5, .replay = true}},
    {"sgd_nesterov", {.n_parts = 4, .microbatch = 1}, {.n_workers = 3, .deterministic = true, .replay = true}},
    {"sgd_nesterov", {.n_parts = 4, .microbatch = 1}, {.fenced = true}},
    {"sgd_plain", {.n_parts = 1, .microbatch = 3}, {.fenced = true}},
    {"sgd_plain", {.n_parts = 4, .microbatch = 1}, {.n_workers = 2, .deterministic = true, .fenced = true}},
    {"drop", {.n_parts = 4, .microbatch = 1}, {.n_workers = 3, .deterministic = true, .n_weight_buffers = 1}},
    {"drop", {.n_parts = 2, .microbatch = 2, .adamw = true}, {.n_threads = 5, .n_weight_buffers = 3}},
    {"drop", {.n_parts = 2, .microbatch = 3, .adamw = true}, {.fenced = true, .n_workers = 2, .deterministic = true}},
    {"drop_t5", {.n_parts = 4, .microbatch = 1}, {.n_workers = 3, .deterministic = true, .n_weight_buffers = 1}},
    {"drop_t5", {.n_parts = 2, .microbatch = 3, .adamw = true}, {.n_threads = 5, .n_weight_buffers = 3}},
    {"drop_dynamic_conv", {.n_parts = 2, .microbatch = 3, .adamw = true}, {.fenced = true, .n_weight_buffers = 1}},
    {"order_alternating",
     {.n_parts = 4, .microbatch = 1},
     {.n_workers = 3, .deterministic = true, .n_weight_buffers = 1}},
    {"order_alternating", {.n_parts = 2, .microbatch = 3, .adamw = true}, {.fenced = true, .n_weight_buffers = 3}},
    {"order_dynamic_conv", {.n_parts = 2, .microbatch = 2, .adamw = true}, {.n_threads = 5, .replay = true}},
    {"alternating", {.n_parts = 4, .microbatch = 1}, {.n_workers = 3, .deterministic = true, .n_weight_buffers = 1}},
    {"alternating", {.n_parts = 2, .microbatch = 2, .adamw = true}, {.n_threads = 5, .replay = true}},
    {"chunked", {.n_parts = 4, .microbatch = 1}, {.n_workers = 3, .deterministic = true, .n_weight_buffers = 1}},
    {"chunked", {.n_parts = 2, .microbatch = 3, .adamw = true}, {.n_threads = 5, .replay = true}},
    {"experts", {.n_parts = 4, .microbatch = 2}, {.n_workers = 3, .deterministic = true, .n_weight_buffers = 1}},
    {"experts", {.n_parts = 2, .microbatch = 2, .adamw = true}, {.n_threads = 5, .replay = true}},
    {"crossing", {.n_parts = 4, .microbatch = 1}, {.n_workers = 3, .deterministic = true, .n_weight_buffers = 1}},
    {"t5", {.n_parts = 4, .microbatch = 1}, {.n_workers = 3, .deterministic = true, .n_weight_buffers = 1}},
    {"t5", {.n_parts = 2, .microbatch = 3, .adamw = true}, {.n_threads = 5, .replay = true}},
    {"dynamic_conv_gated",
     {.n_parts = 4, .microbatch = 1},
     {.n_workers = 3, .deterministic = true, .n_weight_buffers = 1}},
    {"dynamic_conv", {.n_parts = 2, .microbatch = 3, .adamw = true}, {.n_threads = 5, .replay = true}},
    {"part_norm", {.n_parts = 4, .microbatch = 1}, {.n_workers = 3, .deterministic = true, .n_weight_buffers = 1}},
    {"part_norm", {.n_parts = 2, .microbatch = 3, .adamw = true}, {.n_threads = 5, .replay = true}},
    {"ghost_wide", {.n_parts = 4, .microbatch = 2}, {.n_workers = 3, .deterministic = true, .n_weight_buffers = 1}},
    {"pictures", {.n_parts = 4, .microbatch = 1}, {.n_workers = 3, .deterministic = true, .n_weight_buffers = 1}},
    {"pictures", {.n_parts = 2, .microbatch = 3, .adamw = true}, {.n_threads = 5, .replay = true}},
};

/* As the first, but for what the second names. */
static struct inprocess_options but_for(struct inprocess_options how, const struct inprocess_options *other)
{
    how.n_workers = other->n_workers, how.n_threads = other->n_threads;
    how.n_weight_buffers = other->n_weight_buffers;
    how.deterministic = other->deterministic, how.fenced = other->fenced, how.replay = other->replay;
    how.adamw = how.adamw || other->adamw;
    return how;
}

static uint64_t state_of(const char *fixture, const struct inprocess_options *how)
{
    struct exact exact;

    exact_train(&exact, fixture, how, N_STEPS);
    const uint64_t state = exact_state(&exact);
    exact_close(&exact);
    return state;
}

TEST_EACH(not_a_bit_changes, SANITIZED ? 4 : COUNT(pairs))
{
    const struct inprocess_options other = but_for(pairs[_i].one, &pairs[_i].other);

    ck_assert_uint_eq(state_of(pairs[_i].fixture, &pairs[_i].one), state_of(pairs[_i].fixture, &other));
}

/* From the least to the most bytes, in eighths of what lies between: there are more boundaries below. */
static const unsigned eighths[] = {0, 1, 2, 4, 6};
enum { N_BUDGETS = SANITIZED ? 3 : COUNT(eighths) };

static uint64_t budget_of(int i, uint64_t least, uint64_t most)
{
    return least + eighths[i] * ((most > least ? most - least : 0) / 8);
}

/* Blocks that are left out, or run in another order, differ from step to step. */
static uint32_t steps_of(const char *fixture)
{
    return strncmp(fixture, "drop", 4) == 0 || strncmp(fixture, "order", 5) == 0 ? N_STEPS : FEW_STEPS;
}

/* The planner's choices from the roomiest budget down to the smallest that works: less and less stays on the device. */
static const char *const budgeted[] = {"b",
                                       "drop",
                                       "alternating",
                                       "chunked",
                                       "experts",
                                       "crossing",
                                       "part_norm",
                                       "t5",
                                       "dynamic_conv_gated",
                                       "drop_t5",
                                       "drop_dynamic_conv",
                                       "order_alternating",
                                       "order_dynamic_conv",
                                       "pictures",
                                       "pixels",
                                       "wide_resnet",
                                       "resnet_basic",
                                       "resnet_bottleneck",
                                       "pooled_wide",
                                       "means_bottleneck",
                                       "ghost_wide",
                                       "sparse_conv",
                                       "sparse_wide"};

/* Also in fp16. */
static const char *const halved[] = {"b", "ghost_wide", "sparse_wide"};

TEST_EACH(no_budget_changes_a_bit, 2 * COUNT(budgeted) + COUNT(halved))
{
    const bool is_half = _i >= 2 * COUNT(budgeted);
    const char *fixture = is_half ? halved[_i - 2 * COUNT(budgeted)] : budgeted[_i / 2];
    struct inprocess_options how = {.n_parts = 2,
                                    .microbatch = 2,
                                    .budget = (uint64_t)4 << 30,
                                    .adamw = is_half,
                                    .fenced = is_half,
                                    .precision = is_half ? NUMBER_FP16 : (enum number_type)(_i % 2)};
    const struct plan_wish wish = {.microbatch = 2};
    const uint32_t n_steps = steps_of(fixture);
    unsigned n_host_stash = 0, n_singly = 0;
    struct exact exact;
    struct plan least;

    exact_train(&exact, fixture, &how, n_steps);
    const uint64_t expected = exact_state(&exact);
    const struct plan *roomy = &exact.ip->workers[0].worker.plan;
    plan_smallest(&least, &exact.ip->model, &roomy->setting, &wish);
    const uint64_t smallest = plan_total(&least), most = plan_total(roomy);
    exact_close(&exact);
    ck_assert_uint_ge(most, smallest + 8);
    for (int i = 0; i < N_BUDGETS; i++) {
        how.budget = budget_of(i, smallest, most);
        exact_train(&exact, fixture, &how, n_steps);
        ck_assert_uint_le(plan_total(&exact.ip->workers[0].worker.plan), how.budget);
        ck_assert_uint_eq(exact_state(&exact), expected);
        n_host_stash += exact.ip->workers[0].worker.plan.choice.host_stash;
        n_singly += exact.ip->workers[0].worker.plan.choice.sparse_singly;
        exact_close(&exact);
    }
    ck_assert_uint_gt(n_host_stash, 0);
    ck_assert_int_eq(n_singly > 0, strncmp(fixture, "sparse", 6) == 0);
}

/* Nets of which convolutions read means of blocks, and those convolutions. */
static const struct {
    const char *fixture, *pooled[3];
} nets[] = {{"wide_resnet", {"conv1.weight", "conv2.weight", "convShortcut.weight"}},
            {"resnet_basic", {"conv2.weight"}},
            {"resnet_bottleneck", {"conv2.weight", "conv3.weight"}}};

static bool reads_means(int net, const char *name)
{
    bool any = false;

    for (int i = 0; i < 3 && nets[net].pooled[i]; i++)
        any |= strchr(name, '.') != strrchr(name, '.') && strlen(name) > strlen(nets[net].pooled[i]) &&
               strcmp(name + strlen(name) - strlen(nets[net].pooled[i]), nets[net].pooled[i]) == 0;
    return any;
}

/* Of inputs as means of blocks: the loss is the exact one, and so are gradients of activations, as all of convolutions
 * of a block's own input, of norms, biases and the head show; those of the convolutions themselves are not, and the
 * larger the blocks, the farther off they are. */
TEST_EACH(means_of_blocks_change_gradients_of_their_convolutions_alone, COUNT(nets))
{
    struct inprocess_options how = {.n_parts = 1, .microbatch = 3};
    struct exact exact, pooled;
    double before = 0;

    exact_open(&exact, nets[_i].fixture, &how);
    const double loss = exact_gradient(&exact);
    for (how.pooled = 2; how.pooled <= 8; how.pooled *= 2) {
        double distance = 0;
        exact_open(&pooled, nets[_i].fixture, &how);
        ck_assert(exact_gradient(&pooled) == loss);
        for (uint32_t t = 0; t < exact.ip->model.n_tensors; t++) {
            const struct model_tensor *tensor = &exact.ip->model.tensors[t];
            const float *const want = exact_find(&exact, tensor->name, tensor->n), *const got =
                                                                                       exact_find(&pooled, tensor->name,
                                                                                                  tensor->n);
            ck_assert_msg((memcmp(want, got, tensor->n * sizeof *want) == 0) == !reads_means(_i, tensor->name), "%s",
                          tensor->name);
            for (uint64_t i = 0; i < tensor->n; i++)
                distance += pow((double)got[i] - (double)want[i], 2);
        }
        ck_assert_double_gt(distance, before);
        before = distance;
        exact_close(&pooled);
    }
    exact_close(&exact);
}

/* Of nets, whose convolutions, norms and labels sum row by row: a part of 8 rows at once, and in 2, 4 and 8
 * microbatches, none of which divides a ghost batch. */
static const char *const cut[] = {"wide_resnet", "resnet_basic", "resnet_bottleneck", "ghost_wide", "sparse_wide"};

TEST_EACH(no_microbatch_changes_a_bit_of_a_net, COUNT(cut) * NUMBER_TYPES)
{
    static const uint32_t microbatches[] = {1, 2, 7};
    const char *const fixture = cut[_i / NUMBER_TYPES];
    struct inprocess_options how = {.n_parts = 1,
                                    .microbatch = 8,
                                    .n_threads = 2,
                                    .fenced = true,
                                    .precision = (enum number_type)(_i % NUMBER_TYPES)};
    const uint32_t least = strncmp(fixture, "ghost", 5) == 0 ? 2 : 1;
    struct exact exact;

    exact_train(&exact, fixture, &how, FEW_STEPS);
    const uint64_t expected = exact_state(&exact);
    exact_close(&exact);
    for (unsigned i = 0; i < COUNT(microbatches); i++) {
        how.microbatch = microbatches[i];
        if (how.microbatch % least)
            continue;
        exact_train(&exact, fixture, &how, FEW_STEPS);
        ck_assert_msg(exact_state(&exact) == expected, "%s in microbatches of %d", fixture, microbatches[i]);
        exact_close(&exact);
    }
}

/* Four parts at once, two after two, and one after another: with less memory, down to the least. Then by two workers in
 * that. Two of the models have a tied table. */
static const char *const grouped[] = {"a", "b", "chunked", "t5", "t5_gated", "pictures", "wide_resnet"};

TEST_EACH(row_groups_change_no_bit, COUNT(grouped) * NUMBER_TYPES)
{
    struct inprocess_options how = {.n_parts = 4,
                                    .microbatch = 2,
                                    .adamw = true,
                                    .fenced = true,
                                    .clip_norm = 0.125, /* clips */
                                    .budget = (uint64_t)4 << 30,
                                    .precision = (enum number_type)(_i % NUMBER_TYPES)};
    const struct plan_wish wish = {.microbatch = 2};
    const char *const fixture = grouped[_i / NUMBER_TYPES];
    uint32_t sizes = 0; /* of groups that were chosen, as a set */
    struct exact exact;
    struct plan least;

    exact_train(&exact, fixture, &how, FEW_STEPS);
    const uint64_t expected = exact_state(&exact);
    ck_assert_double_gt(exact.ip->norm, how.clip_norm);
    struct plan_setting setting = exact.ip->workers[0].worker.plan.setting;
    setting.share_rows = exact.fixture.batch;
    plan_smallest(&least, &exact.ip->model, &setting, &wish);
    const uint64_t smallest = plan_total(&least), most = plan_total(&exact.ip->workers[0].worker.plan);
    ck_assert_uint_eq(least.choice.group_parts, 1);
    exact_close(&exact);
    for (int i = 0; i < N_BUDGETS; i++) {
        how.budget = i + 1 < N_BUDGETS ? budget_of(i, smallest, most) : most;
        exact_train(&exact, fixture, &how, FEW_STEPS);
        const struct plan *plan = &exact.ip->workers[0].worker.plan;
        ck_assert_uint_le(plan_total(plan), how.budget);
        ck_assert_uint_eq(exact_state(&exact), expected);
        sizes |= 1u << plan->choice.group_parts;
        exact_close(&exact);
    }
    ck_assert_uint_ne(sizes, 1u << 1);
    ck_assert_uint_ne(sizes & 1u << 1, 0);
    how.budget = smallest, how.n_workers = 2, how.deterministic = true;
    exact_train(&exact, fixture, &how, FEW_STEPS);
    ck_assert_uint_eq(exact.ip->workers[1].worker.plan.choice.group_parts, 1);
    ck_assert_uint_eq(exact_state(&exact), expected);
    exact_close(&exact);
}

/* AdamA's parts, and SGD's, one after another: of a layer at a time, eager; of the whole model, folded in the least
 * memory; then by two workers. Most models have a tied table. */
static const char *const folded[] = {"a", "b", "t5", "t5_gated", "sgd", "pictures"};

TEST_EACH(folded_part_by_part_no_bit_changes, COUNT(folded) * 2)
{
    struct inprocess_options how = {.n_parts = 4,
                                    .microbatch = 2,
                                    .budget = (uint64_t)4 << 30,
                                    .precision = _i % 2 ? NUMBER_BF16 : NUMBER_FP32,
                                    .moments = _i % 2 ? NUMBER_BF16 : NUMBER_FP32};
    const struct plan_wish wish = {.microbatch = 2};
    const char *const fixture = folded[_i / 2];
    struct exact exact;
    struct plan least;

    exact_train(&exact, fixture, &how, FEW_STEPS);
    const uint64_t expected = exact_state(&exact);
    struct plan_setting setting = exact.ip->workers[0].worker.plan.setting;
    ck_assert(!plan_may_group(&setting));
    how.folded = setting.goal.folded = true;
    plan_smallest(&least, &exact.ip->model, &setting, &wish);
    ck_assert_uint_eq(least.choice.group_parts, 1);
    exact_close(&exact);
    for (how.n_workers = 1; how.n_workers < 3; how.n_workers++) {
        how.budget = plan_total(&least), how.deterministic = how.n_workers > 1;
        exact_train(&exact, fixture, &how, FEW_STEPS);
        ck_assert_uint_eq(exact.ip->workers[0].worker.plan.choice.group_parts, 1);
        ck_assert_uint_eq(exact_state(&exact), expected);
        exact_close(&exact);
    }
}

/* Of the first moments, relative to the second's norm; and no v of the second is more than so many times the
 * first's. */
static double distance(const struct exact *a, const struct exact *b, double most_v)
{
    const struct model *model = &a->ip->model;
    double apart = 0, norm = 0;

    for (uint32_t u = 0; u < model->n_units; u++)
        for (uint64_t at = model->units[u].offset; at < model->units[u].offset + model->units[u].n; at++) {
            const double x = a->ip->store.m[at], y = b->ip->store.m[at];
            apart += (x - y) * (x - y);
            norm += y * y;
            ck_assert_double_le(b->ip->store.v[at], most_v * a->ip->store.v[at] + 1e-30);
        }
    ck_assert_double_gt(norm, 0);
    return sqrt(apart / norm);
}

/* After one step in 8 parts. Contributions are folded as they come, so only the order of rounding differs. AdamA's m
 * collects the parts' gradients, whose sum is AdamW's: 8 additions of 6e-8. Its v collects squares of parts: by
 * Cauchy-Schwarz AdamW's is at most 8 times as large. */
TEST_EACH(no_more_than_rounding_changes, SANITIZED ? 1 : 4)
{
    static const struct {
        bool adamw, other_adamw;
        uint32_t n_workers;
        double apart;
    } cases[] = {{true, true, 3, 1e-6}, {false, false, 8, 1e-6}, {false, false, 3, 1e-6}, {false, true, 1, 5e-7}};
    struct inprocess_options how = {.n_parts = 8, .microbatch = 1, .adamw = cases[_i].adamw};
    struct exact one, other;

    exact_open(&one, "a", &how);
    how.adamw = cases[_i].other_adamw, how.n_workers = cases[_i].n_workers;
    exact_open(&other, "a", &how);
    ck_assert_double_eq_tol(exact_step(&one, 0), exact_step(&other, 0), 1e-6);
    ck_assert_double_le(distance(&one, &other, cases[_i].adamw == how.adamw ? 1e30 : 8 * 1.00001), cases[_i].apart);
    exact_close(&one);
    exact_close(&other);
}
