/* Shards are planned before one is written (client/ask/export_items.h). Models are read, merged, averaged and rounded
 * by the block; what is passed goes from file to file. A finite number that the type would make infinite ends the
 * export: other programs would load the infinity without a word. */
#include "client/ask/export.h"

#include "client/ask/export_items.h"
#include "client/ask/merge.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/file/checkpoint_layout.h"
#include "proto/model/joined.h"
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
    struct export_items items;
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

static int target_init(struct target *to, const struct model *model, const struct client_export_form *form,
                       bool averages, struct error *err)
{
    to->block = malloc(BLOCK * sizeof *to->block);
    to->rounded = malloc(BLOCK * sizeof *to->rounded);
    if (averages)
        to->sum = malloc(BLOCK * sizeof *to->sum);
    if (!to->block || !to->rounded || (averages && !to->sum))
        return error_memory(err);
    return export_items_init(&to->items, model, form, err);
}

static void target_free(struct target *to)
{
    export_items_free(&to->items);
    free(to->block);
    free(to->sum);
    free(to->rounded);
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

/* Fixed tensors are in fp32, as transformers keeps them: in fewer bits other experts would be chosen. */
static enum safetensors_type export_weights_type(const struct target *to, const struct model_tensor *tensor)
{
    return tensor->fixed ? SAFETENSORS_F32 : to->type;
}

/* Appends the block's n values in the type, which are those of a tensor from element `at` on. */
static int append_block(struct safetensors_writer *writer, const struct target *to, enum safetensors_type type,
                        const char *name, uint64_t at, uint64_t n, struct error *err)
{
    if (type == SAFETENSORS_F32)
        return safetensors_append(writer, to->block, n * sizeof *to->block, err);
    const size_t good = client_export_round(to->rounded, to->block, n, type);
    if (good < n)
        return error_set(err, -ERANGE, "%s: element %" PRIu64 " is %g, too large for %s: give --dtype fp32", name,
                         at + good, (double)to->block[good], safetensors_type_name(type));
    return safetensors_append(writer, to->rounded, n * sizeof *to->rounded, err);
}

static int export_weights_write_tensor(struct safetensors_writer *writer, const struct sources *from,
                                       const struct target *to, uint32_t tensor, struct error *err)
{
    const struct model_tensor *written = &from->model.tensors[tensor];
    int rc = open_merges(from, to->merge ? tensor : MERGE_NONE, err);

    for (uint64_t at = 0, n; rc == 0 && at < written->n; at += n) {
        n = written->n - at < BLOCK ? written->n - at : BLOCK;
        rc = export_weights_read_block(from, to, tensor, at, n, err);
        if (rc == 0)
            rc = append_block(writer, to, export_weights_type(to, written), written->name, at, n, err);
    }
    close_merges(from);
    return rc;
}

/* The rows of each number's parts; a part's tensors stand one behind the other in the model. */
static int write_joined(struct safetensors_writer *writer, const struct sources *from, const struct target *to,
                        uint32_t first, struct error *err)
{
    const struct model_tensor *tensor = &from->model.tensors[first];
    struct joined joined;
    int rc = 0;

    joined_find(&joined, &from->model, tensor);
    for (uint32_t i = 0; rc == 0 && i < joined.n_parts * tensor->n_stacked; i++) {
        const uint32_t number = i / joined.n_parts, part = i % joined.n_parts;
        rc = export_weights_write_tensor(writer, from, to, first + part * tensor->n_stacked + number, err);
    }
    return rc;
}

static int write_passed(struct safetensors_writer *writer, const struct target *to,
                        const struct safetensors_entry *entry, struct error *err)
{
    int rc = 0;

    if (!entry->coded)
        return safetensors_append_file(writer, entry->file.fd, entry->offset, safetensors_entry_bytes(entry), err);
    for (uint64_t at = 0, n; rc == 0 && at < entry->n; at += n) {
        n = entry->n - at < BLOCK ? entry->n - at : BLOCK;
        rc = safetensors_read(to->block, entry, at, n, err);
        if (rc == 0)
            rc = append_block(writer, to, to->type, entry->name, at, n, err);
    }
    return rc;
}

static int write_constant(struct safetensors_writer *writer, const struct target *to, const struct export_item *item,
                          struct error *err)
{
    to->block[0] = item->constant;
    return append_block(writer, to, to->type, item->name, 0, 1, err);
}

/* Of an item that is copied its own entry says the rest; a constant has no dimension. */
static struct safetensors_plan plan_item(const struct export_item *item, const struct model *model,
                                         const struct target *to)
{
    struct safetensors_plan plan = {.name = item->name, .type = to->type};
    struct joined joined;

    if (item->joined && joined_find(&joined, model, &model->tensors[item->tensor])) {
        joined_shape(plan.shape, &joined, &model->tensors[item->tensor]);
        plan.n_dims = 3;
    } else if (item->tensor < EXPORT_CONSTANT) {
        plan.type = export_weights_type(to, &model->tensors[item->tensor]);
        plan.n_dims = model_file_shape(plan.shape, &model->tensors[item->tensor]);
    } else if (item->passed && item->passed->coded)
        for (; plan.n_dims < item->passed->n_dims; plan.n_dims++)
            plan.shape[plan.n_dims] = item->passed->shape[plan.n_dims];
    return plan;
}

static int begin_shard(struct safetensors_writer *writer, int fd, const struct export_item *const *items, size_t n,
                       const struct sources *from, const struct target *to, struct error *err)
{
    struct safetensors_plan *plan = calloc(n, sizeof *plan);
    const struct safetensors_entry **copied = calloc(n, sizeof *copied);
    int rc = plan && copied ? 0 : error_memory(err);

    for (size_t i = 0; rc == 0 && i < n; i++) {
        plan[i] = plan_item(items[i], &from->model, to);
        copied[i] = items[i]->passed && !items[i]->passed->coded ? items[i]->passed : NULL;
    }
    if (rc == 0)
        rc = safetensors_begin_copies(writer, fd, plan, copied, n, err);
    free(plan);
    free(copied);
    return rc;
}

static int write_items(int fd, const struct export_item *const *items, size_t n, const struct sources *from,
                       const struct target *to, struct error *err)
{
    struct safetensors_writer writer;
    int rc = begin_shard(&writer, fd, items, n, from, to, err);

    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = items[i]->tensor == EXPORT_PASSED     ? write_passed(&writer, to, items[i]->passed, err)
             : items[i]->tensor == EXPORT_CONSTANT ? write_constant(&writer, to, items[i], err)
             : items[i]->joined                    ? write_joined(&writer, from, to, items[i]->tensor, err)
                                : export_weights_write_tensor(&writer, from, to, items[i]->tensor, err);
    return rc ? rc : safetensors_end(&writer, err);
}

static int write_shard(const struct sources *from, const struct target *to, uint32_t shard, struct error *err)
{
    char name[EXPORT_SHARD_BYTES];
    size_t n;
    const struct export_item **items = export_items_of(&n, &to->items, shard);

    export_items_file(name, &to->items, shard);
    const int fd = openat(to->directory_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int rc = fd < 0 ? error_set(err, -errno, "%s", strerror(errno)) : items ? 0 : error_memory(err);
    if (rc == 0)
        rc = write_items(fd, items, n, from, to, err);
    if (fd >= 0)
        close(fd);
    free(items);
    if (rc != 0)
        error_prefix(err, name);
    return rc;
}

static int write_index(const struct target *to, struct error *err)
{
    char *text = export_items_index(&to->items);
    const int rc = text ? client_export_text(to->directory_fd, "model.safetensors.index.json", text, strlen(text), err)
                        : error_memory(err);

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
        rc = target_init(&to, &from.model, form, n_models > 1, err);
    for (size_t s = 0; rc == 0 && s < n_models; s++)
        rc = check_copies(&from.model, &from.list[s].weights, err);
    for (uint32_t shard = 0; rc == 0 && shard < to.items.n_shards; shard++)
        rc = write_shard(&from, &to, shard, err);
    if (rc == 0 && to.items.n_shards > 1)
        rc = write_index(&to, err);
    target_free(&to);
    close_sources(&from);
    return rc;
}
