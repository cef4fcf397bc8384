/* proto/operation/kind/batch_norm.h - y = batch norm(x; weight, bias) over all elements of a part, in three operations.
 *
 * A layer gives each row's moments of x. What finishes it joins them to the part's statistics, and a layer above
 * normalises x with these (proto/operation/call/batch_norm.h).
 *
 * Or over ghost batches (Hoffer, Hubara & Soudry, arXiv:1705.08741): runs of a fixed number of rows, which a part, and
 * each microbatch, has whole. Then one layer has all three operations. */
#ifndef PROTO_OPERATION_KIND_BATCH_NORM_H
#define PROTO_OPERATION_KIND_BATCH_NORM_H

#include <stdbool.h>
#include <stdint.h>

struct program;

struct program_row_moments_options {
    uint32_t n; /* columns of x */
};

struct program_join_moments_options {
    uint32_t n;      /* columns of x */
    uint32_t domain; /* domain of x */
    uint32_t rows;   /* of a ghost batch; 0: those of the part */
    float epsilon;
};

struct program_batch_norm_options {
    uint32_t n;    /* columns of x */
    uint32_t rows; /* of a ghost batch; 0: those of the part */
    bool runs;     /* it has running statistics */
    float epsilon; /* of these */
};

/* Returns the moments: of domain ROW, twice as many columns as x. */
int program_row_moments(struct program *p, int x);

/* A part's statistics have so many columns for each of x: mean and 1/deviation; and two in which their gradient has
 * what the rounding of these two's lost (struct device_batch_norm). */
enum { PROGRAM_STATISTICS = 4 };

/* moments: of each row of the part, with no other reader. Returns the statistics, of domain PART. */
int program_join_moments(struct program *p, int moments, uint32_t domain, float epsilon);

/* Joins moments as program_join_moments does, over ghost batches of this many rows. Returns statistics of domain ROW:
 * those of a ghost batch are its first row's. They serve training alone. */
int program_join_ghosts(struct program *p, int moments, uint32_t domain, uint32_t rows, float epsilon);

/* statistics: of a part, or of ghost batches, whose rows join_ghosts was given. stem: of the tensors' names, "bn" for
 * "bn.weight", one in a fresh model, and "bn.bias", zero. */
int program_batch_norm(struct program *p, int x, int statistics, const char *stem);

/* A batch norm with running statistics, "bn.running_mean", zero, and "bn.running_var", one: once a step they move
 * towards the part's, by PROGRAM_RUNNING_RATE of the difference (struct device_running), of several parts, or ghost
 * batches, towards their mean; an evaluation normalises with them. */
#define PROGRAM_RUNNING_RATE 0.1
int program_running_batch_norm(struct program *p, int x, int statistics, const char *stem, float epsilon);

#endif
