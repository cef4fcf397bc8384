/* A checkpoint is written here as a daemon writes one: files in step-N.partial, their checksums in training.json, which
 * comes last, and one rename. Tensors pass through chunks of DERIVE_CHUNK bytes, which a row of MODEL_WIDEST numbers
 * just fits.
 *
 * Runs with adapters, or with frozen or sparse tensors, are refused: the loops here take it that each tensor has
 * moments and a count. Norms that the run remembered (proto/model/norms.h) are left behind, and the new one gathers its
 * own. */
#include "client/run/derive.h"

#include "client/options/options.h"
#include "client/record/references.h"
#include "client/run/run.h"
#include "proto/base/file.h"
#include "proto/base/random.h"
#include "proto/model/file/checkpoint_layout.h"
#include "proto/model/draw.h"
#include "proto/model/output.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int derive_no_memory(struct error *err)
{
    return error_memory(err);
}

/* ---- the checkpoint and its model ---- */

static int derive_read_text(char **out, size_t *n, int directory_fd, const char *name, struct error *err)
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

/* By its record, before any of its tensors is read. */
static int derive_check_source(const struct client_derive *d, const char *out, struct error *err)
{
    const struct client_resume *r = &d->resume;
    const struct eps_train_options *o = &r->record.options;

    if (r->in_place)
        return error_set(err, -EDOM, "%s begins another run: --out %.200s is the one that it begins from", d->option,
                         out);
    for (size_t i = 0; i < r->checkpoint.n_files; i++)
        if (strcmp(r->checkpoint.files[i].name, ADAPTER_WEIGHTS) == 0)
            return error_set(err, -EDOM, "%s: %.200s holds adapters: change the model that they adapt", d->option,
                             r->path);
    if (o->sparse)
        return error_set(err, -EDOM, "%s: the run of %.200s has sparse weights, by --sparse %.60s: change a dense one",
                         d->option, r->path, o->sparse);
    if (o->moments == EPS_MOMENTS_CODED)
        return error_set(err, -EDOM,
                         "%s: the run of %.200s has coded moments, by --moments coded, which no other model takes: "
                         "begin a new run from its weights by --model",
                         d->option, r->path);
    if (o->freeze && *o->freeze && (o->freeze_until == 0 || r->checkpoint.step <= o->freeze_until))
        return error_set(err, -EDOM,
                         "%s: the run of %.200s has frozen tensors, by --freeze %.60s: change a model that is trained "
                         "whole",
                         d->option, r->path, o->freeze);
    return 0;
}

int client_derive_open(struct client_derive *d, const struct eps_train_options *in, struct error *err)
{
    client_resume_init(&d->resume);
    d->from_fd = d->out_fd = d->to_fd = -1;
    if (!in->resume)
        return error_set(err, -EDOM, "%s changes the model of a checkpoint: name its run by --resume", d->option);
    if (!in->out || !*in->out)
        return error_set(err, -EDOM, "%s begins another run, of the changed model: name its directory by --out",
                         d->option);
    int rc = client_resume_open(&d->resume, in, d->watch, err);
    if (!rc)
        rc = derive_check_source(d, in->out, err);
    if (rc)
        return rc;
    d->from_fd = open(d->resume.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->from_fd < 0)
        return error_set(err, -errno, "--resume %.200s: %s", d->resume.path, strerror(errno));
    return derive_read_text(&d->old_config, &d->n_old_config, d->from_fd, CHECKPOINT_CONFIG, err);
}

/* What was frozen once, and is trained now, the new run names again. */
static int derive_check_freeze(const struct client_derive *d, const struct model_config *config, struct error *err)
{
    const char *freeze = d->resume.record.options.freeze;
    struct model model;
    int rc = freeze ? model_init(&model, config, err) : 0;

    if (!freeze || rc)
        return rc;
    if ((rc = model_freeze(&model, freeze, (struct model_base){FORM_VALUES, FORM_VALUES}, err)) != 0)
        error_prefix(err, d->option);
    model_free(&model);
    return rc;
}

