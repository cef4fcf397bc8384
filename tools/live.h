/* tools/live.h - what eps status and eps mem have in common: one daemon, or all of the caller's; once, or again and
 * again; for people, or for programs.
 *
 * With an address, and where the caller has only one daemon, the answer is a block of lines, or one object. Several are
 * listed, a line each, or as {"daemons": [...]}. Watching asks each once a period, over a session that stays open, and
 * ends with the last of them. */
#ifndef TOOLS_LIVE_H
#define TOOLS_LIVE_H

#include "client/eps.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* A command that shows daemons, and how it shows one. Each function asks it once (print_line may ask for its status too), and returns what libeps returned. */
struct live_view {
    const char *name, *text; /* of the command, as in struct command */
    const char *json;        /* what --help says of its objects */
    int (*print)(FILE *out, struct eps_look *look, struct eps_error *error);
    int (*print_line)(FILE *out, struct eps_look *look, struct eps_error *error);
    int (*to_json)(json_t **out, struct eps_look *look, struct eps_error *error);
    void (*print_metrics)(FILE *out, const json_t *list); /* of these objects, for Prometheus; NULL: not this command */
    bool lines_in_pipe; /* a watch that is not shown on a terminal prints lines, not blocks */
};

/* Such a command. The exit status: 130 after Ctrl-C. */
int live_command(int argc, char **argv, const struct live_view *view);

/* Of a clock that never goes back. */
uint64_t live_now_ms(void);

/* "lab" of ".../eps/lab". */
const char *live_name(const char *address);

/* For both views: the beginning of a daemon's line. */
void live_print_status(FILE *out, const struct eps_status *status);

#endif
