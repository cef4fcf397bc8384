/* proto/operation/call.h - a call of one operation as data: its struct, and what it does.
 *
 * What an operation does is written beside its struct, once (call/X.c): how large each array is, what of it is read and
 * written, and how much is computed. Prices, doubles of a device and tests take it from here. */
#ifndef PROTO_OPERATION_CALL_H
#define PROTO_OPERATION_CALL_H

#include "proto/operation/attention_path.h"
#include "proto/operation/backend.h"
#include "proto/operation/conv2d_path.h"
#include "proto/operation/device.h"

#include <math.h>

#define CALL_KIND(name, type)   CALL_##name,
#define CALL_MEMBER(name, type) struct type name;

enum call_kind { DEVICE_CALLS(CALL_KIND) };

struct call {
    enum call_kind kind;
    union {
        DEVICE_CALLS(CALL_MEMBER)
    };
};

enum call_type { CALL_VALUES, CALL_FP32, CALL_BF16, CALL_FP64, CALL_WORDS, CALL_BYTES };
enum {
    CALL_READ = 1,
    CALL_WRITTEN = 2,
    CALL_OPTIONAL = 4, /* may be NULL */
    CALL_FORWARD = 8,  /* read backward, as the device's own forward pass left it */
    CALL_ANYWHERE = 16 /* in the host's memory or in the device's */
};

/* Elements of an array. n: from the first to the last, gaps between rows included; touched: those read or written. */
struct call_extent {
    size_t n, touched;
};

struct call_array {
    const char *name; /* as in the struct */
    void *member;     /* address of the call's pointer to the array: call_get and call_set */
    enum call_type type;
    unsigned use; /* set of CALL_...; neither CALL_READ nor CALL_WRITTEN: scratch */
    size_t n, touched;
};

/* What sizes, and paths, depend on in the device that a call is for. */
struct call_device {
    const struct plan_backend *backend;
    enum number_type type;
    unsigned n_threads;
    enum plan_attention attention; /* as in struct plan_setting, for the path of attention */
    bool has_conv2d;               /* likewise: its library computes convolutions */
    double n_multiprocessors;      /* of a GPU; 0: not known, and none is taken to be idle */
};

/* What limits how fast a call computes: a rate of the device's (proto/plan/time/profile.h). */
enum call_rate {
    CALL_RATE_NONE,    /* none: moving its arrays takes the time */
    CALL_RATE_PRODUCT, /* products of matrices, at the rate for a number of rows, and for a width */
    CALL_RATE_CONV2D,
    CALL_RATE_ATTENTION,
    CALL_RATE_ATTENTION_BACKWARD,
};

/* How fast it moves its arrays. */
enum call_pass {
    CALL_PASS, /* as the device's memory does */
    CALL_PASS_NORM,
    CALL_PASS_NORM_BACKWARD,
};

enum { CALL_ARRAYS = 22 };

/* What a call does. */
struct call_work {
    struct call_device on;
    struct call_array arrays[CALL_ARRAYS];
    unsigned n_arrays;
    enum call_rate rate;
    double operations;       /* floating point operations at this rate */
    size_t rows;             /* CALL_RATE_PRODUCT: tokens; CALL_RATE_CONV2D: pixels of y */
    enum conv2d_kind conv2d; /* CALL_RATE_CONV2D */
    enum conv2d_path conv2d_path;
    double products; /* CALL_RATE_PRODUCT: how many there are, of so many rows each; 0: one */
    bool in_fp32;    /* CALL_RATE_PRODUCT: at the rate of fp32, whatever type values have */
    double filled;   /* of what is computed at this rate, the share that is operations; 0: all of it */
    size_t n_launches;
    enum call_pass pass;
    /* Attention, by path: its operations; and these as they are priced, more where heads do not fill tensor cores'
     * tiles and where multiprocessors are idle at the end. */
    double by_path[ATTENTION_PATHS], lasting[ATTENTION_PATHS];
    struct attention_shape attention;
};

/* Of a product: the geometric mean of its sizes other than rows. */
static inline double call_width(const struct call_work *work)
{
    return sqrt(work->operations / 2 / (double)work->rows / (work->products > 0 ? work->products : 1));
}

/* Describes a call whose sizes and options are set. Its arrays need not be set, but optional ones that are NULL are
 * left out. Borrows the call. */
void call_describe(struct call_work *out, struct call *call, const struct call_device *on);
void *call_get(const struct call_array *array);
void call_set(const struct call_array *array, const void *at);
size_t call_type_bytes(enum call_type type, enum number_type values);

void call_run(const struct device_ops *ops, struct device *dev, const struct call *call);

/* ---- for an operation's own file ---- */

/* Each describes calls of its operation, for call_describe: out->on is set, and there are no arrays yet. */
#define CALL_DESCRIBE(name, type) void device_##name##_describe(struct call_work *out, struct type *op);
DEVICE_CALLS(CALL_DESCRIBE)

/* Adds an array. One that is read in one extent and written in another is added twice. */
void call_add_array(struct call_work *to, const char *name, void *member, enum call_type type, unsigned use,
                    struct call_extent extent);

static inline struct call_extent call_some(size_t n, size_t touched)
{
    return (struct call_extent){n, touched};
}

static inline struct call_extent call_all(size_t n)
{
    return call_some(n, n);
}

/* (rows, columns), rows `stride` apart. */
static inline struct call_extent call_rows(size_t rows, size_t columns, size_t stride)
{
    return call_some(rows > 0 ? (rows - 1) * stride + columns : 0, rows * columns);
}

/* ---- a table whose operations are calls ---- */

#define CALL_CATCH(name, type)                                                                                         \
    static void call_catch_##name(struct device *dev, const struct type *op)                                           \
    {                                                                                                                  \
        call_hook(dev, &(struct call){.kind = CALL_##name, .name = *op});                                              \
    }
#define CALL_REPLACE(name, type) table->name = call_catch_##name;

/* In the file that includes this, gives operations to the hook, void hook(struct device *dev, struct call *call), as
 * calls that end when it returns: those of a table that has the rows DEVICE_CALLS(CALL_ROW), or all of another table
 * after call_intercept(table), which leaves its other members as they are. */
#define CALL_TABLE(hook)                                                                                               \
    static void (*const call_hook)(struct device *, struct call *) = hook;                                             \
    DEVICE_CALLS(CALL_CATCH)                                                                                           \
    __attribute__((unused)) static void call_intercept(struct device_ops *table)                                       \
    {                                                                                                                  \
        DEVICE_CALLS(CALL_REPLACE)                                                                                     \
    }
#define CALL_ROW(name, type) .name = call_catch_##name,

#endif
