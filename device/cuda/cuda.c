/* device/cuda/cuda.c - a CUDA device: the table of its operations, and its three queues.
 *
 * A queue is a stream. Operations of the compute queue are launchers of kernels/kernels.h and products of matmul.c. The
 * first fault, while queueing or later on the device, is kept and reported by finish and sync. */
#include "device/cuda/cuda.h"

#include "device/find.h"
#include "proto/base/process.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void cuda_close_device(struct device *dev)
{
    if (!dev)
        return;
    for (unsigned i = 0; i < DEVICE_QUEUES; i++)
        if (dev->streams[i])
            cudaStreamSynchronize(dev->streams[i]);
    cuda_dnn_close(dev);
    cuda_matmul_close(dev);
    cuda_memory_close(dev);
    if (dev->blas)
        cublasLtDestroy(dev->blas);
    for (unsigned i = 0; i < DEVICE_QUEUES; i++) {
        cuda_marks_close(&dev->marks[i]);
        if (dev->streams[i])
            cudaStreamDestroy(dev->streams[i]);
    }
    cudaFree(dev->queue.scratch);
    cudaFree(dev->workspace);
    cudaFree(dev->arena);
    cudaGetLastError(); /* on a lost device every call above fails */
    free(dev);
}

/* Streams that do not wait for the default one, as the driver's other users may use it. */
static cudaError_t open_queues(struct device *dev)
{
    cudaError_t rc = cudaSuccess;

    for (unsigned i = 0; i < DEVICE_QUEUES && rc == cudaSuccess; i++) {
        rc = cudaStreamCreateWithFlags(&dev->streams[i], cudaStreamNonBlocking);
        if (rc == cudaSuccess)
            rc = cuda_marks_open(&dev->marks[i]);
    }
    dev->queue.stream = dev->streams[DEVICE_COMPUTE];
    return rc;
}

/* Kernels are loaded before the arena is claimed: loading takes memory, and later it might find none. */
static cudaError_t cuda_claim(struct device *dev)
{
    int n_processors = 0;
    cudaError_t rc = cudaSetDevice((int)dev->index);

    if (rc == cudaSuccess)
        rc = cudaDeviceGetAttribute(&n_processors, cudaDevAttrMultiProcessorCount, (int)dev->index);
    if (rc == cudaSuccess)
        rc = cuda_load_kernels();
    dev->queue.n_processors = (unsigned)n_processors;
    if (rc == cudaSuccess)
        rc = open_queues(dev);
    if (rc == cudaSuccess)
        rc = cuda_memory_open(dev);
    if (rc == cudaSuccess)
        rc = cudaMalloc(&dev->workspace, PLAN_CUDA_WORKSPACE_BYTES);
    if (rc == cudaSuccess)
        rc = cudaMalloc(&dev->queue.scratch, PLAN_CUDA_SCRATCH_BYTES);
    if (rc == cudaSuccess)
        rc = cudaMalloc((void **)&dev->arena, dev->arena_bytes);
    if (rc == cudaSuccess)
        rc = cudaMemsetAsync(dev->arena, 0, dev->arena_bytes, dev->queue.stream);
    if (rc == cudaSuccess)
        rc = cudaStreamSynchronize(dev->queue.stream);
    return rc;
}

static int cannot_claim(const struct device *dev, cudaError_t claimed, struct error *err)
{
    char what[64], size[PROCESS_BYTES_TEXT];

    snprintf(what, sizeof what, "cuda:%u, to claim %s", dev->index, process_format_bytes(size, dev->arena_bytes));
    return cuda_say(err, what, claimed);
}

static int cuda_open_device(struct device **out, unsigned index, enum number_type type, size_t arena_bytes,
                            unsigned n_threads, struct error *err)
{
    char model[64];

    (void)n_threads; /* for the CPU */
    *out = NULL;
    assert(type < NUMBER_TYPES && arena_bytes > 0);
    int rc = cuda_check(index, model, err);
    if (rc)
        return rc;
    struct device *dev = calloc(1, sizeof *dev);
    if (!dev)
        return error_set(err, -ENOMEM, "cuda:%u: out of host memory", index);
    dev->done = &dev->uncounted;
    dev->index = index;
    dev->type = dev->queue.type = type;
    dev->arena_bytes = arena_bytes;
    cudaError_t claimed = cuda_claim(dev);
    if (claimed != cudaSuccess)
        rc = cannot_claim(dev, claimed, err);
    else if (cublasLtCreate(&dev->blas) != CUBLAS_STATUS_SUCCESS || cuda_matmul_open(dev) != 0)
        rc = error_set(err, -ENOMEM, "cuda:%u: cuBLASLt does not start: is there memory, and does the driver suit it?",
                       index);
    if (rc) {
        cuda_close_device(dev);
        return rc;
    }
    if (type == NUMBER_BF16)
        cuda_dnn_open(dev);
    *out = dev;
    return 0;
}

static void cuda_count(struct device *dev, uint64_t *done)
{
    dev->done = done;
}

static void *cuda_arena(struct device *dev)
{
    return dev->arena;
}

static int cuda_fault(struct device *dev, struct error *err)
{
    char what[24];

    snprintf(what, sizeof what, "cuda:%u", dev->index);
    cuda_say(err, dev->failed_at[0] ? dev->failed_at : what, dev->failed);
    return -EIO;
}

static void zero(struct device *dev, const struct device_zero *op)
{
    cuda_note(dev, cudaMemsetAsync(op->x, 0, op->bytes, dev->queue.stream));
}

/* Blocks run in any order, so a launch must not write what it reads. Where both overlap, each launch may be longer than
 * the one before, as results take half the bytes of what has been read. */
