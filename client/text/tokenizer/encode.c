/* Text into tokens: added tokens, changes to the text between them, then words. */
#include "client/text/tokenizer/tokenizer_internal.h"

#include "client/text/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- Beside a token ---- */

static size_t encode_skip_blanks(const char *text, size_t at, size_t to)
{
    unsigned length;

    while (at < to && tokenizer_is_blank(tokenizer_character(text + at, &length)))
        at += length;
    return at;
}

/* Start of the run of whitespace that ends at `at`. */
static size_t before_blanks(const char *text, size_t from, size_t at)
{
    unsigned length;

    while (at > from) {
        const size_t begin = client_utf8_before(text, from, at);
        if (!tokenizer_is_blank(tokenizer_character(text + begin, &length)))
            break;
        at = begin;
    }
    return at;
}

/* The character before `at`; `before` is the one before `from`. */
static uint32_t character_before(const char *text, size_t from, size_t at, uint32_t before)
{
    unsigned length;

    return at > from ? tokenizer_character(text + client_utf8_before(text, from, at), &length) : before;
}

/* No word character stands beside a single word. */
static bool stands_alone(const struct tokenizer_added *token, const struct tokenizer_segment *s, size_t at,
                         uint32_t before)
{
    const size_t end = at + token->n;
    const uint32_t left = character_before(s->text, s->from, at, before);
    unsigned length;

    return !token->single_word || ((left == 0 || !tokenizer_is_word(left)) &&
                                   (end == s->to || !tokenizer_is_word(tokenizer_character(s->text + end, &length))));
}

/* Finds the first token that begins in [from, limit) and ends in the segment; NULL: there is none. */
static int encode_find(const struct tokenizer_added **out, size_t *at, struct client_tokenizer *t,
                       const struct tokenizer_set *set, const struct tokenizer_segment *s, size_t from, size_t limit,
                       uint32_t before, struct error *err)
{
    enum { MANY = 1 << 16 };
    struct tokenizer_marks *marks = t->work.marks;
    uint64_t steps = 0;
    int rc = 0;

    *out = NULL;
    for (*at = from; !rc && set->n > 0 && *at < limit;) {
        const uint8_t byte = (uint8_t)s->text[*at];
        const struct tokenizer_added *token = set->first[byte] < set->first[byte + 1]
                                                  ? tokenizer_added_at(set, s->text + *at, s->to - *at, &steps)
                                                  : NULL;
        size_t skipped;
        if (steps > MANY) {
            rc = tokenizer_matcher_spend(&t->work.matcher, steps, "added_tokens", err);
            steps = 0;
        }
        if (token && set->splits && token->special) {
            *at += token->n;
            continue;
        }
        if (token && tokenizer_marks_hide(&token, &skipped, marks, set, s->text, *at)) {
            *at = skipped;
            continue;
        }
        if (token && stands_alone(token, s, *at, before)) {
            *out = token;
            break;
        }
        *at += token ? token->n : 1;
    }
    return rc ? rc : tokenizer_matcher_spend(&t->work.matcher, steps, "added_tokens", err);
}

/* ---- Two levels: tokens in the text as it is, tokens in the changed text ---- */

static int encode_encode(struct client_tokens *out, size_t *used, struct client_tokenizer *t, unsigned level,
                         struct tokenizer_segment s, struct error *err);

/* Behind the changes of level 0 tokens are looked for again; behind those of level 1 the text is cut into words. */
static int encode_next(struct client_tokens *out, size_t *used, struct client_tokenizer *t, unsigned level,
                       struct tokenizer_segment s, struct error *err)
{
    return level == 0 ? encode_encode(out, used, t, 1, s, err) : tokenizer_encode_steps(out, used, t, 0, s, err);
}

/* Changes text without a token of this level, and encodes what has been changed so far. */
static int tokenizer_encode_changed(struct client_tokens *out, size_t *used, struct client_tokenizer *t, unsigned level,
                                    struct tokenizer_segment s, struct error *err)
{
    const struct tokenizer_changes *changes = level == 0 ? &t->normal : &t->lead;
    struct tokenizer_held *held = &t->work.held[level];
    const bool begins = !held->begun, first = s.first;
    size_t end = s.to, done, *kept;

    *used = s.from;
    if (changes->n == 0)
        return encode_next(out, used, t, level, s, err);
    if (!s.closed)
        end = changes->whole || s.to == s.from ? s.from : tokenizer_changes_cut(changes, s.text, s.from, s.to);
    if (!s.closed && end == s.from)
        return 0;
    int rc =
        tokenizer_changes_apply(&held->text, changes, &t->work, s.text + s.from, end - s.from, begins, &s.first, err);
    if (rc)
        return rc;
    if (!held->begun)
        held->first = s.first;
    held->begun = held->begun || held->text.n > 0;
    const struct tokenizer_segment changed = {held->text.bytes, 0, held->text.n, s.closed, held->first};
    const struct tokenizer_changed change = {changes, s.text, s.from, end, begins, first, changed.text, changed.to};
    rc = tokenizer_marks_enter(&kept, t->work.marks, &t->work, &change, err);
    if (rc)
        return rc;
    rc = encode_next(out, &done, t, level, changed, err);
    tokenizer_marks_return(t->work.marks, kept);
    if (rc)
        return rc;
    *used = end;
    if (s.closed) {
        held->begun = false;
        done = held->text.n;
    }
    held->first = held->first && done == 0;
    held->text.n -= done;
    if (held->text.n > 0)
        memmove(held->text.bytes, held->text.bytes + done, held->text.n);
    return 0;
}

