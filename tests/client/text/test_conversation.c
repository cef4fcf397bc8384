/* Conversations as tokens: ids and masks that transformers and TRL make of the same templates, and what is refused.
 *
 * test_conversation encode FILE is for tests/oracle/conversations.py: FILE holds [{"side": {...}, "vocabulary": N,
 * "train_on": "answers", "conversations": [...]}, ...]; it prints for each conversation a list of rows, {"ids": [...],
 * "trained": "0011..."}, or {"error": "..."}. */
#include "client/text/conversation.h"
#include "client/text/turns.h"
#include "client/text/utf8.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static bool lacks_memory;

#if !SANITIZED /* the sanitizers bring a strdup of their own */
char *strdup(const char *text)
{
    const size_t n = strlen(text) + 1;
    char *copy = lacks_memory ? NULL : malloc(n);

    return copy ? memcpy(copy, text, n) : NULL;
}
#endif

static unsigned n_allowed, n_live; /* pieces of memory for JSON: until one is refused; now */

static void *allocate(size_t n)
{
    void *p = n_allowed-- == 0 ? NULL : malloc(n);

    n_live += p != NULL;
    return p;
}

static void release(void *p)
{
    n_live -= p != NULL;
    free(p);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static int take_row(void *user, const uint32_t *ids, size_t n, struct error *err)
{
    json_t *list = json_array();
    char *trained = malloc(n + 1);

    (void)err;
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(list, json_integer(ids[i] & ~CLIENT_TOKEN_TRAINED));
        trained[i] = ids[i] & CLIENT_TOKEN_TRAINED ? '1' : '0';
    }
    trained[n] = 0;
    json_array_append_new(user, json_pack("{s:o, s:s}", "ids", list, "trained", trained));
    free(trained);
    return 0;
}

/* The rows of a conversation, or {"error": ...}. */
static json_t *encode(struct client_conversations *c, json_t *conversation)
{
    json_t *rows = json_array(), *prompt = json_object_get(conversation, "prompt"),
           *text = json_object_get(conversation, "text");
    struct error err = {""};
    const int rc = text ? client_conversation_encode_text(c, prompt, text, take_row, rows, &err)
                        : client_conversation_encode(c, conversation, take_row, rows, &err);

    if (!rc)
        return rows;
    json_decref(rows);
    return json_pack("{s:s}", "error", err.text);
}

static enum eps_train_on train_on_of(const char *word)
{
    return strcmp(word, "all") == 0    ? EPS_TRAIN_ON_ALL
           : strcmp(word, "last") == 0 ? EPS_TRAIN_ON_LAST
                                       : EPS_TRAIN_ON_ANSWERS;
}

static json_t *encode_all(json_t *one)
{
    const json_t *side = json_object_get(one, "side");
    json_t *answers = json_array(), *conversation;
    struct client_tokenizer *tokenizer = NULL;
    struct client_conversations *c = NULL;
    struct error err = {""};
    size_t i;
    int rc = client_tokenizer_open(&tokenizer, side, NULL,
                                   (uint32_t)json_integer_value(json_object_get(one, "vocabulary")), &err);

    if (!rc)
        rc = client_conversations_open(&c, tokenizer, side, NULL,
                                       train_on_of(json_string_value(json_object_get(one, "train_on"))), &err);
    json_array_foreach(json_object_get(one, "conversations"), i, conversation)
        json_array_append_new(answers, rc ? json_pack("{s:s}", "error", err.text) : encode(c, conversation));
    client_conversations_close(c);
    client_tokenizer_close(tokenizer);
    return answers;
}

static int command(int argc, char **argv)
{
    json_error_t why;
    json_t *cases = argc == 3 ? json_load_file(argv[2], JSON_ALLOW_NUL, &why) : NULL, *answers = json_array(), *one;
    size_t i;

    if (!json_is_array(cases))
        return 2;
    json_array_foreach(cases, i, one) json_array_append_new(answers, encode_all(one));
    json_dumpf(answers, stdout, JSON_COMPACT);
    json_decref(answers);
    json_decref(cases);
    return 0;
}

SUITE_COMMAND(command)

