/* Times calls on a device, and fills its arena. */
#include "device/worker/profile_measure.h"

#include "proto/base/random.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

enum {
    ROUND_MS = 10,
    ROUNDS = 5,
    MOST_QUEUED = 256,    /* calls between waits, which take time, too */
    MOST_ROUNDS_MS = 400, /* no further round begins after that, unless rounds are longer */
};

static double profile_measure_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int measure_begin(struct measured *out, const struct device_ops *ops, unsigned index, unsigned n_threads,
                  double (*clock)(void), struct error *err)
{
    const bool of_host = plan_backend_find(ops->name)->takes_turns;

    *out = (struct measured){.ops = ops,
                             .index = index,
                             .n_threads = n_threads,
                             .of_host = of_host,
                             .width = of_host ? MEASURE_HOST_WIDTH : MEASURE_DEVICE_WIDTH,
                             .now = clock ? clock : profile_measure_now,
                             .round_s = ROUND_MS / 1e3,
                             .noise = malloc(MEASURE_NOISE * sizeof(float))};
    return out->noise ? 0 : error_set(err, -ENOMEM, "no memory to measure with: 4 MiB are needed");
}

void measure_end(struct measured *b)
{
    free(b->noise);
    b->noise = NULL;
}

double measure_round(const struct measured *b, measure_call *call, double seconds, int *rc)
{
    const double since = b->now();
    unsigned n = 0;

    for (unsigned most = 1; !*rc && b->now() - since < seconds; most *= 2) {
        for (unsigned i = 0; i < most && i < MOST_QUEUED; i++, n++)
            call(b);
        *rc = b->dev ? b->ops->sync(b->dev) : 0;
    }
    return (b->now() - since) / n;
}

static int profile_measure_compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double measure_median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, profile_measure_compare);
    return values[n / 2];
}

double measure_time(const struct measured *b, measure_call *call, int *rc)
{
    const double begin = b->now();
    double rounds[ROUNDS];
    int n = 0;

    call(b); /* touches new memory */
    *rc = b->dev ? b->ops->sync(b->dev) : 0;
    while (!*rc && n < ROUNDS && (n == 0 || b->now() - begin <= fmax(MOST_ROUNDS_MS / 1e3, ROUNDS * b->round_s)))
        rounds[n++] = measure_round(b, call, b->round_s, rc);
    if (*rc)
        return INFINITY;
    const double median = measure_median(rounds, (size_t)n);
    return b->of_host ? rounds[0] : median;
}

double measure_computing(double seconds, double launches)
{
    return seconds > 2 * launches ? seconds - launches : seconds;
}

/* Random numbers for products. Zeros would switch no transistor, and a device with little to do clocks higher than one
 * at work. The sum of four random bytes is roughly normal: mean 0, deviation 1. */
static float profile_measure_draw(uint32_t word)
{
    const float mean = 510, deviation = 147.8f; /* a sum of four bytes has 4 * 127.5, and 2 sqrt((256^2 - 1) / 12) */

    return ((float)((word & 255) + (word >> 8 & 255) + (word >> 16 & 255) + (word >> 24)) - mean) / deviation;
}

static void draw_noise(const struct measured *b)
{
    const struct random_key key = {{1, 2}};
    uint32_t words[4];

    for (uint32_t i = 0; i < MEASURE_NOISE; i++) {
        if (i % 4 == 0)
            random_quad(words, key, 0, i / 4);
        if (b->type == NUMBER_BF16)
            ((uint16_t *)b->noise)[i] = number_to_bf16(profile_measure_draw(words[i % 4]));
        else
            ((float *)b->noise)[i] = profile_measure_draw(words[i % 4]);
    }
}

int measure_fill(const struct measured *b, size_t n)
{
    const size_t value = number_bytes(b->type);

    for (size_t at = 0; at < n; at += MEASURE_NOISE)
        b->ops->upload(b->dev, b->arena + at * value, b->noise,
                       (n - at < MEASURE_NOISE ? n - at : MEASURE_NOISE) * value);
    return b->ops->sync(b->dev);
}

int measure_open(struct measured *b, enum number_type type, size_t bytes, struct error *err)
{
    const int rc = b->ops->open(&b->dev, b->index, type, bytes, b->n_threads, err);

    b->type = type;
    if (rc)
        return rc;
    b->arena = b->ops->arena(b->dev);
    draw_noise(b);
    return 0;
}

void measure_close(struct measured *b)
{
    b->ops->close(b->dev);
    b->dev = NULL;
}
