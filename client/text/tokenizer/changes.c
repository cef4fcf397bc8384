/* Changes to text before it is cut into words: tokenizer.json's normalizer, and what pre-tokenizers do to the beginning
 * of a text. */
#include "client/text/tokenizer/tokenizer_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void free_change(struct tokenizer_change *change)
{
    free(change->from);
    free(change->to);
    tokenizer_pattern_close(change->pattern);
    tokenizer_charsmap_close(change->table);
}

void tokenizer_changes_free(struct tokenizer_changes *changes)
{
    for (size_t i = 0; i < changes->n; i++)
        free_change(&changes->list[i]);
    free(changes->list);
    *changes = (struct tokenizer_changes){0};
}

/* Normal forms reorder and join characters; a table looks at graphemes; accents are stripped from a normal form. */
static bool looks_at_neighbours(const struct tokenizer_change *change)
{
    return change->kind == TOKENIZER_FORM || change->kind == TOKENIZER_TABLE ||
           (change->kind == TOKENIZER_BERT && change->accents);
}

/* Text can be changed in pieces if each character is changed on its own, or, for normal forms, if a piece begins with a
 * character that combines with none before it. That character must then be the text's own, so what replaces or adds
 * characters must not come first. */
int tokenizer_changes_add(struct tokenizer_changes *changes, struct tokenizer_change change, struct error *err)
{
    struct tokenizer_change *larger = realloc(changes->list, (changes->n + 1) * sizeof *larger);
    bool replaced = false;

    if (!larger) {
        free_change(&change);
        return error_memory(err);
    }
    changes->list = larger;
    for (size_t i = 0; i < changes->n; i++)
        replaced = replaced || larger[i].kind == TOKENIZER_REPLACE || larger[i].kind == TOKENIZER_PREPEND ||
                   larger[i].kind == TOKENIZER_LEAD;
    larger[changes->n++] = change;
    changes->at_cut = changes->at_cut || looks_at_neighbours(&change);
    changes->whole = changes->whole || change.kind == TOKENIZER_STRIP ||
                     (change.kind == TOKENIZER_REPLACE && !tokenizer_is_character(change.from)) ||
                     (replaced && looks_at_neighbours(&change));
    return 0;
}

/* Returns `from` if there is no such place yet: more text is waited for. */
size_t tokenizer_changes_cut(const struct tokenizer_changes *changes, const char *text, size_t from, size_t to)
{
    if (!changes->at_cut)
        return to;
    for (size_t at = to; --at > from;) {
        const uint8_t byte = (uint8_t)text[at];
        /* Printable ASCII, or an ideograph of U+4000 to U+9FFF. */
        if ((byte >= 0x20 && byte < 0x7F) || byte == '\n' || byte == '\t' || (byte >= 0xE4 && byte <= 0xE9))
            return at;
    }
    return from;
}

static int add_lower(struct client_text *out, const char *text, size_t n, struct error *err)
{
    unsigned length;
    int rc = client_text_reserve(out, 3 * n + 4, err); /* two bytes may become three: U+023A */

    for (size_t at = 0; !rc && at < n; at += length)
        tokenizer_add_lower(out, tokenizer_character(text + at, &length));
    return rc;
}

/* Appends the characters that are none of `is`. */
static int add_without(struct client_text *out, bool (*is)(uint32_t c), const char *text, size_t n, struct error *err)
{
    unsigned length;
    int rc = client_text_reserve(out, n, err);

    for (size_t at = 0; !rc && at < n; at += length) {
        const uint32_t c = tokenizer_character(text + at, &length);
        if (c < 0x80 || !is(c)) {
            memcpy(out->bytes + out->n, text + at, length);
            out->n += length;
        }
    }
    return rc;
}

/* BERT's first half: removes controls, makes blanks of white space, sets ideographs apart. */
static int add_clean(struct client_text *out, const struct tokenizer_change *change, const char *text, size_t n,
                     struct error *err)
{
    unsigned length;
    int rc = client_text_reserve(out, 5 * n, err);

    for (size_t at = 0; !rc && at < n; at += length) {
        const uint32_t c = tokenizer_character(text + at, &length);
        char *to = out->bytes + out->n;
        if (c > ' ' && c < 0x7F) {
            *to = (char)c, out->n++;
            continue;
        }
        if (change->clean && (c == 0 || c == 0xFFFD || tokenizer_is_control(c)))
            continue;
        const bool apart = change->han && tokenizer_is_han(c), blank = change->clean && tokenizer_is_blank(c);
        if (apart)
            *to++ = ' ';
        memcpy(to, blank ? " " : text + at, blank ? 1 : length);
        to += blank ? 1 : length;
        if (apart)
            *to++ = ' ';
        out->n = (size_t)(to - out->bytes);
    }
    return rc;
}

