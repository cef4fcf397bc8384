/* The quick form sees QUICK_BYTES of the text at a time, as a beginning (PCRE2_PARTIAL_HARD): it settles what is short,
 * and never looks far. What it leaves open goes to the counted form, with all of the text. An escape passes if it is in
 * a list of those that mean the same in all three syntaxes; a construct, unless it is known to mean something else. */
#include "client/text/tokenizer/characters/pattern.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char tokenizer_gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* PCRE2's own \s adds U+180E. */
#define BLANKS "\\p{Z}\\x{9}-\\x{d}\\x{85}"

enum {
    MAX_STEPS = 10000000,    /* of PCRE2's: those that are counted here end sooner */
    QUICK_STEPS = 50,        /* of PCRE2's from one position, in the quick form: 1 word of 100 in a text takes more; */
    QUICK_BYTES = 64,        /* and so many bytes: together, at most some 3,000 characters are looked at for each */
    LEAST_ALLOWED = 1 << 24, /* for a short text */
    BYTES_OF_STEP = 16,      /* that a repeat passes in the time of an attempt */
    UNASKED_STEPS = 1 << 20, /* between two questions to the watch */
    STACK_BYTES = 32 << 10,  /* to begin with */
    MAX_STACK_BYTES = 1 << 20, /* more than any sensible pattern takes for a word of many MiB */
};

int tokenizer_matcher_init(struct tokenizer_matcher *matcher, struct error *err)
{
    *matcher = (struct tokenizer_matcher){.data = pcre2_match_data_create(1, NULL),
                                          .context = pcre2_match_context_create(NULL),
                                          .stack = pcre2_jit_stack_create(STACK_BYTES, MAX_STACK_BYTES, NULL)};
    if (!matcher->data || !matcher->context) {
        tokenizer_matcher_free(matcher);
        return error_memory(err);
    }
    pcre2_set_match_limit(matcher->context, QUICK_STEPS);
    tokenizer_matcher_allow(matcher, 0);
    if (matcher->stack) /* NULL where the JIT is not available */
        pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    return 0;
}

void tokenizer_matcher_free(struct tokenizer_matcher *matcher)
{
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    pcre2_jit_stack_free(matcher->stack);
    *matcher = (struct tokenizer_matcher){0};
}

void tokenizer_matcher_allow(struct tokenizer_matcher *matcher, size_t n)
{
    matcher->left = LEAST_ALLOWED + (uint64_t)TOKENIZER_STEPS * n;
}

int tokenizer_matcher_spend(struct tokenizer_matcher *m, uint64_t n, const char *part, struct error *err)
{
    const uint64_t before = m->left;

    m->left -= n < m->left ? n : m->left;
    if (m->left == 0)
        return error_set(err, -EINVAL, "tokenizer.json: its %s take more than %d steps for each byte of this text",
                         part, TOKENIZER_STEPS);
    return m->left / UNASKED_STEPS != before / UNASKED_STEPS ? client_watch_ask(m->watch, err) : 0;
}

struct translation {
    char *out;
    size_t n; /* bytes written */
};

static void pattern_put(struct translation *t, const char *text)
{
    const size_t n = strlen(text);

    memcpy(t->out + t->n, text, n);
    t->n += n;
}

static int pattern_refuse(struct error *err, const char *what)
{
    return error_set(err, -EINVAL, "its splitting pattern has %s, which is not supported", what);
}

/* True for a name (n bytes) such as Han or Old_Italic. */
static bool is_script(const char *name, size_t n)
{
    enum { LONGEST = 40 };
    char text[LONGEST + sizeof "\\p{sc:}"];
    size_t place;
    int code;

    if (n > LONGEST || memchr(name, '\\', n))
        return false;
    snprintf(text, sizeof text, "\\p{sc:%.*s}", (int)n, name);
    pcre2_code *script =
        pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &place, NULL);
    pcre2_code_free(script);
    return script != NULL;
}

/* Translates {NAME} after \p or \P; returns the number of bytes read. A script is its own characters in Oniguruma; in
 * PCRE2 also those that it shares with others, such as the comma of Chinese and Japanese in \p{Han}. */
static int translate_property(struct translation *t, const char *at)
{
    const size_t n = strcspn(at, "}"), begin = at[1] == '^' ? 2 : 1;

    pattern_put(t, begin == 2 ? "{^" : "{");
    if (at[n] && n > begin && is_script(at + begin, n - begin))
        pattern_put(t, "sc:");
    for (size_t i = begin; i < n + (at[n] == '}'); i++)
        pattern_put(t, (const char[]){at[i], 0});
    return (int)(n + (at[n] == '}'));
}

