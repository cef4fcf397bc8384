/* proto/plan/profile.h - what a device and its host manage, in figures that the planner predicts times from.
 *
 * A worker measures its own (eps-worker --profile, or eps bench) and keeps them in a file, which it reads when
 * it starts and tells the daemon with its HELLO. The file is JSON, by name, each figure once:
 *
 *   {"device": "cpu",
 *    "matmul_flops": {"fp32": {"64": F, "512": F, "4096": F, "32768": F}, "bf16": {the same}},
 *    "attention_flops": {"forward": {"fp32": F, "bf16": F}, "backward": {the same}},
 *    "link_bytes_per_s": B, "memory_bytes_per_s": B, "update_parameters_per_s": P,
 *    "host_bytes_per_s": B, "products": {...: proto/plan/products.h}}
 *
 * Products and attention are timed on random numbers. Three figures may be missing: attention_flops, which is then the
 * default's share of the rate of products; host_bytes_per_s, which nothing measures yet; and products, where a library has
 * nothing to choose from. */
#ifndef PROTO_PLAN_PROFILE_H
#define PROTO_PLAN_PROFILE_H

#include "proto/base/error.h"
#include "proto/base/number.h"
#include "proto/plan/products.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PROFILE_ROWS = 4 };

/* Rows (tokens) of the matrix products whose rates are known. */
extern const uint32_t profile_rows[PROFILE_ROWS];

enum profile_attention { PROFILE_FORWARD, PROFILE_BACKWARD, PROFILE_DIRECTIONS };

struct profile {
    double matmul_flops[NUMBER_TYPES][PROFILE_ROWS]; /* a second, by enum number_type and profile_rows */
    /* A second, of 2 n^2 width a row forward and 5 n^2 width backward: causal, heads of 64 or more. */
    double attention_flops[PROFILE_DIRECTIONS][NUMBER_TYPES];
    double link_bytes_per_s;        /* copies from the host to the device */
    double memory_bytes_per_s;      /* the device's memory, of operations that read and write more than they compute */
    double update_parameters_per_s; /* AdamW in fp32, on the host */
    /* The host's memory, which copies over the link and the optimizer share while both are under way; 0: as if each had
     * its own. */
    double host_bytes_per_s;
    struct products products; /* algorithms that these rates are of; version 0: as the library chooses */
};

/* For a device nobody has measured; a constant. NULL: no such device. */
const struct profile *profile_default(const char *device);

/* Every figure is from 1 to 1e21, host_bytes_per_s may be 0; else -EINVAL with a sentence that names the one. */
int profile_check(const struct profile *profile, struct error *err);

/* Products of this many rows, a second: between those measured by the logarithm of the rows, beyond them as the
 * nearest. The profile is checked. */
double profile_flops(const struct profile *profile, enum number_type type, double rows);

/* $XDG_CACHE_HOME/eps/profile-DEVICE.json, else ~/.cache/eps/...: -ENOENT with a sentence where neither is known,
 * -ENAMETOOLONG. */
int profile_path(char *out, size_t cap, const char *device, struct error *err);

/* Sentences begin with the path. -errno (-ENOENT: there is none), -EINVAL, with line and column or the figure's name,
 * if it is not a profile of this device; *out is then untouched. */
int profile_read(struct profile *out, const char *path, const char *device, struct error *err);

/* The one measured on this machine for this device, else the default. *measured (may be NULL) says which. A file that
 * is there and cannot be used is -errno with a sentence, and *out is the default. The device exists. */
int profile_find(struct profile *out, bool *measured, const char *device, struct error *err);

/* -EINVAL with a sentence where something stands that is not a file: a rename would put one in the place of a device, a
 * pipe or a link. To be asked before a measurement, too, which takes long. */
int profile_may_write(const char *path, struct error *err);

/* Makes the directories above, and replaces a file at once or not at all. The profile is checked. -errno with a
 * sentence. */
int profile_write(const struct profile *profile, const char *path, const char *device, struct error *err);

#endif
