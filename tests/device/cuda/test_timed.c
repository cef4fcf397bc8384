/* Virtual time on the simulated CUDA device: what each piece of work takes, who waited for whom, and whole steps of a
 * worker beside an optimizer. Expected times are sums of what the header says (tests/sim/cudasim.h), by hand. */
#include "tests/kit/device/timed.h"

#include "proto/plan/memory/host.h"
#include "proto/plan/memory/room.h"
#include "tests/kit/inprocess/model.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(cuda)

enum {
    HOST = CUDASIM_HOST,
    COMPUTE = TIMED_QUEUE + DEVICE_COMPUTE,
    PULL = TIMED_QUEUE + DEVICE_PULL,
    PUSH = TIMED_QUEUE + DEVICE_PUSH
};

/* A megabyte of the link, a gigabyte of memory, a gigaoperation in fp32 and two in bf16 a second. */
static const struct profile round_profile = {
    .matmul_flops = {[NUMBER_FP32] = {1e9, 1e9, 1e9, 1e9}, [NUMBER_BF16] = {2e9, 2e9, 2e9, 2e9}},
    .attention_flops = {{{1e9, 2e9}}, {{1e9, 2e9}}},
    .link_bytes_per_s = 1e6,
    .memory_bytes_per_s = 1e9,
    .update_parameters_per_s = 1e6,
};

static const double SAME = 1e-12; /* seconds: rounding of sums of milliseconds */

static struct device *open_timed(enum number_type type)
{
    struct device *dev = simulated_open(type, CUDASIM_STREAMS_NEWEST_FIRST);

    simulated.time(&round_profile);
    return dev;
}

static void check_ms(double seconds, double ms)
{
    ck_assert_msg(fabs(seconds - ms / 1e3) < SAME, "%.9f ms, not %.9f", seconds * 1e3, ms);
}

/* Milliseconds at work, and waiting for two others. */
static void check_lane(const struct cudasim_report *r, unsigned lane, double busy, unsigned one, double for_one,
                       unsigned other, double for_other)
{
    check_ms(r->lanes[lane].busy, busy);
    check_ms(r->lanes[lane].waited[one], for_one);
    check_ms(r->lanes[lane].waited[other], for_other);
}

/* The report, every lane of which is busy or waits. */
static struct cudasim_report told(void)
{
    struct cudasim_report r;

    simulated.tell_time(&r);
    for (unsigned i = 0; i < r.n_lanes; i++) {
        double idle = 0;
        for (unsigned j = 0; j <= CUDASIM_LANES; j++)
            idle += r.lanes[i].waited[j];
        ck_assert_double_eq_tol(idle, r.lanes[i].idle, SAME);
        ck_assert_double_eq_tol(r.lanes[i].busy + r.lanes[i].idle, r.makespan, SAME);
    }
    return r;
}

static void *arena(struct device *dev, size_t byte)
{
    return (char *)simulated.ops->arena(dev) + byte;
}

/* Square, of 100: 2 million operations, 2 ms in fp32. */
static void multiply(struct device *dev)
{
    const struct device_matmul op = {.m = 100,
                                     .n = 100,
                                     .k = 100,
                                     .a = arena(dev, 0),
                                     .b = arena(dev, 0),
                                     .c = arena(dev, 1 << 20),
                                     .a_stride = 100,
                                     .b_stride = 100,
                                     .c_stride = 100};

    simulated.ops->matmul(dev, &op);
}

SUITE_FIXTURE(simulated_load, NULL)

/* 1 ms up, 2 ms of products, 3 ms down, each after the other. */
TEST(work_that_follows_other_work_waits_for_it)
{
    struct device *dev = open_timed(NUMBER_FP32);
    static char up[1000], down[3000];

    simulated.ops->upload(dev, arena(dev, 0), up, sizeof up);
    simulated.ops->follow(dev, DEVICE_COMPUTE, DEVICE_PULL, simulated.ops->mark(dev, DEVICE_PULL));
    multiply(dev);
    simulated.ops->follow(dev, DEVICE_PUSH, DEVICE_COMPUTE, simulated.ops->mark(dev, DEVICE_COMPUTE));
    ck_assert_double_eq(simulated.now(), 0); /* calls take no time */
    simulated.ops->download(dev, down, arena(dev, 1 << 20), sizeof down);
    check_ms(simulated.now(), 6);
    const struct cudasim_report r = told();
    check_ms(r.makespan, 6);
    check_lane(&r, PULL, 1, CUDASIM_NOBODY, 5, PULL, 0);
    check_lane(&r, COMPUTE, 2, PULL, 1, CUDASIM_NOBODY, 3);
    check_lane(&r, PUSH, 3, PULL, 1, COMPUTE, 2);
    check_lane(&r, HOST, 0, PULL, 1, COMPUTE, 2);
    check_ms(r.lanes[HOST].waited[PUSH], 3);
    ck_assert_uint_eq(r.unpriced, 0);
    simulated.time(NULL);
    simulated_close(dev);
}

