#include "proto/error.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *program = "eps";

int error_set(struct error *err, int code, const char *format, ...)
{
    va_list args;

    if (err) {
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        for (char *c = err->text; *c; c++) /* a name in a file, say, may hold anything */
            if ((unsigned char)*c < ' ' || *c == 0x7F)
                *c = '?';
    }
    return code;
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

void log_name(const char *name)
{
    program = name;
}

void log_line(const char *format, ...)
{
    char line[1024];
    va_list args;
    int used = snprintf(line, sizeof line, "%s: ", program);

    va_start(args, format);
    int wanted = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    va_end(args);
    size_t n = (size_t)used + (size_t)(wanted < 0 ? 0 : wanted);
    if (n > sizeof line - 2)
        n = sizeof line - 2;
    line[n++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, n); /* nowhere to report to if stderr is gone */
    (void)written;
}
