/* Cuts text into words: tokenizer.json's pre-tokenizer. */
#include "client/text/tokenizer/tokenizer_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- Cutting ---- */

/* A match of the step's pattern, or what lies between two. */
struct event {
    size_t end;
    bool match;
    bool open; /* it may go on beyond `end`; if it is empty, nothing is known of it */
};

struct cutting {
    const struct tokenizer_step *step;
    struct tokenizer_matcher *matcher;
    struct tokenizer_segment s;
    struct tokenizer_found found; /* the first match from somewhere on; begin SIZE_MAX: none has been looked for */
};

/* A match is looked for once, and serves as the end of what lies before it and then as itself. */
static int next_event(struct event *out, struct cutting *c, size_t at, struct error *err)
{
    if (c->found.begin == SIZE_MAX || c->found.begin < at) {
        int rc =
            tokenizer_pattern_find(&c->found, c->step->pattern, c->matcher, c->s.text, c->s.to, at, c->s.closed, err);
        if (rc)
            return rc;
    }
    const bool between = c->found.begin > at;
    *out = (struct event){.end = between ? c->found.begin : c->found.end,
                          .match = between == c->step->inverted,
                          .open = c->found.open};
    return 0;
}

/* Extends a word that begins with the event *e by those after it, according to the step's behaviour. Sets e->open if
 * further text decides how it ends. */
static int steps_extend(struct event *e, struct cutting *c, struct error *err)
{
    const enum tokenizer_behaviour behaviour = c->step->behaviour;
    const bool grows = behaviour == TOKENIZER_CONTIGUOUS ||
                       (behaviour == TOKENIZER_MERGED_WITH_PREVIOUS && !e->match) ||
                       (behaviour == TOKENIZER_MERGED_WITH_NEXT && e->match);
    struct event next;

    while (grows && !e->open) {
        if (e->end == c->s.to) {
            e->open = !c->s.closed;
            break;
        }
        int rc = next_event(&next, c, e->end, err);
        if (rc)
            return rc;
        const bool belongs = (next.match == e->match) == (behaviour == TOKENIZER_CONTIGUOUS);
        if (next.end > e->end && !belongs)
            break;
        e->open = next.open;
        e->end = next.end;
        if (behaviour != TOKENIZER_CONTIGUOUS)
            break;
    }
    return 0;
}

/* An open word is handed on only where nothing behind it can join it: then the next steps decide how much of it is
 * certain. */
static int encode_cut(struct client_tokens *out, size_t *used, struct client_tokenizer *t, size_t step,
                      struct tokenizer_segment s, struct error *err)
{
    struct cutting c = {.step = &t->steps[step], .matcher = &t->work.matcher, .s = s, .found = {.begin = SIZE_MAX}};
    const bool lone = c.step->behaviour == TOKENIZER_ISOLATED || c.step->behaviour == TOKENIZER_REMOVED;
    struct event e;
    size_t done;
    int rc = 0;

    for (size_t at = s.from; !rc && at < s.to; at = e.end) {
        *used = at;
        rc = next_event(&e, &c, at, err);
        if (!rc)
            rc = steps_extend(&e, &c, err);
        if (rc || (e.open && !lone))
            return rc;
        if (c.step->behaviour == TOKENIZER_REMOVED && e.match)
            done = e.end;
        else
            rc = tokenizer_encode_steps(out, &done, t, step + 1,
                                        (struct tokenizer_segment){s.text, at, e.end, !e.open, s.first && at == s.from},
                                        err);
        *used = rc ? at : done;
        if (e.open)
            return rc;
    }
    return rc;
}

/* A change needs its whole word. */
static int steps_encode_changed(struct client_tokens *out, size_t *used, struct client_tokenizer *t, size_t step,
                                struct tokenizer_segment s, struct error *err)
{
    struct client_text *text = &t->work.changed[step];
    const bool first = s.first;
    size_t done, *kept;

    text->n = 0;
    *used = s.from;
    if (!s.closed)
        return 0;
    int rc = tokenizer_changes_apply(text, &t->steps[step].changes, &t->work, s.text + s.from, s.to - s.from, true,
                                     &s.first, err);
    if (rc)
        return rc;
    *used = s.to;
    const struct tokenizer_changed change = {
        &t->steps[step].changes, s.text, s.from, s.to, true, first, text->bytes, text->n};
    rc = tokenizer_marks_enter(&kept, t->work.marks, &t->work, &change, err);
    if (rc)
        return rc;
    rc = tokenizer_encode_steps(out, &done, t, step + 1,
                                (struct tokenizer_segment){text->bytes, 0, text->n, true, s.first}, err);
    tokenizer_marks_return(t->work.marks, kept);
    return rc;
}

static int add_word(struct client_tokens *out, struct client_tokenizer *t, const char *text, size_t from, size_t to,
                    struct error *err)
{
    const size_t before = out->n;
    const int rc = client_tokenizer_encode_word(out, t, text + from, to - from, err);

    if (!rc)
        tokenizer_marks_pass_word(t->work.marks, t, text, from, to, out->ids + before, out->n - before, before);
    return rc;
}

