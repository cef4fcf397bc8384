/* tools/screen/top_draw.h - lays out the screen of eps top as text, from a daemon's data.
 *
 * It does not depend on a terminal, so a screen and a pipe get the same lines, and a test can compare them. */
#ifndef TOOLS_SCREEN_TOP_DRAW_H
#define TOOLS_SCREEN_TOP_DRAW_H

#include "client/eps.h"
#include "tools/screen/plot.h"

#include <stdbool.h>

struct top_category {
    char name[24];
    uint64_t current, planned;
};

/* Memory of the host, or of a worker: what is used, and what is planned. */
struct top_memory {
    uint64_t current, peak, planned, budget; /* 0: there is none */
    struct top_category *categories;         /* (n_categories) */
    size_t n_categories;
};

struct top_worker {
    uint32_t id, pid, visit, n_visits, part, n_parts;
    char device[32], model[64], host[64], phase[16], unit[32];
    struct top_memory memory;
    uint64_t down_bytes, up_bytes;
    double down_per_s, up_per_s; /* bytes; NAN before the second sample */
};

/* A sample of everything shown; owned copies but the curve: top_view_free. */
struct top_view {
    char name[64], state[32], model[64], trouble[256];
    uint64_t step, n_steps, n_parameters, saved_step; /* saved_step UINT64_MAX: none */
    bool saving;
    double loss;                /* of the last step that is known; NAN: none */
    const struct series *curve; /* losses of the whole run, as far as they are known; borrowed, NULL: none */
    uint64_t tokens;
    double tokens_per_s, step_ms;
    struct top_worker *workers; /* (n_workers) */
    size_t n_workers;
    uint32_t n_threads; /* threads of the optimizer */
    struct top_memory host;
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