/* ---- The fixture: tests/oracle/conversations.py made it with transformers and tokenizers ---- */

static json_t *fixture, *ways; /* ways: borrowed from it */

static void setup(void)
{
    fixture = json_load_file(TESTS_DIR "/fixtures/conversations.json", JSON_ALLOW_NUL, NULL);
    ways = json_object_get(fixture, "ways");
    ck_assert_ptr_nonnull(ways);
}

static void teardown(void)
{
    json_decref(fixture);
}

SUITE_FIXTURE_ONCE(setup, teardown)

enum { WAYS = 8, TOKENIZERS = 9, MOST_PLACES = 200 };

static json_int_t id_of(const json_t *token)
{
    return token ? json_integer_value(json_object_get(token, "id")) : INT64_MAX;
}

/* Side files of a model with a tokenizer of tests/fixtures, further special tokens {text: id}, and a template (NULL:
 * none). */
static json_t *side_of(const char *tokenizer, json_t *tokens, const char *template)
{
    json_t *whole, *added, *id, *side;
    const char *text;
    char *path;

    ck_assert_int_gt(asprintf(&path, TESTS_DIR "/fixtures/%s.json", tokenizer), 0);
    whole = json_load_file(path, 0, NULL);
    ck_assert_ptr_nonnull(whole);
    added = json_object_get(whole, "added_tokens");
    json_object_foreach(tokens, text, id)
    {
        json_t *token = json_pack("{s:O, s:s, s:b, s:b}", "id", id, "content", text, "special", 1, "normalized", 0);
        size_t at = 0; /* by ascending ids; one that is there already is replaced */
        while (id_of(json_array_get(added, at)) < json_integer_value(id))
            at++;
        if (id_of(json_array_get(added, at)) == json_integer_value(id))
            json_array_remove(added, at);
        json_array_insert_new(added, at, token);
    }
    char *dumped = json_dumps(whole, 0);
    side = json_pack("{s:s, s:s}", "tokenizer.json", dumped, "tokenizer_config.json",
                     "{\"bos_token\": \"<BOS>\", \"eos_token\": \"<EOS>\"}");
    if (template)
        json_object_set_new(side, "chat_template.jinja", json_string(template));
    json_decref(whole);
    free(dumped);
    free(path);
    return side;
}

struct opened {
    json_t *side;
    struct client_tokenizer *tokenizer;
    struct client_conversations *conversations;
};

static struct opened open_with(json_t *side, enum eps_train_on train_on)
{
    struct opened o = {.side = side};
    struct error err = {""};

    ck_assert_msg(client_tokenizer_open(&o.tokenizer, side, NULL, 65536, &err) == 0, "%s", err.text);
    ck_assert_msg(client_conversations_open(&o.conversations, o.tokenizer, side, NULL, train_on, &err) == 0, "%s",
                  err.text);
    return o;
}

static void close_all(struct opened *o)
{
    client_conversations_close(o->conversations);
    client_tokenizer_close(o->tokenizer);
    json_decref(o->side);
}

static struct opened open_way(int i)
{
    json_t *way = json_array_get(ways, (size_t)i);

    return open_with(side_of(json_string_value(json_object_get(way, "tokenizer")), json_object_get(way, "tokens"),
                             json_string_value(json_object_get(way, "template"))),
                     EPS_TRAIN_ON_ANSWERS);
}

TEST_EACH(rows_have_the_ids_and_masks_of_transformers, WAYS)
{
    const json_t *way = json_array_get(ways, (size_t)_i), *rows = json_object_get(way, "rows"), *want;
    struct opened o = open_way(_i);
    size_t i;

    ck_assert_uint_eq(json_array_size(ways), WAYS);
    ck_assert_uint_ge(json_array_size(rows), 5);
    json_array_foreach(rows, i, want)
    {
        json_t *got = encode(o.conversations, json_array_get(json_object_get(way, "conversations"), i));
        if (json_is_null(want))
            ck_assert(json_is_object(got));
        else
            ck_assert_msg(json_equal(got, want), "%s, conversation %zu: %s",
                          json_string_value(json_object_get(way, "name")), i, json_dumps(got, 0));
        json_decref(got);
    }
    close_all(&o);
}

