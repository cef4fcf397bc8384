#include "tests/run.h"
#include "tools/text.h"

#include <check.h>

static void becomes(const char *text, const char *expected)
{
    json_t *string = text_json(text);

    ck_assert_str_eq(json_string_value(string), expected);
    json_decref(string);
}

START_TEST(a_name_in_utf8_stays_as_it_is)
{
    becomes("", "");
    becomes("runs/first", "runs/first");
    becomes("gr\xC3\xBC\xC3\x9F\x65 \xF0\x9F\x98\x80\n\x1B", "gr\xC3\xBC\xC3\x9F\x65 \xF0\x9F\x98\x80\n\x1B");
}
END_TEST

START_TEST(a_byte_outside_a_character_is_replaced)
{
    becomes("a\xFF"
            "b",
            "a\xEF\xBF\xBD"
            "b");
    becomes("\xC3", "\xEF\xBF\xBD"); /* cut short */
    becomes("\xC3\xBC\xBC", "\xC3\xBC\xEF\xBF\xBD");
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("text");

    tcase_add_test(tests, a_name_in_utf8_stays_as_it_is);
    tcase_add_test(tests, a_byte_outside_a_character_is_replaced);
    return run_tests(tests);
}
