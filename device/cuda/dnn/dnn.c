/* Attention through cuDNN, if it is found and gives the same bits every time. Attention with dropout uses our own
 * kernels, as the dropped elements must be ours.
 *
 * Plans are chosen, compiled and run once before the first step (cuda_dnn_prepare): of each shape for the rows of a
 * microbatch and, as a share may end with fewer, for single rows. Backward takes as many rows or heads at a time as its
 * scratch holds. A failure within a step is a fault, as another kernel would give other bits. */
#include "device/cuda/dnn/plan.h"

#include "proto/base/process.h"
#include "proto/operation/attention_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A library that is missing is no failure: `missing` says so where it matters, and our own kernels compute. */
void cuda_dnn_open(struct device *dev)
{
    struct cuda_dnn *dnn = calloc(1, sizeof *dnn);

    dev->dnn = dnn;
    if (!dnn || !dnn_api_load(&dnn->api, &dnn->missing))
        return;
    if (dnn->api.create(&dnn->handle) == 0 && dnn->api.set_stream(dnn->handle, dev->queue.stream) == 0)
        return;
    dnn->missing = "cuDNN does not start: is there memory, and does the driver suit it?";
    if (dnn->handle)
        dnn->api.destroy(dnn->handle);
    dnn->handle = NULL;
}

static void dnn_forget(const struct dnn_api *api, struct direction *d)
{
    for (unsigned i = 0; i < N_PLANS; i++) {
        if (d->plans[i].plan)
            api->destroy_descriptor(d->plans[i].plan);
        dnn_graph_free(&d->plans[i].graph);
    }
    *d = (struct direction){.n = 0};
}

static void forget_attention(const struct dnn_api *api, struct dnn_attention *a)
{
    dnn_forget(api, &a->forward);
    dnn_forget(api, &a->backward);
    cudaFree(a->query_lengths);
    *a = (struct dnn_attention){.query_lengths = NULL};
}

/* Plans belong to a job's shapes, so the next job's preparation begins here. */
static void forget_attentions(struct cuda_dnn *dnn)
{
    for (size_t i = 0; i < dnn->n_attentions; i++)
        forget_attention(&dnn->api, &dnn->attentions[i]);
    free(dnn->attentions);
    dnn->attentions = NULL, dnn->n_attentions = 0;
}

void cuda_dnn_close(struct device *dev)
{
    struct cuda_dnn *dnn = dev->dnn;

    if (!dnn)
        return;
    forget_attentions(dnn);
    dnn_convs_forget(dnn);
    if (dnn->handle)
        dnn->api.destroy(dnn->handle);
    /* the library stays loaded: its registrations with the driver would outlive it */
    free(dnn);
    dev->dnn = NULL;
}

/* Of a token's queries, keys and values. */
static size_t dnn_columns_of(const struct device_attention *op)
{
    return op->width + 2 * device_kv_width(op->n_heads, op->n_kv_heads, op->width);
}

/* way: of backward; PLAN_ATTENTION_OWN: forward. */
static bool add_plan(const struct cuda_dnn *dnn, struct direction *d, const struct device_attention *op, size_t n_rows,
                     enum plan_attention way, uint64_t most_bytes)
{
    const struct dnn_shape shape = {.n_rows = n_rows,
                                    .n_tokens = op->n_tokens,
                                    .n_heads = d->n_heads,
                                    .head_width = op->width / op->n_heads,
                                    .n_all_heads = op->n_heads,
                                    .n_sharing = op->n_heads / device_kv_heads(op->n_heads, op->n_kv_heads),
                                    .full = op->full,
                                    .window = attention_slides(op) ? op->window : 0,
                                    .has_lengths = op->lengths != NULL};
    struct plan *p = &d->plans[d->n];
    void *configs[DNN_MAX_CONFIGS];
    unsigned n = 0;

