/* tools/screen/picture.h - gnuplot draws a script into a file.
 *
 * The script goes to its standard input and the picture comes from its standard output, both by temporary files: so it
 * is given no path, and nothing half drawn is left in the picture's place. */
#ifndef TOOLS_SCREEN_PICTURE_H
#define TOOLS_SCREEN_PICTURE_H

#include "client/eps.h"

#include <stdio.h>

/* The picture's format by the path's suffix, "svg" or "png"; NULL for another. */
const char *picture_format(const char *path);

/* Draws what `write` writes, a script for that format, into this file, which is made or replaced. -ENOENT: gnuplot is
 * not installed; -EIO: it failed; -errno; with a sentence. */
int picture_draw(const char *path, void (*write)(FILE *script, const void *of, const char *format), const void *of,
                 struct eps_error *error);

#endif
