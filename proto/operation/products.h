/* proto/operation/products.h - the library's fastest algorithm for each class of matrix products, as timed.
 *
 * cuBLASLt proposes several for a product, and its first is not always the fastest. eps bench --profile times them. The
 * profile stores the fastest of each class as the library's configuration numbers, which are valid only for the stored
 * version of the library. The algorithm may change the order of a sum. So the daemon sends one choice to all workers of
 * a job, and checkpoints store it: a resumed run keeps it, whatever has been measured since.
 *
 * In JSON, in a profile as in a checkpoint's options; classes that were not timed are absent:
 *
 *   {"cublaslt": VERSION, "bf16": {"forward": {"512": [9 numbers], "4096": [...]}, "backward": ..., "weights": ...},
 *    "fp32": ...} */
#ifndef PROTO_OPERATION_PRODUCTS_H
#define PROTO_OPERATION_PRODUCTS_H

#include "proto/base/error.h"
#include "proto/base/number.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PRODUCTS_CONFIG =
        9, /* cublasLtMatmulAlgoConfigAttributes_t 0 to 8: id, tile, split-k, reduction scheme, swizzling, custom
                         * option, stages, inner shape, cluster shape */
    PRODUCTS_ROWS = 2,
    PRODUCTS_LEAST_ROWS = 256, /* of tokens, and of the other sizes: smaller products use the library's first choice */
    PRODUCTS_LEAST_WIDTH = 2048,
    PRODUCTS_CANDIDATES = 16,
};

enum products_kind {
    PRODUCTS_FORWARD,  /* a b */
    PRODUCTS_BACKWARD, /* a b^T */
    PRODUCTS_WEIGHTS,  /* a^T b, summed over rows */
    PRODUCTS_KINDS
};

/* Types whose products a library computes: fp32 and bf16. */
enum { PRODUCTS_TYPES = NUMBER_BF16 + 1, PRODUCTS_CLASSES = PRODUCTS_TYPES * PRODUCTS_KINDS * PRODUCTS_ROWS };

/* Rows at which classes are timed. A product belongs to the nearest, by logarithm. */
extern const uint32_t products_rows[PRODUCTS_ROWS];

struct json_t;

struct products_algorithm {
    bool known;
    uint32_t config[PRODUCTS_CONFIG];
};

struct products {
    uint64_t version; /* version of the library; 0: no choice */
    struct products_algorithm of[PRODUCTS_CLASSES];
};

struct products_candidates {
    uint64_t version;
    unsigned n; /* the library's first choice first; 0: there is nothing to choose */
    struct products_algorithm of[PRODUCTS_CANDIDATES];
};

/* products_class: the class with these properties. products_find: the class of a product (m, k) by (k, n); -1: none. */
int products_class(enum number_type type, enum products_kind kind, uint32_t rows_index);
int products_find(enum number_type type, bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k);

/* Owned. NULL: no memory. The version must not be 0. */
struct json_t *products_to_json(const struct products *products);

/* object NULL: no choice. -EINVAL with a sentence, and no choice. */
int products_from_json(struct products *out, struct json_t *object, struct error *err);

#endif
