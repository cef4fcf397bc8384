/* tools/request.h - shared by eps save and eps stop: sends one request to one daemon and waits for the result. */
#ifndef TOOLS_REQUEST_H
#define TOOLS_REQUEST_H

#include "client/eps.h"

#include <stdbool.h>

struct request {
    const char *name, *text; /* as in struct command */
    const char *json;        /* describes its JSON object in --help */
    /* Requests, waits and prints; returns libeps's code. */
    int (*ask)(struct eps_look *look, bool json, struct eps_error *error);
};

/* Runs such a command. Returns the exit status: 130 after Ctrl-C. */
int request_command(int argc, char **argv, const struct request *request);

#endif
