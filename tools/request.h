/* tools/request.h - what eps save and eps stop have in common: one daemon is asked for one thing, and the command waits
 * for the answer. */
#ifndef TOOLS_REQUEST_H
#define TOOLS_REQUEST_H

#include "client/eps.h"

#include <stdbool.h>

struct request {
    const char *name, *text; /* of the command, as in struct command */
    const char *json;        /* what --help says of its object */
    /* Asks, waits and prints; returns what libeps returned. */
    int (*ask)(struct eps_look *look, bool json, struct eps_error *error);
};

/* Such a command. The exit status: 130 after Ctrl-C. */
int request_command(int argc, char **argv, const struct request *request);

#endif
