/* Dropout against one Philox word at a time. */
#include "tests/kit/device/operation.h"
#include "tests/kit/device/reference.h"
#include "tests/kit/test.h"

SUITE_LABELS(on_cuda)

static const struct shape {
    size_t n_rows, n_tokens, n;
    float p;
} shapes[] = {{1, 1, 1, 0.5f}, {2, 3, 7, 0.5f}, {3, 5, 130, 0.1f}, {2, 2, 384, 0.9f}, {2, 3, 50, 0}, {1, 9, 80, 0.3f}};
enum { N_SHAPES = COUNT(shapes) };

static const uint64_t FIRST_ROW = (UINT64_C(1) << 33) + 9; /* its upper half is of the counter too */

enum way { APART, ONTO_X, ONTO_H, WITHOUT_X, WITHOUT_X_IN_PLACE, WAYS };

struct dropout {
    const struct shape *shape;
    struct device_dropout dropout;
    void *x, *h;
    enum way way;
    enum number_type type;
};

static const void *held_by(const struct dropout *t)
{
    if (t->way == ONTO_X)
        return t->x;
    return t->way == ONTO_H || t->way == WITHOUT_X_IN_PLACE ? t->h : NULL;
}

static void run_dropout(struct mirror *at, void *const out[], const void *context)
{
    const struct dropout *t = context;
    const struct shape *s = t->shape;
    const void *x = t->x == held_by(t) ? out[0] : mirror_of(at, t->x);
    const void *h = t->h == held_by(t) ? out[0] : mirror_of(at, t->h);
    const struct device_dropout_add op = {.n_rows = s->n_rows,
                                          .n_tokens = s->n_tokens,
                                          .n = s->n,
                                          .x = t->way == WITHOUT_X || t->way == WITHOUT_X_IN_PLACE ? NULL : x,
                                          .h = h,
                                          .y = out[0],
                                          .dropout = t->dropout};

    at->ops->dropout_add(at->dev, &op);
}

SUITE_FIXTURE(mirror_forget, NULL)

/* One product, one sum: half a unit in the last place each. Kept and dropped elements differ by far more. The factor
 * 1/(1-p) is fp32. */
TEST_EACH(dropout_keeps_what_its_words_say, WAYS *NUMBER_TYPES *N_SHAPES)
{
    const struct shape *s = &shapes[_i / (WAYS * NUMBER_TYPES)];
    const enum number_type type = (enum number_type)(_i / WAYS % NUMBER_TYPES);
    const struct random_key key = {{3, 4}};
    const size_t n = s->n_rows * s->n_tokens * s->n, row = s->n_tokens * s->n;
    struct dropout t = {
        s,   {s->p, key, FIRST_ROW}, operation_values(type, n, 1), operation_values(type, n, 2), (enum way)(_i % WAYS),
        type};
    double *want = operation_zeros(n);

    for (size_t i = 0; i < n; i++)
        want[i] = (double)operation_get(type, t.h, i) * reference_dropout(s->p, key, FIRST_ROW + i / row, i % row) +
                  (t.way <= ONTO_H ? (double)operation_get(type, t.x, i) : 0);
    operation_check(&(struct operation){.type = type,
                                        .run = run_dropout,
                                        .context = &t,
                                        .is_elementwise = true,
                                        .parts = {{"y", n, want, 0x1p-23, held_by(&t), OPERATION_VALUES}}});
}
