#include "client/model/snapshot.h"

#include "client/daemon/look.h"
#include "client/data/nameless.h"
#include "proto/model/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WEIGHTS, CONFIG, SIDE, N_FILES };
enum { RETRY_MS = 100 };

/* Reads the files in the side file; NULL if it is empty because the job had none. */
static int read_side(json_t **files, enum number_type *precision, int fd, struct error *err)
{
    json_error_t why;
    struct stat st;

    *files = NULL;
    if (fstat(fd, &st) != 0)
        return error_set(err, -errno, "the daemon's side file: %s", strerror(errno));
    if (st.st_size == 0)
        return 0;
    if (st.st_size > CHECKPOINT_MAX_TEXT)
        return error_set(err, -EPROTO, "the daemon's side file: %jd bytes, where %d are the most", (intmax_t)st.st_size,
                         CHECKPOINT_MAX_TEXT);
    json_t *side = json_loadfd(fd, JSON_REJECT_DUPLICATES, &why);
    if (!side)
        return error_set(err, -EPROTO, "the daemon's side file: line %d: %s", why.line, why.text);
    *files = json_incref(json_object_get(side, "files"));
    *precision = client_model_precision(json_object_get(side, "options"));
    json_decref(side);
    return 0;
}

/* Asks the daemon for its model; name is what it calls the model. */
static int ask(char name[64], uint64_t *step, struct client_link *link, const int *fds, struct error *err)
{
    struct message m;
    int rc = client_look_status(link, &m, err);

    if (rc != 0)
        return rc;
    snprintf(name, 64, "%s", m.status_reply.model);
    client_link_send_fds(link, &(struct message){.kind = MESSAGE_SNAPSHOT}, fds, N_FILES);
    rc = client_link_expect(link, MESSAGE_SAVED, &m, NULL, err);
    if (rc == 0 && step)
        *step = m.saved.step;
    return rc;
}

int client_snapshot_take(struct client_model *out, uint64_t *step, struct client_link *link, struct error *err)
{
    static const char *const names[N_FILES] = {"weights", "config.json", "a tokenizer"};
    int fds[N_FILES] = {-1, -1, -1}, rc = 0;
    enum number_type precision = NUMBER_FP32;
    json_t *files = NULL;
    char name[64];

    *out = (struct client_model){.config_fd = -1};
    for (int i = 0; rc == 0 && i < N_FILES; i++) {
        fds[i] = client_nameless_open(names[i], err);
        rc = fds[i] < 0 ? fds[i] : 0;
    }
    if (rc == 0)
        rc = ask(name, step, link, fds, err);
    /* The descriptors share their position with the daemon, which may have moved it. */
    for (int i = 0; rc == 0 && i < N_FILES; i++)
        if (lseek(fds[i], 0, SEEK_SET) != 0)
            rc = error_set(err, -errno, "a temporary file: %s", strerror(errno));
    if (rc == 0)
        rc = read_side(&files, &precision, fds[SIDE], err);
    if (rc == 0) {
        rc = client_model_from(out, name, fds[CONFIG], fds[WEIGHTS], files, err);
        out->precision = precision;
        fds[CONFIG] = fds[WEIGHTS] = -1;
    }
    for (int i = 0; i < N_FILES; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return rc;
}

/* Takes a snapshot of a named daemon once its run has begun. */
static int take_begun(struct client_model *out, uint64_t *step, struct client_link *link, const char *address,
                      const struct client_await *await, struct error *err)
{
    const uint64_t until = uv_now(&link->loop) + CLIENT_AWAIT_MS;
    struct error sentence;
    int rc = client_snapshot_take(out, step, link, err);

    if ((rc != -EAGAIN && rc != -ENOENT) || !await || !address || !*address)
        return rc;
    error_set(&sentence, 0, "waiting for a run of the daemon %.200s to begin", address);
    if (await->on_note)
        await->on_note(await->user, sentence.text);
    while ((rc == -EAGAIN || rc == -ENOENT) && uv_now(&link->loop) < until) {
        const int stopped = client_link_pause(link, RETRY_MS, err);
        rc = stopped ? stopped : client_snapshot_take(out, step, link, err);
    }
    return rc;
}

int client_snapshot_fetch(struct client_model *out, uint64_t *step, const char *address,
                          const struct client_watch *watch, const struct client_await *await, struct error *err)
{
    struct client_link link;
    int rc = client_link_init(&link, err);

    *out = (struct client_model){.config_fd = -1};
    if (rc != 0)
        return rc;
    if (watch)
        link.watches[1] = *watch;
    rc = client_await_daemon(&link, address, ROLE_VIEWER, await, err);
    if (rc == 0)
        rc = take_begun(out, step, &link, address, await, err);
    client_link_free(&link);
    return rc;
}
