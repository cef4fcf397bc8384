/* The two large files are whole before the others are written, training.json comes last, with the checksums of all,
 * and the directory gets its name after every file was read back. So a crash leaves a directory that nobody takes for
 * a checkpoint. Reading back would find the page cache, which has whatever was written; flushing empties it
 * (file_flush).
 *
 * Files that the client opened have no names here: they come in a fixed order, in which small ones are counted by
 * n_used. */
#include "eps/save/capture.h"

#include "proto/model/file/checkpoint_layout.h"
#include "proto/model/config/model_config_print.h"
#include "proto/model/file/model_files.h"
#include "proto/model/output.h"
#include "proto/wire/training_text.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- opening ---------------------------------------------------------------------------------------------------- */

/* Host 0 of several makes the files before the others open them. */
static int capture_open_file(struct file *file, struct capture *capture, const char *name, struct error *err)
{
    const bool makes = store_files_lead(capture->files);
    const int fd = output_open(capture->directory, name, O_WRONLY | (makes ? O_CREAT | O_EXCL : 0));

    *file = file_own(fd);
    return fd < 0 ? output_fail(err, fd, capture->directory, name, makes ? "made" : "opened") : 0;
}

/* A snapshot's files may hold something of an earlier attempt. */
static int empty_files(const struct capture *capture, struct error *err)
{
    int rc = 0;

    for (unsigned i = 0; !rc && i < capture->options.n_files; i++)
        if ((rc = file_truncate(&capture->options.files[i], 0, err)))
            error_prefix(err, "a file");
    return rc;
}

static int capture_open_checkpoint(struct capture *capture, struct error *err)
{
    const struct capture_options *o = &capture->options;

    if (o->output < 0) {
        capture->weights = o->files[CAPTURE_WEIGHTS];
        capture->moments = o->files[CAPTURE_MOMENTS];
        capture->n_used = CAPTURE_SMALL;
        return empty_files(capture, err);
    }
    const bool leads = store_files_lead(capture->files);
    int rc = (leads ? output_begin : output_join)(&capture->directory, o->output, o->step, err);

    if (!rc)
        rc = capture_open_file(&capture->weights, capture, checkpoint_weights_name(o->store->model), err);
    if (!rc)
        rc = capture_open_file(&capture->moments, capture, CHECKPOINT_MOMENTS, err);
    return rc;
}

/* Adds to an error about one of the two large files where the file is and what to do. */
static int explain(const struct capture *capture, int rc, struct error *err)
{
    return rc && capture->options.checkpoint ? output_explain(err, rc, capture->directory) : rc;
}

int capture_open(struct capture *capture, const struct capture_options *options, struct error *err)
{
    *capture = (struct capture){.options = *options, .open = true, .directory = -1, .files = options->store->files};
    capture->weights = capture->moments = file_own(-1);
    capture->checkpoint.step = options->step;
    assert(store_files_lead(capture->files) || (options->checkpoint && options->output >= 0));
    int rc = options->checkpoint ? capture_open_checkpoint(capture, err) : empty_files(capture, err);
    if (!rc && options->checkpoint)
        rc = explain(capture,
                     store_files_begin(capture->files, capture->weights, capture->moments, &capture->checkpoint, err),
                     err);
    else if (!rc)
        rc = store_files_begin(capture->files, options->files[CAPTURE_WEIGHTS], file_own(-1), NULL, err);
    return rc;
}

int capture_write(struct capture *capture, uint32_t unit, struct error *err)
{
    int rc = store_files_write(capture->files, unit, err);

    return explain(capture, rc, err);
}

/* ---- finishing -------------------------------------------------------------------------------------------------- */

/* Writes into the directory, or into the next open file. */
static int write_small(struct capture *capture, const char *name, const char *bytes, size_t n, struct error *err)
{
    const struct capture_options *o = &capture->options;

    if (capture->directory >= 0)
        return output_write(capture->directory, name, bytes, n, err);
    if (capture->n_used >= o->n_files)
        return error_set(err, -EINVAL, "%s: no open file came for it", name);
    const struct file *file = &o->files[capture->n_used++];
    int rc = file_write(file, bytes, n, 0, err);
    if (!rc)
        rc = file_flush(file, err);
    if (!rc)
        return 0;
    error_prefix(err, name);
    return output_explain(err, rc, -1);
}

/* Writes a small file and notes its checksum. */
static int capture_add_file(struct capture *capture, const char *name, const char *bytes, size_t n, struct error *err)
{
    struct checkpoint_file *file = checkpoint_add_file(&capture->checkpoint, name, n);

    if (n > 0 && checkpoint_add_run(file, 0, n, checkpoint_hash(bytes, n)))
        return error_memory(err);
    return write_small(capture, name, bytes, n, err);
}

/* Checkpoints and snapshots hold fp32 weights, whatever type the weights were read from. */
static char *print_config(const struct capture_options *o, struct error *err)
{
    char *text = model_config_print(o->config, o->config_bytes, SAFETENSORS_F32);

    if (!text)
        error_memory(err);
    return text;
}

static int add_config(struct capture *capture, struct error *err)
{
    char *text = print_config(&capture->options, err);
    const int rc = text ? capture_add_file(capture, checkpoint_config_name(&capture->options.store->model->config),
                                           text, strlen(text), err)
                        : -ENOMEM;

    free(text);
    return rc;
}

