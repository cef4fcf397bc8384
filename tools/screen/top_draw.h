/* tools/screen/top_draw.h - lays out the screen of eps top as text, from a daemon's data.
 *
 * It does not depend on a terminal, so a screen and a pipe get the same lines, and a test can compare them. */
#ifndef TOOLS_SCREEN_TOP_DRAW_H
#define TOOLS_SCREEN_TOP_DRAW_H

#include "client/eps.h"

enum { TOP_MAX_LOSSES = 128 };

struct top_worker {
    uint32_t id, pid, visit, n_visits, part, n_parts;
    char device[32], model[64], host[64], phase[16], unit[32];
    uint64_t budget, current, peak;
    uint64_t down_bytes, up_bytes;
    double down_per_s, up_per_s; /* bytes; NAN before the second sample */
};

struct top_category {
    char name[24];
    uint64_t current;
};

/* A sample of everything shown; owned copies: top_view_free. */
struct top_view {
    char name[64], state[32], model[64], trouble[256];
    uint64_t step, n_steps, n_parameters, saved_step; /* saved_step UINT64_MAX: none */
    bool saving;
    float losses[TOP_MAX_LOSSES]; /* (n_losses) oldest first */
    size_t n_losses;
    uint64_t tokens;
    double tokens_per_s, step_ms;
    struct top_worker *workers; /* (n_workers) */
    size_t n_workers;
    uint32_t n_threads; /* threads of the optimizer */
    uint64_t host_current, host_peak;
    struct top_category *categories; /* (n_categories) host memory */
    size_t n_categories;
    struct eps_unit *units; /* (n_units) */
    size_t n_units;
};

struct top_size {
    unsigned width, height; /* columns, lines */
    bool utf8;              /* draw losses with block characters, else ASCII */
};

/* At most height lines of at most width columns, each with its newline. Owned by the caller; NULL: no memory. */
char *top_draw(const struct top_view *view, const struct top_size *size);

void top_view_free(struct top_view *view); /* safe on a zeroed struct */

#endif
