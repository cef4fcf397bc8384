/* The header is a stranger's text without a terminator: everything goes through a cursor, which stops at its end.
 * Blanks and the newline that NumPy pads it with may stand between any two words. */
#include "client/data/npy.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

struct cursor {
    const char *at, *end;
};

static void npy_skip_blanks(struct cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n'))
        c->at++;
}

/* Steps over text, blanks in front of it allowed; false, and nothing moves, if something else is there. */
static bool npy_take(struct cursor *c, const char *text)
{
    const size_t n = strlen(text);

    npy_skip_blanks(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, text, n) != 0)
        return false;
    c->at += n;
    return true;
}

static bool take_number(struct cursor *c, uint64_t *out)
{
    const char *start;

    npy_skip_blanks(c);
    start = c->at;
    for (*out = 0; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
        if (__builtin_mul_overflow(*out, (uint64_t)10, out) ||
            __builtin_add_overflow(*out, (uint64_t)(*c->at - '0'), out))
            return false;
    }
    return c->at > start;
}

static int take_type(struct cursor *c, enum client_integer *out, struct error *err)
{
    static const struct {
        const char *descr;
        enum client_integer type;
    } types[] = {{"'|u1'", CLIENT_U8},
                 {"'<u2'", CLIENT_U16},
                 {"'<u4'", CLIENT_U32},
                 {"'<i4'", CLIENT_I32},
                 {"'<i8'", CLIENT_I64}};

    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (npy_take(c, types[i].descr)) {
            *out = types[i].type;
            return 0;
        }
    }
    return error_set(err, -EINVAL,
                     "the array's type is not one of |u1, <u2, <u4, <i4, <i8: convert it, for instance with "
                     "astype('<u2')");
}

/* "()", "(5,)", "(5, 3)": Python's tuples. A single number without a comma, "(5)", is no tuple, and refused. */
static int take_shape(struct cursor *c, struct client_npy_array *out, struct error *err)
{
    bool whole = npy_take(c, "("), comma = true;

    out->n_sizes = 0;
    while (whole && !npy_take(c, ")")) {
        whole = comma && out->n_sizes < CLIENT_NPY_MOST && take_number(c, &out->sizes[out->n_sizes]);
        comma = npy_take(c, ",");
        out->n_sizes += whole;
    }
    if (whole && (out->n_sizes != 1 || comma))
        return 0;
    return error_set(err, -EINVAL, "not a NumPy header: its shape is none of at most %d dimensions", CLIENT_NPY_MOST);
}

static int take_entry(struct cursor *c, struct client_npy_array *out, unsigned *seen, struct error *err)
{
    enum { DESCR = 1, ORDER = 2, SHAPE = 4 };
    unsigned key = 0;

    if (npy_take(c, "'descr'"))
        key = DESCR;
    else if (npy_take(c, "'fortran_order'"))
        key = ORDER;
    else if (npy_take(c, "'shape'"))
        key = SHAPE;
    if (!key || (*seen & key) || !npy_take(c, ":"))
        return error_set(err, -EINVAL, "not a NumPy header: descr, fortran_order and shape, once each");
    *seen |= key;
    if (key == DESCR)
        return take_type(c, &out->type, err);
    if (key == SHAPE)
        return take_shape(c, out, err);
    out->fortran = npy_take(c, "True");
    if (out->fortran || npy_take(c, "False"))
        return 0;
    return error_set(err, -EINVAL, "not a NumPy header: fortran_order is neither True nor False");
}

static int parse_dictionary(struct cursor c, struct client_npy_array *out, struct error *err)
{
    unsigned seen = 0;

    if (!npy_take(&c, "{"))
        return error_set(err, -EINVAL, "not a NumPy header: no dictionary");
    for (int i = 0; i < 3; i++) {
        int rc = take_entry(&c, out, &seen, err);
        if (rc)
            return rc;
        if (!npy_take(&c, ",") && i < 2)
            return error_set(err, -EINVAL, "not a NumPy header: no comma between its keys");
    }
    if (!npy_take(&c, "}"))
        return error_set(err, -EINVAL, "not a NumPy header: more than descr, fortran_order and shape");
    npy_skip_blanks(&c);
    if (c.at != c.end)
        return error_set(err, -EINVAL, "not a NumPy header: something follows the dictionary");
    return 0;
}

int client_npy_parse_array(struct client_npy_array *out, const uint8_t *head, size_t n, struct error *err)
{
    size_t start, length;

    *out = (struct client_npy_array){0};
    if (n < 10 || memcmp(head, "\x93NUMPY", 6) != 0)
        return error_set(err, -EINVAL, "not a NumPy file");
    if (head[6] == 1) {
        start = 10;
        length = (size_t)head[8] | (size_t)head[9] << 8;
    } else if ((head[6] == 2 || head[6] == 3) && n >= 12) {
        start = 12;
        length = (size_t)head[8] | (size_t)head[9] << 8 | (size_t)head[10] << 16 | (size_t)head[11] << 24;
    } else {
        return error_set(err, -EINVAL, "NumPy format version %u is not 1, 2 or 3", head[6]);
    }
    if (length > n - start)
        return error_set(err, -EINVAL, "its NumPy header of %zu bytes is truncated, or longer than %d", length,
                         CLIENT_NPY_HEAD_BYTES);
    out->offset = start + length;
    return parse_dictionary((struct cursor){(const char *)head + start, (const char *)head + start + length}, out, err);
}

/* In one dimension both orders are the same bytes. */
int client_npy_parse(struct client_npy *out, const uint8_t *head, size_t n, struct error *err)
{
    struct client_npy_array array;
    const int rc = client_npy_parse_array(&array, head, n, err);

    *out = (struct client_npy){0};
    if (rc)
        return rc;
    if (array.type == CLIENT_U8)
        return error_set(err, -EINVAL,
                         "the array's type |u1 is too narrow for token ids: convert it with astype('<u2')");
    if (array.n_sizes != 1)
        return error_set(err, -EINVAL, "the array must have one dimension: save it as array.reshape(-1)");
    *out = (struct client_npy){array.type, array.sizes[0], array.offset};
    return 0;
}
