/* eps/base/throughput.h - how many parts each worker gets: whole parts, by measured speed.
 *
 * A worker's speed is the time that its share's forward pass takes, from its first weights to its last loss, for each
 * part. Forward waits for no other worker, only for the optimizer, which all wait for alike. Backward waits for slots
 * and accumulators, so for slower workers, too; it takes each worker about the same multiple of forward. The median of
 * the last THROUGHPUT_STEPS steps counts, so that one step that is disturbed changes nothing.
 *
 * Shares change only if forward is then expected to take at least an eighth and 10 ms less, and no sooner than
 * THROUGHPUT_STEPS steps after the last change. So workers of about the same speed keep their shares, however the
 * figures vary.
 *
 * Pure arithmetic: times come in as numbers. */
#ifndef EPS_BASE_THROUGHPUT_H
#define EPS_BASE_THROUGHPUT_H

#include <stdbool.h>
#include <stdint.h>

enum { THROUGHPUT_STEPS = 5, THROUGHPUT_WORKERS = 64 };

struct throughput {
    double part_ms[THROUGHPUT_STEPS]; /* of the last steps, in a ring: */
    uint32_t n;                       /* steps measured so far */
    uint32_t n_parts, n_left;         /* of the share under way, and those without a loss */
    bool begun;                       /* the share under way has weights */
    double since_ms;                  /* when that share got weights */
};

/* A share of so many parts was given out, or given out again. */
void throughput_begin(struct throughput *throughput, uint32_t n_parts);
/* It got weights. */
void throughput_on_weights(struct throughput *throughput, double now_ms);
/* It has the loss of one more part. */
void throughput_on_loss(struct throughput *throughput, double now_ms);
/* Milliseconds for each part; 0: not known yet. */
double throughput_of(const struct throughput *throughput);

/* One worker, and its share of n parts. */
struct throughput_share {
    double part_ms; /* 0: not known */
    uint32_t room;  /* the most parts that it can have */
    uint32_t n;
};

/* Sets n of each so that the slowest share takes the least time; each gets a part, if there are enough, for a worker
 * without one could not be measured again. A worker whose speed is not known is taken to be of middle speed. Ties go to
 * the first. Each has room for a part, and all together for n_parts. */
void throughput_divide(struct throughput_share *shares, uint32_t n_shares, uint32_t n_parts);
/* Time of the slowest share; 0 if a speed is not known. */
double throughput_time(const struct throughput_share *shares, uint32_t n_shares);
/* True if the second division is enough faster than the first. Both know all speeds. */
bool throughput_is_worth(double now_ms, double then_ms);

#endif
