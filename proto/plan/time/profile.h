/* proto/plan/time/profile.h - rates of a device and its host, from which the planner predicts times.
 *
 * A worker measures them (eps-worker --profile, or eps bench) and stores them in a file. It reads the file at start and
 * sends it to the daemon with its HELLO. The file is JSON:
 *
 *   {"device": "cpu",
 *    "matmul_flops": {"fp32": {"64": F, "512": F, "4096": F, "32768": F}, "bf16": {the same}},
 *    "narrow_flops": {"512": {as matmul_flops}, "1536": {the same}, "3584": {the same}}, on a GPU
 *    "conv2d_flops": {"forward": {"own": {"fp32": F, "bf16": F}}, "input": {the same}, "weights": {...}}, on a GPU
 *                    {"forward": {"own": {the same}, "cudnn": {...}}, ...},
 *    "attention_flops": {"forward": {"fp32": F, "bf16": F}, "backward": {the same}}, on a GPU
 *                       {"plain": {the same}, "tensor": {...}, "dropout": {...}, "cudnn": {...}},
 *    "attention_by_shape": {"forward": {"bf16": {"own": {"128": {"512": F, "4096": F, "32768": F}}}}}, on a GPU
 *                          {"plain": {the same}, ...}: own or shared keys, values of a head, tokens of a row
 *    "attention": "scores",
 *    "link_bytes_per_s": B, "memory_bytes_per_s": B, "norm_bytes_per_s": {"forward": B, "backward": B},
 *    "update_parameters_per_s": P, "host_bytes_per_s": B, "call_s": S, "message_s": S, "n_multiprocessors": N,
 *    "products": {...: proto/operation/products.h}}
 *
 * Products, convolutions and attention are timed on random numbers. Some figures may be absent: of attention_flops and
 * conv2d_flops, all or a path's (then the default profile's fraction of the rate of products), any of
 * attention_by_shape (as the nearest shape that is there, else as in attention_flops), narrow_flops, all or a width's
 * (as the nearest that are there, at last the wide ones), norm_bytes_per_s (the default profile's fraction of the
 * memory's rate), attention ("own"), host_bytes_per_s (no limit; of a GPU's host measured with optimizer and link at
 * work, both ways at once), call_s and message_s (the default profile's), n_multiprocessors (not known), and products
 * (no choice of algorithms). */
#ifndef PROTO_PLAN_TIME_PROFILE_H
#define PROTO_PLAN_TIME_PROFILE_H

#include "proto/base/error.h"
#include "proto/base/number.h"
#include "proto/operation/attention_path.h"
#include "proto/operation/backend.h"
#include "proto/operation/conv2d_path.h"
#include "proto/operation/products.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Types whose rates are measured; fp16 has the rates of one of them (profile_type). */
enum { PROFILE_ROWS = 4, PROFILE_NARROW = 3, PROFILE_WIDE = 4096, PROFILE_TYPES = PRODUCTS_TYPES };

/* Rows (tokens) of the matrix products whose rates are known, and the widths of the narrow ones. */
extern const uint32_t profile_rows[PROFILE_ROWS], profile_narrow[PROFILE_NARROW];

/* Tokens of the rows, and values of the heads, in which attention is measured. */
enum { PROFILE_LENGTHS = 3, PROFILE_HEADS = 3 };
extern const uint32_t profile_lengths[PROFILE_LENGTHS], profile_heads[PROFILE_HEADS];

enum profile_keys { PROFILE_OWN_KEYS, PROFILE_SHARED_KEYS, PROFILE_KEYS }; /* of each query head, or of several */

enum profile_direction { PROFILE_FORWARD, PROFILE_BACKWARD, PROFILE_DIRECTIONS };

