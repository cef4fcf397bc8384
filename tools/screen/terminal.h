/* tools/screen/terminal.h - what a stream can show: columns, colours and wrapped lines.
 *
 * A stream is a terminal if isatty is true and TERM is set and not "dumb". Everything else is a pipe, which gets no
 * colours and no wrapped lines. A terminal gets colours unless NO_COLOR is set and not empty (no-color.org). */
#ifndef TOOLS_SCREEN_TERMINAL_H
#define TOOLS_SCREEN_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum terminal_style {
    TERMINAL_PLAIN, /* resets the style */
    TERMINAL_BOLD,  /* headings, names of options */
    TERMINAL_LABEL, /* the label of a line: "loss", "memory" */
    TERMINAL_RED,   /* errors, failed saves, plans that do not fit */
    TERMINAL_GREEN  /* fits, intact, as planned */
};

bool terminal_is(FILE *out);

/* Columns of the terminal; 0 in a pipe; 80 if the terminal does not tell. */
size_t terminal_columns(FILE *out);

/* The escape sequence of a style; empty without colours. */
const char *terminal_style(FILE *out, enum terminal_style style);

/* Bytes of text that fit into n_columns; *used is the columns they take. A wide character takes two. If the locale is
 * not UTF-8, each byte takes one. */
size_t terminal_fit(const char *text, size_t n_columns, size_t *used);

/* Prints text, starting at column `at` (from 0). Wraps at spaces so that no line reaches column `width`; continued
 * lines are indented by `indent`. Newlines in the text are kept, and a word longer than a line stays whole. width 0: no
 * wrapping. Prints no newline at the end. */
void terminal_wrap(FILE *out, const char *text, size_t at, size_t indent, size_t width);

#endif
