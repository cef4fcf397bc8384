#include "proto/base/wide.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

/* As Python's json.loads reads them. */
static const struct {
    const char *number, *spelling;
} numbers[] = {{"9223372036854775808", "9223372036854775808"},
               {"-9223372036854775809", "-9223372036854775809"},
               {"1e400", "Infinity"},
               {"-1.5E+400", "-Infinity"},
               {"NaN", "NaN"},
               {"Infinity", "Infinity"},
               {"-Infinity", "-Infinity"}};

TEST_EACH(a_number_that_jansson_refuses_keeps_its_spelling, COUNT(numbers))
{
    char text[200];
    json_t *value;

    sprintf(text, "{\"a\": [%s], \"b\": \"NaN\\u00e9\", \"c\": 5}", numbers[_i].number);
    ck_assert_ptr_null(json_loads(text, 0, NULL));
    value = wide_read(text, strlen(text), 0, NULL);
    ck_assert_str_eq(wide_spelling(json_array_get(json_object_get(value, "a"), 0)), numbers[_i].spelling);
    ck_assert_str_eq(json_string_value(json_object_get(value, "b")), "NaNé");
    ck_assert_int_eq(json_integer_value(json_object_get(value, "c")), 5);
    ck_assert_ptr_null(wide_spelling(value));
    json_decref(value);
}

static const char *const broken[] = {
    "",
    "[NaN",
    "[NaN,]",
    "[nan]",
    "[-NaN]",
    "[+Infinity]",
    "[01e400]",
    "[1.e400]",
    "[1e400x",
    "[.1e400]",
    "[1e+]",
    "{\"a\" NaN}",
    "{NaN: 1}",
    "[NaN] x",
    "[NaN}",
    "NaN",
    "[\"\n\", NaN]",
    "{\"\\u0000\": NaN}",
    "[NaN, \"\xff\"]",
    "[NaN \"a\"]",
    "[00000000000000000000001]",
};

TEST_EACH(what_python_refuses_is_refused, COUNT(broken))
{
    json_error_t why;

    ck_assert_ptr_null(wide_read(broken[_i], strlen(broken[_i]), 0, &why));
    ck_assert_str_ne(why.text, "");
}

TEST(a_text_that_goes_on_is_read_to_the_end_of_its_value)
{
    const char *text = "{\"a\": NaN} {";
    json_error_t why;
    json_t *value = wide_read(text, strlen(text), JSON_DISABLE_EOF_CHECK, &why);

    ck_assert_int_eq(why.position, 10);
    json_decref(value);
    ck_assert_ptr_null(wide_read(text, 8, JSON_DISABLE_EOF_CHECK, &why));
    ck_assert_int_eq(json_error_code(&why), json_error_premature_end_of_input);
    ck_assert_ptr_null(wide_read("{\"a\": NaN, \"a\": 1}", 18, JSON_REJECT_DUPLICATES, NULL));
}

TEST(nests_and_digits_have_a_limit)
{
    enum { N = 200000 };
    char *text = malloc(N + 1);

    memset(text, '[', N);
    ck_assert_ptr_null(wide_read(text, N, 0, NULL));
    text[0] = '[', memset(text + 1, '1', WIDE_MAX_DIGITS), text[WIDE_MAX_DIGITS + 1] = ']';
    json_t *value = wide_read(text, WIDE_MAX_DIGITS + 2, 0, NULL);
    ck_assert_uint_eq(strlen(wide_spelling(json_array_get(value, 0))), WIDE_MAX_DIGITS);
    text[WIDE_MAX_DIGITS + 1] = '1', text[WIDE_MAX_DIGITS + 2] = ']';
    ck_assert_ptr_null(wide_read(text, WIDE_MAX_DIGITS + 3, 0, NULL));
    json_decref(value);
    free(text);
}
