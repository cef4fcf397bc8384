/* Convolutions of images through cuDNN.
 *
 * What an image gets must not depend on the images beside it, so the library is never asked for as many as a call
 * has, but for blocks of CONV2D_BLOCK images, and for the last ones one by one. Both are by the same engine with the
 * same knobs, whose sums are not divided, so an image's y and x's gradient have the same bits in both. Of the
 * weights' gradient a block is a term, added in fp32 in the order of images: how images are divided into calls
 * changes no bit as long as calls are whole blocks.
 *
 * What a result is added to is read from a copy. In place the library's kernels lost terms on an H100: they begin
 * before the kernel ahead of them has ended, and seem not to wait for that array. A copy between them makes them
 * wait.
 *
 * Plans are made before the first step (cuda_dnn_prepare_conv2d), for the sizes and numbers of images to come.
 * Copies and their workspace are in the device's workspace, which products share, so the memory plan has them. */
#include "device/cuda/dnn/graph.h"
#include "device/cuda/dnn/plan.h"

#include "proto/base/process.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Compared as bytes. */
struct key {
    uint64_t height, width, n_in, n_out, n_groups, n_rows; /* n_rows: CONV2D_BLOCK or 1 */
    struct image_window window;
    uint32_t kind, adds;
};

struct dnn_conv {
    struct key key;
    struct dnn_graph graph;
    void *plan; /* NULL: the library has none that suits */
    bool tried; /* it has run */
    struct dnn_conv *next;
};

static void conv_drop(const struct cuda_dnn *dnn, struct dnn_conv *c)
{
    if (c->plan)
        dnn->api.destroy_descriptor(c->plan);
    c->plan = NULL;
}

void dnn_convs_forget(struct cuda_dnn *dnn)
{
    while (dnn->convs) {
        struct dnn_conv *const c = dnn->convs;
        dnn->convs = c->next;
        conv_drop(dnn, c);
        dnn_graph_free(&c->graph);
        free(c);
    }
}

/* Bytes of what a plan adds to; 0: to nothing. */
static size_t added_bytes(const struct key *key)
{
    const size_t weights = key->n_out * key->n_in / key->n_groups * key->window.height * key->window.width;

    if (!key->adds)
        return 0;
    return key->kind == CONV2D_WEIGHTS ? weights * sizeof(float)
                                       : key->n_rows * key->height * key->width * key->n_in * sizeof(uint16_t);
}

/* Those of the copy and the gap behind it. */
static size_t copied_bytes(const struct key *key)
{
    return (added_bytes(key) + 255) / 256 * 256;
}

/* Negative: the copy does not fit. */
static int64_t workspace_of(const struct key *key)
{
    return (int64_t)PLAN_CUDA_WORKSPACE_BYTES - (int64_t)copied_bytes(key);
}

static struct key conv_key_of(const struct device_conv2d *op, enum conv2d_kind kind, size_t n_rows)
{
    return (struct key){.height = op->height,
                        .width = op->width,
                        .n_in = op->n_in,
                        .n_out = op->n_out,
                        .n_groups = op->n_groups,
                        .n_rows = n_rows,
                        .window = op->window,
                        .kind = kind,
                        .adds = conv2d_adds(op, kind)};
}

static struct dnn_conv *conv_find(const struct cuda_dnn *dnn, const struct device_conv2d *op, enum conv2d_kind kind,
                                  size_t n_rows)
{
    const struct key key = conv_key_of(op, kind, n_rows);

    for (struct dnn_conv *c = dnn->convs; c; c = c->next)
        if (memcmp(&c->key, &key, sizeof key) == 0)
            return c;
    return NULL;
}

/* False if parts of a sum are added up, as many as the number of images lets fit. A knob that this list lacks does
 * not compile: its meaning must be known first. */
static bool conv_is_whole(const struct dnn_choice *choices, int n)
{
    for (int i = 0; i < n; i++)
        switch (choices[i].knob) {
        case DNN_KNOB_SPLIT_K:
        case DNN_KNOB_SPLITS:
        case DNN_KNOB_SPLIT_PIXELS:
            if (choices[i].value > 1)
                return false;
            break;
        case DNN_KNOB_STREAM_K:
            if (choices[i].value != 0)
                return false;
            break;
        case DNN_KNOB_STAGES:
        case DNN_KNOB_KERNEL:
        case DNN_KNOB_CLUSTER_M:
        case DNN_KNOB_TILE_M:
        case DNN_KNOB_TILE_N:
            break;
        }
    return true;
}

