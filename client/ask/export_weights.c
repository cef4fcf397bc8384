/* Shards are planned before one is written, as each name has their number in it. Models are read, merged, averaged and
 * rounded by the block. A finite number that the type would make infinite ends the export: other programs would load
 * the infinity without a word. */
#include "client/ask/export.h"

#include "client/ask/merge.h"
#include "proto/model/checkpoint.h"
#include "proto/model/checkpoint_layout.h"
#include "proto/model/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 1 << 20 /* elements */ };
#define ELSEWHERE UINT32_MAX

/* The models of which the mean is written; that of one model is the model. */
struct sources {
    struct model model; /* the first, whose tensors all have */
    size_t n;
    struct source {
        struct weights weights;
        struct client_merge merge; /* of the tensor that is being written */
    } * list;                      /* (n) owned */
};

struct target {
    int directory_fd;
    enum safetensors_type type; /* F32, F16 or BF16 */
    bool merge;
    uint32_t *shard; /* (n_tensors) file of each tensor, from 0; ELSEWHERE: none */
    uint32_t n_shards;
    float *block;      /* (BLOCK) */
    double *sum;       /* (BLOCK) of several models */
    uint16_t *rounded; /* (BLOCK) */
};

static uint16_t to_fp16(float value)
{
    const uint32_t pattern = number_pattern(value), sign = pattern >> 16 & 0x8000, magnitude = pattern & 0x7fffffff;

    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    /* Below 2^-14 a step is 2^-24, as it is of fp32 from 0.5 on: the addition rounds. */
    if (magnitude < 0x38800000)
        return (uint16_t)(sign | (number_pattern(number_from_pattern(magnitude) + 0.5f) - 0x3f000000));
    /* The exponent's bias is 15, not 127; 13 bits of the mantissa go. */
    const uint32_t half = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    return (uint16_t)(sign | (half < 0x7c00 ? half : 0x7c00));
}

size_t client_export_round(uint16_t *out, const float *values, size_t n, enum safetensors_type type)
{
    const bool fp16 = type == SAFETENSORS_F16;
    const uint16_t infinity = fp16 ? 0x7c00 : 0x7f80;

    for (size_t i = 0; i < n; i++) {
        out[i] = fp16 ? to_fp16(values[i]) : number_to_bf16(values[i]);
        if ((out[i] & 0x7fff) == infinity && isfinite(values[i]))
            return i;
    }
    return n;
}

/* Copies of the table of tokens, which are left out, must equal it. */
static int check_copies(const struct model *model, const struct weights *from, struct error *err)
{
    int rc = 0;

    for (unsigned copy = 0; rc == 0 && copy < WEIGHTS_COPIES; copy++) {
        bool differs;
        rc = weights_copy_differs(&differs, from, model, copy, err);
        if (rc == 0 && differs)
            rc = weights_refuse_copy(model, copy, err);
    }
    return rc;
}

/* Each fits its own config, so one that does not fit the first's is another model. */
static int export_weights_open_source(struct sources *from, size_t i, const struct client_model *models,
                                      struct error *err)
{
    int rc = weights_open(&from->list[i].weights, &from->model, models[i].weights, models[i].n_weights, NULL, err);

    if (rc == -EINVAL && i > 0)
        rc = error_set(err, rc, "its tensors are not those of %s, so there is no mean", models[0].name);
    if (rc != 0 && from->n > 1)
        error_prefix(err, models[i].name);
    return rc;
}

/* Undo: close_sources, also after a failure. */
static int open_sources(struct sources *from, const struct client_model *models, size_t n, struct error *err)
{
    *from = (struct sources){.list = calloc(n, sizeof *from->list), .n = n};
    int rc = from->list ? model_init(&from->model, &models->config, err) : error_memory(err);

    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = export_weights_open_source(from, i, models, err);
    return rc;
}

static void close_sources(struct sources *from)
{
    for (size_t i = 0; from->list && i < from->n; i++)
        weights_close(&from->list[i].weights);
    free(from->list);
    model_free(&from->model);
}