    if (way == PLAN_ATTENTION_OWN)
        n = dnn_graph_attention(&p->graph, &dnn->api, dnn->handle, &shape) ? dnn_graph_configs(&p->graph, NULL, configs)
                                                                           : 0;
    else if (dnn_graph_attention_backward(&p->graph, &dnn->api, dnn->handle, &shape, way))
        n = dnn_graph_backward_configs(&p->graph, way, NULL, configs);
    for (unsigned i = 0; i < n && !p->plan; i++)
        p->plan = dnn_plan_make(dnn, configs[i], (int64_t)most_bytes);
    p->n_rows = n_rows;
    d->n += p->plan != NULL;
    return p->plan != NULL;
}

/* Runs a plan on the slice from this row and head on. */
static int run_slice(const struct cuda_dnn *dnn, const struct dnn_attention *a, const struct plan *p,
                     const struct device_attention *op, size_t row, size_t head, bool is_backward)
{
    const size_t width = op->width * sizeof(uint16_t);
    const size_t kv_width = device_kv_width(op->n_heads, op->n_kv_heads, width);
    const size_t first = head * (width / op->n_heads), numbers = (row * op->n_heads + head) * op->n_tokens;
    /* from the row and head on; where heads share keys, a slice has all of them */
    const size_t at_q = row * op->n_tokens * (width + 2 * kv_width) + first, at_k = at_q + width,
                 at_v = at_k + kv_width;
    const char *const qkv = op->qkv, *const dqkv = op->qkv_gradient;
    const char *out = (const char *)op->out + row * op->n_tokens * width + first;
    const float scale = op->scale, masked = dnn_masked(&dnn->api), one = 1, window = (float)op->window;
    char *scratch = op->scratch;
    struct dnn_pack pack = {.n = 0};

    dnn_give(&pack, DNN_Q, qkv + at_q), dnn_give(&pack, DNN_K, qkv + at_k), dnn_give(&pack, DNN_V, qkv + at_v);
    dnn_give(&pack, DNN_OUT, out), dnn_give(&pack, DNN_LOG_SUM_EXP, op->log_sum_exp + numbers);
    /* Scalars are read when the plan is executed, before this function returns. */
    dnn_give(&pack, DNN_SCALE, &scale);
    if (!op->full || op->lengths)
        dnn_give(&pack, DNN_MASKED, &masked);
    if (attention_slides(op))
        dnn_give(&pack, DNN_WINDOW, &window);
    if (op->lengths)
        dnn_give(&pack, DNN_QUERY_LENGTHS, a->query_lengths), dnn_give(&pack, DNN_KEY_LENGTHS, op->lengths + row);
    if (!is_backward)
        return dnn_plan_execute(dnn, p->plan, &pack, scratch);
    dnn_give(&pack, DNN_OUT_GRADIENT, (const char *)op->out_gradient + (out - (const char *)op->out));
    dnn_give(&pack, DNN_Q_GRADIENT, dqkv + at_q), dnn_give(&pack, DNN_K_GRADIENT, dqkv + at_k);
    dnn_give(&pack, DNN_V_GRADIENT, dqkv + at_v);
    dnn_give(&pack, DNN_DELTA, (float *)(void *)scratch + numbers), dnn_give(&pack, DNN_ONE, &one);
    if (a->scratch.way == PLAN_ATTENTION_ORDERED)
        dnn_give(&pack, DNN_Q_SUM, scratch + a->scratch.sum);
    return dnn_plan_execute(dnn, p->plan, &pack, scratch + a->scratch.workspace);
}

/* The last slice ends with the rows, or heads, so it may overlap the slice before it; both give the same bits. */
static size_t slice_at(size_t i, size_t n, size_t all)
{
    return i + n <= all ? i : all - n;
}

/* A share's last microbatch may have fewer rows than the plan: then row by row, by the plan of one. */
static int dnn_run(const struct cuda_dnn *dnn, const struct dnn_attention *a, const struct direction *d,
                   const struct device_attention *op, cudaStream_t stream)
{
    const struct plan *p = &d->plans[op->n_rows < d->plans[0].n_rows];
    int status = 0;

    if (op->lengths && d == &a->backward) /* the library need not write gradients of keys beyond a row's length: 0 */
        cudaMemsetAsync(op->qkv_gradient, 0, op->n_rows * op->n_tokens * dnn_columns_of(op) * sizeof(uint16_t), stream);
    for (size_t row = 0; row < op->n_rows && !status; row += p->n_rows)
        for (size_t head = 0; head < op->n_heads && !status; head += d->n_heads)
            status = run_slice(dnn, a, p, op, slice_at(row, p->n_rows, op->n_rows),
                               slice_at(head, d->n_heads, op->n_heads), d == &a->backward);
    return status;
}

