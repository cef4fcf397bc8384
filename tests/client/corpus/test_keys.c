/* What lines of JSON say beside texts: whether a message is trained, what stands beside a conversation, keys that
 * nobody reads, and numbers that C has no place for. A byte is a token. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/corpus/documents.h"
#include "client/corpus/keys.h"
#include "client/text/conversation.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

static const char template[] =
    "{{ first or '' }}{{ ('t' if tools is not none else '-') ~ ('d' if documents is not none else '-') if asks }}"
    "{% for t in tools or [] %}{{ '(' + t.function.name + ')' }}{% endfor %}"
    "{% for d in documents or [] %}{{ '{' + d.text + '}' }}{% endfor %}"
    "{% for m in messages %}{{ '<' + m['role'] + '>' + m.content + (m.mood or '') }}"
    "{% if m.role == 'assistant' %}{{ '.' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}";

/* Reads a line, in which single quotes stand for double ones; `got` is its text, with what is trained in brackets;
 * `unread` gets the keys that nobody reads. */
static int read_line(char got[600], char unread[600], const char *line, bool pairs, struct error *err)
{
    const char *path = processes_put_text("one.jsonl", quoted(line));
    json_t *side = json_pack("{s:s}", "chat_template.jinja", template);
    struct client_documents_rules rules = {.side = side, .train_on = EPS_TRAIN_ON_ANSWERS, .pairs = pairs};
    struct client_corpus documents = {.fd = -1};
    struct client_data data;
    uint32_t ids[400];

    *got = *unread = 0;
    ck_assert_int_eq(client_tokenizer_open(&rules.tokenizer, side, NULL, 256, NULL), 0);
    ck_assert_int_eq(client_data_open(&data, &path, 1, err), 0);
    const int rc = client_documents_read(&documents, &data, &rules, err);
    for (size_t k = 0; !rc && k < documents.n; k++) {
        const uint32_t n = client_document_inputs(&documents.list[k]) + 1;
        ck_assert_int_eq(client_corpus_tokens(&documents, ids, k, n, NULL), 0);
        for (uint32_t i = 0; i < n; i++) {
            const bool now = ids[i] & CLIENT_TOKEN_TRAINED, before = i > 0 && ids[i - 1] & CLIENT_TOKEN_TRAINED,
                       next = i + 1 < n && ids[i + 1] & CLIENT_TOKEN_TRAINED;
            got += sprintf(got, "%s%c%s", now && !before ? "[" : "", (char)(ids[i] & 0xFF), now && !next ? "]" : "");
        }
    }
    for (size_t i = 0; !rc && i < data.files[0].unread.n; i++) {
        const struct client_unread_key *key = &data.files[0].unread.keys[i];
        unread += sprintf(unread, "%s%s%s", i > 0 ? " " : "", key->kind == CLIENT_UNREAD_MESSAGE ? "." : "", key->name);
        ck_assert_uint_eq(key->n, 1);
    }
    client_tokenizer_close(rules.tokenizer);
    json_decref(side);
    client_corpus_free(&documents);
    client_data_free(&data);
    return rc;
}

#define USER       "{'role': 'user', 'content': 'a'}"
#define TURN(said) USER ", {'role': 'assistant', 'content': 'b'" said "}"
#define TWO(said)  "{'messages': [" TURN(said) ", " TURN("") "]}"
#define FIRST_NOT  "<user>a<assistant>b.<user>a<assistant>[b.]"
#define BOTH       "<user>a<assistant>[b.]<user>a<assistant>[b.]"
#define ONE        "<user>a<assistant>[b.]"
#define ASKS       ", 'chat_template_kwargs': {'asks': 1}"