/* Translates an escape sequence; returns the number of bytes read. */
static int translate_escape(struct translation *t, const char *at, bool in_brackets, struct error *err)
{
    static const char same[] = "pPrntdDx"; /* followed by a name, in braces or without */
    char what[8];

    if (at[1] == 's') {
        pattern_put(t, in_brackets ? BLANKS : "[" BLANKS "]");
        return 2;
    }
    if (at[1] == 'S' && !in_brackets) {
        pattern_put(t, "[^" BLANKS "]");
        return 2;
    }
    const bool letter =
        (at[1] >= 'a' && at[1] <= 'z') || (at[1] >= 'A' && at[1] <= 'Z') || (at[1] >= '0' && at[1] <= '9');
    if (!at[1] || (letter && !strchr(same, at[1]))) {
        snprintf(what, sizeof what, "\\%c", at[1] ? at[1] : ' ');
        return pattern_refuse(err, what);
    }
    pattern_put(t, (const char[]){at[0], at[1], 0});
    int used = 2;
    if (strchr("pP", at[1]) && at[2] == '{')
        return used + translate_property(t, at + used);
    if (at[1] == 'x' && at[2] == '{') { /* the number, too: its brace is no interval's */
        while (at[used] && at[used - 1] != '}')
            pattern_put(t, (const char[]){at[used++], 0});
    }
    return used;
}

/* Brackets in brackets (depth 2) are a union, so their characters may stand in the outer ones, if no hyphen at a seam
 * then makes a range. */
static const char *find_other_in_brackets(const char *at, int depth)
{
    const bool opens = *at == '[', closes = *at == ']' && depth == 2;
    const bool joins = (opens || closes) && at[-1] != '-' && at[1] != '-';

    if (opens ? !joins || depth == 2 || strchr("^]:", at[1]) : closes && !joins)
        return "such brackets in brackets";
    return strncmp(at, "&&", 2) == 0 ? "an intersection of brackets" : NULL;
}

/* What begins at `at`, outside of an escape sequence, and means something else in PCRE2, or depends on text that has
 * been tokenised already; NULL: nothing. depth: in so many brackets. */
static const char *find_other(const char *at, int depth)
{
    if (depth > 0)
        return find_other_in_brackets(at, depth);
    if (strncmp(at, "[]", 2) == 0 || strncmp(at, "[^]", 3) == 0)
        return "a bracket that closes at once";
    if (strncmp(at, "(?<=", 4) == 0 || strncmp(at, "(?<!", 4) == 0)
        return "a look behind";
    if (strncmp(at, "(*", 2) == 0)
        return "a verb";
    if (*at == '^' || *at == '$')
        return "an anchor";
    return strncmp(at, "}+", 2) == 0 ? "a possessive interval" : NULL;
}

/* Copies a character that is no escape; returns the number of bytes read. */
static int translate_plain(struct translation *t, const char *at, int *depth)
{
    if (*depth > 0 && (*at == '[' || *at == ']')) {
        *depth += *at == '[' ? 1 : -1;
        if (*depth == 0)
            pattern_put(t, "]");
        return 1;
    }
    if (*at == '[')
        *depth = 1;
    pattern_put(t, strncmp(at, "[^", 2) == 0 ? "[^" : (const char[]){*at, 0});
    return strncmp(at, "[^", 2) == 0 ? 2 : 1;
}

static int pattern_translate(struct translation *t, const char *pattern, struct error *err)
{
    int depth = 0; /* of brackets */

    for (const char *at = pattern; *at;) {
        const char *other = *at == '\\' ? NULL : find_other(at, depth);
        if (other)
            return pattern_refuse(err, other);
        const int used = *at == '\\' ? translate_escape(t, at, depth > 0, err) : translate_plain(t, at, &depth);
        if (used < 0)
            return used;
        at += used;
    }
    t->out[t->n] = 0;
    return 0;
}