/* The product after the first mark begins with it, though the second upload was queued before. */
TEST(work_that_follows_nothing_runs_beside_other_work)
{
    struct device *dev = open_timed(NUMBER_BF16);
    static char up[4000];

    simulated.ops->upload(dev, arena(dev, 0), up, 500);
    const uint64_t first = simulated.ops->mark(dev, DEVICE_PULL);
    simulated.ops->upload(dev, arena(dev, 4096), up, 4000);
    simulated.ops->follow(dev, DEVICE_COMPUTE, DEVICE_PULL, first);
    multiply(dev); /* 1 ms in bf16 */
    ck_assert_int_eq(simulated.ops->finish(dev, DEVICE_COMPUTE, simulated.ops->mark(dev, DEVICE_COMPUTE)), 0);
    check_ms(simulated.now(), 1.5);
    const struct cudasim_report r = told();
    check_ms(r.makespan, 4.5);
    check_ms(r.lanes[PULL].busy, 4.5);
    check_ms(r.lanes[COMPUTE].busy, 1);
    check_ms(simulated.now(), 1.5); /* telling is no waiting */
    simulated.time(NULL);
    simulated_close(dev);
}

/* The host works 5 ms before it queues anything; then waits for a thread that got 3 ms of work at 4 ms and 2 more at
 * 5. */
TEST(the_host_and_its_threads_take_time_too)
{
    struct device *dev = open_timed(NUMBER_FP32);
    const unsigned optimizer = simulated.thread("optimizer");

    simulated.host_works(4e-3);
    check_ms(simulated.thread_works(optimizer, 3e-3), 7);
    simulated.host_works(1e-3);
    const double end = simulated.thread_works(optimizer, 2e-3);
    check_ms(end, 9);
    multiply(dev); /* from 5 to 7 ms */
    simulated.host_awaits(optimizer, end);
    check_ms(simulated.now(), 9);
    multiply(dev); /* from 9 to 11: it waits for the host, which waits for the optimizer */
    ck_assert_int_eq(simulated.ops->sync(dev), 0);
    check_ms(simulated.now(), 11);
    const struct cudasim_report r = told();
    ck_assert_str_eq(r.lanes[optimizer].name, "optimizer");
    check_lane(&r, COMPUTE, 4, HOST, 5, optimizer, 2);
    check_lane(&r, optimizer, 5, HOST, 4, COMPUTE, 0);
    check_lane(&r, HOST, 5, optimizer, 4, COMPUTE, 2);
    simulated.time(NULL);
    simulated_close(dev);
}

/* Half a million numbers: 6 bytes of memory each, then 2 over the link. */
TEST(a_contribution_is_rounded_before_it_is_copied)
{
    enum { N = 500000 };
    struct device *dev = open_timed(NUMBER_FP32);
    static uint16_t down[N];

    simulated.ops->round_half(dev, &(struct device_round_half){arena(dev, 0), arena(dev, 1 << 20), N, NUMBER_BF16});
    simulated.ops->follow(dev, DEVICE_PUSH, DEVICE_COMPUTE, simulated.ops->mark(dev, DEVICE_COMPUTE));
    simulated.ops->download(dev, down, arena(dev, 0), sizeof down);
    const struct cudasim_report r = told();
    check_ms(r.lanes[COMPUTE].busy, 3);
    check_ms(r.lanes[PUSH].waited[COMPUTE], 3);
    check_ms(r.lanes[PUSH].busy, 1000);
    simulated.time(NULL);
    simulated_close(dev);
}

