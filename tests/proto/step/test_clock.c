#include "proto/step/clock.h"

#include "tests/kit/test.h"

#include <errno.h>
#include <string.h>

/* 1,000 bytes a second from and to the host, 600 in the device. */
static const struct profile profile = {.link_bytes_per_s = 1000, .memory_bytes_per_s = 600};

/* 2 s up; then 1,800 bytes in 3 s; then 1 s down. */
TEST(queues_follow_marks_and_take_the_profile_s_time)
{
    struct device dev = {.meter.profile = &profile, .slow = 1};
    const struct device_ops *ops = &device_clock;
    char *const arena = ops->arena(&dev);

    device_check(ops);
    ops->upload(&dev, arena, CLOCK_ADDRESS, 2000);
    ops->follow(&dev, DEVICE_COMPUTE, DEVICE_PULL, ops->mark(&dev, DEVICE_PULL));
    ops->round_half(&dev, &(struct device_round_half){.n = 300});
    ops->follow(&dev, DEVICE_PUSH, DEVICE_COMPUTE, ops->mark(&dev, DEVICE_COMPUTE));
    ops->download(&dev, CLOCK_ADDRESS, arena, 1000);
    clock_compute(&dev, 7); /* beside the download */
    ck_assert_double_eq(dev.queues.now, 0);
    ck_assert_int_eq(ops->finish(&dev, DEVICE_PULL, ops->mark(&dev, DEVICE_PULL)), 0);
    ck_assert_double_eq(dev.queues.now, 2);
    ck_assert_int_eq(ops->finish(&dev, DEVICE_PUSH, ops->mark(&dev, DEVICE_PUSH)), 0);
    ck_assert_double_eq(dev.queues.now, 6);
    ck_assert_int_eq(ops->sync(&dev), 0);
    ck_assert_double_eq(dev.queues.now, 12);
    plan_queues_free(&dev.queues);
}

/* 10 tokens of 6 numbers: 40 bytes of ids, 240 read and 240 written take 520/600 s; and the 240 that are read 240/1000
 * s, or 2.4 s of a link that is ten times slower. Of tokens whose rows are elsewhere only ids are read. */
TEST(rows_of_a_table_come_from_the_host)
{
    struct profile slower = profile;
    struct plan_meter meter = {.on = {&plan_cuda, NUMBER_FP32, 1, PLAN_ATTENTION_OWN}, .profile = &profile};
    struct call call = {.kind = CALL_embed, .embed = {.m = 10, .n = 6, .n_table = 100}};

    ck_assert_double_eq_tol(plan_meter_price(&meter, &call), 520.0 / 600, 1e-12);
    slower.link_bytes_per_s = 100;
    meter.profile = &slower;
    ck_assert_double_eq_tol(plan_meter_price(&meter, &call), 2.4, 1e-12);
    meter.found = 0.25;
    ck_assert_double_eq_tol(plan_meter_price(&meter, &call), 0.6, 1e-12);
    meter.profile = &profile;
    ck_assert_double_eq_tol(plan_meter_price(&meter, &call), (40 + 0.25 * 480) / 600, 1e-12);
}

/* 2 x 3 = 6 sums of 4 products: 48 operations of 1 a second. In a pass of its own, an activation reads and writes 6
 * numbers of 4 bytes and reads or writes what it is of: 72/600 s, and so does a slope. */
