/* The kernel's name for an open file (/proc/self/fd) ends in " (deleted)" once the file was removed or replaced: no
 * file has that name. So a job is refused whose files are not, at their paths, those that the client opened. */
#include "eps/job/forward.h"

#include "proto/base/json.h"
#include "proto/wire/segment.h"
#include "proto/wire/training_text.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The encoded JOB of so many bytes, u16 little-endian before it; then JSON:
 *   {"config": TEXT, "output": PATH, "weights": [PATH...], "moments": PATH, "products": {...},
 *    "attention": NUMBER, "device": NAME} */
enum { PREFIX_BYTES = 2 };

/* ---- telling ---------------------------------------------------------------------------------------------------- */

/* NULL, with *rc: its path is not known, is no longer its name, or is not UTF-8. */
static json_t *print_path(int fd, int *rc, struct error *err)
{
    char link[64], path[PATH_MAX];
    json_t *text = NULL;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    if (path[0] == '/' && access(path, F_OK) == 0)
        text = json_string(path);
    if (!text)
        *rc = error_set(err, -EINVAL, "a file of this job, %s, has no path by which other hosts could open it", path);
    return text;
}

static json_t *forward_print_paths(const struct job *job, int *rc, struct error *err)
{
    json_t *paths = json_array();

    for (unsigned i = 0; !*rc && i < job->n_weight_files; i++)
        json_append(&paths, print_path(job->weight_files[i].fd, rc, err));
    return paths;
}

/* A resumed run's are in its side file, which host 0 alone keeps: it writes it into checkpoints. */
static int find_products(struct products *out, const struct job *job, struct error *err)
{
    char *text = malloc(job->side_bytes + 1);
    json_t *side;
    int rc = text ? 0 : error_memory(err);

    *out = job->products;
    if (!rc && job->request.job.resume && file_is_open(&job->side_file)) {
        rc = file_read(&job->side_file, text, job->side_bytes, 0, err);
        if (!rc)
            rc = training_text_parse(&side, text, job->side_bytes, err);
        if (!rc && training_text_products(out, side, NULL))
            *out = (struct products){.version = 0}; /* as this host goes on, which says so when it loads */
        if (!rc)
            json_decref(side);
    }
    free(text);
    return rc;
}

/* *object is the caller's own; NULL: no memory, or rc says why. */
static int forward_print_json(json_t **object, const struct job *job, struct error *err)
{
    const struct {
        const char *name;
        int fd;
    } files[] = {{"output", job->output}, {"moments", job->moments_file.fd}};
    struct products products;
    int rc = find_products(&products, job, err);

    json_put(object, "config", json_stringn(job->config.base, job->config_bytes));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!rc && files[i].fd >= 0)
            json_put(object, files[i].name, print_path(files[i].fd, &rc, err));
    json_put(object, "weights", forward_print_paths(job, &rc, err));
    if (products.version)
        json_put(object, "products", products_to_json(&products));
    json_put(object, "attention", json_integer(job->attention));
    json_put(object, "convolution", json_integer(job->convolution));
    json_put(object, "device", json_string(job->backend->name));
    return rc;
}

/* Its workers choose nothing more: all hosts have the same microbatch, and the same way of attention. */
static size_t print_request(uint8_t *buf, const struct job *job)
{
    struct message m = job->request;

    m.job.microbatch = job->microbatch;
    m.job.goal.attention = plan_attention_exactly(job->attention);
    m.job.trace = m.job.side = false;
    return message_encode(buf, MESSAGE_MAX_BYTES, &m);
}

