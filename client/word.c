/* Words of a command line: the name that a misspelt one meant (eps_nearest), a word quoted for a shell (eps_quote), a
 * file for output (eps_open_output), a number (eps_format_real). */
#include "client/eps.h"

#include "proto/base/dump.h"
#include "proto/base/path.h"

#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { LONGEST = 40, LEAST_PREFIX = 3, LONG = 8 };

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Folds upper case to lower case and '_' to '-'. */
static char word_folded(char c)
{
    return c == '_' ? '-' : (char)tolower((unsigned char)c);
}

static size_t common_prefix(const char *a, const char *b)
{
    size_t n = 0;

    while (a[n] && word_folded(a[n]) == word_folded(b[n]))
        n++;
    return n;
}

/* Optimal string alignment distance between a (n) and b (m): insertions, deletions, substitutions, swaps. */
static unsigned distance(const char *a, size_t n, const char *b, size_t m)
{
    unsigned rows[3][LONGEST + 1], *before = rows[0], *last = rows[1], *row = rows[2];

    for (unsigned j = 0; j <= m; j++)
        last[j] = j;
    for (size_t i = 1; i <= n; i++) {
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            const char x = word_folded(a[i - 1]), y = word_folded(b[j - 1]);
            row[j] = least(least(last[j], row[j - 1]) + 1, last[j - 1] + (x != y));
            if (i > 1 && j > 1 && x == word_folded(b[j - 2]) && word_folded(a[i - 2]) == y)
                row[j] = least(row[j], before[j - 2] + 1);
        }
        unsigned *const oldest = before;
        before = last, last = row, row = oldest;
    }
    return last[m];
}

const char *eps_nearest(const char *word, const char *const *names, size_t n_names)
{
    const size_t n = strlen(word);
    const char *nearest = NULL, *longest = NULL;
    unsigned fewest = UINT_MAX;
    size_t most = LEAST_PREFIX - 1;

    for (size_t i = 0; i < n_names; i++) {
        const size_t m = strlen(names[i]), common = common_prefix(word, names[i]);
        if (n > LONGEST || m > LONGEST)
            continue;
        const unsigned d = distance(word, n, names[i], m);
        if (d < fewest)
            fewest = d, nearest = names[i];
        /* One is a prefix of the other: "evaluate", "gen"; but "model-revision" is a model's revision, not a model. */
        if (common > most && (common == n || (common == m && !word[m + strcspn(word + m, "-_")])))
            most = common, longest = names[i];
    }
    return fewest <= least((unsigned)(n + 1) / 3, n < LONG ? 1 : 2) ? nearest : longest;
}

const char *eps_quote(char *out, size_t cap, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:@%+=,-";
    const size_t n = strlen(word);
    size_t quotes = 0, used = 0;

    for (size_t i = 0; i < n; i++)
        quotes += word[i] == '\'';
    if ((n > 0 && strspn(word, plain) == n) || n + 3 * quotes + 3 > cap)
        return word;
    out[used++] = '\'';
    for (size_t i = 0; i < n; i++) {
        const char *as = word[i] == '\'' ? "'\\''" : (const char[]){word[i], 0};
        const size_t bytes = strlen(as);
        memcpy(out + used, as, bytes);
        used += bytes;
    }
    out[used++] = '\'';
    out[used] = 0;
    return out;
}

int eps_open_output(const char *path, struct eps_error *error)
{
    struct error why, err;
    const int fd = path_open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666, &why);

    if (fd < 0)
        error_set(&err, fd, "%.300s: %s", path, why.text);
    if (fd < 0 && error)
        snprintf(error->text, sizeof error->text, "%s", err.text);
    return fd;
}

const char *eps_format_real(char out[32], double number)
{
    _Static_assert(DUMP_REAL_BYTES == 32, "the buffer of eps_format_real");
    dump_real(out, number);
    return out;
}