static int add_side_files(struct capture *capture, json_t *side, struct error *err)
{
    const char *name, *bytes;
    char *made;
    json_t *string;
    size_t n;

    json_object_foreach(json_object_get(side, "files"), name, string)
    {
        int rc = model_files_decode(&bytes, &n, &made, name, string);
        rc = rc ? error_set(err, rc, "%s: out of memory", name) : capture_add_file(capture, name, bytes, n, err);
        free(made);
        if (rc)
            return rc;
    }
    return 0;
}

/* Compares a file with what was written to it. It has been flushed, so the disk is read. i: its place among the
 * files. */
static int read_back(const struct capture *capture, const struct checkpoint_file *file, size_t i, struct error *err)
{
    struct file from = capture->directory >= 0 ? file_own(output_open(capture->directory, file->name, O_RDONLY))
                                               : capture->options.files[i];

    if (capture->directory >= 0 && from.fd < 0)
        return output_fail(err, from.fd, capture->directory, file->name, "read back");
    int rc = checkpoint_check_open(file, &from, err);
    if (capture->directory >= 0)
        close(from.fd);
    if (rc == -EINVAL) {
        error_append(err, ": the disk has lost what it took");
        rc = -EIO;
    }
    return rc ? output_explain(err, rc, capture->directory) : 0;
}

/* The last file, and the one that vouches for the others: once it is written, all are read back. */
static int capture_write_training(struct capture *capture, struct error *err)
{
    const struct checkpoint *c = &capture->checkpoint;
    char *text = checkpoint_print(&capture->checkpoint);

    if (!text)
        return error_memory(err);
    const size_t n = strlen(text);
    struct checkpoint_run all = {.bytes = n, .hash = checkpoint_hash(text, n)};
    const struct checkpoint_file training = {.name = CHECKPOINT_TRAINING, .bytes = n, .runs = &all, .n_runs = 1};
    int rc = write_small(capture, CHECKPOINT_TRAINING, text, n, err);
    free(text);
    for (size_t i = 0; rc == 0 && i < c->n_files; i++)
        rc = read_back(capture, &c->files[i], i, err);
    return rc ? rc : read_back(capture, &training, c->n_files, err);
}

/* What the run settled as it went is added to the client's options: the microbatch, algorithms, the scale of the
 * loss. */
static int finish_checkpoint(struct capture *capture, const struct loss_scale *scale, struct error *err)
{
    const struct capture_options *o = &capture->options;
    json_t *side = NULL;
    int rc = explain(capture, store_files_end(capture->files, err), err);

    if (!rc)
        rc = add_config(capture, err);
    if (!rc && o->side)
        rc = training_text_parse(&side, o->side, o->side_bytes, err);
    if (!rc && side) {
        capture->checkpoint.options = json_incref(json_object_get(side, "options"));
        json_t *const options = capture->checkpoint.options;
        if ((o->microbatch && json_object_set_new(options, "microbatch", json_integer(o->microbatch))) ||
            (o->products.version && json_object_set_new(options, "products", products_to_json(&o->products))) ||
            (o->attention && json_object_set_new(options, "attention", json_string(o->attention))) ||
            (scale->value > 0 && training_text_set_loss_scale(options, scale)))
            rc = error_memory(err);
        else
            rc = add_side_files(capture, side, err);
        json_decref(side);
    }
    if (!rc)
        rc = capture_write_training(capture, err);
    return rc || o->output < 0 ? rc : output_place(o->output, capture->directory, o->step, err);
}

static int finish_snapshot(struct capture *capture, struct error *err)
{
    const struct capture_options *o = &capture->options;
    int rc = store_files_end(capture->files, err);
    char *config = rc ? NULL : print_config(o, err);

    if (!rc)
        rc = config ? file_write(&o->files[CAPTURE_CONFIG], config, strlen(config), 0, err) : -ENOMEM;
    free(config);
    if (!rc && o->side)
        rc = file_write(&o->files[CAPTURE_SIDE], o->side, o->side_bytes, 0, err);
    return rc;
}

/* Files that came open are the save's, and stay open. */
static void capture_close_all(struct capture *capture)
{
    const int fds[] = {capture->weights.fd, capture->moments.fd, capture->directory};

    for (size_t i = 0; capture->directory >= 0 && i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    checkpoint_free(&capture->checkpoint);
    *capture = (struct capture){.directory = -1, .weights = file_own(-1), .moments = file_own(-1)};
}

int capture_add(struct capture *capture, const struct store_files_note *notes, size_t n, struct error *err)
{
    return store_files_add(capture->files, notes, n, err);
}

size_t capture_notes(struct store_files_note *out, size_t n, const struct capture *capture, uint64_t first)
{
    return store_files_notes(out, n, capture->files, first);
}

void capture_close(struct capture *capture)
{
    if (capture->open)
        capture_close_all(capture);
}

int capture_finish(struct capture *capture, const struct loss_scale *scale, struct error *err)
{
    if (!store_files_lead(capture->files))
        return explain(capture, store_files_end(capture->files, err), err);
    int rc = capture->options.checkpoint ? finish_checkpoint(capture, scale, err) : finish_snapshot(capture, err);

    if (!rc)
        capture_close_all(capture);
    return rc;
}

/* Host 0 alone removes the directory; the others have only opened it. */
void capture_discard(struct capture *capture)
{
    const struct capture_options o = capture->options;

    if (!capture->open)
        return;
    const bool leads = store_files_lead(capture->files);
    capture_close_all(capture);
    if (!leads)
        return;
    if (o.output >= 0)
        output_remove_partial(o.output, o.step);
    else if (!o.checkpoint)
        for (unsigned i = 0; i < o.n_files; i++)
            if (file_truncate(&o.files[i], 0, NULL))
                return; /* the viewer hears of the failure, and has the files */
}