struct profile {
    /* Per second, by enum number_type and profile_rows: PROFILE_WIDE wide on a GPU, where narrow ones have rates of
     * their own; 0: none is known. On a CPU all widths have the same. */
    double matmul_flops[PROFILE_TYPES][PROFILE_ROWS];
    double narrow_flops[PROFILE_NARROW][PROFILE_TYPES][PROFILE_ROWS];
    double conv2d_flops[CONV2D_KINDS][CONV2D_PATHS][PROFILE_TYPES]; /* per second; 0: as products with so many pixels */
    /* Per second, with 2 n^2 width operations per row forward and 5 n^2 width backward: causal, heads of 64 or more. By
     * path; 0: as the plain one. A CPU has no other. */
    double attention_flops[PROFILE_DIRECTIONS][ATTENTION_PATHS][PROFILE_TYPES];
    /* The same, where it was measured in this shape of causal rows; 0: it was not. */
    double attention_by_shape[PROFILE_DIRECTIONS][ATTENTION_PATHS][PROFILE_TYPES][PROFILE_KEYS][PROFILE_HEADS]
                             [PROFILE_LENGTHS];
    double link_bytes_per_s;   /* copies from the host to the device; on a GPU while as much is copied to the host */
    double memory_bytes_per_s; /* the device's memory, in memory-bound operations */
    double norm_bytes_per_s[PROFILE_DIRECTIONS]; /* the same in layer and rms norms; 0: as in others */
    double update_parameters_per_s;              /* AdamW in fp32, on the host */
    /* The host memory's rate, shared by concurrent link copies and optimizer, at work together; 0: no limit. */
    double host_bytes_per_s;
    double call_s;            /* launch time in seconds, added to the work of each pass or product */
    double message_s;         /* seconds from a message's sending until its receiver's thread runs, on one host */
    double n_multiprocessors; /* of a GPU; 0: not known, none is taken to be idle */
    /* The way whose figures those of cuDNN are: the device's best, as in struct plan_fit_device, when it was
     * measured. */
    enum plan_attention attention;
    struct products products; /* algorithms behind these rates; version 0: the library's choice */
};

/* The type whose measured rates are those of `type`. CPUs compute fp16 in fp32; tensor cores are as fast as in bf16. */
static inline enum number_type profile_type(const struct plan_backend *backend, enum number_type type)
{
    if (type != NUMBER_FP16)
        return type;
    return backend->takes_turns ? NUMBER_FP32 : NUMBER_BF16;
}

/* The constant profile for an unmeasured device. NULL: no such device. */
const struct profile *profile_default(const char *device);

/* Figures must be from 1 to 1e21 (some may be 0; of a type's products of a narrow width, all or none), and call_s and
 * message_s from 0 to 1; else -EINVAL with a sentence that names the figure. */
int profile_check(const struct profile *profile, struct error *err);

/* Operations per second of products with this many rows, and of this width, the geometric mean of the other two sizes:
 * interpolated by the logarithms, constant beyond the measured ranges. The profile must have been checked; type:
 * profile_type. */
double profile_flops(const struct profile *profile, enum number_type type, double rows, double width);

/* Of a convolution, by a path. pixels: of y, in all rows. */
double profile_conv2d_flops(const struct profile *profile, enum conv2d_kind kind, enum conv2d_path path,
                            enum number_type type, double pixels);

/* Whether the device that was measured has a library of convolutions. */
static inline bool profile_has_conv2d(const struct profile *profile)
{
    return profile->conv2d_flops[CONV2D_FORWARD][CONV2D_LIBRARY][NUMBER_BF16] > 0;
}

/* Bytes per second of what norms move. */
static inline double profile_norm_bytes_per_s(const struct profile *profile, enum profile_direction direction)
{
    return profile->norm_bytes_per_s[direction] > 0 ? profile->norm_bytes_per_s[direction]
                                                    : profile->memory_bytes_per_s;
}

/* As in the file; constant strings. */
const char *profile_path_name(enum attention_path path);
const char *profile_conv2d_path_name(enum conv2d_path path);

/* Operations of attention per second, by a path, in the nearest shape of this path that was measured: of the least
 * heads with as many values, and the same keys, shared or not; else of the other keys; else of heads below and above
 * these. Between two lengths of rows by the logarithm, constant beyond. The path's rate in attention_flops where none
 * was measured. */
double profile_attention_flops(const struct profile *profile, enum profile_direction direction,
                               enum attention_path path, enum number_type type, const struct attention_shape *shape);

/* $XDG_CACHE_HOME/eps/profile-DEVICE.json, else ~/.cache/eps/... where HOME exists: -ENOENT with a sentence if there is
 * neither, -ENAMETOOLONG. */
int profile_path(char *out, size_t cap, const char *device, struct error *err);

/* Sentences begin with the path. -errno (-ENOENT: there is none), -EINVAL, with line and column or the figure's name,
 * if it is not a profile of this device; *out is then untouched. */
int profile_read(struct profile *out, const char *path, const char *device, struct error *err);

/* The profile measured on this machine for this device, else the default; *measured (may be NULL) says which. On an
 * unusable file: -errno with a sentence, and *out is the default. profile_default must know the device. */
int profile_find(struct profile *out, bool *measured, const char *device, struct error *err);

/* Whether profile_write could make the file, before a measurement that takes long. -EINVAL with a sentence if the path
 * exists and is no regular file, as a rename would replace a device, a pipe or a link; else -errno. */
int profile_may_write(const char *path, struct error *err);

/* Makes the parent directories, and replaces the file atomically. The profile was checked. -errno with a sentence. */
int profile_write(const struct profile *profile, const char *path, const char *device, struct error *err);

#endif
