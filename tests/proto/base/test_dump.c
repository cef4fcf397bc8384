/* JSON as text: numbers as Python's repr has them, and values as json.dumps writes them.
 *
 * test_dump numbers FILE is for tests/oracle/spelled_numbers.py: FILE has a hexadecimal real per line; it prints what
 * dump_real makes of each. */
#include "proto/base/dump.h"
#include "proto/base/wide.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int command(int argc, char **argv)
{
    FILE *in = argc == 3 ? fopen(argv[2], "r") : NULL;
    char line[80], text[DUMP_REAL_BYTES];

    if (!in)
        return 2;
    while (fgets(line, sizeof line, in)) {
        dump_real(text, strtod(line, NULL));
        puts(text);
    }
    fclose(in);
    return 0;
}

SUITE_COMMAND(command)

/* tests/fixtures/numbers.json: tests/oracle/spelled_numbers.py made it. */
TEST(a_real_has_the_spelling_of_python)
{
    json_t *fixture = json_load_file(TESTS_DIR "/fixtures/numbers.json", 0, NULL), *one;
    char text[DUMP_REAL_BYTES];
    size_t i;

    ck_assert_uint_ge(json_array_size(fixture), 300);
    json_array_foreach(fixture, i, one)
    {
        const size_t n = dump_real(text, strtod(json_string_value(json_array_get(one, 0)), NULL));
        ck_assert_str_eq(text, json_string_value(json_array_get(one, 1)));
        ck_assert_uint_eq(n, strlen(text));
    }
    json_decref(fixture);
}

/* By Python: json.dumps(json.loads(source), ensure_ascii=..., indent=..., sort_keys=..., separators=...). */
static const struct {
    const char *source;
    struct dump_form form;
    const char *text;
} values[] = {
    {"{\"b\": [1, 2.50, -0.0, -0, 1e400, -1e400, NaN, 123456789012345678901234567890], \"a\": {}}",
     {0},
     "{\"b\": [1, 2.5, -0.0, 0, Infinity, -Infinity, NaN, 123456789012345678901234567890], \"a\": {}}"},
    {"{\"b\": [1, {\"c\": null}], \"a\": []}",
     {.indent = "\t"},
     "{\n\t\"b\": [\n\t\t1,\n\t\t{\n\t\t\t\"c\": null\n\t\t}\n\t],\n\t\"a\": []\n}"},
    {"[true, {\"x\": false}]", {.indent = ""}, "[\ntrue,\n{\n\"x\": false\n}\n]"},
    {"{\"b\": 1, \"a\": {\"d\": 1, \"c\": 2}}",
     {.separator = ",", .colon = ":", .sorted = true},
     "{\"a\":{\"c\":2,\"d\":1},\"b\":1}"},
    {"[\"\\u00e9\\ud83d\\ude00\\u007f\\\"\\\\\\n\\u001f/\"]",
     {.ascii = true},
     "[\"\\u00e9\\ud83d\\ude00\\u007f\\\"\\\\\\n\\u001f/\"]"},
    {"[\"\\u00e9\\u007f\\u0000\\b\"]", {0}, "[\"é\x7f\\u0000\\b\"]"},
};

TEST_EACH(a_value_is_the_text_of_json_dumps, COUNT(values))
{
    json_t *value = wide_read(values[_i].source, strlen(values[_i].source), JSON_ALLOW_NUL, NULL);
    size_t n;
    char *text = dump_json(&n, value, &values[_i].form);

    ck_assert_str_eq(text, values[_i].text);
    ck_assert_uint_eq(n, strlen(text));
    free(text);
    json_decref(value);
}

/* A file's keys have none, but those of a template's dictionaries may. */
TEST(keys_with_nuls_are_keys)
{
    static const struct {
        const char *key;
        size_t length;
    } keys[] = {{"b\0", 2}, {"b", 1}, {"a\0c", 3}};
    json_t *object = json_object();
    size_t n;

    for (int i = 0; i < COUNT(keys); i++)
        ck_assert_int_eq(json_object_setn_new(object, keys[i].key, keys[i].length, json_integer(i + 1)), 0);
    char *text = dump_json(&n, object, &(struct dump_form){.sorted = true});
    ck_assert_str_eq(text, "{\"a\\u0000c\": 3, \"b\": 2, \"b\\u0000\": 1}");
    free(text);
    json_decref(object);
}
