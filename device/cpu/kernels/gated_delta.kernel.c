/* device/cpu/kernels/gated_delta.kernel.c - the gated delta rule, forward, in chunks of 64 tokens.
 *
 * One thread computes one head of one document from end to end, and its state stays in the thread's cache. So threads,
 * heads, rows and neighbouring documents cannot change each other's bits. Threads take documents by the 64 tokens of a
 * row in which they begin: nothing has to be counted before. */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/gated_delta.h"

/* The scratch of a thread. */
struct forward {
    float *k, *q;            /* (CHUNK, k) */
    float *transposed;       /* (k, CHUNK): keys */
    float *d, *out;          /* (CHUNK, v) */
    float *state;            /* (k, v) */
    float *decays, *squares; /* (CHUNK, CHUNK) */
};

static struct forward lay_out(const struct delta_head *head, float *scratch)
{
    struct forward at = {.k = scratch};

    at.q = at.k + CHUNK * head->k;
    at.transposed = at.q + CHUNK * head->k;
    at.d = at.transposed + CHUNK * head->k;
    at.out = at.d + CHUNK * head->v;
    at.state = at.out + CHUNK * head->v;
    at.decays = at.state + head->k * head->v;
    at.squares = at.decays + CHUNK * CHUNK;
    return at;
}

/* What the chunk's tokens write: d. */
static void forward_solve(const struct delta_head *head, const struct forward *at, const struct delta_chunk *c)
{
    delta_load(head, c, at->d, DELTA_V);
    delta_multiply(at->out, at->k, at->state, c->n, head->k, head->v, false);
    delta_miss(c, at->d, at->out, head->v);
    for (size_t i = 0; i < c->n; i++)
        delta_scale(at->d + i * head->v, head->v, c->beta[i]);
    delta_meet(at->squares, at->k, at->transposed, head->k, c->n);
    delta_lower(c, at->squares, at->decays);
    delta_solve(at->squares, at->d, c->n, head->v);
}

/* What they read: of the state before them, and of each other. */
static void forward_read(const struct delta_head *head, const struct forward *at, const struct delta_chunk *c)
{
    const struct device_gated_delta *op = head->op;
    const size_t columns = op->n_heads * op->value_width;

    delta_multiply(at->out, at->q, at->state, c->n, head->k, head->v, false);
    for (size_t i = 0; i < c->n; i++)
        delta_scale(at->out + i * head->v, head->v, c->kept[i]);
    delta_meet(at->squares, at->q, at->transposed, head->k, c->n);
    delta_fade(at->squares, at->decays, c->n);
    delta_mix(at->out, at->squares, at->d, c->n, head->v, true, false);
    delta_unpack((value *)op->y + c->first * columns + head->head * op->value_width, columns, at->out, head->v,
                 op->value_width, c->n);
}

/* The state behind the chunk. */
static void forward_write(const struct delta_head *head, const struct forward *at, const struct delta_chunk *c)
{
    delta_scale(at->state, head->k * head->v, c->kept[c->n - 1]);
    for (size_t i = 0; i < c->n; i++)
        delta_scale(at->k + i * head->k, head->k, c->left[i]);
    delta_write(at->state, at->k, at->d, c->n, head->k, head->v);
}

static void forward_chunk(const struct delta_head *head, const struct forward *at, size_t first, size_t n)
{
    struct delta_chunk c = {.first = first, .n = n};

    delta_gates(head, &c);
    delta_load_normal(head, &c, at->k, at->q);
    product_transpose(at->transposed, CHUNK, at->k, head->k, n, delta_round(n));
    delta_decays(&c, at->decays);
    forward_solve(head, at, &c);
    forward_read(head, at, &c);
    forward_write(head, at, &c);
}

static void forward_document(const struct device_gated_delta *op, size_t index, size_t first, float *scratch)
{
    const struct delta_head head = delta_head_of(op, index, first, delta_length(op, first));
    const struct forward at = lay_out(&head, scratch);

    memset(at.state, 0, head.k * head.v * sizeof *at.state);
    for (size_t i = 0; i < head.n; i += CHUNK) {
        if (i > 0)
            delta_state_store(&head, delta_states_at(&head, first + i), at.state);
        forward_chunk(&head, &at, first + i, size_smaller(CHUNK, head.n - i));
    }
}

void KERNEL_NAME(cpu_gated_delta)(struct device *dev, const struct device_gated_delta *op)
{
    const size_t m = op->n_rows * op->n_tokens, n = (m + CHUNK - 1) / CHUNK;

#pragma omp parallel for num_threads(cpu_threads(dev, delta_work(op))) schedule(dynamic)
    for (size_t item = 0; item < n * op->n_heads; item++) {
        const size_t first = item / op->n_heads * CHUNK, end = size_smaller(first + CHUNK, m);

        device_count(dev->done);
        for (size_t i = first; i < end; i++)
            if (delta_begins(op, i))
                forward_document(op, item % op->n_heads, i, delta_scratch(op, PLAN_DELTA_FORWARD, cpu_thread()));
    }
}

/* The first chunk ends where the text's chunk does, wherever the call begins. */
static void go_on(const struct device_gated_delta *op, size_t index, float *scratch)
{
    const struct delta_head head = delta_head_of(op, index, 0, op->n_tokens);
    const struct forward at = lay_out(&head, scratch);
    float *const state = op->state + index * op->key_width * op->value_width;

    if (op->first > 0)
        delta_state_load(&head, at.state, state);
    else
        memset(at.state, 0, head.k * head.v * sizeof *at.state);
    for (size_t i = 0, n; i < op->n_tokens; i += n) {
        n = size_smaller(CHUNK - (op->first + i) % CHUNK, op->n_tokens - i);
        forward_chunk(&head, &at, i, n);
    }
    delta_state_store(&head, state, at.state);
}

void KERNEL_NAME(cpu_gated_delta_cached)(struct device *dev, const struct device_gated_delta *op)
{
#pragma omp parallel for num_threads(cpu_threads(dev, delta_work(op))) schedule(dynamic)
    for (size_t head = 0; head < op->n_heads; head++) {
        device_count(dev->done);
        go_on(op, head, delta_scratch(op, PLAN_DELTA_CACHED, cpu_thread()));
    }
}