/* A word as such: BPE over characters may begin before all of it is there. */
static int steps_encode_word(struct client_tokens *out, size_t *used, struct client_tokenizer *t,
                             struct tokenizer_segment s, struct error *err)
{
    size_t at = s.from;
    int rc = 0;

    while (!rc && at < s.to && t->joined) {
        const size_t n = tokenizer_word_cut(t, s.text + at, s.to - at);
        if (at + n == s.to)
            break;
        rc = add_word(out, t, s.text, at, at + n, err);
        at += n;
    }
    if (!rc && s.closed && at < s.to) {
        rc = add_word(out, t, s.text, at, s.to, err);
        at = s.to;
    }
    *used = at;
    return rc;
}

int tokenizer_encode_steps(struct client_tokens *out, size_t *used, struct client_tokenizer *t, size_t step,
                           struct tokenizer_segment s, struct error *err)
{
    *used = s.from;
    if (s.from == s.to)
        return 0;
    if (step == t->n_steps)
        return steps_encode_word(out, used, t, s, err);
    return t->steps[step].pattern ? encode_cut(out, used, t, step, s, err)
                                  : steps_encode_changed(out, used, t, step, s, err);
}

void tokenizer_steps_free(struct client_tokenizer *t)
{
    for (size_t i = 0; i < t->n_steps; i++) {
        tokenizer_pattern_close(t->steps[i].pattern);
        tokenizer_changes_free(&t->steps[i].changes);
    }
    free(t->steps);
}

/* ---- tokenizer.json's pre-tokenizer ---- */

/* Expressions for what the package tests character by character. */
#define BLANK       "\\s"
#define PUNCTUATION "[!-/:-@\\[-`{-~\\p{P}\\x{166d}\\x{111c9}]" /* the last two were, in Unicode 8 */

/* Adds a step; takes ownership of what it points to, also on failure. */
static int steps_add_step(struct client_tokenizer *t, struct tokenizer_step step, struct error *err)
{
    struct tokenizer_step *larger =
        t->n_steps < TOKENIZER_MAX_STEPS ? realloc(t->steps, (t->n_steps + 1) * sizeof *larger) : NULL;

    if (larger) {
        t->steps = larger;
        t->steps[t->n_steps++] = step;
        return 0;
    }
    tokenizer_pattern_close(step.pattern);
    tokenizer_changes_free(&step.changes);
    return t->n_steps == TOKENIZER_MAX_STEPS
               ? error_set(err, -EINVAL, "its pre-tokenizer has more than %d steps", TOKENIZER_MAX_STEPS)
               : error_memory(err);
}

static int add_cut(struct client_tokenizer *t, const char *pattern, enum tokenizer_behaviour behaviour, bool inverted,
                   struct error *err)
{
    struct tokenizer_step step = {.behaviour = behaviour, .inverted = inverted};
    int rc = tokenizer_pattern_open(&step.pattern, pattern, err);

    return rc ? rc : steps_add_step(t, step, err);
}

int tokenizer_gpt2_steps(struct client_tokenizer *t, struct error *err)
{
    t->byte_level = true;
    return add_cut(t, tokenizer_gpt2_pattern, TOKENIZER_ISOLATED, false, err);
}

/* Adds a change to words: before the first cut, to the text itself. */
static int add_change(struct client_tokenizer *t, struct tokenizer_change change, struct error *err)
{
    struct tokenizer_step step = {0};

    if (t->n_steps == 0)
        return tokenizer_changes_add(&t->lead, change, err);
    struct tokenizer_step *last = &t->steps[t->n_steps - 1];
    if (!last->pattern)
        return tokenizer_changes_add(&last->changes, change, err);
    int rc = tokenizer_changes_add(&step.changes, change, err);
    return rc ? rc : steps_add_step(t, step, err);
}

static int add_lead(struct client_tokenizer *t, const char *text, bool first, struct error *err)
{
    char *to = strdup(text);

    if (!to)
        return error_memory(err);
    return add_change(t, (struct tokenizer_change){.kind = TOKENIZER_LEAD, .to = to, .first = first}, err);
}

static int read_byte_level(struct client_tokenizer *t, const json_t *step, struct error *err)
{
    int rc = 0;

    t->byte_level = true;
    if (!json_is_false(json_object_get(step, "add_prefix_space")))
        rc = add_lead(t, " ", false, err);
    if (!rc && !json_is_false(json_object_get(step, "use_regex")))
        rc = add_cut(t, tokenizer_gpt2_pattern, TOKENIZER_ISOLATED, false, err);
    return rc;
}

