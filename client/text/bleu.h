/* client/text/bleu.h - corpus BLEU of hypotheses against one reference each, as sacrebleu computes it by default.
 *
 * Scores of different tokenizers or smoothings cannot be compared, so the definition is fixed and named by
 * CLIENT_BLEU_SIGNATURE: tokenizer 13a, mixed case, n-grams of up to 4 tokens, exponential smoothing, no effective
 * order. A hypothesis's n-gram matches at most as often as it occurs in its reference. The counts of all segments are
 * added before anything is divided:
 *
 *     score = BP * exp((log p1 + log p2 + log p3 + log p4) / 4)
 *     pn    = 100 * matches / n-grams;  the k-th pn without a match, but with n-grams: 100 / (2^k * n-grams)
 *     BP    = min(1, exp(1 - reference tokens / hypothesis tokens))
 *
 * Without any match, or where all hypotheses are too short for a 4-gram, the score is 0.
 *
 * Sources: BLEU - Papineni et al., ACL 2002, section 2; its definition here - Post, arXiv:1804.08771, section 4;
 *          smoothing - Chen & Cherry, WMT 2014, method 3; tokenizer - NIST's mteval-v13a.pl, as in sacrebleu 2.6.0. */
#ifndef CLIENT_TEXT_BLEU_H
#define CLIENT_TEXT_BLEU_H

#include "client/text/utf8.h"

/* sacrebleu's own, without its version. */
#define CLIENT_BLEU_SIGNATURE "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp"

enum { CLIENT_BLEU_ORDERS = 4 };

/* Counts of a corpus: begin with a zeroed struct. It owns no memory; those of two corpora add up, member by member. */
struct client_bleu {
    uint64_t n_grams[CLIENT_BLEU_ORDERS];   /* n-grams of the hypotheses; [0] counts their tokens */
    uint64_t n_matches[CLIENT_BLEU_ORDERS]; /* n-grams of the hypotheses that are matched */
    uint64_t n_reference_tokens;
};

struct client_bleu_score {
    double score;                          /* 0..100 */
    double precisions[CLIENT_BLEU_ORDERS]; /* p1..p4, 0..100, smoothed; all 0 without any match */
    double brevity_penalty;                /* BP, 0..1 */
    uint64_t n_hypothesis_tokens, n_reference_tokens;
};

/* Counts one segment: UTF-8 of either length, maybe 0. -EINVAL for text that is not UTF-8, -ENOMEM; then the counts are
 * unchanged. Equal n-grams are found by sorting, without hashes that could collide: O(n log n) for n tokens. */
int client_bleu_add(struct client_bleu *bleu, const char *hypothesis, size_t hypothesis_bytes, const char *reference,
                    size_t reference_bytes, struct error *err);

/* Computes the score of what was counted; of no segment it is 0. Cannot fail. */
void client_bleu_score(struct client_bleu_score *out, const struct client_bleu *bleu);

/* Replaces out, a zeroed or used text, by the tokens of text (n bytes of UTF-8) with a blank between neighbours.
 * White space at the end of text is removed first, as sacrebleu does before it calls its tokenizer. -EINVAL for text
 * that is not UTF-8, -ENOMEM. */
int client_bleu_tokens(struct client_text *out, const char *text, size_t n, struct error *err);

#endif
