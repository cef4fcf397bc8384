/* Which tensors change follows from the two models: pieces of a layer whose shapes differ. So no family is named here,
 * and a layer must list its pieces in the same order whatever its width. Layers without the feed-forward map (find_out)
 * are left to client_derive_write, which takes their tensors by name. */
#include "client/run/replace.h"

#include "client/model/file.h"
#include "client/run/derive.h"
#include "proto/model/family.h"
#include "proto/model/config/model_config_print.h"
#include "proto/model/wrapper.h"
#include "proto/operation/operation.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct replace {
    struct client_derive derive;
    bool without_moments;
    uint32_t n_blocks;
    uint32_t *widths;           /* (n_blocks) new ones; 0: the block's stays */
    json_t **guests;            /* (n_blocks) configs of other programs; NULL: the block's stays */
    struct derive_units *units; /* (n_blocks) */
};

/* ---- what is asked ---- */

static int refuse_option(const char *option, struct error *err)
{
    return error_set(err, -EDOM,
                     "--replace %.60s: it takes BLOCK=WIDTH or BLOCK=FILE, several with commas between them, and "
                     "moments=copy or moments=zero at the end",
                     option);
}

/* What one entry of the option gives a block: a width, or a config's file. */
struct entry {
    uint64_t block, width;
    bool has_width; /* else value is a file */
    char value[PATH_MAX];
};

/* Reads the entry at *at, which moves behind it. -EDOM: there is none. */
static int replace_read_entry(struct entry *out, const char **at)
{
    const char *const from = *at, *const value = from + strspn(from, "0123456789") + 1;
    const size_t n = value[-1] == '=' ? strcspn(value, ",") : 0, n_digits = n ? strspn(value, "0123456789") : 0;

    if (value - from < 2 || n == 0 || n >= sizeof out->value)
        return -EDOM;
    out->block = strtoull(from, NULL, 10); /* what is too large becomes the largest */
    out->width = strtoull(value, NULL, 10);
    out->has_width = n_digits == n;
    snprintf(out->value, sizeof out->value, "%.*s", (int)n, value);
    *at = value + n;
    return 0;
}

/* A width that is there already is refused, as is a block that is named twice: either is a slip of the pen. */
static int set_width(struct replace *r, const struct model_config *config, const struct entry *entry, struct error *err)
{
    const uint32_t block = (uint32_t)entry->block;

    if (!model_widths_key(config->family))
        return error_set(err, -EDOM, "--replace: %s models have no width of feed-forward layers",
                         config->family->model_type);
    if (model_guest_of(config, block))
        return error_set(err, -EDOM,
                         "--replace %u=%.20s: that block has a config of its own (" MODEL_GUESTS_KEY
                         "): give it another one, as in %u=FILE",
                         block, entry->value, block);
    if (entry->width < 1 || entry->width > MODEL_WIDEST)
        return error_set(err, -EDOM, "--replace %u=%.20s: a width is from 1 to %d", block, entry->value, MODEL_WIDEST);
    if (model_width_of(config, block) == entry->width)
        return error_set(err, -EDOM, "--replace %u=%.20s: that block has this width already", block, entry->value);
    r->widths[block] = (uint32_t)entry->width;
    return 0;
}

/* The file's object becomes the block's config. */
static int replace_read_guest(struct replace *r, const struct model_config *config, const struct entry *entry,
                              struct error *err)
{
    char *text = NULL, *inner = NULL, note[WRAPPER_NOTE_BYTES];
    json_error_t why;
    size_t n = 0;
    const int fd = client_file_open(entry->value, err);
    int rc = fd < 0 ? fd : client_file_read(&text, &n, fd, entry->value, err);

    if (!rc && (inner = wrapper_text_config(note, text, n)))
        n = strlen(inner);
    if (!rc && !(r->guests[entry->block] = json_loadb(inner ? inner : text, n, JSON_REJECT_DUPLICATES, &why)))
        rc = error_set(err, -EINVAL, "%s: not JSON at line %d, column %d: %s", entry->value, why.line, why.column,
                       why.text);
    else if (!rc && (rc = model_guest_check(config, r->guests[entry->block], err)))
        error_prefix(err, entry->value);
    free(inner);
    free(text);
    if (fd >= 0)
        close(fd);
    if (rc)
        error_prefix(err, "--replace");
    return rc;
}

static int set_entry(struct replace *r, const struct model_config *config, const struct entry *entry, struct error *err)
{
    if (entry->block >= r->n_blocks)
        return error_set(err, -EDOM, "--replace %" PRIu64 "=%.60s: the model has %u blocks, 0 to %u", entry->block,
                         entry->value, r->n_blocks, r->n_blocks - 1);
    if (r->widths[entry->block] || r->guests[entry->block])
        return error_set(err, -EDOM, "--replace names block %" PRIu64 " twice", entry->block);
    return entry->has_width ? set_width(r, config, entry, err) : replace_read_guest(r, config, entry, err);
}

static int replace_read_option(struct replace *r, const struct model_config *config, const char *option,
                               struct error *err)
{
    const char *at = option;
    struct entry entry;
    int rc = 0;

