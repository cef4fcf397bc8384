#include "client/look.h"

#include "proto/process.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

int client_report(struct eps_error *error, const struct error *err, int rc)
{
    if (error)
        snprintf(error->text, sizeof error->text, "%s", rc ? err->text : "");
    return rc;
}

int client_look_open(struct client_link *link, const char *address, enum message_role role, struct error *err)
{
    char directory[PATH_MAX];
    int rc = session_directory(directory, sizeof directory, address, err);

    return rc ? rc : client_link_open(link, directory, role, err);
}

int client_look_status(struct client_link *link, struct message *reply, struct error *err)
{
    client_link_send(link, &(struct message){.kind = MESSAGE_STATUS});
    return client_link_expect(link, MESSAGE_STATUS_REPLY, reply, NULL, err);
}

static void tell_side(const struct message *m, void (*on_memory)(void *user, const struct eps_memory *side), void *user)
{
    const struct ledger *ledger = &m->memory_reply.ledger;
    struct eps_memory_row rows[LEDGER_CATEGORIES];
    struct eps_memory side = {
        .worker = m->memory_reply.worker,
        .device = m->memory_reply.device,
        .budget = m->memory_reply.budget,
        .current = ledger->total.current,
        .peak = ledger->total.peak,
        .rows = rows,
    };

    for (unsigned i = 0; i < LEDGER_CATEGORIES; i++) {
        if (ledger->rows[i].peak > 0)
            rows[side.n_rows++] = (struct eps_memory_row){ledger_name((enum ledger_category)i), ledger->rows[i].current,
                                                          ledger->rows[i].peak};
    }
    if (on_memory)
        on_memory(user, &side);
}

int client_look_memory(struct client_link *link, void (*on_memory)(void *user, const struct eps_memory *side),
                       void *user, struct error *err)
{
    struct message m;

    client_link_send(link, &(struct message){.kind = MESSAGE_MEMORY});
    do {
        int rc = client_link_expect(link, MESSAGE_MEMORY_REPLY, &m, NULL, err);
        if (rc)
            return rc;
        tell_side(&m, on_memory, user);
    } while (!m.memory_reply.last);
    return 0;
}

/* Opens a link, asks, and closes it. */
static int with_daemon(const char *address, int (*ask)(struct client_link *link, void *context, struct error *err),
                       void *context, struct eps_error *error)
{
    struct client_link link;
    struct error err = {""};
    int rc = client_link_init(&link, &err);

    if (!rc)
        rc = client_look_open(&link, address, ROLE_VIEWER, &err);
    if (!rc)
        rc = ask(&link, context, &err);
    client_link_free(&link);
    return client_report(error, &err, rc);
}

struct status_call {
    void (*on_status)(void *user, const struct eps_status *status);
    void *user;
};

static int ask_status(struct client_link *link, void *context, struct error *err)
{
    static const char *const states[] = {
        [STATE_IDLE] = "idle",     [STATE_LOADING] = "loading",       [STATE_TRAINING] = "training",
        [STATE_GENERATING] = "generating", [STATE_EVALUATING] = "evaluating", [STATE_STOPPING] = "stopping",
    };
    const struct status_call *call = context;
    struct message m;
    int rc = client_look_status(link, &m, err);

    if (rc)
        return rc;
    const struct eps_status status = {
        .state = states[m.status_reply.state],
        .step = m.status_reply.step,
        .n_parameters = m.status_reply.n_parameters,
        .n_workers = m.status_reply.n_workers,
        .pid = m.status_reply.pid,
        .loss = m.status_reply.loss,
        .model = m.status_reply.model,
    };
    if (call->on_status)
        call->on_status(call->user, &status);
    return 0;
}

int eps_status(const char *address, void (*on_status)(void *user, const struct eps_status *status), void *user,
               struct eps_error *error)
{
    return with_daemon(address, ask_status, &(struct status_call){on_status, user}, error);
}

struct memory_call {
    void (*on_memory)(void *user, const struct eps_memory *side);
    void *user;
};

static int ask_memory(struct client_link *link, void *context, struct error *err)
{
    const struct memory_call *call = context;
    return client_look_memory(link, call->on_memory, call->user, err);
}

int eps_mem(const char *address, void (*on_memory)(void *user, const struct eps_memory *side), void *user,
            struct eps_error *error)
{
    return with_daemon(address, ask_memory, &(struct memory_call){on_memory, user}, error);
}

/* The daemon closes every session when it stops, ours too: that is the answer. */
static int ask_stop(struct client_link *link, void *context, struct error *err)
{
    struct message m;
    int rc;

    (void)context;
    client_link_send(link, &(struct message){.kind = MESSAGE_STOP});
    do {
        rc = client_link_next(link, &m, NULL, err);
    } while (!rc && link->session);
    return link->session ? rc : 0;
}

int eps_stop(const char *address, struct eps_error *error)
{
    return with_daemon(address, ask_stop, NULL, error);
}

int eps_parse_bytes(uint64_t *out, const char *option, const char *text, struct eps_error *error)
{
    struct error err = {""};
    int rc = process_parse_bytes(out, option, text, &err);
    return client_report(error, &err, rc ? -EDOM : 0);
}

const char *eps_format_bytes(char out[24], uint64_t bytes)
{
    return process_format_bytes(out, bytes);
}