static const struct {
    const char *line, *want, *unread;
} lines[] = {
    {TWO(", 'weight': 0"), FIRST_NOT, ""},
    {TWO(", 'weight': 0.0"), FIRST_NOT, ""},
    {TWO(", 'weight': 1"), BOTH, ""},
    {TWO(", 'weight': false, 'train': false"), FIRST_NOT, ""},
    {TWO(", 'weight': null, 'train': null"), BOTH, ""},
    {TWO(", 'training': false"), FIRST_NOT, ""},
    {TWO(", 'trainable': 0"), FIRST_NOT, ""},
    {TWO(", 'loss_mask': 0"), FIRST_NOT, ""},
    {TWO(", 'loss': false"), FIRST_NOT, ""},
    {TWO(", 'loss': true, 'weight': 1"), BOTH, ""},
    {"{'messages': [{'role': 'user', 'content': 'a', 'weight': 0}, {'role': 'assistant', 'content': 'b', 'weight': "
     "1}]}",
     ONE, ""},
    {"{'conversations': [{'from': 'human', 'value': 'a'}, {'from': 'gpt', 'value': 'b', 'weight': 0, 'id': 1}, "
     "{'from': 'human', 'value': 'a'}, {'from': 'gpt', 'value': 'b'}]}",
     FIRST_NOT, ".id"},
    {"{'prompt': [" USER "], 'completion': [{'role': 'assistant', 'content': 'b', 'weight': 1}]}", ONE, ""},
    {"{'messages': [" TURN("") "], 'system': 's'}", "<system>s" ONE, ""},
    {"{'messages': [{'role': 'system', 'content': 's'}, " TURN("") "], 'system': 's'}", "<system>s" ONE, ""},
    {"{'messages': [" TURN("") "], 'system': '', 'tools': [], 'functions': null}", ONE, ""},
    /* As by transformers' apply_chat_template, which gets an empty list as one, and null as none. */
    {"{'messages': [" TURN("") "], 'tools': [], 'documents': []" ASKS "}", "td" ONE, ""},
    {"{'messages': [" TURN("") "], 'tools': '[]', 'documents': null" ASKS "}", "t-" ONE, ""},
    {"{'messages': [" TURN("") "], 'tools': null, 'documents': ''" ASKS "}", "--" ONE, ""},
    {"{'messages': [" TURN("") "], 'tools': [], 'functions': [{'name': 'f'}]" ASKS "}", "t-(f)" ONE, ""},
    {"{'prompt': [" USER "], 'completion': [{'role': 'assistant', 'content': 'b'}], 'tools': []" ASKS "}", "t-" ONE,
     ""},
    {"{'prompt': [" USER "], 'completion': [{'role': 'assistant', 'content': 'b'}], 'system': 's'}", "<system>s" ONE,
     ""},
    {"{'messages': [" TURN("") "], 'functions': [{'name': 'f'}]}", "(f)" ONE, ""},
    {"{'messages': [" TURN("") "], 'functions': '[{\\'name\\': \\'f\\'}]'}", "(f)" ONE, ""},
    {"{'messages': [" TURN("") "], 'tools': [{'function': {'name': 'f', 'most': 1}}]}", "(f)" ONE, ""},
    {"{'messages': [" TURN("") "], 'documents': [{'text': 'd'}]}", "{d}" ONE, ""},
    {"{'messages': [" TURN("") "], 'chat_template_kwargs': {'documents': [{'text': 'd'}], 'first': 'z'}}", "z{d}" ONE,
     ""},
    {"{'messages': [" TURN(
         ", 'mood': '!', 'name': 'x', 'mark': 7, 'none': null") "], 'id': 3, 'images': ['i.png'], 'text': 't'}",
     "<user>a<assistant>[b!.]", "id images text .mark"},
    {"{'text': 'one', 'id': 3, 'none': null}", "o[ne]", "id"},
    {"{'prompt': 'a', 'completion': 'bc', 'system': 's'}", "a[bc]", "system"},
    /* numbers */
    {"{'messages': [" TURN(", 'score': NaN, 'big': 18446744073709551616") "], 'x': [-Infinity, 1e400, -1e999]}", ONE,
     "x .score .big"},
    {"{'messages': [" TURN("") "], 'tools': [{'function': {'name': 'f', 'most': 18446744073709551615}}]}", "(f)" ONE,
     ""},
    {"{'text': 'NaN 1e400', 'x': Infinity, 'y': 1234567890123456789012345678901234567890123456}", "N[aN 1e400]", "x y"},
};

TEST_EACH(what_stands_beside_texts_is_honoured_or_counted, COUNT(lines))
{
    char got[600], unread[600];
    struct error err = {""};

    ck_assert_msg(read_line(got, unread, lines[_i].line, false, &err) == 0, "%s: %s", lines[_i].line, err.text);
    ck_assert_str_eq(got, lines[_i].want);
    ck_assert_str_eq(unread, lines[_i].unread);
}

/* Both texts of a preference have what stands beside it. */
TEST(preferences_have_it_too)
{
    char got[600], unread[600];
    struct error err = {""};

    ck_assert_int_eq(read_line(got, unread,
                               "{'prompt': [" USER "], 'chosen': [{'role': 'assistant', 'content': 'b', 'rank': 1}], "
                               "'rejected': [{'role': 'assistant', 'content': 'c'}], 'system': 's', 'functions': "
                               "[{'name': 'f'}], 'score_chosen': NaN}",
                               true, &err),
                     0);
    ck_assert_str_eq(got, "(f)<system>s<user>a<assistant>[b.](f)<system>s<user>a<assistant>[c.]");
    ck_assert_str_eq(unread, "score_chosen .rank");
}

