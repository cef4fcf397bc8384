#include "client/ask/export.h"

#include "proto/model/checkpoint.h"
#include "proto/model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 1 << 20 }; /* elements */

struct source {
    struct model model;
    struct safetensors *files; /* (n_files) */
    unsigned n_files;
    const struct safetensors_entry **entries; /* (n_tensors) source of each tensor */
    const struct safetensors_entry *head;     /* a copy of a tied model's head, or NULL */
};

struct target {
    int directory_fd;
    bool bf16;
    uint32_t *shard; /* (n_tensors) file of each tensor, from 0 */
    uint32_t n_shards;
    float *block;      /* (BLOCK) */
    uint16_t *rounded; /* (BLOCK) */
};

size_t client_export_round(uint16_t *out, const float *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = number_to_bf16(values[i]);
        if (isfinite(values[i]) && !isfinite(number_from_bf16(out[i])))
            return i;
    }
    return n;
}

static int place_entry(struct source *from, const struct safetensors_entry *entry, struct error *err)
{
    const struct model_tensor *tensor = model_find(&from->model, entry->name);
    const struct safetensors_entry **place;

    if (!tensor && model_is_mask(&from->model, entry->name))
        return 0;
    if (!tensor && model_is_tied_copy(&from->model, entry->name)) {
        tensor = &from->model.tensors[from->model.embedding.tables[0].tensor];
        place = &from->head;
    } else if (tensor) {
        place = &from->entries[tensor - from->model.tensors];
    } else {
        return error_set(err, -EINVAL,
                         "%s is not a tensor of this model: check that config.json belongs to these weights",
                         entry->name);
    }
    if (entry->n_dims != tensor->n_dims || entry->shape[0] != tensor->shape[0] ||
        (entry->n_dims == 2 && entry->shape[1] != tensor->shape[1]))
        return error_set(err, -EINVAL,
                         "%s has another shape than in config.json: check that config.json belongs to these weights",
                         entry->name);
    if (entry->type != SAFETENSORS_F32 && entry->type != SAFETENSORS_F16 && entry->type != SAFETENSORS_BF16)
        return error_set(err, -EINVAL, "%s has an unsupported type: save it as F32, F16 or BF16", entry->name);
    if (*place)
        return error_set(err, -EINVAL, "%s is there twice: remove one of the two", entry->name);
    *place = entry;
    return 0;
}

static int find_all(struct source *from, struct error *err)
{
    int rc = 0;

    for (unsigned i = 0; rc == 0 && i < from->n_files; i++)
        for (size_t k = 0; rc == 0 && k < from->files[i].n_entries; k++)
            rc = place_entry(from, &from->files[i].entries[k], err);
    for (uint32_t t = 0; rc == 0 && t < from->model.n_tensors; t++)
        if (!from->entries[t])
            rc = error_set(err, -EINVAL, "%s is missing: check that all files of these weights are there",
                           from->model.tensors[t].name);
    return rc;
}

/* A tied head's copy, which is left out, must equal the table of tokens. */
static int check_head(const struct source *from, const struct target *to, struct error *err)
{
    const struct safetensors_entry *tokens = from->entries[from->model.embedding.tables[0].tensor];
    float *half = to->block + BLOCK / 2;
    int rc = 0;

    for (uint64_t at = 0; rc == 0 && from->head && at < tokens->n; at += BLOCK / 2) {
        const uint64_t n = tokens->n - at < BLOCK / 2 ? tokens->n - at : BLOCK / 2;
        rc = safetensors_read(to->block, tokens, at, n, err);
        if (rc == 0)
            rc = safetensors_read(half, from->head, at, n, err);
        if (rc == 0 && memcmp(to->block, half, n * sizeof *half) != 0)
            rc = model_refuse_tied_copy(&from->model, err);
    }
    return rc;
}

static int open_source(struct source *from, const struct client_model *model, struct error *err)
{
    *from = (struct source){.files = calloc(model->n_weights + 1, sizeof *from->files)};
    int rc = from->files ? model_init(&from->model, &model->config, err) : error_set(err, -ENOMEM, "out of memory");

    if (rc == 0 && !(from->entries = calloc(from->model.n_tensors, sizeof *from->entries)))
        rc = error_set(err, -ENOMEM, "out of memory");
    for (; rc == 0 && from->n_files < model->n_weights; from->n_files += rc == 0)
        rc = safetensors_open(&from->files[from->n_files], model->weight_fds[from->n_files], err);
    return rc != 0 ? rc : find_all(from, err);
}

static void close_source(struct source *from)
{
    while (from->n_files > 0)
        safetensors_close(&from->files[--from->n_files]);
    free(from->files);
    free(from->entries);
    model_free(&from->model);
}

static uint64_t tensor_bytes(const struct target *to, const struct model_tensor *tensor)
{
    return tensor->n * (to->bf16 ? sizeof(uint16_t) : sizeof(float));
}

