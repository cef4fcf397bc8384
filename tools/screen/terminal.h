/* tools/screen/terminal.h - what a stream can show: columns, colours, and lines broken where a terminal would cut a word.
 *
 * A stream is a terminal where isatty says so and TERM is set and not "dumb"; everything else is treated as a pipe,
 * which gets no colour and no line that is broken. Colours are on by default on a terminal; NO_COLOR, not empty, turns
 * them off (no-color.org). */
#ifndef TOOLS_SCREEN_TERMINAL_H
#define TOOLS_SCREEN_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum terminal_style {
    TERMINAL_PLAIN, /* ends any other */
    TERMINAL_BOLD,  /* headings, names of options */
    TERMINAL_LABEL, /* what a line is about: "loss", "memory" */
    TERMINAL_RED,   /* errors, what is not saved, what does not fit */
    TERMINAL_GREEN  /* fits, whole, as planned */
};

bool terminal_is(FILE *out);

/* Columns of the terminal; 0 in a pipe. A terminal that does not say has 80. */
size_t terminal_columns(FILE *out);

/* The sequence that begins a style; empty where `out` takes no colour. */
const char *terminal_style(FILE *out, enum terminal_style style);

/* Bytes of text that fit into n_columns of a terminal; *used is how many columns they take. Wide characters take two;
 * where the locale does not know UTF-8, every byte counts as one. */
size_t terminal_fit(const char *text, size_t n_columns, size_t *used);

/* Prints text, which begins in column `at` (0 is the first), broken at spaces so that no line reaches column `width`;
 * the lines that follow are indented to `indent`. A newline in the text breaks too. A word that is longer than a line
 * stays whole. width 0: broken at newlines alone. No newline at the end. */
void terminal_wrap(FILE *out, const char *text, size_t at, size_t indent, size_t width);

#endif
