#include "tests/kit/late.h"

#include "tests/kit/setting.h"

#include <check.h>
#include <stdlib.h>

enum call_kind {
    WAIT,
    COPY,
    ZERO,
    ROUND_BF16,
    MATMUL,
    ACTIVATE,
    REDUCE_ROWS,
    NORM,
    NORM_BACKWARD,
    ROPE,
    GLU,
    GLU_BACKWARD,
    ATTENTION,
    ATTENTION_BACKWARD,
    ATTENTION_CACHED,
    DROPOUT_ADD,
    EMBED,
    EMBED_BACKWARD,
    POSITION,
    POSITION_BACKWARD,
    LOG_SUM_EXP,
    LOSS,
    CROSS_ENTROPY_GRADIENT,
};

/* Arguments in the order of the operation's, by type. */
struct call {
    enum call_kind kind;
    enum device_queue other; /* WAIT: for its mark */
    uint64_t mark;
    union {
        struct device_matmul matmul;
        struct device_attention attention;
        struct device_attention_cached cached;
        struct device_norm norm;
        struct device_rope rope;
        struct device_glu glu;
        struct device_dropout_add dropout_add;
        struct device_embed embed;
        struct device_position position;
        struct device_cross_entropy cross_entropy;
        struct {
            const void *p[3]; /* of both directions */
            size_t n[2];
            enum model_activation activation;
        };
    };
};

struct queue {
    struct call *calls;
    size_t n, room, done;
};

static struct late *record;
static struct queue queues[DEVICE_QUEUES];
static uint64_t state; /* of the order */

void late_begin(struct late *late, enum late_order order, uint64_t seed)
{
    *late = (struct late){.order = order, .seed = seed};
    record = late;
}

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

    switch (c->kind) {
    case WAIT:
        return;
    case COPY:
        return ops->upload(dev, to(p[0]), p[1], n[0]);
    case ZERO:
        return ops->zero(dev, to(p[0]), n[0]);
    case ROUND_BF16:
        return ops->round_bf16(dev, to(p[0]), p[1], n[0]);
    case MATMUL:
        return ops->matmul(dev, &c->matmul);
    case ACTIVATE:
        return ops->activate(dev, to(p[0]), p[1], n[0], c->activation);
    case REDUCE_ROWS:
        return ops->reduce_rows(dev, to(p[0]), p[1], n[0], n[1]);
    case NORM:
        return ops->norm(dev, &c->norm);
    case NORM_BACKWARD:
        return ops->norm_backward(dev, &c->norm);
    case ROPE:
        return ops->rope(dev, &c->rope);
    case GLU:
        return ops->glu(dev, &c->glu);
    case GLU_BACKWARD:
        return ops->glu_backward(dev, &c->glu);
    case ATTENTION:
        return ops->attention(dev, &c->attention);
    case ATTENTION_BACKWARD:
        return ops->attention_backward(dev, &c->attention);
    case ATTENTION_CACHED:
        return ops->attention_cached(dev, &c->cached);
    case DROPOUT_ADD:
        return ops->dropout_add(dev, &c->dropout_add);
    case EMBED:
        return ops->embed(dev, &c->embed);
    case EMBED_BACKWARD:
        return ops->embed_backward(dev, &c->embed);
    case POSITION:
        return ops->position(dev, &c->position);
    case POSITION_BACKWARD:
        return ops->position_backward(dev, &c->position);
    case LOG_SUM_EXP:
        return ops->log_sum_exp(dev, &c->cross_entropy);
    case LOSS:
        return ops->loss(dev, to(p[0]), p[1], p[2], n[0]);
    case CROSS_ENTROPY_GRADIENT:
        return ops->cross_entropy_gradient(dev, &c->cross_entropy);
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

static int probe(unsigned index, struct device_facts *facts, struct error *err)
{
    return device_cpu.probe(index, facts, err);
}

static void count(struct device *dev, uint64_t *done)
{
    device_cpu.count(dev, done);
}

static void *arena(struct device *dev)
{
    return device_cpu.arena(dev);
}

static int lend(struct device *dev, const void *host, size_t bytes, bool writable, struct error *err)
{
    return device_cpu.lend(dev, host, bytes, writable, err);
}

static void unlend(struct device *dev, const void *host)
{
    device_cpu.unlend(dev, host);
}

static int fault(struct device *dev, struct error *err)
{
    return device_cpu.fault(dev, err);
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

static void matmul(struct device *dev, const struct device_matmul *op)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = MATMUL, .matmul = *op});
}

