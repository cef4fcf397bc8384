#include "tests/kit/device/late.h"

#include "proto/operation/call.h"
#include "tests/kit/device/setting.h"
#include "device/find.h"

#include <check.h>
#include <stdlib.h>

enum entry_kind { WAIT, COPY, CALL };

struct entry {
    enum entry_kind kind;
    enum device_queue other; /* WAIT: for its mark */
    uint64_t mark;
    void *to; /* COPY */
    const void *from;
    size_t bytes;
    struct call call;
};

struct queue {
    struct entry *entries;
    size_t n, room, done;
};

struct device_ops device_late;
static struct late *record;
static struct queue queues[DEVICE_QUEUES];
static uint64_t state; /* of the order */

static bool is_reached(enum device_queue queue, uint64_t mark)
{
    return mark == 0 || queues[queue].done >= mark - 1;
}

static bool is_empty(const struct queue *q)
{
    return q->done == q->n;
}

static const struct entry *head_of(enum device_queue queue)
{
    return &queues[queue].entries[queues[queue].done];
}

static bool may_run(enum device_queue queue)
{
    return !is_empty(&queues[queue]) &&
           (head_of(queue)->kind != WAIT || is_reached(head_of(queue)->other, head_of(queue)->mark));
}

static void run_head(struct device *dev, enum device_queue queue)
{
    const struct entry *e = head_of(queue);

    if (e->kind == COPY)
        device_cpu.upload(dev, e->to, e->from, e->bytes);
    else if (e->kind == CALL)
        call_run(&device_cpu, dev, &e->call);
    queues[queue].done++;
}

/* What the head of the queue waits for, or the head itself. Marks are of what was queued before, so this ends. */
static void run_needed(struct device *dev, enum device_queue queue)
{
    while (!may_run(queue))
        queue = head_of(queue)->other;
    run_head(dev, queue);
}

static bool run_any(struct device *dev)
{
    const uint32_t first = setting_below(&state, DEVICE_QUEUES);

    for (uint32_t i = 0; i < DEVICE_QUEUES; i++) {
        const enum device_queue queue = (first + i) % DEVICE_QUEUES;
        if (may_run(queue)) {
            run_head(dev, queue);
            return true;
        }
    }
    return false;
}

/* What runs while the host does something else. */
static void run_beside(struct device *dev)
{
    switch (record->order) {
    case LATE_LAZY:
    case LATE_WAITS:
    case LATE_ORDERS:
        break;
    case LATE_COPIES:
        while (may_run(DEVICE_PULL) || may_run(DEVICE_PUSH))
            run_head(dev, may_run(DEVICE_PULL) ? DEVICE_PULL : DEVICE_PUSH);
        break;
    case LATE_COMPUTE:
        while (may_run(DEVICE_COMPUTE))
            run_head(dev, DEVICE_COMPUTE);
        break;
    case LATE_RANDOM:
        for (uint32_t i = setting_below(&state, 3) ? 0 : setting_below(&state, 40); i > 0 && run_any(dev); i--) {
        }
    }
}

static void add(struct device *dev, enum device_queue queue, struct entry entry)
{
    struct queue *q = &queues[queue];

    if (q->n == q->room) {
        q->room = q->room ? 2 * q->room : 256;
        q->entries = realloc(q->entries, q->room * sizeof *q->entries);
        ck_assert_ptr_nonnull(q->entries);
    }
    q->entries[q->n++] = entry;
    run_beside(dev);
}

static int open_device(struct device **out, unsigned index, enum number_type type, size_t arena_bytes,
                       unsigned n_threads, struct error *err)
{
    for (int i = 0; i < DEVICE_QUEUES; i++)
        queues[i] = (struct queue){0};
    state = record->seed;
    return device_cpu.open(out, index, type, arena_bytes, n_threads, err);
}

static void close_device(struct device *dev)
{
    for (int i = 0; i < DEVICE_QUEUES; i++) {
        ck_assert(is_empty(&queues[i])); /* it would use what is gone */
        free(queues[i].entries);
    }
    device_cpu.close(dev);
}

static void upload(struct device *dev, void *dst, const void *host, size_t bytes)
{
    add(dev, DEVICE_PULL, (struct entry){.kind = COPY, .to = dst, .from = host, .bytes = bytes});
}

static void download(struct device *dev, void *host, const void *src, size_t bytes)
{
    add(dev, DEVICE_PUSH, (struct entry){.kind = COPY, .to = host, .from = src, .bytes = bytes});
}

static uint64_t mark(struct device *dev, enum device_queue queue)
{
    (void)dev;
    return queues[queue].n + 1;
}

static void follow(struct device *dev, enum device_queue queue, enum device_queue other, uint64_t wanted)
{
    ck_assert_uint_le(wanted, mark(dev, other));
    add(dev, queue, (struct entry){.kind = WAIT, .other = other, .mark = wanted});
}

static int finish(struct device *dev, enum device_queue queue, uint64_t wanted)
{
    ck_assert_uint_le(wanted, mark(dev, queue));
    record->n_finishes += queue == DEVICE_COMPUTE;
    run_beside(dev);
    if (is_reached(queue, wanted))
        return 0;
    record->n_waits[queue]++;
    while (!is_reached(queue, wanted))
        if (record->order == LATE_LAZY || !run_any(dev))
            run_needed(dev, queue);
    record->n_starved += queue == DEVICE_PUSH && is_empty(&queues[DEVICE_COMPUTE]);
    return 0;
}

static int sync_device(struct device *dev)
{
    record->n_syncs++;
    for (enum device_queue queue = 0; queue < DEVICE_QUEUES; queue++)
        while (!is_empty(&queues[queue]))
            if (record->order == LATE_LAZY || !run_any(dev))
                run_needed(dev, queue);
    return 0;
}

static void on_call(struct device *dev, struct call *call)
{
    add(dev, DEVICE_COMPUTE, (struct entry){.kind = CALL, .call = *call});
}
CALL_TABLE(on_call)

void late_begin(struct late *late, enum late_order order, uint64_t seed)
{
    *late = (struct late){.order = order, .seed = seed};
    record = late;
    device_late = device_cpu;
    device_late.name = "late";
    device_late.open = open_device, device_late.close = close_device;
    device_late.upload = upload, device_late.download = download;
    device_late.mark = mark, device_late.follow = follow, device_late.finish = finish, device_late.sync = sync_device;
    call_intercept(&device_late);
}
