#include "tests/kit/test.h"
#include "tools/screen/text.h"

static void becomes(const char *text, const char *expected)
{
    json_t *string = text_json(text);

    ck_assert_str_eq(json_string_value(string), expected);
    json_decref(string);
}

TEST(a_name_in_utf8_stays_as_it_is)
{
    becomes("", "");
    becomes("runs/first", "runs/first");
    becomes("gr\xC3\xBC\xC3\x9F\x65 \xF0\x9F\x98\x80\n\x1B", "gr\xC3\xBC\xC3\x9F\x65 \xF0\x9F\x98\x80\n\x1B");
}

TEST(a_byte_outside_a_character_is_replaced)
{
    becomes("a\xFF"
            "b",
            "a\xEF\xBF\xBD"
            "b");
    becomes("\xC3", "\xEF\xBF\xBD"); /* cut short */
    becomes("\xC3\xBC\xBC", "\xC3\xBC\xEF\xBF\xBD");
}

TEST(counts_have_the_field_s_units)
{
    static const struct {
        uint64_t n;
        const char *text;
    } counts[] = {
        {0, "0"},          {9999, "9999"},         {10000, "10.0 k"},       {842496, "842.5 k"}, {999949, "999.9 k"},
        {999950, "1.0 M"}, {124439808, "124.4 M"}, {50355707904, "50.4 B"}, {999950000, "1.0 B"}};

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        char text[24];
        ck_assert_str_eq(text_count(text, counts[i].n), counts[i].text);
    }
}

TEST(the_larger_size_s_unit_is_for_both_where_the_other_is_not_lost_in_it)
{
    ck_assert_uint_eq(text_unit(5, 500), 500);
    ck_assert_uint_eq(text_unit(4, 500), 4);
    ck_assert_uint_eq(text_unit(4, 0), 4);
    ck_assert_uint_eq(text_unit(7, 6), 7);
}

TEST(durations_have_their_two_largest_units)
{
    static const struct {
        double ms;
        const char *text;
    } durations[] = {{0, "0 s"},
                     {45400, "45 s"},
                     {80000, "1 min 20 s"},
                     {3600000, "1 h 0 min"},
                     {6480000, "1 h 48 min"},
                     {273600000, "3 d 4 h"}};

    for (size_t i = 0; i < sizeof durations / sizeof *durations; i++) {
        char text[32];
        ck_assert_str_eq(text_duration(text, durations[i].ms), durations[i].text);
    }
}