    r->n_blocks = config->n_layers;
    r->widths = calloc(r->n_blocks, sizeof *r->widths);
    r->guests = calloc(r->n_blocks, sizeof *r->guests);
    r->units = calloc(r->n_blocks, sizeof *r->units);
    if (!r->widths || !r->guests || !r->units)
        return error_memory(err);
    do {
        if (replace_read_entry(&entry, &at))
            return refuse_option(option, err);
        rc = set_entry(r, config, &entry, err);
    } while (!rc && at[0] == ',' && at[1] != 'm' && at++);
    r->without_moments = strcmp(at, ",moments=zero") == 0;
    return rc || !*at || r->without_moments || strcmp(at, ",moments=copy") == 0 ? rc : refuse_option(option, err);
}

/* ---- the new model ---- */

/* Sets what is asked in a config.json. All blocks' widths are written if one changes, as the key is a list. */
static int change_config(const struct replace *r, json_t *object, const struct model_config *config)
{
    uint32_t *widths = calloc(r->n_blocks, sizeof *widths);
    bool has_widths = false;
    int rc = widths ? 0 : -ENOMEM;

    for (uint32_t b = 0; !rc && b < r->n_blocks; b++) {
        has_widths |= r->widths[b] > 0;
        widths[b] = r->widths[b] ? r->widths[b] : model_width_of(config, b);
        rc = r->guests[b] ? model_guests_set(object, b, r->guests[b]) : 0;
    }
    if (!rc && has_widths)
        rc = model_widths_set(object, widths, r->n_blocks);
    free(widths);
    return rc;
}

/* The config's text; owned. -ENOMEM, -EDOM. */
static int replace_config(char **text, const struct replace *r, const struct model_config *config, struct error *err)
{
    json_t *object = json_loadb(r->derive.old_config, r->derive.n_old_config, JSON_REJECT_DUPLICATES, NULL);
    const int rc = object ? change_config(r, object, config) : -ENOMEM;

    *text = rc ? NULL : model_config_text(object);
    json_decref(object);
    if (rc == -E2BIG)
        return error_set(err, -EDOM, "--replace: blocks of more than %d other configs: use fewer", MODEL_GUESTS);
    return *text ? 0 : error_memory(err);
}

/* The option is read once the old config is known, which says how many blocks there are. */
static int replace_open_models(struct replace *r, const char *option, struct error *err)
{
    struct client_derive *d = &r->derive;
    struct model_config config;
    char *text;
    int rc = model_config_parse(&config, d->old_config, d->n_old_config, err);

    if (!rc)
        rc = replace_read_option(r, &config, option, err);
    if (!rc)
        rc = replace_config(&text, r, &config, err);
    return rc ? rc : client_derive_models(d, &config, text, err);
}

/* ---- which units are kept ---- */

struct candidate {
    double norm; /* squared, of the weights out */
    uint32_t unit;
};

/* The largest norm first; of equal ones, the lower unit. */
static int by_norm(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    return x->norm != y->norm ? (x->norm < y->norm ? 1 : -1) : x->unit < y->unit ? -1 : 1;
}