TEST(what_a_product_does_not_compute_in_its_pass_takes_another)
{
    struct profile rates = profile;
    struct plan_meter meter = {.on = {&plan_cuda, NUMBER_FP32, 1, PLAN_ATTENTION_OWN}, .profile = &rates};
    struct call call = {.kind = CALL_matmul,
                        .matmul = {.m = 2, .n = 3, .k = 4, .a_stride = 4, .b_stride = 3, .c_stride = 3}};

    for (int i = 0; i < PROFILE_ROWS; i++)
        rates.matmul_flops[NUMBER_FP32][i] = rates.matmul_flops[NUMBER_BF16][i] = 1;
    ck_assert_double_eq_tol(plan_meter_price(&meter, &call), 48, 1e-12);
    call.matmul.epilogue = DEVICE_BIAS_ACTIVATION;
    ck_assert_double_eq_tol(plan_meter_price(&meter, &call), 48 + 72.0 / 600, 1e-12);
    call.matmul.epilogue = DEVICE_ACTIVATION_GRADIENT;
    call.matmul.activation = MODEL_GELU_NEW;
    ck_assert_double_eq_tol(plan_meter_price(&meter, &call), 48 + 72.0 / 600, 1e-12);
    meter.on.type = NUMBER_BF16;
    call.matmul.n = 8;
    ck_assert_double_eq_tol(plan_meter_price(&meter, &call), 2 * 2 * 8 * 4 + 96.0 / 600, 1e-12);
}

/* 32 queries see 16.5 of their keys each, taken as 16: 4 * 32 * 16 * 64 operations, at the rate of tensor cores.
 * Backward two and a half times as many, of which 3 sevenths are queries': where heads share keys in full rows, those
 * of keys take the plain kernel. */
TEST(attention_takes_the_time_of_its_path)
{
    struct profile rates = profile;
    struct plan_meter meter = {.on = {&plan_cuda, NUMBER_BF16, 1, PLAN_ATTENTION_OWN}, .profile = &rates};
    struct call call = {.kind = CALL_attention, .attention = {.n_rows = 1, .n_tokens = 32, .n_heads = 1, .width = 64}};
    const double n = 4.0 * 32 * 16 * 64, full = 2.5 * 4 * 32 * 32 * 128;

    rates.memory_bytes_per_s = 1e12;
    rates.attention_flops[PROFILE_FORWARD][ATTENTION_PLAIN][NUMBER_BF16] = 10;
    rates.attention_flops[PROFILE_FORWARD][ATTENTION_TENSOR][NUMBER_BF16] = 300;
    rates.attention_flops[PROFILE_BACKWARD][ATTENTION_PLAIN][NUMBER_BF16] = 8;
    rates.attention_flops[PROFILE_BACKWARD][ATTENTION_TENSOR][NUMBER_BF16] = 200;
    ck_assert_double_eq_tol(plan_meter_price(&meter, &call), n / 300, 1e-6);
    call.attention.dropout.p = 0.1f; /* not measured: as the plain one */
    ck_assert_double_eq_tol(plan_meter_price(&meter, &call), n / 10, 1e-6);
    plan_meter_ops.attention_backward(plan_meter_device(&meter), &(struct device_attention){.n_rows = 1,
                                                                                            .n_tokens = 32,
                                                                                            .n_heads = 2,
                                                                                            .n_kv_heads = 1,
                                                                                            .width = 128,
                                                                                            .full = true});
    ck_assert_double_eq_tol(meter.uses.seconds[PLAN_USE_ATTENTION_BACKWARD + ATTENTION_TENSOR], 3.0 / 7 * full / 200,
                            1e-6);
    ck_assert_double_eq_tol(meter.uses.seconds[PLAN_USE_ATTENTION_BACKWARD + ATTENTION_PLAIN], 4.0 / 7 * full / 8,
                            1e-6);
    ck_assert_double_eq_tol(meter.seconds, 3.0 / 7 * full / 200 + 4.0 / 7 * full / 8, 1e-6);
    ck_assert_double_eq_tol(meter.uses.operations[PLAN_USE_ATTENTION_BACKWARD + ATTENTION_PLAIN], 4.0 / 7 * full, 1e-6);
}

/* What a query sees, by hand: half of 1,024 keys; of 640 in a window a fifth less, as the first 640 of 1,600 see half
 * of that; all 512 of a full row; the last of 1,024 texts' tokens all of them, as a row of 2,048. The rate is that a
 * third, or two thirds, of the way from 512 tokens to 4,096. Shared keys have a rate of their own. */
