#include "tools/screen/series.h"

#include <math.h>

static void halve(struct series *s)
{
    for (size_t i = 0; i < SERIES_MEANS / 2; i++) {
        const struct series_mean a = s->means[2 * i], b = s->means[2 * i + 1];
        s->means[i] = (struct series_mean){a.n_x + b.n_x, a.n_y + b.n_y, a.x + b.x, a.y + b.y};
    }
    s->n = SERIES_MEANS / 2;
    s->stride *= 2;
}

void series_add(struct series *s, double x, double y)
{
    if (s->stride == 0)
        s->stride = 1;
    if (s->n == 0 || s->means[s->n - 1].n_x == s->stride) {
        if (s->n == SERIES_MEANS)
            halve(s);
        s->means[s->n++] = (struct series_mean){0};
    }
    struct series_mean *mean = &s->means[s->n - 1];
    mean->n_x++;
    mean->x += x;
    if (isfinite(y)) {
        mean->n_y++;
        mean->y += y;
    }
}

void series_zero(struct series *out, const struct series *like)
{
    *out = *like;
    for (size_t i = 0; i < out->n; i++) {
        out->means[i].n_y = out->means[i].n_x;
        out->means[i].y = 0;
    }
}

double series_x(const struct series *s, size_t i)
{
    return s->means[i].x / (double)s->means[i].n_x;
}

double series_y(const struct series *s, size_t i)
{
    return s->means[i].n_y ? s->means[i].y / (double)s->means[i].n_y : NAN;
}

double series_most(const struct series *s)
{
    double most = NAN;

    for (size_t i = 0; i < s->n; i++)
        most = fmax(most, series_y(s, i)); /* ignores NAN */
    return most;
}