/* Encodes a segment without a token of this level, or without one that is certain yet: none begins before `limit`. */
static int encode_rest(struct client_tokens *out, size_t *used, struct client_tokenizer *t, unsigned level,
                       struct tokenizer_segment s, size_t limit, struct error *err)
{
    if (!s.closed) {
        while (limit > s.from && limit < s.to && ((uint8_t)s.text[limit] & 0xC0) == 0x80)
            limit--;
        s.to = t->added[level].lstrip ? before_blanks(s.text, s.from, limit) : limit;
    }
    return tokenizer_encode_changed(out, used, t, level, s, err);
}

static int encode_refuse(const struct tokenizer_added *token, struct error *err)
{
    return error_set(err, -EINVAL,
                     "the token %.*s is one of tokenizer.json's added_tokens, and not in the added_tokens_decoder of "
                     "tokenizer_config.json, by which transformers goes with this tokenizer_class: make them agree",
                     token->n > 60 ? 60 : (int)token->n, token->text);
}

static int encode_tokens(struct client_tokens *out, size_t *used, struct client_tokenizer *t, unsigned level,
                         struct tokenizer_segment s, uint32_t before, struct error *err)
{
    const struct tokenizer_set *set = &t->added[level];
    const struct tokenizer_segment all = s;
    const struct tokenizer_added *token;
    size_t at, done, next = s.from, run = s.from, n_before = out->n; /* run: where tokens over one another begin */

    for (;;) {
        /* A token that begins behind the limit may extend beyond the segment, or have a word character beside it. */
        const size_t open = set->longest > 0 && !s.closed ? set->longest - 1 + (set->single_word ? 4 : 0) : 0;
        const size_t limit = s.to - s.from > open ? s.to - open : s.from;
        int rc = encode_find(&token, &at, t, set, &all, next, limit, before, err);
        if (rc)
            return rc;
        if (!token)
            return encode_rest(out, used, t, level, s, limit, err);
        const size_t begin = token->lstrip ? before_blanks(s.text, s.from, at) : at;
        /* In whitespace that one before has taken, that is known to end here. */
        const size_t end = !token->rstrip                           ? at + token->n
                           : at + token->n <= s.from && at < s.from ? s.from
                                                                    : encode_skip_blanks(s.text, at + token->n, s.to);
        if (at >= s.from) {
            rc = tokenizer_encode_changed(out, &done, t, level,
                                          (struct tokenizer_segment){s.text, s.from, begin, true, s.first}, err);
            run = begin, n_before = out->n;
        }
        /* More whitespace may follow, or a token may begin in what there is of it. */
        if (!rc && token->rstrip && !s.closed && end + open >= s.to) {
            *used = run, out->n = n_before;
            return 0;
        }
        tokenizer_marks_pass(t->work.marks, end, out->n);
        if (!rc && (token->refused || token->id >= t->n_table)) {
            *used = begin;
            rc = token->refused ? encode_refuse(token, err) : client_tokenizer_check(t, token->id, err);
        }
        if (!rc)
            rc = client_tokens_add(out, &token->id, 1, err);
        if (rc)
            return rc;
        next = at + token->n; /* the package finds tokens in whitespace that one before them has taken */
        s.from = *used = end;
        s.first = false;
    }
}

static int encode_encode(struct client_tokens *out, size_t *used, struct client_tokenizer *t, unsigned level,
                         struct tokenizer_segment s, struct error *err)
{
    struct tokenizer_held *held = &t->work.held[level];
    const uint32_t before = held->before;

    *used = s.from;
    int rc = encode_tokens(out, used, t, level, s, before, err);
    /* A single word that begins the next piece is judged by the character before it. */
    held->before = s.closed ? 0 : character_before(s.text, s.from, *used, before);
    return rc;
}

/* What belongs to one text alone; caches stay. */
void tokenizer_forget(struct tokenizer_work *work)
{
    for (unsigned level = 0; level < 2; level++) {
        struct tokenizer_held *held = &work->held[level];
        held->text.n = 0;
        held->begun = held->first = false;
        held->before = 0;
    }
    work->begun = work->led = false;
}

/* Bytes at the begin of a text that are those of the tokens already put before it; *waits: more text must come
 * first. */
