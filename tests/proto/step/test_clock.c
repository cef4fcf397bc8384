#include "proto/step/clock.h"

#include "tests/kit/test.h"

#include <errno.h>

/* 1,000 bytes a second from and to the host, 600 in the device. */
static const struct profile profile = {.link_bytes_per_s = 1000, .memory_bytes_per_s = 600};

/* 2 s up; then 1,800 bytes in 3 s; then 1 s down. Products are free: the timeline prices visits. */
TEST(queues_follow_marks_and_take_the_profile_s_time)
{
    struct device dev = {.profile = &profile, .slow = 1};
    const struct device_ops *ops = &device_clock;
    char *const arena = ops->arena(&dev);

    device_check(ops);
    ops->upload(&dev, arena, CLOCK_ADDRESS, 2000);
    ops->follow(&dev, DEVICE_COMPUTE, DEVICE_PULL, ops->mark(&dev, DEVICE_PULL));
    ops->round_bf16(&dev, &(struct device_round_bf16){.n = 300});
    ops->matmul(&dev, &(struct device_matmul){.m = 1 << 20, .n = 1 << 20, .k = 1 << 20});
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

/* Nobody waits, and each of two workers has half of it. */
TEST(a_clock_that_takes_turns_has_done_each_task_when_the_call_returns)
{
    struct device dev = {.profile = &profile, .takes_turns = true, .slow = 2};

    device_clock.upload(&dev, CLOCK_ADDRESS, CLOCK_ADDRESS, 2000);
    ck_assert_double_eq(dev.queues.now, 4);
    clock_compute(&dev, 3);
    ck_assert_double_eq(dev.queues.now, 10);
    plan_queues_free(&dev.queues);
}

TEST(waits_say_that_a_task_found_no_memory)
{
    struct device dev = {.profile = &profile, .slow = 1, .queues.no_memory = true};
    struct error err = {""};

    ck_assert_int_eq(device_clock.finish(&dev, DEVICE_PUSH, 1), -EIO);
    ck_assert_int_eq(device_clock.sync(&dev), -EIO);
    ck_assert_int_eq(device_clock.fault(&dev, &err), -EIO);
    ck_assert_str_eq(err.text, "out of memory for the queues' tasks");
}
