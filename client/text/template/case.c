/* Upper and lower case of a template's texts, as Python's str has them: a character may become several (ß is SS), and a
 * sigma at a word's end is another one. utf8proc has what is one for one; the rest is Unicode's SpecialCasing, which is
 * the same in all versions since 5. */
#include "client/text/template/template_internal.h"

#include <string.h>
#include <utf8proc.h>

struct special {
    uint32_t c;
    const char *upper, *title;
};

static const struct special specials[] = {{0xDF, "SS", "Ss"},
                                          {0x149, "\u02BCN", "\u02BCN"},
                                          {0x1F0, "J\u030C", "J\u030C"},
                                          {0x390, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
                                          {0x3B0, "\u03A5\u0308\u0301", "\u03A5\u0308\u0301"},
                                          {0x587, "\u0535\u0552", "\u0535\u0582"},
                                          {0x1E96, "H\u0331", "H\u0331"},
                                          {0x1E97, "T\u0308", "T\u0308"},
                                          {0x1E98, "W\u030A", "W\u030A"},
                                          {0x1E99, "Y\u030A", "Y\u030A"},
                                          {0x1E9A, "A\u02BE", "A\u02BE"},
                                          {0x1F50, "\u03A5\u0313", "\u03A5\u0313"},
                                          {0x1F52, "\u03A5\u0313\u0300", "\u03A5\u0313\u0300"},
                                          {0x1F54, "\u03A5\u0313\u0301", "\u03A5\u0313\u0301"},
                                          {0x1F56, "\u03A5\u0313\u0342", "\u03A5\u0313\u0342"},
                                          {0x1F80, "\u1F08\u0399", "\u1F88"},
                                          {0x1F81, "\u1F09\u0399", "\u1F89"},
                                          {0x1F82, "\u1F0A\u0399", "\u1F8A"},
                                          {0x1F83, "\u1F0B\u0399", "\u1F8B"},
                                          {0x1F84, "\u1F0C\u0399", "\u1F8C"},
                                          {0x1F85, "\u1F0D\u0399", "\u1F8D"},
                                          {0x1F86, "\u1F0E\u0399", "\u1F8E"},
                                          {0x1F87, "\u1F0F\u0399", "\u1F8F"},
                                          {0x1F88, "\u1F08\u0399", "\u1F88"},
                                          {0x1F89, "\u1F09\u0399", "\u1F89"},
                                          {0x1F8A, "\u1F0A\u0399", "\u1F8A"},
                                          {0x1F8B, "\u1F0B\u0399", "\u1F8B"},
                                          {0x1F8C, "\u1F0C\u0399", "\u1F8C"},
                                          {0x1F8D, "\u1F0D\u0399", "\u1F8D"},
                                          {0x1F8E, "\u1F0E\u0399", "\u1F8E"},
                                          {0x1F8F, "\u1F0F\u0399", "\u1F8F"},
                                          {0x1F90, "\u1F28\u0399", "\u1F98"},
                                          {0x1F91, "\u1F29\u0399", "\u1F99"},
                                          {0x1F92, "\u1F2A\u0399", "\u1F9A"},
                                          {0x1F93, "\u1F2B\u0399", "\u1F9B"},
                                          {0x1F94, "\u1F2C\u0399", "\u1F9C"},
                                          {0x1F95, "\u1F2D\u0399", "\u1F9D"},
                                          {0x1F96, "\u1F2E\u0399", "\u1F9E"},
                                          {0x1F97, "\u1F2F\u0399", "\u1F9F"},
                                          {0x1F98, "\u1F28\u0399", "\u1F98"},
                                          {0x1F99, "\u1F29\u0399", "\u1F99"},
                                          {0x1F9A, "\u1F2A\u0399", "\u1F9A"},
                                          {0x1F9B, "\u1F2B\u0399", "\u1F9B"},
                                          {0x1F9C, "\u1F2C\u0399", "\u1F9C"},
                                          {0x1F9D, "\u1F2D\u0399", "\u1F9D"},
                                          {0x1F9E, "\u1F2E\u0399", "\u1F9E"},
                                          {0x1F9F, "\u1F2F\u0399", "\u1F9F"},
                                          {0x1FA0, "\u1F68\u0399", "\u1FA8"},
                                          {0x1FA1, "\u1F69\u0399", "\u1FA9"},
                                          {0x1FA2, "\u1F6A\u0399", "\u1FAA"},
                                          {0x1FA3, "\u1F6B\u0399", "\u1FAB"},
                                          {0x1FA4, "\u1F6C\u0399", "\u1FAC"},
                                          {0x1FA5, "\u1F6D\u0399", "\u1FAD"},
                                          {0x1FA6, "\u1F6E\u0399", "\u1FAE"},
                                          {0x1FA7, "\u1F6F\u0399", "\u1FAF"},
                                          {0x1FA8, "\u1F68\u0399", "\u1FA8"},
                                          {0x1FA9, "\u1F69\u0399", "\u1FA9"},
                                          {0x1FAA, "\u1F6A\u0399", "\u1FAA"},
                                          {0x1FAB, "\u1F6B\u0399", "\u1FAB"},
                                          {0x1FAC, "\u1F6C\u0399", "\u1FAC"},
                                          {0x1FAD, "\u1F6D\u0399", "\u1FAD"},
                                          {0x1FAE, "\u1F6E\u0399", "\u1FAE"},
                                          {0x1FAF, "\u1F6F\u0399", "\u1FAF"},
                                          {0x1FB2, "\u1FBA\u0399", "\u1FBA\u0345"},
                                          {0x1FB3, "\u0391\u0399", "\u1FBC"},
                                          {0x1FB4, "\u0386\u0399", "\u0386\u0345"},
                                          {0x1FB6, "\u0391\u0342", "\u0391\u0342"},
                                          {0x1FB7, "\u0391\u0342\u0399", "\u0391\u0342\u0345"},
                                          {0x1FBC, "\u0391\u0399", "\u1FBC"},
                                          {0x1FC2, "\u1FCA\u0399", "\u1FCA\u0345"},
                                          {0x1FC3, "\u0397\u0399", "\u1FCC"},
                                          {0x1FC4, "\u0389\u0399", "\u0389\u0345"},
                                          {0x1FC6, "\u0397\u0342", "\u0397\u0342"},
                                          {0x1FC7, "\u0397\u0342\u0399", "\u0397\u0342\u0345"},
                                          {0x1FCC, "\u0397\u0399", "\u1FCC"},
                                          {0x1FD2, "\u0399\u0308\u0300", "\u0399\u0308\u0300"},
                                          {0x1FD3, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
                                          {0x1FD6, "\u0399\u0342", "\u0399\u0342"},
                                          {0x1FD7, "\u0399\u0308\u0342", "\u0399\u0308\u0342"},
                                          {0x1FE2, "\u03A5\u0308\u0300", "\u03A5\u0308\u0300"},
                                          {0x1FE3, "\u03A5\u0308\u0301", "\u03A5\u0308\u0301"},
                                          {0x1FE4, "\u03A1\u0313", "\u03A1\u0313"},
                                          {0x1FE6, "\u03A5\u0342", "\u03A5\u0342"},
                                          {0x1FE7, "\u03A5\u0308\u0342", "\u03A5\u0308\u0342"},
                                          {0x1FF2, "\u1FFA\u0399", "\u1FFA\u0345"},
                                          {0x1FF3, "\u03A9\u0399", "\u1FFC"},
                                          {0x1FF4, "\u038F\u0399", "\u038F\u0345"},
                                          {0x1FF6, "\u03A9\u0342", "\u03A9\u0342"},
                                          {0x1FF7, "\u03A9\u0342\u0399", "\u03A9\u0342\u0345"},
                                          {0x1FFC, "\u03A9\u0399", "\u1FFC"},
                                          {0xFB00, "FF", "Ff"},
                                          {0xFB01, "FI", "Fi"},
                                          {0xFB02, "FL", "Fl"},
                                          {0xFB03, "FFI", "Ffi"},
                                          {0xFB04, "FFL", "Ffl"},
                                          {0xFB05, "ST", "St"},
                                          {0xFB06, "ST", "St"},
                                          {0xFB13, "\u0544\u0546", "\u0544\u0576"},
                                          {0xFB14, "\u0544\u0535", "\u0544\u0565"},
                                          {0xFB15, "\u0544\u053B", "\u0544\u056B"},
                                          {0xFB16, "\u054E\u0546", "\u054E\u0576"},
                                          {0xFB17, "\u0544\u053D", "\u0544\u056D"}};

/* Letters beyond categories Lu, Ll and Lt that have a case (Other_Lowercase, Other_Uppercase): first and last. */
static const uint32_t cased[][2] = {{0xaa, 0xaa},       {0xba, 0xba},       {0x2b0, 0x2b8},     {0x2c0, 0x2c1},
                                    {0x2e0, 0x2e4},     {0x345, 0x345},     {0x37a, 0x37a},     {0x1d2c, 0x1d6a},
                                    {0x1d78, 0x1d78},   {0x1d9b, 0x1dbf},   {0x2071, 0x2071},   {0x207f, 0x207f},
                                    {0x2090, 0x209c},   {0x2160, 0x217f},   {0x24b6, 0x24e9},   {0x2c7c, 0x2c7d},
                                    {0xa69c, 0xa69d},   {0xa770, 0xa770},   {0xa7f8, 0xa7f9},   {0xab5c, 0xab5f},
                                    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba},
                                    {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};

/* Punctuation that is passed where a word's end is looked for. */
static const uint32_t ignorable[] = {0x27,   0x2e,   0x3a,   0xb7,   0x387,  0x55f,  0x5f4,  0x2018, 0x2019,
                                     0x2024, 0x2027, 0xfe13, 0xfe52, 0xfe55, 0xff07, 0xff0e, 0xff1a};

enum { SIGMA = 0x3A3, SMALL_SIGMA = 0x3C3, FINAL_SIGMA = 0x3C2, DOTTED_I = 0x130 };

static bool is_cased(uint32_t c)
{
    const utf8proc_category_t of = utf8proc_category((utf8proc_int32_t)c);

    if (of == UTF8PROC_CATEGORY_LU || of == UTF8PROC_CATEGORY_LL || of == UTF8PROC_CATEGORY_LT)
        return true;
    for (size_t i = 0; c >= 0x80 && i < sizeof cased / sizeof *cased; i++)
        if (c >= cased[i][0] && c <= cased[i][1])
            return true;
    return false;
}

static bool is_ignorable(uint32_t c)
{
    const utf8proc_category_t of = utf8proc_category((utf8proc_int32_t)c);

    for (size_t i = 0; i < sizeof ignorable / sizeof *ignorable; i++)
        if (c == ignorable[i])
            return true;
    return of == UTF8PROC_CATEGORY_MN || of == UTF8PROC_CATEGORY_ME || of == UTF8PROC_CATEGORY_CF ||
           of == UTF8PROC_CATEGORY_LM || of == UTF8PROC_CATEGORY_SK;
}

/* Of a sigma at `at`: a letter is before it, from `from` on, and none after it. */
static bool ends_word(struct template_run *r, const char *text, size_t from, size_t at, size_t n)
{
    unsigned length;
    uint32_t c = 0;
    size_t before = at, after = at + 2;

    do {
        if (before == from)
            return false;
        before = client_utf8_before(text, from, before);
        c = tokenizer_character(text + before, &length);
    } while (is_ignorable(c));
    if (!is_cased(c))
        return false;
    for (; after < n; after += length) {
        c = tokenizer_character(text + after, &length);
        if (!is_ignorable(c))
            break;
    }
    template_charge(r, after - before);
    return after >= n || !is_cased(c);
}

static const struct special *find_special(uint32_t c)
{
    for (size_t i = 0; c >= 0x80 && i < sizeof specials / sizeof *specials; i++)
        if (specials[i].c == c)
            return &specials[i];
    return NULL;
}

enum letter_case { LOWER, UPPER, TITLE };

/* A character of a text in a word that begins at `word`. */
struct place {
    const char *text; /* (n) */
    size_t word, at, n;
};

/* Writes it in another case: at most 9 bytes. */
static size_t case_change(char out[16], struct template_run *r, const struct place *p, enum letter_case to)
{
    unsigned length;
    const uint32_t c = tokenizer_character(p->text + p->at, &length);
    const struct special *special = to == LOWER ? NULL : find_special(c);
    const utf8proc_int32_t simple = (utf8proc_int32_t)c;

    if (special) {
        const char *is = to == UPPER ? special->upper : special->title;
        memcpy(out, is, strlen(is));
        return strlen(is);
    }
    if (to == LOWER && c == DOTTED_I) {
        memcpy(out, "i\u0307", 3);
        return 3;
    }
    if (to == LOWER && c == SIGMA)
        return tokenizer_put_character(out, ends_word(r, p->text, p->word, p->at, p->n) ? FINAL_SIGMA : SMALL_SIGMA);
    return tokenizer_put_character(out, (uint32_t)(to == LOWER   ? utf8proc_tolower(simple)
                                                   : to == UPPER ? utf8proc_toupper(simple)
                                                                 : utf8proc_totitle(simple)));
}

/* Appends n bytes that were made of the character at `from`, with its label. */
static bool add_changed(struct template_run *r, struct template_text *text, const char *bytes, size_t n,
                        const json_t *string, size_t from)
{
    const struct template_labelled *known = template_labels_of(r, string);
    const size_t at = text->bytes.n;

    if (!template_add(r, text, bytes, n))
        return false;
    for (size_t i = 0; known && i < n; i++)
        text->labels[at + i] = known->labels ? known->labels[from] : CLIENT_LABEL_UNTRUSTED;
    return true;
}

/* Of a word's characters, the first in title case: with `words` after each that has no case (str.title), with
 * `separators` after blanks and brackets (the filter title, which takes upper case), else of the text alone. */
struct rule {
    enum letter_case first, rest;
    bool words, separators;
};

static bool is_separator(char c)
{
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
}

static json_t *change_text(struct template_run *r, const json_t *string, const struct rule *rule)
{
    const char *text = json_string_value(string);
    const size_t n = json_string_length(string);
    struct template_text out = {0};
    struct place p = {text, 0, 0, n};
    bool first = true;

    for (size_t at = 0, length; !r->rc && at < n; at += length) {
        char made[16];
        unsigned n_character;
        const uint32_t c = tokenizer_character(text + at, &n_character);
        length = n_character;
        p.at = at;
        const size_t n_made = case_change(made, r, &p, first ? rule->first : rule->rest);
        if (first && rule->separators) /* its rest is put into lower case by itself */
            p.word = at + length;
        add_changed(r, &out, made, n_made, string, at);
        first = (rule->words && !is_cased(c)) ||
                (rule->separators && (is_separator(text[at]) || template_blank(text + at) > 0));
    }
    return template_take(r, &out);
}

json_t *template_lower(struct template_run *r, const json_t *string)
{
    return change_text(r, string, &(struct rule){LOWER, LOWER, false, false});
}

/* islower: a cased character that is not upper or title case, and none that is; isupper likewise. */
json_t *template_is_case(struct template_run *r, const json_t *string, bool upper)
{
    const char *text = json_string_value(string);
    const size_t n = json_string_length(string);
    bool any = false, other = false;
    unsigned length;

    template_charge(r, n);
    for (size_t at = 0; at < n && !other; at += length) {
        const uint32_t c = tokenizer_character(text + at, &length);
        const utf8proc_category_t of = utf8proc_category((utf8proc_int32_t)c);
        if (!is_cased(c))
            continue;
        const bool capital = of == UTF8PROC_CATEGORY_LU || utf8proc_tolower((utf8proc_int32_t)c) != (utf8proc_int32_t)c;
        any = true;
        other = capital != upper || of == UTF8PROC_CATEGORY_LT;
    }
    return json_boolean(any && !other);
}

/* upper, lower, capitalize, title: of a text; as filters of any value's text. */
static json_t *change_case(struct template_run *r, const struct template_call *c, bool is_filter)
{
    struct template_text printed = {0};
    const char kind = c->name->text[0];
    const struct rule rule = {.first = kind == 'l'                ? LOWER
                                       : kind == 'u'              ? UPPER
                                       : kind == 't' && is_filter ? UPPER
                                                                  : TITLE,
                              .rest = kind == 'u' ? UPPER : LOWER,
                              .words = kind == 't' && !is_filter,
                              .separators = kind == 't' && is_filter};

    if (c->arguments->n > 0)
        return template_refuse(r, c);
    template_print(r, c->at, &printed, c->value);
    json_t *string = template_take(r, &printed), *out = string ? change_text(r, string, &rule) : NULL;
    json_decref(string);
    return out;
}

json_t *template_change_case(struct template_run *r, const struct template_call *c)
{
    return change_case(r, c, false);
}

json_t *template_filter_case(struct template_run *r, const struct template_call *c)
{
    return change_case(r, c, true);
}
