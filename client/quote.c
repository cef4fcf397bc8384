/* eps_quote: a word quoted for a shell. */
#include "client/eps.h"

#include <string.h>

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