int client_derive_models(struct client_derive *d, const struct model_config *old, char *config, struct error *err)
{
    struct model_config new;
    int rc = config ? 0 : derive_no_memory(err);

    d->config = config;
    if (!rc)
        rc = model_config_parse(&new, d->config, strlen(d->config), err);
    if (!rc)
        rc = model_init(&d->old, old, err);
    if (!rc)
        rc = model_init(&d->model, &new, err);
    if (!rc)
        rc = derive_check_freeze(d, &new, err);
    d->origins = calloc((size_t)d->model.n_tensors + 1, sizeof *d->origins);
    d->chunk = malloc(DERIVE_CHUNK);
    d->old_chunk = malloc(DERIVE_CHUNK);
    if (!rc && !(d->origins && d->chunk && d->old_chunk))
        rc = derive_no_memory(err);
    for (uint32_t t = 0; !rc && t < d->model.n_tensors; t++)
        d->origins[t].tensor = UINT32_MAX;
    return rc;
}

const struct model_layer *client_derive_layer(const struct model *m, uint32_t block, uint32_t part)
{
    const struct model_layer *const first = &m->layers[m->first_block];

    for (const struct model_layer *l = first; l < first + m->n_block_layers; l++)
        if (l->index == block && l->part == part)
            return l;
    return NULL;
}

/* Sets the origins that are left. */
static int take_by_name(struct client_derive *d, struct error *err)
{
    for (uint32_t t = 0; t < d->model.n_tensors; t++)
        if (d->origins[t].tensor == UINT32_MAX && !d->origins[t].fresh) {
            const struct model_tensor *tensor = model_find(&d->old, d->model.tensors[t].name);
            if (!tensor || tensor->n != d->model.tensors[t].n)
                return error_set(err, -EINVAL, "%s: the checkpoint has no %s of the same shape", d->option,
                                 d->model.tensors[t].name);
            d->origins[t].tensor = (uint32_t)(tensor - d->old.tensors);
        }
    return 0;
}

/* ---- the files ---- */

/* A file that is being written, and its checksums. */
struct target {
    struct file to;
    struct checkpoint_file *file;
};

/* All bytes of a file go through here, in order, so that its checksums cover it. */
static int derive_put(struct target *to, const void *bytes, size_t n, uint64_t offset, struct error *err)
{
    const int rc = n > 0 ? checkpoint_write_run(to->file, &to->to, bytes, n, offset, err) : 0;

    if (rc)
        error_prefix(err, to->file->name);
    return rc;
}

/* n bytes from another file; NULL: zeros. */
static int derive_copy(struct client_derive *d, struct target *to, uint64_t at, const struct file *from, uint64_t first,
                       uint64_t n, struct error *err)
{
    int rc = 0;

    for (uint64_t done = 0, now; !rc && done < n; done += now) {
        now = n - done < DERIVE_CHUNK ? n - done : DERIVE_CHUNK;
        rc = client_watch_ask(d->watch, err);
        if (!from)
            memset(d->chunk, 0, now);
        else if (!rc && (rc = file_read(from, d->chunk, now, first + done, err)) != 0)
            error_prefix(err, to->file->name);
        if (!rc)
            rc = derive_put(to, d->chunk, now, at + done, err);
    }
    return rc;
}

static int open_target(struct target *to, struct client_derive *d, const char *name, uint64_t bytes, struct error *err)
{
    to->file = checkpoint_add_file(&d->checkpoint, name, bytes);
    to->to = file_own(output_open(d->to_fd, name, O_WRONLY | O_CREAT | O_EXCL));
    return to->to.fd < 0 ? output_fail(err, to->to.fd, d->to_fd, name, "created") : 0;
}

/* A file of tensors, with its header. */
static int open_tensors(struct target *to, struct client_derive *d, const char *name,
                        const struct safetensors_layout *layout, struct error *err)
{
    const int rc = open_target(to, d, name, layout->file_bytes, err);

    return rc ? rc : derive_put(to, layout->header, layout->header_bytes, 0, err);
}