/* A plan for a single image by what was proposed for a block. The graph is built anew, as sizes are part of it;
 * engine and knobs are the block's. */
static void *make_alike(const struct cuda_dnn *dnn, struct dnn_conv *c, const struct device_conv2d *op, int64_t engine,
                        const struct dnn_choice *choices, int n)
{
    void *config = NULL;

    dnn_graph_free(&c->graph);
    if (dnn_graph_conv(&c->graph, &dnn->api, dnn->handle, op, 1, (enum conv2d_kind)c->key.kind, c->key.adds))
        config = dnn_graph_config(&c->graph, engine, NULL, choices, (unsigned)n);
    return config ? dnn_plan_make(dnn, config, workspace_of(&c->key)) : NULL;
}

/* For y and x's gradient: the first of what is proposed for a block that does not divide sums, and that is there for a
 * single image, too. */
static void make_of_images(const struct cuda_dnn *dnn, struct dnn_conv *block, struct dnn_conv *single,
                           const struct device_conv2d *op)
{
    struct dnn_choice choices[DNN_MAX_KNOBS];
    void *configs[DNN_MAX_CONFIGS];
    unsigned n = 0;
    int64_t engine;

    if (dnn_graph_conv(&block->graph, &dnn->api, dnn->handle, op, CONV2D_BLOCK, (enum conv2d_kind)block->key.kind,
                       block->key.adds))
        n = dnn_graph_configs(&block->graph, NULL, configs);
    for (unsigned i = 0; i < n && !single->plan; i++) {
        const int n_choices = dnn_config_choices(&dnn->api, configs[i], &engine, choices);
        if (n_choices < 0 || !conv_is_whole(choices, n_choices))
            continue;
        block->plan = dnn_plan_make(dnn, configs[i], workspace_of(&block->key));
        if (block->plan)
            single->plan = make_alike(dnn, single, op, engine, choices, n_choices);
        if (!single->plan)
            conv_drop(dnn, block);
    }
}

/* Sums over pixels may be divided here: a block has a fixed number of images, so they always are in the same way. */
static void make_of_weights(const struct cuda_dnn *dnn, struct dnn_conv *c, const struct device_conv2d *op)
{
    void *configs[DNN_MAX_CONFIGS];
    unsigned n = 0;

    if (dnn_graph_conv(&c->graph, &dnn->api, dnn->handle, op, c->key.n_rows, CONV2D_WEIGHTS, true))
        n = dnn_graph_configs(&c->graph, NULL, configs);
    for (unsigned i = 0; i < n && !c->plan; i++)
        c->plan = dnn_plan_make(dnn, configs[i], workspace_of(&c->key));
}

/* Entered even if no plan is found: then nobody asks the library again. */
static struct dnn_conv *conv_enter(struct cuda_dnn *dnn, const struct device_conv2d *op, enum conv2d_kind kind,
                                   size_t n_rows)
{
    struct dnn_conv *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->key = conv_key_of(op, kind, n_rows);
    c->next = dnn->convs;
    dnn->convs = c;
    return c;
}

/* Plans of the weights' gradient for this number of images; of all else for a block and for a single image, as either
 * is used only beside the other. Without memory there are none. */
static void conv_add(struct cuda_dnn *dnn, const struct device_conv2d *op, enum conv2d_kind kind, size_t n_rows)
{
    struct dnn_conv *c = conv_enter(dnn, op, kind, n_rows);
    struct dnn_conv *other =
        c && kind != CONV2D_WEIGHTS ? conv_enter(dnn, op, kind, n_rows == CONV2D_BLOCK ? 1 : CONV2D_BLOCK) : NULL;

    if (c && kind == CONV2D_WEIGHTS)
        make_of_weights(dnn, c, op);
    else if (other)
        make_of_images(dnn, n_rows == CONV2D_BLOCK ? c : other, n_rows == CONV2D_BLOCK ? other : c, op);
}

/* ---- running ---- */

/* What the result is added to: what is there, or zeros. */
static const void *conv_copy(struct device *dev, const struct dnn_conv *c, const void *there, bool zeros)
{
    const size_t bytes = added_bytes(&c->key);

    cuda_note(dev, zeros ? cudaMemsetAsync(dev->workspace, 0, bytes, dev->queue.stream)
                         : cudaMemcpyAsync(dev->workspace, there, bytes, cudaMemcpyDeviceToDevice, dev->queue.stream));
    return dev->workspace;
}