/* Where the template prints a special token it is one; where a message spells it, it is text. */
TEST_EACH(special_tokens_that_messages_spell_stay_text, WAYS)
{
    const json_t *way = json_array_get(ways, (size_t)_i), *ids = json_object_get(way, "ids"), *want;
    struct opened o = open_way(_i);
    size_t i;

    json_array_foreach(ids, i, want)
    {
        json_t *got = encode(o.conversations, json_array_get(json_object_get(way, "spelt"), i));
        const json_t *last = json_array_get(got, json_array_size(got) - 1);
        if (!json_is_null(want))
            ck_assert_msg(json_equal(json_object_get(last, "ids"), want), "conversation %zu: %s", i,
                          json_dumps(got, 0));
        json_decref(got);
    }
    close_all(&o);
}

/* <b> is spelled once by each message and printed once by the template. */
TEST_EACH(what_messages_spell_is_counted_or_parsed, 2)
{
    const bool parses = _i;
    json_t *tokens = json_pack("{s:i}", "<b>", 600),
           *side = side_of("bpe/tokenizer", tokens, "<b>{% for m in messages %}{{ m.content }}{% endfor %}"),
           *conversation = json_loads("{\"messages\": [{\"role\": \"user\", \"content\": \"x<b>\"}, {\"role\": "
                                      "\"assistant\", \"content\": \"<b>y\"}]}",
                                      0, NULL),
           *id, *rows;
    struct client_conversations *c;
    struct client_tokenizer *t;
    size_t i, n_special = 0;

    ck_assert_int_eq(client_tokenizer_open(&t, side, NULL, 700, NULL), 0);
    ck_assert_int_eq(client_conversations_open(&c, t, side, NULL, EPS_TRAIN_ON_ALL, NULL), 0);
    if (parses)
        client_conversations_parse(c);
    rows = encode(c, conversation);
    json_array_foreach(json_object_get(json_array_get(rows, 0), "ids"), i, id) n_special +=
        json_integer_value(id) == 600;
    ck_assert_uint_eq(n_special, parses ? 3 : 1);
    ck_assert_uint_eq(client_conversations_n_spelled(c), parses ? 0 : 2);
    client_conversations_close(c);
    client_tokenizer_close(t);
    json_decref(rows);
    json_decref(conversation);
    json_decref(side);
    json_decref(tokens);
}

/* bert.json puts [SEP], 3, behind a text, and it ends a text by tokenizer_config.json. */
TEST(a_completion_that_spells_its_end_token_has_it_once)
{
    static const char *const completions[] = {"the fox", "the fox[SEP]", "the fox[SEP][SEP]"};
    char *text = processes_read(TESTS_DIR "/fixtures/tokenizers/bert.json");
    json_t *side = json_pack("{ss, ss}", "tokenizer.json", text, "tokenizer_config.json", "{\"eos_token\": \"[SEP]\"}");
    struct client_conversations *c;
    struct client_tokenizer *t;

    ck_assert_int_eq(client_tokenizer_open(&t, side, NULL, 65536, NULL), 0);
    ck_assert_int_eq(client_conversations_open(&c, t, side, NULL, EPS_TRAIN_ON_ANSWERS, NULL), 0);
    for (int i = 0; i < COUNT(completions); i++) {
        json_t *row = json_pack("{ss, ss}", "prompt", "a ", "text", completions[i]), *rows = encode(c, row), *id;
        unsigned n = 0;
        size_t k;
        json_array_foreach(json_object_get(json_array_get(rows, 0), "ids"), k, id) n += json_integer_value(id) == 3;
        ck_assert_uint_eq(n, i < 2 ? 1 : 2); /* the writer's own second one */
        json_decref(rows);
        json_decref(row);
    }
    client_conversations_close(c);
    client_tokenizer_close(t);
    json_decref(side);
    free(text);
}

/* ---- Tokens of places ---- */

static int encode_marked(struct client_tokens *out, size_t *tokens, const json_t *side,
                         const struct client_marked *marked)
{
    struct client_tokenizer *t;

    ck_assert_int_eq(client_tokenizer_open(&t, side, NULL, 65536, NULL), 0);
    const int rc = client_tokenizer_encode_marked(out, tokens, t, marked, NULL);
    client_tokenizer_close(t);
    return rc;
}