/* On disk before the directory is renamed. Returns rc, that of the writing, or else its own. */
static int close_target(const struct target *to, int rc, struct error *err)
{
    if (!file_is_open(&to->to))
        return rc;
    if (!rc && (rc = file_flush(&to->to, err)) != 0)
        error_prefix(err, to->file->name);
    close(to->to.fd);
    return rc;
}

/* ---- tensors of which units are kept ---- */

struct reshape {
    const struct derive_origin *origin;
    const struct model_tensor *tensor, *old;
    uint32_t index; /* the new tensor's */
    const struct safetensors_entry *entry;
    size_t each; /* bytes of an element: moments may have 16 bits */
    bool draws;  /* new units; else they are zeros */
    struct random_key key;
};

static int read_old(char *out, const struct reshape *r, uint64_t first, uint64_t n, struct error *err)
{
    return file_read(&r->entry->file, out, n * r->each, r->entry->offset + first * r->each, err);
}

/* Elements of new units. Those that are drawn are weights, in fp32. */
static void make_new(char *out, const struct reshape *r, uint64_t first, uint64_t n)
{
    if (r->draws)
        model_draw((float *)(void *)out, r->tensor, r->key, r->index, first, n);
    else
        memset(out, 0, n * r->each);
}

/* Rows first .. first+n-1 of a tensor whose units are its rows. */
static int derive_make_rows(char *out, const struct reshape *r, uint64_t first, uint64_t n, struct error *err)
{
    const struct derive_units *units = r->origin->units;
    const uint64_t columns = r->tensor->shape[1];
    int rc = 0;

    for (uint64_t row = first; !rc && row < first + n; row++, out += columns * r->each)
        if (row < units->n_kept)
            rc = read_old(out, r, units->kept[row] * columns, columns, err);
        else
            make_new(out, r, row * columns, columns);
    return rc;
}

/* Rows first .. first+n-1 of a tensor whose units are its columns. old: room for as many rows of the old tensor. */
static int make_columns(char *out, char *old, const struct reshape *r, uint64_t first, uint64_t n, struct error *err)
{
    const struct derive_units *units = r->origin->units;
    const uint64_t columns = r->tensor->shape[1], old_columns = r->old->shape[1];
    const int rc = read_old(old, r, first * old_columns, n * old_columns, err);

    for (uint64_t row = first; !rc && row < first + n; row++, out += columns * r->each, old += old_columns * r->each) {
        for (uint32_t i = 0; i < units->n_kept; i++)
            memcpy(out + i * r->each, old + units->kept[i] * r->each, r->each);
        if (units->n > units->n_kept)
            make_new(out + units->n_kept * r->each, r, row * columns + units->n_kept, units->n - units->n_kept);
    }
    return rc;
}

/* As many rows at once as fit in a chunk, be they the old ones or the new ones. */
static int write_reshaped(struct client_derive *d, struct target *to, uint64_t at, const struct reshape *r,
                          struct error *err)
{
    const uint64_t columns = r->tensor->shape[1], rows = r->tensor->shape[0];
    const uint64_t widest = columns > r->old->shape[1] ? columns : r->old->shape[1];
    const uint64_t most = DERIVE_CHUNK / (widest * r->each);
    char *const chunk = d->chunk, *const old = d->old_chunk;
    int rc = 0;

    for (uint64_t row = 0, n; !rc && row < rows; row += n) {
        n = rows - row < most ? rows - row : most;
        rc = client_watch_ask(d->watch, err);
        if (!rc && (rc = r->origin->columns ? make_columns(chunk, old, r, row, n, err)
                                            : derive_make_rows(chunk, r, row, n, err)) != 0)
            error_prefix(err, to->file->name);
        if (!rc)
            rc = derive_put(to, chunk, n * columns * r->each, at + row * columns * r->each, err);
    }
    return rc;
}

/* ---- weights and moments ---- */

/* Of weights that are drawn as a fresh model's. */
static struct random_key weights_key(const struct client_derive *d)
{
    return random_site_key(d->resume.record.options.seed, 0, 0, RANDOM_WEIGHTS);
}

