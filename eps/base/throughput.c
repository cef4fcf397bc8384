/* Parts are handed out one by one, each to the worker that would then end first. For whole parts that is the best
 * division, and it needs no search. Medians are of few numbers, so they are sorted by insertion. */
#include "eps/base/throughput.h"

#include <assert.h>
#include <string.h>

static const double gain = 7 / 8., floor_ms = 10; /* of forward's time, that a change must at least reach, and save */

/* Sorts a copy. n >= 1. */
static double throughput_median(const double *values, uint32_t n)
{
    double sorted[THROUGHPUT_WORKERS];

    memcpy(sorted, values, n * sizeof *values);
    for (uint32_t i = 1; i < n; i++)
        for (uint32_t j = i; j > 0 && sorted[j] < sorted[j - 1]; j--) {
            const double x = sorted[j];
            sorted[j] = sorted[j - 1];
            sorted[j - 1] = x;
        }
    return sorted[n / 2];
}

void throughput_begin(struct throughput *throughput, uint32_t n_parts)
{
    throughput->n_parts = throughput->n_left = n_parts;
    throughput->begun = false;
}

void throughput_on_weights(struct throughput *throughput, double now_ms)
{
    if (throughput->begun || !throughput->n_left)
        return;
    throughput->begun = true;
    throughput->since_ms = now_ms;
}

void throughput_on_loss(struct throughput *throughput, double now_ms)
{
    if (!throughput->begun || !throughput->n_left || --throughput->n_left)
        return;
    throughput->part_ms[throughput->n++ % THROUGHPUT_STEPS] = (now_ms - throughput->since_ms) / throughput->n_parts;
}

double throughput_of(const struct throughput *throughput)
{
    return throughput->n < THROUGHPUT_STEPS ? 0 : throughput_median(throughput->part_ms, THROUGHPUT_STEPS);
}

/* Median of the known milliseconds for each part; 1 if none are known. */
static double middle_speed(const struct throughput_share *shares, uint32_t n_shares)
{
    double known[THROUGHPUT_WORKERS];
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_shares; i++)
        if (shares[i].part_ms > 0)
            known[n++] = shares[i].part_ms;
    return n ? throughput_median(known, n) : 1;
}

/* One part more goes where it ends earliest. */
void throughput_divide(struct throughput_share *shares, uint32_t n_shares, uint32_t n_parts)
{
    assert(n_shares >= 1 && n_shares <= THROUGHPUT_WORKERS);
    const double middle = middle_speed(shares, n_shares);
    const uint32_t least = n_parts >= n_shares; /* of each */

    for (uint32_t i = 0; i < n_shares; i++)
        shares[i].n = least;
    for (uint32_t p = least * n_shares; p < n_parts; p++) {
        struct throughput_share *best = NULL;
        double earliest = 0;
        for (uint32_t i = 0; i < n_shares; i++) {
            const double end = (shares[i].n + 1) * (shares[i].part_ms > 0 ? shares[i].part_ms : middle);
            if (shares[i].n < shares[i].room && (!best || end < earliest))
                best = &shares[i], earliest = end;
        }
        assert(best);
        best->n++;
    }
}

double throughput_time(const struct throughput_share *shares, uint32_t n_shares)
{
    double most = 0;

    for (uint32_t i = 0; i < n_shares; i++) {
        if (!(shares[i].part_ms > 0))
            return 0;
        most = most < shares[i].n * shares[i].part_ms ? shares[i].n * shares[i].part_ms : most;
    }
    return most;
}

bool throughput_is_worth(double now_ms, double then_ms)
{
    return then_ms <= gain * now_ms && now_ms - then_ms >= floor_ms;
}
