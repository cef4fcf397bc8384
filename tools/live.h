/* tools/live.h - what eps status and eps mem have in common: one daemon, or all of the caller's; once, or again and
 * again; for people, or for programs.
 *
 * With an address, and where the caller has only one daemon, the answer is a block of lines, or one object. Several are
 * listed, a line each, or as {"daemons": [...]}. Watching asks each once a period, over a session that stays open, and
 * ends with the last of them. */
#ifndef TOOLS_LIVE_H
#define TOOLS_LIVE_H

#include "client/eps.h"
#include "tools/arguments.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* How a daemon is shown. Each asks it once (print_line may ask for its status too), and returns what libeps returned. */
struct live_view {
    int (*print)(FILE *out, struct eps_look *look, struct eps_error *error);
    int (*print_line)(FILE *out, struct eps_look *look, struct eps_error *error);
    int (*to_json)(json_t **out, struct eps_look *look, struct eps_error *error);
    bool lines_in_pipe; /* a watch that is not shown on a terminal prints lines, not blocks */
};

struct live_options {
    const char *address; /* NULL: all of the caller's */
    bool json;
    double watch_s; /* period; 0: once */
};

/* The exit status: 130 after Ctrl-C. */
int live_run(const struct command *command, const struct live_view *view, const struct live_options *options);

/* "lab" of ".../eps/lab". */
const char *live_name(const char *address);

/* For both views: the beginning of a daemon's line. */
void live_print_status(FILE *out, const struct eps_status *status);

#endif
