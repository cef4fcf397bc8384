/* tools/screen/screen.h - redraws lines in place on a terminal, or prints them one after another in a pipe.
 *
 * Each drawing is one write: cursor home, each line with the rest of the old one erased, then everything below erased.
 * So nothing flickers. The size is queried each time, so the next drawing repairs a resized window. Earlier content is
 * scrolled up first. No terminal setting is changed. If TERM is dumb or unset, a terminal is treated as a pipe. */
#ifndef TOOLS_SCREEN_SCREEN_H
#define TOOLS_SCREEN_SCREEN_H

#include <stdbool.h>
#include <stdio.h>

struct screen {
    FILE *out;
    bool terminal;
    bool begun; /* earlier content was scrolled up */
};

void screen_init(struct screen *screen, FILE *out);

/* text is complete lines. Lines that do not fit the terminal are cut, with a note. */
void screen_draw(struct screen *screen, const char *text);

#endif
