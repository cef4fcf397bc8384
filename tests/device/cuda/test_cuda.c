/* The host side of the CUDA backend, on the device of tests/sim: queues, host memory, and what goes wrong. Its
 * operations are computed by the tests of every backend; here they are as few as show an order. */
#include "proto/base/number.h"
#include "proto/operation/backend.h"
#include "tests/kit/device/simulated.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

SUITE_LABELS(cuda)

enum { PIECE = 1 << 20 };

/* Whole pages: what is lent, is lent by pages. */
static void *pages(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *at = aligned_alloc(page, (bytes + page - 1) / page * page);

    ck_assert(at != NULL);
    return at;
}

/* n bytes that differ from those of another seed in most places. */
static unsigned char *noise(size_t n, uint32_t seed)
{
    unsigned char *x = pages(n);

    for (size_t i = 0; i < n; i++)
        x[i] = (unsigned char)((seed = seed * 1664525 + 1013904223) >> 24);
    return x;
}

static void *lend(struct device *dev, void *host, size_t bytes, bool writable)
{
    struct error err = {""};
    int rc = simulated.ops->lend(dev, host, bytes, writable, &err);

    ck_assert_msg(rc == 0, "%s", err.text);
    return host;
}

/* What comes in a queue waits for all that is in the other by now. */
static void after(struct device *dev, enum device_queue queue, enum device_queue other)
{
    simulated.ops->follow(dev, queue, other, simulated.ops->mark(dev, other));
}

static int finish(struct device *dev, enum device_queue queue)
{
    return simulated.ops->finish(dev, queue, simulated.ops->mark(dev, queue));
}

static void says(int rc, int code, const struct error *err, const char *words)
{
    ck_assert_int_eq(rc, code);
    ck_assert_holds(err->text, words);
}

SUITE_FIXTURE(simulated_load, NULL)

TEST(a_device_that_was_opened_and_closed_leaves_nothing)
{
    for (int i = 0; i < 3; i++) {
        struct device *dev = simulated_open(NUMBER_BF16, 0);
        char zeros[64] = {0}, first[64] = {1};

        ck_assert_uint_eq((uintptr_t)simulated.ops->arena(dev) % 64, 0);
        simulated.ops->download(dev, first, (char *)simulated.ops->arena(dev) + SIMULATED_ARENA - sizeof first,
                                sizeof first);
        ck_assert_int_eq(simulated.ops->sync(dev), 0);
        ck_assert_mem_eq(first, zeros, sizeof first);
        simulated_close(dev);
    }
}

/* An allocation fails, then the one after it, and so on until the device opens. */
TEST(an_open_that_fails_half_way_leaves_nothing)
{
    unsigned n_failed = 0;

    for (unsigned i = 0;; i++, n_failed++) {
        struct error err = {""};
        struct device *dev;

        simulated.fail_call(NULL, i, cudaErrorMemoryAllocation);
        int rc = simulated.ops->open(&dev, 0, NUMBER_FP32, SIMULATED_ARENA, 1, &err);
        if (rc == 0) {
            simulated.fail_call("nothing", 0, cudaSuccess);
            simulated_close(dev);
            break;
        }
        ck_assert_int_eq(rc, -ENOMEM);
        ck_assert_ptr_null(dev);
        ck_assert_msg(strstr(err.text, "lower --device-mem") || strstr(err.text, "cuBLASLt"), "%s", err.text);
        simulated.finish();
    }
    ck_assert_uint_ge(n_failed, 200); /* queues, marks, pieces, workspace, scratch, arena */
}

static const size_t sizes[] = {1, 4096, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 77};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

/* Down and up again, from an odd address; both ends lent, one, or none. An upload from memory that was not lent is over
 * for the host when it returns, if it fits in a piece; a larger one reads the memory later. */
