/* utf8proc has the tables and composes, but its own utf8proc_map sorts marks by exchanging neighbours, which takes the
 * square of their number. So decomposing and sorting are done here, and what it gets is sorted already. Where the
 * package tokenizers has another version of Unicode, the exceptions are listed by hand. */
#include "client/text/tokenizer/characters/unicode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

unsigned tokenizer_put_character(char out[4], uint32_t c)
{
    return (unsigned)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)out);
}

bool tokenizer_is_blank(uint32_t c)
{
    return c == ' ' || (c >= 9 && c <= 13) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t tokenizer_grapheme(const char *text, size_t n)
{
    utf8proc_int32_t state = 0;
    unsigned length;
    uint32_t before = tokenizer_character(text, &length);
    size_t at = length;

    for (; at < n; at += length) {
        const uint32_t c = tokenizer_character(text + at, &length);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)before, (utf8proc_int32_t)c, &state))
            break;
        before = c;
    }
    return at;
}

static utf8proc_category_t category(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c);
}

bool tokenizer_is_mark(uint32_t c)
{
    const utf8proc_category_t of = category(c);
    return of == UTF8PROC_CATEGORY_MN || of == UTF8PROC_CATEGORY_MC || of == UTF8PROC_CATEGORY_ME;
}

/* The package's categories are those of Unicode 8, which later versions changed for these characters alone. */
bool tokenizer_is_accent(uint32_t c)
{
    if (c == 0x1885 || c == 0x1886 || c == 0xA9BD || c == 0x111C9)
        return false;
    return category(c) == UTF8PROC_CATEGORY_MN || c == 0x1734;
}

bool tokenizer_is_control(uint32_t c)
{
    const utf8proc_category_t of = category(c);
    return c != '\t' && c != '\n' && c != '\r' &&
           (of == UTF8PROC_CATEGORY_CC || of == UTF8PROC_CATEGORY_CF || of == UTF8PROC_CATEGORY_CO);
}

/* Alphabetic beyond letters, marks and letter numbers: circled and squared letters. */
bool tokenizer_is_word(uint32_t c)
{
    const utf8proc_category_t of = category(c);
    const bool enclosed = (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
                          (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);

    return (of >= UTF8PROC_CATEGORY_LU && of <= UTF8PROC_CATEGORY_LO) || tokenizer_is_mark(c) ||
           of == UTF8PROC_CATEGORY_ND || of == UTF8PROC_CATEGORY_NL || of == UTF8PROC_CATEGORY_PC || c == 0x200C ||
           c == 0x200D || enclosed;
}

bool tokenizer_is_han(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
           (c >= 0x2F800 && c <= 0x2FA1F);
}

void tokenizer_add_lower(struct client_text *out, uint32_t c)
{
    if (c == 0x130) { /* the only one that becomes two characters in any language */
        memcpy(out->bytes + out->n, "i\xCC\x87", 3);
        out->n += 3;
        return;
    }
    out->n += tokenizer_put_character(out->bytes + out->n, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
}

/* ---- Normal forms ----
 *
 * Most characters are their own normal form and never compose with what precedes them. Text is cut before those, and
 * only runs of other characters, with the one before them, are looked up. */

static bool is_fixed(uint32_t c, enum tokenizer_form form)
{
    const bool composes = form == TOKENIZER_NFC || form == TOKENIZER_NFKC;

    if (c < 0x80 || (c < 0x300 && form == TOKENIZER_NFC))
        return true;
    if ((c >= 0x3400 && c <= 0x9FFF) || (c >= 0x1F300 && c <= 0x1FAFF))
        return true;
    return composes && ((c >= 0x400 && c <= 0x482) || (c >= 0x48A && c <= 0x52F) || (c >= 0x5D0 && c <= 0x5EA) ||
                        (c >= 0x2010 && c <= 0x2016 && form == TOKENIZER_NFC) || (c >= 0x2018 && c <= 0x2023) ||
                        (c >= 0x3041 && c <= 0x3096) || (c >= 0x30A1 && c <= 0x30FA) || (c >= 0xAC00 && c <= 0xD7A3));
}

/* Characters of a run, decomposed. */
struct run {
    utf8proc_int32_t *list; /* (n, cap) */
    size_t n, cap;
};

enum { LONGEST_DECOMPOSITION = 32 }; /* the longest has 18 characters */

static int decompose(struct run *run, uint32_t c, utf8proc_option_t options, struct error *err)
{
    if (run->cap - run->n < LONGEST_DECOMPOSITION) {
        const size_t cap = 2 * run->cap + 4 * LONGEST_DECOMPOSITION;
        utf8proc_int32_t *larger = realloc(run->list, cap * sizeof *larger);
        if (!larger)
            return error_memory(err);
        run->list = larger, run->cap = cap;
    }
    int boundary = 0;
    const utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)c, run->list + run->n, LONGEST_DECOMPOSITION, options, &boundary);
    if (n < 0 || n > LONGEST_DECOMPOSITION)
        return error_set(err, -EINVAL, "U+%04X has no decomposition", c);
    run->n += (size_t)n;
    return 0;
}