TEST(attention_takes_the_time_of_its_shape)
{
    static const struct {
        size_t n_tokens, window, n_kv_heads, keys;
        bool full;
        double flops;
    } calls[] = {{1024, 0, 2, 512, false, 400},
                 {1600, 640, 2, 512, false, 400},
                 {512, 0, 2, 512, true, 400},
                 {1024, 0, 1, 512, false, 900}};
    struct profile rates = profile;
    struct plan_meter meter = {.on = {&plan_cuda, NUMBER_BF16, 1, PLAN_ATTENTION_OWN}, .profile = &rates};
    struct call call = {
        .kind = CALL_attention_cached,
        .attention_cached = {.first = 1023, .n_tokens = 1, .n_heads = 1, .width = 128, .n_positions = 1024}};
    double(*const of)[ATTENTION_PATHS][PROFILE_TYPES][PROFILE_KEYS][PROFILE_HEADS][PROFILE_LENGTHS] =
        rates.attention_by_shape;

    rates.memory_bytes_per_s = 1e15;
    for (int i = 0; i < PROFILE_DIRECTIONS * ATTENTION_PATHS; i++)
        rates.attention_flops[i / ATTENTION_PATHS][i % ATTENTION_PATHS][NUMBER_BF16] = 1;
    for (int path = 0; path < ATTENTION_PATHS; path++) {
        memcpy(of[0][path][NUMBER_BF16][PROFILE_OWN_KEYS][1], (const double[]){300, 600, 0}, 3 * sizeof(double));
        of[0][path][NUMBER_BF16][PROFILE_SHARED_KEYS][1][0] = 900;
        memcpy(of[1][path][NUMBER_BF16][PROFILE_OWN_KEYS][1], (const double[]){30, 60, 0}, 3 * sizeof(double));
        of[1][path][NUMBER_BF16][PROFILE_SHARED_KEYS][1][0] = 90;
    }
    ck_assert_double_eq_tol(plan_meter_price(&meter, &call), 4.0 * 1024 * 128 / 500, 1e-6);
    for (int i = 0; i < COUNT(calls); i++) {
        const double n = 4.0 * (double)calls[i].n_tokens * (double)calls[i].keys * 256;
        call = (struct call){.kind = CALL_attention,
                             .attention = {.n_rows = 1,
                                           .n_tokens = calls[i].n_tokens,
                                           .n_heads = 2,
                                           .width = 256,
                                           .n_kv_heads = calls[i].n_kv_heads,
                                           .window = calls[i].window,
                                           .full = calls[i].full}};
        ck_assert_double_eq_tol(plan_meter_price(&meter, &call) / (n / calls[i].flops), 1, 1e-9);
        call.kind = CALL_attention_backward;
        ck_assert_double_eq_tol(plan_meter_price(&meter, &call) / (2.5 * n / (calls[i].flops / 10)), 1, 1e-9);
    }
}

/* On an H100 (tests/gpu/RECORD.md), forward and backward of 4 rows of 4,096 tokens, 32 heads: of 96 values by our
 * kernels, of 80 by cuDNN. Both compute 128 columns. A CPU, at 270 GFLOP/s, computes those of a head of 24 values
 * alone. */
