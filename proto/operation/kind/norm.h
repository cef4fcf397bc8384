/* proto/operation/kind/norm.h - y, statistics = norm(x; weight, bias): rows normalised. */
#ifndef PROTO_OPERATION_KIND_NORM_H
#define PROTO_OPERATION_KIND_NORM_H

#include <stdbool.h>
#include <stdint.h>

struct program;
struct program_operation;
struct operation_run;

struct program_norm_options {
    float epsilon;
    bool rms;         /* root mean square, else layer norm */
    bool bare;        /* neither weight nor bias */
    bool bias;        /* zero in a fresh model */
    uint32_t n_heads; /* runs of columns that are normed each by itself, with the same weight; 0: 1 */
    bool offset;      /* the factor is 1 + weight, and the weight zero in a fresh model; else weight, and one */
};

/* stem: of the tensors' names, "ln_1" for "ln_1.weight" and "ln_1.bias". */
int program_norm(struct program *p, int x, const char *stem, const struct program_norm_options *norm);

/* The call of one, forward, without arrays of values and statistics. */
struct device_norm norm_call(const struct operation_run *r, const struct program_operation *op);

#endif