static void copy_both_ways(struct device *dev, size_t n, int lent)
{
    unsigned char *from = noise(n + 1, 1), *same = noise(n + 1, 1), *back = noise(n + 1, 2), last = back[n];
    char *at = (char *)simulated.ops->arena(dev) + 5;

    if (lent & 1)
        lend(dev, from, n + 1, false);
    if (lent & 2)
        lend(dev, back, n + 1, true);
    simulated.ops->upload(dev, at, from + 1, n);
    if (!(lent & 1) && n <= PIECE)
        memset(from, 0, n + 1);
    after(dev, DEVICE_PUSH, DEVICE_PULL);
    simulated.ops->download(dev, back, at, n);
    ck_assert_int_eq(finish(dev, DEVICE_PUSH), 0);
    ck_assert_mem_eq(back, same + 1, n);
    ck_assert_uint_eq(back[n], last);
    if (lent & 1)
        simulated.ops->unlend(dev, from);
    if (lent & 2)
        simulated.ops->unlend(dev, back);
    free(from), free(same), free(back);
}

TEST_EACH(what_is_uploaded_comes_back_in_every_order_of_the_queues, SIMULATED_ORDERS)
{
    struct device *dev = simulated_open(NUMBER_FP32, _i);

    for (size_t i = 0; i < N_SIZES; i++)
        for (int lent = 0; lent < 4; lent++)
            copy_both_ways(dev, sizes[i], lent);
    ck_assert_uint_eq(simulated.count().pageable_copies, 0);
    simulated_close(dev);
}

/* The thread that queues work neither copies nor waits: what it writes behind the call arrives. */
TEST_EACH(a_large_upload_of_memory_that_is_not_lent_leaves_the_caller_free, SIMULATED_ORDERS)
{
    enum { N = 5 * PIECE + 77 };
    struct device *dev = simulated_open(NUMBER_FP32, _i);
    char *const at = simulated.ops->arena(dev);
    unsigned char *from = noise(N, 1), *same = noise(N, 1), *back = noise(N, 2);

    memset(from, 0, N);
    const struct cudasim_counts before = simulated.count();
    simulated.ops->upload(dev, at, from, N);
    memcpy(from, same, N);
    ck_assert_uint_eq(simulated.count().event_waits, before.event_waits);
    ck_assert_uint_eq(simulated.count().stream_waits, before.stream_waits);
    after(dev, DEVICE_PUSH, DEVICE_PULL);
    simulated.ops->download(dev, back, at, N);
    ck_assert_int_eq(finish(dev, DEVICE_PUSH), 0);
    ck_assert_mem_eq(back, same, N);
    simulated_close(dev);
    free(from), free(same), free(back);
}

enum { ROWS = 3, COLUMNS = 40 };

/* Sums of the columns of what is uploaded, one after another into the same place: each queue waits for the two others.
 * By hand: column j of upload i sums to ROWS (100 i + j). */
static void relay(struct device *dev, float *slots, unsigned n, unsigned spread)
{
    float *x = simulated.ops->arena(dev), *sum = x + 4096, *host = pages(n * ROWS * COLUMNS * sizeof *host);
    uint64_t summed = 0, taken = 0;

    lend(dev, host, n * ROWS * COLUMNS * sizeof *host, false);
    for (unsigned i = 0; i < n * ROWS * COLUMNS; i++)
        host[i] = (float)(100 * (i / (ROWS * COLUMNS)) + i % COLUMNS);
    for (unsigned i = 0; i < n; i++) {
        simulated.ops->follow(dev, DEVICE_PULL, DEVICE_COMPUTE, summed);
        simulated.ops->upload(dev, x, host + i * ROWS * COLUMNS, ROWS * COLUMNS * sizeof *x);
        uint64_t there = simulated.ops->mark(dev, DEVICE_PULL);
        for (unsigned j = 0; j < spread; j++)
            simulated.ops->mark(dev, DEVICE_PULL); /* so that `there` is an old one */
        simulated.ops->follow(dev, DEVICE_COMPUTE, DEVICE_PULL, there);
        simulated.ops->follow(dev, DEVICE_COMPUTE, DEVICE_PUSH, taken);
        simulated.ops->zero(dev, &(struct device_zero){sum, COLUMNS * sizeof *sum});
        simulated.ops->reduce_rows(dev, &(struct device_reduce_rows){sum, x, ROWS, COLUMNS, COLUMNS});
        summed = simulated.ops->mark(dev, DEVICE_COMPUTE);
        simulated.ops->follow(dev, DEVICE_PUSH, DEVICE_COMPUTE, summed);
        simulated.ops->download(dev, slots + i * COLUMNS, sum, COLUMNS * sizeof *sum);
        taken = simulated.ops->mark(dev, DEVICE_PUSH);
    }
    ck_assert_int_eq(simulated.ops->finish(dev, DEVICE_PUSH, taken), 0);
    simulated.ops->unlend(dev, host);
    free(host);
}