static uint64_t tensor_bytes(const struct target *to, const struct model_tensor *tensor)
{
    return tensor->n * (to->type == SAFETENSORS_F32 ? sizeof(float) : sizeof(uint16_t));
}

/* An adapter alone has what its base has not; merged, there is no tensor of an adapter any more. */
static bool is_written(const struct target *to, const struct model_tensor *tensor)
{
    return to->merge ? !tensor->adapts : tensor->saved;
}

/* Assigns tensors to files in order. A file is full when the next tensor would pass shard_bytes; adapters have one, as
 * PEFT reads no other. */
static int plan_shards(struct target *to, const struct model *model, uint64_t shard_bytes, bool averages,
                       struct error *err)
{
    uint64_t bytes = 0;

    to->shard = calloc(model->n_tensors, sizeof *to->shard);
    to->block = malloc(BLOCK * sizeof *to->block);
    to->rounded = malloc(BLOCK * sizeof *to->rounded);
    if (averages)
        to->sum = malloc(BLOCK * sizeof *to->sum);
    if (!to->shard || !to->block || !to->rounded || (averages && !to->sum))
        return error_memory(err);
    to->n_shards = 1;
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const uint64_t more = tensor_bytes(to, &model->tensors[t]);
        if (!is_written(to, &model->tensors[t])) {
            to->shard[t] = ELSEWHERE;
            continue;
        }
        if (bytes > 0 && bytes + more > shard_bytes && (to->merge || model->config.adapter.rank == 0))
            to->n_shards++, bytes = 0;
        bytes += more;
        to->shard[t] = to->n_shards - 1;
    }
    return 0;
}

static void name_shard(char out[64], const struct model *model, const struct target *to, uint32_t shard)
{
    if (to->n_shards == 1)
        snprintf(out, 64, "%s", to->merge ? CHECKPOINT_WEIGHTS : checkpoint_weights_name(model));
    else
        snprintf(out, 64, "model-%05u-of-%05u.safetensors", shard + 1, to->n_shards);
}

/* Elements first .. first+n-1 of the tensor, the mean of the models', into the block. Several are summed in double
 * precision and rounded once. */
static int export_weights_read_block(const struct sources *from, const struct target *to, uint32_t tensor,
                                     uint64_t first, uint64_t n, struct error *err)
{
    int rc = 0;

    for (size_t s = 0; rc == 0 && s < from->n; s++) {
        rc = safetensors_read(to->block, from->list[s].weights.entries[tensor], first, n, err);
        if (rc != 0)
            break;
        client_merge_add(&from->list[s].merge, to->block, first, n);
        for (uint64_t i = 0; to->sum && i < n; i++)
            to->sum[i] = (s > 0 ? to->sum[i] : 0) + to->block[i];
    }
    for (uint64_t i = 0; rc == 0 && to->sum && i < n; i++)
        to->block[i] = (float)(to->sum[i] / (double)from->n);
    return rc;
}

static int open_merges(const struct sources *from, uint32_t tensor, struct error *err)
{
    int rc = 0;

    for (size_t s = 0; rc == 0 && s < from->n; s++)
        rc = client_merge_open(&from->list[s].merge, &from->model, &from->list[s].weights, tensor, err);
    return rc;
}

static void close_merges(const struct sources *from)
{
    for (size_t s = 0; s < from->n; s++)
        client_merge_close(&from->list[s].merge);
}

static int export_weights_write_tensor(struct safetensors_writer *writer, const struct sources *from,
                                       const struct target *to, uint32_t tensor, struct error *err)
{
    const struct model_tensor *written = &from->model.tensors[tensor];
    int rc = open_merges(from, to->merge ? tensor : MERGE_NONE, err);

    for (uint64_t at = 0; rc == 0 && at < written->n; at += BLOCK) {
        const uint64_t n = written->n - at < BLOCK ? written->n - at : BLOCK;
        rc = export_weights_read_block(from, to, tensor, at, n, err);
        if (rc != 0)
            break;
        if (to->type == SAFETENSORS_F32) {
            rc = safetensors_append(writer, to->block, n * sizeof *to->block, err);
            continue;
        }
        const size_t good = client_export_round(to->rounded, to->block, n, to->type);
        if (good < n)
            rc = error_set(err, -ERANGE, "%s: element %" PRIu64 " is %g, too large for %s: give --dtype fp32",
                           written->name, at + good, (double)to->block[good], safetensors_type_name(to->type));
        else
            rc = safetensors_append(writer, to->rounded, n * sizeof *to->rounded, err);
    }
    close_merges(from);
    return rc;
}

