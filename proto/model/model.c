#include "proto/model/model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A table that is cut by rows is cut into units about as large as a block's, since a device needs room for that anyway,
 * but never into crumbs: a transfer below a few MiB costs more in messages than in bytes. Nor does a unit of the
 * vocabulary have more rows than make 8 MiB of logits for 256 tokens: enough for a product to run at full speed. */
enum { LEAST_CUT = 4 << 20 /* bytes */, MOST_ROWS = 8192 };

static const char prefix[] = "transformer.";

/* Rows of one unit when a table (rows, width) is cut evenly. */
static uint64_t rows_per_unit(const struct model_config *c, uint64_t rows, uint64_t most_rows)
{
    const uint64_t width = c->width, inner = c->inner_width;
    const uint64_t block = 4 * width * width + 2 * width * inner + 9 * width + inner;
    const uint64_t target = 4 * block > LEAST_CUT ? 4 * block : LEAST_CUT;
    const uint64_t by_bytes = (4 * rows * width + target - 1) / target, by_rows = (rows + most_rows - 1) / most_rows;
    const uint64_t n = by_bytes > by_rows ? by_bytes : by_rows;

    return (rows + n - 1) / n;
}

/* Positions have no logits. */
static uint64_t vocabulary_per_unit(const struct model_config *c)
{
    return rows_per_unit(c, c->vocabulary, MOST_ROWS);
}

static uint64_t positions_per_unit(const struct model_config *c)
{
    return rows_per_unit(c, c->n_positions, c->n_positions);
}

static uint32_t count_units(uint64_t rows, uint64_t each)
{
    return (uint32_t)((rows + each - 1) / each);
}

static int allocate(struct model *m)
{
    const struct model_config *c = &m->config;
    const uint32_t n_wte = count_units(c->vocabulary, vocabulary_per_unit(c));
    const uint32_t n_wpe = count_units(c->n_positions, positions_per_unit(c));
    const uint32_t n_tensors = 12 * c->n_layers + 4 + !c->tied;
    const uint32_t n_cut = n_wte + n_wpe + (c->tied ? 0 : n_wte);

    m->tensors = calloc(n_tensors, sizeof *m->tensors);
    m->pieces = calloc(n_cut + BLOCK_PIECES * c->n_layers + 2, sizeof *m->pieces);
    m->units = calloc(n_cut + c->n_layers + 1, sizeof *m->units);
    m->layers = calloc(c->n_layers + 3, sizeof *m->layers);
    m->visits = calloc(2 * n_wte + n_wpe + c->n_layers + 1, sizeof *m->visits);
    m->visit_layers = calloc(2 * n_wte + n_wpe + c->n_layers + 1, sizeof *m->visit_layers);
    return m->tensors && m->pieces && m->units && m->layers && m->visits && m->visit_layers ? 0 : -ENOMEM;
}

/* The tensor's index. columns 0: a vector. */
static uint32_t add_tensor(struct model *m, const char *name, uint64_t rows, uint64_t columns, enum model_init init)
{
    struct model_tensor *t = &m->tensors[m->n_tensors];

    snprintf(t->name, sizeof t->name, "%s", name);
    t->n_dims = columns ? 2 : 1;
    t->shape[0] = rows;
    t->shape[1] = columns ? columns : 1;
    t->n = t->shape[0] * t->shape[1];
    t->decays = columns != 0;
    t->init = init;
    t->deviation = init == MODEL_INIT_NORMAL ? m->config.initializer_range : 0;
    m->n_parameters += t->n;
    return m->n_tensors++;
}

static void open_unit(struct model *m, uint64_t kind, uint64_t layer, uint64_t chunk)
{
    m->units[m->n_units] =
        (struct model_unit){.id = kind << 56 | layer << 24 | chunk, .first_piece = m->n_pieces, .offset = m->segment_n};
}

static void add_piece(struct model *m, uint32_t tensor, uint64_t first_row, uint64_t n_rows)
{
    struct model_unit *unit = &m->units[m->n_units];
    const uint64_t n = n_rows * m->tensors[tensor].shape[1];

    m->pieces[m->n_pieces++] = (struct model_piece){tensor, first_row, n_rows, unit->n, n};
    unit->n_pieces++;
    unit->n += n;
}

static void close_unit(struct model *m)
{
    struct model_unit *unit = &m->units[m->n_units++];

    unit->n_slices = (uint32_t)((unit->n + MODEL_SLICE - 1) / MODEL_SLICE);
    m->segment_n += model_rounded(unit->n);
    if (m->largest_unit < unit->n)
        m->largest_unit = unit->n;
}

