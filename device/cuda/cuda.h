/* device/cuda/cuda.h - one CUDA device: shared by the files of this backend.
 *
 * cuda.c has the table and the queues; marks.c orders the queues; memory.c handles host memory, lent or staged; probe.c
 * reads a device's properties before it is opened, and explains errors; matmul.c has the products. Only the thread that
 * opened a device may call it. */
#ifndef DEVICE_CUDA_CUDA_H
#define DEVICE_CUDA_CUDA_H

#include "device/cuda/kernels/kernels.h"

#include <cublasLt.h>

enum {
    CUDA_MARKS = 64,            /* initial events of a queue; reused once reached */
    CUDA_LENT = 16,             /* most ranges of lent host memory at a time */
    CUDA_PIECES = 2,            /* page-locked buffers, for copies of host memory that is not lent; as many for pulls */
    CUDA_PIECE_BYTES = 1 << 20, /* bytes of each piece */
};

struct cuda_matmul; /* chosen algorithms, by shape: matmul.c */
struct cuda_dnn;    /* cuDNN and its plans: dnn/dnn.c */

/* Mark i is events[i % room] until it is known to be reached. */
struct cuda_marks {
    uint64_t n;       /* marks so far; also the last one's value */
    uint64_t reached; /* all marks up to this one are reached */
    size_t room;
    cudaEvent_t *events;
};

struct cuda_lent {
    const char *host; /* address as lent; NULL: free entry */
    size_t bytes;
    char *pages;  /* the registered pages */
    char *device; /* address of host for kernels */
};

struct cuda_piece {
    char *host;
    cudaEvent_t done;   /* recorded after its last use */
    cudaEvent_t filled; /* of a pull's: recorded after the host has filled it */
};

/* A piece that a thread of the driver's is to fill. */
struct cuda_fill {
    char *to;
    const char *from;
    size_t bytes;
    bool done;              /* atomic: may be used again */
    struct cuda_fill *next; /* of a ring */
};

struct device {
    unsigned index;
    enum number_type type;
    char *arena;
    size_t arena_bytes;
    struct cuda_queue queue; /* DEVICE_COMPUTE, as launchers take it */
    cudaStream_t streams[DEVICE_QUEUES];
    struct cuda_marks marks[DEVICE_QUEUES];
    struct cuda_lent lent[CUDA_LENT];
    struct cuda_piece pieces[CUDA_PIECES], pulled[CUDA_PIECES];
    unsigned next_piece, next_pulled;
    cudaStream_t filling;          /* of pieces that are pulled: memory.c */
    struct cuda_fill *newest_fill; /* owned, as all in its ring, in order of use; the next one is the oldest */
    cublasLtHandle_t blas;
    void *workspace; /* (PLAN_CUDA_WORKSPACE_BYTES) of products and convolutions, one after another */
    struct cuda_matmul *matmul;
    struct cuda_dnn *dnn;      /* NULL if the device is in fp32 */
    uint64_t *done, uncounted; /* operation counter: uncounted until count() is called */
    cudaError_t failed;        /* the first fault; reported by finish and sync */
    char failed_at[256];       /* place of the fault, if more than the device is known */
};

/* Called after each operation is queued or waited for. Keeps the first fault. */
static inline void cuda_note(struct device *dev, cudaError_t rc)
{
    device_count(dev->done);
    if (rc != cudaSuccess && dev->failed == cudaSuccess)
        dev->failed = rc;
}

/* probe.c: proto/operation/device.h's. */
int cuda_find(unsigned *index, const char *id, struct error *err);
int cuda_probe(unsigned index, struct device_facts *facts, struct error *err);
/* Checks that device `index` exists and is supported, without making a context. -ENODEV. */
int cuda_check(unsigned index, char model[64], struct error *err);
/* Explains rc to the user, prefixed by `what`; returns -ENODEV, -ENOMEM or -EIO. */
int cuda_say(struct error *err, const char *what, cudaError_t rc);

/* probe.c: loads all kernels of this module into the current device's context. */
cudaError_t cuda_load_kernels(void);

/* marks.c: CUDA_MARKS events. cudaErrorMemoryAllocation. Undo: cuda_marks_close, safe on a zeroed one. */
cudaError_t cuda_marks_open(struct cuda_marks *marks);
void cuda_marks_close(struct cuda_marks *marks);
/* proto/operation/device.h's. */
uint64_t cuda_mark(struct device *dev, enum device_queue queue);
void cuda_follow(struct device *dev, enum device_queue queue, enum device_queue other, uint64_t mark);
int cuda_finish(struct device *dev, enum device_queue queue, uint64_t mark);
int cuda_sync(struct device *dev);

/* memory.c: the pieces. -ENOMEM. Undo: cuda_memory_close, which also undoes lend; safe after a partial open. */
cudaError_t cuda_memory_open(struct device *dev);
void cuda_memory_close(struct device *dev);
int cuda_lend(struct device *dev, const void *host, size_t bytes, bool writable, struct error *err);
void cuda_unlend(struct device *dev, const void *host);
void cuda_upload(struct device *dev, void *dst, const void *host, size_t bytes);
void cuda_download(struct device *dev, void *host, const void *src, size_t bytes);
/* The address for kernels of `bytes` bytes at `at`, in the arena or lent; NULL: in neither. */
const void *cuda_reach(const struct device *dev, const void *at, size_t bytes);
/* Copies host memory into the workspace, on DEVICE_COMPUTE: at most CUDA_PIECE_BYTES. */
void cuda_fetch(struct device *dev, const void *host, size_t bytes);

/* matmul.c: the products. Handle and workspace are the device's. -ENOMEM. Undo: cuda_matmul_close, safe on NULL. */
int cuda_matmul_open(struct device *dev);
void cuda_matmul_close(struct device *dev);
/* proto/operation/device.h's. */
void cuda_matmul(struct device *dev, const struct device_matmul *op);
void cuda_matmul_propose(struct device *dev, const struct device_matmul *op, struct products_candidates *out);
int cuda_matmul_choose(struct device *dev, const struct products *products, struct error *err);

/* dnn/dnn.c: attention through cuDNN, if it is found (dnn/dnn.h: dnn_api_load). Undo: cuda_dnn_close, safe without. */
void cuda_dnn_open(struct device *dev);
void cuda_dnn_close(struct device *dev);
/* proto/operation/device.h's prepare_attention. */
void cuda_dnn_prepare(struct device *dev, const struct device_attention *ops, const enum plan_attention *ways, size_t n,
                      char told[DEVICE_TOLD]);
/* False: not prepared, so our own kernels must compute it. True: queued, or the device has failed. */
bool cuda_dnn_attention(struct device *dev, const struct device_attention *op);
bool cuda_dnn_attention_backward(struct device *dev, const struct device_attention *op);
/* How device `index` can compute attention's gradient, and convolutions: device_facts. */
enum plan_attention cuda_dnn_way(unsigned index);
uint32_t cuda_dnn_convolution(unsigned index);

/* dnn/conv.c: convolutions through cuDNN. proto/operation/device.h's prepare_conv2d. */
void cuda_dnn_prepare_conv2d(struct device *dev, const struct device_conv2d *ops, size_t n, uint32_t convolution,
                             char told[DEVICE_TOLD]);
/* As cuda_dnn_attention. */
bool cuda_dnn_conv2d(struct device *dev, const struct device_conv2d *op);
bool cuda_dnn_conv2d_input_gradient(struct device *dev, const struct device_conv2d *op);
bool cuda_dnn_conv2d_weight_gradient(struct device *dev, const struct device_conv2d *op);

#endif