static bool is_ascii(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if ((uint8_t)text[i] >= 0x80)
            return false;
    }
    return true;
}

/* Accents are removed from the decomposed text. ASCII has none, and is most of what comes. */
static int add_bert(struct client_text *out, const struct tokenizer_change *change, const char *text, size_t n,
                    struct error *err)
{
    struct client_text clean = {0}, plain = {0}, bare = {0};
    int rc = add_clean(&clean, change, text, n, err);
    const struct client_text *now = &clean;

    if (!rc && change->accents && !is_ascii(clean.bytes, clean.n)) {
        rc = tokenizer_normal_form(&plain, TOKENIZER_NFD, clean.bytes, clean.n, err);
        if (!rc)
            rc = add_without(&bare, tokenizer_is_accent, plain.bytes, plain.n, err);
        now = &bare;
    }
    if (!rc)
        rc = change->lower ? add_lower(out, now->bytes, now->n, err) : client_text_add(out, now->bytes, now->n, err);
    free(clean.bytes);
    free(plain.bytes);
    free(bare.bytes);
    return rc;
}

/* Counts n bytes that a change adds to the text. */
static int changes_grow(struct tokenizer_work *work, const struct tokenizer_change *change, size_t n, struct error *err)
{
    const char *part = change->kind == TOKENIZER_REPLACE   ? "normalizer Replace"
                       : change->kind == TOKENIZER_PREPEND ? "normalizer Prepend"
                                                           : "pre-tokenizer";

    if (n > work->grows)
        return error_set(err, -EINVAL, "tokenizer.json: its %s makes more than %d bytes of each byte of this text",
                         part, TOKENIZER_GROWTH);
    work->grows -= n;
    return 0;
}

/* Looks at a stretch at a time: a checked memmem (the address sanitizer's) reads all that it may, each time. */
static int add_replaced_text(struct client_text *out, const struct tokenizer_change *change,
                             struct tokenizer_work *work, const char *text, size_t n, struct error *err)
{
    enum { STRETCH = 4096 };
    const size_t n_from = strlen(change->from), n_to = strlen(change->to);
    const char *at = text, *end = text + n;
    int rc = 0;

    while (!rc && at < end) {
        const size_t left = (size_t)(end - at), seen = left < STRETCH + n_from ? left : STRETCH + n_from;
        const char *found = memmem(at, seen, change->from, n_from);
        const size_t kept = found          ? (size_t)(found - at)
                            : seen == left ? left
                                           : STRETCH; /* the end may begin a match */
        rc = found ? changes_grow(work, change, n_to, err) : 0;
        if (!rc)
            rc = client_text_reserve(out, kept + n_to, err);
        if (rc)
            break;
        memcpy(out->bytes + out->n, at, kept);
        memcpy(out->bytes + out->n + kept, change->to, found ? n_to : 0);
        out->n += kept + (found ? n_to : 0);
        at += kept + (found ? n_from : 0);
    }
    return rc;
}

static int add_replaced(struct client_text *out, const struct tokenizer_change *change, struct tokenizer_work *work,
                        const char *text, size_t n, struct error *err)
{
    struct tokenizer_found found;
    int rc = 0;

    if (change->from)
        return add_replaced_text(out, change, work, text, n, err);
    for (size_t at = 0; !rc && at < n; at = found.end) {
        rc = tokenizer_pattern_find(&found, change->pattern, &work->matcher, text, n, at, true, err);
        if (!rc)
            rc = client_text_add(out, text + at, found.begin - at, err);
        if (!rc && found.begin < found.end)
            rc = changes_grow(work, change, strlen(change->to), err);
        if (!rc && found.begin < found.end)
            rc = client_text_add(out, change->to, strlen(change->to), err);
    }
    return rc;
}

/* An empty text gets nothing; LEAD only where it does not begin so already. */
static int add_led(struct client_text *out, const struct tokenizer_change *change, struct tokenizer_work *work,
                   const char *text, size_t n, bool begins, bool first, struct error *err)
{
    const size_t n_to = strlen(change->to);
    const bool there = change->kind == TOKENIZER_LEAD && n >= n_to && memcmp(text, change->to, n_to) == 0;
    const bool leads = begins && n > 0 && !there && (first || !change->first);
    int rc = leads ? changes_grow(work, change, n_to, err) : 0;

    if (!rc && leads)
        rc = client_text_add(out, change->to, n_to, err);
    return rc ? rc : client_text_add(out, text, n, err);
}

