/* What a screen is made of: texts and units, a terminal's columns and colours, curves of any length as few means. */
#include "tests/kit/test.h"

#include "tools/screen/plot.h"
#include "tools/screen/terminal.h"
#include "tools/screen/text.h"

#include <locale.h>
#include <math.h>
#include <pty.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TEST(a_name_in_utf8_stays_as_it_is_and_a_byte_outside_a_character_is_replaced)
{
    static const char *const names[][2] = {
        {"", ""},
        {"runs/first", "runs/first"},
        {"gr\xC3\xBC\xC3\x9F\x65 \xF0\x9F\x98\x80\n\x1B", "gr\xC3\xBC\xC3\x9F\x65 \xF0\x9F\x98\x80\n\x1B"},
        {"a\xFFz", "a\xEF\xBF\xBDz"},
        {"\xC3", "\xEF\xBF\xBD"}, /* cut short */
        {"\xC3\xBC\xBC", "\xC3\xBC\xEF\xBF\xBD"},
    };

    for (int i = 0; i < COUNT(names); i++) {
        json_t *string = text_json(names[i][0]);
        ck_assert_str_eq(json_string_value(string), names[i][1]);
        json_decref(string);
    }
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

TEST(a_short_curve_is_kept_as_it_is)
{
    static struct series s;

    series_add(&s, 1, 5), series_add(&s, 2, NAN), series_add(&s, 3, INFINITY), series_add(&s, 4, 7);
    ck_assert_uint_eq(s.n, 4);
    ck_assert_double_eq(series_x(&s, 1), 2);
    ck_assert_double_eq(series_y(&s, 0), 5);
    ck_assert(isnan(series_y(&s, 1)));
    ck_assert(isnan(series_y(&s, 2)));
    ck_assert_double_eq(series_most(&s), 7);
}

/* 1,000,000 points of y = 2x, in at most 1024 means: 1024 * 2^9 points are too few, so each has 2^10. The mean of the
 * first 1024 x is 512.5. */
TEST(a_long_curve_is_means_of_equally_many_points)
{
    static struct series s;

    for (int i = 1; i <= 1000000; i++)
        series_add(&s, i, 2.0 * i);
    ck_assert_uint_eq(s.stride, 1024);
    ck_assert_uint_eq(s.n, 977); /* ceil(1,000,000 / 1024) */
    ck_assert_double_eq(series_x(&s, 0), 512.5);
    for (size_t i = 0; i < s.n; i++)
        ck_assert_double_eq_tol(series_y(&s, i), 2 * series_x(&s, i), 1e-6);
    ck_assert_double_eq(series_x(&s, 976), (999425 + 1000000) / 2.0); /* the last has 576 */
}

TEST(what_comes_late_was_zero_before)
{
    static struct series all, late;

    for (int i = 0; i < 3000; i++)
        series_add(&all, i, 1);
    series_zero(&late, &all);
    for (int i = 3000; i < 6000; i++)
        series_add(&all, i, 1), series_add(&late, i, 1);
    ck_assert_uint_eq(late.n, all.n);
    for (size_t i = 0; i < all.n; i++)
        ck_assert_double_eq(series_x(&late, i), series_x(&all, i));
    ck_assert_double_eq(series_y(&late, 0), 0);
    ck_assert_double_eq(series_y(&late, late.n - 1), 1);
}

TEST(numbers_that_are_none_do_not_count)
{
    static struct series s, none;

    ck_assert(isnan(series_most(&none)));
    series_add(&none, 1, NAN);
    ck_assert(isnan(series_most(&none)));
    for (int i = 0; i < 4 * SERIES_MEANS; i++)
        series_add(&s, i, i % 2 ? NAN : 3);
    for (size_t i = 0; i < s.n; i++)
        ck_assert_double_eq(series_y(&s, i), 3);
}

TEST(wide_characters_are_counted_as_they_are_shown)
{
    size_t used;

    if (!setlocale(LC_CTYPE, "C.UTF-8"))
        TEST_SKIP("there is no locale C.UTF-8");
    ck_assert_uint_eq(terminal_fit("gr\xC3\xBC\xC3\x9F", 3, &used), 4);
    ck_assert_uint_eq(used, 3);
    ck_assert_uint_eq(terminal_fit("\xE6\xBC\xA2\xE5\xAD\x97", 3, &used), 3); /* half an ideograph is none */
    ck_assert_uint_eq(used, 2);
    ck_assert_uint_eq(terminal_fit("e\xCC\x81x", 1, &used), 3);
    ck_assert_uint_eq(used, 1);
    ck_assert_uint_eq(terminal_fit("\xFF\xFFx", 2, &used), 2);
    ck_assert_uint_eq(used, 2);
    setlocale(LC_CTYPE, "C");
    ck_assert_uint_eq(terminal_fit("gr\xC3\xBC\xC3\x9F", 4, &used), 4);
    ck_assert_uint_eq(used, 4);
}

TEST(text_is_broken_at_spaces_before_the_width)
{
    static const struct {
        const char *text;
        size_t at, indent, width;
        const char *wrapped;
    } texts[] = {
        {"", 0, 0, 20, ""},
        {"one two three", 0, 0, 20, "one two three"},
        {"one two three", 0, 0, 13, "one two\nthree"}, /* 13 columns reach column 13 */
        {"one two three", 0, 0, 14, "one two three"},
        {"one two three", 0, 2, 8, "one two\n  three"},
        {"one two three", 6, 2, 10, "one\n  two\n  three"},
        {"one\ntwo three", 0, 2, 40, "one\n  two three"}, /* a newline breaks too */
        {"one two three", 0, 0, 0, "one two three"},      /* a pipe */
        {"a-word-without-end of it", 4, 4, 10, "a-word-without-end\n    of it"},
        {"two  spaces", 0, 0, 40, "two  spaces"},
    };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char *said = NULL;
        size_t n;
        FILE *out = open_memstream(&said, &n);
        terminal_wrap(out, texts[i].text, texts[i].at, texts[i].indent, texts[i].width);
        fclose(out);
        ck_assert_str_eq(said, texts[i].wrapped);
        free(said);
    }
}