/* Each character of a text, as a begin and as an end: by the offsets of tokenizers, inside words, where normal forms
 * join characters, and where a text gets a mark before it. */
TEST_EACH(places_are_in_the_tokens_that_offsets_say, TOKENIZERS)
{
    json_t *one = json_array_get(json_object_get(fixture, "places"), (size_t)_i);
    const char *text = json_string_value(json_object_get(one, "text"));
    json_t *side = side_of(json_string_value(json_object_get(one, "tokenizer")), json_object_get(one, "tokens"), NULL);
    struct client_place places[MOST_PLACES];
    struct client_tokens out = {0};
    size_t tokens[MOST_PLACES], n = 0, i;
    const json_t *id;

    for (const char *at = text; *at; n += 2) {
        places[n] = (struct client_place){(size_t)(at - text), false};
        at += client_utf8_character((const uint8_t *)at, strlen(at));
        places[n + 1] = (struct client_place){(size_t)(at - text), true};
    }
    ck_assert_uint_eq(json_array_size(json_object_get(fixture, "places")), TOKENIZERS);
    ck_assert_int_eq(
        encode_marked(&out, tokens, side,
                      &(struct client_marked){.text = text, .n = strlen(text), .places = places, .n_places = n}),
        0);
    ck_assert_uint_eq(out.n, json_array_size(json_object_get(one, "ids")));
    json_array_foreach(json_object_get(one, "ids"), i, id) ck_assert_int_eq(out.ids[i], json_integer_value(id));
    for (i = 0; i < n; i++) {
        const json_t *wants = json_object_get(one, i % 2 ? "last" : "first");
        const json_int_t want = json_integer_value(json_array_get(wants, i / 2));
        if (want >= 0) /* else no token has it */
            ck_assert_msg(tokens[i] == (size_t)want, "%zu %s: token %zu, not %d", i / 2, i % 2 ? "last" : "first",
                          tokens[i], (int)want);
    }
    free(out.ids);
    json_decref(side);
}

/* "x<b>cy", where <b> and <b>c are special: the longest counts, unless some of it is plain; if all of it is, nothing
 * within it does. By hand: 88, 67 and 89 are x, c and y; the plain "<b>c" is four tokens. */
TEST(a_token_of_which_some_is_plain_is_a_shorter_one_or_none)
{
    static const size_t plain[][2] = {{0, 0}, {4, 6}, {1, 5}, {2, 3}};
    static const char *const want[] = {"88 601 89", "88 600 67 89", "88 28 66 30 67 89", "88 28 66 30 67 89"};
    json_t *tokens = json_pack("{s:i, s:i}", "<b>", 600, "<b>c", 601), *side = side_of("bpe/tokenizer", tokens, NULL);

    for (int i = 0; i < COUNT(plain); i++) {
        struct client_tokens out = {0};
        char got[100] = "";
        ck_assert_int_eq(
            encode_marked(&out, NULL, side,
                          &(struct client_marked){.text = "x<b>cy", .n = 6, .plain = plain[i], .n_plain = 2}),
            0);
        for (size_t k = 0; k < out.n; k++)
            sprintf(got + strlen(got), "%s%u", k ? " " : "", out.ids[k]);
        ck_assert_str_eq(got, want[i]);
        free(out.ids);
    }
    json_decref(side);
    json_decref(tokens);
}

/* ---- What is trained ---- */

#define USER   "{\"role\": \"user\", \"content\": \"a\"}"
#define ANSWER "{\"role\": \"assistant\", \"content\": \"b\"}"
#define SILENT "{\"role\": \"assistant\", \"content\": \"b\", \"train\": false}"
#define LOUD   "{\"role\": \"assistant\", \"content\": \"b\", \"train\": true}"

/* A byte is a token: "<user>a<assistant>b.", and a prompt "<assistant>". */
static const char plain[] = "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}"
                            "{% if m.role == 'assistant' %}{{ '.' }}{% endif %}{% endfor %}"
                            "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}";