static int compile_form(pcre2_code **out, const char *text, uint32_t options, struct error *err)
{
    size_t place;
    int code;

    *out = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF | options, &code, &place, NULL);
    if (!*out) {
        char why[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return error_set(err, -EINVAL, "its splitting pattern cannot be compiled: %s", why);
    }
    /* Where the JIT is not available, PCRE2 interprets the pattern. */
    (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
    return 0;
}

static int compile(struct tokenizer_pattern **out, const char *text, uint32_t options, struct error *err)
{
    struct tokenizer_pattern *pattern = calloc(1, sizeof *pattern);
    int rc = pattern ? compile_form(&pattern->quick, text, options, err) : error_memory(err);

    if (!rc && !(options & PCRE2_LITERAL))
        rc = compile_form(&pattern->counted, text, options | PCRE2_AUTO_CALLOUT, err);
    if (!rc) {
        pattern->part = "pre-tokenizer";
        *out = pattern;
        return 0;
    }
    tokenizer_pattern_close(pattern);
    return rc;
}

void tokenizer_pattern_close(struct tokenizer_pattern *pattern)
{
    if (!pattern)
        return;
    pcre2_code_free(pattern->quick);
    pcre2_code_free(pattern->counted);
    free(pattern);
}

int tokenizer_pattern_open(struct tokenizer_pattern **out, const char *pattern, struct error *err)
{
    struct translation translation = {.out = malloc(strlen(pattern) * (sizeof BLANKS + 3) + 1)};

    *out = NULL;
    if (!translation.out)
        return error_memory(err);
    int rc = pattern_translate(&translation, pattern, err);
    if (!rc)
        rc = compile(out, translation.out, PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, err);
    free(translation.out);
    return rc;
}

int tokenizer_pattern_open_text(struct tokenizer_pattern **out, const char *text, struct error *err)
{
    *out = NULL;
    return compile(out, text, PCRE2_LITERAL, err);
}

/* PCRE2 calls this before each part of an expression that it tries. */
static int count_attempt(pcre2_callout_block *at, void *data)
{
    struct tokenizer_matcher *m = data;
    const size_t now = at->current_position;
    const uint64_t taken = 1 + (now > m->seen ? now - m->seen : m->seen - now) / BYTES_OF_STEP;
    const uint64_t before = m->left;

    m->seen = now;
    m->left -= taken < m->left ? taken : m->left;
    if (m->left / UNASKED_STEPS != before / UNASKED_STEPS)
        m->ended = client_watch_ask(m->watch, &m->why);
    return m->left > 0 && !m->ended ? 0 : PCRE2_ERROR_CALLOUT;
}

static int match_counted(const struct tokenizer_pattern *pattern, struct tokenizer_matcher *m, const char *text,
                         size_t n, size_t at, uint32_t options)
{
    m->seen = at;
    m->ended = 0;
    pcre2_set_callout(m->context, count_attempt, m);
    pcre2_set_match_limit(m->context, MAX_STEPS);
    const int rc = pcre2_match(pattern->counted ? pattern->counted : pattern->quick, (PCRE2_SPTR)text, n, at, options,
                               m->data, m->context);
    pcre2_set_match_limit(m->context, QUICK_STEPS);
    return rc;
}

/* As pcre2_match for the first match from `at` on. */
static int pattern_match(const struct tokenizer_pattern *pattern, struct tokenizer_matcher *m, const char *text,
                         size_t n, size_t at, bool last)
{
    const uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, open = options | PCRE2_PARTIAL_HARD;

    while (pattern->counted && n - at > QUICK_BYTES) {
        size_t to = at + QUICK_BYTES;
        while (((uint8_t)text[to] & 0xC0) == 0x80)
            to--;
        const int rc = pcre2_match(pattern->quick, (PCRE2_SPTR)text, to, at, open, m->data, m->context);
        if (rc != PCRE2_ERROR_NOMATCH && rc < 0)
            break;
        if (rc >= 0)
            return rc;
        at = to; /* no match begins before */
    }
    return match_counted(pattern, m, text, n, at, last ? options : open);
}

int tokenizer_pattern_find(struct tokenizer_found *out, const struct tokenizer_pattern *pattern,
                           struct tokenizer_matcher *matcher, const char *text, size_t n, size_t at, bool last,
                           struct error *err)
{
    const size_t *found = pcre2_get_ovector_pointer(matcher->data);
    char why[128];

    assert(at < n);
    const int rc = pattern_match(pattern, matcher, text, n, at, last);
    if (rc == PCRE2_ERROR_NOMATCH) {
        *out = (struct tokenizer_found){n, n, !last};
        return 0;
    }
    if (rc == PCRE2_ERROR_PARTIAL) {
        *out = (struct tokenizer_found){found[0], found[0], true};
        return 0;
    }
    if (rc == PCRE2_ERROR_CALLOUT && matcher->ended)
        return error_set(err, matcher->ended, "%s", matcher->why.text);
    if (rc == PCRE2_ERROR_CALLOUT)
        return error_set(err, -EINVAL,
                         "tokenizer.json: a pattern of its %s takes more than %d steps for each byte of this text",
                         pattern->part, TOKENIZER_STEPS);
    if (rc < 0) {
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
        return error_set(err, -EINVAL, "a pattern of its %s fails on this text: %s", pattern->part, why);
    }
    assert(found[0] >= at && found[1] > found[0]); /* nothing that resets a match's start has been let through */
    *out = (struct tokenizer_found){found[0], found[1], false};
    return 0;
}

int tokenizer_pattern_word(const struct tokenizer_pattern *pattern, struct tokenizer_matcher *matcher, const char *text,
                           size_t n, size_t at, bool last, size_t *end, struct error *err)
{
    struct tokenizer_found found = {0};
    int rc = tokenizer_pattern_find(&found, pattern, matcher, text, n, at, last, err);

    if (rc)
        return rc;
    *end = found.begin > at ? found.begin : found.end; /* text that no match covers is a word, too */
    return !found.open;
}