static int steps_read_metaspace(struct client_tokenizer *t, const json_t *step, struct error *err)
{
    struct tokenizer_step cut = {.behaviour = TOKENIZER_MERGED_WITH_NEXT};
    struct tokenizer_metaspace metaspace;
    int rc = tokenizer_read_metaspace(&metaspace, step, "pre-tokenizer", err);

    if (rc)
        return rc;
    const char *mark = metaspace.mark;
    char *from = strdup(" "), *to = strdup(mark);
    rc = add_change(t, (struct tokenizer_change){.kind = TOKENIZER_REPLACE, .from = from, .to = to}, err);
    if (!rc && (!from || !to))
        rc = error_memory(err);
    if (!rc && !metaspace.never)
        rc = add_lead(t, mark, !metaspace.always, err);
    if (rc || json_is_false(json_object_get(step, "split")))
        return rc;
    rc = tokenizer_pattern_open_text(&cut.pattern, mark, err);
    return rc ? rc : steps_add_step(t, cut, err);
}

static int read_behaviour(enum tokenizer_behaviour *out, const json_t *step, struct error *err)
{
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"};
    const char *name = json_string_value(json_object_get(step, "behavior"));

    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++) {
        *out = (enum tokenizer_behaviour)i;
        if (strcmp(name, names[i]) == 0)
            return 0;
    }
    return error_set(err, -EINVAL, "its pre-tokenizer %.40s has the behavior %.40s", tokenizer_type(step),
                     name ? name : "of no name");
}

/* True if the normalizer leaves none of this text: Gemma's makes a mark of each blank, and then cuts at blanks. */
static bool is_gone(const struct client_tokenizer *t, const char *text)
{
    bool gone = false;

    for (size_t i = 0; i < t->normal.n; i++) {
        const struct tokenizer_change *change = &t->normal.list[i];
        if (change->kind == TOKENIZER_REPLACE && change->from && strcmp(change->from, text) == 0)
            gone = !strstr(change->to, text);
        else if (change->kind != TOKENIZER_PREPEND && change->kind != TOKENIZER_REPLACE)
            gone = false;
        else if (strstr(change->to, text))
            gone = false;
    }
    return gone && t->lead.n == 0;
}

/* A cut at what the normalizer has removed would do nothing but cost time. */
static int read_split(struct client_tokenizer *t, const json_t *step, struct error *err)
{
    struct tokenizer_step cut = {.inverted = !tokenizer_is_nothing(json_object_get(step, "invert"))};
    const char *text;
    int rc = read_behaviour(&cut.behaviour, step, err);

    if (!rc)
        rc = tokenizer_read_pattern(&cut.pattern, &text, json_object_get(step, "pattern"), err);
    if (rc)
        return rc;
    if (text && text[1] == 0 && !cut.inverted && is_gone(t, text)) {
        tokenizer_pattern_close(cut.pattern);
        return 0;
    }
    return steps_add_step(t, cut, err);
}

static int read_bert(struct client_tokenizer *t, struct error *err)
{
    int rc = add_cut(t, BLANK, TOKENIZER_REMOVED, false, err);

    return rc ? rc : add_cut(t, PUNCTUATION, TOKENIZER_ISOLATED, false, err);
}

static int read_whitespace(struct client_tokenizer *t, struct error *err)
{
    return add_cut(t, "[" TOKENIZER_WORD "]+|[^" TOKENIZER_WORD "\\s]+", TOKENIZER_REMOVED, true, err);
}

static int read_punctuation(struct client_tokenizer *t, const json_t *step, struct error *err)
{
    enum tokenizer_behaviour behaviour = TOKENIZER_ISOLATED;
    int rc = json_object_get(step, "behavior") ? read_behaviour(&behaviour, step, err) : 0;

    return rc ? rc : add_cut(t, PUNCTUATION, behaviour, false, err);
}

/* After ByteLevel the text is bytes in letters, of which no expression would mean what it says. */
static int steps_read_step(struct client_tokenizer *t, const json_t *step, struct error *err)
{
    const char *type = tokenizer_type(step);

    if (t->byte_level)
        return error_set(err, -EINVAL, "its pre-tokenizer has %.40s after ByteLevel, which is not supported", type);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(t, step, err);
    if (strcmp(type, "Metaspace") == 0)
        return steps_read_metaspace(t, step, err);
    if (strcmp(type, "Split") == 0)
        return read_split(t, step, err);
    if (strcmp(type, "BertPreTokenizer") == 0)
        return read_bert(t, err);
    if (strcmp(type, "Whitespace") == 0)
        return read_whitespace(t, err);
    if (strcmp(type, "WhitespaceSplit") == 0)
        return add_cut(t, BLANK, TOKENIZER_REMOVED, false, err);
    if (strcmp(type, "Punctuation") == 0)
        return read_punctuation(t, step, err);
    if (strcmp(type, "Digits") == 0)
        return add_cut(t, "\\p{N}",
                       json_is_true(json_object_get(step, "individual_digits")) ? TOKENIZER_ISOLATED
                                                                                : TOKENIZER_CONTIGUOUS,
                       false, err);
    return tokenizer_refuse(err, "pre-tokenizer", type);
}

int tokenizer_read_steps(struct client_tokenizer *t, const json_t *pre_tokenizer, struct error *err)
{
    return tokenizer_read_part(t, pre_tokenizer, "pre-tokenizer", "pretokenizers", steps_read_step, err);
}