/* Marks of late, or old ones, when there are more than there are events at first: they stand for what was queued. */
TEST_EACH(queues_wait_for_the_marks_they_follow, 2 * SIMULATED_ORDERS)
{
    enum { N = 9 };
    struct device *dev = simulated_open(NUMBER_FP32, _i / 2);
    float slots[N * COLUMNS] = {0};

    lend(dev, slots, sizeof slots, true);
    relay(dev, slots, N, _i % 2 ? 70 : 0);
    for (unsigned i = 0; i < N * COLUMNS; i++)
        ck_assert_float_eq(slots[i], (float)(ROWS * (100 * (i / COLUMNS) + i % COLUMNS)));
    simulated_close(dev);
}

enum {
    FIRST_EVENTS = DEVICE_QUEUES * 64 + 6 /* of marks, of two pieces, and of the two for pulls, which have two each */
};

/* A number that is zeroed only after the mark; the queues that copy come first wherever they may go on. */
TEST(a_mark_is_waited_for_alone_however_many_came_after_it)
{
    struct device *dev = simulated_open(NUMBER_FP32, CUDASIM_STREAMS_NEWEST_FIRST);
    float *x = simulated.ops->arena(dev);
    static const float one = 1;
    float back = 0;

    simulated.ops->upload(dev, x, &one, sizeof one);
    after(dev, DEVICE_COMPUTE, DEVICE_PULL);
    const uint64_t before = simulated.ops->mark(dev, DEVICE_COMPUTE);
    simulated.ops->zero(dev, &(struct device_zero){x, 4});
    for (int i = 0; i < 200; i++)
        simulated.ops->mark(dev, DEVICE_COMPUTE);
    simulated.ops->follow(dev, DEVICE_PUSH, DEVICE_COMPUTE, before);
    simulated.ops->download(dev, &back, x, sizeof back);
    ck_assert_float_eq(back, 1);
    ck_assert_int_eq(simulated.ops->sync(dev), 0);
    simulated_close(dev);
}

/* 200 marks at a time take 256 events, however often. */
TEST(there_are_as_many_events_as_marks_under_way)
{
    struct device *dev = simulated_open(NUMBER_FP32, CUDASIM_STREAMS_AS_ISSUED);

    ck_assert_uint_eq(simulated.count().events, FIRST_EVENTS);
    for (int step = 0; step < 5; step++) {
        for (int i = 0; i < 200; i++) {
            simulated.ops->zero(dev, &(struct device_zero){simulated.ops->arena(dev), 4});
            simulated.ops->mark(dev, DEVICE_COMPUTE);
        }
        ck_assert_int_eq(simulated.ops->sync(dev), 0);
        ck_assert_uint_eq(simulated.count().events, FIRST_EVENTS + 256 - 64);
    }
    simulated_close(dev);
}

TEST(a_mark_that_finds_no_event_is_a_fault)
{
    struct device *dev = simulated_open(NUMBER_FP32, 0);
    struct error err = {""};

    simulated.fail_call("cudaEventCreateWithFlags", 9, cudaErrorMemoryAllocation);
    for (int i = 0; i < 70; i++) {
        simulated.ops->zero(dev, &(struct device_zero){simulated.ops->arena(dev), 4});
        simulated.ops->mark(dev, DEVICE_COMPUTE);
    }
    ck_assert_int_eq(simulated.ops->sync(dev), -EIO);
    simulated.ops->fault(dev, &err);
    ck_assert_holds(err.text, "memory is full");
    simulated_close(dev);
}

TEST(marks_ascend_from_one_and_none_is_waited_for)
{
    struct device *dev = simulated_open(NUMBER_FP32, 0);

    ck_assert_uint_eq(simulated.ops->mark(dev, DEVICE_PUSH), 1);
    ck_assert_uint_eq(simulated.ops->mark(dev, DEVICE_PUSH), 2);
    ck_assert_uint_eq(simulated.ops->mark(dev, DEVICE_PULL), 1);
    simulated.ops->follow(dev, DEVICE_COMPUTE, DEVICE_PUSH, 0);
    ck_assert_int_eq(simulated.ops->finish(dev, DEVICE_COMPUTE, 0), 0);
    ck_assert_int_eq(simulated.ops->finish(dev, DEVICE_PUSH, 1), 0);
    simulated_close(dev);
}

