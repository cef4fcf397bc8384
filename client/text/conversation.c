/* What is trained is settled in bytes, as spans of the rendered text. Which tokens have a byte of a span is asked of
 * the tokenizer while it encodes the whole: a part by itself could get other tokens than it has in the row. By prefixes
 * each answer is rendered twice, so time grows with the square of a conversation's length. */
#include "client/text/conversation.h"

#include "client/text/rendered.h"
#include "client/text/template.h"
#include "client/text/turns.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct client_conversations {
    struct client_tokenizer *tokenizer;
    struct client_template *plain, *tools; /* of conversations without tools, and with; NULL: none, or not opened yet */
    struct client_template *template;      /* of the current conversation, borrowed */
    struct error missing;                  /* why there is no `plain` */
    bool marks, by_prefixes;               /* `template` marks answers; what it marks does not count */
    json_t *side;                          /* may be NULL */
    char *name;                            /* as in client_template_find */
    enum eps_train_on train_on;
    json_t *variables; /* of the template, without messages */
    struct client_tokens tokens;
    bool parses; /* special tokens that messages spell are tokens */
    uint64_t n_spelled;
};

/* That there is no template is kept for the first conversation that needs one: data may have texts alone. */
int client_conversations_open(struct client_conversations **out, struct client_tokenizer *tokenizer, const json_t *side,
                              const char *name, enum eps_train_on train_on, struct error *err)
{
    struct client_conversations *c = calloc(1, sizeof *c);
    int rc = c ? client_template_find(&c->plain, side, name, false, &c->missing) : -ENOMEM;

    *out = NULL;
    if (rc == -ENOKEY) /* conversations with tools may have theirs */
        rc = 0;
    else if (rc)
        error_set(err, rc, "%s", c ? c->missing.text : "out of memory");
    if (!rc) {
        c->tokenizer = tokenizer, c->train_on = train_on;
        c->side = json_incref((json_t *)(uintptr_t)side);
        c->name = name ? strdup(name) : NULL;
        c->variables = json_pack("{s:n, s:n}", "tools", "documents");
        rc = c->variables && (c->name || !name) ? client_tokenizer_names(c->variables, tokenizer, side, err)
                                                : error_memory(err);
    }
    if (rc)
        client_conversations_close(c);
    else
        *out = c;
    return rc;
}

void client_conversations_by_prefixes(struct client_conversations *conversations)
{
    conversations->by_prefixes = true;
}

void client_conversations_parse(struct client_conversations *conversations)
{
    conversations->parses = true;
}

uint64_t client_conversations_n_spelled(const struct client_conversations *conversations)
{
    return conversations->n_spelled;
}

void client_conversations_close(struct client_conversations *c)
{
    if (!c)
        return;
    client_template_close(c->plain);
    client_template_close(c->tools);
    json_decref(c->side);
    free(c->name);
    json_decref(c->variables);
    free(c->tokens.ids);
    free(c);
}

/* ---- A conversation that is encoded ---- */

struct span {
    size_t from, to;  /* bytes */
    uint16_t message; /* its label */
};

/* A text, and what of it is trained. */
struct row {
    struct client_rendering text;
    struct span *spans; /* (n_spans), ascending; owned */
    size_t n_spans, cap;
};

static void row_free(struct row *row)
{
    free(row->text.text);
    free(row->text.labels);
    free(row->spans);
    *row = (struct row){0};
}

static int add_span(struct row *row, struct span span, struct error *err)
{
    if (row->n_spans == row->cap) {
        struct span *larger = realloc(row->spans, (2 * row->cap + 8) * sizeof *larger);
        if (!larger)
            return error_memory(err);
        row->spans = larger, row->cap = 2 * row->cap + 8;
    }
    row->spans[row->n_spans++] = span;
    return 0;
}

/* ---- What is trained, by the mark ---- */