TEST(time_begins_at_0_and_ends_where_the_test_says)
{
    struct device *dev = open_timed(NUMBER_FP32);
    struct cudasim_report r;

    multiply(dev);
    simulated.time(&round_profile); /* from 0 again */
    multiply(dev);
    ck_assert_double_eq(simulated.now(), 0);
    ck_assert_int_eq(simulated.ops->sync(dev), 0);
    check_ms(simulated.now(), 2);
    simulated.time(NULL);
    ck_assert_double_eq(simulated.now(), 0);
    multiply(dev);
    simulated.tell_time(&r);
    ck_assert_double_eq(r.makespan, 0);
    simulated_close(dev);
}

/* ---- whole steps ---- */

/* Of width 16 to 48, and 2 to 4 blocks. */
static struct model_config drawn(uint64_t *state)
{
    const uint32_t heads = 1 + setting_below(state, 2), width = heads * 8 * (2 + setting_below(state, 2));

    return (struct model_config)GPT2_CONFIG(2 + setting_below(state, 3), heads, width, 4 * width, 12,
                                            40 + setting_below(state, 60), .tied = setting_below(state, 2),
                                            GPT2_ON(scale_attention));
}

struct drawn_run {
    struct setting s;
    struct timed_options options;
};

static void draw(struct drawn_run *run, int seed)
{
    uint64_t state = 0x9e3779b97f4a7c15u + (uint64_t)seed * 77;
    const struct model_config config = drawn(&state);

    setting_open(&run->s, &config, 2, 4 + setting_below(&state, 5));
    run->s.precision = NUMBER_BF16;
    run->options = (struct timed_options){.worker = timed_worker(&run->s, 2, 1 + setting_below(&state, 2)),
                                          .profile = round_profile,
                                          .update = 1,
                                          .n_slots = 2,
                                          .n_steps = 3};
    run->options.worker.choice.n_weight_buffers = 2 + setting_below(&state, 2);
}

static double parameters(const struct setting *s)
{
    double n = 0;

    for (uint32_t visit = 0; visit < s->model.n_visits; visit++)
        n += (double)s->model.units[s->model.visits[visit]].n;
    return n;
}

enum { N_DRAWN = SANITIZED ? 1 : 2 };

/* The optimizer is slow: a step takes no less than its work and never more than all work one after the other; and what
 * the device waits for is the optimizer. */
TEST_EACH(a_step_that_the_optimizer_holds_up_waits_for_it, N_DRAWN)
{
    struct drawn_run run;
    struct timed t;

    draw(&run, _i);
    run.options.profile.link_bytes_per_s = 1e9;
    run.options.profile.update_parameters_per_s = 1e6;
    timed_run(&t, &run.s, &run.options);
    const struct cudasim_lane *compute = &t.report.lanes[COMPUTE], *optimizer = &t.report.lanes[t.optimizer];
    const double update = parameters(&run.s) / 1e6, computing = compute->busy / run.options.n_steps;
    ck_assert_uint_eq(t.report.unpriced, 0);
    ck_assert_double_eq_tol(optimizer->busy, run.options.n_steps * update, 1e-9 * optimizer->busy);
    ck_assert_double_lt(computing, update);
    for (uint32_t i = 1; i < run.options.n_steps; i++) {
        const double step = t.folded[i] - t.folded[i - 1];
        ck_assert_double_ge(step, update - SAME);
        ck_assert_double_lt(step, update + computing + (t.report.lanes[PULL].busy + t.report.lanes[PUSH].busy) / 3);
    }
    ck_assert_double_gt(compute->waited[t.optimizer], 0.5 * compute->idle);
    timed_free(&t);
    setting_close(&run.s);
}

/* It is fast, and so is the link: the device computes almost without a break. */
TEST_EACH(a_step_that_nothing_holds_up_takes_what_it_computes, N_DRAWN)
{
    struct drawn_run run;
    struct timed t;

    draw(&run, _i);
    run.options.profile.link_bytes_per_s = 1e12;
    run.options.profile.update_parameters_per_s = 1e12;
    timed_run(&t, &run.s, &run.options);
    ck_assert_double_ge(t.report.makespan, t.report.lanes[COMPUTE].busy);
    ck_assert_double_lt(t.report.makespan, 1.001 * t.report.lanes[COMPUTE].busy);
    ck_assert_uint_eq(t.report.unpriced, 0);
    timed_free(&t);
    setting_close(&run.s);
}

/* What the optimizer needs for a step, in times of what the device computes. */
static const double loads[] = {0.6, 0.9, 1.25, 2};
enum { N_BLOCKS = 12 };

