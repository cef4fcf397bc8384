/* The daemon takes the request and answers nothing later, so the command looks for the worker until it has left. */
#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/screen/text.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static int parse_worker(uint32_t *out, const char *text, struct eps_error *error)
{
    char *end;
    const unsigned long id = text ? strtoul(text, &end, 10) : 0;

    *out = (uint32_t)id;
    if (text && *text >= '0' && *text <= '9' && !*end && id > 0 && id <= UINT32_MAX)
        return 0;
    snprintf(error->text, sizeof error->text, "WORKER %s: a worker's number is needed, as eps top shows it",
             text ? text : "is missing");
    return -EDOM;
}

static int drain_drain(const char *address, uint32_t worker, bool json, struct stopping *stopping,
                       struct eps_error *error)
{
    struct eps_observer *observer;
    int rc = eps_observer_open(&observer, address, stopping_should_stop, stopping, error);

    if (!rc)
        rc = eps_observer_drain(observer, worker, error);
    if (!rc)
        rc = eps_observer_wait_worker(observer, worker, error);
    if (!rc && json)
        answer_print(json_pack("{s:o, s:I}", "address", text_json(eps_observer_address(observer)), "drained",
                               (json_int_t)worker));
    else if (!rc)
        printf("worker %" PRIu32 " has left\n", worker);
    eps_observer_close(observer);
    return rc;
}

int command_drain(int argc, char **argv)
{
    const char *address = NULL, *text = NULL;
    bool json = false;
    const struct argument arguments[] = {
        {"WORKER", NULL, ARGUMENT_POSITIONAL, &text, "its number, as eps top shows it"},
        {"ADDRESS", NULL, ARGUMENT_POSITIONAL, &address,
         "the daemon's name or directory, or its run's --out; default: your only daemon"},
        {"--json", NULL, ARGUMENT_FLAG, &json, "print an object with address and drained, the worker's number"},
    };
    const struct command command = {
        "eps drain",
        "Takes a worker out of a live daemon: it finishes its share of the step, then its process ends, and the other "
        "workers compute its parts from the next step on. If they have no memory for them, the run waits for another "
        "worker; the client of a private run starts one. Returns when the worker is gone; Ctrl-C ends the wait alone.",
        arguments, sizeof arguments / sizeof *arguments};
    struct stopping stopping;
    struct eps_error error = {""};
    uint32_t worker;
    const int status = arguments_parse(&command, argc, argv);

    if (status >= 0)
        return status;
    stopping_init(&stopping);
    int rc = parse_worker(&worker, text, &error);
    if (!rc)
        rc = drain_drain(address, worker, json, &stopping, &error);
    return rc ? stopping_status(&stopping, arguments_fail(&command, rc, error.text)) : 0;
}