static bool is_blank(char byte)
{
    return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

/* Adds runs of bytes that are of one message and, if `label` is not 0, have this label; of messages that are trained,
 * or of none. */
static int add_spans(struct row *row, const struct client_turns *t, uint16_t label, struct error *err)
{
    const uint16_t *labels = row->text.labels, seen = (uint16_t)(label | CLIENT_LABEL_MESSAGE);
    int rc = 0;

    for (size_t at = 0, end; !rc && at < row->text.n; at = end) {
        const uint16_t message = labels[at] & CLIENT_LABEL_MESSAGE;
        for (end = at + 1; end < row->text.n && (labels[end] & seen) == (labels[at] & seen);)
            end++;
        if ((labels[at] & label) == label && (message == 0 || t->trained[message - 1]))
            rc = add_span(row, (struct span){at, end, message}, err);
    }
    return rc;
}

static bool conversation_is_empty(const struct client_rendering *text, size_t message)
{
    for (size_t k = 0; k < text->n_empty; k++)
        if (text->labels[text->n + k] == message + 1)
            return true;
    return false;
}

/* Each answer must have a mark of its own, so that none is left out unseen. One that marks nothing of an answer without
 * text counts, and trains nothing, as in transformers. */
static int check_marks(const struct row *row, const struct client_turns *t, struct error *err)
{
    bool any_unknown = false;

    for (size_t k = 0; k < row->text.n; k++)
        any_unknown = any_unknown || (row->text.labels[k] & ~CLIENT_LABEL_UNTRUSTED) == CLIENT_LABEL_GENERATED;
    for (size_t i = 0; i < t->n; i++) {
        bool marked = false;
        if (!client_turns_is_role(json_array_get(t->messages, i), "assistant"))
            continue;
        if (any_unknown && !t->trained[i])
            return error_set(
                err, -EINVAL,
                "the chat template marks answers outside a loop over the messages, so it is not known which "
                "of them message %zu is, which is not to be trained: leave it out",
                i + 1);
        for (size_t k = 0; k < row->n_spans; k++)
            marked = marked || row->spans[k].message == i + 1;
        if (t->trained[i] && !marked && !any_unknown && !conversation_is_empty(&row->text, i))
            return error_set(
                err, -EINVAL,
                "the chat template marks no part of message %zu as an answer ({%% generation %%}): give the "
                "message \"train\": false, or correct the template",
                i + 1);
    }
    return 0;
}

static int rows_by_mark(struct row *row, const struct client_turns *t, struct error *err)
{
    int rc = client_turns_render(&row->text, t, t->n, false, err);

    if (!rc)
        rc = add_spans(row, t, CLIENT_LABEL_GENERATED, err);
    return rc ? rc : check_marks(row, t, err);
}

/* All of the text, but for messages that are not to be trained. */
static int rows_of_all(struct row *row, const struct client_turns *t, struct error *err)
{
    int rc = client_turns_render(&row->text, t, t->n, false, err);

    for (size_t i = 0; !rc && i < t->n; i++) {
        bool known = t->trained[i];
        for (size_t k = 0; !known && k < row->text.n; k++)
            known = (row->text.labels[k] & CLIENT_LABEL_MESSAGE) == i + 1;
        if (!known)
            rc = error_set(
                err, -EINVAL,
                "the chat template does not print message %zu in a loop over the messages, so it is not known "
                "what is not to be trained: leave out its \"train\": false",
                i + 1);
    }
    return rc ? rc : add_spans(row, t, 0, err);
}

/* ---- By prefixes ---- */

static bool conversation_begins_with(const struct client_rendering *text, const struct client_rendering *with)
{
    return with->n <= text->n && memcmp(text->text, with->text, with->n) == 0;
}

/* The text up to answer i, and the place at which it begins. */
static int render_answer(struct client_rendering *text, size_t *from, const struct client_turns *t, size_t i,
                         struct error *err)
{
    struct client_rendering before = {0};
    int rc = client_turns_render(&before, t, i, true, err);

    *from = before.n;
    if (!rc)
        rc = client_turns_render(text, t, i + 1, false, err);
    if (!rc && (before.n >= text->n || !conversation_begins_with(text, &before)))
        rc = error_set(
            err, -EINVAL,
            "it cannot be told where the answer of message %zu begins: its text, by the chat template, does not "
            "begin with the text of the messages before it: mark answers in the template, in a "
            "chat_template.jinja, by {%% generation %%} and {%% endgeneration %%}, or give --train-on all",
            i + 1);
    free(before.text);
    free(before.labels);
    return rc;
}

/* The end of what was printed for message i, as the end of a conversation may have more: an end token (Phi 3). */
static size_t own_end(const struct client_rendering *text, size_t i)
{
    size_t n = text->n;

    while (n > 0 && (text->labels[n - 1] & CLIENT_LABEL_MESSAGE) != i + 1)
        n--;
    return n;
}

/* Fills rows (*n_rows, room for one more than messages), the longest first. */
static int rows_by_prefixes(struct row *rows, size_t *n_rows, const struct client_turns *t, struct error *err)
{
    struct row *row = &rows[0];
    const bool ends_with_answer = t->trained[t->n - 1]; /* then the whole is the text up to this answer */
    int rc = ends_with_answer ? 0 : client_turns_render(&row->text, t, t->n, false, err);

    *n_rows = 1;
    for (size_t i = t->n; !rc && i-- > 0;) {
        struct client_rendering text = {0};
        size_t from;
        if (!t->trained[i])
            continue;
        rc = render_answer(&text, &from, t, i, err);
        size_t to = text.n;
        if (!rc && !conversation_begins_with(&row->text, &text)) {
            const size_t own = own_end(&text, i);
            if (own > from &&
                conversation_begins_with(&row->text, &(struct client_rendering){.text = text.text, .n = own}))
                to = own;
        }
        if (!rc && to == text.n && !conversation_begins_with(&row->text, &text)) {
            if (row->n_spans > 0)
                row = &rows[(*n_rows)++];
            free(row->text.text);
            free(row->text.labels);
            row->text = text, text = (struct client_rendering){0};
        }
        if (!rc)
            rc = add_span(row, (struct span){from, to, (uint16_t)(i + 1)}, err);
        free(text.text);
        free(text.labels);
    }
    for (size_t k = 0; k < *n_rows; k++) /* answers were found from the last to the first */
        for (size_t a = 0, b = rows[k].n_spans; a + 1 < b; a++) {
            const struct span last = rows[k].spans[--b];
            rows[k].spans[b] = rows[k].spans[a];
            rows[k].spans[a] = last;
        }
    return rc;
}

/* ---- Tokens ---- */

/* The place after an answer at which the token may be that ends its turn: behind white space. */
static size_t place_after(const struct client_rendering *text, const struct span *span)
{
    size_t at = span->to;

    while (at < text->n && is_blank(text->text[at]))
        at++;
    return at;
}

/* The token after an answer belongs to it if it is special and printed for this message, or the one that ends texts. */
static bool ends_turn(const struct client_conversations *c, const struct client_rendering *text,
                      const struct span *span, size_t place, uint32_t id)
{
    const bool own = span->message && (text->labels[place] & CLIENT_LABEL_MESSAGE) == span->message;

    return client_tokenizer_is_special(c->tokenizer, id) && (own || id == client_tokenizer_end(c->tokenizer));
}

/* Marks the tokens of the row's spans; tokens: of three places of each. */
static size_t mark_tokens(struct client_conversations *c, const struct row *row, const size_t *tokens)
{
    uint32_t *ids = c->tokens.ids;
    size_t n_marked = 0;

    for (size_t k = 0; k < row->n_spans; k++) {
        const size_t first = tokens[3 * k], after = tokens[3 * k + 2];
        const size_t place = place_after(&row->text, &row->spans[k]);
        size_t last = tokens[3 * k + 1];
        if (c->marks && place < row->text.n && after < c->tokens.n && after > last &&
            ends_turn(c, &row->text, &row->spans[k], place, ids[after]))
            last = after;
        for (size_t i = first; i <= last && i < c->tokens.n; i++)
            ids[i] |= CLIENT_TOKEN_TRAINED;
    }
    for (size_t i = 1; i < c->tokens.n; i++)
        n_marked += (ids[i] & CLIENT_TOKEN_TRAINED) != 0;
    if (c->tokens.n > 0)
        ids[0] &= ~CLIENT_TOKEN_TRAINED; /* nothing predicts the first token */
    return n_marked;
}

/* Three places of each span: its first byte, its last, and where the token may be that ends the turn. */
static int encode_row(struct client_conversations *c, const struct row *row, client_conversation_take *take, void *user,
                      struct error *err)
{
    const size_t n_places = 3 * row->n_spans;
    struct client_place *places = calloc(n_places + 1, sizeof *places);
    size_t *tokens = calloc(n_places + 1, sizeof *tokens);
    int rc = places && tokens ? 0 : error_memory(err);

    for (size_t k = 0; !rc && k < row->n_spans; k++) {
        places[3 * k] = (struct client_place){row->spans[k].from, false};
        places[3 * k + 1] = (struct client_place){row->spans[k].to, true};
        places[3 * k + 2] = (struct client_place){place_after(&row->text, &row->spans[k]), false};
    }
    c->tokens.n = 0;
    if (!rc)
        rc = client_rendered_encode(&c->tokens, tokens, &c->n_spelled, c->tokenizer, &row->text, places, n_places,
                                    c->parses, err);
    if (!rc && mark_tokens(c, row, tokens) == 0 && row->text.n_empty == 0)
        rc = error_set(err, -EINVAL, "the chat template prints nothing of its answers");
    if (!rc)
        rc = take(user, c->tokens.ids, c->tokens.n, err);
    free(places);
    free(tokens);
    return rc;
}

/* All but prefixes make one row of a conversation. */
static int conversation_make_rows(struct row *rows, size_t *n_rows, const struct client_turns *t, bool marks,
                                  struct error *err)
{
    *n_rows = 1;
    if (t->train_on == EPS_TRAIN_ON_ALL)
        return rows_of_all(&rows[0], t, err);
    return marks ? rows_by_mark(&rows[0], t, err) : rows_by_prefixes(rows, n_rows, t, err);
}

/* The template of a conversation: with tools, transformers takes another one if the model has it. */
static int choose_template(struct client_conversations *c, const json_t *conversation, struct error *err)
{
    const bool tools = json_is_array(json_object_get(conversation, "tools"));

    if (tools && !c->tools) {
        const int rc = client_template_find(&c->tools, c->side, c->name, true, err);
        if (rc)
            return rc == -ENOKEY ? error_set(err, -EINVAL, "%s", c->missing.text) : rc;
    }
    c->template = tools ? c->tools : c->plain;
    c->marks = !c->by_prefixes && c->template && client_template_marks_answers(c->template);
    return !c->template && c->missing.text[0] ? error_set(err, -EINVAL, "%s", c->missing.text) : 0;
}

/* Rows are handed on the shortest first, as they stand in the conversation. */
int client_conversation_encode(struct client_conversations *c, const json_t *conversation,
                               client_conversation_take *take, void *user, struct error *err)
{
    struct client_turns t;
    size_t n_rows = 0;

    int rc = choose_template(c, conversation, err);

    if (rc)
        return rc;
    if (!c->template)
        return error_set(
            err, -EINVAL,
            "a conversation needs a chat template, and the model has none: put the chat_template.jinja of the "
            "format that it is to learn beside its config.json (--model DIR), or give {\"prompt\", \"completion\"} as "
            "texts");
    rc = client_turns_open(&t, c->template, c->variables, c->train_on, conversation, err);
    struct row *rows = calloc(t.n + 2, sizeof *rows);
    if (!rc && !rows)
        rc = error_memory(err);
    if (!rc)
        rc = conversation_make_rows(rows, &n_rows, &t, c->marks, err);
    for (size_t i = n_rows; i-- > 0;) {
        if (!rc)
            rc = encode_row(c, &rows[i], take, user, err);
        row_free(&rows[i]);
    }
    free(rows);
    client_turns_close(&t);
    return rc;
}

/* ---- Texts ---- */

int client_conversation_encode_text(struct client_conversations *c, const json_t *prompt, const json_t *text,
                                    client_conversation_take *take, void *user, struct error *err)
{
    const size_t n_prompt = json_string_length(prompt), n_text = json_string_length(text);
    const bool all = c->train_on == EPS_TRAIN_ON_ALL;
    struct client_text joined = {0};
    const struct client_place place = {all ? 0 : n_prompt, false};
    size_t first = 0;
    int rc = client_text_add(&joined, json_string_value(prompt), n_prompt, err);

    c->tokens.n = 0;
    if (!rc)
        rc = client_text_add(&joined, json_string_value(text), n_text, err);
    if (!rc && n_text == 0)
        rc = error_set(err, -EINVAL, prompt ? "its completion is empty" : "its text is empty");
    if (!rc)
        rc = client_tokenizer_lead(&c->tokens, c->tokenizer, err);
    const struct client_marked marked = {.text = joined.bytes, .n = joined.n, .places = &place, .n_places = 1};
    if (!rc)
        rc = client_tokenizer_encode_marked(&c->tokens, &first, c->tokenizer, &marked, err);
    if (!rc)
        rc = client_tokenizer_trail(&c->tokens, c->tokenizer, client_tokenizer_end(c->tokenizer), err);
    for (size_t i = first > 0 ? first : 1; !rc && i < c->tokens.n; i++)
        c->tokens.ids[i] |= CLIENT_TOKEN_TRAINED;
    if (!rc && c->tokens.n < 2)
        rc = error_set(err, -EINVAL, "a single token has nothing to predict it");
    if (!rc)
        rc = take(user, c->tokens.ids, c->tokens.n, err);
    free(joined.bytes);
    return rc;
}
