#include "tests/kit/device/late.h"

#include "tests/kit/device/setting.h"

#include <check.h>
#include <stdlib.h>

/* Operations that take one struct, and its type. */
#define OPERATIONS(X)                                                                                                  \
    X(matmul, device_matmul)                                                                                           \
    X(norm, device_norm)                                                                                               \
    X(norm_backward, device_norm)                                                                                      \
    X(rope, device_rope)                                                                                               \
    X(glu, device_glu)                                                                                                 \
    X(glu_backward, device_glu)                                                                                        \
    X(attention, device_attention)                                                                                     \
    X(attention_backward, device_attention)                                                                            \
    X(attention_cached, device_attention_cached)                                                                       \
    X(dropout_add, device_dropout_add)                                                                                 \
    X(embed, device_embed)                                                                                             \
    X(embed_backward, device_embed)                                                                                    \
    X(position, device_position)                                                                                       \
    X(position_backward, device_position)                                                                              \
    X(log_sum_exp, device_cross_entropy)                                                                               \
    X(cross_entropy_gradient, device_cross_entropy)

#define KIND(name, type)   CALL_##name,
#define MEMBER(name, type) struct type name;

enum call_kind { OPERATIONS(KIND) WAIT, COPY, ZERO, ROUND_BF16, ACTIVATE, ACTIVATE_BACKWARD, REDUCE_ROWS, LOSS };

struct call {
    enum call_kind kind;
    enum device_queue other; /* WAIT: for its mark */
    uint64_t mark;
    union {
        OPERATIONS(MEMBER)
        struct { /* arguments of the others in their order, by type */
            const void *p[3];
            size_t n[2];
            enum model_activation activation;
        };
    };
};

struct queue {
    struct call *calls;
    size_t n, room, done;
};

struct device_ops device_late;
static struct late *record;
static struct queue queues[DEVICE_QUEUES];
static uint64_t state; /* of the order */

static uint32_t below(uint32_t n)
{
    return (uint32_t)((setting_random(&state) + 1) / 2 * n) % n;
}

static bool is_reached(enum device_queue queue, uint64_t mark)
{
    return mark == 0 || queues[queue].done >= mark - 1;
}

static bool is_empty(const struct queue *q)
{
    return q->done == q->n;
}

static const struct call *head_of(enum device_queue queue)
{
    return &queues[queue].calls[queues[queue].done];
}

static bool may_run(enum device_queue queue)
{
    return !is_empty(&queues[queue]) &&
           (head_of(queue)->kind != WAIT || is_reached(head_of(queue)->other, head_of(queue)->mark));
}

static void *to(const void *p) /* what the operation writes */
{
    return (void *)(uintptr_t)p;
}

static void compute(struct device *dev, const struct call *c)
{
    const struct device_ops *ops = &device_cpu;
    const void *const *p = c->p;
    const size_t *n = c->n;

#define COMPUTE(name, type)                                                                                            \
    case CALL_##name:                                                                                                  \
        return ops->name(dev, &c->name);

    switch (c->kind) {
        OPERATIONS(COMPUTE)
    case WAIT:
        return;
    case COPY:
        return ops->upload(dev, to(p[0]), p[1], n[0]);
    case ZERO:
        return ops->zero(dev, to(p[0]), n[0]);
    case ROUND_BF16:
        return ops->round_bf16(dev, to(p[0]), p[1], n[0]);
    case ACTIVATE:
        return ops->activate(dev, to(p[0]), p[1], n[0], c->activation);
    case ACTIVATE_BACKWARD:
        return ops->activate_backward(dev, to(p[0]), p[1], n[0], c->activation);
    case REDUCE_ROWS:
        return ops->reduce_rows(dev, to(p[0]), p[1], n[0], n[1]);
    case LOSS:
        return ops->loss(dev, to(p[0]), p[1], p[2], n[0]);
    }
}

static void run_head(struct device *dev, enum device_queue queue)
{
    compute(dev, head_of(queue));
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
    const uint32_t first = below(DEVICE_QUEUES);

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
        for (uint32_t i = below(3) ? 0 : below(40); i > 0 && run_any(dev); i--) {
        }
    }
}

static void add(struct device *dev, enum device_queue queue, struct call call)
{
    struct queue *q = &queues[queue];

    if (q->n == q->room) {
        q->room = q->room ? 2 * q->room : 256;
        q->calls = realloc(q->calls, q->room * sizeof *q->calls);
        ck_assert_ptr_nonnull(q->calls);
    }
    q->calls[q->n++] = call;
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
        free(queues[i].calls);
    }
    device_cpu.close(dev);
}

static void upload(struct device *dev, void *dst, const void *host, size_t bytes)
{
    add(dev, DEVICE_PULL, (struct call){.kind = COPY, .p = {dst, host}, .n = {bytes}});
}

static void download(struct device *dev, void *host, const void *src, size_t bytes)
{
    add(dev, DEVICE_PUSH, (struct call){.kind = COPY, .p = {host, src}, .n = {bytes}});
}

static uint64_t mark(struct device *dev, enum device_queue queue)
{
    (void)dev;
    return queues[queue].n + 1;
}

static void follow(struct device *dev, enum device_queue queue, enum device_queue other, uint64_t wanted)
{
    ck_assert_uint_le(wanted, mark(dev, other));
    add(dev, queue, (struct call){.kind = WAIT, .other = other, .mark = wanted});
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

static void zero(struct device *dev, void *x, size_t bytes)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = ZERO, .p = {x}, .n = {bytes}});
}

static void round_bf16(struct device *dev, uint16_t *narrow, const float *from, size_t n)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = ROUND_BF16, .p = {narrow, from}, .n = {n}});
}

static void activate(struct device *dev, void *y, const void *x, size_t n, enum model_activation activation)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = ACTIVATE, .p = {y, x}, .n = {n}, .activation = activation});
}

static void activate_backward(struct device *dev, void *gradient, const void *x, size_t n,
                              enum model_activation activation)
{
    add(dev, DEVICE_COMPUTE,
        (struct call){.kind = ACTIVATE_BACKWARD, .p = {gradient, x}, .n = {n}, .activation = activation});
}

static void reduce_rows(struct device *dev, float *sum, const void *x, size_t m, size_t n)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = REDUCE_ROWS, .p = {sum, x}, .n = {m, n}});
}

static void loss(struct device *dev, double *losses, const float *running, const uint32_t *labels, size_t m)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = LOSS, .p = {losses, running, labels}, .n = {m}});
}

#define QUEUED(name, type)                                                                                             \
    static void name(struct device *dev, const struct type *op)                                                        \
    {                                                                                                                  \
        add(dev, DEVICE_COMPUTE, (struct call){.kind = CALL_##name, .name = *op});                                     \
    }
OPERATIONS(QUEUED)

void late_begin(struct late *late, enum late_order order, uint64_t seed)
{
#define REPLACE(name, type) device_late.name = name;
    *late = (struct late){.order = order, .seed = seed};
    record = late;
    device_late = device_cpu;
    device_late.name = "late";
    device_late.open = open_device, device_late.close = close_device;
    device_late.upload = upload, device_late.download = download;
    device_late.mark = mark, device_late.follow = follow, device_late.finish = finish, device_late.sync = sync_device;
    device_late.zero = zero, device_late.round_bf16 = round_bf16;
    device_late.activate = activate, device_late.activate_backward = activate_backward;
    device_late.reduce_rows = reduce_rows, device_late.loss = loss;
    OPERATIONS(REPLACE)
}
