/* proto/operation/device.h - a device: its memory, its queues, and the operations (calls.h) over which layers are
 * written.
 *
 * One const table per backend; every member is required (device_check). Layer code is plain C over this table, so it is
 * written once. All tensors are row-major views: a pointer and a row stride in elements. No operation allocates,
 * synchronises or reads back to the host. The caller provides scratch, sized by the backend's table in
 * proto/operation/backend.h.
 *
 * Calls queue work and return. There are three queues, each of which runs in call order: copies to the device, copies
 * to the host, and computation. Only follow() orders one queue after another; only finish() and sync() make the host
 * wait. On the CPU the work is done when the call returns.
 *
 * Values are weights, activations and gradients of activations: every `void *` of an operation. They have the number
 * type that the device was opened with. Sums over a step or a row (contributions, statistics, log-sum-exp, logits) are
 * always fp32, and so is arithmetic inside operations. Results are rounded once, to nearest, ties to even
 * (proto/base/number.h).
 *
 * Determinism: the result of every operation depends on its arguments alone, never on the number of threads. The
 * division of rows into calls changes no bit of an operation on single rows, nor of matmul: the order in which an
 * element is summed depends on k alone. Sums over rows (reduce_rows, norm_backward's weight gradients, matmul
 * over_rows, with beta 1 or of a bias's gradient) depend on the rows of a call; each call adds to the destination once.
 * Those of batch_norm_backward and conv2d_weight_gradient depend on the rows' order alone (call/batch_norm.h,
 * call/conv2d.h). */
#ifndef PROTO_OPERATION_DEVICE_H
#define PROTO_OPERATION_DEVICE_H

#include "proto/base/error.h"
#include "proto/base/number.h"
#include "proto/operation/attention_way.h"
#include "proto/operation/calls.h"
#include "proto/operation/device_name.h"
#include "proto/operation/products.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device; /* the backend's own */

enum device_queue {
    DEVICE_COMPUTE,
    DEVICE_PULL, /* upload */
    DEVICE_PUSH, /* download */
    DEVICE_QUEUES
};

/* Properties of a device that a worker knows before there is a job. */
struct device_facts {
    uint64_t available_bytes;      /* device memory that this process may use now, including library_bytes */
    uint64_t library_bytes;        /* used by the backend outside any arena: plan_setting.library_bytes */
    char model[64];                /* "NVIDIA H200"; "" for the CPU */
    char bus[DEVICE_BUS_BYTES];    /* its place on the PCI bus, "0000:3b:00.0"; "": it has none, or it is not known */
    enum plan_attention attention; /* the best way of cuDNN that it supports; own: it has none */
    uint32_t n_multiprocessors;    /* of a GPU; 0: not known */
    uint32_t convolution; /* which library can compute convolutions, of devices that have the same one; 0: none */
};

enum { DEVICE_TOLD = 512 }; /* bytes of a log line */

struct device_ops {
    const char *name; /* "cpu", "cuda": as given to --device and shown in logs */

    /* The index of the device with this id (device_name.h): of all that the runtime shows, the only one whose UUID
     * begins so, or the one in this place of the PCI bus. -ENODEV with a sentence that lists them. */
    int (*find)(unsigned *index, const char *id, struct error *err);

    /* Reads the properties of device `index`, and loads everything that open() needs. -ENODEV with a sentence: the
     * device is missing, too old or not permitted, or its driver is; -ENOMEM. */
    int (*probe)(unsigned index, struct device_facts *facts, struct error *err);

    /* Claims device `index` for values of one type, and an arena of exactly arena_bytes (> 0), zeroed; n_threads (> 0)
     * for the CPU. *out is owned: close it. -ENODEV, -ENOMEM. */
    int (*open)(struct device **out, unsigned index, enum number_type type, size_t arena_bytes, unsigned n_threads,
                struct error *err);
    void (*close)(struct device *dev);
    /* From now on each operation, and on the CPU each piece of a long one, increments *done by __atomic_fetch_add, so
     * that another thread can watch progress. Borrowed until close. */
    void (*count)(struct device *dev, uint64_t *done);
    /* The arena's first byte; 64-byte aligned. */
    void *(*arena)(struct device *dev);

