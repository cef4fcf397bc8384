/* Attention through cuDNN, if it is found and gives the same bits every time. Attention with dropout uses our own
 * kernels, as the dropped elements must be ours.
 *
 * Plans are chosen, compiled and run once before the first step (cuda_dnn_prepare): for the rows of a microbatch and,
 * as a share may end with fewer, for single rows. Backward takes as many rows or heads at a time as its scratch holds.
 * A failure within a step is a fault, as another kernel would give other bits. */
#include "device/cuda/dnn/plan.h"

#include "proto/base/process.h"
#include "proto/operation/attention_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static void forget(const struct dnn_api *api, struct direction *d)
{
    for (unsigned i = 0; i < N_PLANS; i++) {
        if (d->plans[i].plan)
            api->destroy_descriptor(d->plans[i].plan);
        dnn_graph_free(&d->plans[i].graph);
    }
    *d = (struct direction){.n = 0};
}

void cuda_dnn_close(struct device *dev)
{
    struct cuda_dnn *dnn = dev->dnn;

    if (!dnn)
        return;
    forget(&dnn->api, &dnn->forward);
    forget(&dnn->api, &dnn->backward);
    dnn_convs_forget(dnn);
    if (dnn->handle)
        dnn->api.destroy(dnn->handle);
    /* the library stays loaded: its registrations with the driver would outlive it */
    free(dnn);
    dev->dnn = NULL;
}

static size_t sharing_of(const struct device_attention *op)
{
    const struct plan_attention_sizes sizes = attention_sizes(op);

    return plan_attention_sharing(&sizes);
}

