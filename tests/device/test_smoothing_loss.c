/* Label smoothing against PyTorch in float64 (tests/fixtures/smoothing.json, made by tests/oracle/make_smoothing.py):
 * losses of rows, and the gradient of their mean, of a vocabulary in one chunk and in two. */
#include "tests/kit/device/operation.h"
#include "tests/kit/fixtures/fixture.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <string.h>

SUITE_LABELS(on_cuda)

SUITE_FIXTURE(mirror_forget, NULL)

enum { CASES = 4, GAP = 3 /* that pads a row */ };

/* What PyTorch had, and the first chunk's size; labels that are ignored are UINT32_MAX. */
struct smoothed {
    size_t m, n, cut;
    float smoothing, scale;
    uint32_t *labels;          /* (m) */
    float *logits;             /* (m, n) */
    double *losses, *gradient; /* (m); (m, n) */
};

static double *doubles(const json_t *numbers, size_t n)
{
    double *out = operation_zeros(n);

    ck_assert_uint_eq(json_array_size(numbers), n);
    for (size_t i = 0; i < n; i++)
        out[i] = json_number_value(json_array_get(numbers, i));
    return out;
}

static struct smoothed read_case(size_t i, bool cut)
{
    char path[512];

    snprintf(path, sizeof path, "%s/fixtures/smoothing.json", fixture_tests_dir());
    json_t *file = json_load_file(path, 0, NULL), *of = json_array_get(file, i);
    const size_t m = json_array_size(json_object_get(of, "labels")),
                 n = (size_t)json_integer_value(json_object_get(of, "n"));
    struct smoothed c = {.m = m, .n = n, .cut = cut ? n / 2 : n};
    size_t n_counted = 0;

    ck_assert_msg(json_array_size(file) == CASES, "open %s: not %d cases", path, CASES);
    c.smoothing = (float)json_number_value(json_object_get(of, "smoothing"));
    const double *labels = doubles(json_object_get(of, "labels"), m),
                 *logits = doubles(json_object_get(of, "logits"), m * n);
    c.losses = doubles(json_object_get(of, "losses"), m), c.gradient = doubles(json_object_get(of, "gradient"), m * n);
    c.labels = mirror_array(m, sizeof *c.labels), c.logits = mirror_host_array(m * n, sizeof *c.logits);
    for (size_t k = 0; k < m; k++) {
        c.labels[k] = labels[k] < 0 ? UINT32_MAX : (uint32_t)labels[k];
        n_counted += labels[k] >= 0;
    }
    for (size_t k = 0; k < m * n; k++)
        c.logits[k] = (float)(logits[k] / 64);
    c.scale = 1 / (float)n_counted;
    json_decref(file);
    return c;
}

/* The vocabulary's part from `first` on, in memory of the device's; what pads its rows counts for nothing. */
static struct device_cross_entropy chunk_of(struct mirror *at, const struct smoothed *c, size_t first, float *running)
{
    const size_t n = (first ? c->n : c->cut) - first, stride = n + GAP;
    float *logits = mirror_host_array(c->m * stride, sizeof *logits),
          *there = mirror_scratch(at, c->m * stride * sizeof *there);

    for (size_t i = 0; i < c->m; i++)
        memcpy(logits + i * stride, c->logits + i * c->n + first, n * sizeof *logits);
    mirror_put(at, there, logits, c->m * stride * sizeof *logits);
    return (struct device_cross_entropy){.m = c->m,
                                         .n = n,
                                         .logits_stride = stride,
                                         .first = (uint32_t)first,
                                         .start = first == 0,
                                         .logits = there,
                                         .labels = mirror_of(at, c->labels),
                                         .running = running,
                                         .scale = c->scale,
                                         .smoothing = c->smoothing,
                                         .n_all = c->n};
}

/* out[0]: losses; out[1]: the gradient (m, n). */
static void run(struct mirror *at, void *const out[], const void *context)
{
    const struct smoothed *c = context;
    float *const running = mirror_scratch(at, 3 * c->m * sizeof *running);
    const size_t element = number_bytes(at->type);
    struct device_cross_entropy chunks[2];
    unsigned n_chunks = 0;

    for (size_t first = 0; first < c->n; first += chunks[n_chunks++].n) {
        chunks[n_chunks] = chunk_of(at, c, first, running);
        at->ops->log_sum_exp(at->dev, &chunks[n_chunks]);
    }
    at->ops->loss(at->dev, &(struct device_loss){c->m, out[0], running, mirror_of(at, c->labels)});
    for (unsigned k = 0; k < n_chunks; k++) {
        const size_t row = chunks[k].logits_stride * sizeof(float);
        char *const taken = mirror_host_array(c->m, row);
        at->ops->cross_entropy_gradient(at->dev, &chunks[k]);
        mirror_take(at, taken, chunks[k].logits, c->m * row);
        for (size_t i = 0; i < c->m; i++)
            mirror_put(at, (char *)out[1] + (i * c->n + chunks[k].first) * element, taken + i * row,
                       chunks[k].n * element);
    }
}

/* In units of 2^-24: of a sum of up to 13 products with logits, which are up to 6 and more than half of the largest
 * loss, and of an exponential (test_softmax), in fp32; on the CPU half as many. */
TEST_EACH(a_smoothed_loss_and_its_gradient_are_pytorchs, 2 * NUMBER_TYPES * CASES)
{
    const struct smoothed c = read_case((size_t)_i / 2 / NUMBER_TYPES, _i % 2);
    const double unit = (backend_get()->cuda ? 2 : 1) * 0x1p-24;

    operation_check(&(struct operation){.type = (enum number_type)(_i / 2 % NUMBER_TYPES),
                                        .run = run,
                                        .context = &c,
                                        .parts = {{"losses", c.m, c.losses, 8 * unit, NULL, CALL_FP64},
                                                  {"gradient", c.m * c.n, c.gradient, 4 * unit, NULL, CALL_VALUES}}});
}