TEST(a_step_neither_allocates_nor_waits_for_the_whole_device)
{
    struct device *dev = simulated_open(NUMBER_FP32, CUDASIM_STREAMS_RANDOM);
    float *x = simulated.ops->arena(dev);

    const struct device_matmul op = {
        .m = 4, .n = 8, .k = 8, .a = x, .b = x + 64, .a_stride = 8, .b_stride = 8, .c_stride = 8, .c = x + 256};
    float slots[COLUMNS] = {0};
    lend(dev, slots, sizeof slots, true);
    const struct cudasim_counts before = simulated.count();
    for (int i = 0; i < 100; i++) {
        simulated.ops->zero(dev, &(struct device_zero){x, 512});
        simulated.ops->matmul(dev, &op);
        after(dev, DEVICE_PUSH, DEVICE_COMPUTE);
        simulated.ops->download(dev, slots, x + 256, sizeof slots);
        ck_assert_int_eq(finish(dev, DEVICE_PUSH), 0);
    }
    ck_assert_int_eq(simulated.ops->sync(dev), 0);
    const struct cudasim_counts after = simulated.count();
    ck_assert_uint_eq(after.products - before.products, 100);
    ck_assert_uint_eq(after.allocations, before.allocations);
    ck_assert_uint_eq(after.device_waits, before.device_waits);
    ck_assert_uint_eq(after.stream_waits, before.stream_waits);
    ck_assert_uint_eq(after.event_waits - before.event_waits, 100 + DEVICE_QUEUES);
    ck_assert_uint_eq(after.events, before.events);
    simulated_close(dev);
}

/* ---- host memory ---- */

/* As a segment of weights is: a mapping without the right to write. */
TEST_EACH(memory_that_cannot_be_written_is_lent_for_reading, SIMULATED_ORDERS)
{
    struct device *dev = simulated_open(NUMBER_FP32, _i);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *shared = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), back[100];

    ck_assert(shared != MAP_FAILED);
    memset(shared, 7, 2 * page);
    ck_assert_int_eq(mprotect(shared, 2 * page, PROT_READ), 0);
    lend(dev, shared + 100, page, false);
    simulated.ops->upload(dev, simulated.ops->arena(dev), shared + page, sizeof back);
    after(dev, DEVICE_PUSH, DEVICE_PULL);
    simulated.ops->download(dev, back, simulated.ops->arena(dev), sizeof back);
    ck_assert_int_eq(simulated.ops->sync(dev), 0);
    ck_assert_mem_eq(back, shared, sizeof back);
    simulated.ops->unlend(dev, shared + 100);
    lend(dev, shared, page, false);
    simulated_close(dev); /* takes it back */
    munmap(shared, 2 * page);
}

TEST_EACH(memory_that_cannot_be_locked_is_refused_by_a_sentence_and_copied_from_all_the_same, SIMULATED_ORDERS)
{
    struct device *dev = simulated_open(NUMBER_FP32, _i);
    const size_t n = PIECE + 100;
    unsigned char *from = noise(n, 1), *back = noise(n, 2);
    struct error err = {""};

    simulated.fail_call("cudaHostRegister", 0, cudaErrorMemoryAllocation);
    says(simulated.ops->lend(dev, from, n, false, &err), -ENOMEM, &err, "1.0 MiB of host memory cannot be locked");
    ck_assert_holds(err.text, "ulimit -l");
    ck_assert_holds(err.text, "cudaErrorMemoryAllocation");
    simulated.fail_call("cudaHostRegister", 0, cudaErrorNotSupported);
    ck_assert_int_eq(simulated.ops->lend(dev, back, n, true, &err), -EPERM);
    simulated.ops->upload(dev, simulated.ops->arena(dev), from, n);
    after(dev, DEVICE_PUSH, DEVICE_PULL);
    simulated.ops->download(dev, back, simulated.ops->arena(dev), n);
    ck_assert_int_eq(simulated.ops->sync(dev), 0);
    ck_assert_mem_eq(back, from, n);
    ck_assert_uint_eq(simulated.count().pageable_copies, 0);
    simulated_close(dev);
    free(from);
    free(back);
}