static struct opened open_bytes(const char *template, enum eps_train_on train_on)
{
    json_t *side = json_object();
    struct opened o = {.side = side};

    if (template)
        json_object_set_new(side, "chat_template.jinja", json_string(template));
    ck_assert_int_eq(client_tokenizer_open(&o.tokenizer, side, NULL, 256, NULL), 0);
    ck_assert_int_eq(client_conversations_open(&o.conversations, o.tokenizer, side, NULL, train_on, NULL), 0);
    return o;
}

/* The rows' texts, with what is trained in brackets, one after the other. */
static void spell(char *out, const json_t *rows)
{
    const json_t *row, *id;
    size_t k, i;

    json_array_foreach(rows, k, row)
    {
        const char *trained = json_string_value(json_object_get(row, "trained"));
        out += sprintf(out, k ? " / " : "");
        json_array_foreach(json_object_get(row, "ids"), i, id)
        {
            const bool now = trained[i] == '1', before = i > 0 && trained[i - 1] == '1';
            out += sprintf(out, "%s%c%s", now && !before ? "[" : "", (char)json_integer_value(id),
                           now && trained[i + 1] != '1' ? "]" : "");
        }
    }
}

#define EMPTY "{\"role\": \"assistant\", \"content\": \"\"}"
#define MARKED                                                                                                         \
    "{% for m in messages %}{{ '<' + m.role + '>' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"     \
    "{% endgeneration %}{{ '.' }}{% else %}{{ m.content }}{% endif %}{% endfor %}"

static const struct {
    const char *template, *messages;
    enum eps_train_on train_on;
    const char *want;
} trained[] = {
    {plain, USER "," ANSWER, EPS_TRAIN_ON_ANSWERS, "<user>a<assistant>[b.]"},
    {plain, USER "," ANSWER "," USER "," ANSWER, EPS_TRAIN_ON_ANSWERS, "<user>a<assistant>[b.]<user>a<assistant>[b.]"},
    {plain, USER "," ANSWER "," USER "," ANSWER, EPS_TRAIN_ON_LAST, "<user>a<assistant>b.<user>a<assistant>[b.]"},
    {plain, USER "," LOUD "," USER "," ANSWER, EPS_TRAIN_ON_LAST, "<user>a<assistant>[b.]<user>a<assistant>[b.]"},
    {plain, USER "," SILENT "," USER "," ANSWER, EPS_TRAIN_ON_ANSWERS, "<user>a<assistant>b.<user>a<assistant>[b.]"},
    {plain, USER "," ANSWER "," USER, EPS_TRAIN_ON_ANSWERS, "<user>a<assistant>[b.]<user>a"},
    {plain, USER "," ANSWER, EPS_TRAIN_ON_ALL, "<[user>a<assistant>b.]"},
    {plain, USER "," SILENT "," USER "," ANSWER, EPS_TRAIN_ON_ALL, "<[user>a]<assistant>b.[<user>a<assistant>b.]"},
    /* By the mark: without what follows it, which is no special token of a byte model. */
    {"{% for m in messages %}{{ '<' + m.role + '>' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
     "{% endgeneration %}{{ '.' }}{% else %}{{ m.content }}{% endif %}{% endfor %}",
     USER "," SILENT "," USER "," ANSWER, EPS_TRAIN_ON_ANSWERS, "<user>a<assistant>b.<user>a<assistant>[b]."},
    /* A role that the template prints. */
    {plain, "{\"role\": \"developer\", \"content\": \"d\"}," USER "," ANSWER, EPS_TRAIN_ON_ANSWERS,
     "<developer>d<user>a<assistant>[b.]"},
    /* An empty answer, of which the mark holds nothing, trains nothing: as transformers' mask. */
    {MARKED, USER "," EMPTY "," USER "," ANSWER, EPS_TRAIN_ON_ANSWERS, "<user>a<assistant>.<user>a<assistant>[b]."},
    {MARKED, USER "," EMPTY, EPS_TRAIN_ON_ANSWERS, "<user>a<assistant>."},
    /* The mark is known wherever it is printed: through a macro, and a variable. */
    {"{% macro say(m) %}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}{% for m in messages %}"
     "{% set text = say(m) %}{{ '<' + m.role + '>' }}{{ text if m.role == 'assistant' else m.content }}{% endfor %}",
     USER "," ANSWER, EPS_TRAIN_ON_ANSWERS, "<user>a<assistant>[b]"},
    /* The day is always the same. */
    {"{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}{% endfor %}", USER "," ANSWER,
     EPS_TRAIN_ON_ANSWERS, "26 Jul 2024a[b]"},
    /* Only the last answer is printed with a star: each answer has a row, in which it is the last. */
    {"{% for m in messages %}{{ '<' + m.role + '>' + ('*' if loop.last and m.role == 'assistant' else '') + m.content "
     "}}"
     "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}",
     USER "," ANSWER "," USER "," ANSWER, EPS_TRAIN_ON_ANSWERS,
     "<user>a<assistant>[*b] / <user>a<assistant>b<user>a<assistant>[*b]"},
    /* An end is printed after the last message: it is the last answer's, and the others' have none. */
    {"{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}"
     "{{ '<assistant>' if add_generation_prompt else '!' }}",
     USER "," ANSWER "," USER "," ANSWER, EPS_TRAIN_ON_ANSWERS, "<user>a<assistant>[b]<user>a<assistant>[b!]"},
};

