/* Chat templates: the texts that transformers makes of the same templates and conversations, and what is refused.
 *
 * test_template render FILE is for tests/oracle/templates.py: FILE holds [{"template": "...", "variables": {...}},
 * ...]; it prints [{"text": "..."} or {"error": "..."}, ...]. */
#include "client/text/template.h"
#include "client/text/tokenizer.h"
#include "proto/base/wide.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Saturday, 2 January 2027, 03:04:05 UTC. */
enum { NOW = 1798859045 };

static int render(char **text, size_t *n, const char *source, size_t n_source, const json_t *variables,
                  struct error *err)
{
    struct client_template *t;
    int rc = client_template_open(&t, source, n_source, err);

    *text = NULL;
    if (!rc)
        rc = client_template_render(text, n, t, variables, NOW, err);
    client_template_close(t);
    return rc;
}

/* A whole file as JSON, with the numbers that Python writes. */
static json_t *load(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t cap = 0;
    const ssize_t n = file ? getdelim(&text, &cap, 0, file) : -1;
    json_t *value = n > 0 ? wide_read(text, (size_t)n, JSON_ALLOW_NUL, NULL) : NULL;

    free(text);
    if (file)
        fclose(file);
    return value;
}

static int command(int argc, char **argv)
{
    json_t *cases = argc == 3 ? load(argv[2]) : NULL, *answers = json_array(), *one;
    size_t i, n;

    if (!json_is_array(cases))
        return 2;
    json_array_foreach(cases, i, one)
    {
        const json_t *source = json_object_get(one, "template");
        struct error err = {""};
        char *text;
        const int rc = render(&text, &n, json_string_value(source), json_string_length(source),
                              json_object_get(one, "variables"), &err);
        json_array_append_new(answers,
                              rc ? json_pack("{s:s}", "error", err.text) : json_pack("{s:s%}", "text", text, n));
        free(text);
    }
    json_dumpf(answers, stdout, JSON_COMPACT);
    json_decref(answers);
    json_decref(cases);
    return 0;
}

SUITE_COMMAND(command)

/* tests/fixtures/templates.json: tests/oracle/templates.py made it with transformers. */
static json_t *fixture;

static void setup(void)
{
    json_error_t why;

    setenv("TZ", "UTC", 1);
    fixture = json_load_file(TESTS_DIR "/fixtures/templates.json", JSON_ALLOW_NUL, &why);
    ck_assert_msg(fixture != NULL, "%s", why.text);
}

static void teardown(void)
{
    json_decref(fixture);
}

SUITE_FIXTURE_ONCE(setup, teardown)

/* The variables that transformers passes with a conversation. */
static json_t *variables_of(size_t conversation)
{
    json_t *variables = json_pack("{s:O, s:b, s:n, s:n}", "messages",
                                  json_array_get(json_object_get(fixture, "conversations"), conversation),
                                  "add_generation_prompt", 1, "tools", "documents");

    ck_assert_int_eq(json_object_update(variables, json_object_get(fixture, "tokens")), 0);
    return variables;
}

/* want: JSON null if transformers refuses. */
static void check(const char *source, size_t conversation, const json_t *want)
{
    json_t *variables = variables_of(conversation), *before = json_deep_copy(variables);
    struct error err = {""};
    char *text;
    size_t n = 0;
    const int rc = render(&text, &n, source, strlen(source), variables, &err);

    if (json_is_string(want)) {
        ck_assert_msg(rc == 0, "%s: %s", source, err.text);
        ck_assert_msg(n == json_string_length(want) && memcmp(text, json_string_value(want), n) == 0,
                      "%s\nconversation %zu: %s\nnot %s", source, conversation, text, json_string_value(want));
        ck_assert_int_eq(text[n], 0);
    } else {
        ck_assert_msg(rc == -EINVAL, "%s: %s", source, text);
        ck_assert_holds(err.text, "line ", ", column ");
    }
    ck_assert(json_equal(variables, before));
    json_decref(before);
    json_decref(variables);
    free(text);
}

TEST_EACH(conversations_are_the_texts_of_transformers, 9)
{
    const json_t *family = json_array_get(json_object_get(fixture, "families"), (size_t)_i);
    const json_t *answers = json_object_get(family, "answers"), *answer;
    size_t i;

    ck_assert_uint_ge(json_array_size(answers), 50);
    json_array_foreach(answers, i, answer) check(json_string_value(json_object_get(family, "template")), i, answer);
}

