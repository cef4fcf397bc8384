/* client/text/tokenizer/characters/pattern.h - regular expressions of tokenizers, matched by PCRE2.
 *
 * They are written for Oniguruma or Rust's regex. What these read differently from PCRE2 is translated or refused.
 * White space is Unicode's White_Space. */
#ifndef CLIENT_TEXT_TOKENIZER_CHARACTERS_PATTERN_H
#define CLIENT_TEXT_TOKENIZER_CHARACTERS_PATTERN_H

#include "proto/base/watch.h"
#include "proto/base/error.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Working memory of a match, for one thread; it serves any number of patterns. The stack is bounded, and so is the
 * work: an expression that backtracks forever ends with an error. */
struct tokenizer_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    uint64_t left;                    /* attempts to match a part of an expression that the text may still take */
    size_t seen;                      /* where the last attempt was */
    const struct client_watch *watch; /* asked every 20 ms or so of a long match; borrowed; NULL: never */
    int ended;                        /* its error, with the sentence `why` */
    struct error why;
};

/* A text of n bytes begins. Each byte of it may take TOKENIZER_STEPS; expressions of published tokenizers take 4 to
 * 30. */
enum { TOKENIZER_STEPS = 512 };
void tokenizer_matcher_allow(struct tokenizer_matcher *matcher, size_t n);

/* Takes n steps for another part of the tokenizer, such as "added_tokens". -EINVAL with a sentence if the text has none
 * left; the watch's error. */
int tokenizer_matcher_spend(struct tokenizer_matcher *matcher, uint64_t n, const char *part, struct error *err);

/* An expression, compiled twice. The quick form serves whatever is short and simple, so that no call takes long. The
 * other one counts its work: PCRE2's own limit counts steps that may each look at the whole text. */
struct tokenizer_pattern {
    pcre2_code *quick, *counted; /* counted is NULL if a match cannot backtrack */
    const char *part;            /* the part of tokenizer.json that has the pattern, for a sentence */
};

int tokenizer_matcher_init(struct tokenizer_matcher *matcher, struct error *err); /* -ENOMEM */
void tokenizer_matcher_free(struct tokenizer_matcher *matcher);                   /* safe on a zeroed struct */

/* GPT-2's expression. */
extern const char tokenizer_gpt2_pattern[];

/* Word characters, in brackets: \w of Rust's regex, which Oniguruma and PCRE2 each read differently. */
#define TOKENIZER_WORD                                                                                                 \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200c}\\x{200d}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}" \
    "\\x{1f170}-\\x{1f189}"

/* Compiles an expression; refuses by name what has no equivalent in PCRE2. -EINVAL, -ENOMEM. */
int tokenizer_pattern_open(struct tokenizer_pattern **out, const char *pattern, struct error *err);

/* Opens a pattern that matches one literal text. */
int tokenizer_pattern_open_text(struct tokenizer_pattern **out, const char *text, struct error *err);
void tokenizer_pattern_close(struct tokenizer_pattern *pattern); /* NULL is safe */

struct tokenizer_found {
    size_t begin, end; /* the match; begin == end: none begins before `begin` */
    bool open;         /* more text may change whether a match begins at `begin`, and where it ends */
};

/* Finds the first match in text (n bytes of UTF-8) from `at` on; an empty one does not count. last: no text follows.
 * Otherwise the end of a match is found only if no text that follows can move it. -EINVAL, also if the text has taken
 * all its steps; the error of the matcher's watch. */
int tokenizer_pattern_find(struct tokenizer_found *out, const struct tokenizer_pattern *pattern,
                           struct tokenizer_matcher *matcher, const char *text, size_t n, size_t at, bool last,
                           struct error *err);

/* Cuts text into matches and what is between them: sets *end to the end of the word that begins at `at` (< n). Returns
 * 1; 0 if last is false and the end depends on what follows; -EINVAL. */
int tokenizer_pattern_word(const struct tokenizer_pattern *pattern, struct tokenizer_matcher *matcher, const char *text,
                           size_t n, size_t at, bool last, size_t *end, struct error *err);

#endif