TEST_EACH(answers_are_trained_and_messages_may_be_left_out, COUNT(trained))
{
    struct opened o = open_bytes(trained[_i].template, trained[_i].train_on);
    char *text, got[400] = "";

    ck_assert_int_gt(asprintf(&text, "{\"messages\": [%s]}", trained[_i].messages), 0);
    json_t *conversation = json_loads(text, 0, NULL), *rows = encode(o.conversations, conversation);
    ck_assert_msg(json_is_array(rows), "%s", json_dumps(rows, 0));
    spell(got, rows);
    ck_assert_str_eq(got, trained[_i].want);
    json_decref(rows);
    json_decref(conversation);
    free(text);
    close_all(&o);
}

static const struct {
    const char *template, *messages;
    enum eps_train_on train_on;
    const char *words[3];
} refusals[] = {
    {NULL, USER "," ANSWER, 1, {"needs a chat template", "chat_template.jinja"}},
    {plain, "", 1, {"no list with something in it"}},
    {plain, USER, 1, {"no answer", "assistant"}},
    {plain, USER "," SILENT, 1, {"none of its answers is trained"}},
    {"{% for m in messages %}{{ m.content }}{% endfor %}",
     "{\"role\": \"human\", \"content\": \"a\"}," ANSWER,
     1,
     {"message 1", "the role human", "does not know"}},
    {plain, "{\"role\": \"<user>\", \"content\": \"a\"}," ANSWER, 1, {"message 1", "the role <user>"}},
    {plain, "{\"content\": \"a\"}," ANSWER, 1, {"message 1 has no role"}},
    {plain,
     "{\"role\": \"user\", \"content\": \"a\", \"train\": 1}," ANSWER,
     1,
     {"message 1", "neither true nor false"}},
    {plain, "{\"role\": \"user\", \"content\": \"a\", \"train\": true}," ANSWER, 1, {"message 1", "for answers"}},
    {"{{ raise_exception('no turns') }}", USER "," ANSWER, 1, {"the template refuses this conversation: no turns"}},
    {"{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}{{ '<think>' }}{% endif %}",
     USER "," ANSWER,
     1,
     {"where the answer of message 2 begins", "{% generation %}", "--train-on all"}},
    {"{% for m in messages %}{{ m.content }}{% endfor %}{% generation %}{{ '' }}{% endgeneration %}",
     USER "," ANSWER,
     1,
     {"marks no part of message 2"}},
    {"{% generation %}{{ messages[1].content }}{% endgeneration %}",
     USER "," ANSWER "," USER "," SILENT,
     1,
     {"message 4", "leave it out"}},
    {"{{ messages[0].content }}{{ messages[1].content }}",
     USER "," SILENT "," USER "," ANSWER,
     EPS_TRAIN_ON_ALL,
     {"does not print message 2 in a loop", "\"train\": false"}},
};

