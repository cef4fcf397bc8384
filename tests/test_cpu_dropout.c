/* Dropout against one Philox word at a time. */
#include "tests/operation.h"
#include "tests/reference.h"
#include "tests/run.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static const struct shape {
    size_t n_rows, n_tokens, n;
    float p;
} shapes[] = {{1, 1, 1, 0.5f}, {2, 3, 7, 0.5f}, {3, 5, 130, 0.1f}, {2, 2, 384, 0.9f}, {2, 3, 50, 0}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, FIRST_ROW = 9 };

enum way { APART, ONTO_X, ONTO_H, WITHOUT_X, BACKWARD, BACKWARD_IN_PLACE, WAYS };

struct dropout {
    const struct shape *shape;
    struct device_dropout dropout;
    void *x, *h;
    enum way way;
    enum number_type type;
};

static void run_dropout(struct device *dev, void *const results[], const void *context)
{
    const struct dropout *t = context;
    const struct shape *s = t->shape;
    const size_t bytes = s->n_rows * s->n_tokens * s->n * number_bytes(t->type);
    const void *x = t->x, *h = t->h;
    void *out = results[0];

    if (t->way == ONTO_X)
        x = memcpy(out, x, bytes);
    if (t->way == ONTO_H || t->way == BACKWARD_IN_PLACE)
        h = memcpy(out, h, bytes);
    if (t->way == BACKWARD || t->way == BACKWARD_IN_PLACE)
        device_cpu.dropout_backward(dev, out, h, s->n_rows, s->n_tokens, s->n, &t->dropout);
    else
        device_cpu.dropout_add(dev, out, t->way == WITHOUT_X ? NULL : x, h, s->n_rows, s->n_tokens, s->n, &t->dropout);
}

/* One product, one sum: half a unit in the last place each. Kept and dropped elements differ by far more. The factor
 * 1/(1-p) is fp32. */
START_TEST(dropout_keeps_what_its_words_say)
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
    operation_check(&(struct operation){
        .type = type, .run = run_dropout, .context = &t, .parts = {{"y", n, want, 0x1p-23, NULL, false}}});
    free(t.x), free(t.h), free(want);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("dropout");

    tcase_add_loop_test(tcase, dropout_keeps_what_its_words_say, 0, WAYS * NUMBER_TYPES * N_SHAPES);
    return run_tests(tcase);
}
