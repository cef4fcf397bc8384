/* tools/live.h - shared by eps status and eps mem: one or all of the caller's daemons, once or repeatedly, for people
 * or programs.
 *
 * A single daemon's answer is a block of lines or one object. Without an address several daemons are listed, one line
 * each, or as {"daemons": [...]}. Watching asks each daemon once per period over an open session, and ends with the
 * last daemon. */
#ifndef TOOLS_LIVE_H
#define TOOLS_LIVE_H

#include "client/eps.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* A command that shows daemons. Each function queries one daemon and returns libeps's code; print_line may query its
 * status. */
struct live_view {
    const char *name, *text; /* as in struct command */
    const char *json;        /* describes its JSON objects in --help */
    int (*print)(FILE *out, struct eps_observer *observer, struct eps_error *error);
    int (*print_line)(FILE *out, struct eps_observer *observer, struct eps_error *error);
    int (*to_json)(json_t **out, struct eps_observer *observer, struct eps_error *error);
    void (*print_metrics)(FILE *out, const json_t *list); /* prints these objects for Prometheus; NULL: not supported */
    bool lines_in_pipe;                                   /* when it watches in a pipe, prints lines, not blocks */
};

/* Runs such a command. Returns the exit status: 130 after Ctrl-C. */
int live_command(int argc, char **argv, const struct live_view *view);

/* Monotonic clock. */
uint64_t live_now_ms(void);

/* "lab" of ".../eps/lab". */
const char *live_name(const char *address);

/* Prints the beginning of a daemon's line, in both commands. */
void live_print_status(FILE *out, const struct eps_status *status);

#endif