/* Elements of a tensor that comes from none. */
static int write_fresh(struct client_derive *d, struct target *to, uint64_t at, uint32_t index, struct error *err)
{
    const struct random_key key = weights_key(d);
    const uint64_t most = DERIVE_CHUNK / sizeof(float);
    float *const chunk = (float *)(void *)d->chunk;
    const struct model_tensor *tensor = &d->model.tensors[index];
    int rc = 0;

    for (uint64_t done = 0, n; !rc && done < tensor->n; done += n) {
        n = tensor->n - done < most ? tensor->n - done : most;
        rc = client_watch_ask(d->watch, err);
        model_draw(chunk, tensor, key, index, done, n);
        if (!rc)
            rc = derive_put(to, chunk, n * sizeof(float), at + done * sizeof(float), err);
    }
    return rc;
}

/* A tensor of the new model, from its origin in the source, to its place. kind: "" the weights, else "m." or "v.", a
 * moment, which new units begin with zeros. type: of this tensor in both files. */
static int derive_write_tensor(struct client_derive *d, struct target *to, uint64_t at, const struct safetensors *from,
                               const char *kind, enum safetensors_type type, uint32_t index, struct error *err)
{
    const struct derive_origin *origin = &d->origins[index];
    const struct model_tensor *tensor = &d->model.tensors[index];
    const bool moment = *kind != 0;
    const size_t each = type == SAFETENSORS_F32 ? sizeof(float) : sizeof(uint16_t);
    char name[CHECKPOINT_TENSOR_BYTES + 2];

    if (origin->fresh && !moment)
        return write_fresh(d, to, at, index, err);
    if (moment && origin->without_moments)
        return derive_copy(d, to, at, NULL, 0, tensor->n * each, err);
    const struct model_tensor *old = &d->old.tensors[origin->tensor];
    snprintf(name, sizeof name, "%s%s", kind, old->name);
    const struct safetensors_entry *entry = safetensors_find(from, name);
    if (!entry || entry->type != type || entry->n != old->n)
        return error_set(err, -EINVAL, "%s has no tensor %s of %" PRIu64 " numbers of %zu bytes", to->file->name, name,
                         old->n, each);
    if (!origin->units)
        return derive_copy(d, to, at, &entry->file, entry->offset, tensor->n * each, err);
    const struct reshape r = {
        origin, tensor, old, index, entry, each, .draws = !moment && !origin->new_are_zeros, .key = weights_key(d)};
    return write_reshaped(d, to, at, &r, err);
}

static int write_weights(struct client_derive *d, const struct safetensors *from, void *data, struct error *err)
{
    struct safetensors_layout layout;
    struct target to = {.to.fd = -1};
    int rc = checkpoint_lay_out_weights(&layout, &d->model, err);

    (void)data;
    if (rc)
        return rc;
    rc = open_tensors(&to, d, CHECKPOINT_WEIGHTS, &layout, err);
    for (uint32_t t = 0; !rc && t < d->model.n_tensors; t++)
        rc = derive_write_tensor(d, &to, layout.offsets[t], from, "", SAFETENSORS_F32, t, err);
    safetensors_layout_free(&layout);
    return close_target(&to, rc, err);
}

/* An optimizer corrects the bias of a moment by this number, so it begins at 0 where the moment begins with zeros. */
static int write_updates(struct client_derive *d, struct target *to, uint64_t at, const struct safetensors *from,
                         struct error *err)
{
    const struct safetensors_entry *entry = safetensors_find(from, "updates");
    int64_t *old = calloc(d->old.n_tensors, sizeof *old), *new = calloc(d->model.n_tensors, sizeof *new);
    int rc = old && new ? 0 : derive_no_memory(err);