/* Runs a plan on the images from this one on. 0, or the library's status. */
static int run_some(struct device *dev, const struct dnn_conv *c, const struct device_conv2d *op, size_t row)
{
    const size_t x = row * op->height * op->width * op->n_in * sizeof(uint16_t),
                 y = row * (device_conv2d_pixels(op) / op->n_rows) * op->n_out * sizeof(uint16_t);
    struct dnn_pack pack = {.n = 0};
    const void *result = NULL;

    switch ((enum conv2d_kind)c->key.kind) {
    case CONV2D_FORWARD:
        dnn_give(&pack, DNN_CONV_X, (const char *)op->x + x);
        dnn_give(&pack, DNN_CONV_WEIGHT, op->weight);
        dnn_give(&pack, DNN_CONV_Y, (const char *)op->y + y);
        break;
    case CONV2D_INPUT:
        dnn_give(&pack, DNN_CONV_X, result = (const char *)op->x_gradient + x);
        dnn_give(&pack, DNN_CONV_WEIGHT, op->weight);
        dnn_give(&pack, DNN_CONV_Y, (const char *)op->y_gradient + y);
        break;
    case CONV2D_WEIGHTS:
        dnn_give(&pack, DNN_CONV_X, (const char *)op->x + x);
        dnn_give(&pack, DNN_CONV_WEIGHT, result = op->weight_gradient);
        dnn_give(&pack, DNN_CONV_Y, (const char *)op->y_gradient + y);
        break;
    case CONV2D_KINDS:
        assert(!"a kind of convolution");
    }
    if (c->key.adds)
        dnn_give(&pack, DNN_CONV_ADDED,
                 conv_copy(dev, c, result, c->key.kind == CONV2D_WEIGHTS && row == 0 && op->beta == 0));
    return dnn_plan_execute(dev->dnn, c->plan, &pack, (char *)dev->workspace + copied_bytes(&c->key));
}

static int conv_run_all(struct device *dev, const struct dnn_conv *block, const struct dnn_conv *single,
                        const struct device_conv2d *op)
{
    int status = 0;

    for (size_t row = 0; row < op->n_rows && !status;) {
        const struct dnn_conv *c = op->n_rows - row >= CONV2D_BLOCK ? block : single;
        status = run_some(dev, c, op, row);
        row += c->key.n_rows;
    }
    return status;
}

/* The arrays that this direction reads and writes; the plans declare 16 bytes. */
static bool conv_is_aligned(const struct device_conv2d *op, enum conv2d_kind kind)
{
    uintptr_t addresses = 0;

    if (kind != CONV2D_INPUT)
        addresses |= (uintptr_t)op->x;
    if (kind != CONV2D_WEIGHTS)
        addresses |= (uintptr_t)op->weight;
    addresses |= kind == CONV2D_FORWARD ? (uintptr_t)op->y : (uintptr_t)op->y_gradient;
    addresses |= kind == CONV2D_INPUT     ? (uintptr_t)op->x_gradient
                 : kind == CONV2D_WEIGHTS ? (uintptr_t)op->weight_gradient
                                          : 0;
    return addresses % 16 == 0;
}

/* The plans that a call needs. False if it is not prepared, or if the library has not all of them. A number of images
 * that was not foreseen gets its plan of the weights' gradient now. */
static bool get_plans(struct cuda_dnn *dnn, enum number_type type, const struct device_conv2d *op,
                      enum conv2d_kind kind, struct dnn_conv *plans[2])
{
    const size_t sizes[] = {CONV2D_BLOCK, 1}, counts[] = {op->n_rows / CONV2D_BLOCK, op->n_rows % CONV2D_BLOCK};

    plans[0] = conv_find(dnn, op, kind, CONV2D_BLOCK), plans[1] = conv_find(dnn, op, kind, 1);
    if ((!plans[0] && !plans[1]) || !conv2d_suits_library(type, op, kind))
        return false;
    for (int i = 0; i < 2; i++)
        if (counts[i] > 0) {
            if (!plans[i])
                conv_add(dnn, op, kind, sizes[i]), plans[i] = conv_find(dnn, op, kind, sizes[i]);
            if (!plans[i] || !plans[i]->plan)
                return false;
        }
    return true;
}

static bool conv_convolve(struct device *dev, const struct device_conv2d *op, enum conv2d_kind kind, const char *which)
{
    struct dnn_conv *plans[2];

    if (!dev->dnn || op->n_rows == 0 || !conv_is_aligned(op, kind) || !get_plans(dev->dnn, dev->type, op, kind, plans))
        return false;
    return dnn_note(dev, conv_run_all(dev, plans[0], plans[1], op), which);
}