static size_t led_bytes(bool *waits, const struct client_tokenizer *t, const char *text, size_t n, bool last)
{
    size_t at = 0;
    uint64_t steps = 0; /* once a text: not worth counting */

    *waits = false;
    for (size_t i = 0; i < t->n_ends[0]; i++) {
        const struct tokenizer_token *token = &t->tokens[t->ends[0][i]];
        const size_t left = n - at, seen = left < token->n ? left : token->n;
        if (t->added[0].n == 0 || memcmp(text + at, token->text, seen) != 0)
            return 0;
        *waits = !last && left < t->added[0].longest; /* a longer token may begin like this one */
        if (*waits)
            return 0;
        const struct tokenizer_added *added =
            left > 0 ? tokenizer_added_at(&t->added[0], text + at, left, &steps) : NULL;
        if (!added || added->id != t->ends[0][i] || added->rstrip || (t->added[0].splits && added->special))
            return 0;
        at += added->n;
    }
    return at;
}

/* No other tokens are told apart: what is kept of a text would differ for nothing. */
static uint32_t final_of(const struct client_tokenizer *t, uint32_t id)
{
    return id == t->end || (t->n_ends[1] > 0 && id == t->ends[1][t->n_ends[1] - 1]) ? id : CLIENT_NO_TOKEN;
}

int tokenizer_encode_text(struct client_tokens *out, size_t *used, struct client_tokenizer *t, const char *text,
                          size_t n, bool last, struct error *err)
{
    bool waits = false;
    const size_t from = t->work.led ? led_bytes(&waits, t, text, n, last) : 0;

    *used = 0;
    if (waits)
        return 0;
    t->work.led = false;
    t->work.begun = t->work.begun || from > 0;
    const size_t before = out->n;
    int rc = encode_encode(out, used, t, 0, (struct tokenizer_segment){text, from, n, last, !t->work.begun}, err);

    t->work.begun = t->work.begun || *used > 0;
    if (out->n > before)
        t->work.final = final_of(t, out->ids[out->n - 1]);
    if (rc || last)
        tokenizer_forget(&t->work);
    return rc;
}

/* ---- What is kept between two calls ---- */

/* In front of the texts that are held. Compared byte by byte, so it is zeroed first. */
struct head {
    size_t n[2];
    uint32_t before[2], final;
    uint8_t begun[2], first[2], text_begun, text_led;
};

int client_tokenizer_save(struct client_text *out, const struct client_tokenizer *t, struct error *err)
{
    const struct tokenizer_held *held = t->work.held;
    struct head head;
    int rc;

    memset(&head, 0, sizeof head);
    head.text_begun = t->work.begun, head.text_led = t->work.led, head.final = t->work.final;
    for (unsigned level = 0; level < 2; level++) {
        head.n[level] = held[level].text.n;
        head.before[level] = held[level].before;
        head.begun[level] = held[level].begun;
        head.first[level] = held[level].first;
    }
    out->n = 0;
    rc = client_text_add(out, (const char *)&head, sizeof head, err);
    for (unsigned level = 0; !rc && level < 2; level++)
        rc = client_text_add(out, held[level].text.bytes, held[level].text.n, err);
    return rc;
}

/* Only of a text that client_tokenizer_save has made: the head is its memory as such. */
int client_tokenizer_restore(struct client_tokenizer *t, const struct client_text *kept, struct error *err)
{
    const char *text = kept->bytes + sizeof(struct head);
    struct head head;
    int rc = 0;

    tokenizer_forget(&t->work);
    memcpy(&head, kept->bytes, sizeof head);
    for (unsigned level = 0; !rc && level < 2; level++) {
        struct tokenizer_held *held = &t->work.held[level];
        rc = client_text_add(&held->text, text, head.n[level], err);
        text += head.n[level];
        held->before = head.before[level];
        held->begun = head.begun[level];
        held->first = head.first[level];
    }
    t->work.begun = head.text_begun, t->work.led = head.text_led, t->work.final = head.final;
    return rc;
}

void client_tokenizer_restart(struct client_tokenizer *t)
{
    tokenizer_forget(&t->work);
    t->work.final = CLIENT_NO_TOKEN;
}

void client_tokenizer_watch(struct client_tokenizer *t, const struct client_watch *watch)
{
    t->work.matcher.watch = watch;
}

/* ---- Working memory ---- */

void tokenizer_work_allow(struct tokenizer_work *work, size_t n)
{
    tokenizer_matcher_allow(&work->matcher, n);
    work->grows = TOKENIZER_LEAST_GROWTH + (uint64_t)TOKENIZER_GROWTH * n;
}

/* On failure what there is stays, for tokenizer_work_free. */
int tokenizer_work_init(struct tokenizer_work *work, struct error *err)
{
    *work = (struct tokenizer_work){.cache = calloc((size_t)1 << TOKENIZER_CACHE_BITS, sizeof *work->cache),
                                    .final = CLIENT_NO_TOKEN};
    int rc = tokenizer_matcher_init(&work->matcher, err);

    tokenizer_work_allow(work, 0);
    return rc || work->cache ? rc : error_memory(err);
}

void tokenizer_work_free(struct tokenizer_work *work)
{
    free(work->cache);
    free(work->ids);
    free(work->heap);
    tokenizer_matcher_free(&work->matcher);
    for (unsigned i = 0; i < 2; i++) {
        free(work->held[i].text.bytes);
        free(work->between[i].bytes);
    }
    for (unsigned i = 0; i < TOKENIZER_MAX_STEPS; i++)
        free(work->changed[i].bytes);
}