static void open_layer(struct model *m, enum model_layer_kind kind, uint32_t index)
{
    m->layers[m->n_layers++] = (struct model_layer){.kind = kind, .index = index, .first_visit = m->n_visits};
}

/* By the layer that was opened last. */
static void visit(struct model *m, uint32_t unit)
{
    m->visits[m->n_visits] = unit;
    m->visit_layers[m->n_visits++] = m->n_layers - 1;
    m->layers[m->n_layers - 1].n_visits++;
    m->units[unit].n_visits++;
}

/* One tensor in units of its own, each visited by the layer that is open; table tells apart those of one kind. */
static void add_table(struct model *m, uint32_t tensor, enum model_layer_kind kind, uint32_t table, uint64_t each)
{
    const uint64_t rows = m->tensors[tensor].shape[0];

    for (uint64_t first = 0, chunk = 0; first < rows; first += each, chunk++) {
        open_unit(m, kind, table, chunk);
        add_piece(m, tensor, first, rows - first < each ? rows - first : each);
        close_unit(m);
        visit(m, m->n_units - 1);
    }
}

static void add_block(struct model *m, uint32_t index)
{
    const struct model_config *c = &m->config;
    const uint64_t width = c->width, inner = c->inner_width;
    const struct {
        const char *name;
        uint64_t rows, columns;
        enum model_init init;
    } parts[BLOCK_PIECES] = {
        [BLOCK_NORM_1_WEIGHT] = {"ln_1.weight", width, 0, MODEL_INIT_ONE},
        [BLOCK_NORM_1_BIAS] = {"ln_1.bias", width, 0, MODEL_INIT_ZERO},
        [BLOCK_QKV_WEIGHT] = {"attn.c_attn.weight", width, 3 * width, MODEL_INIT_NORMAL},
        [BLOCK_QKV_BIAS] = {"attn.c_attn.bias", 3 * width, 0, MODEL_INIT_ZERO},
        [BLOCK_ATTENTION_WEIGHT] = {"attn.c_proj.weight", width, width, MODEL_INIT_NORMAL},
        [BLOCK_ATTENTION_BIAS] = {"attn.c_proj.bias", width, 0, MODEL_INIT_ZERO},
        [BLOCK_NORM_2_WEIGHT] = {"ln_2.weight", width, 0, MODEL_INIT_ONE},
        [BLOCK_NORM_2_BIAS] = {"ln_2.bias", width, 0, MODEL_INIT_ZERO},
        [BLOCK_UP_WEIGHT] = {"mlp.c_fc.weight", width, inner, MODEL_INIT_NORMAL},
        [BLOCK_UP_BIAS] = {"mlp.c_fc.bias", inner, 0, MODEL_INIT_ZERO},
        [BLOCK_DOWN_WEIGHT] = {"mlp.c_proj.weight", inner, width, MODEL_INIT_NORMAL},
        [BLOCK_DOWN_BIAS] = {"mlp.c_proj.bias", width, 0, MODEL_INIT_ZERO},
    };

    open_layer(m, MODEL_BLOCK, index);
    open_unit(m, MODEL_BLOCK, index, 0);
    for (int i = 0; i < BLOCK_PIECES; i++) {
        char name[sizeof m->tensors->name];
        snprintf(name, sizeof name, "%sh.%u.%s", prefix, index, parts[i].name);
        uint32_t tensor = add_tensor(m, name, parts[i].rows, parts[i].columns, parts[i].init);
        /* Both write to the residual stream, which 2 n_layers of them add up on (GPT-2, section 2.3). */
        if (i == BLOCK_ATTENTION_WEIGHT || i == BLOCK_DOWN_WEIGHT)
            m->tensors[tensor].deviation = (float)(c->initializer_range / sqrt(2.0 * c->n_layers));
        add_piece(m, tensor, 0, parts[i].rows);
    }
    close_unit(m);
    visit(m, m->n_units - 1);
}

static void add_norm(struct model *m)
{
    const uint64_t width = m->config.width;

    open_layer(m, MODEL_NORM, 0);
    open_unit(m, MODEL_NORM, 0, 0);
    add_piece(m, add_tensor(m, "transformer.ln_f.weight", width, 0, MODEL_INIT_ONE), 0, width);
    add_piece(m, add_tensor(m, "transformer.ln_f.bias", width, 0, MODEL_INIT_ZERO), 0, width);
    close_unit(m);
    visit(m, m->n_units - 1);
}

