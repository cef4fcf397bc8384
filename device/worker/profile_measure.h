/* device/worker/profile_measure.h - for the files of device/worker/profile.h: a device that is measured, and clocks. */
#ifndef DEVICE_WORKER_PROFILE_MEASURE_H
#define DEVICE_WORKER_PROFILE_MEASURE_H

#include "proto/operation/backend.h"
#include "proto/operation/device.h"
#include "proto/plan/time/profile.h"

enum {
    MEASURE_HOST_WIDTH = 512,            /* for products on the CPU: rows x width x width */
    MEASURE_DEVICE_WIDTH = PROFILE_WIDE, /* on other devices, which are slow with narrow ones */
    MEASURE_NOISE = 1 << 20,             /* random numbers */
    MEASURE_ELEMENTS = 16 << 20,         /* of the streamed arrays: beyond any cache */
};

/* Causal rows; width: of all query heads. */
struct measure_attention {
    size_t n_rows, n_tokens, n_heads, n_kv_heads, width;
};

struct measured {
    const struct device_ops *ops;
    struct device *dev;
    enum number_type type;
    unsigned index, n_threads;
    double n_multiprocessors; /* as in struct profile */
    bool of_host;             /* the device is a CPU */
    double (*now)(void);
    double round_s; /* seconds of a round: short calls are repeated */
    double call_s;  /* of a launch, once it is known */
    uint32_t rows, width;
    struct device_matmul product;
    enum conv2d_kind conv2d;
    uint32_t convolution;     /* the device's library of these: device_facts */
    enum attention_path path; /* of attention */
    struct measure_attention attention;
    enum plan_attention way; /* the device's */
    char *arena;
    void *noise;       /* (MEASURE_NOISE) in the device's type */
    float *host;       /* (5, MEASURE_ELEMENTS): an optimizer's weights, moments and gradient; what is downloaded */
    unsigned n_copies; /* each way, beside a slice of an update */
};

typedef void measure_call(const struct measured *b);

/* clock: in seconds, read while the device is idle; NULL: this machine's. Undo: measure_end. -ENOMEM with a
 * sentence. */
int measure_begin(struct measured *out, const struct device_ops *ops, unsigned index, unsigned n_threads,
                  double (*clock)(void), struct error *err);
void measure_end(struct measured *b);

/* Seconds per call in a round of at least so many seconds; *rc is the device's. */
double measure_round(const struct measured *b, measure_call *call, double seconds, int *rc);

/* Seconds per call. On the host the least of several rounds, as other load only makes it worse; on a GPU, which is
 * ours, the median, as it goes on at this speed. */
double measure_time(const struct measured *b, measure_call *call, int *rc);

/* Sorts them, at least one. */
double measure_median(double *values, size_t n);

/* Fills the arena's first n elements with random numbers. */
int measure_fill(const struct measured *b, size_t n);

int measure_open(struct measured *b, enum number_type type, size_t bytes, struct error *err);
void measure_close(struct measured *b);

/* profile_products.c: the fastest algorithms of each class, and rates; the arena has measure_products_bytes. */
int measure_choose(struct products *out, struct measured *b, enum number_type type, struct error *err);
size_t measure_products_bytes(const struct measured *b, enum number_type type);
int measure_products(struct profile *out, struct measured *b);

/* profile_messages.c: message_s, on this host. Makes three threads, and a socket in a directory of its own, in
 * $XDG_RUNTIME_DIR or /tmp. Where these cannot be had, the default profile's, and a line of the log. */
void measure_messages(struct profile *out, const struct measured *b);

/* Without the launches, unless these are most of it. */
double measure_computing(double seconds, double launches);

/* profile_attention.c: the arena has measure_attention_bytes. Refills what it reads of it with random numbers. */
size_t measure_attention_bytes(const struct measured *b);
int measure_attention(struct profile *out, struct measured *b);

/* profile_operations.c: what is no product; the arena has measure_operations_bytes. */
size_t measure_operations_bytes(const struct measured *b, enum number_type type);
int measure_operations(struct profile *out, struct measured *b);

#endif