static int by_unit(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* Adds the squares of a matrix's elements to its units', rows or columns. */
static int add_squares(struct candidate *candidates, struct client_derive *d, const struct safetensors *from,
                       const struct model_tensor *tensor, bool columns, struct error *err)
{
    const struct safetensors_entry *entry = safetensors_find(from, tensor->name);
    const uint64_t width = tensor->shape[1], most = DERIVE_CHUNK / (width * sizeof(float));
    float *const rows = (float *)(void *)d->chunk;
    int rc = 0;

    if (!entry || entry->type != SAFETENSORS_F32 || entry->n != tensor->n)
        rc = error_set(err, -EINVAL, "the checkpoint has no fp32 tensor %s of %" PRIu64 " numbers", tensor->name,
                       tensor->n);
    for (uint64_t first = 0, n; !rc && first < tensor->shape[0]; first += n) {
        n = tensor->shape[0] - first < most ? tensor->shape[0] - first : most;
        rc = client_watch_ask(d->watch, err);
        if (!rc)
            rc = file_read(&entry->file, rows, n * width * sizeof *rows, entry->offset + first * width * sizeof *rows,
                           err);
        for (uint64_t i = 0; !rc && i < n * width; i++)
            candidates[columns ? i % width : first + i / width].norm += (double)rows[i] * (double)rows[i];
    }
    return rc;
}

/* All units of a layer that is widened, and of one that is narrowed those with the largest norms. out: its weights
 * out. */
static int choose_units(struct replace *r, uint32_t block, const struct safetensors *from, uint32_t out, bool columns,
                        struct error *err)
{
    struct derive_units *units = &r->units[block];
    const struct model_tensor *tensor = &r->derive.old.tensors[out];
    const uint32_t n = model_width_of(&r->derive.old.config, block);
    struct candidate *candidates = calloc(n, sizeof *candidates);
    int rc = 0;

    units->n = r->widths[block];
    units->n_kept = n < units->n ? n : units->n;
    units->kept = calloc(units->n_kept, sizeof *units->kept);
    if (!candidates || !units->kept)
        rc = error_memory(err);
    for (uint32_t i = 0; !rc && i < n; i++)
        candidates[i].unit = i;
    if (!rc && n > units->n) {
        rc = add_squares(candidates, &r->derive, from, tensor, columns, err);
        qsort(candidates, n, sizeof *candidates, by_norm);
    }
    for (uint32_t i = 0; !rc && i < units->n_kept; i++)
        units->kept[i] = candidates[i].unit;
    if (!rc)
        qsort(units->kept, units->n_kept, sizeof *units->kept, by_unit);
    free(candidates);
    return rc;
}

/* ---- which tensor comes from which ---- */

/* The linear map of a program by which the feed-forward layer's units go out: its input is as wide as the layer, as it
 * differs between the old and the new program. NULL: none. */
static const struct program_operation *find_out(const struct program *old, const struct program *new)
{
    for (int i = 0; i < new->n_operations; i++) {
        const struct program_operation *op = &new->operations[i];
        if (op->kind == &operation_linear && new->values[op->inputs[0]].columns != old->values[op->inputs[0]].columns)
            return op;
    }
    return NULL;
}

/* A layer's tensors, if it has the feed-forward layer. Its own are those of another shape, which get the chosen units,
 * and what the map out adds to its result: a bias has no units. */
static int replace_take_layer(struct replace *r, const struct model_layer *to, const struct model_layer *from,
                              const struct safetensors *file, struct error *err)
{
    const struct model *old = &r->derive.old, *model = &r->derive.model;
    const struct model_unit *unit = &model->units[model->visits[to->first_visit]],
                            *source = &old->units[old->visits[from->first_visit]];
    const struct program_operation *out = find_out(&from->program->program, &to->program->program);
    int rc = 0;

    if (!out)
        return 0;
    for (int p = 0; !rc && p < (int)unit->n_pieces; p++) {
        const int slot = model->pieces[unit->first_piece + (uint32_t)p].slot;
        const uint32_t t = model->pieces[unit->first_piece + (uint32_t)p].tensor,
                       s = old->pieces[source->first_piece + (uint32_t)p].tensor;
        const struct model_tensor *tensor = &model->tensors[t], *old_tensor = &old->tensors[s];
        const bool rows = tensor->shape[0] != old_tensor->shape[0], columns = tensor->shape[1] != old_tensor->shape[1];
        const bool is_own = rows || columns || (slot >= out->tensor && slot < out->tensor + out->n_tensors);
        r->derive.origins[t] = (struct derive_origin){.tensor = s, .without_moments = is_own && r->without_moments};
        if (!rows && !columns)
            continue;
        r->derive.origins[t] = (struct derive_origin){.tensor = s,
                                                      .without_moments = r->without_moments,
                                                      .units = &r->units[to->index],
                                                      .columns = columns,
                                                      .new_are_zeros = slot == out->tensor};
        if (slot == out->tensor)
            rc = choose_units(r, to->index, file, s, columns, err);
    }
    return rc;
}

/* A layer of another program. */
static void take_fresh(struct replace *r, const struct model_layer *layer)
{
    const struct model *model = &r->derive.model;
    const struct model_unit *unit = &model->units[model->visits[layer->first_visit]];

    for (uint32_t p = 0; p < unit->n_pieces; p++)
        r->derive.origins[model->pieces[unit->first_piece + p].tensor] =
            (struct derive_origin){.fresh = true, .without_moments = true};
}

/* A use of client_derive_read. */
static int replace_find_origins(struct client_derive *d, const struct safetensors *from, void *data, struct error *err)
{
    struct replace *r = data;
    const struct model_layer *const first = &d->model.layers[d->model.first_block];
    int rc = 0;

    for (const struct model_layer *l = first; !rc && l < first + d->model.n_block_layers; l++)
        if (r->guests[l->index])
            take_fresh(r, l);
        else if (r->widths[l->index])
            rc = replace_take_layer(r, l, client_derive_layer(&d->old, l->index, l->part), from, err);
    return rc;
}

int client_replace(char replaced[PATH_MAX], const char *folder, const struct eps_train_options *in,
                   const struct client_watch *watch, struct error *note, struct error *err)
{
    struct replace r = {.derive = {.option = "--replace", .folder = folder, .watch = watch}};
    int rc = client_derive_open(&r.derive, in, err);

    if (!rc)
        rc = replace_open_models(&r, in->replace, err);
    if (!rc)
        rc = client_derive_read(&r.derive, CHECKPOINT_WEIGHTS, replace_find_origins, &r, err);
    if (!rc)
        rc = client_derive_write(replaced, &r.derive, in, err);
    client_derive_say(note, &r.derive);
    client_derive_close(&r.derive);
    for (uint32_t b = 0; b < r.n_blocks; b++) {
        free(r.units ? r.units[b].kept : NULL);
        json_decref(r.guests ? r.guests[b] : NULL);
    }
    free(r.units);
    free(r.guests);
    free(r.widths);
    return rc;
}
