/* Asked anew each time, not kept from the start: a window changes its width, and a test its environment. An unprintable
 * or broken character counts as one column, so that a line comes out too short, at worst, and never wraps. */
#include "tools/screen/terminal.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

bool terminal_is(FILE *out)
{
    const char *term = getenv("TERM");

    return isatty(fileno(out)) == 1 && term && *term && strcmp(term, "dumb") != 0;
}

size_t terminal_columns(FILE *out)
{
    struct winsize size;

    if (!terminal_is(out))
        return 0;
    return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

const char *terminal_style(FILE *out, enum terminal_style style)
{
    static const char *const sequences[] = {[TERMINAL_PLAIN] = "\033[0m",
                                            [TERMINAL_BOLD] = "\033[1m",
                                            [TERMINAL_LABEL] = "\033[36m",
                                            [TERMINAL_RED] = "\033[31m",
                                            [TERMINAL_GREEN] = "\033[32m"};
    const char *no_colour = getenv("NO_COLOR");

    return terminal_is(out) && !(no_colour && *no_colour) ? sequences[style] : "";
}

size_t terminal_fit(const char *text, size_t n_columns, size_t *used)
{
    const char *at = text, *const end = text + strlen(text);
    mbstate_t state = {0};

    *used = 0;
    while (at < end) {
        wchar_t c;
        size_t n = mbrtowc(&c, at, (size_t)(end - at), &state);
        int columns = 1;
        if (n == (size_t)-1 || n == (size_t)-2) { /* no character in this locale: one column for the byte */
            n = 1;
            state = (mbstate_t){0};
        } else {
            columns = wcwidth(c);
        }
        if (columns < 0) /* unprintable: one column in some terminals, none in others */
            columns = 1;
        if (*used + (size_t)columns > n_columns)
            break;
        *used += (size_t)columns;
        at += n;
    }
    return (size_t)(at - text);
}

/* Columns that the n bytes of text take. */
static size_t terminal_columns_of(const char *text, size_t n)
{
    char *word = strndup(text, n);
    size_t used = n;

    if (word)
        terminal_fit(word, SIZE_MAX, &used);
    free(word);
    return used;
}

void terminal_wrap(FILE *out, const char *text, size_t at, size_t indent, size_t width)
{
    bool first = true; /* first word of its line, which is never moved to the next */

    while (*text) {
        const size_t n_spaces = strspn(text, " "), n = strcspn(text + n_spaces, " \n");
        const size_t columns = terminal_columns_of(text + n_spaces, n);
        if (!first && n > 0 && width > 0 && at + n_spaces + columns >= width) {
            fprintf(out, "\n%*s", (int)indent, "");
            at = indent;
        } else {
            fprintf(out, "%*s", (int)n_spaces, "");
            at += n_spaces;
        }
        fwrite(text + n_spaces, 1, n, out);
        at += columns;
        first = false;
        text += n_spaces + n;
        if (*text == '\n') {
            fprintf(out, "\n%*s", text[1] ? (int)indent : 0, "");
            at = indent;
            first = true;
            text++;
        }
    }
}