static int add_stripped(struct client_text *out, const struct tokenizer_change *change, const char *text, size_t n,
                        struct error *err)
{
    size_t from = 0;
    unsigned length;

    while (change->left && from < n && tokenizer_is_blank(tokenizer_character(text + from, &length)))
        from += length;
    while (change->right && n > from) {
        const size_t begin = client_utf8_before(text, from, n);
        if (!tokenizer_is_blank(tokenizer_character(text + begin, &length)))
            break;
        n = begin;
    }
    return client_text_add(out, text + from, n - from, err);
}

/* A table is applied to whole graphemes, so what it removes is one. */
static int removes_grapheme(bool *out, const struct tokenizer_change *change, const char *text, size_t n,
                            struct error *err)
{
    struct client_text changed = {0};
    uint64_t grows = UINT64_MAX;
    const int rc = tokenizer_charsmap_apply(&changed, change->table, &grows, text, tokenizer_grapheme(text, n), err);

    *out = !rc && changed.n == 0;
    free(changed.bytes);
    return rc;
}

/* True if the change removes the character with which text (n bytes) begins. */
static int removes_begin(bool *out, const struct tokenizer_change *change, struct tokenizer_matcher *matcher,
                         const char *text, size_t n, struct error *err)
{
    struct tokenizer_found found;
    unsigned length = 0;
    const uint32_t c = n > 0 ? tokenizer_character(text, &length) : 0;
    const bool cleans = change->clean && (c == 0 || c == 0xFFFD || tokenizer_is_control(c));
    int rc = 0;

    *out = false;
    if (n == 0)
        return 0;
    switch (change->kind) {
    case TOKENIZER_MARKS:
        *out = tokenizer_is_mark(c);
        break;
    case TOKENIZER_BERT:
        *out = cleans || (change->accents && tokenizer_is_accent(c));
        break;
    case TOKENIZER_STRIP:
        *out = change->left && tokenizer_is_blank(c);
        break;
    case TOKENIZER_REPLACE:
        if (*change->to)
            break;
        if (change->from) {
            *out = n >= strlen(change->from) && memcmp(text, change->from, strlen(change->from)) == 0;
            break;
        }
        rc = tokenizer_pattern_find(&found, change->pattern, matcher, text, n, 0, true, err);
        *out = !rc && found.begin == 0 && found.end > 0;
        break;
    case TOKENIZER_TABLE:
        return removes_grapheme(out, change, text, n, err);
    case TOKENIZER_FORM:
    case TOKENIZER_LOWER:
    case TOKENIZER_PREPEND:
    case TOKENIZER_LEAD:
        break;
    }
    return rc;
}

/* The last change writes to `out`, behind what it has; those before it to two texts in turn. `first` is lost with the
 * first character: what follows does not begin the text any more. */
int tokenizer_changes_apply(struct client_text *out, const struct tokenizer_changes *changes,
                            struct tokenizer_work *work, const char *text, size_t n, bool begins, bool *first,
                            struct error *err)
{
    bool removes = false;
    int rc = 0;

    for (size_t i = 0; !rc && i < changes->n; i++) {
        const struct tokenizer_change *change = &changes->list[i];
        struct client_text *to = i + 1 < changes->n ? &work->between[i % 2] : out;
        const size_t before = to == out ? out->n : 0;
        to->n = before;
        rc = *first ? removes_begin(&removes, change, &work->matcher, text, n, err) : 0;
        if (rc)
            break;
        *first = *first && !removes;
        switch (change->kind) {
        case TOKENIZER_FORM:
            rc = tokenizer_normal_form(to, change->form, text, n, err);
            break;
        case TOKENIZER_TABLE:
            rc = tokenizer_charsmap_apply(to, change->table, &work->grows, text, n, err);
            break;
        case TOKENIZER_LOWER:
            rc = add_lower(to, text, n, err);
            break;
        case TOKENIZER_MARKS:
            rc = add_without(to, tokenizer_is_mark, text, n, err);
            break;
        case TOKENIZER_BERT:
            rc = add_bert(to, change, text, n, err);
            break;
        case TOKENIZER_REPLACE:
            rc = add_replaced(to, change, work, text, n, err);
            break;
        case TOKENIZER_PREPEND:
        case TOKENIZER_LEAD:
            rc = add_led(to, change, work, text, n, begins, *first, err);
            break;
        case TOKENIZER_STRIP:
            rc = add_stripped(to, change, text, n, err);
            break;
        }
        n = to->n - before;
        text = n ? to->bytes + before : ""; /* nothing may have been written yet: no bytes, a null pointer */
    }
    return rc;
}