TEST(heads_take_the_time_of_the_columns_of_a_tile)
{
    static const struct {
        size_t head, n_kv_heads;
        enum plan_attention way;
        double seconds;
    } measured[] = {{96, 8, PLAN_ATTENTION_OWN, 1.7648e-3 + 6.4935e-3},
                    {80, 32, PLAN_ATTENTION_SCORES, 0.9042e-3 + 5.3832e-3}};

    for (int i = 0; i < COUNT(measured); i++) {
        struct plan_meter meter = {.on = {&plan_cuda, NUMBER_BF16, 1, measured[i].way},
                                   .profile = profile_default("cuda")};
        struct call call = {.kind = CALL_attention,
                            .attention = {.n_rows = 4,
                                          .n_tokens = 4096,
                                          .n_heads = 32,
                                          .n_kv_heads = measured[i].n_kv_heads,
                                          .width = 32 * measured[i].head}};
        const double forward = plan_meter_price(&meter, &call);
        call.kind = CALL_attention_backward;
        ck_assert_double_eq_tol((forward + plan_meter_price(&meter, &call)) / measured[i].seconds, 1, 0.1);
    }
    struct plan_meter host = {.on = {&plan_cpu, NUMBER_FP32, 1, PLAN_ATTENTION_OWN}, .profile = profile_default("cpu")};
    struct call call = {.kind = CALL_attention,
                        .attention = {.n_rows = 1, .n_tokens = 1024, .n_heads = 1, .width = 24}};
    ck_assert_double_eq_tol(plan_meter_price(&host, &call) / (4.0 * 1024 * 512 * 24 / 270e9), 1, 1e-9);
}

/* ResNet-50's first, of 64 images on an H100: 0.5103 ms (tests/gpu/RECORD.md). The library multiplies 64 channels, not
 * 3. */
TEST(a_convolution_of_few_channels_takes_the_time_of_a_tile_s)
{
    struct plan_meter meter = {.on = {&plan_cuda, NUMBER_BF16, 1, PLAN_ATTENTION_OWN, .has_conv2d = true},
                               .profile = profile_default("cuda")};
    struct call call = {
        .kind = CALL_conv2d,
        .conv2d = {
            .n_rows = 64, .height = 224, .width = 224, .n_in = 3, .n_out = 64, .n_groups = 1, .window = {7, 7, 2, 3}}};

    ck_assert_double_eq_tol(plan_meter_price(&meter, &call) / 0.5103e-3, 1, 0.2);
    meter.on.has_conv2d = false;
    ck_assert_double_eq_tol(plan_meter_price(&meter, &call) * meter.profile->conv2d_flops[0][CONV2D_OWN][NUMBER_BF16],
                            2.0 * 64 * 112 * 112 * 64 * 147, 1e9);
}

/* Both read 2,000 bytes in 2 s over links of their own, if host memory moves 2,000 bytes/s; with 500 it takes 8 s.
 * Their devices compute beside that. */
TEST(host_memory_serves_the_copies_of_two_workers)
{
    static const double rates[] = {2000, 500}, ends[] = {2, 8};

    for (int i = 0; i < 2; i++) {
        struct device dev = {.meter.profile = &profile, .slow = 1, .n_beside = 1, .queues.host_bytes_per_s = rates[i]};
        device_clock.upload(&dev, CLOCK_ADDRESS, CLOCK_ADDRESS, 2000);
        clock_compute(&dev, 1);
        ck_assert_int_eq(device_clock.sync(&dev), 0);
        ck_assert_double_eq_tol(dev.queues.now, ends[i], 1e-12);
        plan_queues_free(&dev.queues);
    }
}

/* Nobody waits, and each of two workers has half of it. */
TEST(a_clock_that_takes_turns_has_done_each_task_when_the_call_returns)
{
    struct device dev = {.meter.profile = &profile, .takes_turns = true, .slow = 2};

    device_clock.upload(&dev, CLOCK_ADDRESS, CLOCK_ADDRESS, 2000);
    ck_assert_double_eq(dev.queues.now, 4);
    clock_compute(&dev, 3);
    ck_assert_double_eq(dev.queues.now, 10);
    plan_queues_free(&dev.queues);
}

TEST(waits_say_that_a_task_found_no_memory)
{
    struct device dev = {.meter.profile = &profile, .slow = 1, .queues.no_memory = true};
    struct error err = {""};

    ck_assert_int_eq(device_clock.finish(&dev, DEVICE_PUSH, 1), -EIO);
    ck_assert_int_eq(device_clock.sync(&dev), -EIO);
    ck_assert_int_eq(device_clock.fault(&dev, &err), -EIO);
    ck_assert_str_eq(err.text, "out of memory for the queues' tasks");
}