    /* Page-locks host memory, so that the device reads it directly, and writes it if `writable`; until close or unlend.
     * Copies work without it, more slowly. -errno with a sentence that names the limit; the memory is then
     * unchanged. */
    int (*lend)(struct device *dev, const void *host, size_t bytes, bool writable, struct error *err);
    /* Undoes lend; nothing queued may use the memory any more. */
    void (*unlend)(struct device *dev, const void *host);

    /* Copies between host and device memory, on DEVICE_PULL and on DEVICE_PUSH. Both ends are borrowed until done. */
    void (*upload)(struct device *dev, void *dst, const void *host, size_t bytes);
    void (*download)(struct device *dev, void *host, const void *src, size_t bytes);

    /* Returns a mark (> 0, ascending) that is reached when everything queued on `queue` so far is done. */
    uint64_t (*mark)(struct device *dev, enum device_queue queue);
    /* Later work on `queue` waits until this mark of `other` is reached; 0: does not wait. */
    void (*follow)(struct device *dev, enum device_queue queue, enum device_queue other, uint64_t mark);
    /* The host waits for the mark; 0: returns at once. Faults surface here and in sync: -EIO, after which only close is
     * allowed. */
    int (*finish)(struct device *dev, enum device_queue queue, uint64_t mark);
    /* Waits for everything queued. */
    int (*sync)(struct device *dev);
    /* Explains the -EIO of finish or sync; returns -EIO. */
    int (*fault)(struct device *dev, struct error *err);

    /* Lists the algorithms for a product whose results do not depend on the order of execution. */
    void (*propose)(struct device *dev, const struct device_matmul *op, struct products_candidates *out);
    /* From now on products of these classes use these algorithms where they apply; all others use the library's first
     * choice. -ENOTSUP with a sentence for the log: some or all are unknown here, and ignored. */
    int (*choose)(struct device *dev, const struct products *products, struct error *err);

    /* Before the first step: chooses, compiles and loads the implementation of attention for n calls' shapes (> 0;
     * their rows or fewer) and dropout, so that no step has to; forward only if qkv_gradient is NULL. ways: (n), the
     * backward method that each one's scratch was planned for. Waits; overwrites the calls' arrays. *told: a log line
     * that names the implementations and the reasons; empty if there is only one. Attention that was not prepared, has
     * another shape, or has arrays not aligned to 16 bytes uses the backend's own kernels. */
    void (*prepare_attention)(struct device *dev, const struct device_attention *ops, const enum plan_attention *ways,
                              size_t n, char told[DEVICE_TOLD]);
    /* The same for convolutions: n calls (> 0) as they are to come, on any arrays. Overwrites those that they write.
     * convolution: device_facts', if all of a job's workers have it, else 0. A convolution of other sizes than these,
     * or with arrays not aligned to 16 bytes, uses the backend's own kernels. */
    void (*prepare_conv2d)(struct device *dev, const struct device_conv2d *ops, size_t n, uint32_t convolution,
                           char told[DEVICE_TOLD]);

    /* Operations, on DEVICE_COMPUTE: void (*norm)(struct device *dev, const struct device_norm *op), and so on. */
#define DEVICE_MEMBER(name, type) void (*name)(struct device *, const struct type *);
    DEVICE_CALLS(DEVICE_MEMBER)
#undef DEVICE_MEMBER
};

static inline void device_count(uint64_t *done)
{
    __atomic_fetch_add(done, 1, __ATOMIC_RELAXED);
}

/* Element n of values. */
static inline void *device_element(enum number_type type, const void *values, size_t n)
{
    return (char *)values + n * number_bytes(type);
}

/* Values in the space of one fp32 number. */
static inline size_t device_wide(enum number_type type)
{
    return sizeof(float) / number_bytes(type);
}

/* Asserts that no member of the table is NULL. */
void device_check(const struct device_ops *ops);

#endif
