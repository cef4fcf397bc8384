/* tests/kit/device/call.h - a call of one operation of proto/operation/device.h, as data: its struct, and the arrays that it names.
 *
 * What tests and doubles know of an operation's arguments stands here once: how large each array is, and which of them it
 * reads and writes. Written from proto/operation/device.h. */
#ifndef TESTS_KIT_DEVICE_CALL_H
#define TESTS_KIT_DEVICE_CALL_H

#include "proto/operation/device.h"
#include "proto/operation/backend.h"

/* Each operation, and the struct that it takes. */
#define CALL_STRUCTS(X)                                                                                                \
    X(zero, device_zero)                                                                                               \
    X(round_bf16, device_round_bf16)                                                                                   \
    X(matmul, device_matmul)                                                                                           \
    X(activate, device_activate)                                                                                       \
    X(activate_backward, device_activate)                                                                              \
    X(add, device_add)                                                                                                 \
    X(reduce_rows, device_reduce_rows)                                                                                 \
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
    X(soft_cap, device_soft_cap)                                                                                       \
    X(log_sum_exp, device_cross_entropy)                                                                               \
    X(loss, device_loss)                                                                                               \
    X(cross_entropy_gradient, device_cross_entropy)                                                                    \
    X(squared_error, device_squared_error)                                                                             \
    X(squared_error_gradient, device_squared_error)

#define CALL_KIND(name, type)   CALL_##name,
#define CALL_MEMBER(name, type) struct type name;

enum call_kind { CALL_STRUCTS(CALL_KIND) };

struct call {
    enum call_kind kind;
    union {
        CALL_STRUCTS(CALL_MEMBER)
    };
};

enum call_type { CALL_VALUES, CALL_FP32, CALL_FP64, CALL_WORDS, CALL_BYTES };
enum {
    CALL_READ = 1,
    CALL_WRITTEN = 2,
    CALL_OPTIONAL = 4, /* may be NULL */
    CALL_FORWARD = 8,  /* read backward, as the device's own forward pass left it */
    CALL_ANYWHERE = 16 /* in the host's memory or in the device's */
};

struct call_array {
    const char *name; /* as in the struct */
    void *member;     /* of the call, a pointer: call_get and call_set */
    enum call_type type;
    unsigned use;
    size_t n;       /* elements from the first to the last, with the gaps between rows */
    size_t touched; /* of these */
};

enum { CALL_ARRAYS = 7 };
struct call_arrays {
    struct call_array a[CALL_ARRAYS];
    unsigned n;
};

/* The arrays of a call whose sizes and options are set. Arrays are none of its business yet, but optional ones are left out
 * where they are NULL. What is neither read nor written is scratch. */
void call_arrays(struct call_arrays *out, struct call *call, const struct plan_backend *plan, enum number_type type,
                 unsigned n_threads);
void *call_get(const struct call_array *array);
void call_set(const struct call_array *array, const void *at);
size_t call_type_bytes(enum call_type type, enum number_type values);

void call_run(const struct device_ops *ops, struct device *dev, const struct call *call);

/* From now on every operation of *table, whose other members stay as they are, is given to the hook, as a call that it may
 * keep. One table at a time. */
void call_intercept(struct device_ops *table, void (*hook)(struct device *dev, struct call *call));

#endif