TEST_EACH(what_cannot_be_trained_is_refused_by_name, COUNT(refusals))
{
    struct opened o = open_bytes(refusals[_i].template, refusals[_i].train_on);
    char *text;

    ck_assert_int_gt(asprintf(&text, "{\"messages\": [%s]}", refusals[_i].messages), 0);
    json_t *conversation = json_loads(text, 0, NULL), *got = encode(o.conversations, conversation);
    const char *sentence = json_string_value(json_object_get(got, "error"));
    ck_assert_msg(sentence != NULL, "%s", json_dumps(got, 0));
    ck_assert_holds(sentence, refusals[_i].words[0], refusals[_i].words[1], refusals[_i].words[2]);
    json_decref(got);
    json_decref(conversation);
    free(text);
    close_all(&o);
}

/* By hand: the fixture's tokens of "a" and "b" are 64 and 65, its end token is 407, and 400 begins each text. */
TEST(a_prompt_with_a_completion_needs_no_template_and_ends_with_the_end_token)
{
    static const struct {
        const char *prompt, *text, *want;
        enum eps_train_on train_on;
    } cases[] = {{"a", "b", "[400,64,65,407] 0011", EPS_TRAIN_ON_ANSWERS},
                 {"a<EOS>", "b<EOS>", "[400,64,407,65,407] 00011", EPS_TRAIN_ON_LAST},
                 {"a", "bb", "[400,64,65,65,407] 01111", EPS_TRAIN_ON_ALL},
                 {NULL, "bb", "[400,65,65,407] 0111", EPS_TRAIN_ON_ANSWERS}};

    for (int i = 0; i < COUNT(cases); i++) {
        struct opened o =
            open_with(side_of("tokenizers/llama3", json_object_get(json_array_get(ways, 5), "tokens"), NULL),
                      cases[i].train_on);
        json_t *conversation = json_pack("{s:s?, s:s}", "prompt", cases[i].prompt, "text", cases[i].text),
               *rows = encode(o.conversations, conversation), *row = json_array_get(rows, 0);
        char *ids = json_dumps(json_object_get(row, "ids"), JSON_COMPACT), *got;
        ck_assert_int_gt(asprintf(&got, "%s %s", ids, json_string_value(json_object_get(row, "trained"))), 0);
        ck_assert_str_eq(got, cases[i].want);
        free(got);
        free(ids);
        json_decref(rows);
        json_decref(conversation);
        close_all(&o);
    }
}

/* Not another template than the one that was named. */
TEST_IF(without_memory_for_its_name_no_template_is_taken, !SANITIZED)
{
    static const char config[] = "{\"chat_template\": [{\"name\": \"default\", \"template\": \"a\"}, "
                                 "{\"name\": \"rag\", \"template\": \"b\"}]}";
    json_t *side = json_pack("{s:s}", "tokenizer_config.json", config);
    struct client_tokenizer *t;
    struct client_conversations *c;
    struct error err = {""};

    ck_assert_int_eq(client_tokenizer_open(&t, NULL, NULL, 256, NULL), 0);
    lacks_memory = true;
    const int rc = client_conversations_open(&c, t, side, "rag", EPS_TRAIN_ON_ANSWERS, &err);
    lacks_memory = false;
    ck_assert_int_eq(rc, -ENOMEM);
    ck_assert_ptr_null(c);
    client_tokenizer_close(t);
    json_decref(side);
}

/* A conversation without messages: the first error that is none of memory. */
TEST(turns_leave_nothing_behind_whichever_allocation_fails)
{
    json_t *variables = json_pack("{s:n}", "tools"), *conversation = json_object();
    struct client_turns turns;
    unsigned n = 0;
    int rc;

    json_set_alloc_funcs(allocate, release);
    do {
        n_allowed = n++;
        rc = client_turns_open(&turns, NULL, variables, EPS_TRAIN_ON_ALL, conversation, NULL);
        client_turns_close(&turns);
        ck_assert_uint_eq(n_live, 0);
    } while (rc == -ENOMEM);
    json_set_alloc_funcs(malloc, free);
    ck_assert_int_eq(rc, -EINVAL);
    ck_assert_uint_gt(n, 4);
    json_decref(conversation);
    json_decref(variables);
}
