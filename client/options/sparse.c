/* --sparse as a goal's sparse weights. */
#include "client/options/options.h"

#include "proto/base/size.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* As published, but for a room that is bounded. */
static const struct sparse defaults = {.room = 1.25, .every = 100, .moved = 0.05};
#define LAST_SHARE 0.8 /* of a run's steps, those in which places change */

struct reading {
    struct sparse *out;
    unsigned seen; /* bit i: keys[i] */
};

enum { KEEP, EVERY, UNTIL, MOVED, ROOM, KEYS };
static const char *const keys[KEYS] = {"keep=", "every=", "until=", "moved=", "room="};

static bool sparse_read_whole(uint64_t *out, const char *text, size_t n)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    return n > 0 && *text >= '0' && *text <= '9' && end == text + n && errno == 0 && *out <= INT64_MAX;
}

/* Reads the n characters behind the key. Returns NULL, or what they must be. */
static const char *sparse_read_value(struct reading *r, int key, const char *text, size_t n)
{
    struct sparse *const s = r->out;
    uint64_t steps;

    switch (key) {
    case KEEP:
        return client_options_real(&s->keep, text, n) && s->keep >= SPARSE_LEAST && s->keep < 1
                   ? NULL
                   : "it must be a share of each matrix's weights, from 0.0001 and below 1";
    case MOVED:
        return client_options_real(&s->moved, text, n) && s->moved > 0 && s->moved < 1
                   ? NULL
                   : "it must be a share above 0 and below 1";
    case ROOM:
        return client_options_real(&s->room, text, n) && s->room >= 1 && s->room <= SPARSE_MOST_ROOM
                   ? NULL
                   : "it must be a factor from 1 to 10000";
    }
    if (!sparse_read_whole(&steps, text, n) || (key == EVERY ? steps > UINT32_MAX : steps == 0))
        return "it must be a number of steps";
    if (key == EVERY)
        s->every = (uint32_t)steps;
    else
        s->until = steps;
    return NULL;
}

static int sparse_read_word(void *context, const char *word, size_t n, struct error *err)
{
    const char *why = "it takes keep=X, and every=N, until=N, moved=X and room=X, each once, as in keep=0.3,every=100";
    struct reading *r = context;

    for (int key = 0; key < KEYS; key++) {
        const size_t length = strlen(keys[key]);
        if (n <= length || strncmp(word, keys[key], length) != 0 || r->seen >> key & 1)
            continue;
        r->seen |= 1u << key;
        why = sparse_read_value(r, key, word + length, n - length);
        break;
    }
    return why ? error_set(err, -EDOM, "--sparse %.*s: %s", (int)size_smaller(n, 60), word, why) : 0;
}

int client_options_sparse(struct sparse *out, const char *text, uint64_t steps, struct error *err)
{
    struct reading r = {.out = out};

    *out = (struct sparse){0};
    if (!text)
        return 0;
    *out = defaults;
    const int rc = client_options_words("--sparse", text, sparse_read_word, &r, err);
    if (rc)
        return rc;
    if (!(r.seen >> KEEP & 1))
        return error_set(err, -EDOM, "--sparse does not say how many weights it keeps: add keep=0.3");
    if (!(r.seen >> UNTIL & 1))
        out->until = (uint64_t)floor(LAST_SHARE * (double)steps);
    if (out->until == 0 && steps > 0) /* fewer steps than one change takes */
        out->every = 0;
    return 0;
}