int model_init(struct model *out, const struct model_config *config, struct error *err)
{
    struct model *m = out;

    *m = (struct model){0};
    int rc = model_config_check(config, err);
    if (rc != 0)
        return rc;
    m->config = *config;
    if (allocate(m) != 0) {
        model_free(m);
        return error_set(err, -ENOMEM, "no memory for the description of a model of %u layers", config->n_layers);
    }

    const uint64_t width = config->width;
    open_layer(m, MODEL_EMBEDDING, 0);
    uint32_t wte = add_tensor(m, "transformer.wte.weight", config->vocabulary, width, MODEL_INIT_NORMAL);
    uint32_t wpe = add_tensor(m, "transformer.wpe.weight", config->n_positions, width, MODEL_INIT_NORMAL);
    add_table(m, wte, MODEL_EMBEDDING, 0, vocabulary_per_unit(config));
    const uint32_t n_wte = m->n_units;
    add_table(m, wpe, MODEL_EMBEDDING, 1, positions_per_unit(config));
    for (uint32_t i = 0; i < config->n_layers; i++)
        add_block(m, i);
    add_norm(m);
    open_layer(m, MODEL_HEAD, 0);
    if (config->tied)
        for (uint32_t unit = 0; unit < n_wte; unit++)
            visit(m, unit);
    else
        add_table(m, add_tensor(m, "lm_head.weight", config->vocabulary, width, MODEL_INIT_NORMAL), MODEL_HEAD, 0,
                  vocabulary_per_unit(config));
    return 0;
}

void model_free(struct model *model)
{
    free(model->tensors);
    free(model->pieces);
    free(model->units);
    free(model->layers);
    free(model->visits);
    free(model->visit_layers);
    *model = (struct model){0};
}

const struct model_tensor *model_find(const struct model *model, const char *name)
{
    const size_t n = strlen(prefix);

    for (uint32_t i = 0; i < model->n_tensors; i++) {
        const struct model_tensor *t = &model->tensors[i];
        if (strcmp(t->name, name) == 0 || (strncmp(t->name, prefix, n) == 0 && strcmp(t->name + n, name) == 0))
            return t;
    }
    return NULL;
}

const char *model_unit_name(char out[MODEL_NAME_BYTES], const struct model *model, uint32_t unit)
{
    const struct model_unit *u = &model->units[unit];
    const struct model_piece *piece = &model->pieces[u->first_piece];
    const enum model_layer_kind kind = (enum model_layer_kind)(u->id >> 56);
    const unsigned layer = (unsigned)(u->id >> 24), chunk = (unsigned)(u->id & 0xFFFFFF);
    const char *table = kind == MODEL_HEAD ? "lm_head" : layer == 0 ? "wte" : "wpe";

    if (kind == MODEL_BLOCK)
        snprintf(out, MODEL_NAME_BYTES, "h.%u", layer);
    else if (kind == MODEL_NORM)
        snprintf(out, MODEL_NAME_BYTES, "ln_f");
    else if (piece->n_rows < model->tensors[piece->tensor].shape[0])
        snprintf(out, MODEL_NAME_BYTES, "%s.%u", table, chunk);
    else
        snprintf(out, MODEL_NAME_BYTES, "%s", table);
    return out;
}

const char *model_visit_name(char out[MODEL_NAME_BYTES], const struct model *model, uint32_t visit)
{
    const bool head = model->layers[model->visit_layers[visit]].kind == MODEL_HEAD;
    char name[MODEL_NAME_BYTES];

    snprintf(out, MODEL_NAME_BYTES, "%s%.20s", head ? "head " : "", model_unit_name(name, model, model->visits[visit]));
    return out;
}

bool model_is_mask(const char *name)
{
    const size_t prefixed = strlen(prefix);
    unsigned layer;
    int n = 0;

    if (strncmp(name, prefix, prefixed) == 0)
        name += prefixed;
    if (sscanf(name, "h.%u.attn.%n", &layer, &n) != 1 || n == 0)
        return false;
    return strcmp(name + n, "bias") == 0 || strcmp(name + n, "masked_bias") == 0;
}

size_t model_slot_bytes(const struct model *model, enum number_type type)
{
    const uint64_t n = model->largest_unit < MODEL_SLICE ? model->largest_unit : MODEL_SLICE;

    return (n * number_bytes(type) + 63) / 64 * 64;
}
