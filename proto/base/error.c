/* Sentences travel to another process and end on a terminal, and quote names that somebody else chose. So they are made
 * fit to print here, where they are written, and every length is cut rather than refused: an error about an error would
 * hide the first one. */
#include "proto/base/error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void error_clean(char *text)
{
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7F)
            *c = '?';
}

int error_set(struct error *err, int code, const char *format, ...)
{
    va_list args;

    if (err) {
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        error_clean(err->text); /* a quoted file name may hold any bytes */
    }
    return code;
}

int error_memory(struct error *err)
{
    return error_set(err, -ENOMEM, "out of memory");
}

void error_prefix(struct error *err, const char *what)
{
    char whole[ERROR_TEXT_BYTES];

    if (!err)
        return;
    snprintf(whole, sizeof whole, "%.200s: %.300s", what, err->text);
    memcpy(err->text, whole, sizeof whole);
}

void error_append(struct error *err, const char *format, ...)
{
    char more[ERROR_TEXT_BYTES - 300];
    va_list args;

    if (!err)
        return;
    va_start(args, format);
    const int wanted = vsnprintf(more, sizeof more, format, args);
    va_end(args);
    const size_t n = wanted < (int)sizeof more ? (size_t)wanted : sizeof more - 1, used = strlen(err->text);
    const size_t at = used + n < sizeof err->text ? used : sizeof err->text - n - 1;
    memcpy(err->text + at, more, n + 1);
}
