#include "client/snapshot.h"

#include "client/look.h"
#include "proto/checkpoint.h"
#include "proto/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WEIGHTS, CONFIG, SIDE, N_FILES };

static int make_file(const char *name, struct error *err)
{
    const char *directories[] = {getenv("TMPDIR"), "/var/tmp"};
    int fd = -1;

    for (size_t i = 0; fd < 0 && i < 2; i++)
        if (directories[i] && directories[i][0])
            fd = open(directories[i], O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        fd = memfd_create(name, MFD_CLOEXEC);
    return fd >= 0 ? fd : error_set(err, -errno, "no temporary file: %s", strerror(errno));
}

/* A short file, as text; owned. */
static int read_text(char **out, size_t *n, int fd, struct error *err)
{
    struct stat st;
    size_t used = 0;

    *out = NULL;
    if (fstat(fd, &st) != 0)
        return error_set(err, -errno, "%s", strerror(errno));
    if (st.st_size > CHECKPOINT_MAX_TEXT)
        return error_set(err, -EPROTO, "%jd bytes, where %d are the most", (intmax_t)st.st_size, CHECKPOINT_MAX_TEXT);
    *out = malloc((size_t)st.st_size + 1);
    if (!*out)
        return error_set(err, -ENOMEM, "out of memory");
    while (used < (size_t)st.st_size) {
        const ssize_t got = pread(fd, *out + used, (size_t)st.st_size - used, (off_t)used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            const int code = got < 0 ? errno : EIO;
            free(*out);
            *out = NULL;
            return error_set(err, -code, "%s", strerror(code));
        }
        used += (size_t)got;
    }
    *n = used;
    return 0;
}

static int read_config(struct client_model *model, int fd, struct error *err)
{
    char *text;
    size_t n;
    int rc = read_text(&text, &n, fd, err);

    if (rc == 0)
        rc = model_config_parse(&model->config, text, n, err);
    free(text);
    if (rc != 0)
        error_prefix(err, "config.json that the daemon wrote");
    return rc;
}

static int check_weights(int fd, struct error *err)
{
    struct safetensors file;
    int rc = safetensors_open(&file, fd, err);

    if (rc != 0)
        error_prefix(err, "weights that the daemon wrote");
    safetensors_close(&file);
    return rc;
}

/* Texts alone, by names that can be files beside the weights. */
static int check_files(const json_t *files, struct error *err)
{
    const char *name;
    json_t *text;

    json_object_foreach((json_t *)files, name, text)
    {
        if (!json_is_string(text) || !checkpoint_is_name(name))
            return error_set(err, -EPROTO, "'%.64s' that the daemon wrote is no text with a name", name);
    }
    return 0;
}

static int read_side(struct client_snapshot *snapshot, int fd, struct error *err)
{
    json_error_t why;
    char *text;
    size_t n;
    int rc = read_text(&text, &n, fd, err);

    if (rc != 0 || n == 0) { /* empty: the job had none */
        free(text);
        return rc;
    }
    json_t *side = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (!side)
        return error_set(err, -EPROTO, "side file that the daemon wrote: line %d: %s", why.line, why.text);
    rc = check_files(json_object_get(side, "files"), err);
    if (rc == 0)
        snapshot->files = json_incref(json_object_get(side, "files"));
    json_decref(side);
    return rc;
}

/* SNAPSHOT and its answer, over a link that is open. */
static int ask(struct client_snapshot *snapshot, struct client_link *link, const int *fds, struct error *err)
{
    struct message m;
    int rc = client_look_status(link, &m, err);

    if (rc != 0)
        return rc;
    snprintf(snapshot->model.name, sizeof snapshot->model.name, "%s", m.status_reply.model);
    client_link_send_fds(link, &(struct message){.kind = MESSAGE_SNAPSHOT}, fds, N_FILES);
    rc = client_link_expect(link, MESSAGE_SAVED, &m, NULL, err);
    if (rc == 0)
        snapshot->step = m.saved.step;
    return rc;
}

static int fetch(struct client_snapshot *snapshot, const char *address, const struct client_watch *watch,
                 const int *fds, struct error *err)
{
    struct client_link link;
    int rc = client_link_init(&link, err);

    if (rc != 0)
        return rc;
    if (watch)
        link.watches[1] = *watch;
    rc = client_look_open(&link, address, ROLE_VIEWER, err);
    if (rc == 0)
        rc = ask(snapshot, &link, fds, err);
    client_link_free(&link);
    return rc;
}

int client_snapshot_take(struct client_snapshot *out, const char *address, const struct client_watch *watch,
                         struct error *err)
{
    static const char *const names[N_FILES] = {"weights", "config", "side"};
    int fds[N_FILES] = {-1, -1, -1}, rc = 0;

    *out = (struct client_snapshot){.model.config_fd = -1};
    for (int i = 0; rc == 0 && i < N_FILES; i++) {
        fds[i] = make_file(names[i], err);
        rc = fds[i] < 0 ? fds[i] : 0;
    }
    if (rc == 0)
        rc = fetch(out, address, watch, fds, err);
    if (rc == 0)
        rc = read_config(&out->model, fds[CONFIG], err);
    if (rc == 0)
        rc = check_weights(fds[WEIGHTS], err);
    if (rc == 0)
        rc = read_side(out, fds[SIDE], err);
    if (rc == 0) {
        out->model.config_fd = fds[CONFIG];
        out->model.weight_fds[out->model.n_weights++] = fds[WEIGHTS];
        fds[CONFIG] = fds[WEIGHTS] = -1;
    }
    for (int i = 0; i < N_FILES; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (rc != 0)
        *out = (struct client_snapshot){.model.config_fd = -1};
    return rc;
}

const char *client_snapshot_file(const struct client_snapshot *snapshot, const char *name)
{
    return json_string_value(json_object_get(snapshot->files, name));
}

void client_snapshot_free(struct client_snapshot *snapshot)
{
    if (snapshot->model.n_weights > 0)
        client_model_close(&snapshot->model);
    json_decref(snapshot->files);
    *snapshot = (struct client_snapshot){.model.config_fd = -1};
}
