/* --approximate as a goal's sampling. */
#include "client/options/options.h"

#include "proto/base/size.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool is_word(const char *word, size_t n, const char *name)
{
    return n == strlen(name) && strncmp(word, name, n) == 0;
}

/* Of n characters behind "wta=". */
static int read_share(double *out, const char *text, size_t n, struct error *err)
{
    char *end;

    *out = strtod(text, &end);
    if (n > 0 && end == text + n && *out >= SAMPLING_LEAST_SHARE && *out <= 1)
        return 0;
    return error_set(err, -EDOM, "--approximate wta=%.*s: it must be a share of the tokens, from %g to 1",
                     (int)size_smaller(n, 60), text, SAMPLING_LEAST_SHARE);
}

static int read_word(struct sampling *out, const char *word, size_t n, struct error *err)
{
    if (n > 4 && strncmp(word, "wta=", 4) == 0 && out->share == 0)
        return read_share(&out->share, word + 4, n - 4, err);
    if (is_word(word, n, "rule=paper") || is_word(word, n, "rule=variance")) {
        out->least = word[5] == 'v';
        return 0;
    }
    return error_set(err, -EDOM, "--approximate %.*s: it takes wta=X once, and rule=paper or rule=variance",
                     (int)size_smaller(n, 60), word);
}

int client_options_approximate(struct sampling *out, const char *text, struct error *err)
{
    int rc = 0;

    *out = (struct sampling){0};
    for (size_t n; !rc && text && *text; text += n + (text[n] == ',')) {
        n = strcspn(text, ",");
        rc = read_word(out, text, n, err);
    }
    if (!rc && text && out->share == 0)
        rc = error_set(err, -EDOM, "--approximate says nothing to sample: wta=0.3 takes 30 %% of the tokens");
    if (out->share == 1) /* all of them: exact */
        out->share = 0;
    return rc;
}
