/* client/task/spans.h - span corruption: runs of tokens that an encoder-decoder has to restore.
 *
 * Of a window of n tokens a fraction is chosen, in runs of three on average. In the source each run is one sentinel,
 * <extra_id_0>, <extra_id_1> and so on; the target is each sentinel with its run behind it. An end token ends both. The
 * number of tokens and of runs follows from n, so all windows make rows of one length; where runs begin and end is
 * drawn, each way alike: a cut of the chosen tokens into runs, and one of the others, which come first.
 *
 * A draw is a function of the seed and the row's number (proto/base/random.h), as in client/task/masks.h.
 *
 * Source: Raffel et al., arXiv:1910.10683, section 3.1.4; lengths and cuts as in run_t5_mlm_flax.py of transformers and
 * in random_spans_noise_mask of the authors' t5. */
#ifndef CLIENT_TASK_SPANS_H
#define CLIENT_TASK_SPANS_H

#include "proto/base/random.h"

#include <stdint.h>

enum { CLIENT_SPAN_TOKENS = 3, CLIENT_SENTINELS = 1000 /* at most */ };

/* What becomes of a window. */
struct client_spans {
    uint32_t n;                /* tokens */
    uint32_t n_chosen, n_runs; /* tokens in runs, and runs: at least one, with a token between two */
    uint32_t source, target;   /* tokens of the row's sides, end tokens included */
};

/* Spans of a window of n tokens (2 or more). fraction: above 0 and below 1. */
struct client_spans client_spans_of(uint32_t n, double fraction);

/* Spans of the longest windows whose source has at most `source` tokens, whose target at most `target`, and both
 * together at most `both` (UINT32_MAX: any). n is 0 if there are none. */
struct client_spans client_spans_within(uint32_t source, uint32_t target, uint32_t both, double fraction);

/* Writes source (spans->source) and target (spans->target) of a window's ids (n). sentinels: (n_runs). */
void client_spans_corrupt(const struct client_spans *spans, uint32_t *source, uint32_t *target, const uint32_t *ids,
                          const uint32_t *sentinels, uint32_t end, struct random_key key, uint64_t row);

#endif