/* Row i of the table holds i in all columns; 3,000 rows of 128 columns are more than one piece. */
TEST_EACH(tables_in_host_memory_are_read_where_they_are, 2 * SIMULATED_ORDERS)
{
    enum { N_TABLE = 3000, WIDTH = 128, N_TOKENS = 2500, M = 4 };
    const bool lent = _i / SIMULATED_ORDERS;
    struct device *dev = simulated_open(NUMBER_FP32, _i % SIMULATED_ORDERS);
    float *table = pages(N_TABLE * WIDTH * sizeof *table), *y = (float *)simulated.ops->arena(dev) + 16, got[M * WIDTH];
    const uint32_t ids[M] = {10 + 2999, 10, 9, 10 + 2048};
    static const float want[M] = {2999, 0, 0, 2048}; /* 9 is below the table: what was there, zeros */

    for (int i = 0; i < N_TABLE * WIDTH; i++)
        table[i] = (float)(i / WIDTH);
    if (lent)
        lend(dev, table, N_TABLE * WIDTH * sizeof *table, false);
    simulated.ops->upload(dev, simulated.ops->arena(dev), ids, sizeof ids);
    after(dev, DEVICE_COMPUTE, DEVICE_PULL);
    simulated.ops->embed(dev, &(struct device_embed){.m = M,
                                                     .n = WIDTH,
                                                     .first = 10,
                                                     .n_table = N_TABLE,
                                                     .ids = simulated.ops->arena(dev),
                                                     .table = table,
                                                     .y = y,
                                                     .accumulate = true});
    after(dev, DEVICE_PUSH, DEVICE_COMPUTE);
    simulated.ops->download(dev, got, y, sizeof got);
    ck_assert_int_eq(simulated.ops->sync(dev), 0);
    for (int i = 0; i < M * WIDTH; i++)
        ck_assert_float_eq(got[i], want[i / WIDTH]);

    simulated.ops->zero(dev, &(struct device_zero){y, (size_t)N_TOKENS * WIDTH * sizeof *y});
    simulated.ops->position(
        dev, &(struct device_position){.n_rows = 1, .n_tokens = N_TOKENS, .n = WIDTH, .table = table, .y = y});
    after(dev, DEVICE_PUSH, DEVICE_COMPUTE);
    for (int t = 0; t < N_TOKENS; t += 833) {
        simulated.ops->download(dev, got, y + (size_t)t * WIDTH, WIDTH * sizeof *got);
        ck_assert_int_eq(simulated.ops->sync(dev), 0);
        for (int j = 0; j < WIDTH; j++)
            ck_assert_float_eq(got[j], (float)t);
    }
    simulated_close(dev);
    free(table);
}

/* A norm's backward reads the row that a block has next before it writes the one before. So what a row gives may take
 * the place of the next one of dy. Each of the two blocks has every other row. Nobody else calls it like this. */
TEST(the_next_row_is_on_its_way_before_this_one_is_written)
{
    enum { HEIGHT = 6, BLOCKS = 2, N = 8192, ALL = (HEIGHT + BLOCKS) * N };
    struct device *dev = simulated_open(NUMBER_BF16, 0);
    char *const arena = simulated.ops->arena(dev);
    uint16_t *const x = (uint16_t *)arena, *const dy = x + ALL, *const apart = dy + ALL, *const weight = apart + ALL;
    float *const statistics = (float *)(weight + N), *const sums = statistics + 2 * HEIGHT;
    struct device_norm op = {.m = HEIGHT, .n = N, .epsilon = 1e-5f, .x = x, .y = apart, .weight = weight};
    uint16_t *host = pages(3 * ALL * sizeof *host), back[2][N];

    for (int i = 0; i < 3 * ALL; i++)
        host[i] = number_to_bf16((float)(i * 7919ll % 1013) / 500 - 1);
    simulated.ops->upload(dev, x, host, (2 * ALL + ALL) * sizeof *host);
    simulated.ops->upload(dev, weight, host, N * sizeof *host);
    after(dev, DEVICE_COMPUTE, DEVICE_PULL);
    op.bias = weight, op.statistics = statistics;
    simulated.ops->norm(dev, &op);
    op.y_gradient = dy, op.x_gradient = apart;
    op.weight_gradient = sums, op.bias_gradient = sums + N;
    simulated.ops->norm_backward(dev, &op);
    op.x_gradient = dy + BLOCKS * N;
    simulated.ops->norm_backward(dev, &op);
    after(dev, DEVICE_PUSH, DEVICE_COMPUTE);
    for (int i = 0; i < HEIGHT; i++) {
        simulated.ops->download(dev, back[0], apart + i * N, sizeof *back);
        simulated.ops->download(dev, back[1], dy + (BLOCKS + i) * N, sizeof *back);
        ck_assert_int_eq(simulated.ops->sync(dev), 0);
        ck_assert_mem_eq(back[0], back[1], sizeof *back);
    }
    simulated_close(dev);
    free(host);
}

