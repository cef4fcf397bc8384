#include "client/run/grow.h"

#include "client/record/references.h"
#include "client/run/resume.h"
#include "client/run/run.h"
#include "proto/base/file.h"
#include "proto/model/checkpoint_layout.h"
#include "proto/model/output.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_BYTES = 4 << 20 };

struct grow {
    const struct client_watch *watch;
    uint32_t n_added;
    bool without_moments; /* of the copies */
    struct client_resume resume;
    int from_fd, out_fd, to_fd; /* directories: the checkpoint; the run's; its step-N.partial */
    char *config;               /* the grown model's */
    struct model model, grown;
    uint32_t *sources; /* (grown.n_tensors) tensor of the model */
    bool *added;       /* (grown.n_tensors) in a copy of a block */
    char *chunk;       /* (CHUNK_BYTES) */
    struct checkpoint checkpoint;
};

static int no_memory(struct error *err)
{
    return error_set(err, -ENOMEM, "out of memory");
}

/* ---- what is asked ---- */

static int read_option(struct grow *g, const struct eps_train_options *in, struct error *err)
{
    char *end;
    const unsigned long n = in->grow[0] >= '1' && in->grow[0] <= '9' ? strtoul(in->grow, &end, 10) : 0;

    if (n == 0 || n > 4096 || (*end && strcmp(end, ",moments=copy") != 0 && strcmp(end, ",moments=zero") != 0))
        return error_set(err, -EDOM, "--grow %.60s: it takes a number of blocks, and moments=copy or moments=zero",
                         in->grow);
    g->n_added = (uint32_t)n;
    g->without_moments = strcmp(end, ",moments=zero") == 0;
    if (!in->resume)
        return error_set(err, -EDOM, "--grow adds blocks to the model of a checkpoint: name its run by --resume");
    if (!in->out)
        return error_set(err, -EDOM, "--grow begins another run, of the grown model: name its directory by --out");
    return 0;
}

/* ---- the grown model ---- */

/* Repeats the last entries of the list of blocks' kinds, if there is one. */
static int extend_kinds(json_t *config, uint32_t n, uint32_t n_added)
{
    json_t *kinds = json_object_get(config, "layer_types");
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && json_array_size(kinds) == n + i && i < n_added; i++)
        rc = json_array_append(kinds, json_array_get(kinds, n + i - n_added));
    return rc;
}

/* The config's text, with more blocks. Owned; NULL: no memory, or no config. */
static char *grow_config(const char *text, size_t n, uint32_t n_added)
{
    json_t *config = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    const char *key = json_object_get(config, "n_layer") ? "n_layer" : "num_hidden_layers";
    const json_int_t blocks = json_integer_value(json_object_get(config, key));
    char *grown = NULL;

    if (blocks > 0 && json_object_set_new(config, key, json_integer(blocks + n_added)) == 0 &&
        extend_kinds(config, (uint32_t)blocks, n_added) == 0)
        grown = model_config_text(config);
    json_decref(config);
    return grown;
}