/* Assigns tensors to files in order. A file is full when the next tensor would pass shard_bytes. */
static int plan_shards(struct target *to, const struct model *model, uint64_t shard_bytes, struct error *err)
{
    uint64_t bytes = 0;

    to->shard = calloc(model->n_tensors, sizeof *to->shard);
    to->block = malloc(BLOCK * sizeof *to->block);
    to->rounded = malloc(BLOCK * sizeof *to->rounded);
    if (!to->shard || !to->block || !to->rounded)
        return error_set(err, -ENOMEM, "out of memory");
    to->n_shards = 1;
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const uint64_t more = tensor_bytes(to, &model->tensors[t]);
        if (bytes > 0 && bytes + more > shard_bytes)
            to->n_shards++, bytes = 0;
        bytes += more;
        to->shard[t] = to->n_shards - 1;
    }
    return 0;
}

static void name_shard(char out[64], const struct target *to, uint32_t shard)
{
    if (to->n_shards == 1)
        snprintf(out, 64, "%s", CHECKPOINT_WEIGHTS);
    else
        snprintf(out, 64, "model-%05u-of-%05u.safetensors", shard + 1, to->n_shards);
}

static int write_tensor(struct safetensors_writer *writer, const struct source *from, const struct target *to,
                        uint32_t tensor, struct error *err)
{
    const struct safetensors_entry *entry = from->entries[tensor];
    const char *name = from->model.tensors[tensor].name;
    int rc = 0;

    for (uint64_t at = 0; rc == 0 && at < entry->n; at += BLOCK) {
        const uint64_t n = entry->n - at < BLOCK ? entry->n - at : BLOCK;
        rc = safetensors_read(to->block, entry, at, n, err);
        if (rc != 0)
            return rc;
        if (!to->bf16) {
            rc = safetensors_append(writer, to->block, n * sizeof *to->block, err);
            continue;
        }
        const size_t good = client_export_round(to->rounded, to->block, n);
        if (good < n)
            return error_set(err, -ERANGE, "%s: element %" PRIu64 " is %g, too large for bf16: export it in fp32", name,
                             at + good, (double)to->block[good]);
        rc = safetensors_append(writer, to->rounded, n * sizeof *to->rounded, err);
    }
    return rc;
}

static int write_shard(const struct source *from, const struct target *to, uint32_t shard, struct error *err)
{
    const struct model *model = &from->model;
    struct safetensors_plan *plan = calloc(model->n_tensors, sizeof *plan);
    struct safetensors_writer writer;
    char name[64];
    size_t n = 0;

    name_shard(name, to, shard);
    int fd = openat(to->directory_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int rc = fd < 0 ? error_set(err, -errno, "%s", strerror(errno)) : 0;
    if (rc == 0 && !plan)
        rc = error_set(err, -ENOMEM, "out of memory");
    for (uint32_t t = 0; rc == 0 && t < model->n_tensors; t++)
        if (to->shard[t] == shard)
            plan[n++] = (struct safetensors_plan){model->tensors[t].name,
                                                  model->tensors[t].n_dims,
                                                  {model->tensors[t].shape[0], model->tensors[t].shape[1]},
                                                  to->bf16 ? SAFETENSORS_BF16 : SAFETENSORS_F32};
    if (rc == 0)
        rc = safetensors_begin(&writer, fd, plan, n, err);
    for (uint32_t t = 0; rc == 0 && t < model->n_tensors; t++)
        if (to->shard[t] == shard)
            rc = write_tensor(&writer, from, to, t, err);
    if (rc == 0)
        rc = safetensors_end(&writer, err);
    if (fd >= 0)
        close(fd);
    free(plan);
    if (rc != 0)
        error_prefix(err, name);
    return rc;
}

/* Writes the index: the file of each tensor. */
static int write_index(const struct source *from, const struct target *to, struct error *err)
{
    const struct model *model = &from->model;
    json_t *map = json_object();
    uint64_t bytes = 0;
    char name[64];
    int rc = 0;

    for (uint32_t t = 0; t < model->n_tensors; t++) {
        name_shard(name, to, to->shard[t]);
        rc |= json_object_set_new(map, model->tensors[t].name, json_string(name));
        bytes += tensor_bytes(to, &model->tensors[t]);
    }
    json_t *index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map);
    char *text = rc == 0 && index ? json_dumps(index, JSON_INDENT(2)) : NULL;
    rc = text ? client_export_text(to->directory_fd, "model.safetensors.index.json", text, strlen(text), err)
              : error_set(err, -ENOMEM, "out of memory");
    json_decref(index);
    free(text);
    return rc;
}

int client_export_weights(const struct client_model *model, int directory_fd, bool bf16, uint64_t shard_bytes,
                          struct error *err)
{
    struct target to = {.directory_fd = directory_fd, .bf16 = bf16};
    struct source from;
    int rc = open_source(&from, model, err);

    if (rc == 0)
        rc = plan_shards(&to, &from.model, shard_bytes, err);
    if (rc == 0)
        rc = check_head(&from, &to, err);
    for (uint32_t shard = 0; rc == 0 && shard < to.n_shards; shard++)
        rc = write_shard(&from, &to, shard, err);
    if (rc == 0 && to.n_shards > 1)
        rc = write_index(&from, &to, err);
    free(to.shard);
    free(to.block);
    free(to.rounded);
    close_source(&from);
    return rc;
}
