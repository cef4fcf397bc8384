/* Texts of several hands: special tokens count in some parts alone, and the tokens of some places are asked for. Places
 * are followed through each change to the text. */
#include "client/text/tokenizer/tokenizer_internal.h"

#include "client/text/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- Special tokens in plain text ---- */

enum cover { COVERS_NONE, COVERS_SOME, COVERS_ALL };

static enum cover cover_of(const struct tokenizer_marks *marks, size_t from, size_t to)
{
    for (size_t i = 0; i + 1 < marks->n_plain && marks->plain[i] < to; i += 2)
        if (marks->plain[i + 1] > from)
            return marks->plain[i] <= from && marks->plain[i + 1] >= to ? COVERS_ALL : COVERS_SOME;
    return COVERS_NONE;
}

/* As in tokenizers, what a hidden token's text holds is not looked at again, if all of it is plain. */
bool tokenizer_marks_hide(const struct tokenizer_added **token, size_t *skipped, struct tokenizer_marks *marks,
                          const struct tokenizer_set *set, const char *text, size_t at)
{
    const struct tokenizer_added *end = set->tokens + set->n, *next = *token;

    for (; marks && next < end && *next->text == text[at]; next++) {
        if (memcmp(next->text, text + at, next->n) != 0)
            continue;
        const enum cover cover = next->special ? cover_of(marks, at, at + next->n) : COVERS_NONE;
        if (cover == COVERS_NONE) {
            *token = next;
            return false;
        }
        if (cover == COVERS_ALL) {
            *skipped = at + next->n;
            marks->n_hidden++;
            return true;
        }
    }
    *skipped = at + 1;
    return marks != NULL;
}

/* ---- The tokens of places ---- */

void tokenizer_marks_pass(struct tokenizer_marks *marks, size_t end, size_t token)
{
    while (marks && marks->next < marks->n && marks->at[marks->next] < end)
        marks->token[marks->next++] = token;
}

/* Bytes at the begin of text (n bytes, at least one) that the unknown token stands for: a character, or all up to one
 * that is known. */
static size_t unknown_bytes(const struct client_tokenizer *t, const char *text, size_t n)
{
    size_t at = 0;

    do {
        const int whole = client_utf8_character((const uint8_t *)text + at, n - at);
        at += whole > 0 ? (size_t)whole : 1;
    } while (t->fuses && at < n &&
             tokenizer_find_id(t, text + at, (size_t)client_utf8_character((const uint8_t *)text + at, n - at)) ==
                 CLIENT_NO_TOKEN);
    return at;
}

/* Bytes at the begin of text (n bytes, at least one) that a token stands for. */
static size_t marks_bytes_of(const struct client_tokenizer *t, uint32_t id, const char *text, size_t n)
{
    const struct tokenizer_token *token = &t->tokens[id];

    if (!t->byte_level && id == t->unknown)
        return unknown_bytes(t, text, n);
    if (!t->byte_level && id == t->bytes[(uint8_t)*text] && (token->n != 1 || *token->text != *text))
        return 1; /* <0xE2> */
    return token->n < n ? token->n : n;
}

void tokenizer_marks_pass_word(struct tokenizer_marks *marks, const struct client_tokenizer *t, const char *text,
                               size_t from, size_t end, const uint32_t *ids, size_t n_ids, size_t token)
{
    if (!marks || marks->next == marks->n || marks->at[marks->next] >= end)
        return;
    for (size_t i = 0; i < n_ids && from < end; i++) {
        from = i + 1 == n_ids ? end : from + marks_bytes_of(t, ids[i], text + from, end - from);
        tokenizer_marks_pass(marks, from, token + i);
    }
}

/* ---- Changes ---- */

/* The place in the changed text of a place in the text, between two characters: what the changes make of the text
 * before it. Where that is no beginning of the changed text, as they join the characters on both sides, a begin goes
 * before these, and an end behind them. */
static int marks_translate(size_t *place, bool end, struct client_text *made, struct tokenizer_work *work,
                           const struct tokenizer_changed *c, struct error *err)
{
    size_t at = *place;

    while (at > c->from && at < c->to) {
        bool first = c->first;
        made->n = 0;
        const int rc =
            tokenizer_changes_apply(made, c->changes, work, c->text + c->from, at - c->from, c->begins, &first, err);
        if (rc)
            return rc;
        if (made->n <= c->n_made && (made->n == 0 || memcmp(made->bytes, c->made, made->n) == 0)) {
            *place = made->n;
            return 0;
        }
        at = end ? at + (size_t)client_utf8_character((const uint8_t *)c->text + at, c->to - at)
                 : client_utf8_before(c->text, c->from, at);
    }
    *place = at <= c->from ? 0 : c->n_made + at - c->to;
    return 0;
}