/* On a terminal of 40 columns, in a pipe, under NO_COLOR (as no-color.org has it: not empty), with a dumb TERM. */
TEST(a_terminal_has_columns_and_colours_and_a_pipe_has_none)
{
    static const struct {
        bool terminal;
        const char *term, *no_color;
        size_t columns;
        bool colour;
    } cases[] = {
        {true, "xterm", NULL, 40, true},  {true, "xterm", "", 40, true}, {true, "xterm", "1", 40, false},
        {true, "dumb", NULL, 0, false},   {true, NULL, NULL, 0, false},  {true, "", NULL, 0, false},
        {false, "xterm", NULL, 0, false},
    };
    int master, slave;

    ck_assert_int_eq(openpty(&master, &slave, NULL, NULL, &(struct winsize){.ws_row = 24, .ws_col = 40}), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FILE *out = cases[i].terminal ? fdopen(dup(slave), "w") : tmpfile();
        if (cases[i].term)
            setenv("TERM", cases[i].term, 1);
        else
            unsetenv("TERM");
        if (cases[i].no_color)
            setenv("NO_COLOR", cases[i].no_color, 1);
        else
            unsetenv("NO_COLOR");
        ck_assert_int_eq(terminal_is(out), cases[i].columns > 0);
        ck_assert_uint_eq(terminal_columns(out), cases[i].columns);
        ck_assert_str_eq(terminal_style(out, TERMINAL_RED), cases[i].colour ? "\033[31m" : "");
        ck_assert_str_eq(terminal_style(out, TERMINAL_PLAIN), cases[i].colour ? "\033[0m" : "");
        fclose(out);
    }
    close(slave);
    close(master);
}
