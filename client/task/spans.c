/* Each side of a row grows with the window, or stays, as a fraction below 1 adds at most one chosen token for each
 * token of the window: so the first window that is too long ends the search. A word is drawn for each place between
 * tokens, those of a run that stays before those of the run behind it. This order is part of a run's results, as is how
 * lengths are rounded: halves to even, as np.round and tf.round do in the published code. */
#include "client/task/spans.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static uint32_t spans_smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

struct client_spans client_spans_of(uint32_t n, double fraction)
{
    uint32_t chosen = (uint32_t)lrint(n * fraction), runs;

    chosen = chosen < 1 ? 1 : spans_smaller(chosen, n - 1);
    runs = (uint32_t)lrint((double)chosen / CLIENT_SPAN_TOKENS);
    runs = runs < 1 ? 1 : spans_smaller(runs, spans_smaller(chosen, n - chosen));
    return (struct client_spans){n, chosen, runs, n - chosen + runs + 1, chosen + runs + 1};
}

struct client_spans client_spans_within(uint32_t source, uint32_t target, uint32_t both, double fraction)
{
    const uint32_t least = spans_smaller(source, both), most = least < UINT32_MAX / 64 ? 64 * least : UINT32_MAX - 1;
    struct client_spans found = {0};

    for (uint32_t n = 2; n <= most; n++) {
        const struct client_spans spans = client_spans_of(n, fraction);
        if (spans.source > source || spans.target > target || spans.source + spans.target > both)
            break;
        found = spans;
    }
    return found;
}

/* Draws numbers below a bound, one word each. */
struct draws {
    struct random_key key;
    uint64_t row, n;
    uint32_t words[4];
};

static uint32_t spans_below(struct draws *d, uint32_t bound)
{
    if (d->n % 4 == 0)
        random_quad(d->words, d->key, d->row, d->n / 4);
    return (uint32_t)((uint64_t)d->words[d->n++ % 4] * bound >> 32);
}

/* True where the next of n_runs runs begins: of the n - 1 places between n tokens the cuts are drawn one after the
 * other (selection sampling: Knuth, The Art of Computer Programming 2, section 3.4.2). */
struct cutting {
    struct draws *draws;
    uint32_t places, cuts; /* that are left */
};

static bool cuts_here(struct cutting *c)
{
    const bool cuts = spans_below(c->draws, c->places--) < c->cuts;

    c->cuts -= cuts;
    return cuts;
}

/* Length of the next run of n tokens that are left. */
static uint32_t next_run(struct cutting *c)
{
    uint32_t length = 1;

    while (c->places > 0 && !cuts_here(c))
        length++;
    return length;
}

void client_spans_corrupt(const struct client_spans *spans, uint32_t *source, uint32_t *target, const uint32_t *ids,
                          const uint32_t *sentinels, uint32_t end, struct random_key key, uint64_t row)
{
    struct draws draws = {.key = key, .row = row};
    struct cutting kept = {&draws, spans->n - spans->n_chosen - 1, spans->n_runs - 1},
                   chosen = {&draws, spans->n_chosen - 1, spans->n_runs - 1};

    for (uint32_t run = 0; run < spans->n_runs; run++) {
        const uint32_t n_kept = next_run(&kept), n_chosen = next_run(&chosen);
        memcpy(source, ids, n_kept * sizeof *ids);
        source += n_kept, ids += n_kept;
        *source++ = *target++ = sentinels[run];
        memcpy(target, ids, n_chosen * sizeof *ids);
        target += n_chosen, ids += n_chosen;
    }
    *source = *target = end;
}
