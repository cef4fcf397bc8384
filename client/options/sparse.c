/* --sparse as a goal's sparse weights. */
#include "client/options/options.h"

#include "proto/base/size.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of the steps of a run, those in which places change, and how: as published, but for a room that is bounded. */
static const struct sparse defaults = {.room = 1.25, .every = 100, .moved = 0.05};
#define LAST_SHARE 0.8

struct reading {
    struct sparse *out;
    bool has_until;
    unsigned seen; /* bit i: keys[i] */
};

enum { KEEP, EVERY, UNTIL, MOVED, ROOM, KEYS };
static const char *const keys[KEYS] = {"keep=", "every=", "until=", "moved=", "room="};

static int refuse(const char *word, size_t n, const char *takes, struct error *err)
{
    return error_set(err, -EDOM, "--sparse %.*s: %s", (int)size_smaller(n, 60), word, takes);
}

static bool read_real(double *out, const char *text, size_t n)
{
    char *end;

    *out = strtod(text, &end);
    return n > 0 && *text >= '0' && *text <= '9' && end == text + n;
}

static bool read_whole(uint64_t *out, const char *text, size_t n)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    return n > 0 && *text >= '0' && *text <= '9' && end == text + n && errno == 0 && *out <= INT64_MAX;
}

/* Of n characters behind the key. */
static int read_value(struct reading *r, int key, const char *text, size_t n, struct error *err)
{
    struct sparse *const s = r->out;
    uint64_t steps = 0;

    if (key == KEEP && !(read_real(&s->keep, text, n) && s->keep >= SPARSE_LEAST && s->keep < 1))
        return refuse(text - strlen(keys[key]), n + strlen(keys[key]),
                      "it must be a share of each matrix's weights, from 0.0001 and below 1", err);
    if (key == MOVED && !(read_real(&s->moved, text, n) && s->moved > 0 && s->moved < 1))
        return refuse(text - strlen(keys[key]), n + strlen(keys[key]), "it must be a share above 0 and below 1", err);
    if (key == ROOM && !(read_real(&s->room, text, n) && s->room >= 1 && s->room <= SPARSE_MOST_ROOM))
        return refuse(text - strlen(keys[key]), n + strlen(keys[key]), "it must be a factor from 1 to 10000", err);
    if ((key == EVERY || key == UNTIL) &&
        (!read_whole(&steps, text, n) || (key == EVERY ? steps > UINT32_MAX : steps == 0)))
        return refuse(text - strlen(keys[key]), n + strlen(keys[key]), "it must be a number of steps", err);
    if (key == EVERY)
        s->every = (uint32_t)steps;
    if (key == UNTIL)
        s->until = steps, r->has_until = true;
    return 0;
}

static int read_word(struct reading *r, const char *word, size_t n, struct error *err)
{
    for (int key = 0; key < KEYS; key++) {
        const size_t length = strlen(keys[key]);
        if (n <= length || strncmp(word, keys[key], length) != 0 || r->seen >> key & 1)
            continue;
        r->seen |= 1u << key;
        return read_value(r, key, word + length, n - length, err);
    }
    return refuse(word, n,
                  "it takes keep=X, and every=N, until=N, moved=X and room=X, each once, as in keep=0.3,every=100",
                  err);
}

int client_options_sparse(struct sparse *out, const char *text, uint64_t steps, struct error *err)
{
    struct reading r = {.out = out};
    int rc = 0;

    *out = (struct sparse){0};
    if (!text)
        return 0;
    *out = defaults;
    for (size_t n; !rc && *text; text += n + (text[n] == ',')) {
        n = strcspn(text, ",");
        rc = n > 0 && strcmp(text + n, ",") != 0
                 ? read_word(&r, text, n, err)
                 : error_set(err, -EDOM, "--sparse: nothing stands before or behind one of its commas: leave it out");
    }
    if (!rc && !(r.seen >> KEEP & 1))
        rc = error_set(err, -EDOM, "--sparse does not say how many weights it keeps: add keep=0.3");
    if (!rc && !r.has_until)
        out->until = (uint64_t)floor(LAST_SHARE * (double)steps);
    if (out->until == 0 && steps > 0 && !rc) /* fewer steps than one change takes */
        out->every = 0;
    return rc;
}