static void activate(struct device *dev, void *y, const void *x, size_t n, enum model_activation activation)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = ACTIVATE, .p = {y, x}, .n = {n}, .activation = activation});
}

static void reduce_rows(struct device *dev, float *sum, const void *x, size_t m, size_t n)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = REDUCE_ROWS, .p = {sum, x}, .n = {m, n}});
}

static void norm(struct device *dev, const struct device_norm *op)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = NORM, .norm = *op});
}

static void norm_backward(struct device *dev, const struct device_norm *op)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = NORM_BACKWARD, .norm = *op});
}

static void rope(struct device *dev, const struct device_rope *op)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = ROPE, .rope = *op});
}

static void glu(struct device *dev, const struct device_glu *op)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = GLU, .glu = *op});
}

static void glu_backward(struct device *dev, const struct device_glu *op)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = GLU_BACKWARD, .glu = *op});
}

static void prepare_attention(struct device *dev, const struct device_attention *op, enum plan_attention way,
                              char told[DEVICE_TOLD])
{
    device_cpu.prepare_attention(dev, op, way, told);
}

static void attention(struct device *dev, const struct device_attention *op)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = ATTENTION, .attention = *op});
}

static void attention_backward(struct device *dev, const struct device_attention *op)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = ATTENTION_BACKWARD, .attention = *op});
}

static void attention_cached(struct device *dev, const struct device_attention_cached *op)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = ATTENTION_CACHED, .cached = *op});
}

static void dropout_add(struct device *dev, const struct device_dropout_add *op)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = DROPOUT_ADD, .dropout_add = *op});
}

static void embed(struct device *dev, const struct device_embed *op)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = EMBED, .embed = *op});
}

static void embed_backward(struct device *dev, const struct device_embed *op)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = EMBED_BACKWARD, .embed = *op});
}

static void position(struct device *dev, const struct device_position *op)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = POSITION, .position = *op});
}

static void position_backward(struct device *dev, const struct device_position *op)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = POSITION_BACKWARD, .position = *op});
}

static void log_sum_exp(struct device *dev, const struct device_cross_entropy *op)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = LOG_SUM_EXP, .cross_entropy = *op});
}

static void loss(struct device *dev, double *losses, const float *running, const uint32_t *labels, size_t m)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = LOSS, .p = {losses, running, labels}, .n = {m}});
}

static void cross_entropy_gradient(struct device *dev, const struct device_cross_entropy *op)
{
    add(dev, DEVICE_COMPUTE, (struct call){.kind = CROSS_ENTROPY_GRADIENT, .cross_entropy = *op});
}

static void propose(struct device *dev, const struct device_matmul *op, struct products_candidates *out)
{
    device_cpu.propose(dev, op, out);
}

static int choose(struct device *dev, const struct products *products, struct error *err)
{
    return device_cpu.choose(dev, products, err);
}

const struct device_ops device_late = {
    .name = "late",
    .open = open_device,
    .close = close_device,
    .count = count,
    .arena = arena,
    .probe = probe,
    .lend = lend,
    .unlend = unlend,
    .upload = upload,
    .download = download,
    .mark = mark,
    .follow = follow,
    .finish = finish,
    .sync = sync_device,
    .fault = fault,
    .zero = zero,
    .round_bf16 = round_bf16,
    .matmul = matmul,
    .propose = propose,
    .choose = choose,
    .activate = activate,
    .reduce_rows = reduce_rows,
    .norm = norm,
    .norm_backward = norm_backward,
    .rope = rope,
    .glu = glu,
    .glu_backward = glu_backward,
    .prepare_attention = prepare_attention,
    .attention = attention,
    .attention_backward = attention_backward,
    .attention_cached = attention_cached,
    .dropout_add = dropout_add,
    .embed = embed,
    .embed_backward = embed_backward,
    .position = position,
    .position_backward = position_backward,
    .log_sum_exp = log_sum_exp,
    .loss = loss,
    .cross_entropy_gradient = cross_entropy_gradient,
};