    if (!rc && (!entry || entry->type != SAFETENSORS_I64 || entry->n != d->old.n_tensors))
        rc = error_set(err, -EINVAL, "%s does not count the updates of each tensor", to->file->name);
    if (!rc)
        rc = safetensors_read_counts(old, entry, 0, entry->n, err);
    for (uint32_t t = 0; !rc && t < d->model.n_tensors; t++)
        new[t] = d->origins[t].without_moments ? 0 : old[d->origins[t].tensor];
    if (!rc)
        rc = derive_put(to, new, d->model.n_tensors * sizeof *new, at, err);
    free(old);
    free(new);
    return rc;
}

/* As the source has them: 16-bit moments were once written as fp32, too. */
static enum number_type moments_of(const struct safetensors *from)
{
    for (size_t i = 0; i < from->n_entries; i++)
        if (strncmp(from->entries[i].name, "m.", 2) == 0)
            return from->entries[i].type == SAFETENSORS_F32 ? NUMBER_FP32 : NUMBER_BF16;
    return NUMBER_FP32;
}

/* Norms that lie beside the moments are left behind, which client_derive_say tells. */
static int derive_write_moments(struct client_derive *d, const struct safetensors *from, void *data, struct error *err)
{
    struct safetensors_layout layout;
    struct target to = {.to.fd = -1};
    const struct plan_goal goal = client_options_goal(&d->resume.record.options);
    const enum number_type moments = moments_of(from);
    int rc = checkpoint_lay_out_moments(&layout, &d->model, plan_moments(&goal), moments, err);

    (void)data;
    if (rc)
        return rc;
    for (size_t i = 0; i < from->n_entries; i++)
        d->leaves_norms |= strncmp(from->entries[i].name, CHECKPOINT_NORMS, strlen(CHECKPOINT_NORMS)) == 0;
    rc = open_tensors(&to, d, CHECKPOINT_MOMENTS, &layout, err);
    if (!rc)
        rc = write_updates(d, &to, layout.offsets[0], from, err);
    for (unsigned second = 0; second < plan_moments(&goal); second++)
        for (uint32_t t = 0; !rc && t < d->model.n_tensors; t++)
            rc = derive_write_tensor(d, &to, layout.offsets[checkpoint_moment(&d->model, second, t)], from,
                                     second ? "v." : "m.", checkpoint_moment_type(moments, second), t, err);
    safetensors_layout_free(&layout);
    return close_target(&to, rc, err);
}