/* Makes plans for the operation's rows and runs each once, on any content. NULL, or why not; *d is then empty. A
 * plan that has run has compiled and loaded all that it needs. */
static const char *dnn_prepare(struct device *dev, struct dnn_attention *a, struct direction *d, size_t n_rows,
                               size_t n_heads, enum plan_attention way)
{
    const struct cuda_dnn *dnn = dev->dnn;
    const struct device_attention *op = &a->like;
    const uint64_t most = way == PLAN_ATTENTION_OWN ? plan_cuda_attention_scratch(1, op->n_tokens, op->n_heads)
                                                    : a->scratch.workspace_bytes;
    const char *why = NULL;

    d->n_heads = n_heads;
    if (!add_plan(dnn, d, op, n_rows, way, most) || (n_rows > 1 && !add_plan(dnn, d, op, 1, way, most)))
        why = "it has no algorithm of fixed bits that fits";
    for (unsigned i = 0; i < d->n && !why; i++) {
        struct device_attention once = *op;
        once.n_rows = d->plans[i].n_rows;
        if (once.lengths)
            once.lengths = a->query_lengths;
        const int status = dnn_run(dnn, a, d, &once, dev->queue.stream);
        if (status)
            why = dnn->api.error_string(status);
    }
    cuda_note(dev, cudaStreamSynchronize(dev->queue.stream));
    if (why)
        dnn_forget(&dnn->api, d);
    return why;
}

/* The lengths of the rows' queries, which are all that there are. False: there is no memory for them. */
static bool add_query_lengths(struct device *dev, struct dnn_attention *a)
{
    const size_t n = a->like.n_rows, bytes = n * sizeof *a->query_lengths;
    uint32_t *lengths = malloc(bytes);
    const bool ok = lengths && cudaMalloc((void **)&a->query_lengths, bytes) == cudaSuccess;

    if (ok) {
        for (size_t i = 0; i < n; i++)
            lengths[i] = (uint32_t)a->like.n_tokens;
        cuda_upload(dev, a->query_lengths, lengths, bytes);
        cuda_sync(dev); /* uploads have a queue of their own; what fails there is noted */
    }
    free(lengths);
    return ok;
}

/* True if all arrays have the alignment that the graphs declare. */
static bool dnn_is_aligned(const struct device_attention *op)
{
    const uintptr_t addresses = (uintptr_t)op->qkv | (uintptr_t)op->out | (uintptr_t)op->log_sum_exp |
                                (uintptr_t)op->out_gradient | (uintptr_t)op->qkv_gradient | (uintptr_t)op->scratch;

    return addresses % 16 == 0;
}

/* The reason not to use the library at all; NULL: none. */
static const char *dnn_cannot(const struct device *dev, const struct device_attention *op, enum plan_attention way)
{
    if (dev->type != NUMBER_BF16)
        return "cuDNN is used in bf16 alone";
    if (!dev->dnn)
        return "there is no host memory for cuDNN";
    if (dev->dnn->missing)
        return dev->dnn->missing;
    if (op->dropout.p > 0)
        return "cuDNN's dropout has other bits";
    if (op->positions)
        return "cuDNN is not used for packed rows";
    if (!attention_suits_library(dev->type, op) || !dnn_is_aligned(op))
        return "cuDNN has none for this shape";
    if (way == PLAN_ATTENTION_OWN)
        return "the job's way (--attention)";
    return NULL;
}