struct pace {
    double step, fold; /* seconds: of a step; of a block's fold */
};

/* As the daemon plans its inbox: the fewest slots, or those added. */
static uint32_t planned_slots(const struct setting *s, bool added)
{
    const struct plan_host_setting setting = {
        .goal = {.purpose = PLAN_TRAIN, .n_parts = 1, .batch = s->batch, .seq = s->seq},
        .n_workers = 1,
        .beside = true};
    const struct plan_room room = {.available = UINT64_MAX, .cap = UINT64_MAX};
    struct plan_host host;

    plan_host(&host, &s->model, &setting);
    if (added)
        plan_host_add_slots(&host, &s->model, &setting, &room);
    return host.n_slots;
}

/* The third of some steps, which the optimizer is at work for so long. */
static struct pace measure(const struct setting *s, struct timed_options options, double optimizer, bool added)
{
    struct pace out;
    struct timed t;

    options.profile.update_parameters_per_s = parameters(s) / optimizer;
    options.n_slots = planned_slots(s, added);
    options.n_steps = 3;
    timed_run(&t, s, &options);
    out.step = t.folded[2] - t.folded[1];
    out.fold = (double)s->model.largest_unit / options.profile.update_parameters_per_s;
    timed_free(&t);
    return out;
}

/* With the inbox that is planned, a step takes as long as the slower of the two is at work, and a tail, which is a
 * share of 12 blocks here and of fewer slices where a block has many. Between two steps the device waits for the fold
 * that is under way and for that of the bottom block; or, where it is the faster, the optimizer waits until the top
 * block, whose contribution it folded last, has made the next one. With the fewest slots, contributions wait on the
 * device and the optimizer for the next backward pass. */
TEST(a_step_takes_as_long_as_the_slower_of_device_and_optimizer)
{
    /* 12 equal blocks between small tables, over a link that is fast. */
    static const struct model_config config = GPT2_CONFIG(N_BLOCKS, 1, 16, 64, 8, 24, GPT2_ON(scale_attention));
    struct timed_options options = {.profile = round_profile, .update = 1, .n_slots = 16, .n_steps = 1};
    struct setting s;
    struct timed t;

    setting_open(&s, &config, 2, 8);
    s.precision = NUMBER_BF16;
    options.worker = timed_worker(&s, 2, 1);
    options.worker.choice.n_weight_buffers = 3;
    options.profile.link_bytes_per_s = 1e9;
    options.profile.update_parameters_per_s = 1e12;
    timed_run(&t, &s, &options);
    const double compute = t.report.lanes[COMPUTE].busy;
    timed_free(&t);
    for (int i = 0; i < COUNT(loads); i++) {
        const double load = loads[i], longer = fmax(1, load) * compute;
        const struct pace added = measure(&s, options, load * compute, true);
        const double tail = load < 1 ? 2 * added.fold : compute / N_BLOCKS;

        ck_assert_double_ge(added.step, longer);
        ck_assert_double_le(added.step, 1.05 * longer + tail);
        if (load > 0.6) /* so fast an optimizer is done with each before the next comes */
            ck_assert_double_gt(measure(&s, options, load * compute, false).step, 1.05 * longer + tail);
    }
    setting_close(&s);
}

/* Neither a clock nor an order changes a bit of what is computed, or of the time it takes. */
TEST_EACH(time_is_the_same_every_time_and_changes_no_bit, N_DRAWN)
{
    struct drawn_run run;
    struct timed one, other;
    struct array_link plain;

    draw(&run, _i);
    timed_run(&one, &run.s, &run.options);
    simulated.order(CUDASIM_STREAMS_RANDOM, CUDASIM_THREADS_FORWARD, 7);
    timed_run(&other, &run.s, &run.options);
    ck_assert_mem_eq(one.ends, other.ends, sizeof one.ends);
    ck_assert_double_eq(one.report.makespan, other.report.makespan);
    ck_assert(setting_same_bits(one.link.gradient, other.link.gradient, run.s.model.segment_n));
    setting_step_whole(&plain, &run.s, &run.options.worker);
    ck_assert(setting_same_bits(one.link.gradient, plain.gradient, run.s.model.segment_n));
    array_link_free(&plain);
    timed_free(&one);
    timed_free(&other);
    setting_close(&run.s);
}