static int read_text(char **out, size_t *n, int directory_fd, const char *name, struct error *err)
{
    const struct file file = file_own(openat(directory_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    uint64_t bytes;
    int rc = file_is_open(&file) ? file_size(&bytes, &file, err) : error_set(err, -errno, "%s", strerror(errno));

    *out = NULL;
    if (!rc && !(*out = malloc(bytes + 1)))
        rc = error_set(err, -ENOMEM, "no memory for its %" PRIu64 " bytes", bytes);
    if (!rc) {
        rc = file_read(&file, *out, bytes, 0, err);
        *n = bytes;
    }
    if (rc)
        error_prefix(err, name);
    if (file_is_open(&file))
        close(file.fd);
    return rc;
}

static int open_models(struct grow *g, struct error *err)
{
    struct model_config config, grown;
    char *text;
    size_t n = 0;
    int rc = read_text(&text, &n, g->from_fd, CHECKPOINT_CONFIG, err);

    if (!rc)
        rc = model_config_parse(&config, text, n, err);
    if (!rc && g->n_added > config.n_layers)
        rc = error_set(err, -EDOM, "--grow %u: the model has %u blocks, of which that many cannot be copied",
                       g->n_added, config.n_layers);
    if (!rc && !(g->config = grow_config(text, n, g->n_added)))
        rc = error_set(err, -EINVAL, "--grow: %s says the number of blocks in a way that is not known here",
                       CHECKPOINT_CONFIG);
    if (!rc)
        rc = model_config_parse(&grown, g->config, strlen(g->config), err);
    if (!rc && grown.n_layers != config.n_layers + g->n_added)
        rc = error_set(err, -EINVAL, "--grow: %s says the number of blocks in a way that is not known here",
                       CHECKPOINT_CONFIG);
    free(text);
    if (!rc)
        rc = model_init(&g->model, &config, err);
    return rc ? rc : model_init(&g->grown, &grown, err);
}

/* ---- which tensor comes from which ---- */

static const struct model_layer *find_layer(const struct model *m, uint32_t index, uint32_t part)
{
    const struct model_layer *const first = &m->layers[m->first_block];

    for (const struct model_layer *l = first; l < first + m->n_block_layers; l++)
        if (l->index == index && l->part == part)
            return l;
    return NULL;
}

/* The layer's tensors are those of another, in their order. False: they are not alike. */
static bool take_layer(struct grow *g, const struct model_layer *to, const struct model_layer *from, bool added)
{
    if (!from || from->n_visits != to->n_visits || from->program - g->model.programs != to->program - g->grown.programs)
        return false;
    for (uint32_t v = 0; v < to->n_visits; v++) {
        const struct model_unit *unit = &g->grown.units[g->grown.visits[to->first_visit + v]],
                                *source = &g->model.units[g->model.visits[from->first_visit + v]];
        if (unit->n_pieces != source->n_pieces)
            return false;
        for (uint32_t p = 0; p < unit->n_pieces; p++) {
            const uint32_t t = g->grown.pieces[unit->first_piece + p].tensor,
                           s = g->model.pieces[source->first_piece + p].tensor;
            if (g->grown.tensors[t].n != g->model.tensors[s].n)
                return false;
            g->sources[t] = s;
            g->added[t] = added;
        }
    }
    return true;
}

static bool take_by_name(struct grow *g, uint32_t tensor)
{
    for (uint32_t s = 0; s < g->model.n_tensors; s++)
        if (strcmp(g->model.tensors[s].name, g->grown.tensors[tensor].name) == 0) {
            g->sources[tensor] = s;
            return true;
        }
    return false;
}

/* Blocks up to the old number come from themselves, those above from the topmost ones. */
static int find_sources(struct grow *g, struct error *err)
{
    const struct model *to = &g->grown;
    const struct model_layer *const first = &to->layers[to->first_block];

    g->sources = calloc(to->n_tensors, sizeof *g->sources);
    g->added = calloc(to->n_tensors, sizeof *g->added);
    if (!g->sources || !g->added)
        return no_memory(err);
    for (uint32_t t = 0; t < to->n_tensors; t++)
        g->sources[t] = UINT32_MAX;
    for (const struct model_layer *l = first; l < first + to->n_block_layers; l++) {
        const bool added = l->index >= g->model.config.n_layers;
        const uint32_t source = l->index - (added ? g->n_added : 0);
        if (!take_layer(g, l, find_layer(&g->model, source, l->part), added))
            return error_set(err, -EINVAL,
                             "--grow %u: block %u would be of another kind than block %u, which it copies: choose a "
                             "number of blocks after which kinds recur",
                             g->n_added, l->index, source);
    }
    for (uint32_t t = 0; t < to->n_tensors; t++)
        if (g->sources[t] == UINT32_MAX && !take_by_name(g, t))
            return error_set(err, -EINVAL, "--grow: the checkpoint has no %s", to->tensors[t].name);
    return 0;
}

/* ---- the files ---- */

/* A file that is being written, and its checksums. */
struct target {
    struct file to;
    struct checkpoint_file *file;
};

static int put(struct target *to, const void *bytes, size_t n, uint64_t offset, struct error *err)
{
    const int rc = n > 0 ? checkpoint_write_run(to->file, &to->to, bytes, n, offset, err) : 0;

    if (rc)
        error_prefix(err, to->file->name);
    return rc;
}

/* n bytes from another file; NULL: zeros. */
static int copy(struct grow *g, struct target *to, uint64_t at, const struct file *from, uint64_t first, uint64_t n,
                struct error *err)
{
    int rc = 0;

    for (uint64_t done = 0, now; !rc && done < n; done += now) {
        now = n - done < CHUNK_BYTES ? n - done : CHUNK_BYTES;
        rc = client_watch_ask(g->watch, err);
        if (!from)
            memset(g->chunk, 0, now);
        else if (!rc && (rc = file_read(from, g->chunk, now, first + done, err)) != 0)
            error_prefix(err, to->file->name);
        if (!rc)
            rc = put(to, g->chunk, now, at + done, err);
    }
    return rc;
}

static int open_target(struct target *to, struct grow *g, const char *name, uint64_t bytes, struct error *err)
{
    to->file = checkpoint_add_file(&g->checkpoint, name, bytes);
    to->to = file_own(output_open(g->to_fd, name, O_WRONLY | O_CREAT | O_EXCL));
    return to->to.fd < 0 ? output_fail(err, to->to.fd, g->to_fd, name, "created") : 0;
}

/* A file of tensors, with its header. */
static int open_tensors(struct target *to, struct grow *g, const char *name, const struct safetensors_layout *layout,
                        struct error *err)
{
    const int rc = open_target(to, g, name, layout->file_bytes, err);

    return rc ? rc : put(to, layout->header, layout->header_bytes, 0, err);
}

static int close_target(const struct target *to, int rc, struct error *err)
{
    if (!file_is_open(&to->to))
        return rc;
    if (!rc && (rc = file_flush(&to->to, err)) != 0)
        error_prefix(err, to->file->name);
    close(to->to.fd);
    return rc;
}

/* The tensor of this name in the source, in fp32, to its place. */
static int copy_tensor(struct grow *g, struct target *to, uint64_t at, const struct safetensors *from, const char *name,
                       uint64_t n, bool zero, struct error *err)
{
    const struct safetensors_entry *entry = safetensors_find(from, name);

    if (!entry || entry->type != SAFETENSORS_F32 || entry->n != n)
        return error_set(err, -EINVAL, "%s has no fp32 tensor %s of %" PRIu64 " numbers", to->file->name, name, n);
    return copy(g, to, at, zero ? NULL : &entry->file, entry->offset, n * sizeof(float), err);
}

static int write_weights(struct grow *g, const struct safetensors *from, struct error *err)
{
    struct safetensors_layout layout;
    struct target to = {.to.fd = -1};
    int rc = checkpoint_lay_out_weights(&layout, &g->grown, err);

    if (rc)
        return rc;
    rc = open_tensors(&to, g, CHECKPOINT_WEIGHTS, &layout, err);
    for (uint32_t t = 0; !rc && t < g->grown.n_tensors; t++)
        rc = copy_tensor(g, &to, layout.offsets[t], from, g->model.tensors[g->sources[t]].name, g->grown.tensors[t].n,
                         false, err);
    safetensors_layout_free(&layout);
    return close_target(&to, rc, err);
}

static int write_updates(struct grow *g, struct target *to, uint64_t at, const struct safetensors *from,
                         struct error *err)
{
    const struct safetensors_entry *entry = safetensors_find(from, "updates");
    int64_t *old = calloc(g->model.n_tensors, sizeof *old), *new = calloc(g->grown.n_tensors, sizeof *new);
    int rc = old && new ? 0 : no_memory(err);

    if (!rc && (!entry || entry->type != SAFETENSORS_I64 || entry->n != g->model.n_tensors))
        rc = error_set(err, -EINVAL, "%s does not count the updates of each tensor", to->file->name);
    if (!rc)
        rc = safetensors_read_counts(old, entry, 0, entry->n, err);
    for (uint32_t t = 0; !rc && t < g->grown.n_tensors; t++)
        new[t] = g->added[t] && g->without_moments ? 0 : old[g->sources[t]];
    if (!rc)
        rc = put(to, new, g->grown.n_tensors * sizeof *new, at, err);
    free(old);
    free(new);
    return rc;
}

static int write_moments(struct grow *g, const struct safetensors *from, struct error *err)
{
    char name[CHECKPOINT_TENSOR_BYTES + 2];
    struct safetensors_layout layout;
    struct target to = {.to.fd = -1};
    int rc = checkpoint_lay_out_moments(&layout, &g->grown, err);

    if (rc)
        return rc;
    rc = open_tensors(&to, g, CHECKPOINT_MOMENTS, &layout, err);
    if (!rc)
        rc = write_updates(g, &to, layout.offsets[0], from, err);
    for (int second = 0; second < 2; second++)
        for (uint32_t t = 0; !rc && t < g->grown.n_tensors; t++) {
            snprintf(name, sizeof name, "%c.%s", second ? 'v' : 'm', g->model.tensors[g->sources[t]].name);
            rc = copy_tensor(g, &to, layout.offsets[checkpoint_moment(&g->grown, second, t)], from, name,
                             g->grown.tensors[t].n, g->added[t] && g->without_moments, err);
        }
    safetensors_layout_free(&layout);
    return close_target(&to, rc, err);
}

static int with_source(struct grow *g, const char *name,
                       int (*write)(struct grow *, const struct safetensors *, struct error *), struct error *err)
{
    const int fd = openat(g->from_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct safetensors from = {0};
    int rc = fd < 0 ? error_set(err, -errno, "%s: %s", name, strerror(errno)) : safetensors_open(&from, fd, err);

    if (!rc)
        rc = write(g, &from, err);
    safetensors_close(&from);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* Config, and the files beside the model, which stay as they are. */
static int write_others(struct grow *g, struct error *err)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < g->resume.checkpoint.n_files; i++) {
        const struct checkpoint_file *file = &g->resume.checkpoint.files[i];
        const bool is_config = strcmp(file->name, CHECKPOINT_CONFIG) == 0;
        struct target to = {.to.fd = -1};
        if (strcmp(file->name, CHECKPOINT_WEIGHTS) == 0 || strcmp(file->name, CHECKPOINT_MOMENTS) == 0)
            continue;
        const struct file from = file_own(openat(g->from_fd, file->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
        rc = file_is_open(&from) ? 0 : error_set(err, -errno, "%s: %s", file->name, strerror(errno));
        if (!rc)
            rc = open_target(&to, g, file->name, is_config ? strlen(g->config) : file->bytes, err);
        if (!rc)
            rc = is_config ? put(&to, g->config, strlen(g->config), 0, err)
                           : copy(g, &to, 0, &from, 0, file->bytes, err);
        rc = close_target(&to, rc, err);
        if (file_is_open(&from))
            close(from.fd);
    }
    return rc;
}

static int write_training(struct grow *g, struct error *err)
{
    char *text = checkpoint_print(&g->checkpoint);
    const int rc = text ? output_write(g->to_fd, CHECKPOINT_TRAINING, text, strlen(text), err) : no_memory(err);

    free(text);
    return rc;
}

/* ---- all of it ---- */

static int check_source(const struct grow *g, struct error *err)
{
    const struct client_resume *r = &g->resume;

    for (size_t i = 0; i < r->checkpoint.n_files; i++)
        if (strcmp(r->checkpoint.files[i].name, ADAPTER_WEIGHTS) == 0)
            return error_set(err, -EDOM, "--grow: %.200s holds adapters: grow the model that they adapt", r->path);
    if (r->record.options.freeze && *r->record.options.freeze &&
        (r->record.options.freeze_until == 0 || r->checkpoint.step <= r->record.options.freeze_until))
        return error_set(err, -EDOM,
                         "--grow: the run of %.200s has frozen tensors, by --freeze %.60s: grow a model that is "
                         "trained whole",
                         r->path, r->record.options.freeze);
    return 0;
}

/* Opens OUT/grown; OUT must not hold a run. */
static int make_output(struct grow *g, const char *out, const char *grown, struct error *err)
{
    const int fd = open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 ? 0 : client_run_check_unused(fd, out, err);
    size_t made;

    if (fd >= 0)
        close(fd);
    if (!rc)
        rc = client_run_make_directories(grown, &made, err);
    if (rc)
        return rc;
    g->out_fd = open(grown, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (g->out_fd < 0)
        return error_set(err, -errno, "--out %.200s: %s", grown, strerror(errno));
    rc = client_resume_lock(g->out_fd, grown, g->watch, err);
    return rc ? rc : output_begin(&g->to_fd, g->out_fd, g->resume.checkpoint.step, err);
}

/* Of preferences: what the model that the run began from said of each text. */
static int copy_references(struct grow *g, struct error *err)
{
    char path[PATH_MAX + sizeof "/" CLIENT_REFERENCES];
    char *bytes = NULL;
    size_t n = 0;

    snprintf(path, sizeof path, "%s/" CLIENT_REFERENCES, g->resume.directory);
    if (access(path, F_OK))
        return 0;
    int rc = read_text(&bytes, &n, AT_FDCWD, path, err);
    if (!rc && unlinkat(g->out_fd, CLIENT_REFERENCES, 0) && errno != ENOENT)
        rc = error_set(err, -errno, CLIENT_REFERENCES ": %s", strerror(errno));
    if (!rc)
        rc = output_write(g->out_fd, CLIENT_REFERENCES, bytes, n, err);
    free(bytes);
    return rc;
}

static int write_all(struct grow *g, struct error *err)
{
    const uint64_t step = g->resume.checkpoint.step;

    g->checkpoint.step = step;
    g->checkpoint.options = json_incref(g->resume.checkpoint.options);
    g->chunk = malloc(CHUNK_BYTES);
    int rc = g->chunk ? 0 : no_memory(err);
    if (!rc)
        rc = with_source(g, CHECKPOINT_WEIGHTS, write_weights, err);
    if (!rc)
        rc = with_source(g, CHECKPOINT_MOMENTS, write_moments, err);
    if (!rc)
        rc = write_others(g, err);
    if (!rc)
        rc = write_training(g, err);
    if (!rc)
        rc = copy_references(g, err);
    if (!rc)
        return output_place(g->out_fd, g->to_fd, step, err);
    output_remove_partial(g->out_fd, step);
    return rc == -EINTR ? rc : output_explain(err, rc, g->out_fd);
}

static void close_all(struct grow *g)
{
    const int fds[] = {g->from_fd, g->out_fd, g->to_fd};

    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    client_resume_close(&g->resume);
    checkpoint_free(&g->checkpoint);
    model_free(&g->model);
    model_free(&g->grown);
    free(g->config);
    free(g->sources);
    free(g->added);
    free(g->chunk);
}

int client_grow(char grown[PATH_MAX], const struct eps_train_options *in, const struct client_watch *watch,
                struct error *err)
{
    struct grow g = {.watch = watch, .from_fd = -1, .out_fd = -1, .to_fd = -1};

    client_resume_init(&g.resume);
    int rc = read_option(&g, in, err);
    if (!rc && snprintf(grown, PATH_MAX, "%s/grown", in->out) >= PATH_MAX)
        rc = error_set(err, -EDOM, "--out %.200s: the name is too long", in->out);
    if (!rc)
        rc = client_resume_open(&g.resume, in, watch, err);
    if (!rc && g.resume.in_place)
        rc = error_set(err, -EDOM, "--grow begins another run: --out %.200s is the one that it grows from", in->out);
    if (!rc)
        rc = check_source(&g, err);
    if (!rc) {
        g.from_fd = open(g.resume.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        rc = g.from_fd < 0 ? error_set(err, -errno, "--resume %.200s: %s", g.resume.path, strerror(errno)) : 0;
    }
    if (!rc)
        rc = open_models(&g, err);
    if (!rc)
        rc = find_sources(&g, err);
    if (!rc)
        rc = make_output(&g, in->out, grown, err);
    if (!rc)
        rc = write_all(&g, err);
    close_all(&g);
    return rc;
}