/* The reason why backward does not use the library. */
static const char *not_planned(const struct device *dev, const struct device_attention *op, enum plan_attention way)
{
    const struct plan_attention_sizes sizes = attention_sizes(op);
    const enum plan_attention best = cuda_dnn_way(dev->index);
    struct plan_attention_scratch scratch;

    if (op->n_chosen > 0)
        return "queries are sampled";
    if (best == PLAN_ATTENTION_FORWARD)
        return "this version has none of fixed bits for this device";
    if (best == PLAN_ATTENTION_SCORES && plan_attention_own_is_better(&sizes))
        return "they are better for this shape";
    plan_attention_lay_out(&scratch, best, &sizes);
    return scratch.way != PLAN_ATTENTION_OWN && way == PLAN_ATTENTION_FORWARD ? "the job's way (--attention)"
                                                                              : "it has none for this shape";
}

/* The scratch was planned for one way (ways), so another one is never tried here. */
static const char *prepare_backward(struct device *dev, struct dnn_attention *a, enum plan_attention way)
{
    const struct plan_attention_sizes sizes = attention_sizes(&a->like);

    plan_attention_lay_out(&a->scratch, way, &sizes);
    if (a->scratch.way == PLAN_ATTENTION_OWN)
        return not_planned(dev, &a->like, way);
    return dnn_prepare(dev, a, &a->backward, a->scratch.slice_rows, a->scratch.slice_heads, a->scratch.way);
}

static const struct dnn_attention *dnn_find(const struct cuda_dnn *dnn, const struct device_attention *op)
{
    for (const struct dnn_attention *a = dnn->attentions; a < dnn->attentions + dnn->n_attentions; a++)
        if (device_attention_alike(&a->like, op))
            return a;
    return NULL;
}

/* What became of one shape. */
struct outcome {
    const char *why, *why_not_backward; /* our own kernels compute all, or backward; NULL: they do not */
};

static struct outcome dnn_prepare_attention(struct device *dev, const struct device_attention *op,
                                            enum plan_attention way)
{
    struct cuda_dnn *dnn = dev->dnn;
    struct dnn_attention a = {.like = *op};
    struct outcome out = {.why = dnn_cannot(dev, op, way)};

    if (!out.why && op->lengths && !add_query_lengths(dev, &a))
        out.why = "there is no device memory for its rows' lengths";
    if (!out.why)
        out.why = dnn_prepare(dev, &a, &a.forward, op->n_rows, op->n_heads, PLAN_ATTENTION_OWN);
    if (!out.why && op->qkv_gradient)
        out.why_not_backward = prepare_backward(dev, &a, way);
    if (!out.why)
        dnn->attentions[dnn->n_attentions++] = a;
    else if (dnn)
        forget_attention(&dnn->api, &a);
    return out;
}

/* How attention of a shape is computed. */
static void tell_one(const struct device *dev, const struct device_attention *op, const struct outcome *outcome,
                     char how[128])
{
    const struct dnn_attention *a = dev->dnn ? dnn_find(dev->dnn, op) : NULL;

    if (outcome->why)
        snprintf(how, 128, "our own kernels: %s", outcome->why);
    else if (outcome->why_not_backward)
        snprintf(how, 128, "forward, our own kernels backward (%s)", outcome->why_not_backward);
    else if (op->qkv_gradient && a->backward.n_heads < op->n_heads)
        snprintf(how, 128, "forward and backward, there %zu heads at a time", a->backward.n_heads);
    else
        snprintf(how, 128, op->qkv_gradient ? "forward and backward" : "forward");
}

static size_t dnn_append(char told[DEVICE_TOLD], size_t at, const char *text)
{
    return at + (size_t)snprintf(told + at, DEVICE_TOLD - at, "%.*s", (int)(DEVICE_TOLD - 1 - at), text);
}

