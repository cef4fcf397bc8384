/* The worker's own code runs a step on this device (proto/step/timeline.c), so it is a real step's order that is timed,
 * not a description of one. Time passes only while the host waits. Tasks are given at one moment, as on a device, whose
 * host runs ahead.
 *
 * An alarm that is due rings before time passes any further: what it gives to a queue must not begin late. */
#include "proto/step/clock.h"

#include "proto/operation/call.h"

#include <assert.h>
#include <errno.h>
#include <math.h>

static enum plan_queue queue_of(enum device_queue queue)
{
    static const enum plan_queue queues[DEVICE_QUEUES] = {
        [DEVICE_COMPUTE] = PLAN_QUEUE_COMPUTE, [DEVICE_PULL] = PLAN_QUEUE_PULL, [DEVICE_PUSH] = PLAN_QUEUE_PUSH};

    return queues[queue];
}

void clock_pass(struct device *dev, enum plan_queue host_waits_for, double until)
{
    const double alarm = dev->on_alarm ? dev->alarm : INFINITY;

    if (alarm > dev->queues.now) {
        const bool passed =
            plan_queues_pass(&dev->queues, host_waits_for, fmin(until, alarm), dev->on_optimized, dev->context);
        assert(passed || dev->queues.no_memory);
    }
    if (dev->on_alarm && dev->alarm <= dev->queues.now)
        dev->on_alarm(dev->context);
}

static int wait(struct device *dev, enum plan_queue queue, uint64_t mark)
{
    while (!plan_queues_is_done(&dev->queues, queue, mark) && !dev->queues.no_memory)
        clock_pass(dev, queue, INFINITY);
    return dev->queues.no_memory ? -EIO : 0;
}

static void give(struct device *dev, enum plan_queue queue, double seconds, double host_bytes)
{
    const struct plan_task task = {.seconds = seconds * dev->slow, .host_bytes = host_bytes};
    const uint64_t mark = plan_queues_give(&dev->queues, queue, &task);

    if (dev->takes_turns)
        wait(dev, queue, mark);
}

void clock_compute(struct device *dev, double seconds)
{
    give(dev, PLAN_QUEUE_COMPUTE, seconds, 0);
}

/* ---- memory and queues ---- */

static int clock_find(unsigned *index, const char *id, struct error *err)
{
    (void)index, (void)id;
    return error_set(err, -ENODEV, "a clock is no device");
}

static int clock_probe(unsigned index, struct device_facts *facts, struct error *err)
{
    (void)index, (void)facts;
    return error_set(err, -ENODEV, "a clock is no device");
}

static int open(struct device **out, unsigned index, enum number_type type, size_t arena_bytes, unsigned n_threads,
                struct error *err)
{
    (void)out, (void)index, (void)type, (void)arena_bytes, (void)n_threads;
    return error_set(err, -ENODEV, "a clock is no device");
}

static void close(struct device *dev)
{
    (void)dev;
}

static void clock_count(struct device *dev, uint64_t *done)
{
    (void)dev, (void)done;
}

static void *clock_arena(struct device *dev)
{
    (void)dev;
    return CLOCK_ADDRESS;
}

static int clock_lend(struct device *dev, const void *host, size_t bytes, bool writable, struct error *err)
{
    (void)dev, (void)host, (void)bytes, (void)writable, (void)err;
    return 0;
}

static void clock_unlend(struct device *dev, const void *host)
{
    (void)dev, (void)host;
}

static void clock_copy(struct device *dev, enum plan_queue queue, size_t bytes)
{
    give(dev, queue, (double)bytes / dev->meter.profile->link_bytes_per_s, (double)bytes * (1 + dev->n_beside));
}

static void clock_upload(struct device *dev, void *dst, const void *host, size_t bytes)
{
    (void)dst, (void)host;
    clock_copy(dev, PLAN_QUEUE_PULL, bytes);
}

static void clock_download(struct device *dev, void *host, const void *src, size_t bytes)
{
    (void)host, (void)src;
    clock_copy(dev, PLAN_QUEUE_PUSH, bytes);
}

static uint64_t clock_mark(struct device *dev, enum device_queue queue)
{
    return plan_queues_mark(&dev->queues, queue_of(queue));
}

static void clock_follow(struct device *dev, enum device_queue queue, enum device_queue other, uint64_t of_other)
{
    plan_queues_follow(&dev->queues, queue_of(queue), queue_of(other), of_other);
}

static int clock_finish(struct device *dev, enum device_queue queue, uint64_t of_queue)
{
    return wait(dev, queue_of(queue), of_queue);
}

static int sync(struct device *dev)
{
    int rc = 0;

    for (enum plan_queue queue = PLAN_QUEUE_PULL; rc == 0 && queue < PLAN_QUEUE_OPTIMIZER; queue++)
        rc = wait(dev, queue, plan_queues_mark(&dev->queues, queue));
    return rc;
}

static int clock_fault(struct device *dev, struct error *err)
{
    (void)dev;
    return error_set(err, -EIO, "out of memory for the queues' tasks");
}

/* ---- operations ---- */

static void clock_propose(struct device *dev, const struct device_matmul *op, struct products_candidates *out)
{
    (void)dev, (void)op;
    *out = (struct products_candidates){0};
}

static int clock_choose(struct device *dev, const struct products *products, struct error *err)
{
    (void)dev, (void)products, (void)err;
    return 0;
}

static void clock_prepare_attention(struct device *dev, const struct device_attention *ops,
                                    const enum plan_attention *ways, size_t n, char told[DEVICE_TOLD])
{
    (void)dev, (void)ops, (void)ways, (void)n;
    told[0] = 0;
}

static void clock_prepare_conv2d(struct device *dev, const struct device_conv2d *ops, size_t n, uint32_t convolution,
                                 char told[DEVICE_TOLD])
{
    (void)dev, (void)ops, (void)n, (void)convolution;
    told[0] = 0;
}

static void on_call(struct device *dev, struct call *call)
{
    clock_compute(dev, plan_meter_price(&dev->meter, call));
}

CALL_TABLE(on_call)

const struct device_ops device_clock = {.name = "clock",
                                        .find = clock_find,
                                        .probe = clock_probe,
                                        .open = open,
                                        .close = close,
                                        .count = clock_count,
                                        .arena = clock_arena,
                                        .lend = clock_lend,
                                        .unlend = clock_unlend,
                                        .upload = clock_upload,
                                        .download = clock_download,
                                        .mark = clock_mark,
                                        .follow = clock_follow,
                                        .finish = clock_finish,
                                        .sync = sync,
                                        .fault = clock_fault,
                                        .propose = clock_propose,
                                        .choose = clock_choose,
                                        .prepare_attention = clock_prepare_attention,
                                        .prepare_conv2d = clock_prepare_conv2d,
                                        DEVICE_CALLS(CALL_ROW)};