static void round_half(struct device *dev, const struct device_round_half *op)
{
    const char *const to = (const char *)op->to, *const from = (const char *)op->from;
    const bool overlap = to < from + op->n * sizeof *op->from && from < to + op->n * sizeof *op->to;
    const size_t n = op->n, apart = overlap ? (size_t)(from - to) / sizeof *op->to : n;

    assert((!overlap || to < from) && op->type != NUMBER_FP32);
    for (size_t at = 0, here; at < n; at += here) {
        here = n - at < apart + at ? n - at : apart + at;
        cuda_note(dev, cuda_to_half(&dev->queue, op->type, op->to + at, op->from + at, here));
    }
}

static void matmul(struct device *dev, const struct device_matmul *op)
{
    cuda_matmul(dev, op);
}

static void attention(struct device *dev, const struct device_attention *op)
{
    if (!cuda_dnn_attention(dev, op))
        cuda_note(dev, cuda_attention(&dev->queue, op));
}

static void attention_backward(struct device *dev, const struct device_attention *op)
{
    if (!cuda_dnn_attention_backward(dev, op))
        cuda_note(dev, cuda_attention_backward(&dev->queue, op));
}

static void conv2d(struct device *dev, const struct device_conv2d *op)
{
    if (!cuda_dnn_conv2d(dev, op))
        cuda_note(dev, cuda_conv2d(&dev->queue, op));
}

static void conv2d_input_gradient(struct device *dev, const struct device_conv2d *op)
{
    if (!cuda_dnn_conv2d_input_gradient(dev, op))
        cuda_note(dev, cuda_conv2d_input_gradient(&dev->queue, op));
}

static void conv2d_weight_gradient(struct device *dev, const struct device_conv2d *op)
{
    if (!cuda_dnn_conv2d_weight_gradient(dev, op))
        cuda_note(dev, cuda_conv2d_weight_gradient(&dev->queue, op));
}

static size_t cuda_table_bytes(const struct device *dev, bool narrow, size_t n)
{
    return n * number_bytes(narrow ? NUMBER_BF16 : dev->type);
}

/* Rows that fit the workspace, through which they are copied. */
static size_t rows_fetched(size_t row_bytes)
{
    const size_t rows = CUDA_PIECE_BYTES / row_bytes;

    assert(rows > 0);
    return rows;
}

/* A table in host memory that is not lent is passed through the workspace, some rows at a time. */
static void embed(struct device *dev, const struct device_embed *op)
{
    const size_t row_bytes = cuda_table_bytes(dev, op->narrow, op->n);
    struct device_embed piece = *op;

    piece.table = cuda_reach(dev, op->table, op->n_table * row_bytes);
    if (piece.table) {
        cuda_note(dev, cuda_embed(&dev->queue, &piece));
        return;
    }
    const size_t most = rows_fetched(row_bytes);
    piece.table = dev->workspace;
    for (size_t at = 0; at < op->n_table; at += most) {
        const size_t here = op->n_table - at < most ? op->n_table - at : most;
        cuda_fetch(dev, (const char *)op->table + at * row_bytes, here * row_bytes);
        piece.first = op->first + (uint32_t)at, piece.n_table = (uint32_t)here;
        cuda_note(dev, cuda_embed(&dev->queue, &piece));
    }
}

static void position(struct device *dev, const struct device_position *op)
{
    const size_t row_bytes = cuda_table_bytes(dev, op->narrow, op->n);
    struct device_position piece = *op;

    piece.table = cuda_reach(dev, op->table, op->n_tokens * row_bytes);
    if (piece.table) {
        cuda_note(dev, cuda_position(&dev->queue, &piece, 0, op->n_tokens));
        return;
    }
    const size_t most = rows_fetched(row_bytes);
    piece.table = dev->workspace;
    for (size_t at = 0; at < op->n_tokens; at += most) {
        const size_t here = op->n_tokens - at < most ? op->n_tokens - at : most;
        cuda_fetch(dev, (const char *)op->table + at * row_bytes, here * row_bytes);
        cuda_note(dev, cuda_position(&dev->queue, &piece, at, here));
    }
}

/* Operations that are one launch. */
#define CALL(name, type)                                                                                               \
    static void name(struct device *dev, const struct type *op)                                                        \
    {                                                                                                                  \
        cuda_note(dev, cuda_##name(&dev->queue, op));                                                                  \
    }
CUDA_LAUNCHERS(CALL)

#define EXPORTED __attribute__((visibility("default")))

#define ROW(name, type) .name = name,
EXPORTED const struct device_ops device_cuda = {.name = "cuda",
                                                .find = cuda_find,
                                                .probe = cuda_probe,
                                                .open = cuda_open_device,
                                                .close = cuda_close_device,
                                                .count = cuda_count,
                                                .arena = cuda_arena,
                                                .lend = cuda_lend,
                                                .unlend = cuda_unlend,
                                                .upload = cuda_upload,
                                                .download = cuda_download,
                                                .mark = cuda_mark,
                                                .follow = cuda_follow,
                                                .finish = cuda_finish,
                                                .sync = cuda_sync,
                                                .fault = cuda_fault,
                                                .propose = cuda_matmul_propose,
                                                .choose = cuda_matmul_choose,
                                                .prepare_attention = cuda_dnn_prepare,
                                                .prepare_conv2d = cuda_dnn_prepare_conv2d,
                                                DEVICE_CALLS(ROW)};

EXPORTED const struct module device_module = {
    .version = EPS_VERSION,
    .ops_bytes = sizeof(struct device_ops),
    .ops = &device_cuda,
};