static unsigned unicode_class_of(utf8proc_int32_t c)
{
    return (unsigned)utf8proc_get_property(c)->combining_class;
}

/* Sorts marks [from, to) by their combining class, and keeps the order within a class. */
static int sort_marks(utf8proc_int32_t *list, size_t from, size_t to, struct error *err)
{
    enum { FEW = 16, N_CLASSES = 256 };
    size_t starts[N_CLASSES + 1] = {0};

    if (to - from <= FEW) {
        for (size_t i = from + 1; i < to; i++) {
            const utf8proc_int32_t mark = list[i];
            size_t k = i;
            for (; k > from && unicode_class_of(list[k - 1]) > unicode_class_of(mark); k--)
                list[k] = list[k - 1];
            list[k] = mark;
        }
        return 0;
    }
    utf8proc_int32_t *sorted = malloc((to - from) * sizeof *sorted);
    if (!sorted)
        return error_memory(err);
    for (size_t i = from; i < to; i++)
        starts[unicode_class_of(list[i]) + 1]++;
    for (unsigned i = 0; i < N_CLASSES; i++)
        starts[i + 1] += starts[i];
    for (size_t i = from; i < to; i++)
        sorted[starts[unicode_class_of(list[i])]++] = list[i];
    memcpy(list + from, sorted, (to - from) * sizeof *sorted);
    free(sorted);
    return 0;
}

static int order(struct run *run, struct error *err)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < run->n;) {
        size_t end = i;
        while (end < run->n && unicode_class_of(run->list[end]) != 0)
            end++;
        if (end - i > 1)
            rc = sort_marks(run->list, i, end, err);
        i = end + 1;
    }
    return rc;
}

static int unicode_add_run(struct client_text *out, struct run *run, enum tokenizer_form form, const char *text,
                           size_t n, struct error *err)
{
    const bool composes = form == TOKENIZER_NFC || form == TOKENIZER_NFKC;
    const bool compatible = form == TOKENIZER_NFKC || form == TOKENIZER_NFKD;
    const utf8proc_option_t options =
        (utf8proc_option_t)(UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                            (compatible ? UTF8PROC_COMPAT : 0));
    unsigned length;
    int rc = 0;

    run->n = 0;
    for (size_t at = 0; !rc && at < n; at += length)
        rc = decompose(run, tokenizer_character(text + at, &length), options, err);
    if (!rc)
        rc = order(run, err);
    if (!rc)
        rc = client_text_reserve(out, 4 * run->n, err);
    if (rc)
        return rc;
    const utf8proc_ssize_t n_left = utf8proc_normalize_utf32(run->list, (utf8proc_ssize_t)run->n, options);
    for (utf8proc_ssize_t i = 0; i < n_left; i++)
        out->n += tokenizer_put_character(out->bytes + out->n, (uint32_t)run->list[i]);
    return 0;
}

int tokenizer_normal_form(struct client_text *out, enum tokenizer_form form, const char *text, size_t n,
                          struct error *err)
{
    struct run run = {0};
    size_t from = 0, last = 0; /* from: not copied yet; last: the latest fixed character */
    unsigned length;
    int rc = 0;

    for (size_t at = 0; !rc && at < n;) {
        if (is_fixed(tokenizer_character(text + at, &length), form)) {
            last = at;
            at += length;
            continue;
        }
        size_t end = at + length;
        while (end < n && !is_fixed(tokenizer_character(text + end, &length), form))
            end += length;
        rc = client_text_add(out, text + from, last - from, err);
        if (!rc)
            rc = unicode_add_run(out, &run, form, text + last, end - last, err);
        at = from = last = end;
    }
    free(run.list);
    return rc ? rc : client_text_add(out, text + from, n - from, err);
}