/* All of them in one line: the first, and each other one with another result behind its shape. */
static void dnn_tell(const struct device *dev, const struct device_attention *ops, const struct outcome *outcomes,
                     size_t n, size_t taken, char told[DEVICE_TOLD])
{
    char bytes[PROCESS_BYTES_TEXT], how[128], first[128] = "", text[256];
    size_t at = dnn_append(told, 0, "attention: ");

    if (dev->dnn && dev->dnn->n_attentions > 0) {
        const size_t version = dev->dnn->api.version();
        snprintf(text, sizeof text, "cuDNN %zu.%zu.%zu ", version / 10000, version / 100 % 100, version % 100);
        at = dnn_append(told, at, text);
    }
    for (size_t i = 0; i < n; i++) {
        tell_one(dev, &ops[i], &outcomes[i], how);
        if (strcmp(how, first) == 0)
            continue;
        if (i > 0) {
            snprintf(text, sizeof text, "; %zu heads of %zu%s: ", ops[i].n_heads, ops[i].width / ops[i].n_heads,
                     attention_slides(&ops[i]) ? " in windows"
                     : ops[i].full             ? " in full rows"
                                               : "");
            at = dnn_append(told, at, text);
        }
        at = dnn_append(told, at, how);
        if (i == 0)
            memcpy(first, how, sizeof first);
    }
    if (dev->dnn && dev->dnn->n_attentions > 0) {
        snprintf(text, sizeof text, "; it took %s", process_format_bytes(bytes, taken));
        dnn_append(told, at, text);
    }
}

/* Free memory before and after tells what the library took, which no call reports. */
void cuda_dnn_prepare(struct device *dev, const struct device_attention *ops, const enum plan_attention *ways, size_t n,
                      char told[DEVICE_TOLD])
{
    struct outcome *outcomes = calloc(n, sizeof *outcomes);
    size_t before = 0, after = 0, total;

    cuda_note(dev, cudaStreamSynchronize(dev->queue.stream)); /* waits for earlier work too */
    cudaMemGetInfo(&before, &total);
    if (dev->dnn) {
        forget_attentions(dev->dnn);
        dev->dnn->attentions = calloc(n, sizeof *dev->dnn->attentions);
    }
    if (!outcomes || (dev->dnn && !dev->dnn->attentions)) {
        dnn_append(told, 0, "attention: our own kernels: there is no host memory for cuDNN");
        free(outcomes);
        return;
    }
    for (size_t i = 0; i < n; i++)
        outcomes[i] = dnn_prepare_attention(dev, &ops[i], ways[i]);
    cudaMemGetInfo(&after, &total);
    dnn_tell(dev, ops, outcomes, n, before > after ? before - after : 0, told);
    free(outcomes);
}

/* False: the device or the library is not there. The library stays loaded, as in cuda_dnn_close. */
static bool find_library(unsigned index, size_t *version, int *capability)
{
    struct dnn_api api;
    const char *why;
    int major = 0, minor = 0;

    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, (int)index) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, (int)index) != cudaSuccess ||
        !dnn_api_load(&api, &why))
        return false;
    *version = api.version(), *capability = 10 * major + minor;
    return true;
}

enum plan_attention cuda_dnn_way(unsigned index)
{
    size_t version;
    int capability;

    return find_library(index, &version, &capability) ? dnn_backward_way(version, capability) : PLAN_ATTENTION_OWN;
}

/* One number for all that bits of a convolution depend on: version, architecture and number of multiprocessors. */
uint32_t cuda_dnn_convolution(unsigned index)
{
    size_t version;
    int capability, n_processors;

    if (!find_library(index, &version, &capability) ||
        cudaDeviceGetAttribute(&n_processors, cudaDevAttrMultiProcessorCount, (int)index) != cudaSuccess)
        return 0;
    return (uint32_t)((version * 1000 + (unsigned)capability) * 1000 + (unsigned)n_processors);
}

/* What is prepared for this call; NULL: nothing. */
static const struct dnn_attention *prepared(const struct device *dev, const struct device_attention *op)
{
    return dev->dnn && dnn_is_aligned(op) && attention_suits_library(dev->type, op) ? dnn_find(dev->dnn, op) : NULL;
}

bool cuda_dnn_attention(struct device *dev, const struct device_attention *op)
{
    const struct dnn_attention *a = prepared(dev, op);

    return a && dnn_note(dev, dnn_run(dev->dnn, a, &a->forward, op, dev->queue.stream), "attention forward");
}

bool cuda_dnn_attention_backward(struct device *dev, const struct device_attention *op)
{
    const struct dnn_attention *a = prepared(dev, op);

    return a && a->backward.n > 0 &&
           dnn_note(dev, dnn_run(dev->dnn, a, &a->backward, op, dev->queue.stream), "attention backward");
}