/* ---- what goes wrong ---- */

TEST(a_device_that_is_full_says_what_was_to_be_claimed)
{
    struct error err = {""};
    struct device *dev;

    simulated.limit(64 << 20, SIZE_MAX);
    says(simulated.ops->open(&dev, 0, NUMBER_FP32, 60 << 20, 1, &err), -ENOMEM, &err,
         "cuda:0, to claim 60.0 MiB: the device's memory is full: lower --device-mem");
    simulated.finish();
}

TEST(a_device_that_is_lost_is_told_once_by_a_sentence_and_closes)
{
    struct device *dev = simulated_open(NUMBER_FP32, 0);
    struct error err = {""};
    float x[4] = {0};

    simulated.lose(cudaErrorIllegalAddress);
    simulated.ops->upload(dev, simulated.ops->arena(dev), x, sizeof x);
    simulated.ops->zero(dev, &(struct device_zero){simulated.ops->arena(dev), 4});
    simulated.ops->download(dev, x, simulated.ops->arena(dev), sizeof x);
    ck_assert_int_eq(finish(dev, DEVICE_PUSH), -EIO);
    ck_assert_int_eq(simulated.ops->sync(dev), -EIO);
    says(simulated.ops->fault(dev, &err), -EIO, &err, "cuda:0: the device is lost");
    ck_assert_holds(err.text, "cudaErrorIllegalAddress");
    simulated.ops->close(dev);
}

/* The first is told, not what came of it. */
TEST(of_several_faults_the_first_is_told)
{
    struct device *dev = simulated_open(NUMBER_FP32, 0);
    struct error err = {""};

    simulated.fail_call("cudaMemsetAsync", 0, cudaErrorECCUncorrectable);
    simulated.ops->zero(dev, &(struct device_zero){simulated.ops->arena(dev), 4});
    simulated.fail_call("cudaMemsetAsync", 0, cudaErrorLaunchFailure);
    simulated.ops->zero(dev, &(struct device_zero){simulated.ops->arena(dev), 4});
    ck_assert_int_eq(simulated.ops->sync(dev), -EIO);
    says(simulated.ops->fault(dev, &err), -EIO, &err, "the device's memory has failed");
    simulated_close(dev);
}

static const struct {
    const char *call;
    cudaError_t rc;
    int code;
    const char *sentence;
} refusals[] = {
    {"cudaGetDeviceCount", cudaErrorNoDevice, -ENODEV, "cuda:0: the driver sees no NVIDIA device"},
    {"cudaGetDeviceCount", cudaErrorInsufficientDriver, -ENODEV, "the NVIDIA driver is missing or too old"},
    {"cudaGetDeviceCount", cudaErrorInitializationError, -ENODEV, "the NVIDIA driver does not start"},
    {"cudaSetDevice", cudaErrorDevicesUnavailable, -ENODEV, "the device is busy"},
    {"cudaMemGetInfo", cudaErrorMemoryAllocation, -ENOMEM, "the device's memory is full"},
    {"cudaSetDevice", cudaErrorECCUncorrectable, -EIO, "the device's memory has failed"},
};
enum { N_REFUSALS = sizeof refusals / sizeof *refusals };

TEST_EACH(a_device_that_will_not_do_is_refused_by_one_sentence, N_REFUSALS)
{
    struct device_facts facts;
    struct error err = {""};

    simulated.fail_call(refusals[_i].call, 0, refusals[_i].rc);
    ck_assert_int_eq(simulated.ops->probe(0, &facts, &err), refusals[_i].code);
    ck_assert_msg(strstr(err.text, refusals[_i].sentence), "%s", err.text);
    ck_assert_ptr_null(strchr(err.text, '\n'));
    simulated.finish();
}