static int write_shard(const struct sources *from, const struct target *to, uint32_t shard, struct error *err)
{
    const struct model *model = &from->model;
    struct safetensors_plan *plan = calloc(model->n_tensors, sizeof *plan);
    char(*names)[CHECKPOINT_TENSOR_BYTES] = calloc(model->n_tensors, sizeof *names);
    struct safetensors_writer writer;
    char name[64];
    size_t n = 0;

    name_shard(name, model, to, shard);
    int fd = openat(to->directory_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int rc = fd < 0 ? error_set(err, -errno, "%s", strerror(errno)) : 0;
    if (rc == 0 && (!plan || !names))
        rc = error_memory(err);
    for (uint32_t t = 0; rc == 0 && t < model->n_tensors; t++)
        if (to->shard[t] == shard) {
            plan[n] = (struct safetensors_plan){.name = to->merge ? model->tensors[t].name
                                                                  : checkpoint_tensor_name(names[t], model,
                                                                                           &model->tensors[t]),
                                                .type = to->type};
            plan[n].n_dims = model_file_shape(plan[n].shape, &model->tensors[t]);
            n++;
        }
    if (rc == 0)
        rc = safetensors_begin(&writer, fd, plan, n, err);
    for (uint32_t t = 0; rc == 0 && t < model->n_tensors; t++)
        if (to->shard[t] == shard)
            rc = export_weights_write_tensor(&writer, from, to, t, err);
    if (rc == 0)
        rc = safetensors_end(&writer, err);
    if (fd >= 0)
        close(fd);
    free(plan);
    free(names);
    if (rc != 0)
        error_prefix(err, name);
    return rc;
}

/* Writes the index: the file of each tensor. */
static int write_index(const struct model *model, const struct target *to, struct error *err)
{
    json_t *map = json_object();
    uint64_t bytes = 0;
    char name[64];
    int rc = 0;

    for (uint32_t t = 0; t < model->n_tensors; t++) {
        if (to->shard[t] == ELSEWHERE)
            continue;
        name_shard(name, model, to, to->shard[t]);
        rc |= json_object_set_new(map, model->tensors[t].name, json_string(name));
        bytes += tensor_bytes(to, &model->tensors[t]);
    }
    json_t *index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map);
    char *text = rc == 0 && index ? json_dumps(index, JSON_INDENT(2)) : NULL;
    rc = text ? client_export_text(to->directory_fd, "model.safetensors.index.json", text, strlen(text), err)
              : error_memory(err);
    json_decref(index);
    free(text);
    return rc;
}

int client_export_weights(const struct client_model *models, size_t n_models, int directory_fd,
                          const struct client_export_form *form, struct error *err)
{
    struct target to = {.directory_fd = directory_fd, .type = form->type, .merge = form->merge};
    struct sources from;
    int rc = open_sources(&from, models, n_models, err);

    if (rc == 0)
        rc = plan_shards(&to, &from.model, form->shard_bytes, n_models > 1, err);
    for (size_t s = 0; rc == 0 && s < n_models; s++)
        rc = check_copies(&from.model, &from.list[s].weights, err);
    for (uint32_t shard = 0; rc == 0 && shard < to.n_shards; shard++)
        rc = write_shard(&from, &to, shard, err);
    if (rc == 0 && to.n_shards > 1)
        rc = write_index(&from.model, &to, err);
    free(to.shard);
    free(to.block);
    free(to.sum);
    free(to.rounded);
    close_sources(&from);
    return rc;
}