int forward_print(char **out, size_t *n_bytes, const struct job *job, struct error *err)
{
    uint8_t request[MESSAGE_MAX_BYTES];
    const size_t n = print_request(request, job);
    json_t *object = json_object();
    int rc = forward_print_json(&object, job, err);
    char *text = rc || !object ? NULL : json_dumps(object, JSON_COMPACT);
    const size_t n_text = text ? strlen(text) : 0;

    *out = text ? malloc(PREFIX_BYTES + n + n_text) : NULL;
    if (*out) {
        (*out)[0] = (char)(n & 0xff);
        (*out)[1] = (char)(n >> 8);
        memcpy(*out + PREFIX_BYTES, request, n);
        memcpy(*out + PREFIX_BYTES + n, text, n_text);
        *n_bytes = PREFIX_BYTES + n + n_text;
    } else if (!rc) {
        rc = error_memory(err);
    }
    free(text);
    json_decref(object);
    return rc;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static int add_fd(struct forward *out, int fd, const char *what, struct error *err)
{
    if (fd < 0)
        return error_set(err, -errno, "%s cannot be opened: %s; host 0 sees it, and all hosts must", what,
                         strerror(errno));
    out->fds[out->n_fds++] = fd;
    return 0;
}

static int open_path(struct forward *out, const json_t *path, int flags, struct error *err)
{
    const char *name = json_string_value(path);

    if (!name || out->n_fds == SESSION_MAX_FDS)
        return error_set(err, -EINVAL, "host 0 named the files of this job wrongly");
    return add_fd(out, open(name, flags | O_CLOEXEC), name, err);
}

static int forward_open_config(struct forward *out, const json_t *config, struct error *err)
{
    const int fd = segment_seal("config.json", json_string_value(config), json_string_length(config), err);

    return fd < 0 ? fd : add_fd(out, fd, "config.json", err);
}

/* In the order of job_take_files. */
static int forward_open_files(struct forward *out, const json_t *object, struct error *err)
{
    const json_t *output = json_object_get(object, "output"), *weights = json_object_get(object, "weights"),
                 *moments = json_object_get(object, "moments");
    int rc = forward_open_config(out, json_object_get(object, "config"), err);

    if (!rc && output)
        rc = open_path(out, output, O_RDONLY | O_DIRECTORY, err);
    for (size_t i = 0; !rc && i < json_array_size(weights); i++)
        rc = open_path(out, json_array_get(weights, i), O_RDONLY, err);
    if (!rc && moments)
        rc = open_path(out, moments, O_RDONLY, err);
    return rc;
}

int forward_open(struct forward *out, const char *bytes, size_t n_bytes, struct error *err)
{
    const size_t n = n_bytes < PREFIX_BYTES ? 0 : (uint8_t)bytes[0] | (size_t)(uint8_t)bytes[1] << 8;
    const char *why, *device;
    json_t *object = NULL;
    int rc = 0;

    *out = (struct forward){.n_fds = 0};
    if (n_bytes < PREFIX_BYTES || n > n_bytes - PREFIX_BYTES ||
        message_decode(&out->request, (const uint8_t *)bytes + PREFIX_BYTES, n, &why) ||
        out->request.kind != MESSAGE_JOB)
        rc = -EINVAL;
    if (!rc)
        object = json_loadb(bytes + PREFIX_BYTES + n, n_bytes - PREFIX_BYTES - n, 0, NULL);
    if (!object)
        return error_set(err, -EINVAL, "host 0 told of its job in no known form");
    out->attention = (enum plan_attention)json_integer_value(json_object_get(object, "attention"));
    out->convolution = (uint32_t)json_integer_value(json_object_get(object, "convolution"));
    device = json_string_value(json_object_get(object, "device"));
    snprintf(out->device, sizeof out->device, "%s", device ? device : "");
    rc = products_from_json(&out->products, json_object_get(object, "products"), err);
    if (!rc)
        rc = forward_open_files(out, object, err);
    if (rc)
        job_close_fds(out->fds, out->n_fds);
    json_decref(object);
    return rc;
}

int forward_check(const struct forward *forward, const struct job *job, struct error *err)
{
    if (job->attention != forward->attention)
        return error_set(err, -EINVAL, "its devices compute attention by another algorithm than host 0's");
    if (job->convolution != forward->convolution)
        return error_set(err, -EINVAL, "its devices compute convolutions by another library than host 0's");
    if (job->request.job.deterministic && strcmp(job->backend->name, forward->device) != 0)
        return error_set(err, -EINVAL,
                         "--deterministic requires workers of one kind, but this host has %s and host 0 has %s",
                         job->backend->name, forward->device);
    return 0;
}