/* way: of backward; PLAN_ATTENTION_OWN: forward. */
static bool add_plan(const struct cuda_dnn *dnn, struct direction *d, size_t n_rows, enum plan_attention way,
                     uint64_t most_bytes)
{
    const struct dnn_shape shape = {.n_rows = n_rows,
                                    .n_tokens = dnn->n_tokens,
                                    .n_heads = d->n_heads,
                                    .head_width = dnn->width / dnn->n_heads,
                                    .n_all_heads = dnn->n_heads,
                                    .n_sharing = dnn->n_sharing};
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
static int run_slice(const struct cuda_dnn *dnn, const struct plan *p, const struct device_attention *op, size_t row,
                     size_t head, bool is_backward)
{
    const size_t width = op->width * sizeof(uint16_t), kv_width = width / dnn->n_sharing;
    const size_t first = head * (width / op->n_heads), numbers = (row * op->n_heads + head) * op->n_tokens;
    /* from the row and head on; where heads share keys, a slice has all of them */
    const size_t at_q = row * op->n_tokens * (width + 2 * kv_width) + first, at_k = at_q + width,
                 at_v = at_k + kv_width;
    const char *const qkv = op->qkv, *const dqkv = op->qkv_gradient;
    const char *out = (const char *)op->out + row * op->n_tokens * width + first;
    const float scale = op->scale, masked = dnn_masked(&dnn->api), one = 1;
    char *scratch = op->scratch;
    struct dnn_pack pack = {.n = 0};

    dnn_give(&pack, DNN_Q, qkv + at_q), dnn_give(&pack, DNN_K, qkv + at_k), dnn_give(&pack, DNN_V, qkv + at_v);
    dnn_give(&pack, DNN_OUT, out), dnn_give(&pack, DNN_LOG_SUM_EXP, op->log_sum_exp + numbers);
    dnn_give(&pack, DNN_SCALE, &scale), dnn_give(&pack, DNN_MASKED, &masked);
    if (!is_backward)
        return dnn_plan_execute(dnn, p->plan, &pack, scratch);
    dnn_give(&pack, DNN_OUT_GRADIENT, (const char *)op->out_gradient + (out - (const char *)op->out));
    dnn_give(&pack, DNN_Q_GRADIENT, dqkv + at_q), dnn_give(&pack, DNN_K_GRADIENT, dqkv + at_k);
    dnn_give(&pack, DNN_V_GRADIENT, dqkv + at_v);
    dnn_give(&pack, DNN_DELTA, (float *)(void *)scratch + numbers), dnn_give(&pack, DNN_ONE, &one);
    if (dnn->scratch.way == PLAN_ATTENTION_ORDERED)
        dnn_give(&pack, DNN_Q_SUM, scratch + dnn->scratch.sum);
    return dnn_plan_execute(dnn, p->plan, &pack, scratch + dnn->scratch.workspace);
}

/* The last slice ends with the rows, or heads, so it may overlap the slice before it; both give the same bits. */
static size_t slice_at(size_t i, size_t n, size_t all)
{
    return i + n <= all ? i : all - n;
}

static int run(const struct cuda_dnn *dnn, const struct direction *d, const struct device_attention *op)
{
    const struct plan *p = &d->plans[op->n_rows < d->plans[0].n_rows];
    int status = 0;

    for (size_t row = 0; row < op->n_rows && !status; row += p->n_rows)
        for (size_t head = 0; head < op->n_heads && !status; head += d->n_heads)
            status = run_slice(dnn, p, op, slice_at(row, p->n_rows, op->n_rows),
                               slice_at(head, d->n_heads, op->n_heads), d == &dnn->backward);
    return status;
}

/* Makes plans for the operation's rows and runs each once, on any content. NULL, or why not; *d is then empty. */
static const char *prepare(struct device *dev, struct direction *d, const struct device_attention *op, size_t n_rows,
                           size_t n_heads, enum plan_attention way)
{
    const struct cuda_dnn *dnn = dev->dnn;
    const uint64_t most = way == PLAN_ATTENTION_OWN ? plan_cuda_attention_scratch(1, op->n_tokens, op->n_heads)
                                                    : dnn->scratch.workspace_bytes;
    const char *why = NULL;

    d->n_heads = n_heads;
    if (!add_plan(dnn, d, n_rows, way, most) || (n_rows > 1 && !add_plan(dnn, d, 1, way, most)))
        why = "it has no algorithm of fixed bits that fits";
    for (unsigned i = 0; i < d->n && !why; i++) {
        struct device_attention once = *op;
        once.n_rows = d->plans[i].n_rows;
        const int status = run(dnn, d, &once);
        if (status)
            why = dnn->api.error_string(status);
    }
    cuda_note(dev, cudaStreamSynchronize(dev->queue.stream));
    if (why)
        forget(&dnn->api, d);
    return why;
}

/* True if all arrays have the alignment that the graphs declare. */
static bool is_aligned(const struct device_attention *op)
{
    const uintptr_t addresses = (uintptr_t)op->qkv | (uintptr_t)op->out | (uintptr_t)op->log_sum_exp |
                                (uintptr_t)op->out_gradient | (uintptr_t)op->qkv_gradient | (uintptr_t)op->scratch;

    return addresses % 16 == 0;
}

/* The reason not to use the library at all; NULL: none. */
static const char *cannot(const struct device *dev, const struct device_attention *op)
{
    if (dev->type != NUMBER_BF16)
        return "cuDNN has none in fp32";
    if (!dev->dnn)
        return "there is no host memory for cuDNN";
    if (dev->dnn->missing)
        return dev->dnn->missing;
    if (op->dropout.p > 0)
        return "cuDNN's dropout has other bits";
    if (device_window(op->window, op->n_tokens) < op->n_tokens)
        return "cuDNN is not used for windows";
    if (op->positions)
        return "cuDNN is not used for packed rows";
    if (!attention_suits_library(dev->type, op) || !is_aligned(op))
        return "cuDNN has none for this shape";
    return NULL;
}

/* The reason why backward does not use the library. */
static const char *not_planned(const struct device *dev, const struct device_attention *op)
{
    const struct plan_attention_sizes sizes = attention_sizes(op);
    enum plan_attention way = cuda_dnn_way(dev->index);
    struct plan_attention_scratch scratch;

    if (op->n_chosen > 0)
        return "queries are sampled";
    if (way == PLAN_ATTENTION_OWN)
        return "this version has none of fixed bits for this device";
    if (way == PLAN_ATTENTION_SCORES && plan_attention_own_is_better(&sizes))
        return "they are better for this shape";
    plan_attention_lay_out(&scratch, way, &sizes);
    return scratch.way == PLAN_ATTENTION_OWN ? "it has none for this shape" : "another worker of the job has it not";
}

static const char *prepare_backward(struct device *dev, const struct device_attention *op, enum plan_attention way)
{
    const struct plan_attention_sizes sizes = attention_sizes(op);
    struct cuda_dnn *dnn = dev->dnn;

    plan_attention_lay_out(&dnn->scratch, way, &sizes);
    if (dnn->scratch.way == PLAN_ATTENTION_OWN)
        return not_planned(dev, op);
    return prepare(dev, &dnn->backward, op, dnn->scratch.slice_rows, dnn->scratch.slice_heads, dnn->scratch.way);
}

static void tell(const struct device *dev, const struct device_attention *op, const char *why_not_backward,
                 size_t taken, char told[DEVICE_TOLD])
{
    const size_t version = dev->dnn->api.version(), major = version / 10000, minor = version / 100 % 100;
    char bytes[PROCESS_BYTES_TEXT], how[96] = "forward";

    if (why_not_backward)
        snprintf(how, sizeof how, "forward, our own kernels backward (%s)", why_not_backward);
    else if (op->qkv_gradient && dev->dnn->backward.n_heads < op->n_heads)
        snprintf(how, sizeof how, "forward and backward, there %zu heads at a time", dev->dnn->backward.n_heads);
    else if (op->qkv_gradient)
        snprintf(how, sizeof how, "forward and backward");
    snprintf(told, DEVICE_TOLD, "attention: cuDNN %zu.%zu.%zu %s; it took %s", major, minor, version % 100, how,
             process_format_bytes(bytes, taken));
}

void cuda_dnn_prepare(struct device *dev, const struct device_attention *op, enum plan_attention way,
                      char told[DEVICE_TOLD])
{
    struct cuda_dnn *dnn = dev->dnn;
    const char *why = cannot(dev, op), *why_not_backward = NULL;
    size_t before = 0, after = 0, total;

    if (!why) {
        cuda_note(dev, cudaStreamSynchronize(dev->queue.stream)); /* waits for earlier work too */
        forget(&dnn->api, &dnn->forward);
        forget(&dnn->api, &dnn->backward);
        dnn->n_tokens = op->n_tokens, dnn->n_heads = op->n_heads, dnn->width = op->width;
        dnn->n_sharing = sharing_of(op);
        cudaMemGetInfo(&before, &total);
        why = prepare(dev, &dnn->forward, op, op->n_rows, op->n_heads, PLAN_ATTENTION_OWN);
    }
    if (why) {
        snprintf(told, DEVICE_TOLD, "attention: our own kernels: %s", why);
        return;
    }
    if (op->qkv_gradient)
        why_not_backward = prepare_backward(dev, op, way);
    cudaMemGetInfo(&after, &total);
    tell(dev, op, why_not_backward, before > after ? before - after : 0, told);
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

uint32_t cuda_dnn_convolution(unsigned index)
{
    size_t version;
    int capability, n_processors;

    if (!find_library(index, &version, &capability) ||
        cudaDeviceGetAttribute(&n_processors, cudaDevAttrMultiProcessorCount, (int)index) != cudaSuccess)
        return 0;
    return (uint32_t)((version * 1000 + (unsigned)capability) * 1000 + (unsigned)n_processors);
}

/* True for the prepared shape. */
static bool is_prepared(const struct device *dev, const struct device_attention *op)
{
    const struct cuda_dnn *dnn = dev->dnn;

    return dnn && dnn->forward.n > 0 && is_aligned(op) && attention_suits_library(dev->type, op) &&
           op->n_tokens == dnn->n_tokens && op->n_heads == dnn->n_heads && op->width == dnn->width &&
           sharing_of(op) == dnn->n_sharing;
}

bool cuda_dnn_attention(struct device *dev, const struct device_attention *op)
{
    return is_prepared(dev, op) && dnn_note(dev, run(dev->dnn, &dev->dnn->forward, op), "attention forward");
}

bool cuda_dnn_attention_backward(struct device *dev, const struct device_attention *op)
{
    return is_prepared(dev, op) && dev->dnn->backward.n > 0 &&
           dnn_note(dev, run(dev->dnn, &dev->dnn->backward, op), "attention backward");
}
