/* --approximate as a goal's sampling. */
#include "client/options/options.h"

#include "proto/base/size.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool approximate_is_word(const char *word, size_t n, const char *name)
{
    return n == strlen(name) && strncmp(word, name, n) == 0;
}

/* What a share is given for. */
static const struct share {
    const char *key, *of;
} shares[] = {{"wta=", "tokens"}, {"attention=", "queries"}};

/* A digit first: strtod alone would take blanks, signs, "inf" and "nan". */
bool client_options_real(double *out, const char *text, size_t n)
{
    char *end;

    *out = strtod(text, &end);
    return n > 0 && *text >= '0' && *text <= '9' && end == text + n;
}

/* The last word may not end in a comma: then the rest of the text is exactly ",". */
int client_options_words(const char *option, const char *text, client_options_word *read, void *context,
                         struct error *err)
{
    int rc = 0;

    for (size_t n; !rc && text && *text; text += n + (text[n] == ',')) {
        n = strcspn(text, ",");
        rc = n > 0 && strcmp(text + n, ",") != 0
                 ? read(context, text, n, err)
                 : error_set(err, -EDOM, "%s: nothing stands before or behind one of its commas: leave it out", option);
    }
    return rc;
}

/* Reads a share from the n characters behind its key. */
static int read_share(double *out, const struct share *share, const char *text, size_t n, struct error *err)
{
    if (client_options_real(out, text, n) && *out >= SAMPLING_LEAST_SHARE && *out <= 1)
        return 0;
    return error_set(err, -EDOM, "--approximate %s%.*s: it must be a share of the %s, from %g to 1", share->key,
                     (int)size_smaller(n, 60), text, share->of, SAMPLING_LEAST_SHARE);
}

/* Who wins. */
static const char *const rules[] = {
    [SAMPLE_PAPER] = "paper", [SAMPLE_VARIANCE] = "variance", [SAMPLE_NONE] = "none", [SAMPLE_ALL] = "all"};

struct reading {
    struct client_approximation *out;
    bool ruled, drawn; /* a rule was given; a draw */
};

static bool read_rule(struct reading *r, const char *word, size_t n)
{
    static const char key[] = "rule=";
    const size_t length = strlen(key);

    for (unsigned i = 0; !r->ruled && i < sizeof rules / sizeof *rules; i++)
        if (n > length && strncmp(word, key, length) == 0 && approximate_is_word(word + length, n - length, rules[i])) {
            r->out->sampling.rule = (enum sample_rule)i;
            return r->ruled = true;
        }
    return false;
}

static bool read_draw(struct reading *r, const char *word, size_t n)
{
    static const char key[] = "draw=";
    const size_t length = strlen(key);
    double draw;

    if (r->drawn || n <= length || strncmp(word, key, length) != 0 ||
        !client_options_real(&draw, word + length, n - length) || draw > UINT32_MAX || draw != floor(draw))
        return false;
    r->out->sampling.draw = (uint32_t)draw;
    return r->drawn = true;
}

static int approximate_read_word(void *context, const char *word, size_t n, struct error *err)
{
    struct reading *r = context;
    struct client_approximation *out = r->out;
    struct sampling *sampling = &out->sampling;
    double *const given[] = {&sampling->share, &sampling->queries};

    for (int i = 0; i < 2; i++) {
        const size_t key = strlen(shares[i].key);
        if (n > key && strncmp(word, shares[i].key, key) == 0 && *given[i] == 0)
            return read_share(given[i], &shares[i], word + key, n - key, err);
    }
    if (read_rule(r, word, n) || read_draw(r, word, n))
        return 0;
    if (out->kept_bits == 0 && (approximate_is_word(word, n, "coded=8") || approximate_is_word(word, n, "coded=4"))) {
        out->kept_bits = (uint32_t)(word[6] - '0');
        return 0;
    }
    if (out->pooled == 0 && (approximate_is_word(word, n, "pool=2") || approximate_is_word(word, n, "pool=4") ||
                             approximate_is_word(word, n, "pool=8"))) {
        out->pooled = (uint32_t)(word[5] - '0');
        return 0;
    }
    return error_set(err, -EDOM,
                     "--approximate %.*s: it takes wta=X and attention=X, with rule=paper, variance, none or all "
                     "and draw=N, coded=8 or coded=4, and pool=2, pool=4 or pool=8, each once, or any alone",
                     (int)size_smaller(n, 60), word);
}

static bool approximate_samples(const struct client_approximation *allowed)
{
    return allowed->sampling.share > 0 || allowed->sampling.queries > 0;
}

bool client_approximation_draws(const struct client_approximation *allowed)
{
    return approximate_samples(allowed) || allowed->kept_bits > 0;
}

int client_options_approximate(struct client_approximation *out, const char *text, struct error *err)
{
    struct reading r = {.out = out};

    *out = (struct client_approximation){0};
    if (eps_approximate_is_any(text))
        return 0;
    int rc = client_options_words("--approximate", text, approximate_read_word, &r, err);
    if (!rc && r.ruled && !approximate_samples(out))
        rc = error_set(err, -EDOM, "--approximate has a rule, but samples nothing: add wta=0.3, or leave the rule out");
    if (!rc && r.drawn && !client_approximation_draws(out))
        rc = error_set(err, -EDOM, "--approximate has a draw, but draws nothing: add wta=0.3, or leave draw=%u out",
                       out->sampling.draw);
    if (out->sampling.share == 1) /* all of them: exact */
        out->sampling.share = 0;
    if (out->sampling.queries == 1)
        out->sampling.queries = 0;
    return rc;
}

bool eps_approximate_is_any(const char *approximate)
{
    return approximate && strcmp(approximate, "any") == 0;
}

static bool keeps_largest(const struct client_approximation *allowed)
{
    return approximate_samples(allowed) && allowed->sampling.rule == SAMPLE_ALL;
}

bool client_approximate_is_biased(const char *approximate)
{
    struct client_approximation allowed;

    client_options_approximate(&allowed, approximate, NULL);
    return allowed.kept_bits > 0 || allowed.pooled > 0 || keeps_largest(&allowed);
}

const char *eps_approximate_text(const char *approximate)
{
    struct client_approximation allowed;

    client_options_approximate(&allowed, approximate, NULL);
    const bool codes = allowed.kept_bits > 0;
    if (allowed.pooled > 0)
        return codes || approximate_samples(&allowed)
                   ? "gradients are approximate, in several ways"
                   : "gradients of convolutions' weights are computed from means of blocks of pixels";
    if (keeps_largest(&allowed))
        return codes ? "gradients are those of the largest terms, and layers keep activations in fewer bits"
                     : "gradients are those of the largest terms, so they are biased";
    if (allowed.sampling.queries > 0) /* and whatever is below the last attention */
        return codes ? "gradients are estimated, and layers keep activations in fewer bits"
                     : "gradients are estimated, without bias";
    if (allowed.sampling.share > 0)
        return codes ? "gradients of layers' matrices are estimated, and layers keep activations in fewer bits"
                     : "gradients of layers' matrices are estimated, without bias";
    return codes ? "layers keep activations in fewer bits, so gradients are approximate" : "gradients are exact";
}
