/* The timeline of a step against the same steps of a worker on the simulated CUDA device in virtual time, which queues
 * them itself (tests/kit/device/timed.h); and queues that share the host's memory, by hand. */
#include "tests/kit/device/simulated.h"
#include "tests/kit/device/timed.h"

#include "proto/plan/timeline.h"
#include "proto/plan/work.h"
#include "tests/kit/model.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(cuda)

/* Times are the same in every build: under a sanitizer, where the simulated device is slow, a few steps will do. */
enum { N_DRAWN = SANITIZED ? 3 : 11 };

/* ---- whole steps ---- */

/* Width 16 to 64, 1 to 6 blocks, a vocabulary of 40 to 140. */
static struct model_config drawn_model(uint64_t *state)
{
    const uint32_t heads = 1 + setting_below(state, 2), width = heads * 8 * (2 + setting_below(state, 3));

    return (struct model_config)GPT2_CONFIG(1 + setting_below(state, 6), heads, width, 4 * width, 16,
                                            40 + setting_below(state, 100),
                                            .activation = (enum model_activation)setting_below(state, 3),
                                            .tied = setting_below(state, 2), .gpt2.scale_attention = true);
}

/* 10^from to 10^to. */
static double power(uint64_t *state, double from, double to)
{
    return pow(10, from + (setting_random(state) + 1) / 2 * (to - from));
}

/* Links and updates from far faster than products to far slower. */
static struct profile drawn_profile(uint64_t *state)
{
    const double flops = 1e9, attention = power(state, 8, 9);
    struct profile p = {.attention_flops = {{attention, attention}, {attention / 2, attention / 2}},
                        .link_bytes_per_s = power(state, 6.5, 9),
                        .memory_bytes_per_s = power(state, 9, 10),
                        .update_parameters_per_s = power(state, 5.5, 8)};

    for (int i = 0; i < PROFILE_ROWS; i++)
        p.matmul_flops[NUMBER_FP32][i] = flops / (4 - i), p.matmul_flops[NUMBER_BF16][i] = 2 * flops / (4 - i);
    return p;
}

struct drawn {
    struct setting s;
    struct timed_options options;
    struct plan_host_setting host;
    struct timed_price prices[2];
};

/* Bytes that the optimizer touches, by hand, of the 28 that profiles measure: a fold with one part is the update too; of
 * parts each adds to both moments, then weights are updated; what is tied is added up first. */
static void set_prices(struct drawn *d, uint32_t n_parts)
{
    const double grad = (double)number_bytes(d->host.goal.grad);
    const struct timed_price whole = {(grad + 24) / 28, 0}, in_parts = {(grad + 16) / 28, 16.0 / 28};

    d->prices[0] = n_parts == 1 ? whole : in_parts;
    d->prices[1] = (struct timed_price){(grad + 8) / 28, (24.0 + 4) / 28};
    d->options.prices = d->prices;
}

/* vocabulary: 0, or so large that the head has several units, whose gradient is added up in a stash on the host. */
static void draw(struct drawn *d, int seed, uint32_t vocabulary)
{
    uint64_t state = 0x9e3779b97f4a7c15u + (uint64_t)seed * 77;
    struct model_config config = drawn_model(&state);
    const uint32_t part_rows = 1 + setting_below(&state, 4), n_parts = 1 + setting_below(&state, 2);
    struct plan_choice *choice = &d->options.worker.choice;

    *d = (struct drawn){.host = {.goal.n_parts = n_parts, .n_workers = 1}};
    config.vocabulary = vocabulary ? vocabulary : config.vocabulary;
    setting_open(&d->s, &config, n_parts * part_rows, 4 + setting_below(&state, 13));
    d->s.precision = setting_below(&state, 4) || vocabulary ? NUMBER_BF16 : NUMBER_FP32;
    d->host.goal.grad = setting_below(&state, 2) ? NUMBER_BF16 : NUMBER_FP32;
    d->options = (struct timed_options){.worker = timed_worker(&d->s, part_rows, 1 + setting_below(&state, part_rows)),
                                        .profile = drawn_profile(&state),
                                        .n_slots = 1 + setting_below(&state, ARRAY_LINK_SLOTS),
                                        .n_steps = 2};
    d->options.worker.setting.goal.grad = d->host.goal.grad;
    setting_choose(choice, &d->s.model, &state);
    if (vocabulary) {
        choice->host_stash = true;
        choice->n_kept = choice->kept = choice->kept_below = choice->whole_head = 0;
    }
    choice->n_sums = setting_below(&state, 7);
    set_prices(d, n_parts);
}

static struct plan_timeline timeline_of(const struct drawn *d)
{
    const struct device_worker_options *o = &d->options.worker;
    struct plan_timeline out;
    struct plan plan;

