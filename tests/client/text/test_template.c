/* Chat templates: the texts that transformers makes of the same templates and conversations, and what is refused.
 *
 * test_template render FILE is for tests/oracle/templates.py: FILE holds [{"template": "...", "variables": {...}}, ...];
 * it prints [{"text": "..."} or {"error": "..."}, ...]. */
#include "client/text/template.h"
#include "tests/kit/test.h"

#include <errno.h>
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

static int command(int argc, char **argv)
{
    json_error_t why;
    json_t *cases = argc == 3 ? json_load_file(argv[2], JSON_ALLOW_NUL, &why) : NULL, *answers = json_array(), *one;
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

static const struct {
    const char *source, *sentence;
} refusals[] = {
    {"a\n {% include 'x' %}", "line 2, column 5: the statement include"},
    {"{% raw %}{{ x }}{% endraw %}", "line 1, column 1: the statement raw"},
    {"{% if false %}{{ 'x' | sort }}{% endif %}{{ 'x' | wordwrap(3) }}", "column 51: the filter wordwrap"},
    {"{{ 1.5 }}", "column 4: only decimal integers"},
    {"{{ messages }}", "a list cannot be printed"},
    {"{{ 'x'.encode() }}", "the method encode"},
    {"{{ 'É' | lower }}", "lower is supported for ASCII"},
    {"{{ raise_exception('no ' ~ 1) }}", ": no 1"},
    {"{% if 1 %}", "line 1, column 9: there is no endif"},
    {"{% for x in [1] recursive %}{% endfor %}", "recursive loops are not supported"},
    {"{{ 9223372036854775807 + 1 }}", "a number is too large"},
    {"{{ -1 - 9223372036854775807 - 1 }}", "a number is too large"},
    {"{{ (-1 - 9223372036854775807) // -1 }}", "a number is too large"},
    {"{{ -(-1 - 9223372036854775807) }}", "a number has no negative"},
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

TEST(a_model_s_template_is_found_where_transformers_finds_it)
{
    static const char *const configs[] = {
        "{\"chat_template\": \"{{ 'config' }}\", \"bos_token\": {\"content\": \"<b>\"}, \"eos_token\": null}",
        "{\"chat_template\": [{\"name\": \"rag\"}, {\"name\": \"default\", \"template\": \"{{ 'listed' }}\"}]}", "{}",
        "not JSON"};
    static const char *const texts[] = {"config", "listed"};
    struct client_template *t;
    struct error err = {""};
    char *text;
    size_t n;

    for (size_t i = 0; i < 4; i++) {
        json_t *side = json_pack("{s:s}", "tokenizer_config.json", configs[i]), *variables = json_object();
        ck_assert_int_eq(client_template_find(&t, side, &err), 0);
        ck_assert_int_eq(t != NULL, i < 2);
        if (t) {
            ck_assert_int_eq(client_template_render(&text, &n, t, variables, NOW, &err), 0);
            ck_assert_str_eq(text, texts[i]);
            free(text);
        }
        client_template_close(t);
        ck_assert_int_eq(client_template_add_tokens(variables, side, &err), 0);
        ck_assert_uint_eq(json_object_size(variables), i == 0);
        json_object_set_new(side, "chat_template.jinja", json_string("{{ bos_token }}{% nosuch %}"));
        ck_assert_int_eq(client_template_find(&t, side, &err), -EINVAL);
        ck_assert_holds(err.text, "chat_template.jinja: line 1, column 19: the statement nosuch");
        json_decref(variables);
        json_decref(side);
    }
    ck_assert_int_eq(client_template_find(&t, NULL, &err), 0);
    ck_assert_ptr_null(t);
}
