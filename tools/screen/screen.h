/* tools/screen/screen.h - lines that change in place on a terminal, or follow one another in a pipe.
 *
 * On a terminal each drawing is one write: home, each line with what is left of the old one erased behind it, then what
 * is below. So nothing flickers, and a resized window is put right by the next drawing, which asks for its size. What
 * stood there before is scrolled up first, not overwritten. Nothing of the terminal is changed that would outlast the
 * program. Where TERM is dumb or not set, a terminal is treated as a pipe. */
#ifndef TOOLS_SCREEN_SCREEN_H
#define TOOLS_SCREEN_SCREEN_H

#include <stdbool.h>
#include <stdio.h>

struct screen {
    FILE *out;
    bool terminal;
    bool begun; /* what stood there has been scrolled up */
};

void screen_init(struct screen *screen, FILE *out);

/* text is lines, each with its newline. What does not fit the terminal is cut off, and said to be. */
void screen_draw(struct screen *screen, const char *text);

#endif