    plan_lay_out(&plan, &d->s.model, &o->setting, &o->choice);
    const struct plan_timeline_setting setting = {.plan = &plan,
                                                  .model = &d->s.model,
                                                  .host = &d->host,
                                                  .profile = &d->options.profile,
                                                  .n_slots = d->options.n_slots};
    ck_assert_int_eq(plan_timeline(&out, &setting), 0);
    return out;
}

/* Each queue is at work or waits, all the time. */
static void check_sums(const struct plan_timeline *line)
{
    for (int i = 0; i < PLAN_QUEUES; i++) {
        double all = line->queues[i].busy;
        for (int j = 0; j <= PLAN_QUEUES; j++)
            all += line->queues[i].waited[j];
        ck_assert_double_eq_tol(all, line->seconds, 1e-9 * line->seconds);
    }
}

SUITE_FIXTURE(simulated_load, NULL)

/* Of both steps, the second of which begins while the optimizer is at work on the first. What is left are the zeros that
 * pad the head's units, which the timeline leaves out. */
TEST(a_step_takes_as_long_as_on_the_simulated_device)
{
    unsigned n_bound[PLAN_QUEUES] = {0};

    for (int i = 0; i < N_DRAWN; i++) {
        struct drawn d;
        struct timed t;
        draw(&d, i, i == N_DRAWN - 1 ? 8320 : 0);
        timed_run(&t, &d.s, &d.options);
        const struct plan_timeline line = timeline_of(&d);
        const double second = t.ends[1] - t.ends[0];
        ck_assert_uint_eq(t.report.unpriced, 0);
        check_sums(&line);
        ck_assert_msg(fabs(line.first / t.ends[0] - 1) <= 0.003 && fabs(line.seconds / second - 1) < 0.001,
                      "draw %d: %g and %g s, simulated %g and %g", i, line.first, line.seconds, t.ends[0], second);
        n_bound[line.binds]++;
        timed_free(&t);
        setting_close(&d.s);
    }
    for (int i = 0; i < PLAN_QUEUES; i++)
        ck_assert_msg(n_bound[i] > 0 || SANITIZED, "queue %d binds in no step", i);
}

/* A block of 17 slices: half of them, when the first of two microbatches is computed that come after it, are more than
 * are on their way at a time. The link is one on which contributions take longer than all else. */
TEST_IF(a_unit_of_many_slices_takes_as_long_as_on_the_simulated_device, !SANITIZED)
{
    const struct model_config config =
        GPT2_CONFIG(1, 1, 32, 1 << 20, 4, 40, .activation = MODEL_RELU, .tied = true, .gpt2.scale_attention = true);
    struct drawn d = {.host = {.goal.n_parts = 1, .n_workers = 1}};
    struct timed t;

    setting_open(&d.s, &config, 2, 2);
    d.s.precision = NUMBER_BF16;
    d.options = (struct timed_options){.worker = timed_worker(&d.s, 2, 1),
                                       .profile = {.attention_flops = {{1e9, 1e9}, {1e9, 1e9}},
                                                   .link_bytes_per_s = 1e8,
                                                   .memory_bytes_per_s = 1e9,
                                                   .update_parameters_per_s = 1e8},
                                       .n_slots = ARRAY_LINK_SLOTS,
                                       .n_steps = 2};
    for (int i = 0; i < PROFILE_ROWS; i++)
        d.options.profile.matmul_flops[NUMBER_FP32][i] = d.options.profile.matmul_flops[NUMBER_BF16][i] = 1e9;
    set_prices(&d, 1);
    ck_assert_uint_gt(d.s.model.units[d.s.model.visits[d.s.model.layers[1].first_visit]].n_slices, 16);
    simulated.idle_products(true); /* their time counts, their values do not */
    timed_run(&t, &d.s, &d.options);
    simulated.idle_products(false);
    const struct plan_timeline line = timeline_of(&d);
    ck_assert_double_eq_tol(line.first, t.ends[0], 0.003 * t.ends[0]);
    ck_assert_double_eq_tol(line.seconds, t.ends[1] - t.ends[0], 0.001 * line.seconds);
    timed_free(&t);
    setting_close(&d.s);
}

/* All is contributed before anything is updated: so no step of the fenced kind is shorter than its two halves. */
TEST(fenced_commit_updates_after_the_last_contribution)
{
    struct drawn d;

    draw(&d, 13, 0); /* the optimizer binds */
    const double parameters = (double)d.s.model.n_parameters, rate = d.options.profile.update_parameters_per_s;
    d.host.goal.fenced = true;
    const struct plan_timeline line = timeline_of(&d);
    check_sums(&line);
    ck_assert_int_eq(line.binds, PLAN_QUEUE_OPTIMIZER);
    ck_assert_double_ge(line.seconds, parameters * (8 + 16 + 4) / 28 / rate); /* weights, moments, the sum */
    setting_close(&d.s);
}

/* ---- queues, by hand ---- */

