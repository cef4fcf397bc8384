#include "tests/kit/test.h"

#include "tools/screen/terminal.h"

#include <locale.h>
#include <pty.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Widths by hand: a Latin letter 1, an ideograph 2, a combining accent 0; a stray byte a column of its own. */
TEST(wide_characters_are_counted_as_they_are_shown)
{
    size_t used;

    if (!setlocale(LC_CTYPE, "C.UTF-8"))
        return;
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
