/* The CPU as a device: what open claims and refuses, copies, and the library's own bytes. */
#include "proto/operation/device.h"
#include "proto/operation/backend.h"
#include "tests/kit/test.h"
#include "device/find.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEST(the_table_is_complete)
{
    device_check(&device_cpu);
    ck_assert_str_eq(device_cpu.name, "cpu");
}

TEST(there_is_one_cpu_device)
{
    struct error err = {{0}};
    struct device *dev;

    ck_assert_int_eq(device_cpu.open(&dev, 1, NUMBER_FP32, 4096, 1, &err), -ENODEV);
    ck_assert_ptr_null(dev);
    ck_assert_holds(err.text, "CPU device 1", "device 0");
}

TEST(an_arena_beyond_the_address_space_is_refused)
{
    const size_t bytes = (size_t)1 << 60;
    struct error err = {{0}};
    struct device *dev;
    char text[200];

    ck_assert_int_eq(device_cpu.open(&dev, 0, NUMBER_FP32, bytes, 1, &err), -ENOMEM);
    snprintf(text, sizeof text, " %zu bytes", bytes + plan_cpu.library_bytes(1));
    ck_assert_holds(err.text, text, "--device-mem", "ulimit -v");
}

static size_t resident_bytes(void)
{
    unsigned long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%lu %lu", &size, &resident), 2);
    fclose(file);
    return resident * 4096;
}

/* 64 MiB and a page: claimed at open, all of it with what products need, and no more than a thread's stack beside
 * it. */
TEST(open_claims_the_arena_and_close_gives_it_back)
{
    const size_t bytes = ((size_t)64 << 20) + 4096, slack = (size_t)2 << 20, taken = bytes + plan_cpu.library_bytes(2);
    const size_t before = resident_bytes();
    struct device *dev;

    ck_assert_int_eq(device_cpu.open(&dev, 0, NUMBER_FP32, bytes, 2, NULL), 0);
    ck_assert_uint_eq((uintptr_t)device_cpu.arena(dev) % 64, 0);
    ck_assert_uint_ge(resident_bytes(), before + taken);
    if (!SANITIZED)
        ck_assert_uint_le(resident_bytes(), before + taken + slack);
    for (size_t i = 0; i < bytes; i += 4095)
        ck_assert(((char *)device_cpu.arena(dev))[i] == 0);
    ((char *)device_cpu.arena(dev))[bytes - 1] = 1;
    device_cpu.close(dev);
    if (!SANITIZED)
        ck_assert_uint_le(resident_bytes(), before + slack);
    device_cpu.close(NULL);
}

TEST(what_is_uploaded_comes_back)
{
    const size_t bytes = ((size_t)3 << 20) + 7; /* over several pieces, the last one odd */
    unsigned char *data = malloc(bytes), *back = calloc(bytes, 1);
    struct device *dev;

    ck_assert_int_eq(device_cpu.open(&dev, 0, NUMBER_FP32, bytes, 2, NULL), 0);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(i * 131 >> 3);
    device_cpu.upload(dev, device_cpu.arena(dev), data, bytes);
    device_cpu.download(dev, back, device_cpu.arena(dev), bytes);
    ck_assert_int_eq(device_cpu.sync(dev), 0);
    ck_assert_int_eq(memcmp(data, back, bytes), 0);
    device_cpu.close(dev);
    free(data), free(back);
}

/* A product of 4 x 4 tiles at least, attention of 6 heads in all, and what is short. */
TEST(operations_are_counted_and_pieces_of_long_ones)
{
    enum { SIDE = 4 * PLAN_CPU_PRODUCT_HEIGHT, TOKENS = 8, WIDTH = 6 };
    const size_t bytes = 3 * (size_t)SIDE * SIDE * sizeof(float);
    uint64_t done = 0;
    struct device *dev;

    ck_assert_int_eq(device_cpu.open(&dev, 0, NUMBER_FP32, bytes, 2, NULL), 0);
    float *x = device_cpu.arena(dev);
    device_cpu.zero(dev, &(struct device_zero){x, 4});
    ck_assert_uint_eq(done, 0);
    device_cpu.count(dev, &done);
    device_cpu.zero(dev, &(struct device_zero){x, 4});
    ck_assert_uint_eq(done, 1);
    device_cpu.download(dev, x, x + 4, 4);
    ck_assert_uint_eq(done, 2);
    device_cpu.matmul(dev, &(struct device_matmul){.m = SIDE,
                                                   .n = SIDE,
                                                   .k = 1,
                                                   .a = x,
                                                   .b = x + SIDE,
                                                   .c = x + (size_t)SIDE * SIDE,
                                                   .a_stride = 1,
                                                   .b_stride = SIDE,
                                                   .c_stride = SIDE});
    ck_assert_uint_ge(done, 2 + 16);
    const uint64_t before = done;
    device_cpu.attention(dev, &(struct device_attention){.n_rows = 3,
                                                         .n_tokens = TOKENS,
                                                         .n_heads = 2,
                                                         .width = WIDTH,
                                                         .scale = 1,
                                                         .qkv = x,
                                                         .out = x + 3 * TOKENS * 3 * WIDTH,
                                                         .log_sum_exp = x + 4 * TOKENS * 3 * WIDTH,
                                                         .scratch = x + (size_t)SIDE * SIDE});
    ck_assert_uint_eq(done, before + 1 + 6);
    device_cpu.close(dev);
}