/* ends (NULL: there are none): those places are of the byte before an end. */
static int translate_all(size_t *places, const bool *ends, size_t n, struct tokenizer_work *work,
                         const struct tokenizer_changed *c, struct error *err)
{
    struct client_text made = {0};
    int rc = 0;

    for (size_t i = 0; !rc && i < n; i++) {
        const bool end = ends && ends[i];
        places[i] += end;
        rc = marks_translate(&places[i], end, &made, work, c, err);
        places[i] -= end && places[i] > 0;
    }
    free(made.bytes);
    return rc;
}

int tokenizer_marks_enter(size_t **kept, struct tokenizer_marks *marks, struct tokenizer_work *work,
                          const struct tokenizer_changed *changed, struct error *err)
{
    *kept = NULL;
    if (!marks || marks->n + marks->n_plain == 0)
        return 0;
    *kept = malloc((marks->n + marks->n_plain) * sizeof **kept);
    if (!*kept)
        return error_memory(err);
    memcpy(*kept, marks->at, marks->n * sizeof **kept);
    memcpy(*kept + marks->n, marks->plain, marks->n_plain * sizeof **kept);
    int rc =
        translate_all(marks->at + marks->next, marks->ends + marks->next, marks->n - marks->next, work, changed, err);
    if (!rc)
        rc = translate_all(marks->plain, NULL, marks->n_plain, work, changed, err);
    if (rc)
        tokenizer_marks_return(marks, *kept);
    return rc;
}

void tokenizer_marks_return(struct tokenizer_marks *marks, size_t *kept)
{
    if (!kept)
        return;
    memcpy(marks->at, kept, marks->n * sizeof *kept);
    memcpy(marks->plain, kept + marks->n, marks->n_plain * sizeof *kept);
    free(kept);
}

/* ---- All of it ---- */

static int marks_encode(struct client_tokens *out, struct client_tokenizer *t, const struct client_marked *marked,
                        struct error *err)
{
    size_t used;

    tokenizer_work_allow(&t->work, marked->n * (1 + marked->n_places + marked->n_plain));
    return tokenizer_encode_text(out, &used, t, marked->text, marked->n, true, err);
}

static int marks_find_tokens(struct client_tokens *out, struct tokenizer_marks *marks, struct client_tokenizer *t,
                             const struct client_marked *marked, struct error *err)
{
    const size_t before = out->n;
    const size_t whole = t->is_bytes ? marked->n : client_utf8_whole((const uint8_t *)marked->text, marked->n);
    size_t used;
    int rc;

    t->work.n_spelled = 0;
    if (whole < marked->n)
        return error_set(err, -EINVAL, "not UTF-8 text at byte %zu (0x%02X)", whole, (uint8_t)marked->text[whole]);
    if (t->is_bytes) {
        rc = client_tokenizer_encode(out, &used, t, marked->text, marked->n, true, err);
        for (; marks->next < marks->n; marks->next++)
            marks->token[marks->next] = before + marks->at[marks->next];
        return rc;
    }
    t->work.marks = marks;
    rc = marks_encode(out, t, marked, err);
    t->work.marks = NULL;
    tokenizer_marks_pass(marks, SIZE_MAX, out->n);
    t->work.n_spelled = marks->n_hidden;
    return rc;
}

int client_tokenizer_encode_marked(struct client_tokens *out, size_t *tokens, struct client_tokenizer *t,
                                   const struct client_marked *marked, struct error *err)
{
    size_t *copies = malloc((marked->n_places + marked->n_plain + 1) * sizeof *copies);
    bool *ends = malloc(marked->n_places + 1);
    struct tokenizer_marks marks = {
        .at = copies, .ends = ends, .token = tokens, .n = marked->n_places, .n_plain = marked->n_plain};
    int rc = 0;

    if (copies && ends) {
        marks.plain = copies + marks.n;
        for (size_t i = 0; i < marks.n; i++) {
            ends[i] = marked->places[i].end;
            copies[i] = marked->places[i].at - ends[i];
        }
        if (marks.n_plain > 0)
            memcpy(marks.plain, marked->plain, marks.n_plain * sizeof *copies);
        rc = marks_find_tokens(out, &marks, t, marked, err);
    } else {
        rc = error_memory(err);
    }
    free(copies);
    free(ends);
    return rc;
}
