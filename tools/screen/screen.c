/* A drawing is composed in memory, then written past stdio in one piece, so a terminal never shows half of one.
 * stdout's own buffer is flushed before, or earlier text would come after it. */
#include "tools/screen/screen.h"

#include "tools/screen/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void screen_init(struct screen *screen, FILE *out)
{
    *screen = (struct screen){.out = out, .terminal = terminal_is(out)};
}

static struct winsize size_of(FILE *out)
{
    struct winsize size;

    if (ioctl(fileno(out), TIOCGWINSZ, &size) || size.ws_col < 2 || size.ws_row < 2)
        size = (struct winsize){.ws_col = 80, .ws_row = 24};
    return size;
}

static size_t count_lines(const char *text)
{
    size_t n = 0;

    for (; (text = strchr(text, '\n')); text++)
        n++;
    return n;
}

/* Leaves one column and one row free: a full line would wrap, and a newline on the last row would scroll. */
static void compose(FILE *to, const char *text, struct winsize size)
{
    const size_t n_rows = size.ws_row - 1u, n_lines = count_lines(text);
    const size_t n_shown = n_lines > n_rows ? n_rows - 1 : n_lines;
    size_t used;

    fprintf(to, "\033[H");
    for (size_t i = 0; i < n_shown; i++) {
        char line[512];
        const size_t n = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)(n < sizeof line ? n : sizeof line - 1), text);
        fprintf(to, "%.*s\033[K\n", (int)terminal_fit(line, size.ws_col - 1u, &used), line);
        text += n + 1;
    }
    if (n_lines > n_shown)
        fprintf(to, "... %zu lines more\033[K\n", n_lines - n_shown);
    fprintf(to, "\033[J");
}

void screen_draw(struct screen *screen, const char *text)
{
    char *all = NULL;
    size_t n = 0;

    if (!screen->terminal) {
        fputs(text, screen->out);
        fflush(screen->out);
        return;
    }
    const struct winsize size = size_of(screen->out);
    FILE *to = open_memstream(&all, &n);
    if (!to)
        return;
    for (unsigned i = 0; i < size.ws_row && !screen->begun; i++)
        fputc('\n', to);
    screen->begun = true;
    compose(to, text, size);
    fclose(to);
    fflush(screen->out);
    for (size_t at = 0; at < n;) {
        const ssize_t written = write(fileno(screen->out), all + at, n - at);
        if (written <= 0)
            break;
        at += (size_t)written;
    }
    free(all);
}
