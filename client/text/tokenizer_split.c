/* Finds the ends of words by PCRE2. Expressions are written for Oniguruma or Rust's regex; differences are translated
 * for PCRE2 or refused. */
#include "client/text/tokenizer_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char tokenizer_gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Unicode's White_Space. PCRE2's own \s adds U+180E. */
#define BLANKS "\\p{Z}\\x{9}-\\x{d}\\x{85}"

struct translation {
    char *out;
    size_t n; /* bytes written */
};

static void put(struct translation *t, const char *text, size_t n)
{
    memcpy(t->out + t->n, text, n);
    t->n += n;
}

static int refuse(struct error *err, const char *what)
{
    return error_set(err, -EINVAL, "its splitting pattern has %s, which is not supported", what);
}

/* Translates an escape sequence; returns the number of bytes read. */
static int translate_escape(struct translation *t, const char *at, bool in_brackets, struct error *err)
{
    static const char same[] = "pPrntdDx"; /* followed by a name, in braces or without */
    char what[8];

    if (at[1] == 's') {
        put(t, in_brackets ? BLANKS : "[" BLANKS "]", strlen(BLANKS) + (in_brackets ? 0 : 2));
        return 2;
    }
    if (at[1] == 'S' && !in_brackets) {
        put(t, "[^" BLANKS "]", strlen(BLANKS) + 3);
        return 2;
    }
    const bool letter =
        (at[1] >= 'a' && at[1] <= 'z') || (at[1] >= 'A' && at[1] <= 'Z') || (at[1] >= '0' && at[1] <= '9');
    if (!at[1] || (letter && !strchr(same, at[1]))) {
        snprintf(what, sizeof what, "\\%c", at[1] ? at[1] : ' ');
        return refuse(err, what);
    }
    put(t, at, 2);
    return 2;
}

static int translate(struct translation *t, const char *pattern, struct error *err)
{
    bool in_brackets = false;

    for (const char *at = pattern; *at;) {
        int used = 1;
        if (*at == '\\') {
            used = translate_escape(t, at, in_brackets, err);
            if (used < 0)
                return used;
        } else if (in_brackets && (*at == '[' || strncmp(at, "&&", 2) == 0)) {
            return refuse(err, "brackets in brackets");
        } else if (!in_brackets && (strncmp(at, "[]", 2) == 0 || strncmp(at, "[^]", 3) == 0)) {
            return refuse(err, "a bracket that closes at once");
        } else {
            in_brackets = *at == '[' || (in_brackets && *at != ']');
            put(t, at, 1);
        }
        at += used;
    }
    t->out[t->n] = 0;
    return 0;
}

static int compile(struct client_tokenizer *t, const char *text, struct error *err)
{
    size_t place;
    int code;

    t->pattern = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C,
                               &code, &place, NULL);
    if (!t->pattern) {
        char why[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return error_set(err, -EINVAL, "its splitting pattern cannot be compiled: %s", why);
    }
    /* Where the JIT is not available, PCRE2 interprets the pattern. */
    (void)pcre2_jit_compile(t->pattern, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
    t->match = pcre2_match_data_create_from_pattern(t->pattern, NULL);
    return t->match ? 0 : error_set(err, -ENOMEM, "out of memory");
}

int tokenizer_split_open(struct client_tokenizer *t, const char *pattern, struct error *err)
{
    struct translation translation = {.out = malloc(strlen(pattern) * (sizeof BLANKS + 2) + 1)};
    int rc = translation.out ? translate(&translation, pattern, err) : error_set(err, -ENOMEM, "out of memory");

    if (!rc)
        rc = compile(t, translation.out, err);
    free(translation.out);
    return rc;
}

int tokenizer_split(const struct client_tokenizer *t, const char *text, size_t n, size_t at, bool last, size_t *end,
                    struct error *err)
{
    char why[128];

    assert(at < n);
    int rc = pcre2_match(t->pattern, (PCRE2_SPTR)text, n, at,
                         PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY | (last ? 0 : PCRE2_PARTIAL_HARD), t->match, NULL);
    if (rc == PCRE2_ERROR_PARTIAL || (rc == PCRE2_ERROR_NOMATCH && !last))
        return 0;
    if (rc == PCRE2_ERROR_NOMATCH) {
        *end = n;
        return 1;
    }
    if (rc < 0) {
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
        return error_set(err, -EINVAL, "the tokenizer's splitting pattern fails on this text: %s", why);
    }
    const size_t *found = pcre2_get_ovector_pointer(t->match);
    if (found[1] <= at) /* the pattern looks behind or resets the start of the match */
        return error_set(err, -EINVAL, "the tokenizer's splitting pattern matches an empty text");
    *end = found[0] > at ? found[0] : found[1]; /* text that no match covers is a word, too */
    return 1;
}