int client_derive_read(struct client_derive *d, const char *name,
                       int (*use)(struct client_derive *d, const struct safetensors *from, void *data,
                                  struct error *err),
                       void *data, struct error *err)
{
    const int fd = openat(d->from_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct safetensors from = {0};
    int rc = fd < 0 ? error_set(err, -errno, "%s: %s", name, strerror(errno)) : safetensors_open(&from, fd, err);

    if (!rc)
        rc = use(d, &from, data, err);
    safetensors_close(&from);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* Config, and the files beside the model, which stay as they are. */
static int write_others(struct client_derive *d, struct error *err)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < d->resume.checkpoint.n_files; i++) {
        const struct checkpoint_file *file = &d->resume.checkpoint.files[i];
        const bool is_config = strcmp(file->name, CHECKPOINT_CONFIG) == 0;
        struct target to = {.to.fd = -1};
        if (strcmp(file->name, CHECKPOINT_WEIGHTS) == 0 || strcmp(file->name, CHECKPOINT_MOMENTS) == 0)
            continue;
        const struct file from = file_own(openat(d->from_fd, file->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
        rc = file_is_open(&from) ? 0 : error_set(err, -errno, "%s: %s", file->name, strerror(errno));
        if (!rc)
            rc = open_target(&to, d, file->name, is_config ? strlen(d->config) : file->bytes, err);
        if (!rc)
            rc = is_config ? derive_put(&to, d->config, strlen(d->config), 0, err)
                           : derive_copy(d, &to, 0, &from, 0, file->bytes, err);
        rc = close_target(&to, rc, err);
        if (file_is_open(&from))
            close(from.fd);
    }
    return rc;
}

static int derive_write_training(struct client_derive *d, struct error *err)
{
    char *text = checkpoint_print(&d->checkpoint);
    const int rc = text ? output_write(d->to_fd, CHECKPOINT_TRAINING, text, strlen(text), err) : derive_no_memory(err);

    free(text);
    return rc;
}

/* ---- all of it ---- */

/* Opens the directory; OUT must not hold a run. */
static int make_output(struct client_derive *d, const char *out, const char *directory, struct error *err)
{
    const int fd = open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 ? 0 : client_run_check_unused(fd, out, err);
    size_t made;

    if (fd >= 0)
        close(fd);
    if (!rc)
        rc = client_run_make_directories(directory, &made, err);
    if (rc)
        return rc;
    d->out_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->out_fd < 0)
        return error_set(err, -errno, "--out %.200s: %s", directory, strerror(errno));
    rc = client_resume_lock(d->out_fd, directory, d->watch, err);
    return rc ? rc : output_begin(&d->to_fd, d->out_fd, d->resume.checkpoint.step, err);
}

/* Copies what the model that the run began from said of each text of preferences, if it did. */
static int copy_references(struct client_derive *d, struct error *err)
{
    char path[PATH_MAX + sizeof "/" CLIENT_REFERENCES];
    char *bytes = NULL;
    size_t n = 0;

    snprintf(path, sizeof path, "%s/" CLIENT_REFERENCES, d->resume.directory);
    if (access(path, F_OK))
        return 0;
    int rc = derive_read_text(&bytes, &n, AT_FDCWD, path, err);
    if (!rc && unlinkat(d->out_fd, CLIENT_REFERENCES, 0) && errno != ENOENT)
        rc = error_set(err, -errno, CLIENT_REFERENCES ": %s", strerror(errno));
    if (!rc)
        rc = output_write(d->out_fd, CLIENT_REFERENCES, bytes, n, err);
    free(bytes);
    return rc;
}

static int derive_write_all(struct client_derive *d, struct error *err)
{
    const uint64_t step = d->resume.checkpoint.step;

    d->checkpoint.step = step;
    d->checkpoint.options = json_incref(d->resume.checkpoint.options);
    int rc = client_derive_read(d, CHECKPOINT_WEIGHTS, write_weights, NULL, err);
    if (!rc)
        rc = client_derive_read(d, CHECKPOINT_MOMENTS, derive_write_moments, NULL, err);
    if (!rc)
        rc = write_others(d, err);
    if (!rc)
        rc = derive_write_training(d, err); /* it has the checksums of all the others */
    if (!rc)
        rc = copy_references(d, err);
    if (!rc)
        return output_place(d->out_fd, d->to_fd, step, err);
    output_remove_partial(d->out_fd, step);
    return rc == -EINTR ? rc : output_explain(err, rc, d->out_fd);
}

int client_derive_write(char directory[PATH_MAX], struct client_derive *d, const struct eps_train_options *in,
                        struct error *err)
{
    int rc = take_by_name(d, err);

    if (!rc &&
        snprintf(directory, PATH_MAX, "%s%s%s", in->out, d->folder ? "/" : "", d->folder ? d->folder : "") >= PATH_MAX)
        rc = error_set(err, -EDOM, "--out %.200s: the name is too long", in->out);
    if (!rc)
        rc = make_output(d, in->out, directory, err);
    return rc ? rc : derive_write_all(d, err);
}

void client_derive_say(struct error *note, const struct client_derive *d)
{
    *note = d->resume.note;
    if (d->resume.edited.text[0])
        error_append(note, "%s%s", note->text[0] ? "; " : "", d->resume.edited.text);
    if (d->leaves_norms)
        error_append(note, "%s%s leaves behind the norms of gradients that the run remembered: they begin at 0",
                     note->text[0] ? "; " : "", d->option);
}

void client_derive_close(struct client_derive *d)
{
    const int fds[] = {d->from_fd, d->out_fd, d->to_fd};

    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    client_resume_close(&d->resume);
    checkpoint_free(&d->checkpoint);
    model_free(&d->old);
    model_free(&d->model);
    free(d->old_config);
    free(d->config);
    free(d->origins);
    free(d->chunk);
    free(d->old_chunk);
}