/* The machine has three, of which the process sees the third and the first. */
TEST(a_device_is_found_by_its_uuid_and_by_its_place)
{
    static const struct {
        const char *id;
        int index; /* -1: there is none */
    } cases[] = {
        {"GPU-8f2c0002", 0},  {"GPU-8f2c0000-0000-4000-8000-000000000000", 1},
        {"0000:3d:00.0", 0},  {"0000:3b:00.0", 1},
        {"GPU-8f2c0001", -1},                       /* hidden */
        {"GPU-8f2c", -1},                           /* two */
        {"GPU-9", -1},        {"0000:3c:00.0", -1}, /* hidden */
        {"0001:3b:00.0", -1},
    };
    struct device_facts facts;
    struct error err = {""};

    setenv("CUDASIM_DEVICES", "3", 1);
    setenv("CUDA_VISIBLE_DEVICES", "2,GPU-8f2c0000,7,1", 1); /* ends at 7, which there is not */
    for (size_t i = 0; i < COUNT(cases); i++) {
        unsigned index = 99;
        const int rc = simulated.ops->find(&index, cases[i].id, &err);
        ck_assert_msg(rc == (cases[i].index < 0 ? -ENODEV : 0), "%s: %d", cases[i].id, rc);
        if (rc == 0)
            ck_assert_uint_eq(index, (unsigned)cases[i].index);
        else
            ck_assert_holds(err.text, cases[i].id,
                            strlen(cases[i].id) == 8 ? "several UUIDs begin so" : "there is no device",
                            "2 are there, counted from 0: GPU-8f2c0002 at 0000:3d:00.0, GPU-8f2c0000 at 0000:3b:00.0",
                            "CUDA_VISIBLE_DEVICES=2,GPU-8f2c0000,7,1");
    }
    ck_assert_int_eq(simulated.ops->probe(0, &facts, &err), 0);
    ck_assert_str_eq(facts.bus, "0000:3d:00.0");
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    says(simulated.ops->probe(0, &facts, &err), -ENODEV, &err, "the driver sees no NVIDIA device");
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("CUDASIM_DEVICES");
}

TEST(a_device_that_is_not_there_or_too_old_is_refused)
{
    struct device_facts facts;
    struct device *dev;
    struct error err = {""};

    ck_assert_int_eq(simulated.ops->probe(1, &facts, &err), -ENODEV);
    ck_assert_holds(err.text, "no device cuda:1");
    setenv("CUDASIM_MAJOR", "7", 1);
    says(simulated.ops->probe(0, &facts, &err), -ENODEV, &err, "has compute capability 7.0, which is too old");
    ck_assert_int_eq(simulated.ops->open(&dev, 0, NUMBER_FP32, SIMULATED_ARENA, 1, &err), -ENODEV);
    unsetenv("CUDASIM_MAJOR");
    setenv("CUDASIM_DRIVER", "11080", 1);
    says(simulated.ops->probe(0, &facts, &err), -ENODEV, &err, "driver is too old: it knows CUDA 11.8");
    setenv("CUDASIM_DRIVER", "0", 1);
    says(simulated.ops->probe(0, &facts, &err), -ENODEV, &err, "no NVIDIA driver is installed");
}

/* By hand: of 1 GiB all is free, and what the backend holds beside an arena is a context, the workspace of 32 MiB, the
 * scratch of 8 MiB and the allowance of 192 MiB. */
TEST(a_probe_tells_what_can_be_held_and_what_of_it_is_not_for_the_arena)
{
    struct device_facts facts, again;
    struct error err = {""};

    simulated.limit((size_t)1 << 30, SIZE_MAX);
    ck_assert_int_eq(simulated.ops->probe(0, &facts, &err), 0);
    ck_assert_str_ne(facts.model, "");
    const uint64_t context = facts.library_bytes - ((uint64_t)(32 + 8 + 192) << 20);
    ck_assert_uint_eq(context, (uint64_t)640 << 20); /* nobody tells what was free before */
    ck_assert_uint_eq(facts.available_bytes, ((uint64_t)1 << 30) + context);
    ck_assert_int_eq(simulated.ops->probe(0, &again, &err), 0);
    ck_assert_mem_eq(&facts, &again, sizeof facts);
}