static const struct {
    const char *line, *words[2];
} refused[] = {
    {TWO(", 'weight': 0.5"), {"message 2: its \"weight\" is neither 0 nor 1", ""}},
    {TWO(", 'loss_mask': [0, 1]"), {"message 2: its \"loss_mask\" is neither", ""}},
    {TWO(", 'weight': 'yes'"), {"message 2: its \"weight\" is neither", ""}},
    {TWO(", 'train': true, 'weight': 0"), {"its \"train\" says that it is trained", "its \"weight\" that it is not"}},
    {TWO(", 'weight': 1, 'loss': 0"), {"its \"weight\" says that it is trained", "its \"loss\" that it is not"}},
    {"{'messages': [{'role': 'user', 'content': 'a', 'weight': 1}, {'role': 'assistant', 'content': 'b'}]}",
     {"message 1: \"weight\": 1 is for answers", ""}},
    {"{'prompt': [" TURN(", 'weight': 1") ", " USER "], 'completion': [{'role': 'assistant', 'content': 'b'}]}",
     {"message 2: its \"weight\" says that it is trained, and a prompt is not", ""}},
    {"{'messages': [{'role': 'system', 'content': 's'}, " TURN("") "], 'system': 't'}",
     {"it has a \"system\", and a first message of the role system", "keep one"}},
    {"{'messages': [" TURN("") "], 'tools': [{'function': {'name': 'g'}}], 'functions': [{'name': 'f'}]}",
     {"\"tools\" and \"functions\"", "keep one"}},
    {"{'messages': [" TURN("") "], 'functions': 3}", {"its functions are no list", ""}},
    {"{'messages': [" TURN("") "], 'documents': 'one'}", {"its documents are no list", ""}},
    {"{'messages': [" TURN("") "], 'chat_template_kwargs': {'tools': []}}",
     {"chat_template_kwargs have \"tools\"", ""}},
    {"{'messages': [{'role': 'user', 'content': NaN}, {'role': 'assistant', 'content': 'b'}]}",
     {"a text + a real number is not supported", ""}},
    {"{'messages': [" TURN(", 'mood': 1e400") "]}", {"a text + a real number is not supported", ""}},
    {"{'text': NaNs}", {"no JSON object", ""}},
    {"{'text': 'a', 'x': NaN,}", {"no JSON object", ""}},
};

TEST_EACH(what_has_no_one_meaning_is_refused, COUNT(refused))
{
    char got[600], unread[600];
    struct error err = {""};

    ck_assert_int_eq(read_line(got, unread, refused[_i].line, false, &err), -EINVAL);
    ck_assert_holds(err.text, "one.jsonl: line 1: ", refused[_i].words[0], refused[_i].words[1]);
}

static void add_sentence(void *user, const char *sentence)
{
    char *all = user;

    strcat(strcat(all, sentence), "\n");
}

/* By hand: a key counts once a line, and a long list ends. */
TEST(a_file_s_keys_are_told_in_a_sentence)
{
    struct client_data_file file = {.path = (char *)(uintptr_t) "some.jsonl"};
    struct client_data data = {.files = &file, .n_files = 1};
    char all[2000] = "", name[16];

    client_unread_count(&file.unread, CLIENT_UNREAD_MESSAGE, "foo", 1);
    client_unread_count(&file.unread, CLIENT_UNREAD_MESSAGE, "foo", 1);
    client_unread_tell(&data, "--data", add_sentence, all);
    ck_assert_str_eq(all, "some.jsonl: the key \"foo\" of messages in 1 line is not read\n");
    client_unread_count(&file.unread, CLIENT_UNREAD_KEY, "a\x1b[2Jb", 2);
    client_unread_count(&file.unread, CLIENT_UNREAD_KEY, "a\x1b[2Jb", 3);
    *all = 0;
    client_unread_tell(&data, "--data", add_sentence, all);
    ck_assert_str_eq(all, "some.jsonl: the key \"foo\" of messages in 1 line and the key \"a?[2Jb\" of 2 lines are not "
                          "read\n");
    for (int i = 0; i < 3 * CLIENT_UNREAD_MOST; i++) {
        snprintf(name, sizeof name, "k%d", i);
        client_unread_count(&file.unread, CLIENT_UNREAD_KEY, name, 4);
    }
    *all = 0;
    client_unread_tell(&data, "--data", add_sentence, all);
    ck_assert_holds(all, "the key \"k0\" of 1 line", " and others are not read\n");
    client_unread_free(&file.unread);
}

/* Of 20,000, each of which would take 100 bytes; a sanitizer's memory is not counted. */
TEST(keys_without_end_take_no_memory)
{
    struct client_unread unread = {.n = 0};
    struct client_keys *keys;
    char name[16];

    ck_assert_int_eq(client_keys_open(&keys, NULL, NULL), 0);
    const size_t before = mallinfo2().uordblks;
    for (int i = 0; i < 20000; i++) {
        snprintf(name, sizeof name, "k%d", i);
        json_t *line = json_pack("{s:[{s:s, s:s, s:i}]}", "messages", "role", "user", "content", "one", name, 1);
        client_keys_count(&unread, keys, line, (uint64_t)i);
        json_decref(line);
    }
    ck_assert(unread.n == CLIENT_UNREAD_MOST && unread.more);
    client_unread_free(&unread);
    ck_assert_uint_lt(mallinfo2().uordblks, before + 400000);
    client_keys_close(keys);
}