/* White space, values, scopes, filters and tests, each in a template of its own. */
TEST(constructs_are_the_texts_of_transformers)
{
    const json_t *one;
    size_t i;

    json_array_foreach(json_object_get(fixture, "constructs"), i, one)
        check(json_string_value(json_array_get(one, 0)), 1, json_array_get(one, 1));
    json_array_foreach(json_object_get(fixture, "errors"), i, one) check(json_string_value(one), 1, json_null());
}

/* Numbers of all kinds, in calls and tools: their variables are texts of JSON, as Python writes them. */
TEST(numbers_are_those_of_transformers)
{
    const json_t *one;
    size_t i, n;

    ck_assert_uint_ge(json_array_size(json_object_get(fixture, "numbers")), 20);
    json_array_foreach(json_object_get(fixture, "numbers"), i, one)
    {
        const char *source = json_string_value(json_array_get(one, 0)),
                   *want = json_string_value(json_array_get(one, 2)),
                   *given = json_string_value(json_array_get(one, 1));
        json_t *variables = wide_read(given, strlen(given), 0, NULL);
        struct error err = {""};
        char *text;
        ck_assert_msg(render(&text, &n, source, strlen(source), variables, &err) == 0, "%s: %s", source, err.text);
        ck_assert_str_eq(text, want);
        free(text);
        json_decref(variables);
    }
}