static void forget(void *context, const struct plan_task *task)
{
    (void)context, (void)task;
}

static void pass_all(struct plan_queues *q, enum plan_queue host_waits_for)
{
    while (plan_queues_pass(q, host_waits_for, forget, NULL))
        ;
}

/* 2 s of a pull, then 3 s of computing, then 1 s of a push. */
TEST(who_waits_for_whom_is_who_was_at_work)
{
    struct plan_queues q = {0};

    plan_queues_give(&q, PLAN_QUEUE_PULL, &(struct plan_task){.seconds = 2});
    plan_queues_follow(&q, PLAN_QUEUE_COMPUTE, PLAN_QUEUE_PULL, 1);
    plan_queues_give(&q, PLAN_QUEUE_COMPUTE, &(struct plan_task){.seconds = 3});
    plan_queues_follow(&q, PLAN_QUEUE_PUSH, PLAN_QUEUE_COMPUTE, 1);
    plan_queues_give(&q, PLAN_QUEUE_PUSH, &(struct plan_task){.seconds = 1});
    pass_all(&q, PLAN_QUEUE_PUSH);
    ck_assert_double_eq(q.now, 6);
    ck_assert_double_eq(q.queues[PLAN_QUEUE_PUSH].waited[PLAN_QUEUE_PULL], 2); /* by way of computing */
    ck_assert_double_eq(q.queues[PLAN_QUEUE_PUSH].waited[PLAN_QUEUE_COMPUTE], 3);
    ck_assert_double_eq(q.queues[PLAN_QUEUE_COMPUTE].waited[PLAN_QUEUE_PUSH], 1); /* as the host does */
    ck_assert_double_eq(q.queues[PLAN_QUEUE_COMPUTE].busy, 3);
    ck_assert_double_eq(q.queues[PLAN_QUEUE_OPTIMIZER].waited[PLAN_QUEUE_PULL], 2);
    plan_queues_free(&q);
}

/* Of 10 bytes a second, copies want 4 each way and the optimizer 12: half of what they want, until a copy of 2 s is done
 * after 4. The other, of 1 s, was done after 2: from then on 10 of 16. So the first: 1 s of its 2 in the first 2 seconds,
 * the second in 1.6 more. The optimizer's 3 s: 1, 1 and, alone, at 10 of 12 the last in 1.2. Computing goes on beside. */
TEST(the_host_s_memory_is_shared)
{
    struct plan_queues q = {.host_bytes_per_s = 10};

    plan_queues_give(&q, PLAN_QUEUE_PULL, &(struct plan_task){.seconds = 2, .host_bytes = 8});
    plan_queues_give(&q, PLAN_QUEUE_PUSH, &(struct plan_task){.seconds = 1, .host_bytes = 4});
    plan_queues_give(&q, PLAN_QUEUE_OPTIMIZER, &(struct plan_task){.seconds = 3, .host_bytes = 36});
    plan_queues_give(&q, PLAN_QUEUE_COMPUTE, &(struct plan_task){.seconds = 4.5});
    pass_all(&q, PLAN_QUEUE_OPTIMIZER);
    ck_assert_double_eq_tol(q.queues[PLAN_QUEUE_PUSH].busy, 2, 1e-12);
    ck_assert_double_eq_tol(q.queues[PLAN_QUEUE_PULL].busy, 3.6, 1e-12);
    ck_assert_double_eq_tol(q.queues[PLAN_QUEUE_COMPUTE].busy, 4.5, 1e-12);
    ck_assert_double_eq_tol(q.now, 4.8, 1e-12);
    plan_queues_free(&q);
}

static void note_unit(void *context, const struct plan_task *task)
{
    uint32_t **next = context;

    *(*next)++ = task->unit;
}

/* What it has begun it ends. */
TEST(the_optimizer_takes_the_lowest_unit_first)
{
    static const uint32_t given[] = {5, 7, 2, 7, 1}, done[] = {5, 1, 2, 7, 7};
    uint32_t units[5], *next = units;
    struct plan_queues q = {0};

    plan_queues_give(&q, PLAN_QUEUE_PULL, &(struct plan_task){.seconds = 0.5});
    plan_queues_give(&q, PLAN_QUEUE_OPTIMIZER, &(struct plan_task){.seconds = 1, .unit = given[0]});
    ck_assert(plan_queues_pass(&q, PLAN_QUEUE_PULL, note_unit, &next)); /* it is at work */
    for (int i = 1; i < 5; i++)
        plan_queues_give(&q, PLAN_QUEUE_OPTIMIZER, &(struct plan_task){.seconds = 1, .unit = given[i]});
    while (plan_queues_pass(&q, PLAN_QUEUE_OPTIMIZER, note_unit, &next))
        ;
    ck_assert_mem_eq(units, done, sizeof done);
    plan_queues_free(&q);
}