bool cuda_dnn_conv2d(struct device *dev, const struct device_conv2d *op)
{
    return conv_convolve(dev, op, CONV2D_FORWARD, "convolution");
}

bool cuda_dnn_conv2d_input_gradient(struct device *dev, const struct device_conv2d *op)
{
    return conv_convolve(dev, op, CONV2D_INPUT, "a convolution's gradient");
}

bool cuda_dnn_conv2d_weight_gradient(struct device *dev, const struct device_conv2d *op)
{
    return conv_convolve(dev, op, CONV2D_WEIGHTS, "the gradient of a convolution's weights");
}

/* ---- preparing ---- */

static enum conv2d_kind conv_kind_of(const struct device_conv2d *op)
{
    return op->weight_gradient ? CONV2D_WEIGHTS : op->x_gradient ? CONV2D_INPUT : CONV2D_FORWARD;
}

/* Runs a plan, so that the library has loaded all of it. Without it the other size has none either. */
static bool runs(struct device *dev, struct dnn_conv *c, const struct device_conv2d *op)
{
    const size_t other = c->key.n_rows == CONV2D_BLOCK ? 1 : CONV2D_BLOCK;

    if (c->tried || run_some(dev, c, op, 0) == 0)
        return c->tried = true;
    conv_drop(dev->dnn, c);
    if (c->key.kind != CONV2D_WEIGHTS)
        conv_drop(dev->dnn, conv_find(dev->dnn, op, (enum conv2d_kind)c->key.kind, other));
    return false;
}

/* Makes the plans that a call needs. False if it must be computed by our own kernels. */
static bool conv_prepare(struct device *dev, const struct device_conv2d *op)
{
    const enum conv2d_kind kind = conv_kind_of(op);
    const size_t sizes[] = {CONV2D_BLOCK, 1}, counts[] = {op->n_rows / CONV2D_BLOCK, op->n_rows % CONV2D_BLOCK};
    bool can = conv2d_suits_library(dev->type, op, kind) && conv_is_aligned(op, kind);

    for (int i = 0; i < 2 && can; i++) {
        if (counts[i] == 0)
            continue;
        if (!conv_find(dev->dnn, op, kind, sizes[i])) {
            conv_add(dev->dnn, op, kind, sizes[i]);
            device_count(dev->done); /* to compile takes a second */
        }
        struct dnn_conv *const c = conv_find(dev->dnn, op, kind, sizes[i]);
        can = c && c->plan && runs(dev, c, op);
    }
    return can;
}

static const char *conv_cannot(const struct device *dev, uint32_t convolution)
{
    if (dev->type != NUMBER_BF16)
        return "cuDNN is used in bf16 alone";
    if (!dev->dnn)
        return "there is no host memory for cuDNN";
    if (dev->dnn->missing)
        return dev->dnn->missing;
    return convolution == cuda_dnn_convolution(dev->index) ? NULL : "the job's workers do not have the same cuDNN";
}

void cuda_dnn_prepare_conv2d(struct device *dev, const struct device_conv2d *ops, size_t n, uint32_t convolution,
                             char told[DEVICE_TOLD])
{
    const char *why = conv_cannot(dev, convolution);
    size_t n_theirs = 0, before = 0, after = 0, total;
    char bytes[PROCESS_BYTES_TEXT];

    if (why) {
        snprintf(told, DEVICE_TOLD, "convolutions: our own kernels: %s", why);
        return;
    }
    cuda_note(dev, cudaStreamSynchronize(dev->queue.stream)); /* waits for earlier work too */
    dnn_convs_forget(dev->dnn);
    cudaMemGetInfo(&before, &total);
    for (size_t i = 0; i < n; i++)
        n_theirs += conv_prepare(dev, &ops[i]);
    cuda_note(dev, cudaStreamSynchronize(dev->queue.stream));
    cudaMemGetInfo(&after, &total);
    const size_t version = dev->dnn->api.version();
    snprintf(told, DEVICE_TOLD, "convolutions: cuDNN %zu.%zu.%zu computes %zu of %zu%s; it took %s", version / 10000,
             version / 100 % 100, version % 100, n_theirs, n, n_theirs < n ? ", our own kernels the others" : "",
             process_format_bytes(bytes, before > after ? before - after : 0));
}
