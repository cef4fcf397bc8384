/* A choice is read whole or not at all. Of one that is damaged no class is used, as workers with some of its algorithms
 * would sum in another order than those with all.
 *
 * Rows are tokens in every kind. In the product for weights these are summed over, so there they are its k, and m is a
 * width. Kinds are tried in this order because no product transposes both operands. */
#include "proto/operation/products.h"

#include "proto/base/json.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

const uint32_t products_rows[PRODUCTS_ROWS] = {512, 4096};

static const char *const kinds[PRODUCTS_KINDS] = {"forward", "backward", "weights"};

int products_class(enum number_type type, enum products_kind kind, uint32_t rows_index)
{
    return (int)(((uint32_t)type * PRODUCTS_KINDS + kind) * PRODUCTS_ROWS + rows_index);
}

int products_find(enum number_type type, bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k)
{
    const size_t rows = transpose_a ? k : m, width = transpose_a ? m : k;
    const size_t middle = 1448; /* the root of 512 * 4096 */

    if ((transpose_a && transpose_b) || rows < PRODUCTS_LEAST_ROWS || width < PRODUCTS_LEAST_WIDTH ||
        n < PRODUCTS_LEAST_WIDTH)
        return -1;
    return products_class(type,
                          transpose_a   ? PRODUCTS_WEIGHTS
                          : transpose_b ? PRODUCTS_BACKWARD
                                        : PRODUCTS_FORWARD,
                          rows > middle);
}

static json_t *algorithm_to_json(const struct products_algorithm *algorithm)
{
    json_t *config = json_array();

    for (int i = 0; i < PRODUCTS_CONFIG; i++)
        json_append(&config, json_integer(algorithm->config[i]));
    return config;
}

static json_t *kind_to_json(const struct products *products, enum number_type type, enum products_kind kind)
{
    json_t *by_rows = json_object();

    for (uint32_t i = 0; i < PRODUCTS_ROWS; i++) {
        const struct products_algorithm *algorithm = &products->of[products_class(type, kind, i)];
        char rows[12];
        snprintf(rows, sizeof rows, "%u", products_rows[i]);
        if (algorithm->known)
            json_put(&by_rows, rows, algorithm_to_json(algorithm));
    }
    return by_rows;
}

json_t *products_to_json(const struct products *products)
{
    json_t *root = json_pack("{s:I}", "cublaslt", (json_int_t)products->version);

    for (int type = 0; type < PRODUCTS_TYPES; type++) {
        json_t *by_kind = json_object();
        for (int kind = 0; kind < PRODUCTS_KINDS; kind++)
            json_put(&by_kind, kinds[kind], kind_to_json(products, (enum number_type)type, (enum products_kind)kind));
        json_put(&root, number_name((enum number_type)type), by_kind);
    }
    return root;
}

static int read_algorithm(struct products_algorithm *out, json_t *config, struct error *err)
{
    if (!config)
        return 0;
    if (json_array_size(config) != PRODUCTS_CONFIG)
        return error_set(err, -EINVAL, "an algorithm is not %d numbers", PRODUCTS_CONFIG);
    for (size_t i = 0; i < PRODUCTS_CONFIG; i++) {
        const json_t *number = json_array_get(config, i);
        const json_int_t value = json_integer_value(number);
        if (!json_is_integer(number) || value < 0 || value > UINT32_MAX)
            return error_set(err, -EINVAL, "number %zu of an algorithm is none from 0 to 2^32 - 1", i);
        out->config[i] = (uint32_t)value;
    }
    out->known = true;
    return 0;
}

static int read_products(struct products *out, json_t *object, struct error *err)
{
    const json_int_t version = json_integer_value(json_object_get(object, "cublaslt"));
    int rc = 0;

    if (version <= 0)
        return error_set(err, -EINVAL, "products are of no version of cuBLASLt");
    out->version = (uint64_t)version;
    for (int class = 0; !rc && class < PRODUCTS_CLASSES; class ++) {
        const int type = class / (PRODUCTS_KINDS * PRODUCTS_ROWS), kind = class / PRODUCTS_ROWS % PRODUCTS_KINDS;
        json_t *by_kind = json_object_get(object, number_name((enum number_type)type));
        char rows[12];
        snprintf(rows, sizeof rows, "%u", products_rows[class % PRODUCTS_ROWS]);
        rc = read_algorithm(&out->of[class], json_object_get(json_object_get(by_kind, kinds[kind]), rows), err);
    }
    return rc;
}

int products_from_json(struct products *out, json_t *object, struct error *err)
{
    *out = (struct products){0};
    const int rc = object ? read_products(out, object, err) : 0;

    if (rc)
        *out = (struct products){0};
    return rc;
}