/* ---- tokenizer.json's normalizer ---- */

static bool changes_flag(const json_t *step, const char *key)
{
    return json_is_true(json_object_get(step, key));
}

static int changes_read_replace(struct tokenizer_change *change, const json_t *step, struct error *err)
{
    const char *content = json_string_value(json_object_get(step, "content")), *text;
    int rc = tokenizer_read_pattern(&change->pattern, &text, json_object_get(step, "pattern"), err);

    if (rc)
        return rc;
    if (!content)
        return error_set(err, -EINVAL, "its normalizer Replace has no content");
    if (change->pattern)
        change->pattern->part = "normalizer Replace";
    change->from = text ? strdup(text) : NULL;
    change->to = strdup(content);
    return change->to && (change->from || !text) ? 0 : error_memory(err);
}

static int read_prepend(struct tokenizer_change *change, const json_t *step, struct error *err)
{
    const char *text = json_string_value(json_object_get(step, "prepend"));

    if (!text)
        return error_set(err, -EINVAL, "its normalizer Prepend has no text");
    change->to = strdup(text);
    return change->to ? 0 : error_memory(err);
}

static int changes_read_table(struct tokenizer_change *change, const json_t *step, struct error *err)
{
    const char *map = json_string_value(json_object_get(step, "precompiled_charsmap"));

    if (!map)
        return error_set(err, -EINVAL, "its normalizer Precompiled has no precompiled_charsmap");
    return tokenizer_charsmap_open(&change->table, map, err);
}

static int read_change(struct tokenizer_change *change, const json_t *step, struct error *err)
{
    static const struct {
        const char *type;
        enum tokenizer_change_kind kind;
        enum tokenizer_form form;
    } types[] = {
        {"NFC", TOKENIZER_FORM, TOKENIZER_NFC},   {"NFD", TOKENIZER_FORM, TOKENIZER_NFD},
        {"NFKC", TOKENIZER_FORM, TOKENIZER_NFKC}, {"NFKD", TOKENIZER_FORM, TOKENIZER_NFKD},
        {"Lowercase", TOKENIZER_LOWER, 0},        {"StripAccents", TOKENIZER_MARKS, 0},
        {"BertNormalizer", TOKENIZER_BERT, 0},    {"Replace", TOKENIZER_REPLACE, 0},
        {"Prepend", TOKENIZER_PREPEND, 0},        {"Strip", TOKENIZER_STRIP, 0},
        {"Precompiled", TOKENIZER_TABLE, 0},
    };
    const json_t *accents = json_object_get(step, "strip_accents");

    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(tokenizer_type(step), types[i].type) != 0)
            continue;
        *change = (struct tokenizer_change){.kind = types[i].kind,
                                            .form = types[i].form,
                                            .left = changes_flag(step, "strip_left"),
                                            .right = changes_flag(step, "strip_right"),
                                            .clean = changes_flag(step, "clean_text"),
                                            .han = changes_flag(step, "handle_chinese_chars"),
                                            .lower = changes_flag(step, "lowercase")};
        change->accents = json_is_boolean(accents) ? json_is_true(accents) : change->lower;
        if (change->kind == TOKENIZER_REPLACE)
            return changes_read_replace(change, step, err);
        if (change->kind == TOKENIZER_TABLE)
            return changes_read_table(change, step, err);
        return change->kind == TOKENIZER_PREPEND ? read_prepend(change, step, err) : 0;
    }
    return tokenizer_refuse(err, "normalizer", tokenizer_type(step));
}

static int changes_read_step(struct client_tokenizer *t, const json_t *step, struct error *err)
{
    struct tokenizer_change change = {0};
    int rc = read_change(&change, step, err);

    if (!rc)
        return tokenizer_changes_add(&t->normal, change, err);
    free_change(&change);
    return rc;
}

int tokenizer_read_normalizer(struct client_tokenizer *t, const json_t *normalizer, struct error *err)
{
    return tokenizer_read_part(t, normalizer, "normalizer", "normalizers", changes_read_step, err);
}