static const struct {
    const char *source, *sentence;
} refusals[] = {
    {"a\n {% include 'x' %}", "line 2, column 5: the statement include"},
    {"{% if false %}{{ 'x' | xmlattr }}{% endif %}{{ 'x' | wordwrap(3) }}", "column 54: the filter wordwrap"},
    {"{{ 0x1F }}", "column 4: only decimal numbers"},
    {"{{ 1 is nosuch }}", "column 9: the test nosuch"},
    {"{{ nosuch(1) }}", "column 4: the function nosuch"},
    {"{% for x in [1] %}{{ loop.parent }}{% endfor %}", "column 27: the attribute parent of loop is not supported"},
    {"{% for x in [1] %}{{ loop['depth1'] is defined }}{% endfor %}", "the attribute depth1 of loop"},
    {"{% for x in [1] %}{{ loop.changed(x) }}{% endfor %}", "the method changed is not supported for a loop"},
    {"{% for x in [1] %}{{ loop }}{% endfor %}", "a loop cannot be printed"},
    {"{% for x in [1] %}{{ loop | tojson }}{% endfor %}", "tojson is not supported for a loop"},
    {"{% for x in [1] %}{% for y in loop %}{% endfor %}{% endfor %}", "a loop has no elements"},
    {"{% macro m() %}{{ varargs }}{% endmacro %}{{ m() }}", "Jinja's variable varargs is not supported"},
    {"{{ joiner }}", "Jinja's variable joiner is not supported"},
    {"{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "the function caller"},
    {"{% call x %}{% endcall %}", "column 9: x stands where a macro's call is expected"},
    {"{% raw %}{{ x }}", "column 1: there is no endraw"},
    {"{{ (-8) ** 0.5 }}", "a root of a negative number is not supported"},
    {"{{ 10 ** 400 }}{{ 1 }}", "a number is too large"},
    {"{{ 9007199254740993 / 2 }}", "a number is too large"},
    {"{{ 9223372036854775808 + 1 }}", "column 24: a number is too large"},
    {"{{ [1, 'a'] | sort }}", "have no order"},
    {"{{ messages }}", "a list cannot be printed"},
    {"{{ 'x'.encode() }}", "the method encode"},
    {"{{ raise_exception('no ' ~ 1) }}", ": no 1"},
    {"{% if 1 %}", "line 1, column 9: there is no endif"},
    {"{% for x in [1] recursive %}{% endfor %}", "recursive loops are not supported"},
    {"{{ 9223372036854775807 + 1 }}", "a number is too large"},
    {"{{ -1 - 9223372036854775807 - 1 }}", "a number is too large"},
    {"{{ (-1 - 9223372036854775807) // -1 }}", "a number is too large"},
    {"{{ -(-1 - 9223372036854775807) }}", "a number is too large"},
    {"{{ range(-1 - 9223372036854775807, 0) }}", "range is not supported"},
    {"{{ {'a': 1}.items }}", "the method items is not called"},
    {"{% set n = namespace() %}{% set n.x = [n] %}", "a namespace cannot be a member"},
};

TEST_EACH(what_is_not_supported_is_named_with_its_place, COUNT(refusals))
{
    json_t *variables = variables_of(0);
    struct error err = {""};
    char *text;
    size_t n;

    ck_assert_int_eq(render(&text, &n, refusals[_i].source, strlen(refusals[_i].source), variables, &err), -EINVAL);
    ck_assert_holds(err.text, refusals[_i].sentence);
    json_decref(variables);
}

/* Templates that would take all time, all memory or all of the stack. */
static const char *const endless[] = {
    "{% for a in range(999999) %}{% for b in range(999999) %}{% endfor %}{% endfor %}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99999) %}{% set n.x = [n.x] %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x == n.x }}",
    "{{ range(100000000) | length }}",
    "{% for i in range(300) %}{% set n = namespace() %}{% endfor %}",
    "{% set x = 'a' * 9 %}",
};

TEST_EACH(time_memory_and_depth_are_bounded, COUNT(endless))
{
    json_t *variables = variables_of(0);
    struct error err = {""};
    char *text;
    size_t n;
    const int rc = render(&text, &n, endless[_i], strlen(endless[_i]), variables, &err);

    ck_assert_msg(rc == -E2BIG || rc == -EINVAL, "%d %s", rc, err.text);
    ck_assert_str_ne(err.text, "");
    json_decref(variables);
}

TEST_EACH(a_nest_of_any_kind_has_a_limit, 6)
{
    static const char *const nests[][4] = {{"{{ ", "(", ")", "}}"},  {"{{ ", "[", "]", "}}"},
                                           {"{{ ", "-", "", "}}"},   {"{{ ", "{'a':", "}", "}}"},
                                           {"{{ ", "x[", "]", "}}"}, {"", "{% if 1 %}", "", ""}};
    struct client_template *t;
    struct error err = {""};
    char source[100000];
    size_t n = (size_t)sprintf(source, "%s", nests[_i][0]);

    for (int i = 0; i < 9000; i++)
        n += (size_t)sprintf(source + n, "%s", nests[_i][1]);
    for (int i = 0; i < 9000; i++)
        n += (size_t)sprintf(source + n, "%s", nests[_i][2]);
    n += (size_t)sprintf(source + n, "%s", nests[_i][3]);
    ck_assert_int_eq(client_template_open(&t, source, n, &err), -EINVAL);
    ck_assert_holds(err.text, "more than 64 statements and expressions");
}

/* Of each byte: a dot if it is the template's, else u if it is a message's; in capitals, G and U, what is generated.
 * Messages are {role: user, content: " a-b ", parts: ["x", {"k": "y"}]} and {role: assistant, content: "C"}. */
static const struct {
    const char *source, *text, *labels;
} labelled[] = {
    {"<{{ messages[0].role }}>{{ messages[0].content }}", "<user> a-b ", "......uuuuu"},
    {"{{ messages[0].content | trim }}|{{ messages[0].content.rstrip() }}", "a-b| a-b", "uuu.uuuu"},
    {"{{ messages[0].content.replace('-', '==') }}{{ 'x-y'.replace('-', messages[0].parts[0]) }}", " a==b xxy",
     "uu..uu.u."},
    {"{{ ('a-' + messages[1].content).replace('a', 'bb') }}{{ ('--' + messages[1].content + '-.').split('--')[1] }}",
     "bb-CC-.", "...uu.."},
    {"{{ messages[0].content.split('-')[1] }}{{ messages[0].content[1:4] }}{{ messages[0].content[-2] }}", "b a-bb",
     "uuuuuu"},
    {"{{ '(' + messages[1].content ~ ')' }}{{ (messages[1].content + '.') | lower }}", "(C)c.", ".u.u."},
    {"{{ ['a', messages[1].content] | join('-') }}{{ messages[1].content.join(['1', '2']) }}", "a-C1C2", "..u.u."},
    {"{{ messages[0].parts[1] | tojson }}{{ {'k': 'y'} | tojson }}", "{\"k\": \"y\"}{\"k\": \"y\"}",
     "uuuuuuuuuu.........."},
    {"{% for k, v in messages[0].parts[1] | items %}{{ k }}={{ v }}{% endfor %}", "k=y", "u.u"},
    {"{% for c in messages[1].content %}{{ c }}{% endfor %}{{ messages[0].parts | first }}{{ messages[0].content | "
     "reverse }}",
     "Cx b-a ", "uuuuuuu"},
    {"{% set x %}[{{ messages[1].content }}]{% endset %}{{ x }}{% macro m(a) %}{{ a }}!{% endmacro %}{{ "
     "m(messages[1].content) }}",
     "[C]C!", ".u.u."},
    {"{% generation %}<{{ messages[1].content }}{% endgeneration %}>", "<C>", "GU."},
    {"{% set x %}{% generation %}g{% endgeneration %}{% endset %}{{ x + messages[1].content }}", "gC", "Gu"},
    {"{{ messages[0].content == ' a-b ' }}{{ 'a' in messages[0].content }}{{ messages[0].content | length }}",
     "TrueTrue5", "........."},
    {"{% filter upper %}<{{ messages[1].content | lower }}>{% endfilter %}", "<C>", ".u."},
    {"{% macro m() %}({{ caller(messages[1].content) }}){% endmacro %}{% call(x) m() %}{{ x }}x{% endcall %}", "(Cx)",
     ".u.."},
    {"{{ ('a' + messages[1].content + 'ß') | upper }}{{ messages[0].content.splitlines()[0] | trim | title }}",
     "ACSSA-B", ".u..uuu"},
    {"{{ [messages[1].content, 'B'] | sort | join }}{{ messages[1].content.removeprefix('x') }}", "BCC", ".uu"},
    {"{{ tools[0].name }}{{ bos_token }}{{ messages[0].none }}{{ messages[0].content | string }}", "t<s> a-b ",
     "u...uuuuu"},
};

static json_t *labelled_variables(void)
{
    return json_pack("{s:[{s:s, s:s, s:[s, {s:s}]}, {s:s, s:s}], s:[{s:s}], s:s}", "messages", "role", "user",
                     "content", " a-b ", "parts", "x", "k", "y", "role", "assistant", "content", "C", "tools", "name",
                     "t", "bos_token", "<s>");
}

TEST_EACH(labels_follow_a_message_s_text_through_what_a_template_does, COUNT(labelled))
{
    json_t *variables = labelled_variables();
    struct client_rendering out;
    struct client_template *t;
    struct error err = {""};
    char got[80] = "";

    ck_assert_int_eq(client_template_open(&t, labelled[_i].source, strlen(labelled[_i].source), &err), 0);
    ck_assert_msg(client_template_render_labelled(&out, t, variables, NOW, &err) == 0, "%s", err.text);
    for (size_t i = 0; i < out.n; i++) {
        const bool untrusted = out.labels[i] & CLIENT_LABEL_UNTRUSTED,
                   generated = out.labels[i] & CLIENT_LABEL_GENERATED;
        got[i] = untrusted ? (generated ? 'U' : 'u') : generated ? 'G' : '.';
    }
    ck_assert_str_eq(out.text, labelled[_i].text);
    ck_assert_str_eq(got, labelled[_i].labels);
    free(out.text);
    free(out.labels);
    client_template_close(t);
    json_decref(variables);
}

/* The innermost loop over messages counts, also over some of them, and from the last to the first. */
TEST(each_byte_knows_the_message_at_which_it_was_printed)
{
    static const char source[] =
        "{% set n = namespace(x='') %}{% for m in messages %}{% set y %}{{ m.role[1] }}{% endset %}{{ n.x }}"
        "{% set n.x = y %}{% endfor %}" /* the first message's, at the second */
        "-{% for m in messages[1:] %}{{ m.content }}{% for x in ['.'] %}{{ x }}{% endfor %}{% endfor %}-"
        "{% for m in messages[::-1] %}{{ m.role[0] }}{% endfor %}";
    static const uint16_t want[] = {2, 0, 2, 2, 0, 2, 1};
    json_t *variables = labelled_variables();
    struct client_rendering out;
    struct client_template *t;

    ck_assert_int_eq(client_template_open(&t, source, strlen(source), NULL), 0);
    ck_assert_int_eq(client_template_render_labelled(&out, t, variables, NOW, NULL), 0);
    ck_assert_str_eq(out.text, "s-C.-au");
    for (size_t i = 0; i < out.n; i++)
        ck_assert_uint_eq(out.labels[i] & CLIENT_LABEL_MESSAGE, want[i]);
    ck_assert(client_template_names(t, ".") && !client_template_names(t, "messages"));
    ck_assert(!client_template_marks_answers(t));
    free(out.text);
    free(out.labels);
    client_template_close(t);
    json_decref(variables);
}

/* By transformers' get_chat_template. */
TEST(of_several_templates_the_named_one_counts_and_tool_use_with_tools)
{
#define LISTED(inner) "{\"chat_template\": [" inner "]}"
#define ONE(name)     "{\"name\": \"" name "\", \"template\": \"" name "!\"}"
    static const struct {
        const char *file, *content, *name;
        bool tools;
        int rc;
        const char *text; /* or words of the error */
    } cases[] = {
        {"tokenizer_config.json", LISTED(ONE("tool_use") "," ONE("default")), NULL, false, 0, "default!"},
        {"tokenizer_config.json", LISTED(ONE("tool_use") "," ONE("default")), NULL, true, 0, "tool_use!"},
        {"tokenizer_config.json", LISTED(ONE("rag") "," ONE("default")), NULL, true, 0, "default!"},
        {"tokenizer_config.json", LISTED(ONE("tool_use") "," ONE("rag")), "rag", true, 0, "rag!"},
        {"tokenizer_config.json", LISTED(ONE("tool_use") "," ONE("rag")), NULL, true, 0, "tool_use!"},
        {"tokenizer_config.json", LISTED(ONE("tool_use") "," ONE("rag")), NULL, false, -ENOKEY,
         "tool_use, rag, and none is called default: give --chat-template"},
        {"tokenizer_config.json", LISTED(ONE("tool_use") "," ONE("rag")), "rags", false, -EDOM,
         "--chat-template rags: the model has no chat template of this name, but tool_use, rag"},
        {"tokenizer_config.json", "{\"chat_template\": \"one!\"}", "default", true, 0, "one!"},
        {"tokenizer_config.json", "{\"chat_template\": \"one!\"}", "rag", false, -EDOM,
         "it has one, which is called default"},
        {"tokenizer_config.json", "{}", "rag", false, -EDOM, "--chat-template rag: the model has no chat template"},
        {"chat_template.json", "{\"chat_template\": \"processor!\"}", NULL, false, 0, "processor!"},
        {"chat_template.jinja", "file!", NULL, true, 0, "file!"},
    };

    for (int i = 0; i < COUNT(cases); i++) {
        json_t *side = json_pack("{s:s}", cases[i].file, cases[i].content), *variables = json_object();
        struct client_template *t;
        struct error err = {""};
        char *text;
        size_t n;
        ck_assert_int_eq(client_template_find(&t, side, cases[i].name, cases[i].tools, &err), cases[i].rc);
        if (cases[i].rc) {
            ck_assert_holds(err.text, cases[i].text);
            ck_assert_ptr_null(t);
        } else {
            ck_assert_int_eq(client_template_render(&text, &n, t, variables, NOW, &err), 0);
            ck_assert_str_eq(text, cases[i].text);
            free(text);
        }
        client_template_close(t);
        json_decref(side);
        json_decref(variables);
    }
}

TEST(a_model_s_template_is_found_where_transformers_finds_it)
{
    static const char *const configs[] = {
        "{\"chat_template\": \"{{ 'config' }}\", \"bos_token\": {\"content\": \"<b>\"}, \"eos_token\": null}",
        "{\"chat_template\": [{\"name\": \"rag\"}, {\"name\": \"default\", \"template\": \"{{ 'listed' }}\"}]}", "{}",
        "not JSON"};
    static const char *const texts[] = {"config", "listed"};
    struct client_template *t;
    struct client_tokenizer *bytes;
    struct error err = {""};
    char *text;
    size_t n;

    ck_assert_int_eq(client_tokenizer_open(&bytes, NULL, NULL, 256, NULL), 0);

    for (size_t i = 0; i < 4; i++) {
        json_t *side = json_pack("{s:s}", "tokenizer_config.json", configs[i]), *variables = json_object();
        ck_assert_int_eq(client_template_find(&t, side, NULL, false, &err), 0);
        ck_assert_int_eq(t != NULL, i < 2);
        if (t) {
            ck_assert_int_eq(client_template_render(&text, &n, t, variables, NOW, &err), 0);
            ck_assert_str_eq(text, texts[i]);
            free(text);
        }
        client_template_close(t);
        ck_assert_int_eq(client_tokenizer_names(variables, bytes, side, &err), 0);
        ck_assert_uint_eq(json_object_size(variables), i == 0);
        json_object_set_new(side, "chat_template.jinja", json_string("{{ bos_token }}{% nosuch %}"));
        ck_assert_int_eq(client_template_find(&t, side, NULL, false, &err), -EINVAL);
        ck_assert_holds(err.text, "chat_template.jinja: line 1, column 19: the statement nosuch");
        json_decref(variables);
        json_decref(side);
    }
    ck_assert_int_eq(client_template_find(&t, NULL, NULL, false, &err), 0);
    ck_assert_ptr_null(t);
    client_tokenizer_close(bytes);
}
